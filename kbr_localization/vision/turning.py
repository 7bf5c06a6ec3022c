"""
Visual odometry of the turns of a camera between consecutive images, from tracked points.

Let a camera move along an arc in the plane. A point is seen at (x, y) before and at (x', y') after
the motion, in focal lengths from the focus of expansion. At any depth of the point, the angle of
the arc is

    tan(angle / 2) = (x' y - x y') / (y + y'),

so each point determines it (Scaramuzza, Fraundorfer and Siegwart, ICRA 2009, use one point; here
all are used). Sideways motion is equivalent to a camera that is rotated towards its motion.

The camera is calibrated from these points and the odometry. The focus of expansion is the image
point for which the tracked points agree best on straight motion. The focal length is fitted so
that the turns of the camera equal those of the odometry, up to a heading drift per metre. A camera
ahead of or behind the reference point of the odometry moves sideways in turns; the offset is the
one for which the points agree best (Censi, Franchi, Marchionni and Oriolo, T-RO 2013, calibrate
laser scanners from odometry).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import cv2
from kbr_localization.errors import DatasetError
from kbr_localization.se2 import FloatArray
from kbr_localization.vision.preparation import (
    Image,
    load,
    LoadableImage,
    resize_to_width,
    select_evenly,
    to_grey,
)
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar

Flow = NDArray[np.float32]
"""Tracked points (k, 4): x, y in an image and in the next, from its centre, in image widths."""
Indices = NDArray[np.intp]
WIDTH = 320
"""Columns of the images that points are tracked in."""
MIN_POINTS = MIN_PAIRS = 10
"""Points that determine a turn; image pairs that determine a focal length or an offset."""
_STRAIGHT, _TURNING = 0.02, 0.03  # largest and smallest turn between two images, radians


@dataclass(frozen=True)
class View:
    """
    Calibration of a camera from its own images and the odometry.

    `focal`: focal length, in image widths. `ahead` (2,): focus of expansion, the image point that
    the camera moves towards, from the image centre, in image widths. `offset`: metres by which
    the reference point of the odometry lies ahead of the camera, None to model turns as arcs of
    the camera; `deviation`: its standard deviation, infinite if unknown. `turn_mismatch`: median
    relative difference between the turns of the camera and of the odometry.
    """

    focal: float
    ahead: FloatArray
    offset: float | None = None
    deviation: float = np.inf
    turn_mismatch: float = 0.0


class Turns(NamedTuple):
    """
    Turns of the camera between the images of pairs (p,), to the left, in radians.

    `deviation` (p,): standard deviation up to a common factor, since the errors of points are
    correlated. `inliers` (p,): points that agree; `inlier_ratio` (p,): their fraction of all.
    """

    angle: FloatArray
    deviation: FloatArray
    inliers: Indices
    inlier_ratio: FloatArray


class _PairPoints(NamedTuple):
    """Points (n, 4) of all pairs, see `Flow`; pair (n,) of each; odometry twists (p, 3)."""

    points: FloatArray
    pair: Indices
    twists: FloatArray

    @staticmethod
    def of(flows: Sequence[Flow], twists: FloatArray) -> _PairPoints:
        pair = np.repeat(np.arange(len(flows)), [len(flow) for flow in flows])
        return _PairPoints(np.concatenate([np.zeros((0, 4)), *flows]), pair, twists)

    def sum_pairs(self, values: NDArray[Any]) -> FloatArray:
        """Sum values (n,) of points over each pair: (p,)."""
        return np.bincount(self.pair, values, len(self.twists)).astype(np.float64)

    def fit_turns(self, view: View) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return turns (n,) by each point, their deviations (n,), and robust means (p,)."""
        ahead, left, turn = self.twists.T
        # without an offset take turns as arcs: their sideways motion depends on the offset
        arcs = view.offset is None
        left = np.where(np.abs(turn) < _STRAIGHT, left, 0.0) if arcs else left - view.offset * turn
        # a step that is mostly a turn has no direction
        moving = np.abs(left) < 0.5 * np.abs(ahead)
        slope = np.divide(left, ahead, out=np.zeros(len(ahead)), where=moving)[self.pair]
        x, y, x_after, y_after = ((self.points - np.tile(view.ahead, 2)) / view.focal).T
        # rotate the camera to look along its motion
        depth, depth_after, length = 1.0 - slope * x, 1.0 - slope * x_after, np.hypot(1.0, slope)
        x, x_after = (x + slope) / depth, (x_after + slope) / depth_after
        y, y_after = y * length / depth, y_after * length / depth_after
        # points at the height of the focus of expansion do not determine the angle
        known = (y * y_after > 0.0) & (np.abs(y) > 0.02)
        y, y_after = np.where(known, (y, y_after), 1.0)
        angle = 2.0 * np.arctan((x_after * y - x * y_after) / (y + y_after))
        noise = 0.3 / WIDTH / view.focal  # standard deviation of a tracked point
        variance = np.where(known, 2.0 * noise**2 * (1.0 + (x / y) ** 2), np.inf)
        # robust mean with Cauchy weights, started at the turn by the odometry
        mean = np.nan_to_num(turn)
        for _ in range(8):
            weight = 1.0 / (variance + (angle - mean[self.pair]) ** 2)
            mean = self.sum_pairs(weight * angle) / np.maximum(self.sum_pairs(weight), 1e-9)
        return angle, np.sqrt(variance), mean

    def mean_loss(self, view: View) -> FloatArray:
        """Average the Cauchy loss of the points of each pair: (p,), 0 without points."""
        angle, spread, turn = self.fit_turns(view)
        total = self.sum_pairs(np.log1p(((angle - turn[self.pair]) / spread) ** 2))
        return total / np.maximum(self.sum_pairs(np.isfinite(spread)), 1.0)

    def fit_focal(self, view: View) -> tuple[View, FloatArray]:
        """Fit focal length and drift to the odometry's turns; also return the residuals (p,)."""
        turns, seen = self.twists[:, 2], self.fit_turns(view)[2]
        metres = np.hypot(self.twists[:, 0], self.twists[:, 1])
        # without straight motion a drift cannot be separated from a change of focal length
        has_drift = np.count_nonzero(np.abs(turns) < _STRAIGHT) >= MIN_PAIRS
        columns = np.column_stack([seen, metres * has_drift])
        noise = 0.005 + 0.1 * np.abs(turns)  # radians
        (scale, drift), _ = robust_line(columns / noise[:, np.newaxis], turns / noise)
        focal = float(np.clip(view.focal / max(scale, 1e-3), 0.2, 4.0))
        # residuals stay large for an upside-down camera, whose scale would be negative
        return replace(view, focal=focal), turns - columns @ [view.focal / focal, drift]


def load_small(image: LoadableImage) -> Image:
    """Load an image as grey, `WIDTH` columns wide; a broken image becomes one black pixel."""
    try:
        return resize_to_width(to_grey(load(image)), WIDTH)
    except DatasetError:
        return np.zeros((1, 1), dtype=np.uint8)


def follow(first: Image, second: Image) -> Flow:
    """Track corners from one image of `load_small` to the next by Lucas-Kanade optical flow."""
    start = None
    if first.shape == second.shape:
        start = cv2.goodFeaturesToTrack(first, maxCorners=200, qualityLevel=0.003, minDistance=6)
    if start is None:
        return np.zeros((0, 4), dtype=np.float32)
    options: Any = {'winSize': (15, 15), 'maxLevel': 3}
    end, found, _ = cv2.calcOpticalFlowPyrLK(first, second, start, start.copy(), **options)
    again, returned, _ = cv2.calcOpticalFlowPyrLK(second, first, end, end.copy(), **options)
    # drop points that do not return to within half a pixel when tracked back
    kept = (found[:, 0] > 0) & (returned[:, 0] > 0)
    kept &= np.abs(again - start).max(axis=(1, 2)) < 0.5
    centre = 0.5 * np.array(first.shape[::-1])
    both = np.concatenate([start[kept, 0] - centre, end[kept, 0] - centre], axis=1)
    return np.asarray(both / WIDTH, dtype=np.float32)


def estimate_turns(flows: Sequence[Flow], twists: FloatArray, view: View) -> Turns:
    """
    Estimate the turn of the camera between the images of each pair.

    `twists` (p, 3): motion between the images by the odometry, metres ahead and to the left and
    radians, NaN if unknown. If groups of points agree on different turns, such as on walking
    people, the turn nearest to the odometry is returned; NaN for pairs with too few points.
    """
    points = _PairPoints.of(flows, twists)
    angle, spread, turn = points.fit_turns(view)
    known = np.isfinite(spread)
    error = (angle - turn[points.pair]) / spread
    count, inliers = points.sum_pairs(known), points.sum_pairs(known & (np.abs(error) < 5.0))
    information = points.sum_pairs(1.0 / (1.0 + error**2) / spread**2)
    deviation = 1.0 / np.sqrt(np.maximum(information, 1e-9))
    turn, deviation = np.where(count < MIN_POINTS, np.nan, (turn, deviation))
    return Turns(turn, deviation, inliers.astype(np.intp), inliers / np.maximum(count, 1))


def find_views(flows: Sequence[Flow], twists: FloatArray) -> tuple[View, View]:
    """Calibrate a camera by the odometry, first with turns as arcs, then with an offset."""
    metres, turns = np.hypot(twists[:, 0], twists[:, 1]), np.abs(twists[:, 2])
    usable = (metres > 0.5 * np.nanmedian(metres)) & (turns < 0.5)
    usable &= np.array([len(flow) >= 2 * MIN_POINTS for flow in flows])
    kinds = usable & (turns < _STRAIGHT), usable & (turns > _TURNING)
    straight, turning = (select_evenly(np.flatnonzero(kind), 250) for kind in kinds)
    of_straight, of_turning, of_both = (
        _PairPoints.of([flows[pair] for pair in pairs], twists[pairs])
        for pairs in (straight, turning, np.concatenate([straight, turning]))
    )
    view = View(0.7, np.zeros(2))  # 71 degrees wide
    if len(turning) < MIN_PAIRS:
        view = _fit_ahead(of_straight, view)
        return view, view
    for _ in range(2):
        view = _fit_ahead(of_straight, view)
        view, residuals = of_both.fit_focal(view)
    relative = residuals[len(straight) :] / of_turning.twists[:, 2]  # noqa: E203
    view = replace(view, turn_mismatch=float(np.median(np.abs(relative))))
    return view, _fit_offset(of_both, of_turning, view)


def _fit_ahead(straight: _PairPoints, view: View) -> View:
    """Fit the focus of expansion: the one for which points agree best on straight motion."""

    def cost(ahead: FloatArray) -> float:
        return float(straight.mean_loss(replace(view, ahead=ahead)).sum())

    corners = view.ahead + 0.03 * np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    options = {'initial_simplex': corners, 'xatol': 5e-4, 'maxiter': 60}
    found = minimize(cost, view.ahead, method='Nelder-Mead', options=options)
    return replace(view, ahead=np.asarray(found.x))


def _fit_offset(points: _PairPoints, turning: _PairPoints, view: View) -> View:
    """Fit the offset of the odometry's reference point: points agree best on turns."""

    def at(offset: float) -> View:
        # the offset changes the estimated turns, so fit the focal length again
        return points.fit_focal(replace(view, offset=offset))[0]

    def costs(offset: float) -> FloatArray:
        return turning.mean_loss(at(offset))

    def cost(offset: float) -> float:
        return float(costs(offset).sum())

    spacing, step = 0.15, 0.05  # metres, of the coarse search and of the finite differences
    start = min(spacing * np.arange(-6, 7), key=cost)
    bounds = (start - spacing, start + spacing)
    best = minimize_scalar(cost, bounds=bounds, method='bounded', options={'xatol': 0.002}).x
    middle, left, right = (costs(offset) for offset in (best, best - step, best + step))
    # standard deviation of an M-estimate: root of the summed squared slopes over the curvature
    slope, curvature = (right - left) / (2.0 * step), (left - 2.0 * middle + right) / step**2
    deviation = float(np.sqrt(np.sum(slope**2)) / max(curvature.sum(), 1e-9))
    return replace(at(best), deviation=deviation)


def robust_line(columns: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """
    Fit columns (m, c) to values (m,) by least squares with Cauchy weights.

    Returns the coefficients (c,) and their information matrix (c, c).
    """
    weight = np.ones(len(values))
    for _ in range(10):
        weighted = columns.T * weight
        normal = weighted @ columns
        found = np.linalg.lstsq(normal, weighted @ values, rcond=None)[0]
        residuals = values - columns @ found
        # 1.4826 median |error| is the standard deviation of a normal distribution
        scale = max(1.4826 * float(np.median(np.abs(residuals))), 1e-5)
        weight = 1.0 / (1.0 + (residuals / (2.0 * scale)) ** 2)
    return np.asarray(found), np.asarray(normal / scale**2)


class Keypoints(NamedTuple):
    """SIFT keypoints: `points` (k, 2) from the centre, in image widths; `descriptors` (k, 128)."""

    points: NDArray[np.float32]
    descriptors: NDArray[np.uint8]


def detect_keypoints(image: Image) -> Keypoints:
    """Detect SIFT keypoints of an image of `load_small`."""
    sift = cv2.SIFT.create(300, contrastThreshold=0.02)
    found, descriptors = sift.detectAndCompute(image, None)
    if descriptors is None:
        return Keypoints(np.zeros((0, 2), np.float32), np.zeros((0, 128), np.uint8))
    points = (cv2.KeyPoint.convert(found) - 0.5 * np.array(image.shape[::-1])) / WIDTH
    # OpenCV returns integers up to 255 as floating point
    return Keypoints(points.astype(np.float32), descriptors.astype(np.uint8))


def match_keypoints(first: Keypoints, second: Keypoints) -> FloatArray:
    """Return mutual nearest neighbours that pass the ratio test: points (m, 4) in both images."""
    if len(first.descriptors) < 2 or len(second.descriptors) < 2:
        return np.zeros((0, 4))
    cosine = _root_sift(first.descriptors) @ _root_sift(second.descriptors).T
    rows = np.arange(len(cosine))
    best = np.argmax(cosine, axis=1)
    nearest = cosine[rows, best]
    mutual = np.argmax(cosine, axis=0)[best] == rows
    cosine[rows, best] = -1.0
    # the ratio test (Lowe, IJCV 2004) on squared distances of unit vectors
    distinct = 1.0 - nearest < 0.8**2 * (1.0 - cosine.max(axis=1))
    kept = mutual & distinct
    both = np.concatenate([first.points[kept], second.points[best[kept]]], axis=1)
    return np.asarray(both, dtype=np.float64)


def _root_sift(descriptors: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return RootSIFT (Arandjelovic and Zisserman, CVPR 2012), of unit length."""
    values = descriptors.astype(np.float32)
    return np.asarray(np.sqrt(values / np.maximum(values.sum(axis=1, keepdims=True), 1e-9)))
