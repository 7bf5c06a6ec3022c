"""
How far a camera turned between two images, from points tracked from one to the next.

A camera that moves along an arc in the plane, by an angle, sees a point at (x, y) in focal lengths
from where it moves to, and at (x', y') afterwards, with

    tan(angle / 2) = (x' y - x y') / (y + y'),

at any depth: each point determines the angle (Scaramuzza, Fraundorfer and Siegwart,
ICRA 2009, with all points in place of one). A camera that also moves sideways sees the same as one
that is turned towards its motion.

The camera is calibrated from these points and the odometry. The focus of expansion is the image
point about which the tracked points agree best on straight segments. The focal length makes the
camera's turns equal to the odometry's. A camera that is mounted ahead of the odometry's point
swings out in turns: its offset is the one with which the points agree best (extrinsic calibration
from odometry; Censi, Franchi, Marchionni and Oriolo, T-RO 2013, do it from scans).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import cv2
from kbr_localization.errors import DatasetError
from kbr_localization.se2 import FloatArray
from kbr_localization.vision.preparation import Image, load, LoadableImage, to_grey
from kbr_localization.workers import batches
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar

Flow = NDArray[np.float32]
"""Points (k, 4): x, y in one image and in the next, from its middle, in widths of the image."""
Indices = NDArray[np.intp]
WIDTH = 320
"""Columns of the small images."""
FEWEST = 10
"""Points that determine a turn."""
_BLOCK = 256  # pairs whose points are computed with at a time, so that they stay in the cache
_TURNING = 0.03  # radians between two images, of a turn
_ENOUGH_TURNS = 10


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

    def scaled(self, scale: float) -> View:
        """Return a view whose turns are `scale` times as large."""
        return replace(self, focal=float(np.clip(self.focal / max(scale, 1e-3), 0.2, 4.0)))


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

    def some(self, pairs: Indices) -> Turns:
        """Select pairs."""
        return Turns._make(values[pairs] for values in self)


@dataclass(frozen=True)
class Points:
    """
    Points of p pairs of images: `flows` (k, 4), one for each pair.

    `twists`: (p, 3) metres ahead and to the left and radians by which an odometry moved between
    the images of each pair, NaN where it tells nothing; None for a camera that moves on arcs.
    """

    flows: Sequence[Flow]
    twists: FloatArray | None = None

    def some(self, pairs: Indices) -> Points:
        """Select pairs."""
        twists = None if self.twists is None else self.twists[pairs]
        return Points([self.flows[pair] for pair in pairs.tolist()], twists)

    @cached_property
    def sizes(self) -> Indices:
        """Points (p,) of each pair."""
        return np.array([len(flow) for flow in self.flows], dtype=np.intp)

    @cached_property
    def blocks(self) -> list[FloatArray]:
        """
        Points (4, k, b) of `_BLOCK` pairs each: a column per pair, padded with NaN.

        Sums over columns are much faster than sums by the number of the pair.
        """
        blocks = []
        for flows in batches(self.flows, _BLOCK):
            block = np.full((4, max(1, *map(len, flows)), len(flows)), np.nan)
            for column, flow in enumerate(flows):
                block[:, : len(flow), column] = flow.T
            blocks.append(block)
        return blocks

    def aside(self, offset: float) -> tuple[FloatArray, NDArray[np.bool_]]:
        """
        Sideways motion (p,) per metre ahead, beyond an arc, of a camera at an offset.

        `offset`: metres by which the odometry's point lies ahead of it. Zero for steps that are
        mostly a turn; also returns which are not (p,).
        """
        if self.twists is None:
            return np.zeros(len(self.flows)), np.ones(len(self.flows), dtype=np.bool_)
        ahead, left, turn = self.twists.T
        left = left - offset * turn
        known = np.asarray(np.abs(left) < 0.5 * np.abs(ahead))
        return np.divide(left, ahead, out=np.zeros(len(ahead)), where=known), known


def small(image: Image) -> Image:
    """Make a grey image of `WIDTH` of a grey image (h, w) or a BGR one (h, w, 3)."""
    grey = to_grey(image)
    height = max(1, round(grey.shape[0] * WIDTH / grey.shape[1]))
    return np.asarray(cv2.resize(grey, (WIDTH, height), interpolation=cv2.INTER_AREA), np.uint8)


def load_small(image: LoadableImage) -> Image:
    """Load an image and make it small; a broken one becomes a black pixel."""
    try:
        return small(load(image))
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
        known = np.where(size < FEWEST, np.nan, found)
        blocks.append(np.stack([known, information, agreeing, agreeing / np.maximum(size, 1)]))
    found, information, agreeing, share = np.concatenate(blocks, axis=1)
    information[np.isnan(found)] = np.nan
    deviation = 1.0 / np.sqrt(np.maximum(information, 1e-9))
    return Turns(found, deviation, agreeing.astype(np.intp), share)


def disagreement(points: Points, view: View, near: FloatArray | None = None) -> FloatArray:
    """How much the points of each pair (p,) disagree about a turn; NaN without points."""
    blocks = [np.zeros(0)]
    for angle, spread, size, found in _agreements(points, view, near):
        total = np.sum(np.log1p(((angle - found) / spread) ** 2), axis=0)
        blocks.append(np.where(size > 0, total / np.maximum(size, 1), np.nan))
    return np.concatenate(blocks)


def _agreements(
    points: Points, view: View, near: FloatArray | None
) -> Iterator[tuple[FloatArray, FloatArray, Indices, FloatArray]]:
    """
    Yield angles (k, b) of points of b pairs, their deviations, numbers (b,) of them, turns (b,).

    A deviation, by the tracking noise, is infinite where a point is missing or tells nothing.
    """
    every, _ = points.aside(view.offset)
    for number, block in enumerate(points.blocks):
        pairs = slice(number * _BLOCK, (number + 1) * _BLOCK)
        aside, centre = every[pairs], np.tile(view.ahead, 2)[:, np.newaxis, np.newaxis]
        x, y, x_after, y_after = (block - centre) / view.focal
        x, y = _rotated(x, y, aside)
        x_after, y_after = _rotated(x_after, y_after, aside)
        # points level with where the camera moves to tell nothing
        known = (y * y_after > 0.0) & (np.abs(y) > 0.02)
        y = np.where(known, y, np.nan)
        angle = 2.0 * np.arctan((x_after * y - x * y_after) / (y + y_after))
        following = 0.3 / WIDTH  # deviation of a followed point, in widths
        spread = following / view.focal * np.sqrt(2.0 + 2.0 * (x / y) ** 2)
        angle, spread = np.where(known, angle, 0.0), np.where(known, spread, np.inf)
        size = np.count_nonzero(known, axis=0)
        ordered = np.sort(np.where(known, angle, np.inf), axis=0)
        found = np.where(size > 0, ordered[size // 2, np.arange(len(size))], 0.0)  # the median
        if near is not None:
            found = np.where(np.isfinite(near[pairs]), near[pairs], found)
        yield angle, spread, size, _agreed(angle, spread, found)


def _rotated(x: FloatArray, y: FloatArray, aside: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Rotate points (k, b) into cameras that look along their motion, `aside` (b,)."""
    away = 1.0 - aside * x
    return (x + aside) / away, y * np.sqrt(1.0 + aside**2) / away


def _agreed(angle: FloatArray, spread: FloatArray, found: FloatArray) -> FloatArray:
    """Location (b,) of angles (k, b) by Cauchy's law, from `found` (b,) on."""
    variance, weight = spread**2, np.empty_like(spread)
    for _ in range(8):
        # weight = 1 / (variance + (angle - found)^2), without further arrays: here time goes
        np.subtract(angle, found, out=weight)
        np.square(weight, out=weight)
        weight += variance
        np.reciprocal(weight, out=weight)
        total = weight.sum(axis=0)
        weight *= angle
        found = weight.sum(axis=0) / np.maximum(total, 1e-9)
    return found


def find_view(points: Points, turns: FloatArray, metres: FloatArray, beside: bool = False) -> View:
    """
    Calibrate a camera by the odometry's turns (p,) and distances (p,) between pairs of images.

    The odometry may drift per metre; it is NaN where there is none. `beside`: also estimate the
    camera's offset from the odometry's point.
    """
    moving, usual = metres > 0.5 * np.nanmedian(metres), np.abs(turns) < 0.5
    straight = _examples(points, moving & (np.abs(turns) < 0.02))
    bends = _examples(points, moving & (np.abs(turns) > _TURNING) & usual)
    use = np.flatnonzero(usual)
    around, own = points.some(use), np.searchsorted(use, bends)
    turns, metres = turns[use], metres[use]
    view = View(0.7, np.zeros(2))  # 71 degrees wide
    for _ in range(3):
        view = _ahead(points.some(straight), view)
        view, drift = _compared(around, view, turns, metres)
        if beside and len(bends) >= _ENOUGH_TURNS:
            view = _offset(points.some(bends), view, turns[own] - drift * metres[own])
            view, _ = _compared(around, view, turns, metres)
    return view


def _examples(points: Points, which: NDArray[np.bool_]) -> Indices:
    """Choose pairs with many points, spread over all."""
    pairs = np.flatnonzero(which & (points.sizes >= 2 * FEWEST))
    spread = np.linspace(0, max(len(pairs) - 1, 0), min(250, len(pairs)))
    return np.asarray(pairs[np.unique(spread.astype(np.intp))])


def _compared(
    points: Points, view: View, turns: FloatArray, metres: FloatArray
) -> tuple[View, float]:
    """Fit the focal length to the odometry's turns; also return the odometry's drift."""
    seen = turned(points, view, turns).angle
    have = np.isfinite(seen)
    wide = have & (np.abs(turns) > _TURNING)
    if wide.sum() < _ENOUGH_TURNS:
        return view, 0.0
    # turns err more than straight ways do, which would outvote them
    narrow, scale, drift = have & ~wide, 1.0, 0.0
    for _ in range(3):
        if narrow.any():
            drift = _slope(metres[narrow], (turns - scale * seen)[narrow])
        scale = _slope(seen[wide], (turns - drift * metres)[wide])
    found = view.scaled(scale)
    # a camera that is upside down turns the other way, for which there is no focal length
    left = turns - view.focal / found.focal * seen - drift * metres
    unlike = float(np.median(np.abs(left[wide] / turns[wide])))
    return replace(found, unlike=unlike), drift


def _ahead(points: Points, view: View) -> View:
    """Find the focus of expansion, about which the points of each pair agree best."""
    if not points.sizes.any():
        return view

    def cost(ahead: FloatArray) -> float:
        return _mean(disagreement(points, replace(view, ahead=ahead)))

    corners = view.ahead + 0.03 * np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    options = {'initial_simplex': corners, 'xatol': 2e-4, 'fatol': 1e-6, 'maxiter': 60}
    found = minimize(cost, view.ahead, method='Nelder-Mead', options=options)
    return replace(view, ahead=np.asarray(found.x))


def _offset(points: Points, view: View, turns: FloatArray) -> View:
    """
    Find the odometry's point by pairs that turn by about `turns` (p,).

    Another offset makes other turns of the same points: each offset has its own focal length.
    """

    def at(offset: float) -> View:
        found = replace(view, offset=offset)
        for _ in range(3):
            seen = turned(points, found, turns).angle
            have = np.isfinite(seen)
            if have.any():
                found = found.scaled(_slope(seen[have], turns[have]))
        return found

    def missed(offset: float) -> FloatArray:
        return disagreement(points, at(offset), turns)

    def cost(offset: float) -> float:
        return _mean(missed(offset))

    spacing, side = 0.15, 0.05  # metres: of the coarse search, of the differences
    offsets = spacing * np.arange(-6, 7)
    # an offset that makes turns of all steps explains nothing
    known = [np.count_nonzero(points.aside(offset)[1]) >= _ENOUGH_TURNS for offset in offsets]
    costs = [cost(one) if usable else np.inf for one, usable in zip(offsets, known, strict=True)]
    if not np.isfinite(min(costs)):
        return view
    start = offsets[int(np.argmin(costs))]
    bounds, options = (start - spacing, start + spacing), {'xatol': 0.002}
    best = float(minimize_scalar(cost, bounds=bounds, method='bounded', options=options).x)
    middle, left, right = missed(best), missed(best - side), missed(best + side)
    # deviation of an estimate that minimises a sum: root of the squared slopes by the curvature
    slope, curvature = (right - left) / (2.0 * side), (left - 2.0 * middle + right) / side**2
    if not np.isfinite(curvature).any():
        return at(best)
    total = max(float(np.nansum(curvature)), 1e-9)
    deviation = float(np.sqrt(np.nansum(slope**2)) / total)
    return replace(at(best), deviation=deviation)


def _mean(missed: FloatArray) -> float:
    """Mean of what is known; infinite where nothing is."""
    return float(np.nanmean(missed)) if np.isfinite(missed).any() else np.inf


def _slope(column: FloatArray, values: FloatArray) -> float:
    return float(robust_line(column[:, np.newaxis], values)[0][0])


def robust_line(columns: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """
    Coefficients (c,) that make columns (m, c) values (m,), by Cauchy's law, and their information.

    Reweighted least squares, the scale of the errors being their median absolute deviation.
    The information (c, c) is the inverse of the covariance of the coefficients.
    """
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
    """
    SIFT keypoints of an image.

    `places`: (k, 2) from its middle, in widths of the image. `looks`: (k, 128) descriptors.
    """

    places: NDArray[np.float32]
    looks: NDArray[np.uint8]


def find_corners(image: Image) -> Corners:
    """Detect keypoints of a small grey image (see `small`)."""
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
