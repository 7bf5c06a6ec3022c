"""
By how many seconds the stamps of an odometry are behind the stamps of the reference poses.

Drivers stamp a message when it arrives, clocks of two computers differ, a filter answers late. The
delay is the shift at which the two yaw rates correlate best: the turns between reference poses and
those of the odometry, so much later. Its standard deviation comes from a jackknife over ten parts
of the run.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbr_localization import se2
from kbr_localization.datasets import OdometryTrack
from kbr_localization.localization.motion import variance_between
from kbr_localization.se2 import FloatArray, StampArray
import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter1d

NEAR_S, FARTHEST_S = 0.5, 10.0
"""Largest delays in seconds: of drivers and filters, and between clocks."""
LATE_S = 0.03
"""Seconds below which a delay is not corrected: 3 cm at 1 m/s."""
FEWEST = 30
"""Steps without which a run tells nothing."""

Delay = tuple[float, float]
"""Seconds and their standard deviation; positive where the odometry is late."""


def measure_delay(
    track: OdometryTrack, stamps_ns: StampArray, reference: FloatArray
) -> Delay | None:
    """
    Estimate by how much the odometry of a run, at its full rate, is late.

    `reference`: poses (n, 3) at `stamps_ns` (n,). None where too few steps are covered by the
    odometry at all delays, the rates hardly correlate, or the best delay is beyond `FARTHEST_S`.
    A delay above `NEAR_S`, as between clocks, has to leave less than half as much unexplained as
    the best one below: a robot that drives to and fro repeats itself every round.
    """
    from scipy.optimize import minimize_scalar  # noqa: PLC0415  (a node measures none)

    if len(track.stamps_ns) < 2 or len(stamps_ns) < FEWEST:
        return None
    since = track.stamps_ns[0]
    times, moments = (1e-9 * (stamps - since) for stamps in (track.stamps_ns, stamps_ns))
    half = float(np.median(np.diff(times)))
    odometry = _averaged(times, track.poses[:, 2], half)
    poses = _averaged(moments, reference[:, 2], half)
    steps = np.stack([moments[:-1], moments[1:]], axis=1)
    turns = np.diff(np.interp(steps, *poses))[:, 0]

    def errors(delay: float, some: NDArray[np.intp]) -> tuple[FloatArray, FloatArray]:
        """Return turns of the poses, and what a regression on the odometry leaves of them."""
        told = np.diff(np.interp(steps[some] + delay, *odometry))[:, 0]
        told, seen = told - told.mean(), turns[some] - turns[some].mean()
        return seen, seen - told * (told @ seen) / max(float(told @ told), 1e-18)

    def unexplained(delay: float, some: NDArray[np.intp]) -> float:
        seen, left = errors(delay, some)
        return float(left @ left) / max(float(seen @ seen), 1e-18)

    def best(low: float, high: float, some: NDArray[np.intp]) -> float:
        found = minimize_scalar(
            unexplained,
            bounds=(low, high),
            args=(some,),
            method='bounded',
            options={'xatol': 1e-6},
        )
        return float(found.x)

    about = 0.0
    for farthest, spacing in ((FARTHEST_S, 0.1), (NEAR_S, 0.02)):
        margin = farthest + abs(about) + half
        inside = (steps[:, 0] >= times[0] + margin) & (steps[:, 1] <= times[-1] - margin)
        some = np.flatnonzero(inside)
        if len(some) < FEWEST:
            continue
        grid = about + np.arange(-farthest, farthest + 0.5 * spacing, spacing)
        costs = np.array([unexplained(delay, some) for delay in grid])
        lowest = int(np.argmin(costs))
        if (
            farthest == FARTHEST_S
            and costs[lowest] < 0.5 * costs[np.abs(grid) < NEAR_S - 0.05].min()
        ):
            about = float(grid[lowest])
    if len(some) < FEWEST or costs[lowest] > 0.5 or not 0 < lowest < len(grid) - 1:
        return None
    delay = best(grid[lowest - 1], grid[lowest + 1], some)
    left = np.abs(errors(delay, some)[1])
    some = some[left <= np.quantile(left, 0.99)]  # without the worst: slip and leaps
    delay = best(delay - 0.1, delay + 0.1, some)
    parts = [np.setdiff1d(some, part) for part in np.array_split(some, 10)]
    found = [best(delay - 0.1, delay + 0.1, part) for part in parts]
    return delay, float(np.sqrt(9.0 * np.var(found)))


def is_late(delay: Delay | None) -> bool:
    """Whether a delay is sure, and long enough to be put right."""
    return delay is not None and abs(delay[0]) > max(LATE_S, 3.0 * delay[1])


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
    values, variances = known[:, :1], np.maximum(known[:, 1:] ** 2, 1e-12)
    between = variance_between(values, variances)
    weights = 1.0 / (variances + between)
    mean = np.sum(weights * values) / weights.sum()
    return np.array([mean, np.sqrt(1.0 / weights.sum() + between[0])])


def _averaged(
    times: FloatArray, headings: FloatArray, half: float
) -> tuple[FloatArray, FloatArray]:
    """
    Return headings at times every tenth of `half`, averaged over `half` either way.

    Half way between two samples a linear interpolation has less noise than at one, and would seem
    to fit better there.
    """
    fine = np.arange(times[0], times[-1], 0.1 * half)
    return fine, uniform_filter1d(np.interp(fine, times, np.unwrap(headings)), 21, mode='nearest')
