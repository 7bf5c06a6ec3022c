"""
Sequences of EuRoC MAV (Burri et al., IJRR 2016), and others laid out alike, as TUM VI.

`mav0/cam0/data.csv` lists the images, `mav0/state_groundtruth_estimate0/data.csv` the poses of the
body in a world whose z points up, `mav0/cam0/sensor.yaml` has the camera on the body (T_BS).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kbr_localization.datasets.formats.floor import CAMERA_Z_UP, planar_track
from kbr_localization.datasets.formats.tables import (
    listed_file,
    oriented,
    read_rows,
    read_stamped,
    require,
    stamp_of_nanoseconds,
)
from kbr_localization.datasets.frame import FARTHEST_M
from kbr_localization.datasets.image_run import Listing
from kbr_localization.errors import DatasetError
from kbr_localization.files import read_text
from kbr_localization.se2 import FloatArray
import numpy as np
import yaml

ROOT, TABLE, SENSOR = 'mav0', 'data.csv', 'sensor.yaml'
_LARGEST_SENSOR = 1 << 16
"""Bytes; YAML is read slowly."""
TRUTHS = ('state_groundtruth_estimate0', 'mocap0')
NAME = f'a EuRoC sequence ({ROOT}/cam0)'


def holds(path: Path) -> bool:
    """Whether a folder is such a sequence, or its part mav0."""
    return bool(cameras(path))


def cameras(path: Path) -> list[str]:
    """Folders of cameras, cam0 first."""
    return sorted(file.parent.name for file in _root(path).glob(f'cam*/{TABLE}'))


def listing(path: Path, camera: str | None = None) -> Listing:
    """Read what the sequence holds; raises DatasetError."""
    root = _root(path)
    folder = root / (camera or cameras(path)[0])
    table = require(folder / TABLE, 'the list of the images of a EuRoC camera')
    images = [
        (stamp_of_nanoseconds(row[0], table), listed_file(folder / 'data', row[1], table))
        for row in read_rows(table, 2)
    ]
    truth = _truth(root)
    on_body = _camera_on_body(folder)
    stamps, values = read_stamped(truth, stamp_of_nanoseconds)
    # quaternions stand as w, x, y, z
    body = oriented(truth, values[:, [4, 5, 6, 3]])
    positions = values[:, :3] + body @ on_body[:3, 3]
    rotations = body @ on_body[:3, :3]
    track, skipped = planar_track(str(truth), stamps, rotations, positions, CAMERA_Z_UP)
    return Listing(root.resolve().parent.name, images, track, skipped=skipped)


def _root(path: Path) -> Path:
    return path / ROOT if (path / ROOT).is_dir() else path


def _truth(root: Path) -> Path:
    for name in TRUTHS:
        if (root / name / TABLE).is_file():
            return root / name / TABLE
    return require(root / TRUTHS[0] / TABLE, 'the true poses of a EuRoC sequence')


def _camera_on_body(folder: Path) -> FloatArray:
    """Matrix (4, 4) of the camera in the frame of the body."""
    file = require(folder / SENSOR, 'T_BS, the pose of the camera on the body')
    try:
        text = read_text(file, most=_LARGEST_SENSOR)
        lines = [line for line in text.splitlines() if not line.startswith('%')]
        matrix = _sixteen(yaml.safe_load('\n'.join(lines))['T_BS']['data'])
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DatasetError(f'{file}: expected T_BS with 16 numbers under data') from error
    if not np.all(np.abs(matrix) < FARTHEST_M):
        raise DatasetError(f'{file}: expected T_BS with 16 finite numbers under data')
    return matrix


def _sixteen(data: Any) -> FloatArray:
    """Matrix (4, 4) of 16 numbers, or of 4 rows of 4; raises TypeError and ValueError."""
    rows = [row if isinstance(row, list) else [row] for row in data]
    # an alias of YAML may stand for lists without end
    if not all(type(value) in (int, float) for row in rows for value in row):
        raise TypeError('not numbers')
    return np.array([value for row in rows for value in row], dtype=np.float64).reshape(4, 4)
