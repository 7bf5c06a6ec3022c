"""
By how many seconds the stamps of an odometry are behind the stamps of the reference poses.

Drivers stamp a message when it arrives, clocks of two computers differ, a filter answers late. The
delay is the shift at which both yaw rates correlate best: the turns between reference poses are
regressed on the turns of the odometry, shifted by the delay, with a scale, a drift and Student's t
for the noise. Delays of up to 0.5 s are tried first; where a delay of seconds is likelier by far,
clocks differ. The standard deviation comes from a jackknife over blocks of the run.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbr_localization import se2
from kbr_localization.datasets import OdometryTrack
from kbr_localization.localization.calibration_fit import variance_between
from kbr_localization.se2 import FloatArray, StampArray
import numpy as np
from scipy.ndimage import uniform_filter1d

NEAR_S, FARTHEST_S = 0.5, 10.0
"""Largest delays in seconds: of drivers and filters, and between clocks."""
LATE_S = 0.03
"""Seconds below which a delay is not corrected: 3 cm at 1 m/s."""
_SURELY = 3.0  # standard deviations
_FREEDOM = 4.0  # of Student's t, as in `calibration_fit`
_FEWEST = 30  # steps without which a run tells nothing
_BLOCKS = 10

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
    about = 0.0
    for farthest in (FARTHEST_S, NEAR_S):
        turns = _turns(track, stamps_ns, reference, farthest + abs(about))
        if turns is not None and farthest == FARTHEST_S:
            about = turns.clock_offset()
    if turns is None:
        return None
    grid = about + np.arange(-NEAR_S, NEAR_S + 0.01, 0.02)
    delay, inside = turns.fit(grid)
    if not inside or np.std(turns.told(delay)) < 1e-9:  # the rate never changes
        return None
    parts = []
    for block in np.array_split(np.arange(len(turns.turns)), _BLOCKS):
        rest = turns.without(block)
        rest.reweigh(delay)
        rest.reweigh(rest.refined(delay - 0.1, delay + 0.1))
        parts.append(rest.refined(delay - 0.1, delay + 0.1))
    found = (delay, float(np.sqrt((_BLOCKS - 1) * np.var(parts))))
    gain = float(np.sum(turns.misfits(0.0) - turns.misfits(delay)))
    return found if not is_late(found) or gain > _SURELY**2 else None


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
    variances = np.maximum(known[:, 1:] ** 2, 1e-12)
    between = variance_between(known[:, :1], variances)
    weights = 1.0 / (variances + between)
    mean = float(np.sum(weights * known[:, :1]) / weights.sum())
    return np.array([mean, np.sqrt(1.0 / weights.sum() + float(between[0]))])


class _Turns:
    """
    The turns (m,) of the reference between two `moments` (m, 2), against an odometry.

    `headings` (k,): of the odometry at `times` (k,). `weights` (m,): of Student's t.
    """

    def __init__(
        self, moments: FloatArray, turns: FloatArray, times: FloatArray, headings: FloatArray
    ) -> None:
        self.moments, self.turns, self.times, self.headings = moments, turns, times, headings
        self.weights = np.ones(len(turns))

    def without(self, block: np.ndarray) -> _Turns:
        """Leave out steps."""
        moments, turns = np.delete(self.moments, block, axis=0), np.delete(self.turns, block)
        return _Turns(moments, turns, self.times, self.headings)

    def told(self, delay: float) -> FloatArray:
        """Return the turns (m,) of the odometry, `delay` seconds later."""
        at = np.interp(self.moments + delay, self.times, self.headings)
        return np.asarray(at[:, 1] - at[:, 0])

    def errors(self, delay: float) -> FloatArray:
        """Return the residuals (m,) of the regression on the turns of the odometry."""
        told, weights = self.told(delay), self.weights / self.weights.sum()
        told, turns = told - weights @ told, self.turns - weights @ self.turns
        scale = (weights * told) @ turns / max(float((weights * told) @ told), 1e-18)
        return np.asarray(turns - scale * told)

    def cost(self, delay: float) -> float:
        """Return the log of the weighted mean square error: low where the two correlate."""
        mean = self.weights @ self.errors(delay) ** 2 / self.weights.sum()
        return float(np.log(max(mean, 1e-24)))

    def misfits(self, delay: float) -> FloatArray:
        """Return minus twice the log likelihood that every step adds (m,)."""
        squares = self.errors(delay) ** 2
        variance = max(float(np.mean(self.weights * squares)), 1e-12)
        tails = (_FREEDOM + 1.0) * np.log1p(squares / variance / _FREEDOM)
        return np.asarray(np.log(variance) + tails)

    def fit(self, grid: FloatArray) -> tuple[float, bool]:
        """Find the best delay by reweighting; whether it is not one of the ends of the grid."""
        for _ in range(3):
            best = int(np.argmin([self.cost(delay) for delay in grid]))
            if not 0 < best < len(grid) - 1:
                return float(grid[best]), False
            delay = self.refined(grid[best - 1], grid[best + 1])
            self.reweigh(delay)
        return delay, True

    def refined(self, low: float, high: float) -> float:
        """Find the best delay between two."""
        from scipy.optimize import minimize_scalar  # noqa: PLC0415  (a node measures none)

        found = minimize_scalar(
            self.cost, bounds=(low, high), method='bounded', options={'xatol': 1e-6}
        )
        return float(found.x)

    def reweigh(self, delay: float) -> None:
        """Weigh the steps by Student's t about the fit of a delay."""
        for _ in range(5):
            squares = self.errors(delay) ** 2
            variance = max(float(np.mean(self.weights * squares)), 1e-12)
            self.weights = (_FREEDOM + 1.0) / (_FREEDOM + squares / variance)

    def clock_offset(self) -> float:
        """
        Return a delay in seconds that is likelier by far than any small one, else 0.

        The gain has to exceed what the best of all delays has by chance, and its own deviation
        over blocks (Vuong, 1989): a robot that drives to and fro repeats itself every round.
        """
        grid = np.arange(-FARTHEST_S, FARTHEST_S + 0.05, 0.1)
        self.reweigh(grid[int(np.argmin([self.cost(delay) for delay in grid]))])
        costs = np.array([self.misfits(delay).sum() for delay in grid])
        near = np.where(np.abs(grid) < NEAR_S - 0.05, costs, np.inf)
        likeliest = grid[[np.argmin(near), np.argmin(costs)]]
        gains = self.misfits(likeliest[0]) - self.misfits(likeliest[1])
        blocks = [block.sum() for block in np.array_split(gains, _BLOCKS)]
        deviation = np.sqrt(_BLOCKS * np.var(blocks))
        sure = max(_SURELY**2 + 2.0 * np.log(len(grid)), _SURELY * deviation)
        return float(likeliest[1]) if gains.sum() > sure else 0.0


def _turns(
    track: OdometryTrack, stamps_ns: StampArray, reference: FloatArray, farthest: float
) -> _Turns | None:
    """
    Take the steps that the odometry covers for delays up to `farthest` seconds; None if too few.

    Headings are averaged over an interval of the odometry either way: halfway between two samples
    a linear interpolation has less noise than at one, and would seem to fit better there.
    """
    if len(track.stamps_ns) < 2:
        return None
    since = track.stamps_ns[0]
    times, moments = (1e-9 * (stamps - since) for stamps in (track.stamps_ns, stamps_ns))
    half = float(np.median(np.diff(times)))
    margin = farthest + half
    inside = (moments >= times[0] + margin) & (moments <= times[-1] - margin)
    if np.count_nonzero(inside) <= _FEWEST:
        return None
    told = _averaged(times, track.poses[:, 2], half)
    known = _averaged(moments, reference[:, 2], half)
    pairs = np.stack([moments[inside][:-1], moments[inside][1:]], axis=1)
    return _Turns(pairs, np.diff(np.interp(pairs, *known))[:, 0], *told)


def _averaged(
    times: FloatArray, headings: FloatArray, half: float
) -> tuple[FloatArray, FloatArray]:
    """Return headings at times every tenth of `half`, averaged over `half` either way."""
    fine = np.arange(times[0], times[-1], 0.1 * half)
    return fine, uniform_filter1d(np.interp(fine, times, np.unwrap(headings)), 21, mode='nearest')
