"""Find out what a path holds and open it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kbr_localization.datasets.camera_names import camera_names
from kbr_localization.datasets.cold import CAMERAS, cameras_in, ColdRun
from kbr_localization.datasets.frame import Dataset
from kbr_localization.datasets.multi_camera import MultiCameraRun
from kbr_localization.datasets.synchronizer import TOLERANCE
from kbr_localization.errors import DatasetError

BAG_SUFFIXES = ('.mcap', '.db3')


def open_dataset(
    path: Path | str,
    cameras: Sequence[str] = (),
    tolerance: float = TOLERANCE,
    odometry_topic: str | None = None,
    reference_topic: str | None = None,
) -> Dataset:
    """
    Open a COLD run (a folder) or a rosbag2 (a folder, or one file of it).

    `cameras`: which ones, by folders of the run, topics of the bag, or names (`camera_name`);
    with several the images are `MultiImage`s of stamps at most `tolerance` seconds apart. By
    default the only one, or COLD's, or all that a recorded run has. The topics are for a bag that
    has several. Raises DatasetError when the path holds no run, or not these cameras or topics.
    """
    where = Path(path)
    if not where.exists():
        raise DatasetError(f'no such run: {where}: expected a COLD run folder or a rosbag2')
    topics = (odometry_topic, reference_topic)
    if where.is_dir() and cameras_in(where):
        if any(topics):
            raise DatasetError(
                f'{where} is a COLD run: expected no --odometry-topic or --reference-topic, which '
                'are for bags'
            )
        return _open_cold(where, cameras or _usual(where), tolerance)
    if _is_bag(where):
        return _open_bag(where, cameras, topics, tolerance)
    raise DatasetError(
        f'{where} is no run: expected a COLD run (a folder that holds {" or ".join(CAMERAS)}) '
        f'or a rosbag2 (a folder with metadata.yaml, or a file {" or ".join(BAG_SUFFIXES)})'
    )


def _usual(path: Path) -> list[str]:
    """Cameras that are meant when none is named: one of COLD's, or all of a recorder's."""
    found = cameras_in(path)
    return [camera for camera in CAMERAS if camera in found][:1] or found


def _open_cold(path: Path, cameras: Sequence[str], tolerance: float) -> Dataset:
    runs = [ColdRun(path, camera) for camera in cameras]
    return runs[0] if len(runs) == 1 else MultiCameraRun(camera_names(cameras), runs, tolerance)


def _open_bag(
    path: Path, cameras: Sequence[str], topics: tuple[str | None, str | None], tolerance: float
) -> Dataset:
    # rosbags is needed for bags only
    from kbr_localization.datasets.rosbag import BagRun  # noqa: PLC0415

    if len(cameras) < 2:
        return BagRun(path, cameras[0] if cameras else None, *topics)
    runs = [BagRun(path, camera, *topics) for camera in cameras]
    return MultiCameraRun(camera_names(cameras), runs, tolerance)


def _is_bag(path: Path) -> bool:
    if not path.is_dir():
        return path.suffix in BAG_SUFFIXES
    files = {file.name for file in path.iterdir()}
    return 'metadata.yaml' in files or any(name.endswith(BAG_SUFFIXES) for name in files)
