"""
How far a camera turned between two images, seen by points that are followed from one to the next.

A camera that moves along an arc in the plane, by an angle, sees a point at (x, y) in focal lengths
from where it moves to, and at (x', y') afterwards, with

    tan(angle / 2) = (x' y - x y') / (y + y'),

however far away the point is: each point tells the angle (Scaramuzza, Fraundorfer and Siegwart,
ICRA 2009, with all points in place of one). Where the camera moves to is found as that place about
which the points of an image agree best, the focal length by an odometry's turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

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
_USUAL_FOCAL = 0.7  # widths: 71 degrees
_FOCALS = (0.2, 4.0)
_STRAIGHT, _TURNING, _LARGEST_TURN = 0.02, 0.03, 0.5  # radians between two images
_ROUNDS, _CAMERA_ROUNDS = 8, 3
_AGREEING = 5.0  # standard deviations of following, within which a point agrees
_EXAMPLES = 250  # pairs of images that the camera is found by
_ENOUGH_TURNS = 10


@dataclass(frozen=True)
class View:
    """
    Focal length, and where a camera moves to (2,), from its middle: in widths of its image.

    `unlike`: share of a turn by which camera and odometry differ, at the median.
    """

    focal: float
    ahead: FloatArray
    unlike: float = 0.0


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

    `aside`: (p,) metres to the left for each metre ahead, beyond those of an arc, by which the
    camera moved between the images of each pair; None for none.
    """

    flow: Flow
    pair: NDArray[np.intp]
    pairs: int
    aside: FloatArray | None = None

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
        aside = None if self.aside is None else self.aside[pairs]
        return Points(self.flow[inside], place[self.pair[inside]], len(pairs), aside)


def small(image: Pixels) -> Pixels:
    """Make a grey image of `WIDTH` of an image (h, w) or (h, w, 3)."""
    grey = image if image.ndim == 2 else cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    height = max(1, round(grey.shape[0] * WIDTH / grey.shape[1]))
    return np.asarray(cv2.resize(grey, (WIDTH, height), interpolation=cv2.INTER_AREA), np.uint8)


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


def find_view(points: Points, turns: FloatArray, metres: FloatArray) -> View:
    """
    Find how a camera looks by the turns (p,) and the metres (p,) that an odometry has of pairs.

    The odometry may drift with every metre. It is NaN where there is none.
    """
    moving = metres > 0.5 * np.nanmedian(metres)
    straight = _examples(points, moving & (np.abs(turns) < _STRAIGHT))
    use = np.flatnonzero(np.abs(turns) < _LARGEST_TURN)
    around, turns, metres = points.some(use), turns[use], metres[use]
    view = View(_USUAL_FOCAL, np.zeros(2))
    for _ in range(_CAMERA_ROUNDS):
        view = _ahead(straight, view)
        seen = turned(around, view, turns).angle
        turning = np.isfinite(seen) & (np.abs(turns) > _TURNING)
        if turning.sum() >= _ENOUGH_TURNS:
            have = np.isfinite(seen)
            scale, drift = _line(np.column_stack([seen, metres])[have], turns[have])
            focal = float(np.clip(view.focal / max(scale, 1e-3), *_FOCALS))
            left = turns - scale * seen - drift * metres
            unlike = float(np.median(np.abs(left[turning] / turns[turning])))
            view = View(focal, view.ahead, unlike)
    return view


def _line(columns: FloatArray, values: FloatArray) -> FloatArray:
    """Coefficients of columns (m, c) that make values (m,), by Cauchy's law."""
    weight = np.ones(len(values))
    for _ in range(_ROUNDS):
        weighted = columns.T * weight
        found = np.linalg.lstsq(weighted @ columns, weighted @ values, rcond=None)[0]
        left = values - columns @ found
        scale = max(2.0 * 1.4826 * float(np.median(np.abs(left))), 1e-5)
        weight = 1.0 / (1.0 + (left / scale) ** 2)
    return np.asarray(found)


def _examples(points: Points, which: NDArray[np.bool_]) -> Points:
    """Points of pairs with many of them, spread over all."""
    size = np.bincount(points.pair, minlength=points.pairs)
    pairs = np.flatnonzero(which & (size >= 2 * FEWEST))
    spread = np.linspace(0, max(len(pairs) - 1, 0), min(_EXAMPLES, len(pairs)))
    return points.some(pairs[np.unique(spread.astype(np.intp))])


def _ahead(points: Points, view: View) -> View:
    """Find where the camera moves to: about that place the points of each pair agree best."""
    if not len(points.flow):
        return view

    def disagreement(ahead: FloatArray) -> float:
        angle, spread, pair = _angles(points, View(view.focal, ahead))
        if not len(pair):
            return np.inf
        found = _agreed(angle, spread, pair, points.pairs)
        missed = np.log1p(((angle - found[pair]) / spread) ** 2)
        size = np.bincount(pair, minlength=points.pairs)
        total = np.bincount(pair, missed, minlength=points.pairs)
        return float(np.mean(total[size > 0] / size[size > 0]))

    corners = view.ahead + 0.03 * np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    options = {'initial_simplex': corners, 'xatol': 2e-4, 'fatol': 1e-6, 'maxiter': 60}
    found = minimize(disagreement, view.ahead, method='Nelder-Mead', options=options)
    return View(view.focal, np.asarray(found.x), view.unlike)


def _angles(points: Points, view: View) -> tuple[FloatArray, FloatArray, NDArray[np.intp]]:
    """Angles of points and their deviations by that of following, and the pair of each."""
    place = (points.flow.reshape(-1, 2, 2) - view.ahead) / view.focal
    if points.aside is not None:
        place[:, :, 0] += points.aside[points.pair, np.newaxis]
    (x, y), (x_after, y_after) = place[:, 0].T, place[:, 1].T
    known = (y * y_after > 0.0) & (np.abs(y) > _LEVEL)
    x, y, x_after, y_after = x[known], y[known], x_after[known], y_after[known]
    angle = 2.0 * np.arctan((x_after * y - x * y_after) / (y + y_after))
    spread = _NOISE / view.focal * np.sqrt(2.0 + 2.0 * (x / y) ** 2)
    return angle, spread, points.pair[known]


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
