"""
The odometry motion model and the maximum-likelihood estimate of its variances.

[MbKSR] section 6.3 and [PR] section 5.4 move a pose by rotation, translation, rotation. Composing
the increment in the base frame gives the same pose and has no singularity when the robot stands.
"""

from __future__ import annotations

from dataclasses import dataclass
import math

from kbr_localization import se2
from kbr_localization.errors import LocalizationError
from kbr_localization.se2 import FloatArray
import numpy as np

_WINDOW_METRES = 1.0
_FLOOR = np.array([1e-7, 1e-7, 1e-7])
_ROUNDS = 20
_FEWEST_WINDOWS = 10  # of a run that tells how the odometry drifts
_USUAL_DRIFT = 0.015  # rad/m: robots whose runs do not tell
_UNLIKE_DRIFT = 0.005  # rad/m between the runs of a map and a later one: tyres, load, floor


@dataclass(frozen=True)
class MotionNoise:
    """
    Errors of an odometry increment in the base frame: along, across, heading.

    The variances grow with the way: `per_metre` (3,) in m², m², rad² per metre and `per_radian`
    (3,) per radian of turning. `step` (4,) are the variances of x, y, cos, sin for one step from
    image to image, as [MbKSR] section 6.3 has them. All are those about the `drift`: systematic
    error of the heading, in radians per metre forward, as wheels of unequal diameter have it;
    `drift_deviation`: standard deviation of that of another run.
    """

    per_metre: FloatArray
    per_radian: FloatArray
    step: FloatArray
    drift: float = 0.0
    drift_deviation: float = _USUAL_DRIFT

    @staticmethod
    def default() -> MotionNoise:
        """Variances of an ordinary indoor robot, for runs too short to estimate them."""
        return MotionNoise(
            per_metre=np.array([4e-4, 2e-4, 2e-4]),
            per_radian=np.array([1e-4, 1e-4, 1e-3]),
            step=np.array([4e-4, 4e-4, 4e-4, 4e-4]),
        )

    def known_drift(self, how: str) -> float:
        """Return the drift to begin with: none where the odometry is taken as it is, 'off'."""
        return 0.0 if how == 'off' else self.drift

    def variances(self, increment: FloatArray) -> FloatArray:
        """Variances of increments. Shapes: (..., 3) -> (..., 3)."""
        metres = np.hypot(increment[..., 0], increment[..., 1])[..., np.newaxis]
        radians = np.abs(increment[..., 2])[..., np.newaxis]
        return np.asarray(metres * self.per_metre + radians * self.per_radian)


def without_drift(increment: FloatArray, drift: float | FloatArray) -> FloatArray:
    """
    Take the systematic turn out of odometry increments; `drift` in radians per metre forward.

    Shapes: (..., 3) and (...) -> (..., 3).
    """
    turn = increment[..., 2] - drift * increment[..., 0]
    result = np.empty((*np.shape(turn), 3))
    result[..., :2], result[..., 2] = increment[..., :2], turn
    return result


def estimate_noise(tracks: list[tuple[FloatArray, FloatArray]]) -> MotionNoise:
    """
    Estimate the drift from runs by its median, and the variances about it by maximum likelihood.

    `tracks`: per run, odometry (n, 3) and reference (n, 3) poses of the same frames. The errors
    are taken over windows of a metre of way, because wheel errors are correlated: the variance of
    a single step is overconfident. Runs that are too short give `MotionNoise.default()`.
    """
    for odometry, reference in tracks:
        _check_track(odometry, reference)
    drift, deviation = _fit_drift([_window_drifts(*track) for track in tracks])
    found = [_window_errors(_straightened(track, drift), truth) for track, truth in tracks]
    ways = np.concatenate([np.zeros((0, 2)), *(way for way, _, _ in found)])
    errors = np.concatenate([np.zeros((0, 3)), *(error for _, error, _ in found)])
    if len(errors) < 10:
        return MotionNoise.default()
    fitted = np.array([_fit_variance(ways, errors[:, axis] ** 2) for axis in range(3)])
    return MotionNoise(
        per_metre=np.maximum(fitted[:, 0], _FLOOR),
        per_radian=np.maximum(fitted[:, 1], _FLOOR),
        step=_step_variances([(_straightened(track, drift), truth) for track, truth in tracks]),
        drift=drift,
        drift_deviation=deviation,
    )


def _check_track(odometry: FloatArray, reference: FloatArray) -> None:
    if odometry.shape != reference.shape:
        raise LocalizationError(
            f'odometry of shape {odometry.shape} and reference of shape {reference.shape} differ: '
            'give one pose of each per frame'
        )


def _fit_drift(runs: list[FloatArray]) -> tuple[float, float]:
    """Drift of the odometry, and its standard deviation for another run, from those of windows."""
    telling = [drifts for drifts in runs if len(drifts) >= _FEWEST_WINDOWS]
    if not telling:
        return 0.0, _USUAL_DRIFT
    # medians: references jump now and then
    medians = [float(np.median(drifts)) for drifts in telling]
    between = float(np.std(medians, ddof=1)) if len(medians) > 1 else 0.0
    return float(np.median(np.concatenate(telling))), math.hypot(between, _UNLIKE_DRIFT)


def _window_drifts(odometry: FloatArray, reference: FloatArray) -> FloatArray:
    """Measure what the odometry turns too much per metre (w,), in windows that lead forward."""
    _, error, forward = _window_errors(odometry, reference)
    ahead = forward > 0.5 * _WINDOW_METRES
    return np.asarray(-error[ahead, 2] / forward[ahead])


def _straightened(odometry: FloatArray, drift: float) -> FloatArray:
    """Odometry poses (n, 3) without their drift."""
    if len(odometry) == 0:
        return odometry
    steps = se2.between(odometry[:-1], odometry[1:])
    return se2.chain(odometry[0], without_drift(steps, drift))


def _window_errors(
    odometry: FloatArray, reference: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Of each window way and turn (w, 2), the odometry's error (w, 3), metres forward (w,)."""
    steps = se2.between(odometry[:-1], odometry[1:])
    way, turn, forward = (
        np.concatenate([[0.0], np.cumsum(amount)])
        for amount in (np.hypot(steps[:, 0], steps[:, 1]), np.abs(steps[:, 2]), steps[:, 0])
    )
    marks = np.unique(np.searchsorted(way, np.arange(0.0, way[-1], _WINDOW_METRES)))
    start, end = marks[:-1], marks[1:]
    error = se2.between(
        se2.between(odometry[start], odometry[end]), se2.between(reference[start], reference[end])
    )
    ways = np.stack([way[end] - way[start], turn[end] - turn[start]], axis=-1)
    return ways, error, forward[end] - forward[start]


def _fit_variance(ways: FloatArray, squared: FloatArray) -> FloatArray:
    """Gaussian maximum likelihood of variance = ways @ rates, by reweighted least squares."""
    rates = np.array([squared.sum() / ways[:, 0].sum(), 0.0])
    for _ in range(_ROUNDS):
        variance = np.maximum(ways @ rates, 1e-9)
        rates = _non_negative_pair(ways / variance[:, np.newaxis], squared / variance)
    return rates


def _non_negative_pair(left: FloatArray, right: FloatArray) -> FloatArray:
    """Least squares of left (m, 2) @ x = right (m,) with x >= 0."""
    free = np.linalg.lstsq(left, right, rcond=None)[0]
    if free.min() >= 0.0:
        return np.asarray(free)
    # otherwise one of the two is zero
    squares = np.maximum(np.sum(left**2, axis=0), 1e-300)
    single = np.diag(np.maximum(left.T @ right / squares, 0.0))
    return np.asarray(single[np.argmin([np.sum((left @ x - right) ** 2) for x in single])])


def _step_variances(tracks: list[tuple[FloatArray, FloatArray]]) -> FloatArray:
    """Variances (4,) of x', y', cos', sin' given the pose and the odometry before."""
    residuals = []
    for odometry, reference in tracks:
        predicted = se2.compose(reference[:-1], se2.between(odometry[:-1], odometry[1:]))
        residuals.append(
            se2.to_plane_and_circle(reference[1:]) - se2.to_plane_and_circle(predicted)
        )
    return np.asarray(np.maximum(np.mean(np.concatenate(residuals) ** 2, axis=0), 1e-9))
