"""Text files of runs and their poses in space, which are projected onto the floor."""

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

# libyaml is faster and bounds the depth
_Loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
Parsed = TypeVar('Parsed')
Vector = Sequence[float] | FloatArray

MAX_COORDINATE = 1e7
"""Coordinates beyond this are broken numbers; UTM coordinates are within."""
X_FORWARD, Z_FORWARD = 0, 2
"""Axis along which a body looks: x for a robot's base as in ROS, z for a camera."""
LEVEL_CAMERA = np.array([[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])
"""Axes of a level camera (x right, y down, z ahead) in a world with z up, as rows x, y, z."""


def project_pose(
    position: Vector, rotation: Sequence[Vector] | FloatArray, forward: int = X_FORWARD
) -> FloatArray:
    """Project a body-to-world pose, z up, onto the floor (3,): heading of its `forward` axis."""
    x, y = position[0], position[1]
    if not (abs(x) <= MAX_COORDINATE and abs(y) <= MAX_COORDINATE):
        raise DatasetError(f'expected a finite pose, got x {x}, y {y}')
    return np.array([x, y, math.atan2(rotation[1][forward], rotation[0][forward])])


def quaternion_rotation(x: float, y: float, z: float, w: float) -> list[list[float]]:
    """Rotation matrix of a quaternion; raises DatasetError for one of no sensible length."""
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
    """Raise DatasetError for a matrix (3, 3) that is no rotation."""
    with np.errstate(all='ignore'):
        deviation = np.abs(rotation @ rotation.T - np.eye(3)).max()
        if not (deviation < 0.05 and np.linalg.det(rotation) > 0):
            raise DatasetError(f'expected a rotation matrix, got {rotation.tolist()}')


def floor_pose(position: Any, orientation: Any) -> FloatArray:
    """Project a position and an orientation of geometry_msgs (3,); raises DatasetError."""
    q = orientation
    rotation = quaternion_rotation(q.x, q.y, q.z, q.w)
    return project_pose((position.x, position.y, position.z), rotation)


def read_table(
    path: Path, parse: Callable[[list[str]], Parsed], skipped: Skipped
) -> list[Parsed | None]:
    """
    Parse the lines of a text file, given to `parse` as words split at blanks and commas.

    Empty lines and comments (#) are passed over. A line that `parse` refuses, with ValueError or
    DatasetError, is None in the result and counted in `skipped`. Raises DatasetError when the file
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
    """Numbers of `count` words; raises ValueError for more, fewer, or words that are none."""
    if len(words) != count:  # more are of decimal commas
        raise ValueError(f'expected {count} numbers, got {len(words)}: {" ".join(words)[:60]!r}')
    try:
        return [float(word) for word in words]
    except ValueError as error:
        raise ValueError(f'expected numbers, got {" ".join(words)[:60]!r}') from error


def read_track(path: Path, skipped: Skipped, forward: int = X_FORWARD) -> OdometryTrack:
    """Read lines of `seconds x y z qx qy qz qw`, z up, `forward` the axis that looks ahead."""

    def parse(words: list[str]) -> tuple[int, FloatArray]:
        stamp_ns, (_, x, y, z, *quaternion) = parse_seconds(words[0]), parse_numbers(words, 8)
        return stamp_ns, project_pose((x, y, z), quaternion_rotation(*quaternion), forward)

    return read_poses(path, parse, skipped)


def format_pose(stamp_ns: int, pose: FloatArray) -> str:
    """Write a pose (3,) as a line that `read_track` reads, with its end; the height is zero."""
    x, y, heading = pose
    z, w = math.sin(heading / 2), math.cos(heading / 2)
    seconds, nanoseconds = divmod(stamp_ns, 10**9)
    return f'{seconds}.{nanoseconds:09d} {x:.9f} {y:.9f} 0 0 0 {z:.9f} {w:.9f}\n'


def read_poses(
    path: Path, parse: Callable[[list[str]], tuple[int, FloatArray]], skipped: Skipped
) -> OdometryTrack:
    """Read lines that `parse` takes for a stamp and a pose (3,), as a track by time."""
    lines = [line for line in read_table(path, parse, skipped) if line is not None]
    return make_track(lines, skipped, f'in {path.name}')


def stamp_of_nanoseconds(text: str) -> int:
    """Parse a time in whole nanoseconds; raises ValueError."""
    # Python refuses to parse longer integers
    if not text.isdecimal() or len(text) > 40 or int(text) >= LATEST_S * 10**9:
        raise ValueError(f'expected a time in nanoseconds before {LATEST_S} s, got {text[:40]!r}')
    return int(text)


def require_file(path: Path, what: str) -> Path:
    """Return the path of a file; raises DatasetError when it is missing."""
    if not path.exists():
        raise DatasetError(f'no {path.name} in {path.parent}: expected {what}')
    return path


def load_yaml(path: Path, most: int = 1 << 16) -> Any:
    """Load YAML of strangers, of at most 300,000 values; raises OSError, one-line ValueError."""
    # OpenCV begins its files with %YAML:1.0
    text = re.sub(r'\A%.*', '', read_text(path, most=most))
    try:
        values = 0  # an alias at most doubles them
        for event in yaml.parse(text, _Loader):
            values = 2 * values if isinstance(event, yaml.AliasEvent) else values + 1
            if values > 300_000:
                raise ValueError(
                    'expected at most 300,000 values, and an alias counts as all before it'
                )
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, LookupError, TypeError, RecursionError) as error:
        reason = ' '.join(str(error).split())[:200]
        raise ValueError(f'YAML that cannot be read: {reason}') from error


def read_setting(path: Path, parse: Callable[[Any], Parsed], expected: str) -> Parsed:
    """Parse what a YAML file holds; raises DatasetError in one line."""
    try:
        return parse(load_yaml(path))
    except (OSError, LookupError, TypeError, ValueError, OverflowError, DatasetError) as error:
        raise DatasetError(f'{path}: expected {expected}') from error
