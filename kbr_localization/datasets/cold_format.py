"""
The text formats of COLD, the CoSy localization database (Pronobis and Caputo, IJRR 2009).

Parsers are tolerant where the database itself varies (decimals, exponents, unpadded
microseconds) and raise ValueError for anything else; writers produce the common form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
import logging
import math
from pathlib import Path
import re
from typing import TypeVar

from kbr_localization.datasets.frame import FARTHEST_M
from kbr_localization.errors import DatasetError
from kbr_localization.files import read_text
from kbr_localization.se2 import FloatArray, wrap_angle
from kbr_localization.trajectory import LATEST_S
import numpy as np

Parsed = TypeVar('Parsed')

LOG = logging.getLogger(__name__)
LOGGED_LINES = 5
"""Bad lines of one file that are logged one by one; the rest only enter the count."""

_NUMBER = r'([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)'
_IMAGE_NAME = re.compile(
    rf't(\d+)(?:\.(\d{{1,9}}))?(?:_x{_NUMBER}_y{_NUMBER}_a{_NUMBER})?\.(?:jpe?g|png)',
    re.IGNORECASE | re.ASCII,
)
_ODOMETRY_FIELDS = 14
_ODOMETRY_FORM = 'numbers 0 0 0 <sec> <usec> 2 0 6 <x> <y> <z> <theta> 0 0'


@dataclass(frozen=True)
class ImageName:
    """What an image's name says: stamp in nanoseconds, reference pose (3,) or None."""

    stamp_ns: int
    reference: FloatArray | None


@dataclass(frozen=True)
class PlaceLine:
    """One line of places.lst."""

    name: str
    image: ImageName
    label: str


@dataclass(frozen=True)
class OdometryLine:
    """One line of odom.tdf: stamp in nanoseconds, pose (3,) in the odometry frame."""

    stamp_ns: int
    pose: FloatArray


def parse_image_name(name: str) -> ImageName:
    """
    Parse `t<seconds>.<fraction>_x<m>_y<m>_a<rad>.jpeg`; the pose part may be missing.

    Raises ValueError for any other name.
    """
    match = _IMAGE_NAME.fullmatch(name)
    if match is None:
        raise ValueError(f'expected t<sec>.<usec>_x<m>_y<m>_a<rad>.jpeg, got {name[:80]!r}')
    seconds, fraction, *pose = match.groups()
    stamp_ns = _stamp_ns(int(seconds), int((fraction or '0').ljust(9, '0')))
    reference = None if pose[0] is None else _pose(*(float(value) for value in pose))
    return ImageName(stamp_ns, reference)


def format_image_name(stamp_ns: int, reference: FloatArray | None) -> str:
    """Name an image as COLD does: microseconds, metres and radians with seven decimals."""
    stamp = f't{stamp_ns // 10**9}.{stamp_ns % 10**9 // 1000:06d}'
    if reference is None:
        return f'{stamp}.jpeg'
    x, y, angle = reference
    return f'{stamp}_x{x:.7f}_y{y:.7f}_a{angle:.7f}.jpeg'


def parse_place_line(line: str) -> PlaceLine:
    """Parse `<image name> <label>`; raises ValueError for any other line."""
    fields = line.split()
    if len(fields) != 2:
        raise ValueError(f'expected <image name> <label>, got {line[:80]!r}')
    return PlaceLine(fields[0], parse_image_name(fields[0]), fields[1])


def parse_odometry_line(line: str) -> OdometryLine:
    """
    Parse `0 0 0 <sec> <usec> 2 0 6 <x> <y> <z> <theta> 0 0`; raises ValueError otherwise.

    The microseconds are not padded with zeros, and theta is in [0, 2 pi).
    """
    fields = line.split()
    if len(fields) != _ODOMETRY_FIELDS:
        raise ValueError(f'expected {_ODOMETRY_FIELDS} fields, got {len(fields)}: {line[:80]!r}')
    try:
        seconds, microseconds = int(fields[3]), int(fields[4])
        pose = [float(fields[index]) for index in (8, 9, 11)]
    except ValueError as error:
        raise ValueError(f'expected {_ODOMETRY_FORM}, got {line[:80]!r}') from error
    if not 0 <= microseconds < 10**6:
        raise ValueError(f'expected microseconds in [0, 999999], got {microseconds}')
    return OdometryLine(_stamp_ns(seconds, microseconds * 1000), _pose(*pose))


def format_odometry_line(stamp_ns: int, pose: FloatArray) -> str:
    """Write one line of odom.tdf, without the line end."""
    x, y, theta = pose
    # six decimals of anything up to 2 pi stay below 2 pi
    turned = theta % (2 * math.pi)
    seconds, microseconds = stamp_ns // 10**9, stamp_ns % 10**9 // 1000
    return f'0 0 0 {seconds} {microseconds} 2 0 6 {x:.6f} {y:.6f} 0.000000 {turned:.6f} 0 0'


def read_places(path: Path) -> tuple[list[PlaceLine], int]:
    """Read places.lst: its lines and the number of bad ones; raises DatasetError."""
    return _read_lines(path, parse_place_line)


def read_odometry(path: Path) -> tuple[list[OdometryLine], int]:
    """Read odom.tdf: its lines in file order and the number of bad ones; raises DatasetError."""
    return _read_lines(path, parse_odometry_line)


def _read_lines(path: Path, parse: Callable[[str], Parsed]) -> tuple[list[Parsed], int]:
    good: list[Parsed] = []
    bad = 0
    for number, line in enumerate(_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            good.append(parse(line))
        except ValueError as error:
            bad += 1
            if bad <= LOGGED_LINES:
                LOG.warning('%s line %d skipped: %s', path, number, error)
    _check_rubbish(path, len(good), bad)
    return good, bad


def _text(path: Path) -> str:
    try:
        return read_text(path, errors='replace')
    except OSError as error:
        raise DatasetError(f'cannot read {path}: {error.strerror}') from error


def _check_rubbish(path: Path, good: int, bad: int) -> None:
    if bad > LOGGED_LINES:
        LOG.warning('%s: %d bad lines skipped in all', path, bad)
    if good == 0 or bad > good:
        raise DatasetError(
            f'{path}: expected mostly well-formed lines, got {good} good and {bad} bad ones: '
            f'is it a file of the COLD format?'
        )


def _stamp_ns(seconds: int, nanoseconds: int) -> int:
    if not 0 <= seconds < LATEST_S:
        raise ValueError(f'expected seconds in [0, {LATEST_S}), got {seconds}')
    return seconds * 10**9 + nanoseconds


def _pose(x: float, y: float, angle: float) -> FloatArray:
    # a comparison with NaN is false
    if not (abs(x) <= FARTHEST_M and abs(y) <= FARTHEST_M and abs(angle) <= FARTHEST_M):
        raise ValueError(f'expected a finite pose, got x {x}, y {y}, angle {angle}')
    return np.array([x, y, float(wrap_angle(angle))])
