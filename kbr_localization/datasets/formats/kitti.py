"""
Sequences of KITTI odometry (Geiger et al., CVPR 2012).

`times.txt` in seconds, images by number in `image_0` (or another `image_N`), poses of the left
camera as 12 numbers a line, in the axes of the first: x to the right, y down, z ahead. The poses
lie in `../../poses/<sequence>.txt`, as unpacked, or as `poses.txt` in the sequence.
"""

from __future__ import annotations

from pathlib import Path

from kbr_localization.datasets.formats.floor import CAMERA_Y_DOWN, planar_track
from kbr_localization.datasets.formats.tables import (
    matrices,
    numbers,
    read_rows,
    require,
    stamp_of_seconds,
)
from kbr_localization.datasets.image_run import Listing
from kbr_localization.errors import DatasetError
import numpy as np

TIMES, POSES = 'times.txt', 'poses.txt'
NAME = 'a KITTI odometry sequence (image_0)'


def holds(path: Path) -> bool:
    """Whether a folder is such a sequence."""
    return bool(cameras(path))


def cameras(path: Path) -> list[str]:
    """Folders of cameras, image_0 first."""
    return sorted(p.name for p in path.glob('image_[0-9]') if p.is_dir())


def listing(path: Path, camera: str | None = None) -> Listing:
    """Read what the sequence holds; raises DatasetError."""
    times = require(path / TIMES, 'the times of a KITTI sequence, a line for each image')
    stamps = [stamp_of_seconds(row[0], times) for row in read_rows(times, 1)]
    file = _poses_of(path)
    rotations, positions = matrices(file, numbers(file, read_rows(file, 12)))
    if len(positions) != len(stamps):
        raise DatasetError(
            f'{file}: expected a pose for each line of {times}, got {len(positions)} poses and '
            f'{len(stamps)} times'
        )
    track, skipped = planar_track(
        str(file), np.array(stamps, dtype=np.int64), rotations, positions, CAMERA_Y_DOWN
    )
    folder = path / (camera or cameras(path)[0])
    images = [(stamp, folder / f'{index:06d}.png') for index, stamp in enumerate(stamps)]
    return Listing(path.resolve().name, images, track, skipped=skipped)


def _poses_of(path: Path) -> Path:
    whole = path.resolve()
    places = [whole / POSES, whole.parent.parent / 'poses' / f'{whole.name}.txt']
    for place in places:
        if place.is_file():
            return place
    raise DatasetError(
        f'no true poses of {path}: expected {POSES} in it or {places[1]} '
        '(KITTI gives them for sequences 00 to 10)'
    )
