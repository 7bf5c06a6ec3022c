"""Find out what a path holds and open it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from kbr_localization.datasets import public_formats as public
from kbr_localization.datasets.cold import CAMERAS, cameras_in, ColdRun, SUFFIX
from kbr_localization.datasets.frame import Dataset, Skipped
from kbr_localization.datasets.multi_camera import camera_names, MultiCameraRun, TOLERANCE
from kbr_localization.errors import DatasetError

BAG_SUFFIXES = ('.mcap', '.db3', '.bag')


class Format(NamedTuple):
    """
    A kind of run: its name, and patterns of which one file or folder tells it.

    `read`: of public formats, with a camera of `cameras`, by default the first.
    """

    name: str
    patterns: tuple[str, ...]
    read: Callable[[Path, str | None, Skipped], public.Listing] | None = None
    cameras: Callable[[Path], list[str]] = lambda path: []

    def holds(self, path: Path) -> bool:
        """Tell whether a folder holds such a run."""
        return any(any(path.glob(pattern)) for pattern in self.patterns)


COLD = Format(f'a COLD run (a folder that holds {" or ".join(CAMERAS)})', (f'*{SUFFIX}/',))
BAG = Format(
    f'a bag (a folder with metadata.yaml, or a file {" or ".join(BAG_SUFFIXES)})',
    ('metadata.yaml', *(f'*{suffix}' for suffix in BAG_SUFFIXES)),
)
EUROC = Format(
    'a EuRoC sequence (mav0/cam0)',
    ('cam*/data.csv', 'mav0/cam*/data.csv'),
    public.read_euroc,
    public.euroc_cameras,
)
KITTI = Format(
    'a KITTI odometry sequence (image_0)',
    ('image_[0-9]/',),
    public.read_kitti,
    public.kitti_cameras,
)
SCENES = Format(
    'a sequence of 7-Scenes (frame-000000.color.png)',
    (f'frame-*{public.SCENE_IMAGE}',),
    public.read_seven_scenes,
)
FOLDER = Format(
    f'a folder of images with {" or ".join(public.FOLDER_POSES)}',
    public.FOLDER_POSES,
    public.read_image_folder,
)
TUM = Format('a TUM RGB-D sequence (rgb.txt)', ('rgb.txt',), public.read_tum_rgbd)
TRAVERSE = Format('a folder of images (with --spacing)', ())
FORMATS = (COLD, BAG, TUM, EUROC, KITTI, SCENES, FOLDER)


def open_dataset(
    path: Path | str,
    cameras: Sequence[str] = (),
    tolerance: float = TOLERANCE,
    odometry_topic: str | None = None,
    reference_topic: str | None = None,
    spacing: float | None = None,
    odometry_seed: int = 0,
    guess: bool = False,
) -> Dataset:
    """
    Open a COLD run, a bag (a folder, or one file of it) or a public dataset's folder.

    `cameras`: which ones, by folders of the run, topics of the bag, or names (`camera_name`);
    with several the images are `MultiImage`s of stamps at most `tolerance` seconds apart. By
    default the only one, or the first, or all that a recorded run has. The topics are for a bag
    that has several. `spacing`: metres between the images of a folder without poses.
    `guess`: take the likeliest topics where that is unclear. `odometry_seed`: of the odometry that
    is made where a run has none (see its `notes`). Raises DatasetError when the path holds no
    run, or not these cameras or topics.
    """
    where = Path(path)
    if not where.exists():
        raise DatasetError(f'no such run: {where}: expected the folder of a run, or a bag')
    form = _format_of(where)
    for option, given, meant in (
        ('--odometry-topic', odometry_topic, BAG),
        ('--reference-topic', reference_topic, BAG),
        ('--spacing', spacing, TRAVERSE),
    ):
        if given is not None and form is not meant:
            raise DatasetError(
                f'{where} is {form.name}: expected no {option}, which is for {meant.name}'
            )

    def open_one(camera: str | None) -> Dataset:
        if form is COLD:
            return ColdRun(where, camera)
        if form is BAG:
            # rosbags is an optional dependency, needed for bags only
            from kbr_localization.datasets.rosbag import BagRun  # noqa: PLC0415

            return BagRun(where, camera, odometry_topic, reference_topic, guess)
        there, skipped = form.cameras(where), Skipped()
        if camera is not None and camera not in there:
            raise DatasetError(
                f'{where}: no camera {camera!r}: expected {" or ".join(there) or "no --cameras"}'
            )
        if form.read is None:
            listing = public.read_traverse(where, spacing, skipped)
        else:
            listing = form.read(where, camera, skipped)
        return public.ImageRun(listing, skipped, odometry_seed)

    chosen = cameras or (_usual_cameras(where) if form is COLD else [])
    if len(chosen) < 2:
        return open_one(chosen[0] if chosen else None)
    return MultiCameraRun(camera_names(chosen), [open_one(c) for c in chosen], tolerance)


def _format_of(path: Path) -> Format:
    """Return the format of the run that a path holds; raises DatasetError for none."""
    if not path.is_dir() and path.suffix in BAG_SUFFIXES:
        return BAG
    if form := next((form for form in FORMATS if form.holds(path)), None):
        return form
    if path.is_dir() and public.image_files(path):
        return TRAVERSE
    expected = ', '.join(form.name for form in (*FORMATS, TRAVERSE))
    for inner in sorted(path.iterdir()) if path.is_dir() else ():
        if inner.is_dir() and any(form.holds(inner) for form in FORMATS):
            expected = f'one of the runs in it, as {inner}'
            break
    raise DatasetError(f'{path} is no run: expected {expected}')


def _usual_cameras(path: Path) -> list[str]:
    """Cameras of a COLD run when none is named: one of COLD's, or all of a recorder's."""
    found = cameras_in(path)
    of_cold = [camera for camera in CAMERAS if camera in found][:1]
    # a recorder that was started without camera topics leaves an empty one
    if of_cold and any((path / of_cold[0]).iterdir()):
        return of_cold
    return [camera for camera in found if camera not in of_cold] or found
