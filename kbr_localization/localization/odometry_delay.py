"""
By how many seconds the stamps of an odometry are behind those of the reference poses.

Drivers stamp a message when it arrives, clocks of two computers differ, a filter answers late. An
odometry that is late by tau tells at t what was at t - tau. While the robot goes on as before this
changes no step; where its rate of turning w changes, the turn from one reference pose to the next
differs by the change of w times tau. So tau solves the regression

    turn of the reference = a (turn of the odometry, tau later) + b (way) + noise

in which a and b take up scale and drift, by maximum likelihood with Student's t for the noise: a
grid of delays first, then Gauss and Newton. Where a delay of seconds is likelier than any small
one, clocks differ, and it is looked for about that one. The uncertainty is that of estimating
equations with correlated neighbours, as in `calibration_fit`: errors of a pose are in two steps
and more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kbr_localization import se2
from kbr_localization.datasets import OdometryTrack
from kbr_localization.localization.calibration_fit import variance_between
from kbr_localization.se2 import FloatArray, StampArray
from kbr_localization.workers import batches
import numpy as np
from numpy.typing import ArrayLike

NEAR_S, FARTHEST_S = 0.5, 10.0
"""Seconds: delays that drivers and filters have, and those of clocks that are looked for."""
LATE_S = 0.03
"""Seconds below which a delay is left as it is: 3 cm of way at 1 m/s."""
_SURELY = 3.0  # standard deviations
_GRID_S, _STEP_S = 0.02, 0.02  # seconds between delays that are tried; of a finite difference
_COARSE_S = 0.1  # seconds between delays of clocks: a turn takes several times as long
_FREEDOM = 4.0  # of Student's t, as in `calibration_fit`
_WEIGHINGS, _ROUNDS = 10, 10  # rounds of the weights, and of Gauss and Newton
_FEWEST = 30  # steps without which a run tells nothing
_LEAST_VARIANCE = 1e-12  # rad²: odometry that is the truth
_SHORTEST_S = 1e-9
_AT_ONCE = 30_000  # steps of all delays that are tried together: their arrays fit into a cache
_LEAST_FREE = 0.1  # of a step is left to its own noise
_UNSEEN = 1e-9  # rad/s: a robot that never changes its rate of turning tells no delay


Delay = tuple[float, float]
"""Seconds and their standard deviation; positive where the odometry is late."""


def measure_delay(
    track: OdometryTrack, stamps_ns: StampArray, reference: FloatArray
) -> Delay | None:
    """
    Estimate by how much the odometry of a run, at its full rate, is late.

    `reference`: poses (n, 3) at `stamps_ns` (n,). None where there are too few steps, or no turn
    begins or ends in them, or the best delay is not within `FARTHEST_S`, or is late by its
    deviation and hardly likelier than none: the poses of a robot that goes straight on leap once.
    """
    about = _of_clocks(_Steps.within(FARTHEST_S, track, stamps_ns, reference))
    steps = _Steps.within(abs(about) + NEAR_S, track, stamps_ns, reference)
    if steps is None:
        return None
    delay, inside = steps.likeliest(about + _grid(NEAR_S, _GRID_S))
    found = _refined(steps, delay) if inside else None
    if found is None or not is_late(found):
        return found
    of_none, of_found = steps.costs(np.array([0.0, found[0]]))
    return found if of_none - of_found > _SURELY**2 else None


def _of_clocks(steps: _Steps | None) -> float:
    """
    Seconds about which a delay is looked for: none, unless a far one is likelier by far.

    That is by as many deviations as make a delay sure, and as the best of so many would be by
    chance. Of a robot that goes round and round, or to and fro, delays by a whole round are alike,
    and which one is likelier is chance of the steps: so the sum over them has to exceed its own
    deviation as well (Vuong, 1989).
    """
    if steps is None:
        return 0.0
    grid = _grid(FARTHEST_S, _COARSE_S)
    costs = steps.costs(grid)
    near = np.where(np.abs(grid) < NEAR_S - 0.5 * _COARSE_S, costs, np.inf)
    likeliest = grid[[np.argmin(near), np.argmin(costs)]]
    gain = -np.diff(steps.misfits(likeliest), axis=0)[0]
    variance = _of_sum((gain - gain.mean())[:, np.newaxis], steps.lags)[0, 0]
    deviation = np.sqrt(max(float(variance), 0.0))
    sure = max(_SURELY**2 + 2.0 * np.log(len(grid)), _SURELY * deviation)
    return float(likeliest[1]) if gain.sum() > sure else 0.0


def _grid(farthest: float, step: float) -> FloatArray:
    return np.arange(-farthest, farthest + 0.5 * step, step)


def is_late(delay: Delay | None) -> bool:
    """Whether a delay is sure, and long enough to be put right."""
    return delay is not None and abs(delay[0]) > max(LATE_S, _SURELY * delay[1])


def put_right(track: OdometryTrack, stamps_ns: StampArray, delay: Delay) -> FloatArray:
    """Odometry (n, 3) of the moments `stamps_ns` (n,), from a track that is late."""
    at = np.asarray(stamps_ns) + round(1e9 * delay[0])
    first, last = track.stamps_ns[0], track.stamps_ns[-1]
    return se2.interpolate(track.stamps_ns, track.poses, np.clip(at, first, last))


def common_delay(delays: Sequence[Delay | None]) -> FloatArray | None:
    """Join the delays of runs to one (2,), with how far they differ in its deviation."""
    known = np.array([delay for delay in delays if delay is not None])
    if not len(known):
        return None
    variances = np.maximum(known[:, 1:] ** 2, _LEAST_VARIANCE)
    between = variance_between(known[:, :1], variances)
    weights = 1.0 / (variances + between)
    mean = float(np.sum(weights * known[:, :1]) / weights.sum())
    return np.array([mean, np.sqrt(1.0 / weights.sum() + float(between[0]))])


class _Averages:
    """
    Heading and way (..., 2) along poses (n, 3) at times (n,), averaged over `half` either way.

    Halfway between two samples a linear interpolation has less noise than at one, and would seem
    to fit better there; averages over two intervals do not. The reference has the same ones: else
    that of an odometry which is as rare would fit best where its steps lie across other ones.
    """

    def __init__(self, times: FloatArray, poses: FloatArray, half: float) -> None:
        self._times, self._half = times, half
        lines = np.stack([np.unwrap(poses[:, 2]), se2.travelled(poses)], axis=1)
        steps = 0.5 * (lines[1:] + lines[:-1]) * np.diff(times)[:, np.newaxis]
        whole = np.maximum(np.diff(times), _SHORTEST_S)[:, np.newaxis]
        self._lines, self._rates = lines, np.diff(lines, axis=0) / whole
        self._sums = np.concatenate([np.zeros((1, 2)), np.cumsum(steps, axis=0)])

    def at(self, moments: FloatArray) -> FloatArray:
        """Return the averages about moments (...)."""
        parts = self._sum(moments + self._half) - self._sum(moments - self._half)
        return np.asarray(parts / (2.0 * self._half))

    def _sum(self, at: FloatArray) -> FloatArray:
        """Integrals (..., 2) of heading and way up to times (...), exact between the samples."""
        before = np.clip(np.searchsorted(self._times, at) - 1, 0, len(self._times) - 2)
        elapsed = (at - self._times[before])[..., np.newaxis]
        line = self._lines[before] + 0.5 * elapsed * self._rates[before]
        return np.asarray(self._sums[before] + elapsed * line)


@dataclass(frozen=True)
class _Steps:
    """
    The `turns` (m,) of the reference between `moments` (m + 1,), and what an odometry tells.

    `lags`: steps after one that share errors with it, of a pose or by the averages.
    """

    told: _Averages
    moments: FloatArray
    turns: FloatArray
    lags: int

    @staticmethod
    def within(
        farthest: float, track: OdometryTrack, stamps_ns: StampArray, reference: FloatArray
    ) -> _Steps | None:
        """Take the steps that the odometry covers for delays up to so many seconds, or None."""
        if len(track.stamps_ns) < 2:
            return None
        times, moments = (_seconds(at, track.stamps_ns[:1]) for at in (track.stamps_ns, stamps_ns))
        half = float(np.median(np.diff(times)))
        inside = _within(times, moments, farthest + _STEP_S + half)
        if np.count_nonzero(inside) <= _FEWEST:
            return None
        known = _Averages(moments, reference, half).at(moments[inside])
        step = float(np.median(np.diff(moments[inside])))
        lags = 1 + min(int(np.ceil(2.0 * half / max(step, _SHORTEST_S))), _FEWEST)
        told = _Averages(times, track.poses, half)
        return _Steps(told, moments[inside], np.diff(known[:, 0]), lags)

    def design(self, delay: ArrayLike) -> FloatArray:
        """Turn and way of each step (..., m, 2) for delays (...)."""
        return np.diff(self.told.at(self.moments + np.asarray(delay)[..., np.newaxis]), axis=-2)

    def slope(self, delay: float) -> FloatArray:
        """Return the derivative (m,) of the turns by the delay: how far the rate changes."""
        before, after = (self.design(delay + step)[:, 0] for step in (-_STEP_S, _STEP_S))
        return np.asarray((after - before) / (2.0 * _STEP_S))

    def costs(self, delays: FloatArray) -> FloatArray:
        """Return minus twice the log likelihoods of delays (k,)."""
        parts = batches(delays, max(_AT_ONCE // len(self.turns), 1))
        return np.concatenate([self.misfits(part).sum(axis=-1) for part in parts])

    def misfits(self, delays: FloatArray) -> FloatArray:
        """Return what every step adds to these: (k, m)."""
        return _fit(self.design(delays), self.turns)[2]

    def likeliest(self, delays: FloatArray) -> tuple[float, bool]:
        """Return the best of some delays (k,), and whether it is not one of the ends."""
        best = int(np.argmin(self.costs(delays)))
        return float(delays[best]), 0 < best < len(delays) - 1


def _seconds(stamps_ns: StampArray, since: StampArray) -> FloatArray:
    return np.asarray(1e-9 * (stamps_ns - since), dtype=np.float64)


def _within(times: FloatArray, moments: FloatArray, margin: float) -> np.ndarray:
    """Which moments the odometry covers by so many seconds on both sides."""
    return np.asarray((moments >= times[0] + margin) & (moments <= times[-1] - margin))


def _fit(design: FloatArray, target: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """
    Regress a target (n,) on designs (..., n, k) by Student's t.

    Returns coefficients (..., k), weights and minus twice the log likelihoods of each (..., n).
    """
    columns = np.ascontiguousarray(np.swapaxes(design, -1, -2))
    weights = np.ones(design.shape[:-1])
    for _ in range(_WEIGHINGS):
        found = _regressed(columns, weights, target)
        squares = (target - (found[..., np.newaxis, :] @ columns)[..., 0, :]) ** 2
        variance = np.maximum(np.mean(weights * squares, axis=-1), _LEAST_VARIANCE)
        relative = squares / variance[..., np.newaxis]
        weights = (_FREEDOM + 1.0) / (_FREEDOM + relative)
    tails = (_FREEDOM + 1.0) * np.log1p(relative / _FREEDOM)
    return found, weights, np.asarray(np.log(variance)[..., np.newaxis] + tails)


def _regressed(columns: FloatArray, weights: FloatArray, target: FloatArray) -> FloatArray:
    """Solve weighted least squares on columns (..., k, n), by the normal equations."""
    weighed = weights[..., np.newaxis, :] * columns
    inverse = np.linalg.pinv(weighed @ np.swapaxes(columns, -1, -2), hermitian=True)
    return np.asarray((inverse @ (weighed @ target)[..., np.newaxis])[..., 0])


def _refined(steps: _Steps, start: float) -> Delay | None:
    """Gauss and Newton from a delay on; the delay and its standard deviation."""
    turns, delay = steps.turns, start
    for _ in range(_ROUNDS):
        design, slope = steps.design(delay), steps.slope(delay)
        scale = _fit(design, turns)[0][0]
        full = np.column_stack([design, scale * slope])
        if float(np.linalg.norm(full[:, 2])) < _UNSEEN:
            return None
        found, weights, _ = _fit(full, turns)
        delay = float(np.clip(delay + found[2], start - NEAR_S, start + NEAR_S))
        if abs(found[2]) < 1e-5:
            break
    return delay, _deviation(full, turns - full @ found, weights, steps.lags)


def _deviation(full: FloatArray, errors: FloatArray, weights: FloatArray, lags: int) -> float:
    """Return the standard deviation of the last coefficient of a regression by Student's t."""
    squares = errors**2 / max(float(np.mean(weights * errors**2)), _LEAST_VARIANCE)
    # the derivative of w e by e
    derivative = weights - 2.0 * weights**2 * squares / (_FREEDOM + 1.0)
    inverse = np.linalg.pinv((derivative[:, np.newaxis] * full).T @ full)
    # what a step has drawn the values towards itself (MacKinnon and White's HC3)
    whitened = weights[:, np.newaxis] * full
    leverage = np.sum((full @ inverse) * whitened, axis=1)
    free = errors / np.maximum(1.0 - leverage, _LEAST_FREE)
    scores = whitened * free[:, np.newaxis]
    spread = inverse @ _of_sum(scores, lags) @ inverse.T
    return float(np.sqrt(max(spread[-1, -1], 0.0)))


def _of_sum(scores: FloatArray, lags: int) -> FloatArray:
    """Covariance (k, k) of the sum of correlated scores (n, k) (Newey and West, 1987)."""
    found = scores.T @ scores
    for lag in range(1, lags + 1):
        lagged = scores[:-lag].T @ scores[lag:]
        found += (1.0 - lag / (lags + 1.0)) * (lagged + lagged.T)
    return found
