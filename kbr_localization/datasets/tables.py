"""Read text files of runs, and project their poses in space onto the floor."""

from collections.abc import Callable, Sequence
import math
from pathlib import Path
import re
from typing import Any, TypeVar

from kbr_localization.datasets.frame import OdometryTrack, Skipped
from kbr_localization.datasets.tracks import make_track
from kbr_localization.errors import DatasetError
from kbr_localization.files import read_text
from kbr_localization.se2 import FloatArray
from kbr_localization.trajectory import LATEST_S, parse_seconds
import numpy as np
import yaml

# libyaml is faster and limits the depth
_Loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
Parsed = TypeVar('Parsed')
Vector = Sequence[float] | FloatArray

MAX_COORDINATE = 1e7
"""Larger coordinates are broken numbers; UTM coordinates are smaller."""
X_FORWARD, Z_FORWARD = 0, 2
"""Forward axis of a body: x for a robot base in ROS, z for a camera."""
LEVEL_CAMERA = np.array([[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])
"""Rotation of a level camera (x right, y down, z forward) in a world with z up."""


def project_pose(
    position: Vector, rotation: Sequence[Vector] | FloatArray, forward: int = X_FORWARD
) -> FloatArray:
    """Project a body-to-world pose, z up, onto the floor (3,), with the heading of `forward`."""
    x, y = position[0], position[1]
    if not (abs(x) <= MAX_COORDINATE and abs(y) <= MAX_COORDINATE):
        raise DatasetError(f'expected a finite pose, got x {x}, y {y}')
    return np.array([x, y, math.atan2(rotation[1][forward], rotation[0][forward])])


def quaternion_rotation(x: float, y: float, z: float, w: float) -> list[list[float]]:
    """Return the rotation matrix of a quaternion; raises DatasetError if far from unit length."""
    length = math.hypot(x, y, z, w)
    if not 1e-3 < length < 1e3:
        raise DatasetError(
            f'expected a finite unit quaternion, got one of length {length:.3g}'
            + (': the sender left it unset' if length == 0 else '')
        )
    x, y, z, w = x / length, y / length, z / length, w / length
    return [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]


def check_rotation(rotation: FloatArray) -> None:
    """Raise DatasetError if a matrix (3, 3) is not a rotation."""
    with np.errstate(all='ignore'):
        deviation = np.abs(rotation @ rotation.T - np.eye(3)).max()
        if not (deviation < 0.05 and np.linalg.det(rotation) > 0):
            raise DatasetError(f'expected a rotation matrix, got {rotation.tolist()}')


def floor_pose(position: Any, orientation: Any) -> FloatArray:
    """Project geometry_msgs position and orientation to a pose (3,); raises DatasetError."""
    q = orientation
    rotation = quaternion_rotation(q.x, q.y, q.z, q.w)
    return project_pose((position.x, position.y, position.z), rotation)


def read_table(
    path: Path, parse: Callable[[list[str]], Parsed], skipped: Skipped
) -> list[Parsed | None]:
    """
    Parse each line of a text file by `parse`, which gets its words, split at blanks and commas.

    Empty lines and comments (#) are ignored. A line for which `parse` raises ValueError or
    DatasetError is None in the result and counted in `skipped`. Raises DatasetError when the file
    cannot be read or no line can be used.
    """
    try:
        lines = read_text(path, errors='replace').splitlines()
    except OSError as error:
        raise DatasetError(f'cannot read {path}: {error.strerror}') from error
    parsed, first = list[Parsed | None](), 'it is empty'
    for number, line in enumerate(lines, start=1):
        words = line.replace(',', ' ').split()
        if not words or words[0].startswith('#'):
            continue
        try:
            parsed.append(parse(words))
        except (ValueError, DatasetError) as error:
            bad = f'line {number}: {error}'
            first = first if parsed else bad
            skipped.add(f'bad line in {path.name}', bad)
            parsed.append(None)
    if all(row is None for row in parsed):
        raise DatasetError(f'{path}: no line can be used: {first}')
    return parsed


def parse_numbers(words: Sequence[str], count: int) -> list[float]:
    """Parse `count` numbers; raises ValueError for another number of words, or other words."""
    if len(words) != count:  # decimal commas give too many
        raise ValueError(f'expected {count} numbers, got {len(words)}: {" ".join(words)[:60]!r}')
    try:
        return [float(word) for word in words]
    except ValueError as error:
        raise ValueError(f'expected numbers, got {" ".join(words)[:60]!r}') from error


def read_track(path: Path, skipped: Skipped, forward: int = X_FORWARD) -> OdometryTrack:
    """Read lines `seconds x y z qx qy qz qw` as poses on the floor; see `project_pose`."""

    def parse(words: list[str]) -> tuple[int, FloatArray]:
        stamp_ns, (_, x, y, z, *quaternion) = parse_seconds(words[0]), parse_numbers(words, 8)
        return stamp_ns, project_pose((x, y, z), quaternion_rotation(*quaternion), forward)

    return read_poses(path, parse, skipped)


def format_pose(stamp_ns: int, pose: FloatArray) -> str:
    """Format a pose (3,) at height zero as a line that `read_track` reads."""
    x, y, heading = pose
    z, w = math.sin(heading / 2), math.cos(heading / 2)
    seconds, nanoseconds = divmod(stamp_ns, 10**9)
    return f'{seconds}.{nanoseconds:09d} {x:.9f} {y:.9f} 0 0 0 {z:.9f} {w:.9f}\n'


def read_poses(
    path: Path, parse: Callable[[list[str]], tuple[int, FloatArray]], skipped: Skipped
) -> OdometryTrack:
    """Read lines, which `parse` converts to a stamp and a pose (3,), as a track."""
    lines = [line for line in read_table(path, parse, skipped) if line is not None]
    return make_track(lines, skipped, f'in {path.name}')


def stamp_of_nanoseconds(text: str) -> int:
    # Python does not parse integers of thousands of digits
    if not text.isdecimal() or len(text) > 40 or int(text) >= LATEST_S * 10**9:
        raise ValueError(f'expected a time in nanoseconds before {LATEST_S} s, got {text[:40]!r}')
    return int(text)


def require(path: Path, what: str) -> Path:
    """Return the path if it exists; raises DatasetError."""
    if not path.exists():
        raise DatasetError(f'no {path.name} in {path.parent}: expected {what}')
    return path


def read_setting(path: Path, parse: Callable[[Any], Parsed], expected: str) -> Parsed:
    """Parse the content of a YAML file of at most 64 KB; raises DatasetError in one line."""
    bad_content = (LookupError, TypeError, ValueError, OverflowError, RecursionError)
    try:
        # files of OpenCV begin with %YAML:1.0, which is not valid
        text = re.sub(r'\A%.*', '', read_text(path, most=1 << 16))
        return parse(yaml.load(text, _Loader))
    except (OSError, yaml.YAMLError, *bad_content, DatasetError) as error:
        raise DatasetError(f'{path}: expected {expected}') from error
