"""
A folder of images with a trajectory in the TUM format.

`trajectory.tum` or `groundtruth.tum` (`seconds x y z qx qy qz qw`) has the poses of the robot's
base in the map (x ahead, z up, as in ROS), `odometry.tum` those in the odometry frame where there
are some. The images lie in the folder or in `images/`; their names are their times, in seconds
with decimals or in nanoseconds, unless `images.txt` lists `seconds file`.
"""

from __future__ import annotations

from pathlib import Path

from kbr_localization.datasets.formats.floor import BASE_Z_UP, planar_track
from kbr_localization.datasets.formats.tables import (
    listed_file,
    read_rows,
    read_tum_poses,
    stamp_of_nanoseconds,
    stamp_of_seconds,
)
from kbr_localization.datasets.image_run import Listing
from kbr_localization.errors import DatasetError

TRUTHS, ODOMETRY, LIST = ('trajectory.tum', 'groundtruth.tum'), 'odometry.tum', 'images.txt'
SUFFIXES = ('.jpg', '.jpeg', '.png')
NAME = f'a folder of images with {" or ".join(TRUTHS)}'
NANOSECOND_DIGITS, SECOND_DIGITS = 15, 9
"""From so many digits on a whole number is a time; fewer are the number of an image."""


def holds(path: Path) -> bool:
    """Whether a folder has such a trajectory."""
    return any((path / name).is_file() for name in TRUTHS)


def cameras(path: Path) -> list[str]:
    """Cameras that may be chosen: none."""
    return []


def listing(path: Path, camera: str | None = None) -> Listing:
    """Read what the folder holds; raises DatasetError."""
    truth = next(path / name for name in TRUTHS if (path / name).is_file())
    track, skipped = planar_track(str(truth), *read_tum_poses(truth), BASE_Z_UP)
    odometry = None
    if (path / ODOMETRY).is_file():
        file = path / ODOMETRY
        odometry, left_out = planar_track(str(file), *read_tum_poses(file), BASE_Z_UP)
        skipped |= {f'{ODOMETRY}: {reason}': count for reason, count in left_out.items()}
    return Listing(path.resolve().name, _images(path), track, odometry, skipped, truth.name)


def image_files(path: Path) -> list[Path]:
    """Images of a folder by name; hidden files, as macOS puts beside each, are none."""
    files = (file for file in path.iterdir() if not file.name.startswith('.'))
    return sorted(file for file in files if file.suffix.lower() in SUFFIXES)


def _images(path: Path) -> list[tuple[int, Path]]:
    if (path / LIST).is_file():
        rows = read_rows(path / LIST, 2)
        names = [listed_file(path, ' '.join(row[1:]), path / LIST) for row in rows]
        stamps = [stamp_of_seconds(row[0], path / LIST) for row in rows]
        return list(zip(stamps, names, strict=True))
    folder = path / 'images' if (path / 'images').is_dir() else path
    files = image_files(folder)
    if not files:
        raise DatasetError(f'no images in {folder}: expected {", ".join(SUFFIXES)} named by time')
    return [(_stamp_of(file), file) for file in files]


def _stamp_of(file: Path) -> int:
    try:
        if file.stem.isdecimal() and len(file.stem) >= NANOSECOND_DIGITS:
            return stamp_of_nanoseconds(file.stem, file)
        return stamp_of_seconds('' if _is_short(file.stem) else file.stem, file)
    except DatasetError as error:
        raise DatasetError(
            f'{file}: expected its time as the name, as in 1403636579.763555.png or '
            f'1403636579763555584.png, or a list {LIST} of lines "seconds file" beside it'
        ) from error


def _is_short(name: str) -> bool:
    return name.isdecimal() and len(name) < SECOND_DIGITS
