"""Text files of runs: lines of words and numbers, stamps, YAML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math
from pathlib import Path
from typing import Any, TypeVar

from kbr_localization.datasets.frame import OdometryTrack, Skipped
from kbr_localization.datasets.poses import project_pose, quaternion_rotation, X_FORWARD
from kbr_localization.datasets.selection import make_track
from kbr_localization.errors import DatasetError
from kbr_localization.files import read_text
from kbr_localization.se2 import FloatArray
from kbr_localization.trajectory import LATEST_S, parse_seconds
import yaml

Parsed = TypeVar('Parsed')

LARGEST_YAML = 1 << 22
"""Characters; YAML is read slowly."""
# libyaml is faster and bounds the depth
_Loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


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


def numbers(words: Sequence[str], count: int) -> list[float]:
    """Numbers of the first `count` words; raises ValueError for fewer, or words that are none."""
    if len(words) < count:
        raise ValueError(f'expected {count} numbers, got {len(words)}: {" ".join(words)[:60]!r}')
    try:
        return [float(word) for word in words[:count]]
    except ValueError as error:
        raise ValueError(f'expected numbers, got {" ".join(words)[:60]!r}') from error


def read_tum_track(path: Path, skipped: Skipped, forward: int = X_FORWARD) -> OdometryTrack:
    """
    Read lines of `seconds x y z qx qy qz qw`, poses in a world with z up, as a track by time.

    Lines that are no pose, and all but the first of equal stamps, are counted in `skipped`.
    Raises DatasetError when the file cannot be read or no line can be used.
    """

    def parse(words: list[str]) -> tuple[int, FloatArray]:
        if len(words) != 8:  # more are of decimal commas
            raise ValueError(f'expected 8 numbers, got {len(words)}: {" ".join(words)[:60]!r}')
        x, y, z, *quaternion = numbers(words[1:], 7)
        rotation = quaternion_rotation(*quaternion)
        return parse_seconds(words[0]), project_pose((x, y, z), rotation, forward=forward)

    return make_track(read_table(path, parse, skipped), skipped, f'in {path.name}')


def stamp_of_nanoseconds(text: str) -> int:
    """Parse a time in whole nanoseconds; raises ValueError."""
    # Python refuses to parse longer integers
    if not text.isdecimal() or len(text) > 40 or int(text) >= LATEST_S * 10**9:
        raise ValueError(f'expected a time in nanoseconds before {LATEST_S} s, got {text[:40]!r}')
    return int(text)


def require(path: Path, what: str) -> Path:
    """Return the path of a file; raises DatasetError when it is missing."""
    if not path.exists():
        raise DatasetError(f'no {path.name} in {path.parent}: expected {what}')
    return path


def listed_file(folder: Path, name: str) -> Path:
    """Path of a file that a list names; raises ValueError for one outside of the folder."""
    if Path(name).is_absolute() or '..' in Path(name).parts:
        raise ValueError(f'expected files in {folder}, got {name[:80]!r}')
    return folder / name


def load_yaml(text: str) -> Any:
    """Load YAML of bounded size, with its aliases written out; raises ValueError in one line."""
    try:
        loader = _Loader(text[: LARGEST_YAML + 1])
        node = loader.get_single_node()
        if len(text) > LARGEST_YAML or (node and _expanded_size(node, {}) > LARGEST_YAML):
            raise ValueError(f'expected at most {LARGEST_YAML} characters or items')
        return loader.construct_document(node) if node else None
    except (yaml.YAMLError, ValueError, LookupError, TypeError, RecursionError) as error:
        reason = ' '.join(str(error).split())[:200]
        raise ValueError(f'YAML that cannot be read: {reason}') from error


def _expanded_size(node: yaml.Node, sizes: dict[int, float]) -> float:
    """Count the items of a node as if each alias (*) were a copy; infinite in a circle."""
    if id(node) not in sizes:
        sizes[id(node)] = math.inf
        children = node.value if isinstance(node, yaml.CollectionNode) else []
        if isinstance(node, yaml.MappingNode):
            children = [child for pair in children for child in pair]
        sizes[id(node)] = 1 + sum(_expanded_size(child, sizes) for child in children)
    return sizes[id(node)]
