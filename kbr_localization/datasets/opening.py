"""Detect the format of a run and open it."""

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
    A format of runs, recognised by a file or folder (pattern with /) that matches a pattern.

    `read`: reads a public format from the matching folder, or the folder of the matching file.
    `has_cameras`: there is one such folder for each camera.
    """

    name: str
    patterns: tuple[str, ...]
    read: Callable[[Path, Skipped], public.Listing] | None = None
    has_cameras: bool = False

    def folders(self, path: Path) -> list[Path]:
        """Return the sorted folders of a run of this format, none if the path holds none."""
        found = set[Path]()
        for pattern in self.patterns:
            # Python 3.10 finds files too by a pattern that ends with /
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

    `cameras`: folders of the run, topics of the bag, or names (`camera_name`); with several the
    images are `MultiImage`s. The default is the first camera, or all of a recorded run.
    `odometry_topic`, `reference_topic`: needed for bags with several. `guess`: choose the
    likeliest topics where that is unclear. `spacing`: metres between the images of a folder
    without poses. `odometry_seed`: of the synthetic odometry of a run that has none (see its
    `notes`). Raises DatasetError when the path holds no run, or not these cameras or topics.
    """
    where = Path(path)
    if not where.exists():
        raise DatasetError(f'no such run: {where}: expected the folder of a run, or a bag')
    run_format = _format_of(where)
    for option, given, meant in (
        ('--odometry-topic', odometry_topic, BAG),
        ('--reference-topic', reference_topic, BAG),
        ('--spacing', spacing, TRAVERSE),
    ):
        if given is not None and run_format is not meant:
            raise DatasetError(
                f'{where} is {run_format.name}: expected no {option}, which is for {meant.name}'
            )
    found = run_format.folders(where) if run_format.has_cameras else []
    folders = {folder.name: folder for folder in found}

    def open_one(camera: str | None) -> Dataset:
        if run_format is BAG:
            # rosbags is an optional dependency
            from kbr_localization.datasets.rosbag import read_bag  # noqa: PLC0415

            return read_bag(where, camera, odometry_topic, reference_topic, guess)
        named = {camera_name(name): folder for name, folder in reversed(folders.items())}
        if camera is not None and camera_name(camera) not in named:
            expected = f'one of {", ".join(folders)}' if folders else 'no --cameras'
            raise DatasetError(f'{where}: no camera {camera!r}: expected {expected}')
        folder = where if camera is None else named[camera_name(camera)]
        if run_format is COLD:
            return read_cold(folder)
        skipped = Skipped()
        if run_format.read:
            return run_format.read(folder, skipped).run(skipped, odometry_seed)
        return public.read_traverse(where, spacing, skipped).run(skipped, odometry_seed)

    chosen = cameras or _default_cameras(folders)
    if len(chosen) < 2:
        return open_one(chosen[0] if chosen else None)
    return join_cameras(camera_names(chosen), [open_one(c) for c in chosen])


def _format_of(path: Path) -> RunFormat:
    if not path.is_dir() and path.suffix in BAG_SUFFIXES:
        return BAG
    for run_format in FORMATS:
        if run_format.folders(path):
            return run_format
    if path.is_dir() and image_files(path):
        return TRAVERSE
    expected = ', '.join(known.name for known in (*FORMATS, TRAVERSE))
    for inner in sorted(path.iterdir()) if path.is_dir() else ():
        if inner.is_dir() and any(known.folders(inner) for known in FORMATS):
            expected = f'one of the runs in it, such as {inner}'
            break
    raise DatasetError(f'{path} is no run: expected {expected}')


def _default_cameras(folders: dict[str, Path]) -> list[str]:
    """Return one of COLD's cameras, or all cameras of a recorded run, or the first camera."""
    cold = [name for name in CAMERA_FOLDERS if name in folders][:1]
    # a recorder that was first started without camera topics leaves an empty folder
    if cold and any(folders[cold[0]].iterdir()):
        return cold
    recorded = [name for name in folders if name.endswith(CAMERA_SUFFIX) and name not in cold]
    return recorded or list(folders)[:1]
