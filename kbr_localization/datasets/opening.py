"""Find out what a path holds and open it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbr_localization.datasets.camera_names import camera_names
from kbr_localization.datasets.cold import CAMERAS, cameras_in, ColdRun
from kbr_localization.datasets.formats import (
    euroc,
    image_folder,
    kitti,
    seven_scenes,
    traverse,
    tum_rgbd,
)
from kbr_localization.datasets.frame import Dataset
from kbr_localization.datasets.image_run import ImageRun
from kbr_localization.datasets.multi_camera import MultiCameraRun
from kbr_localization.datasets.synchronizer import TOLERANCE
from kbr_localization.errors import DatasetError

BAG_SUFFIXES = ('.mcap', '.db3')
FORMATS = (tum_rgbd, euroc, kitti, seven_scenes, image_folder)
"""Public datasets whose true poses lie beside the images."""
EXPECTED = (
    f'a COLD run (a folder that holds {" or ".join(CAMERAS)}), a rosbag2 (a folder with '
    f'metadata.yaml, or a file {" or ".join(BAG_SUFFIXES)}), '
    f'{", ".join(known.NAME for known in FORMATS)} or {traverse.NAME}'
)


@dataclass(frozen=True)
class _Choice:
    """What a user chose of a run that has several of something, or lacks it."""

    cameras: tuple[str, ...]
    tolerance: float
    topics: tuple[str | None, str | None]
    spacing: float | None
    odometry_seed: int

    def refuse_foreign(self, path: Path, kind: str, bag: bool = False, bare: bool = False) -> None:
        """Raise DatasetError for an option that is for another kind of run."""
        if any(self.topics) and not bag:
            raise DatasetError(
                f'{path} is {kind}: expected no --odometry-topic or --reference-topic, which '
                'are for bags'
            )
        if self.spacing is not None and not bare:
            raise DatasetError(
                f'{path} is {kind}: expected no --spacing, which is for folders of images '
                'without poses'
            )
        if self.cameras and bare:
            raise DatasetError(f'{path} is {kind}: expected no --cameras, it has one')


def open_dataset(
    path: Path | str,
    cameras: Sequence[str] = (),
    tolerance: float = TOLERANCE,
    odometry_topic: str | None = None,
    reference_topic: str | None = None,
    spacing: float | None = None,
    odometry_seed: int = 0,
) -> Dataset:
    """
    Open a COLD run, a rosbag2 (a folder, or one file of it) or a public dataset's folder.

    `cameras`: which ones, by folders of the run, topics of the bag, or names (`camera_name`);
    with several the images are `MultiImage`s of stamps at most `tolerance` seconds apart. By
    default the only one, or the first, or all that a recorded run has. The topics are for a bag
    that has several. `spacing`: metres between the images of a folder without poses.
    `odometry_seed`: of the odometry that is made where a run has none (its `notes` say so). Raises
    DatasetError when the path holds no run, or not these cameras or topics.
    """
    where = Path(path)
    if not where.exists():
        raise DatasetError(f'no such run: {where}: expected the folder of a run, or a rosbag2')
    topics = (odometry_topic, reference_topic)
    choice = _Choice(tuple(cameras), tolerance, topics, spacing, odometry_seed)
    if where.is_dir() and cameras_in(where):
        choice.refuse_foreign(where, 'a COLD run')
        return _open_cold(where, cameras or _usual(where), tolerance)
    if _is_bag(where):
        choice.refuse_foreign(where, 'a bag', bag=True)
        return _open_bag(where, choice)
    return _open_public(where, choice)


def needs_spacing(path: Path | str) -> bool:
    """Whether a path is a folder of images without poses, which needs a `spacing`."""
    where = Path(path)
    return where.is_dir() and not _is_run(where) and traverse.holds(where)


def _usual(path: Path) -> list[str]:
    """Cameras that are meant when none is named: one of COLD's, or all of a recorder's."""
    found = cameras_in(path)
    of_cold = [camera for camera in CAMERAS if camera in found][:1]
    # a recorder that was started with no topics of cameras leaves an empty one
    if of_cold and any((path / of_cold[0]).iterdir()):
        return of_cold
    return [camera for camera in found if camera not in of_cold] or found


def _open_cold(path: Path, cameras: Sequence[str], tolerance: float) -> Dataset:
    runs = [ColdRun(path, camera) for camera in cameras]
    return runs[0] if len(runs) == 1 else MultiCameraRun(camera_names(cameras), runs, tolerance)


def _open_bag(path: Path, choice: _Choice) -> Dataset:
    # rosbags is needed for bags only
    from kbr_localization.datasets.rosbag import BagRun  # noqa: PLC0415

    cameras = choice.cameras
    if len(cameras) < 2:
        return BagRun(path, cameras[0] if cameras else None, *choice.topics)
    runs = [BagRun(path, camera, *choice.topics) for camera in cameras]
    return MultiCameraRun(camera_names(cameras), runs, choice.tolerance)


def _open_public(path: Path, choice: _Choice) -> Dataset:
    if path.is_dir():
        for known in FORMATS:
            if known.holds(path):
                choice.refuse_foreign(path, known.NAME)
                return _open_with_poses(known, path, choice)
        if traverse.holds(path):
            choice.refuse_foreign(path, traverse.NAME, bare=True)
            return ImageRun(traverse.listing(path, choice.spacing), choice.odometry_seed)
    if path.is_file() and path.suffix == '.bag':
        raise DatasetError(
            f'{path} is a bag of ROS 1: expected a rosbag2, as `rosbags-convert --src {path} '
            f'--dst {path.with_suffix("")}` makes of it'
        )
    raise DatasetError(f'{path} is no run: expected {_runs_inside(path) or EXPECTED}')


def _open_with_poses(known: Any, path: Path, choice: _Choice) -> Dataset:
    there = known.cameras(path)
    for camera in choice.cameras:
        if camera not in there:
            raise DatasetError(
                f'{path}: no camera {camera!r}: expected {" or ".join(there) or "no --cameras"}'
            )
    runs = [
        ImageRun(known.listing(path, camera), choice.odometry_seed)
        for camera in choice.cameras or (None,)
    ]
    if len(runs) == 1:
        return runs[0]
    return MultiCameraRun(camera_names(choice.cameras), runs, choice.tolerance)


def _runs_inside(path: Path) -> str:
    """Name a run inside of a folder that is none, as a scene of 7-Scenes, or nothing."""
    for inner in sorted(path.iterdir()) if path.is_dir() else ():
        if inner.is_dir() and _is_run(inner):
            return f'one of the runs in it, as {inner}'
    return ''


def _is_run(path: Path) -> bool:
    """Whether a folder is a run that needs nothing beside it, as a traverse does its spacing."""
    return bool(cameras_in(path)) or _is_bag(path) or any(kind.holds(path) for kind in FORMATS)


def _is_bag(path: Path) -> bool:
    if not path.is_dir():
        return path.suffix in BAG_SUFFIXES
    files = {file.name for file in path.iterdir()}
    return 'metadata.yaml' in files or any(name.endswith(BAG_SUFFIXES) for name in files)
