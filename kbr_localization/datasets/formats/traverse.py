"""
Frame-aligned traverses, as benchmarks of place recognition have them: images and nothing else.

Image i of every traverse shows place i. With the distance between two places (`--spacing`, or
`spacing:` in `traverse.yaml` in the folder) place i lies at x = i * spacing, y = 0, heading 0; the
camera goes there at 1 m/s. The last number in the name is the place; where names have none, or
differ before it as times do, the order is.
"""

from __future__ import annotations

from pathlib import Path
import re

from kbr_localization.datasets.formats.image_folder import image_files
from kbr_localization.datasets.frame import FARTHEST_M, OdometryTrack
from kbr_localization.datasets.image_run import Listing
from kbr_localization.errors import DatasetError
from kbr_localization.files import read_text
import numpy as np
import yaml

SETTINGS = 'traverse.yaml'
_LARGEST_SETTINGS = 1 << 16
"""Bytes; YAML is read slowly."""
SPEED = 1.0
"""Metres per second."""
LONGEST_SPACING_M = 1e4
LONGEST_NUMBER = 10
"""Digits of a number that is no place any more."""
NAME = 'a folder of images (with --spacing)'


def holds(path: Path) -> bool:
    """Whether a folder has images in it."""
    return next(iter(image_files(path)), None) is not None


def listing(path: Path, spacing: float | None = None) -> Listing:
    """Read what the folder holds; raises DatasetError without a spacing."""
    files = image_files(path)
    metres = _checked(path, spacing if spacing is not None else _spacing_of(path, len(files)))
    places = _places(files)
    if max(places) * metres > FARTHEST_M:
        raise DatasetError(
            f'{path}: the last image would lie {max(places) * metres:g} m from the first place: '
            'expected names that end with the number of the place, or without numbers'
        )
    stamps = np.array([round((place + 1) * metres / SPEED * 1e9) for place in places], np.int64)
    poses = np.column_stack([np.array(places) * metres, np.zeros((len(places), 2))])
    images = list(zip(stamps.tolist(), files, strict=True))
    order = np.argsort(stamps)
    return Listing(path.resolve().name, images, OdometryTrack(stamps[order], poses[order]))


def _places(files: list[Path]) -> list[int]:
    """
    Return the last number in each name, or the order where these are no places.

    They are none where they are not all different, and where the names differ before them: of a
    name that is a time the last number is its milliseconds.
    """
    found = [re.fullmatch(r'(.*?)(\d+)\D*', file.stem, re.DOTALL) for file in files]
    numbered = [match.groups() for match in found if match and len(match[2]) < LONGEST_NUMBER]
    places = [int(number) for _, number in numbered]
    heads = {head for head, _ in numbered}
    if len(set(places)) < len(files) or len(heads) > 1:
        return list(range(len(files)))
    return places


def _spacing_of(path: Path, images: int) -> float:
    file = path / SETTINGS
    if not file.is_file():
        raise DatasetError(
            f'{path} holds {images} images without poses: expected --spacing METRES (or a file '
            f'{SETTINGS} with "spacing: METRES") if image i shows place i, or a trajectory.tum '
            'beside them'
        )
    try:
        return float(yaml.safe_load(read_text(file, most=_LARGEST_SETTINGS))['spacing'])
    except (
        OSError,
        yaml.YAMLError,
        KeyError,
        TypeError,
        ValueError,
        OverflowError,
        RecursionError,
    ) as error:
        raise DatasetError(f'{file}: expected a line "spacing: METRES"') from error


def _checked(path: Path, metres: float) -> float:
    if not 0.0 < metres <= LONGEST_SPACING_M:
        raise DatasetError(
            f'{path}: expected a spacing in (0, {LONGEST_SPACING_M:g}] metres, got {metres}'
        )
    return metres
