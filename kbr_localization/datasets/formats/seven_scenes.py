"""
Sequences of 7-Scenes (Shotton et al., CVPR 2013).

`seq-XX/frame-XXXXXX.color.png` with `frame-XXXXXX.pose.txt`: camera-to-world matrices, the world
having the axes of a camera (x to the right, y down, z ahead). Times follow from the numbers at 30
images a second.
"""

from __future__ import annotations

from pathlib import Path
import re

from kbr_localization.datasets.formats.floor import CAMERA_Y_DOWN, planar_track
from kbr_localization.datasets.formats.tables import matrices, numbers, read_rows
from kbr_localization.datasets.image_run import Listing
from kbr_localization.errors import DatasetError
import numpy as np

RATE = 30
"""Images a second."""
NAME = 'a sequence of 7-Scenes (frame-000000.color.png)'
POSE_SUFFIX = '.pose.txt'
NO_POSE = 'no file of the true pose'
_IMAGE, _SUFFIX = re.compile(r'frame-(\d+)\.color\.png'), '.color.png'


def holds(path: Path) -> bool:
    """Whether a folder is such a sequence."""
    return next(path.glob(f'frame-*{_SUFFIX}'), None) is not None


def cameras(path: Path) -> list[str]:
    """Cameras that may be chosen: none."""
    return []


def listing(path: Path, camera: str | None = None) -> Listing:
    """Read what the sequence holds; raises DatasetError."""
    images, stamps, poses = [], [], []
    skipped: dict[str, int] = {}
    for file in sorted(path.glob(f'frame-*{_SUFFIX}')):
        pose = file.with_name(file.name.removesuffix(_SUFFIX) + POSE_SUFFIX)
        number = _IMAGE.fullmatch(file.name)
        if number is None:
            continue
        if not pose.is_file():
            skipped[NO_POSE] = skipped.get(NO_POSE, 0) + 1
            continue
        stamp_ns = (int(number[1]) + 1) * 10**9 // RATE
        images.append((stamp_ns, file))
        stamps.append(stamp_ns)
        poses.append(_pose(pose))
    if not images:
        raise DatasetError(f'no poses in {path}: expected frame-XXXXXX.pose.txt for each image')
    rotations, positions = matrices(path, np.array(poses))
    track, left_out = planar_track(
        str(path), np.array(stamps, dtype=np.int64), rotations, positions, CAMERA_Y_DOWN
    )
    whole = path.resolve()
    return Listing(f'{whole.parent.name}-{whole.name}', images, track, skipped=skipped | left_out)


def _pose(file: Path) -> list[float]:
    rows = [row[:4] for row in read_rows(file, 4)]
    if len(rows) < 3:
        raise DatasetError(f'{file}: expected a matrix of 4 x 4 numbers, got {len(rows)} rows')
    return [float(value) for value in numbers(file, rows[:3]).ravel()]
