"""Find out what a path holds and open it."""

from __future__ import annotations

from pathlib import Path

from kbr_localization.datasets.cold import CAMERAS, ColdRun
from kbr_localization.datasets.frame import Dataset
from kbr_localization.errors import DatasetError

BAG_SUFFIXES = ('.mcap', '.db3')


def open_dataset(path: Path | str) -> Dataset:
    """
    Open a COLD run (a folder) or a rosbag2 (a folder, or one file of it).

    Raises DatasetError when the path holds neither.
    """
    where = Path(path)
    if not where.exists():
        raise DatasetError(f'no such run: {where}: expected a COLD run folder or a rosbag2')
    if where.is_dir() and any((where / camera).is_dir() for camera in CAMERAS):
        return ColdRun(where)
    if _is_bag(where):
        # rosbags is needed for bags only
        from kbr_localization.datasets.rosbag import BagRun  # noqa: PLC0415

        bag: Dataset = BagRun(where)
        return bag
    raise DatasetError(
        f'{where} is no run: expected a COLD run (a folder that holds {" or ".join(CAMERAS)}) '
        f'or a rosbag2 (a folder with metadata.yaml, or a file {" or ".join(BAG_SUFFIXES)})'
    )


def _is_bag(path: Path) -> bool:
    if not path.is_dir():
        return path.suffix in BAG_SUFFIXES
    files = {file.name for file in path.iterdir()}
    return 'metadata.yaml' in files or any(name.endswith(BAG_SUFFIXES) for name in files)
