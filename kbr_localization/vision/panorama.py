"""
Omnidirectional images: find the mirror in them and unwrap them to panoramas.

A catadioptric camera sees all around through a mirror, as a ring about the mirror's centre. The
panorama has one column per direction, the horizon runs along its rows, and turning the robot by
an angle shifts its columns by that fraction of the full turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
import logging

import cv2
from kbr_localization.errors import VisionError
import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]

_OUTER_RADIUS = 0.48  # of the shorter side, that is assumed where nothing can be found
_INNER_RADIUS = 0.3  # of the outer one
_LEAST_IMAGES = 5
_CORNER = 10  # part of the height and of the width
_BAND = 32  # rows that are looked at in one go

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Mirror:
    """
    Ring of an omnidirectional image that shows the surroundings, in pixels.

    `x`, `y`: centre. `inner`: radius where the robot's own image ends. `outer`: radius where the
    mirror ends.
    """

    x: float
    y: float
    inner: float
    outer: float

    def __post_init__(self) -> None:
        """Refuse a ring that is none."""
        if not 0 <= self.inner < self.outer:
            raise VisionError(
                f'mirror radii: expected 0 <= inner < outer, got {self.inner:.1f} and '
                f'{self.outer:.1f}; set vision.mirror_inner and '
                'vision.mirror_outer'
            )


class Panorama:
    """
    Unwrap the ring of a mirror into a panorama `width` columns wide.

    `shape`: (height, width) of the panorama; its scale is that of the ring's middle, so that
    shapes halfway up are not distorted. The first column looks to the right of the image, the
    following ones turn clockwise in the image; the top row lies at the outer radius.
    """

    def __init__(self, mirror: Mirror, width: int) -> None:
        middle = np.pi * (mirror.inner + mirror.outer)
        height = max(1, round((mirror.outer - mirror.inner) * width / middle))
        self.shape = (height, width)
        angle = (np.arange(width) + 0.5) * (2 * np.pi / width)
        fraction = (np.arange(height) + 0.5) / height
        radius = (mirror.outer - fraction * (mirror.outer - mirror.inner))[:, np.newaxis]
        self._columns = (mirror.x + radius * np.cos(angle)).astype(np.float32)
        self._rows = (mirror.y + radius * np.sin(angle)).astype(np.float32)

    def unwrap(self, image: Image) -> Image:
        """Panorama of an omnidirectional image (h, w) or (h, w, 3)."""
        unwrapped = cv2.remap(image, self._columns, self._rows, cv2.INTER_LINEAR)
        return np.asarray(unwrapped, dtype=np.uint8)


def find_mirror(images: Sequence[Image], x: float = 0.0, y: float = 0.0) -> Mirror:
    """
    Find the ring that changes between the images of a moving robot.

    Grey images (h, w) of one size; outside of the mirror and on the robot's own image they do
    not change. `x`, `y`: its centre where that is known, otherwise 0. Of fewer than five images,
    of a robot that stood still, or where what changes is no ring, it is assumed in the middle of
    the image, as large as fits. Images whose corners change are told: no mirror reaches there.
    """
    height, width = images[0].shape
    side = min(height, width)
    assumed = Mirror(
        x or width / 2,
        y or height / 2,
        _OUTER_RADIUS * _INNER_RADIUS * side,
        _OUTER_RADIUS * side,
    )
    if len(images) < _LEAST_IMAGES:
        return assumed
    change = cv2.GaussianBlur(_deviations(images), (0, 0), 2.0)
    moving = change > 0.35 * np.percentile(change, 95)
    _tell_no_mirror(moving)
    if not 0.05 < moving.mean() < 0.95:
        return assumed
    return _fit_ring(moving, x, y) or assumed


def _deviations(images: Sequence[Image]) -> NDArray[np.float32]:
    """Find the standard deviation (h, w) of each pixel between images, however large."""
    bands = (slice(top, top + _BAND) for top in range(0, len(images[0]), _BAND))
    # of all rows at once it would take eight times the memory of the images
    parts = (np.stack([image[band] for image in images]).astype(np.float32) for band in bands)
    return np.concatenate([np.std(part, axis=0) for part in parts])


def _tell_no_mirror(moving: NDArray[np.bool_]) -> None:
    height, width = (max(1, side // _CORNER) for side in moving.shape)
    rows, columns = (moving[:height], moving[-height:]), (slice(width), slice(-width, None))
    if all(row[:, column].mean() > 0.5 for row in rows for column in columns):
        logger.warning(
            'the images change up to their corners, where no mirror reaches: expected those of an '
            'omnidirectional camera; otherwise set vision.projection=perspective'
        )


def _fit_ring(moving: NDArray[np.bool_], x: float, y: float) -> Mirror | None:
    """Fit a ring to what moves, see `find_mirror`; None where it is half around at no radius."""
    # each row's and column's extent is a chord: their middles give the centre whatever is inside
    rows, columns = np.nonzero(moving)
    x = x or float(np.percentile(columns, 0.5) + np.percentile(columns, 99.5)) / 2
    y = y or float(np.percentile(rows, 0.5) + np.percentile(rows, 99.5)) / 2
    radius = np.hypot(*(np.indices(moving.shape) - np.array([y, x])[:, np.newaxis, np.newaxis]))
    bins = radius.astype(int).ravel()
    fraction = np.bincount(bins, moving.ravel()) / np.maximum(np.bincount(bins), 1)
    inside = np.flatnonzero(fraction > 0.5)
    if not inside.size:
        return None
    return Mirror(x, y, float(inside[0]), float(inside[-1] + 1))
