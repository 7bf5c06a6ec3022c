"""Find out what a path holds and open it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from kbr_localization.datasets import public_formats as public
from kbr_localization.datasets.cold import CAMERA_FOLDERS, CAMERA_SUFFIX, read_cold
from kbr_localization.datasets.frame import Dataset, Skipped
from kbr_localization.datasets.images import image_files
from kbr_localization.datasets.multi_camera import camera_name, camera_names, join_cameras
from kbr_localization.errors import DatasetError

BAG_SUFFIXES = ('.mcap', '.db3', '.bag')


class RunFormat(NamedTuple):
    """
    A kind of run: its name, and patterns of which one file, or folder (/), tells it.

    `read`: of a public format, given the folder that was found by the pattern, or that of the
    file. `has_cameras`: that is a folder for each camera.
    """

    name: str
    patterns: tuple[str, ...]
    read: Callable[[Path, Skipped], public.Listing] | None = None
    has_cameras: bool = False

    def folders(self, path: Path) -> list[Path]:
        """Return the folders that hold such a run, in order, none where a path holds none."""
        found = set[Path]()
        for pattern in self.patterns:
            # until Python 3.10 a pattern that ends with / finds files too
            if pattern.endswith('/'):
                found.update(p for p in path.glob(pattern.rstrip('/')) if p.is_dir())
            else:
                found.update(file.parent for file in path.glob(pattern))
        return sorted(found)


COLD = RunFormat(
    f'a COLD run (a folder that holds {" or ".join(CAMERA_FOLDERS)})',
    (f'*{CAMERA_SUFFIX}/',),
    has_cameras=True,
)
BAG = RunFormat(
    f'a bag (a folder with metadata.yaml, or a file {" or ".join(BAG_SUFFIXES)})',
    ('metadata.yaml', *(f'*{suffix}' for suffix in BAG_SUFFIXES)),
)
TRAVERSE = RunFormat('a folder of images (with --spacing)', ())
FORMATS = (
    COLD,
    BAG,
    RunFormat('a TUM RGB-D sequence (rgb.txt)', ('rgb.txt',), public.read_tum_rgbd),
    RunFormat(
        'a EuRoC sequence (mav0/cam0)',
        ('cam*/data.csv', 'mav0/cam*/data.csv'),
        public.read_euroc,
        has_cameras=True,
    ),
    RunFormat(
        'a KITTI odometry sequence (image_0)',
        ('image_[0-9]/',),
        public.read_kitti,
        has_cameras=True,
    ),
    RunFormat(
        'a sequence of 7-Scenes (frame-000000.color.png)',
        (f'frame-*{public.SCENE_IMAGE}',),
        public.read_seven_scenes,
    ),
    RunFormat(
        f'a folder of images with {" or ".join(public.FOLDER_POSES)}',
        public.FOLDER_POSES,
        public.read_image_folder,
    ),
)


def open_dataset(
    path: Path | str,
    cameras: Sequence[str] = (),
    odometry_topic: str | None = None,
    reference_topic: str | None = None,
    spacing: float | None = None,
    odometry_seed: int = 0,
    guess: bool = False,
) -> Dataset:
    """
    Open a COLD run, a bag (a folder, or one file of it) or a public dataset's folder.

    `cameras`: which ones, by folders of the run, topics of the bag, or names (`camera_name`);
    with several the images are `MultiImage`s of stamps at most `TOLERANCE` seconds apart. By
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
    folders = {folder.name: folder for folder in form.folders(where)} if form.has_cameras else {}

    def open_one(camera: str | None) -> Dataset:
        if form is BAG:
            # rosbags is an optional dependency, needed for bags only
            from kbr_localization.datasets.rosbag import read_bag  # noqa: PLC0415

            return read_bag(where, camera, odometry_topic, reference_topic, guess)
        named = {camera_name(name): folder for name, folder in reversed(folders.items())}
        if camera is not None and camera_name(camera) not in named:
            expected = f'one of {", ".join(folders)}' if folders else 'no --cameras'
            raise DatasetError(f'{where}: no camera {camera!r}: expected {expected}')
        folder = where if camera is None else named[camera_name(camera)]
        if form is COLD:
            return read_cold(folder)
        skipped = Skipped()
        if form.read:
            return form.read(folder, skipped).run(skipped, odometry_seed)
        return public.read_traverse(where, spacing, skipped).run(skipped, odometry_seed)

    chosen = cameras or _usual_cameras(folders)
    if len(chosen) < 2:
        return open_one(chosen[0] if chosen else None)
    return join_cameras(camera_names(chosen), [open_one(c) for c in chosen])


def _format_of(path: Path) -> RunFormat:
    if not path.is_dir() and path.suffix in BAG_SUFFIXES:
        return BAG
    if form := next((form for form in FORMATS if form.folders(path)), None):
        return form
    if path.is_dir() and image_files(path):
        return TRAVERSE
    expected = ', '.join(form.name for form in (*FORMATS, TRAVERSE))
    for inner in sorted(path.iterdir()) if path.is_dir() else ():
        if inner.is_dir() and any(form.folders(inner) for form in FORMATS):
            expected = f'one of the runs in it, as {inner}'
            break
    raise DatasetError(f'{path} is no run: expected {expected}')


def _usual_cameras(folders: dict[str, Path]) -> list[str]:
    """Cameras where none is named: one of COLD's, or all that a recorder has, or the first."""
    of_cold = [name for name in CAMERA_FOLDERS if name in folders][:1]
    # a recorder that was started without camera topics leaves an empty one
    if of_cold and any(folders[of_cold[0]].iterdir()):
        return of_cold
    recorded = [name for name in folders if name.endswith(CAMERA_SUFFIX) and name not in of_cold]
    return recorded or list(folders)[:1]
