"""
Sequences of the TUM RGB-D benchmark (Sturm et al., IROS 2012).

`rgb.txt` with lines of `seconds file`, `groundtruth.txt` with `seconds x y z qx qy qz qw`: poses
of the camera (z ahead, x to the right) in a world whose z points up.
"""

from __future__ import annotations

from pathlib import Path

from kbr_localization.datasets.formats.floor import CAMERA_Z_UP, planar_track
from kbr_localization.datasets.formats.tables import (
    listed_file,
    read_rows,
    read_tum_poses,
    require,
    stamp_of_seconds,
)
from kbr_localization.datasets.image_run import Listing

IMAGES, TRUTH = 'rgb.txt', 'groundtruth.txt'
NAME = f'a TUM RGB-D sequence ({IMAGES})'


def holds(path: Path) -> bool:
    """Whether a folder is such a sequence."""
    return (path / IMAGES).is_file()


def cameras(path: Path) -> list[str]:
    """Cameras that may be chosen: none."""
    return []


def listing(path: Path, camera: str | None = None) -> Listing:
    """Read what the sequence holds; raises DatasetError."""
    truth = require(path / TRUTH, 'the true poses of a TUM RGB-D sequence')
    lines = read_rows(path / IMAGES, 2)
    images = [
        (stamp_of_seconds(row[0], path / IMAGES), listed_file(path, row[1], path / IMAGES))
        for row in lines
    ]
    track, skipped = planar_track(str(truth), *read_tum_poses(truth), CAMERA_Z_UP)
    return Listing(path.resolve().name, images, track, skipped=skipped, truth=TRUTH)
