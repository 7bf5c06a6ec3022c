"""
Focal length and mounting of a camera, from tracked points and the odometry.

The focus of expansion is the image point about which the tracked points agree best on straight
segments. The focal length makes the camera's turns equal to the odometry's. A camera that is
mounted ahead of the odometry's point swings out in turns: its offset is the one with which the
points agree best (extrinsic calibration from odometry; Censi, Franchi, Marchionni and Oriolo,
T-RO 2013, do it from scans).
"""

from __future__ import annotations

from dataclasses import replace

from kbr_localization.se2 import FloatArray
from kbr_localization.vision.robust_line import robust_line
from kbr_localization.vision.turning import disagreement, FEWEST, Points, turned, View
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar

_TURNING = 0.03  # radians between two images, of a turn
_ENOUGH_TURNS = 10


def find_view(points: Points, turns: FloatArray, metres: FloatArray, beside: bool = False) -> View:
    """
    Calibrate a camera by the odometry's turns (p,) and distances (p,) between pairs of images.

    The odometry may drift per metre; it is NaN where there is none. `beside`: also estimate the
    camera's offset from the odometry's point.
    """
    moving = metres > 0.5 * np.nanmedian(metres)
    usual = np.abs(turns) < 0.5
    turning = np.abs(turns) > _TURNING
    straight = _examples(points, moving & (np.abs(turns) < 0.02))
    bends = _examples(points, moving & turning & usual)
    use = np.flatnonzero(usual)
    around, turns, metres = points.some(use), turns[use], metres[use]
    view = View(0.7, np.zeros(2))  # 71 degrees wide
    for _ in range(3):
        view = _ahead(points.some(straight), view)
        view, drift = _compared(around, view, turns, metres)
        if beside and len(bends) >= _ENOUGH_TURNS:
            own = np.searchsorted(use, bends)
            view = _offset(points.some(bends), view, turns[own] - drift * metres[own])
            view, _ = _compared(around, view, turns, metres)
    return view


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
    found = _scaled(view, scale)
    # a camera that is upside down turns the other way, for which there is no focal length
    left = turns - view.focal / found.focal * seen - drift * metres
    unlike = float(np.median(np.abs(left[wide] / turns[wide])))
    return replace(found, unlike=unlike), drift


def _slope(column: FloatArray, values: FloatArray) -> float:
    return float(robust_line(column[:, np.newaxis], values)[0][0])


def _examples(points: Points, which: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Choose pairs with many points, spread over all."""
    size = np.bincount(points.pair, minlength=points.pairs)
    pairs = np.flatnonzero(which & (size >= 2 * FEWEST))
    spread = np.linspace(0, max(len(pairs) - 1, 0), min(250, len(pairs)))
    return np.asarray(pairs[np.unique(spread.astype(np.intp))])


def _scaled(view: View, scale: float) -> View:
    """Return a view whose turns are `scale` times as large."""
    return replace(view, focal=float(np.clip(view.focal / max(scale, 1e-3), 0.2, 4.0)))


def _ahead(points: Points, view: View) -> View:
    """Find the focus of expansion, about which the points of each pair agree best."""
    if not len(points.flow):
        return view

    def cost(ahead: FloatArray) -> float:
        return _mean(disagreement(points, replace(view, ahead=ahead)))

    corners = view.ahead + 0.03 * np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    options = {'initial_simplex': corners, 'xatol': 2e-4, 'fatol': 1e-6, 'maxiter': 60}
    found = minimize(cost, view.ahead, method='Nelder-Mead', options=options)
    return replace(view, ahead=np.asarray(found.x))


def _mean(missed: FloatArray) -> float:
    """Mean of what is known; infinite where nothing is."""
    return float(np.nanmean(missed)) if np.isfinite(missed).any() else np.inf


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
                found = _scaled(found, _slope(seen[have], turns[have]))
        return found

    def missed(offset: float) -> FloatArray:
        return disagreement(points, at(offset), turns)

    def cost(offset: float) -> float:
        return _mean(missed(offset))

    spacing, side = 0.15, 0.05  # metres: of the coarse search, of the differences
    offsets = spacing * np.arange(-6, 7)
    # an offset that makes turns of all steps explains nothing
    known = [np.count_nonzero(points.is_way(offset)) >= _ENOUGH_TURNS for offset in offsets]
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
