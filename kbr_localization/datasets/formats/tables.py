"""Text files of numbers, as public datasets have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from kbr_localization.datasets.formats.floor import rotations_of
from kbr_localization.errors import DatasetError
from kbr_localization.files import read_text
from kbr_localization.se2 import FloatArray, StampArray
from kbr_localization.trajectory import LATEST_S, parse_seconds
import numpy as np

_LONGEST_STAMP = 40


def require(path: Path, what: str) -> Path:
    """Return the path of a file or folder; raises DatasetError when it is missing."""
    if not path.exists():
        raise DatasetError(f'no {path.name} in {path.parent}: expected {what}')
    return path


def listed_file(folder: Path, name: str, where: Path) -> Path:
    """Path of a file of a folder that a list names; raises DatasetError for one elsewhere."""
    if Path(name).is_absolute() or '..' in Path(name).parts:
        raise DatasetError(f'{where}: expected files in {folder}, got {name[:80]!r}')
    return folder / name


def read_rows(path: Path, fields: int, most: int | None = None) -> list[list[str]]:
    """
    Words of the lines of a file, split at commas and blanks; those with # are comments.

    Raises DatasetError when the file cannot be read, a line has fewer than `fields` words or more
    than `most`, or there is none.
    """
    try:
        lines = read_text(path, errors='replace').splitlines()
    except OSError as error:
        raise DatasetError(f'cannot read {path}: {error.strerror}') from error
    rows = []
    for number, line in enumerate(lines, start=1):
        words = line.replace(',', ' ').split()
        if not words or words[0].startswith('#'):
            continue
        if not fields <= len(words) <= (most or len(words)):
            raise DatasetError(
                f'{path}, line {number}: expected {fields} fields, got {len(words)}: {line:.60}'
            )
        rows.append(words)
    if not rows:
        raise DatasetError(f'{path}: expected lines of {fields} fields, got none')
    return rows


def numbers(path: Path, rows: Sequence[Sequence[str]]) -> FloatArray:
    """Numbers (n, k) of words; raises DatasetError for a word that is none."""
    try:
        return np.array([[float(word) for word in row] for row in rows], dtype=np.float64)
    except ValueError as error:
        raise DatasetError(f'{path}: expected numbers: {error}') from error


def stamp_of_seconds(text: str, path: Path) -> int:
    """Nanoseconds of a text of seconds, without the loss of a float; raises DatasetError."""
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise DatasetError(f'{path}: {error}') from error


def stamp_of_nanoseconds(text: str, path: Path) -> int:
    """Nanoseconds of a text of whole nanoseconds; raises DatasetError."""
    # of a longer text Python makes no number
    if not text.isdecimal() or len(text) > _LONGEST_STAMP or int(text) >= LATEST_S * 10**9:
        raise DatasetError(
            f'{path}: expected a time in nanoseconds before {LATEST_S} s, got {text[:40]!r}'
        )
    return int(text)


def read_tum_poses(path: Path) -> tuple[StampArray, FloatArray, FloatArray]:
    """
    Read lines of `seconds x y z qx qy qz qw`: stamps (n,), rotations (n, 3, 3), positions (n, 3).

    Raises DatasetError, also for lines of more numbers, as of decimals behind a comma.
    """
    stamps, values = read_stamped(path, stamp_of_seconds, most=8)
    return stamps, oriented(path, values[:, 3:]), values[:, :3]


def read_stamped(
    path: Path, stamp_of: Callable[[str, Path], int], most: int | None = None
) -> tuple[StampArray, FloatArray]:
    """Read lines of a time and the seven numbers of a pose: stamps (n,), numbers (n, 7)."""
    rows = read_rows(path, 8, most)
    stamps = np.array([stamp_of(row[0], path) for row in rows], dtype=np.int64)
    return stamps, numbers(path, [row[1:8] for row in rows])


def oriented(path: Path, quaternions: FloatArray) -> FloatArray:
    """
    Rotations (n, 3, 3) of quaternions x, y, z, w, NaN where one is not finite.

    Raises DatasetError for one of length 0.
    """
    known = np.isfinite(quaternions).all(axis=1)
    rotations = np.full((len(quaternions), 3, 3), np.nan)
    try:
        rotations[known] = rotations_of(quaternions[known])
        return rotations
    except ValueError as error:
        raise DatasetError(f'{path}: expected unit quaternions: {error}') from error


def matrices(path: Path, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Rotations (n, 3, 3) and positions (n, 3) of rows of 12 or 16 numbers of [R t]."""
    if values.shape[1] not in (12, 16):
        raise DatasetError(f'{path}: expected 12 numbers of a pose, got {values.shape[1]}')
    poses = values[:, :12].reshape(-1, 3, 4)
    return poses[:, :, :3], poses[:, :, 3]
