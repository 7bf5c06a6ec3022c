"""
How a camera looks and where it is on its robot, from points that are followed and an odometry.

Where the camera moves to is that place about which the points of an image agree best on straight
ways. The focal length makes the camera's turns those of the odometry. In turns a camera beside the
odometry's point moves another way than that point: the offset is that by which the points agree
best about each turn (extrinsic calibration of a camera by its odometry, as Censi, Franchi,
Marchionni and Oriolo, T-RO 2013, do by scans).
"""

from __future__ import annotations

from dataclasses import replace

from kbr_localization.se2 import FloatArray
from kbr_localization.vision.robust_line import robust_line
from kbr_localization.vision.turning import disagreement, FEWEST, Points, turned, View
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar

_USUAL_FOCAL = 0.7  # widths: 71 degrees
_FOCALS = (0.2, 4.0)
_STRAIGHT, _TURNING, _LARGEST_TURN = 0.02, 0.03, 0.5  # radians between two images
_CAMERA_ROUNDS, _FOCAL_ROUNDS = 3, 3
_EXAMPLES = 250  # pairs of images that the camera is found by
_ENOUGH_TURNS = 10
_APART = 0.15  # metres between offsets that are tried first
_OFFSETS = _APART * np.arange(-6, 7)
_CLOSE, _BESIDE = 0.002, 0.05  # metres: of the offset, and where its law is looked at


def find_view(points: Points, turns: FloatArray, metres: FloatArray, beside: bool = False) -> View:
    """
    Find how a camera looks by the turns (p,) and the metres (p,) that an odometry has of pairs.

    The odometry may drift with every metre. It is NaN where there is none. `beside`: whether the
    camera is elsewhere than the odometry's point, which is sought then.
    """
    moving = metres > 0.5 * np.nanmedian(metres)
    usual = np.abs(turns) < _LARGEST_TURN
    turning = np.abs(turns) > _TURNING
    straight = _examples(points, moving & (np.abs(turns) < _STRAIGHT))
    bends = _examples(points, moving & turning & usual)
    use = np.flatnonzero(usual)
    around, turns, metres = points.some(use), turns[use], metres[use]
    view = View(_USUAL_FOCAL, np.zeros(2))
    for _ in range(_CAMERA_ROUNDS):
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
    """Make the camera's turns those of the odometry; also return the odometry's drift."""
    seen = turned(points, view, turns).angle
    have = np.isfinite(seen)
    wide = have & (np.abs(turns) > _TURNING)
    if wide.sum() < _ENOUGH_TURNS:
        return view, 0.0
    # turns err more than straight ways do, which would outvote them
    narrow, scale, drift = have & ~wide, 1.0, 0.0
    for _ in range(_FOCAL_ROUNDS):
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
    spread = np.linspace(0, max(len(pairs) - 1, 0), min(_EXAMPLES, len(pairs)))
    return np.asarray(pairs[np.unique(spread.astype(np.intp))])


def _scaled(view: View, scale: float) -> View:
    """Return a view whose turns are so many times as large."""
    return replace(view, focal=float(np.clip(view.focal / max(scale, 1e-3), *_FOCALS)))


def _ahead(points: Points, view: View) -> View:
    """Find where the camera moves to: about that place the points of each pair agree best."""
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
    Find where the odometry's point is by pairs that turn, by about so much (p,).

    Another offset makes other turns of the same points: each one has a focal length of its own.
    """

    def at(offset: float) -> View:
        found = replace(view, offset=offset)
        for _ in range(_FOCAL_ROUNDS):
            seen = turned(points, found, turns).angle
            have = np.isfinite(seen)
            if have.any():
                found = _scaled(found, _slope(seen[have], turns[have]))
        return found

    def missed(offset: float) -> FloatArray:
        return disagreement(points, at(offset), turns)

    def cost(offset: float) -> float:
        return _mean(missed(offset))

    # so far off that all steps are turns it counts for nothing, and is as good as no offset
    told = [np.count_nonzero(points.is_way(offset)) >= _ENOUGH_TURNS for offset in _OFFSETS]
    costs = [cost(one) if some else np.inf for one, some in zip(_OFFSETS, told, strict=True)]
    start = _OFFSETS[int(np.argmin(costs))]
    if not np.isfinite(min(costs)):
        return view
    bounds = start - _APART, start + _APART
    options = {'xatol': _CLOSE}
    best = float(minimize_scalar(cost, bounds=bounds, method='bounded', options=options).x)
    middle, left, right = (missed(best + side) for side in (0.0, -_BESIDE, _BESIDE))
    # of an estimate that makes a sum least: what each pair adds to its slope, by its curvature
    slope, curvature = (right - left) / (2.0 * _BESIDE), (left - 2.0 * middle + right) / _BESIDE**2
    if not np.isfinite(curvature).any():
        return at(best)
    total = max(float(np.nansum(curvature)), 1e-9)
    deviation = float(np.sqrt(np.nansum(slope**2)) / total)
    return replace(at(best), deviation=deviation)
