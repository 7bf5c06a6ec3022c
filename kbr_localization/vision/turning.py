"""
How far a camera turned between two images, from points tracked from one to the next.

A camera that moves along an arc in the plane, by an angle, sees a point at (x, y) in focal lengths
from where it moves to, and at (x', y') afterwards, with

    tan(angle / 2) = (x' y - x y') / (y + y'),

at any depth: each point determines the angle (Scaramuzza, Fraundorfer and Siegwart,
ICRA 2009, with all points in place of one). A camera that also moves sideways sees the same as one
that is turned towards its motion.

The camera is calibrated from these points and the odometry. The focus of expansion is the image
point about which the tracked points agree best on straight ways. The focal length makes the
camera's turns equal to the odometry's, which may drift per metre. A camera that is mounted ahead
of the odometry's point swings out in turns: its offset is the one with which the points agree best
(extrinsic calibration from odometry; Censi, Franchi, Marchionni and Oriolo, T-RO 2013, do it from
scans).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import cv2
from kbr_localization.errors import DatasetError
from kbr_localization.se2 import FloatArray
from kbr_localization.vision.preparation import (
    evenly,
    Image,
    load,
    LoadableImage,
    scaled,
    to_grey,
)
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar

Flow = NDArray[np.float32]
"""Points (k, 4): x, y in one image and in the next, from its middle, in widths of the image."""
Indices = NDArray[np.intp]
WIDTH = 320
"""Columns of the small images."""
FEWEST = 10
"""Points that determine a turn, and turns that determine a focal length or an offset."""
_STRAIGHT, _TURNING = 0.02, 0.03  # radians between two images, at most and at least


@dataclass(frozen=True)
class View:
    """
    Focal length and focus of expansion `ahead` (2,), from the middle, in widths of the image.

    `unlike`: median relative difference between the camera's turns and the odometry's. `offset`:
    metres by which the odometry's point lies ahead of the camera, and its standard `deviation`,
    infinite where it is unknown; None for a camera that moves on arcs in turns.
    """

    focal: float
    ahead: FloatArray
    offset: float | None = None
    deviation: float = np.inf
    unlike: float = 0.0


class Turns(NamedTuple):
    """
    Turns of the camera between the images of pairs (p,), to the left, in radians.

    `deviation`: (p,), right up to a common factor, as points do not err independently.
    `agreeing`: (p,) points that agree, and their `share` (p,) of all.
    """

    angle: FloatArray
    deviation: FloatArray
    agreeing: Indices
    share: FloatArray


class _Points(NamedTuple):
    """Places (n, 4) of points, see `Flow`, the pair (n,) of each, and twists (p, 3) of pairs."""

    places: FloatArray
    pair: Indices
    twists: FloatArray

    @staticmethod
    def of(flows: Sequence[Flow], twists: FloatArray) -> _Points:
        """Join the points (k, 4) of each pair."""
        pair = np.repeat(np.arange(len(flows)), [len(flow) for flow in flows])
        return _Points(np.concatenate([np.zeros((0, 4)), *flows]), pair, twists)

    def sums(self, values: NDArray[Any]) -> FloatArray:
        """Sum values (n,) of the points of each pair: (p,)."""
        return np.bincount(self.pair, values, len(self.twists)).astype(np.float64)

    def agreed(self, view: View) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Angles (n,) by each point, their deviations (n,), and turns (p,) they agree on."""
        ahead, left, turn = self.twists.T
        # an offset that is not known well would bend arcs
        arcs = view.offset is None
        left = np.where(np.abs(turn) < _STRAIGHT, left, 0.0) if arcs else left - view.offset * turn
        # a step that is mostly a turn has no direction
        moving = np.abs(left) < 0.5 * np.abs(ahead)
        aside = np.divide(left, ahead, out=np.zeros(len(ahead)), where=moving)[self.pair]
        x, y, x_after, y_after = ((self.places - np.tile(view.ahead, 2)) / view.focal).T
        # in a camera that looks along its motion
        away, away_after, longer = 1.0 - aside * x, 1.0 - aside * x_after, np.hypot(1.0, aside)
        x, x_after = (x + aside) / away, (x_after + aside) / away_after
        y, y_after = y * longer / away, y_after * longer / away_after
        # points level with where the camera moves to tell nothing
        known = (y * y_after > 0.0) & (np.abs(y) > 0.02)
        y, y_after = np.where(known, (y, y_after), 1.0)
        angle = 2.0 * np.arctan((x_after * y - x * y_after) / (y + y_after))
        noise = 0.3 / WIDTH / view.focal  # deviation of a followed point
        variance = np.where(known, 2.0 * noise**2 * (1.0 + (x / y) ** 2), np.inf)
        # their location by Cauchy's law
        found = np.nan_to_num(turn)
        for _ in range(8):
            weight = 1.0 / (variance + (angle - found[self.pair]) ** 2)
            found = self.sums(weight * angle) / np.maximum(self.sums(weight), 1e-9)
        return angle, np.sqrt(variance), found

    def disagreement(self, view: View) -> FloatArray:
        """Mean loss (p,) of the points of each pair, 0 without points."""
        angle, spread, turn = self.agreed(view)
        total = self.sums(np.log1p(((angle - turn[self.pair]) / spread) ** 2))
        return total / np.maximum(self.sums(np.isfinite(spread)), 1.0)

    def scaled(self, view: View) -> tuple[View, FloatArray]:
        """Fit focal length and drift to the odometry's turns; also return what is left (p,)."""
        turns, seen = self.twists[:, 2], self.agreed(view)[2]
        metres = np.hypot(self.twists[:, 0], self.twists[:, 1])
        # where all ways are bends a drift looks like another focal length
        drifts = np.count_nonzero(np.abs(turns) < _STRAIGHT) >= FEWEST
        columns = np.column_stack([seen, metres * drifts])
        noise = 0.005 + 0.1 * np.abs(turns)  # radians
        (scale, drift), _ = robust_line(columns / noise[:, np.newaxis], turns / noise)
        focal = float(np.clip(view.focal / max(scale, 1e-3), 0.2, 4.0))
        # a camera that is upside down turns the other way, for which there is no focal length
        return replace(view, focal=focal), turns - columns @ [view.focal / focal, drift]


def load_small(image: LoadableImage) -> Image:
    """Load an image as a grey one of `WIDTH`; a broken one becomes a black pixel."""
    try:
        return scaled(to_grey(load(image)), WIDTH)
    except DatasetError:
        return np.zeros((1, 1), dtype=np.uint8)


def follow(first: Image, second: Image) -> Flow:
    """Track corners of a small image into the next one and back (Lucas and Kanade)."""
    start = None
    if first.shape == second.shape:
        start = cv2.goodFeaturesToTrack(first, maxCorners=200, qualityLevel=0.003, minDistance=6)
    if start is None:
        return np.zeros((0, 4), dtype=np.float32)
    how: Any = {'winSize': (15, 15), 'maxLevel': 3}
    end, there, _ = cv2.calcOpticalFlowPyrLK(first, second, start, start.copy(), **how)
    again, back, _ = cv2.calcOpticalFlowPyrLK(second, first, end, end.copy(), **how)
    # a point that does not return to within half a pixel is lost
    kept = (there[:, 0] > 0) & (back[:, 0] > 0)
    kept &= np.abs(again - start).max(axis=(1, 2)) < 0.5
    middle = 0.5 * np.array(first.shape[::-1])
    both = np.concatenate([start[kept, 0] - middle, end[kept, 0] - middle], axis=1)
    return np.asarray(both / WIDTH, dtype=np.float32)


def turned(flows: Sequence[Flow], twists: FloatArray, view: View) -> Turns:
    """
    Find how far the camera turned between the images of each pair.

    `twists`: (p, 3) motion between the images by an odometry, in metres ahead and to the left and
    radians, NaN where there is none. Where points agree on several turns, as on people who walk,
    the nearest one to the odometry's is found. NaN for pairs with too few points.
    """
    points = _Points.of(flows, twists)
    angle, spread, turn = points.agreed(view)
    known = np.isfinite(spread)
    missed = (angle - turn[points.pair]) / spread
    size, agreeing = points.sums(known), points.sums(known & (np.abs(missed) < 5.0))
    information = points.sums(1.0 / (1.0 + missed**2) / spread**2)
    deviation = 1.0 / np.sqrt(np.maximum(information, 1e-9))
    turn, deviation = np.where(size < FEWEST, np.nan, (turn, deviation))
    return Turns(turn, deviation, agreeing.astype(np.intp), agreeing / np.maximum(size, 1))


def find_views(flows: Sequence[Flow], twists: FloatArray) -> tuple[View, View]:
    """Calibrate a camera by an odometry: on arcs, and beside the point of the odometry."""
    metres, turns = np.hypot(twists[:, 0], twists[:, 1]), np.abs(twists[:, 2])
    usable = (metres > 0.5 * np.nanmedian(metres)) & (turns < 0.5)
    usable &= np.array([len(flow) >= 2 * FEWEST for flow in flows])
    kinds = usable & (turns < _STRAIGHT), usable & (turns > _TURNING)
    straight, turning = (evenly(np.flatnonzero(kind), 250) for kind in kinds)
    ways, bends, both = (
        _Points.of([flows[pair] for pair in pairs], twists[pairs])
        for pairs in (straight, turning, np.concatenate([straight, turning]))
    )
    view = View(0.7, np.zeros(2))  # 71 degrees wide
    if len(turning) < FEWEST:
        view = _with_focus(ways, view)
        return view, view
    for _ in range(2):
        view = _with_focus(ways, view)
        view, left = both.scaled(view)
    in_bends = left[len(straight) :]  # noqa: E203
    view = replace(view, unlike=float(np.median(np.abs(in_bends / bends.twists[:, 2]))))
    return view, _with_offset(both, bends, view)


def _with_focus(ways: _Points, view: View) -> View:
    """Find the focus of expansion, about which the points of straight ways agree best."""

    def cost(ahead: FloatArray) -> float:
        return float(ways.disagreement(replace(view, ahead=ahead)).sum())

    corners = view.ahead + 0.03 * np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    options = {'initial_simplex': corners, 'xatol': 5e-4, 'maxiter': 60}
    found = minimize(cost, view.ahead, method='Nelder-Mead', options=options)
    return replace(view, ahead=np.asarray(found.x))


def _with_offset(points: _Points, bends: _Points, view: View) -> View:
    """Find the odometry's point, for which the points of bends agree best."""

    def at(offset: float) -> View:
        # another offset makes other turns of the same points, and so another focal length
        return points.scaled(replace(view, offset=offset))[0]

    def costs(offset: float) -> FloatArray:
        return bends.disagreement(at(offset))

    def cost(offset: float) -> float:
        return float(costs(offset).sum())

    spacing, side = 0.15, 0.05  # metres: of the coarse search, of the differences
    start = min(spacing * np.arange(-6, 7), key=cost)
    bounds = (start - spacing, start + spacing)
    best = minimize_scalar(cost, bounds=bounds, method='bounded', options={'xatol': 0.002}).x
    middle, left, right = (costs(offset) for offset in (best, best - side, best + side))
    # deviation of an estimate that minimises a sum: root of the squared slopes by the curvature
    slope, curvature = (right - left) / (2.0 * side), (left - 2.0 * middle + right) / side**2
    deviation = float(np.sqrt(np.sum(slope**2)) / max(curvature.sum(), 1e-9))
    return replace(at(best), deviation=deviation)


def robust_line(columns: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Fit columns (m, c) to values (m,) by Cauchy's law: coefficients (c,), information (c, c)."""
    weight = np.ones(len(values))
    for _ in range(10):
        weighted = columns.T * weight
        normal = weighted @ columns
        found = np.linalg.lstsq(normal, weighted @ values, rcond=None)[0]
        left = values - columns @ found
        # 1.4826 median |error| is the deviation of a normal law
        scale = max(1.4826 * float(np.median(np.abs(left))), 1e-5)
        weight = 1.0 / (1.0 + (left / (2.0 * scale)) ** 2)
    return np.asarray(found), np.asarray(normal / scale**2)


class Corners(NamedTuple):
    """SIFT keypoints: `places` (k, 2) from the middle, in image widths; `looks` (k, 128)."""

    places: NDArray[np.float32]
    looks: NDArray[np.uint8]


def find_corners(image: Image) -> Corners:
    """Detect keypoints of a small grey image (see `load_small`)."""
    sift = cv2.SIFT.create(300, contrastThreshold=0.02)
    points, looks = sift.detectAndCompute(image, None)
    if looks is None:
        return Corners(np.zeros((0, 2), np.float32), np.zeros((0, 128), np.uint8))
    places = (cv2.KeyPoint.convert(points) - 0.5 * np.array(image.shape[::-1])) / WIDTH
    # whole numbers up to 255, which OpenCV gives as floating point
    return Corners(places.astype(np.float32), looks.astype(np.uint8))


def matched(first: Corners, second: Corners) -> FloatArray:
    """Places (m, 4) in both images of points that are each other's nearest and unlike others."""
    if len(first.looks) < 2 or len(second.looks) < 2:
        return np.zeros((0, 4))
    alike = _rooted(first.looks) @ _rooted(second.looks).T
    rows = np.arange(len(alike))
    best = np.argmax(alike, axis=1)
    nearest = alike[rows, best]
    mutual = np.argmax(alike, axis=0)[best] == rows
    alike[rows, best] = -1.0
    # the ratio test (Lowe, IJCV 2004) on squared distances of unit vectors
    clear = 1.0 - nearest < 0.8**2 * (1.0 - alike.max(axis=1))
    kept = mutual & clear
    both = np.concatenate([first.places[kept], second.places[best[kept]]], axis=1)
    return np.asarray(both, dtype=np.float64)


def _rooted(looks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return RootSIFT (Arandjelovic and Zisserman, CVPR 2012), of unit length."""
    values = looks.astype(np.float32)
    return np.asarray(np.sqrt(values / np.maximum(values.sum(axis=1, keepdims=True), 1e-9)))
