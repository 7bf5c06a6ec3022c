"""
What runs whose poses are known tell of an odometry.

A run is cut into windows of a metre of way. Over each the odometry differs from what it would
report of the reference's motion, given its systematic errors (`calibration`), by noise whose
variances grow with way and turning. Errors and variances are fitted with a Cauchy loss, which slip
and jumps of the reference cannot bend. To predict the odometry by the reference, and not the other
way round, keeps the noise of the odometry out of the regressors (it would make all scales too
small).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kbr_localization import se2
from kbr_localization.datasets import OdometryTrack
from kbr_localization.errors import LocalizationError
from kbr_localization.localization.calibration import (
    Calibration,
    MotionNoise,
    moved,
    NAMES,
    reported,
    SIZE,
    twists,
)
from kbr_localization.se2 import FloatArray, StampArray
import numpy as np
from numpy.typing import NDArray

Track = tuple[FloatArray, FloatArray]
"""Poses (n, 3) of the odometry and of the reference, of the same moments."""

FEWEST = 10
"""Windows without which a run tells nothing."""
CAUCHY = 2.4
"""Standard deviations at which an error has half of its weight."""
NEAR_S, FARTHEST_S = 0.5, 10.0
"""Largest delays in seconds: of drivers and filters, and between clocks."""
LATE_S = 0.03
"""Seconds below which a delay is not corrected: 3 cm at 1 m/s."""
FEWEST_STEPS = 30
"""Steps without which a run tells no delay."""
Delay = tuple[float, float]
"""Seconds and their standard deviation; positive where the odometry is late."""


def measure_odometry(tracks: Sequence[Track]) -> tuple[Calibration, MotionNoise]:
    """
    Measure the systematic errors of the odometry of runs, and then the noise about them.

    The noise is fitted by maximum likelihood over windows of a metre, about the errors of each
    run: wheel errors are correlated, and the variance of a single step is overconfident. Windows
    that err by more than half their length are jumps of the reference. Runs that are too short
    give `MotionNoise.default()`. Raises LocalizationError for poses that are not finite.
    """
    for both in tracks:
        missing = int(np.sum(~np.isfinite(np.hstack(both)).all(axis=1)))
        if missing:
            raise LocalizationError(
                f'odometry and reference: expected finite poses, got {missing} of {len(both[0])} '
                'frames with others: leave these frames out'
            )
    if not tracks:
        return Calibration.unknown(), MotionNoise.default()
    runs = [calibrate_run(*track) for track in tracks]
    calibration = combined([run for run in runs if run is not None])
    noise = _noise_about(tracks, [(run or calibration).values for run in runs])
    steps = [(r[:-1], se2.steps(o), r[1:]) for o, r in tracks]
    nothing = (np.zeros((0, 3)),) * 3
    shown = step_variances(*map(np.concatenate, zip(nothing, *steps, strict=True)))
    return calibration, noise if shown is None else replace(noise, step=shown)


def calibrate_run(odometry: FloatArray, reference: FloatArray) -> Calibration | None:
    """
    Estimate the systematic errors of one run, None of one that is too short or fits no errors.

    Shapes: (n, 3) and (n, 3), poses of the same moments. What the run does not tell (the offset
    where it has no turns) has the deviation of any rig.
    """
    from scipy.optimize import least_squares  # noqa: PLC0415  (a node fits nothing)

    marks = window_marks(odometry)
    if len(marks) - 1 < FEWEST:
        return None
    sideways = moves_sideways(odometry, marks)
    told, ways = se2.steps(odometry[marks]), _ways(odometry, marks, sideways)
    motions = se2.steps(reference)
    fitted = np.ones(SIZE, dtype=bool)
    fitted[NAMES.index('lateral_scale')] = sideways
    # the mounting may be any; no window counts more than its way, however far the reference jumps
    seen, right = (track[:, 0] + 1j * track[:, 1] for track in (told, se2.steps(reference[marks])))
    whole = np.zeros(SIZE)
    whole[2] = np.angle(np.sum(np.conj(seen) * right / np.maximum(np.abs(right), 1e-9)))
    # no errors of a rig are larger: metres, radians, fractions
    largest = np.array([1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5])
    first, rig = whole[fitted], largest[fitted]
    deviations = np.full(told.shape, 0.1)

    def residuals(values: FloatArray) -> FloatArray:
        """Return what the odometry reports beyond errors of these values, and a weak prior."""
        whole[fitted] = values
        track = se2.chain(np.zeros(3), reported(motions, whole))
        errors = se2.between(se2.steps(track[marks]), told) / deviations
        return np.concatenate([errors.ravel(), (values - first) / rig])

    values, farthest = first, (first - 1.8 * rig, first + 1.8 * rig)
    for _ in range(4):
        fit = least_squares(residuals, values, bounds=farthest, loss='cauchy', f_scale=CAUCHY)
        values = fit.x
        errors = fit.fun[: told.size].reshape(told.shape)
        squares = (errors * deviations) ** 2 / (1.0 + (errors / CAUCHY) ** 2)
        rates = [fit_variance(ways, squares[:, axis]) for axis in range(3)]
        deviations = np.sqrt(np.maximum(ways @ np.transpose(rates), 1e-10))
    covariance = np.diag(largest**2 + 1e-12)
    covariance[np.ix_(fitted, fitted)] = _jackknife(residuals, values, rig)
    whole[fitted] = values
    found = Calibration(whole, covariance)
    return found if np.all(found.deviations <= 1.8 * largest) else None


def _jackknife(
    residuals: Callable[[FloatArray], FloatArray], values: FloatArray, rig: FloatArray
) -> FloatArray:
    """
    Covariance (k, k) of values that minimise a Cauchy loss of residuals (3 w + k,).

    To first order, from how far the fit moves without each of 20 parts of the run. The last k
    residuals are the prior, with deviations (k,).
    """
    from scipy.optimize import approx_fprime  # noqa: PLC0415

    errors, slopes = residuals(values), approx_fprime(values, residuals, 1e-6)
    falling = 1.0 + (errors / CAUCHY) ** 2
    curved = slopes * ((2.0 - falling) / falling**2)[:, np.newaxis]
    weighted = slopes * (errors / falling)[:, np.newaxis]
    k, windows = len(values), (len(errors) - len(values)) // 3
    shifts = []
    for part in np.array_split(np.arange(3 * windows).reshape(windows, 3), min(windows, 20)):
        rows = part.ravel()
        rest = slopes.T @ curved - slopes[rows].T @ curved[rows]
        shifts.append(np.linalg.solve(rest, weighted[rows].sum(axis=0)))
    inverse = np.linalg.inv(slopes.T @ curved)
    of_run = np.transpose(shifts) @ shifts * windows / (windows - k)
    return np.asarray(of_run + inverse @ np.diag(rig**-2.0) @ inverse.T + 1e-12 * np.eye(k))


def combined(runs: Sequence[Calibration]) -> Calibration:
    """
    Combine the systematic errors of runs, for another run of that kind.

    The variance between the runs (DerSimonian and Laird, *Meta-analysis in clinical trials*, 1986)
    is part of the covariance that is returned.
    """
    if len(runs) < 2:
        return runs[0] if runs else Calibration.unknown()
    values = np.array([run.values for run in runs])
    between = variance_between(values, np.array([run.deviations**2 for run in runs]))
    inverses = np.linalg.inv([run.covariance + np.diag(between) for run in runs])
    covariance = np.linalg.inv(inverses.sum(axis=0))
    mean = covariance @ np.einsum('rij,rj->i', inverses, values)
    return Calibration(mean, 0.5 * (covariance + covariance.T) + np.diag(between))


def variance_between(values: FloatArray, variances: FloatArray) -> FloatArray:
    """Variance (k,) between runs of values with variances (r, k), by DerSimonian and Laird."""
    if len(values) < 2:
        return np.zeros(values.shape[1])
    weights = 1.0 / variances
    total = weights.sum(axis=0)
    means = (weights * values).sum(axis=0) / total
    excess = (weights * (values - means) ** 2).sum(axis=0) - (len(values) - 1)
    return np.asarray(np.maximum(excess, 0.0) / (total - (weights**2).sum(axis=0) / total))


def moves_sideways(odometry: FloatArray, marks: NDArray[np.intp]) -> bool:
    """Whether a base with odometry (n, 3) moves sideways other than by turning."""
    if len(marks) - 1 < FEWEST:
        return False
    ahead, aside, turn = _sums(twists(se2.steps(odometry)), marks).T
    aside = aside - turn * (aside @ turn) / max(float(turn @ turn), 1e-12)
    # more than wheels slip, less than an omnidirectional base moves
    return bool(np.abs(aside).sum() > 0.05 * np.abs(ahead).sum())


def window_marks(odometry: FloatArray) -> NDArray[np.intp]:
    """Choose indices (w + 1,) of odometry (n, 3) where windows of a metre of way begin and end."""
    way = se2.travelled(odometry)
    return np.unique(np.searchsorted(way, np.arange(0.0, way.max(initial=0.0), 1.0)))


def _sums(amounts: FloatArray, marks: NDArray[np.intp]) -> FloatArray:
    total = np.concatenate([np.zeros((1, amounts.shape[1])), np.cumsum(amounts, axis=0)])
    return np.asarray(total[marks[1:]] - total[marks[:-1]])


def _ways(odometry: FloatArray, marks: NDArray[np.intp], sideways: bool) -> FloatArray:
    """Metres and radians (w, 2) of windows, or metres ahead, radians and metres aside (w, 3)."""
    steps = np.abs(twists(se2.steps(odometry)))
    ahead, aside, turn = _sums(steps, marks).T
    if sideways:
        return np.stack([ahead, turn, aside], axis=-1)
    return np.stack([np.hypot(ahead, aside), turn], axis=-1)


def _noise_about(tracks: Sequence[Track], errors: Sequence[FloatArray]) -> MotionNoise:
    """Noise of the odometry of runs about systematic errors (7,) of each."""
    default, found = MotionNoise.default(), []
    for (odometry, reference), values in zip(tracks, errors, strict=True):
        steps = moved(se2.steps(odometry), values)
        corrected = se2.chain(np.zeros(3), steps)
        marks = window_marks(corrected)
        misses = se2.between(se2.steps(corrected[marks]), se2.steps(reference[marks]))
        found.append((corrected, marks, misses))
    sideways = any(moves_sideways(corrected, marks) for corrected, marks, _ in found)
    ways = np.concatenate([_ways(c, marks, sideways) for c, marks, _ in found])
    misses = np.concatenate([misses for *_, misses in found])
    metres = np.hypot(ways[:, 0], ways[:, 2]) if sideways else ways[:, 0]
    usual = np.hypot(misses[:, 0], misses[:, 1]) <= 0.5 * metres  # no wheels slip so far
    ways, misses = ways[usual], misses[usual]
    if len(misses) < FEWEST:
        return default
    rates = np.stack([default.per_metre, default.per_radian, default.per_metre], axis=-1)
    # a base that moved only sideways shows nothing of the noise ahead
    shown = np.flatnonzero(ways.mean(axis=0) > [1e-6, -1.0, -1.0][: ways.shape[1]])
    for axis in range(3):
        fitted = fit_variance(ways[:, shown], misses[:, axis] ** 2)
        rates[axis, shown] = np.maximum(fitted, 1e-7)
    return MotionNoise(rates[:, 0], rates[:, 1], default.step, rates[:, 2] if sideways else None)


def step_variances(
    poses: FloatArray, increments: FloatArray, following: FloatArray
) -> FloatArray | None:
    """
    Variances (4,) of x, y, cos, sin about a pose moved by an increment; None without any.

    Poses, increments and the poses that follow are (n, 3); rows with NaN do not count.
    """
    predicted = se2.compose(poses, increments)
    errors = se2.to_plane_and_circle(following) - se2.to_plane_and_circle(predicted)
    errors = errors[np.isfinite(errors).all(axis=1)]
    return np.maximum(np.mean(errors**2, axis=0), 1e-9) if len(errors) else None


def fit_variance(amounts: FloatArray, squared: FloatArray) -> FloatArray:
    """Fit variance = amounts (m, k) @ rates >= 0 to squared errors (m,), most likely ones."""
    from scipy.optimize import nnls  # noqa: PLC0415  (a node fits no variances and starts sooner)

    rates = np.zeros(amounts.shape[1])
    first = int(np.argmax(amounts.any(axis=0)))  # the first that there is any of
    rates[first] = squared.sum() / amounts[:, first].sum()
    for _ in range(20):
        variance = np.maximum(amounts @ rates, 1e-9)
        rates = nnls(amounts / variance[:, np.newaxis], squared / variance)[0]
    return np.asarray(rates)


def measure_delay(
    track: OdometryTrack, stamps_ns: StampArray, reference: FloatArray
) -> Delay | None:
    """
    Estimate by how much the stamps of an odometry are behind those of poses (n, 3) at stamps (n,).

    Drivers stamp a message when it arrives, clocks of two computers differ, a filter answers late.
    The delay is the shift at which the two yaw rates correlate best; its standard deviation is
    that of a jackknife over ten parts. None where the odometry, at its full rate, covers too few
    steps at all delays, the rates hardly correlate, or the best delay is beyond `FARTHEST_S`. One
    above `NEAR_S`, as between clocks, has to leave less than half as much unexplained as the best
    one below: a robot that drives to and fro repeats itself every round.
    """
    if len(track.stamps_ns) < 2 or len(stamps_ns) < FEWEST_STEPS:
        return None
    times, moments = (1e-9 * (at - track.stamps_ns[0]) for at in (track.stamps_ns, stamps_ns))
    half = float(np.median(np.diff(times)))
    odometry = _averaged(times, track.poses[:, 2], half)
    poses = _averaged(moments, reference[:, 2], half)
    steps = np.stack([moments[:-1], moments[1:]], axis=1)
    turns = np.diff(np.interp(steps, *poses))[:, 0]

    def left(delays: FloatArray, some: NDArray[np.intp]) -> FloatArray:
        """Return what the odometry, so much (g,) later, leaves of turns (s,) -> (g, s)."""
        at = steps[some] + delays[:, np.newaxis, np.newaxis]
        told, seen = np.diff(np.interp(at, *odometry))[..., 0], turns[some] - turns[some].mean()
        told -= told.mean(axis=1, keepdims=True)
        slope = told @ seen / np.maximum(np.sum(told**2, axis=1), 1e-18)
        rest = seen - slope[:, np.newaxis] * told
        return np.asarray(rest / max(float(seen @ seen) ** 0.5, 1e-9))

    def best(about: float, some: NDArray[np.intp]) -> float:
        """Return the best delay within 0.1 s, by a parabola about the best one of a grid."""
        grid = about + np.linspace(-0.1, 0.1, 41)
        costs = np.sum(left(grid, some) ** 2, axis=1)
        at = int(np.clip(np.argmin(costs), 1, len(grid) - 2))
        before, lowest, after = costs[at - 1 : at + 2]  # noqa: E203
        bend = max(before - 2.0 * lowest + after, 1e-18)
        return float(grid[at] + 0.005 * np.clip(0.5 * (before - after) / bend, -1.0, 1.0))

    about = 0.0
    for farthest, spacing in ((FARTHEST_S, 0.1), (NEAR_S, 0.02)):
        margin = farthest + abs(about) + half
        inside = (steps[:, 0] >= times[0] + margin) & (steps[:, 1] <= times[-1] - margin)
        some = np.flatnonzero(inside)
        if len(some) < FEWEST_STEPS:
            continue
        grid = about + np.arange(-farthest, farthest + 0.5 * spacing, spacing)
        costs = np.sum(left(grid, some) ** 2, axis=1)
        lowest = int(np.argmin(costs))
        near = costs[np.abs(grid) < NEAR_S - 0.05].min(initial=np.inf)
        if farthest == FARTHEST_S and costs[lowest] < 0.5 * near:
            about = float(grid[lowest])
    if len(some) < FEWEST_STEPS or costs[lowest] > 0.5 or not 0 < lowest < len(grid) - 1:
        return None
    delay = best(float(grid[lowest]), some)
    errors = np.abs(left(np.array([delay]), some)[0])
    some = some[errors <= np.quantile(errors, 0.99)]  # without the worst: slip and leaps
    parts = [best(delay, np.setdiff1d(some, part)) for part in np.array_split(some, 10)]
    return best(delay, some), float(np.sqrt(9.0 * np.var(parts)))


def is_late(delay: Delay | None) -> bool:
    """Whether a delay is sure, and long enough to be put right."""
    return delay is not None and abs(delay[0]) > max(LATE_S, 3.0 * delay[1])


def put_right(track: OdometryTrack, stamps_ns: StampArray, delay: Delay) -> FloatArray:
    """Odometry (n, 3) of the moments `stamps_ns` (n,), from a track that is late."""
    return track.at(np.clip(stamps_ns + round(1e9 * delay[0]), *track.stamps_ns[[0, -1]]))


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
    """Return headings at times every tenth of `half`, averaged over `half` either way."""
    from scipy.ndimage import uniform_filter1d  # noqa: PLC0415  (a node measures no delay)

    # interpolated half way between two samples, headings have less noise and would seem to fit
    fine = np.arange(times[0], times[-1], 0.1 * half)
    return fine, uniform_filter1d(np.interp(fine, times, np.unwrap(headings)), 21, mode='nearest')
