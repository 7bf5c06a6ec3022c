"""
How far a camera turned between two images, seen by points that are followed from one to the next.

A camera that moves along an arc in the plane, by an angle, sees a point at (x, y) in focal lengths
from where it moves to, and at (x', y') afterwards, with

    tan(angle / 2) = (x' y - x y') / (y + y'),

however far away the point is: each point tells the angle (Scaramuzza, Fraundorfer and Siegwart,
ICRA 2009, with all points in place of one). A camera that moves aside as well sees the same as one
that is turned to where it moves. See `camera_view` for how the camera is found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
from kbr_localization.errors import DatasetError
from kbr_localization.se2 import FloatArray
from kbr_localization.vision.loading import load, LoadableImage
import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Flow = NDArray[np.float32]
"""Points (k, 4): x, y in one image and in the next, from its middle, in widths of the image."""
WIDTH = 320
"""Pixels that images are made small to."""
FEWEST = 10
"""Points that tell a turn."""
_POINTS, _QUALITY, _APART = 200, 0.003, 6
_WINDOW, _LEVELS = (15, 15), 3
_RETURN = 0.5  # pixels from where it began, of a point that is followed there and back
_NOISE = 0.3 / WIDTH  # of a point that is followed
_LEVEL = 0.02  # focal lengths above or below where it moves to: points nearer tell nothing
_ROUNDS = 8
_AGREEING = 5.0  # standard deviations of following, within which a point agrees
_ASIDE = 0.5  # metres aside for each ahead, beyond which a step is more of a turn


@dataclass(frozen=True)
class View:
    """
    Focal length, and where a camera moves to (2,), from its middle: in widths of its image.

    `unlike`: share of a turn by which camera and odometry differ, at the median. `offset`: metres
    by which the point whose way the odometry tells lies ahead of the camera, and its standard
    `deviation`, infinite where nothing tells it.
    """

    focal: float
    ahead: FloatArray
    unlike: float = 0.0
    offset: float = 0.0
    deviation: float = np.inf


@dataclass(frozen=True)
class Turns:
    """
    How far the camera turned between the images of pairs (p,), to the left, in radians.

    `deviation`: (p,) if points err independently; relative to each other they hold. `agreeing`:
    (p,) points that agree, and their `share` (p,) of all.
    """

    angle: FloatArray
    deviation: FloatArray
    agreeing: NDArray[np.intp]
    share: FloatArray

    def some(self, pairs: NDArray[np.intp]) -> Turns:
        """Return those of some pairs."""
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
        """Return those of some pairs, numbered anew."""
        place = np.full(self.pairs, -1)
        place[pairs] = np.arange(len(pairs))
        inside = place[self.pair] >= 0
        twists = None if self.twists is None else self.twists[pairs]
        return Points(self.flow[inside], place[self.pair[inside]], len(pairs), twists)

    def aside(self, offset: float) -> FloatArray:
        """
        Metres (p,) to the left for each ahead by which a camera moves, beyond those of an arc.

        `offset`: metres by which the odometry's point lies ahead of it. None for steps that are
        more of a turn than of a way.
        """
        if self.twists is None:
            return np.zeros(self.pairs)
        ahead, left, turn = self.twists.T
        moved = left - offset * turn
        known = np.abs(moved) < _ASIDE * np.abs(ahead)
        return np.asarray(np.divide(moved, ahead, out=np.zeros(self.pairs), where=known))


def small(image: Pixels) -> Pixels:
    """Make a grey image of `WIDTH` of an image (h, w) or (h, w, 3)."""
    grey = image if image.ndim == 2 else cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    height = max(1, round(grey.shape[0] * WIDTH / grey.shape[1]))
    return np.asarray(cv2.resize(grey, (WIDTH, height), interpolation=cv2.INTER_AREA), np.uint8)


def load_small(image: LoadableImage) -> Pixels:
    """Load an image and make it small; a broken one is a black pixel, in which nothing is seen."""
    try:
        return small(load(image))
    except DatasetError:
        return np.zeros((1, 1), dtype=np.uint8)


def follow(first: Pixels, second: Pixels) -> Flow:
    """Follow corners of a small image into the next one, by Lucas and Kanade, and back."""
    if first.shape != second.shape:
        return np.zeros((0, 4), dtype=np.float32)
    start = cv2.goodFeaturesToTrack(first, _POINTS, _QUALITY, _APART)
    if start is None:
        return np.zeros((0, 4), dtype=np.float32)
    end, there = _flow(first, second, start)
    again, back = _flow(second, first, end)
    kept = (there[:, 0] > 0) & (back[:, 0] > 0)
    kept &= np.abs(again - start).max(axis=(1, 2)) < _RETURN
    middle = 0.5 * np.array(first.shape[::-1])
    both = np.concatenate([start[kept, 0] - middle, end[kept, 0] - middle], axis=1)
    return np.asarray(both / WIDTH, dtype=np.float32)


def _flow(first: Pixels, second: Pixels, start: Any) -> tuple[Any, Any]:
    """Where points are in the second image, and whether they were found, by Lucas and Kanade."""
    end, found, _ = cv2.calcOpticalFlowPyrLK(
        first, second, start, start.copy(), winSize=_WINDOW, maxLevel=_LEVELS
    )
    return end, found


def turned(points: Points, view: View, near: FloatArray | None = None) -> Turns:
    """
    Find how far the camera turned between the images of each pair.

    `near`: (p,) turns by an odometry. Where points agree on several, as some are on people who
    walk, that next to it is found, else that of the middle one. All is NaN for pairs with too few
    points.
    """
    angle, spread, pair = _angles(points, view)
    found = _agreed(angle, spread, pair, points.pairs, near)
    missed = np.abs(angle - found[pair]) / spread
    size = np.bincount(pair, minlength=points.pairs)
    agreeing = np.bincount(pair, missed < _AGREEING, minlength=points.pairs)
    weight = 1.0 / (1.0 + missed**2) / spread**2
    information = np.bincount(pair, weight, minlength=points.pairs).astype(np.float64)
    few = size < FEWEST
    found[few], information[few] = np.nan, np.nan
    return Turns(
        found,
        1.0 / np.sqrt(np.maximum(information, 1e-9)),
        agreeing,
        agreeing / np.maximum(size, 1),
    )


def disagreement(points: Points, view: View, near: FloatArray | None = None) -> FloatArray:
    """Tell how much the points of each pair (p,) disagree about a turn; NaN where none has any."""
    angle, spread, pair = _angles(points, view)
    found = _agreed(angle, spread, pair, points.pairs, near)
    missed = np.log1p(((angle - found[pair]) / spread) ** 2)
    size = np.bincount(pair, minlength=points.pairs)
    total = np.bincount(pair, missed, minlength=points.pairs)
    return np.where(size > 0, total / np.maximum(size, 1), np.nan)


def _angles(points: Points, view: View) -> tuple[FloatArray, FloatArray, NDArray[np.intp]]:
    """Angles of points and their deviations by that of following, and the pair of each."""
    place = (points.flow.reshape(-1, 2, 2) - view.ahead) / view.focal
    if points.twists is not None:
        place = _turned_to(place, points.aside(view.offset)[points.pair])
    (x, y), (x_after, y_after) = place[:, 0].T, place[:, 1].T
    known = (y * y_after > 0.0) & (np.abs(y) > _LEVEL)
    x, y, x_after, y_after = x[known], y[known], x_after[known], y_after[known]
    angle = 2.0 * np.arctan((x_after * y - x * y_after) / (y + y_after))
    spread = _NOISE / view.focal * np.sqrt(2.0 + 2.0 * (x / y) ** 2)
    return angle, spread, points.pair[known]


def _turned_to(place: FloatArray, aside: FloatArray) -> FloatArray:
    """Return where points (m, 2, 2) are for cameras turned to where they move: `aside` (m,)."""
    x, y = place[:, :, 0], place[:, :, 1]
    slope = aside[:, np.newaxis]
    away = 1.0 - slope * x
    return np.stack([x + slope, y * np.sqrt(1.0 + slope**2)], axis=-1) / away[..., np.newaxis]


def _agreed(
    angle: FloatArray,
    spread: FloatArray,
    pair: NDArray[np.intp],
    pairs: int,
    near: FloatArray | None = None,
) -> FloatArray:
    """Location (p,) of the angles of each pair by Cauchy's law, from their median or `near` on."""
    order = np.lexsort((angle, pair))
    size = np.bincount(pair, minlength=pairs)
    middle = np.cumsum(size) - size + size // 2
    found = np.zeros(pairs)
    have = size > 0
    found[have] = angle[order][middle[have]]
    if near is not None:
        found = np.where(np.isfinite(near), near, found)
    for _ in range(_ROUNDS):
        weight = 1.0 / (spread**2 + (angle - found[pair]) ** 2)
        total = np.bincount(pair, weight, minlength=pairs)
        found[have] = (
            np.bincount(pair, weight * angle, minlength=pairs) / np.maximum(total, 1e-9)
        )[have]
    return found
