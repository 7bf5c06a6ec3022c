"""
How far a camera turned between two images, from points tracked from one to the next.

A camera that moves along an arc in the plane, by an angle, sees a point at (x, y) in focal lengths
from where it moves to, and at (x', y') afterwards, with

    tan(angle / 2) = (x' y - x y') / (y + y'),

at any depth: each point determines the angle (Scaramuzza, Fraundorfer and Siegwart,
ICRA 2009, with all points in place of one). A camera that also moves sideways sees the same as one
that is turned towards its motion. `camera_view` calibrates the camera.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cv2
from kbr_localization.errors import DatasetError
from kbr_localization.se2 import FloatArray
from kbr_localization.vision.loading import load, LoadableImage
from kbr_localization.vision.preparation import to_grey
import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Flow = NDArray[np.float32]
"""Points (k, 4): x, y in one image and in the next, from its middle, in widths of the image."""
WIDTH = 320
"""Columns of the small images."""
FEWEST = 10
"""Points that determine a turn."""
_BLOCK = 256  # pairs whose points are computed with at a time, so that they stay in the cache


@dataclass(frozen=True)
class View:
    """
    Focal length and focus of expansion `ahead` (2,), from the middle, in widths of the image.

    `unlike`: median relative difference between the camera's turns and the odometry's. `offset`:
    metres by which the odometry's point lies ahead of the camera, and its standard `deviation`,
    infinite where it is unknown.
    """

    focal: float
    ahead: FloatArray
    unlike: float = 0.0
    offset: float = 0.0
    deviation: float = np.inf


@dataclass(frozen=True)
class Turns:
    """
    Turns of the camera between the images of pairs (p,), to the left, in radians.

    `deviation`: (p,), right up to a common factor, as points do not err independently.
    `agreeing`: (p,) points that agree, and their `share` (p,) of all.
    """

    angle: FloatArray
    deviation: FloatArray
    agreeing: NDArray[np.intp]
    share: FloatArray

    def some(self, pairs: NDArray[np.intp]) -> Turns:
        """Select pairs."""
        return Turns(
            self.angle[pairs], self.deviation[pairs], self.agreeing[pairs], self.share[pairs]
        )


@dataclass(frozen=True)
class Points:
    """
    Points of many pairs of images: `flow` (m, 4) and the number of the `pair` (m,) of each.

    `twists`: (p, 3) metres ahead and to the left and radians by which an odometry moved between
    the images of each pair, NaN where it tells nothing; None for a camera that moves on arcs.
    """

    flow: Flow
    pair: NDArray[np.intp]
    pairs: int
    twists: FloatArray | None = None

    @staticmethod
    def of(flows: list[Flow]) -> Points:
        """Put the points of pairs together."""
        sizes = [len(flow) for flow in flows]
        flow = np.concatenate([np.zeros((0, 4), dtype=np.float32), *flows])
        return Points(flow, np.repeat(np.arange(len(flows)), sizes), len(flows))

    def some(self, pairs: NDArray[np.intp]) -> Points:
        """Select pairs and renumber them."""
        place = np.full(self.pairs, -1)
        place[pairs] = np.arange(len(pairs))
        inside = place[self.pair] >= 0
        twists = None if self.twists is None else self.twists[pairs]
        return Points(self.flow[inside], place[self.pair[inside]], len(pairs), twists)

    @cached_property
    def blocks(self) -> list[FloatArray]:
        """
        Points (4, k, b) of `_BLOCK` pairs each: a column per pair, padded with NaN.

        Sums over columns are much faster than sums by the number of the pair.
        """
        order = np.argsort(self.pair, kind='stable')
        size = np.bincount(self.pair, minlength=self.pairs)
        first = np.cumsum(size) - size
        blocks = []
        for start in range(0, self.pairs, _BLOCK):
            some = slice(start, start + _BLOCK)
            count = size[some]
            inside = np.arange(count.max()) < count[:, np.newaxis]
            block = np.full((*inside.T.shape, 4), np.nan)
            own = order[slice(first[start], first[start] + count.sum())]
            block.swapaxes(0, 1)[inside] = self.flow[own]
            blocks.append(np.ascontiguousarray(np.moveaxis(block, -1, 0)))
        return blocks

    def aside(self, offset: float) -> FloatArray:
        """
        Sideways motion (p,) per metre ahead, beyond an arc, of a camera at an offset.

        `offset`: metres by which the odometry's point lies ahead of it. Zero for steps that are
        mostly a turn.
        """
        if self.twists is None:
            return np.zeros(self.pairs)
        ahead, left, turn = self.twists.T
        out, known = np.zeros(self.pairs), self.is_way(offset)
        return np.asarray(np.divide(left - offset * turn, ahead, out=out, where=known))

    def is_way(self, offset: float) -> NDArray[np.bool_]:
        """Whether steps (p,) are mostly translation for a camera at an offset."""
        if self.twists is None:
            return np.ones(self.pairs, dtype=np.bool_)
        ahead, left, turn = self.twists.T
        return np.asarray(np.abs(left - offset * turn) < 0.5 * np.abs(ahead))


def small(image: Pixels) -> Pixels:
    """Make a grey image of `WIDTH` of a grey image (h, w) or a BGR one (h, w, 3)."""
    grey = to_grey(image)
    height = max(1, round(grey.shape[0] * WIDTH / grey.shape[1]))
    return np.asarray(cv2.resize(grey, (WIDTH, height), interpolation=cv2.INTER_AREA), np.uint8)


def load_small(image: LoadableImage) -> Pixels:
    """Load an image and make it small; a broken one becomes a black pixel."""
    try:
        return small(load(image))
    except DatasetError:
        return np.zeros((1, 1), dtype=np.uint8)


def follow(first: Pixels, second: Pixels) -> Flow:
    """Track corners of a small image into the next one and back (Lucas and Kanade)."""
    if first.shape != second.shape:
        return np.zeros((0, 4), dtype=np.float32)
    how: Any = {'winSize': (15, 15), 'maxLevel': 3}
    start = cv2.goodFeaturesToTrack(first, maxCorners=200, qualityLevel=0.003, minDistance=6)
    if start is None:
        return np.zeros((0, 4), dtype=np.float32)
    end, there, _ = cv2.calcOpticalFlowPyrLK(first, second, start, start.copy(), **how)
    again, back, _ = cv2.calcOpticalFlowPyrLK(second, first, end, end.copy(), **how)
    # a point that does not return to within half a pixel is lost
    kept = (there[:, 0] > 0) & (back[:, 0] > 0)
    kept &= np.abs(again - start).max(axis=(1, 2)) < 0.5
    middle = 0.5 * np.array(first.shape[::-1])
    both = np.concatenate([start[kept, 0] - middle, end[kept, 0] - middle], axis=1)
    return np.asarray(both / WIDTH, dtype=np.float32)


def turned(points: Points, view: View, near: FloatArray | None = None) -> Turns:
    """
    Find how far the camera turned between the images of each pair.

    `near`: (p,) turns by an odometry. Where points agree on several turns, as on people who walk,
    the nearest one to it is found, else the one nearest to the median. NaN for pairs with too few
    points.
    """
    blocks = [np.zeros((4, 0))]
    for angle, spread, size, found in _agreements(points, view, near):
        missed = np.abs(angle - found) / spread
        information = np.sum(1.0 / (1.0 + missed**2) / spread**2, axis=0)
        agreeing = np.count_nonzero((missed < 5.0) & np.isfinite(spread), axis=0)
        blocks.append(np.stack([found, information, agreeing, size]))
    found, information, agreeing, size = np.concatenate(blocks, axis=1)
    few = size < FEWEST
    found[few], information[few] = np.nan, np.nan
    return Turns(
        found,
        1.0 / np.sqrt(np.maximum(information, 1e-9)),
        agreeing.astype(np.intp),
        agreeing / np.maximum(size, 1),
    )


def disagreement(points: Points, view: View, near: FloatArray | None = None) -> FloatArray:
    """How much the points of each pair (p,) disagree about a turn; NaN without points."""
    blocks = [np.zeros(0)]
    for angle, spread, size, found in _agreements(points, view, near):
        total = np.sum(np.log1p(((angle - found) / spread) ** 2), axis=0)
        blocks.append(np.where(size > 0, total / np.maximum(size, 1), np.nan))
    return np.concatenate(blocks)


def _agreements(
    points: Points, view: View, near: FloatArray | None
) -> Iterator[tuple[FloatArray, FloatArray, NDArray[np.intp], FloatArray]]:
    """Yield angles and deviations (k, b) of the points of blocks, their numbers, the turns."""
    aside = None if points.twists is None else points.aside(view.offset)
    for start, block in zip(range(0, points.pairs, _BLOCK), points.blocks, strict=True):
        pairs = slice(start, start + _BLOCK)
        angle, spread = _angles(block, view, None if aside is None else aside[pairs])
        size = np.count_nonzero(np.isfinite(spread), axis=0)
        found = _agreed(angle, spread, size, None if near is None else near[pairs])
        yield angle, spread, size, found


def _angles(
    block: FloatArray, view: View, aside: FloatArray | None
) -> tuple[FloatArray, FloatArray]:
    """
    Angles (k, b) of points of b pairs, and their deviations by the tracking noise.

    A deviation is infinite where a point is missing or determines nothing. `block`, `aside` (b,):
    see `Points`.
    """
    ahead = np.tile(view.ahead, 2)[:, np.newaxis, np.newaxis]
    x, y, x_after, y_after = (block - ahead) / view.focal
    if aside is not None:
        x, y = _turned_to(x, y, aside)
        x_after, y_after = _turned_to(x_after, y_after, aside)
    # points level with where the camera moves to tell nothing
    known = (y * y_after > 0.0) & (np.abs(y) > 0.02)
    y = np.where(known, y, np.nan)
    angle = 2.0 * np.arctan((x_after * y - x * y_after) / (y + y_after))
    following = 0.3 / WIDTH  # deviation of a followed point, in widths
    spread = following / view.focal * np.sqrt(2.0 + 2.0 * (x / y) ** 2)
    return np.where(known, angle, 0.0), np.where(known, spread, np.inf)


def _turned_to(x: FloatArray, y: FloatArray, aside: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Rotate points (k, b) into cameras that look along their motion, `aside` (b,)."""
    away = 1.0 - aside * x
    return (x + aside) / away, y * np.sqrt(1.0 + aside**2) / away


def _agreed(
    angle: FloatArray,
    spread: FloatArray,
    size: NDArray[np.intp],
    near: FloatArray | None = None,
) -> FloatArray:
    """Location (b,) of the angles of each pair by Cauchy's law, from their median or `near` on."""
    have = size > 0
    if not have.any():
        return np.zeros(len(size)) if near is None else np.where(np.isfinite(near), near, 0.0)
    order = np.sort(np.where(np.isfinite(spread), angle, np.inf), axis=0)
    middle = order[np.minimum(size // 2, len(order) - 1), np.arange(len(size))]
    found = np.where(have, middle, 0.0)
    if near is not None:
        found = np.where(np.isfinite(near), near, found)
    variance, weight = spread**2, np.empty_like(spread)
    for _ in range(8):
        # weight = 1 / (variance + (angle - found)^2), without further arrays: here time goes
        np.subtract(angle, found, out=weight)
        np.square(weight, out=weight)
        weight += variance
        np.reciprocal(weight, out=weight)
        total = weight.sum(axis=0)
        weight *= angle
        found = np.where(have, weight.sum(axis=0) / np.maximum(total, 1e-9), found)
    return found
