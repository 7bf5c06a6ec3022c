"""
Trajectories as TUM files: `seconds x y z qx qy qz qw`, what `evo_ape` and its kin read.

Stamps are written and read as text with nine decimals: a floating-point number of seconds since
1970 would be wrong by some hundred nanoseconds.
"""

from __future__ import annotations

import math
from pathlib import Path

from kbr_localization.errors import EvaluationError
from kbr_localization.files import read_text, write_text
from kbr_localization.trajectory import parse_seconds, Trajectory
import numpy as np

HEADER = '# seconds x y z qx qy qz qw'
FIELDS = 8
FARTHEST_M = 1e9
"""A position farther away is a broken number, also of an estimate that ran away."""
_LARGEST_NORM = 1e100
"""Of a quaternion whose squares are numbers, and one over the smallest."""


def write_tum(path: str | Path, trajectory: Trajectory) -> None:
    """Write the stamps and poses of a trajectory; the height is zero."""
    write_text(path, tum_text(trajectory))


def tum_text(trajectory: Trajectory) -> str:
    """Return what a TUM file of a trajectory holds."""
    lines = [
        _format_line(int(stamp), *map(float, pose))
        for stamp, pose in zip(trajectory.stamps_ns, trajectory.poses, strict=True)
    ]
    return '\n'.join([HEADER, *lines, ''])


def read_tum(path: str | Path) -> Trajectory:
    """
    Read a TUM file; of the orientation the heading is kept, the height is dropped.

    Raises EvaluationError for a file without poses, a line that is not eight numbers, is beyond
    `FARTHEST_M` or has no quaternion, and stamps that do not increase; OSError when the file
    cannot be read.
    """
    rows = [
        _parse_line(line, f'{path}, line {number}')
        for number, line in enumerate(_lines(Path(path)), start=1)
        if line.strip() and not line.lstrip().startswith('#')
    ]
    if not rows:
        raise EvaluationError(f'{path}: expected lines of "{HEADER[2:]}", got none')
    stamps = np.array([stamp for stamp, _ in rows], dtype=np.int64)
    backward = np.flatnonzero(np.diff(stamps) <= 0)
    if backward.size:
        raise EvaluationError(
            f'{path}: stamps have to increase, but pose {backward[0] + 2} of {len(rows)} is not '
            'later than the one before it; sort the file and remove duplicates'
        )
    return Trajectory(stamps, np.array([pose for _, pose in rows]))


def _lines(path: Path) -> list[str]:
    try:
        return read_text(path).splitlines()
    except UnicodeDecodeError as error:
        raise EvaluationError(f'{path}: expected a TUM text file, got binary data') from error


def _format_line(stamp_ns: int, x: float, y: float, heading: float) -> str:
    seconds, nanoseconds = divmod(stamp_ns, 10**9)
    z, w = math.sin(heading / 2), math.cos(heading / 2)
    return f'{seconds}.{nanoseconds:09d} {x:.9f} {y:.9f} 0 0 0 {z:.9f} {w:.9f}'


def _parse_line(line: str, where: str) -> tuple[int, tuple[float, float, float]]:
    time, *words = line.replace(',', ' ').split() or ['']
    try:
        x, y, _, qx, qy, qz, qw = map(float, words)
    except ValueError as error:
        raise EvaluationError(f'{where}: expected {FIELDS} numbers, got {line!r:.80}') from error
    try:
        stamp = parse_seconds(time)
    except ValueError as error:
        raise EvaluationError(f'{where}: {error}') from error
    # a comparison with NaN is false
    if not (abs(x) <= FARTHEST_M and abs(y) <= FARTHEST_M):
        raise EvaluationError(
            f'{where}: expected a finite position within {FARTHEST_M:g} m, got {line!r:.80}'
        )
    if not 1.0 / _LARGEST_NORM < math.hypot(qx, qy, qz, qw) < _LARGEST_NORM:
        raise EvaluationError(
            f'{where}: expected a finite quaternion qx qy qz qw that is not zero, got {line!r:.80}'
            '; without a turn it is 0 0 0 1'
        )
    heading = math.atan2(2 * (qw * qz + qx * qy), qw * qw + qx * qx - qy * qy - qz * qz)
    return stamp, (x, y, heading)
