"""
Systematic errors, noise and delay of an odometry, measured on runs with known poses.

A run is cut into windows of a metre of travel. In each window the odometry differs from the motion
of the reference by systematic errors (`calibration`) and by noise whose variances grow with travel
and turning. Both are fitted with a Cauchy loss, robust against slip and jumps of the reference.
The fit predicts the odometry from the reference, not the reverse, so that the noise of the
odometry does not bias the scales.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from kbr_localization import se2
from kbr_localization.datasets import OdometryTrack
from kbr_localization.errors import LocalizationError
from kbr_localization.localization import calibration
from kbr_localization.localization.calibration import Calibration, MotionNoise
from kbr_localization.se2 import FloatArray, StampArray
import numpy as np
from numpy.typing import NDArray

Track = tuple[FloatArray, FloatArray]
"""Poses (n, 3) of the odometry and of the reference, at the same stamps."""

MIN_WINDOWS = 10
"""Windows that a run must have to be used."""
CAUCHY = 2.4
"""Standard deviations at which the weight of an error is halved."""
MAX_DRIVER_DELAY_S, MAX_DELAY_S = 0.5, 10.0
"""Largest delays in seconds: of drivers and filters, and between the clocks of two computers."""
MIN_DELAY_S = 0.03
"""Delay in seconds below which none is corrected: 3 cm at 1 m/s."""
MIN_STEPS = 30
"""Steps that a run must have to measure its delay."""
Delay = tuple[float, float]
"""Seconds by which the odometry is late, and their standard deviation."""


def measure_odometry(tracks: Sequence[Track]) -> tuple[Calibration, MotionNoise]:
    """
    Measure the systematic errors of the odometry of runs, and the noise about them.

    The noise is fitted by maximum likelihood over windows of a metre, about the errors of each
    run: wheel errors are correlated, and the variance of a single step is overconfident. Windows
    with an error of more than half their length are jumps of the reference and left out. Runs that
    are too short give `MotionNoise.default()`. Raises LocalizationError for poses that are not
    finite.
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
    errors = combined([run for run in runs if run is not None])
    noise = _noise_about(tracks, [(run or errors).values for run in runs])
    steps = [(r[:-1], se2.steps(o), r[1:]) for o, r in tracks]
    nothing = (np.zeros((0, 3)),) * 3
    shown = step_variances(*map(np.concatenate, zip(nothing, *steps, strict=True)))
    return errors, noise if shown is None else replace(noise, step=shown)


def calibrate_run(odometry: FloatArray, reference: FloatArray) -> Calibration | None:
    """
    Estimate the systematic errors of a run; None if it is too short or the fit is uncertain.

    `odometry`, `reference` (n, 3): poses at the same stamps. Errors that the run does not show
    (the offset, if it has no turns) keep the deviation of the prior.
    """
    from scipy.optimize import least_squares  # noqa: PLC0415  (a node fits nothing)

    marks = window_marks(odometry)
    if len(marks) - 1 < MIN_WINDOWS:
        return None
    sideways = moves_sideways(odometry, marks)
    steps, amounts = se2.steps(odometry[marks]), _window_motion(odometry, marks, sideways)
    motions = se2.steps(reference)
    fitted = np.ones(calibration.SIZE, dtype=bool)
    fitted[calibration.NAMES.index('lateral_scale')] = sideways
    # start at any mounting angle: the mean direction of the windows, in which no jump of the
    # reference counts more than its window
    seen, true = (part[:, 0] + 1j * part[:, 1] for part in (steps, se2.steps(reference[marks])))
    errors = np.zeros(calibration.SIZE)
    errors[2] = np.angle(np.sum(np.conj(seen) * true / np.maximum(np.abs(true), 1e-9)))
    # prior deviations of all errors: metres, radians, fractions
    wide = np.array([1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5])
    first, prior = errors[fitted], wide[fitted]
    deviations = np.full(steps.shape, 0.1)

    def residuals(values: FloatArray) -> FloatArray:
        """Return the residuals of the odometry under these values, and those of the prior."""
        errors[fitted] = values
        track = se2.chain(np.zeros(3), calibration.reported(motions, errors))
        misses = se2.between(se2.steps(track[marks]), steps) / deviations
        return np.concatenate([misses.ravel(), (values - first) / prior])

    values, bounds = first, (first - 1.8 * prior, first + 1.8 * prior)
    for _ in range(4):
        fit = least_squares(residuals, values, bounds=bounds, loss='cauchy', f_scale=CAUCHY)
        values = fit.x
        misses = fit.fun[: steps.size].reshape(steps.shape)
        squares = (misses * deviations) ** 2 / (1.0 + (misses / CAUCHY) ** 2)
        rates = [fit_variance(amounts, squares[:, axis]) for axis in range(3)]
        deviations = np.sqrt(np.maximum(amounts @ np.transpose(rates), 1e-10))
    covariance = np.diag(wide**2 + 1e-12)
    covariance[np.ix_(fitted, fitted)] = _jackknife(residuals, values, prior)
    errors[fitted] = values
    found = Calibration(errors, covariance)
    return found if np.all(found.deviations <= 1.8 * wide) else None


def _jackknife(
    residuals: Callable[[FloatArray], FloatArray], values: FloatArray, prior: FloatArray
) -> FloatArray:
    """
    Return the covariance (k, k) of values that minimise a Cauchy loss of residuals (3 w + k,).

    To first order, it is that of the changes of the fit without each of 20 parts of the run. The
    last k residuals are those of the prior, with deviations `prior` (k,).
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
    return np.asarray(of_run + inverse @ np.diag(prior**-2.0) @ inverse.T + 1e-12 * np.eye(k))


def combined(runs: Sequence[Calibration]) -> Calibration:
    """
    Combine the systematic errors of runs, as a prior for another run of that kind.

    The covariance includes the variance between the runs (DerSimonian and Laird, *Meta-analysis in
    clinical trials*, 1986).
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
    """Return the variance (k,) between runs of values (r, k), by DerSimonian and Laird."""
    if len(values) < 2:
        return np.zeros(values.shape[1])
    weights = 1.0 / variances
    total = weights.sum(axis=0)
    means = (weights * values).sum(axis=0) / total
    excess = (weights * (values - means) ** 2).sum(axis=0) - (len(values) - 1)
    return np.asarray(np.maximum(excess, 0.0) / (total - (weights**2).sum(axis=0) / total))


def moves_sideways(odometry: FloatArray, marks: NDArray[np.intp]) -> bool:
    """Return whether a base with odometry (n, 3) moves sideways other than by turning."""
    if len(marks) - 1 < MIN_WINDOWS:
        return False
    ahead, aside, turn = _sums(calibration.twists(se2.steps(odometry)), marks).T
    aside = aside - turn * (aside @ turn) / max(float(turn @ turn), 1e-12)
    # more than the slip of wheels, less than the motion of an omnidirectional base
    return bool(np.abs(aside).sum() > 0.05 * np.abs(ahead).sum())


def window_marks(odometry: FloatArray) -> NDArray[np.intp]:
    """Return indices (w + 1,) of odometry (n, 3) that delimit windows of a metre of travel."""
    travel = se2.travelled(odometry)
    return np.unique(np.searchsorted(travel, np.arange(0.0, travel.max(initial=0.0), 1.0)))


def _sums(amounts: FloatArray, marks: NDArray[np.intp]) -> FloatArray:
    total = np.concatenate([np.zeros((1, amounts.shape[1])), np.cumsum(amounts, axis=0)])
    return np.asarray(total[marks[1:]] - total[marks[:-1]])


def _window_motion(odometry: FloatArray, marks: NDArray[np.intp], sideways: bool) -> FloatArray:
    """Return metres and radians (w, 2), or metres ahead, radians and metres aside (w, 3)."""
    steps = np.abs(calibration.twists(se2.steps(odometry)))
    ahead, aside, turn = _sums(steps, marks).T
    if sideways:
        return np.stack([ahead, turn, aside], axis=-1)
    return np.stack([np.hypot(ahead, aside), turn], axis=-1)


def _noise_about(tracks: Sequence[Track], errors: Sequence[FloatArray]) -> MotionNoise:
    """Fit the noise of the odometry of runs about the systematic errors (7,) of each."""
    default, found = MotionNoise.default(), []
    for (odometry, reference), values in zip(tracks, errors, strict=True):
        steps = calibration.moved(se2.steps(odometry), values)
        corrected = se2.chain(np.zeros(3), steps)
        marks = window_marks(corrected)
        misses = se2.between(se2.steps(corrected[marks]), se2.steps(reference[marks]))
        found.append((corrected, marks, misses))
    sideways = any(moves_sideways(corrected, marks) for corrected, marks, _ in found)
    amounts = np.concatenate([_window_motion(c, marks, sideways) for c, marks, _ in found])
    misses = np.concatenate([misses for *_, misses in found])
    metres = np.hypot(amounts[:, 0], amounts[:, 2]) if sideways else amounts[:, 0]
    usual = np.hypot(misses[:, 0], misses[:, 1]) <= 0.5 * metres  # no wheels slip that far
    amounts, misses = amounts[usual], misses[usual]
    if len(misses) < MIN_WINDOWS:
        return default
    rates = np.stack([default.per_metre, default.per_radian, default.per_metre], axis=-1)
    # the noise ahead cannot be fitted for a base that moved only sideways
    shown = np.flatnonzero(amounts.mean(axis=0) > [1e-6, -1.0, -1.0][: amounts.shape[1]])
    for axis in range(3):
        fitted = fit_variance(amounts[:, shown], misses[:, axis] ** 2)
        rates[axis, shown] = np.maximum(fitted, 1e-7)
    return MotionNoise(rates[:, 0], rates[:, 1], default.step, rates[:, 2] if sideways else None)


def step_variances(
    poses: FloatArray, increments: FloatArray, following: FloatArray
) -> FloatArray | None:
    """
    Return the variances (4,) of x, y, cos, sin about poses moved by increments; None without any.

    Poses, increments and following poses are (n, 3); rows with NaN are ignored.
    """
    predicted = se2.compose(poses, increments)
    errors = se2.to_plane_and_circle(following) - se2.to_plane_and_circle(predicted)
    errors = errors[np.isfinite(errors).all(axis=1)]
    return np.maximum(np.mean(errors**2, axis=0), 1e-9) if len(errors) else None


def fit_variance(amounts: FloatArray, squared: FloatArray) -> FloatArray:
    """Fit rates >= 0 of variance = amounts (m, k) @ rates to squared errors (m,) by likelihood."""
    from scipy.optimize import nnls  # noqa: PLC0415  (a node fits no variances and starts sooner)

    rates = np.zeros(amounts.shape[1])
    first = int(np.argmax(amounts.any(axis=0)))  # the first that is not zero everywhere
    rates[first] = squared.sum() / amounts[:, first].sum()
    for _ in range(20):
        variance = np.maximum(amounts @ rates, 1e-9)
        rates = nnls(amounts / variance[:, np.newaxis], squared / variance)[0]
    return np.asarray(rates)


def measure_delay(
    track: OdometryTrack, stamps_ns: StampArray, reference: FloatArray
) -> Delay | None:
    """
    Measure how far the stamps of an odometry are behind those of poses (n, 3) at stamps (n,).

    Drivers stamp a message when it arrives, clocks of two computers differ, filters take time. The
    delay is the shift at which the two yaw rates correlate best; its standard deviation is that of
    a jackknife over ten parts. Return None if the odometry covers too few steps at all delays, the
    rates hardly correlate, or the best delay exceeds `MAX_DELAY_S`. A delay above
    `MAX_DRIVER_DELAY_S`, as between clocks, must leave less than half the residual of the best
    one below: a robot that drives to and fro repeats its motion every round.
    """
    if len(track.stamps_ns) < 2 or len(stamps_ns) < MIN_STEPS:
        return None
    times, moments = (1e-9 * (at - track.stamps_ns[0]) for at in (track.stamps_ns, stamps_ns))
    half = float(np.median(np.diff(times)))
    odometry = _averaged(times, track.poses[:, 2], half)
    poses = _averaged(moments, reference[:, 2], half)
    steps = np.stack([moments[:-1], moments[1:]], axis=1)
    turns = np.diff(np.interp(steps, *poses))[:, 0]

    def residuals(delays: FloatArray, some: NDArray[np.intp]) -> FloatArray:
        """Return what delayed odometry (g,) does not explain of some turns: (g, s)."""
        at = steps[some] + delays[:, np.newaxis, np.newaxis]
        of_odometry = np.diff(np.interp(at, *odometry))[..., 0]
        of_odometry -= of_odometry.mean(axis=1, keepdims=True)
        of_poses = turns[some] - turns[some].mean()
        slope = of_odometry @ of_poses / np.maximum(np.sum(of_odometry**2, axis=1), 1e-18)
        rest = of_poses - slope[:, np.newaxis] * of_odometry
        return np.asarray(rest / max(float(of_poses @ of_poses) ** 0.5, 1e-9))

    def best(about: float, some: NDArray[np.intp]) -> float:
        """Return the best delay within 0.1 s, refining the best one of a grid by a parabola."""
        grid = about + np.linspace(-0.1, 0.1, 41)
        costs = np.sum(residuals(grid, some) ** 2, axis=1)
        at = int(np.clip(np.argmin(costs), 1, len(grid) - 2))
        before, lowest, after = costs[at - 1 : at + 2]  # noqa: E203
        bend = max(before - 2.0 * lowest + after, 1e-18)
        return float(grid[at] + 0.005 * np.clip(0.5 * (before - after) / bend, -1.0, 1.0))

    about = 0.0
    for farthest, spacing in ((MAX_DELAY_S, 0.1), (MAX_DRIVER_DELAY_S, 0.02)):
        margin = farthest + abs(about) + half
        inside = (steps[:, 0] >= times[0] + margin) & (steps[:, 1] <= times[-1] - margin)
        some = np.flatnonzero(inside)
        if len(some) < MIN_STEPS:
            continue
        grid = about + np.arange(-farthest, farthest + 0.5 * spacing, spacing)
        costs = np.sum(residuals(grid, some) ** 2, axis=1)
        lowest = int(np.argmin(costs))
        near = costs[np.abs(grid) < MAX_DRIVER_DELAY_S - 0.05].min(initial=np.inf)
        if farthest == MAX_DELAY_S and costs[lowest] < 0.5 * near:
            about = float(grid[lowest])
    if len(some) < MIN_STEPS or costs[lowest] > 0.5 or not 0 < lowest < len(grid) - 1:
        return None
    delay = best(float(grid[lowest]), some)
    errors = np.abs(residuals(np.array([delay]), some)[0])
    some = some[errors <= np.quantile(errors, 0.99)]  # without the worst: slip and jumps
    parts = [best(delay, np.setdiff1d(some, part)) for part in np.array_split(some, 10)]
    return best(delay, some), float(np.sqrt(9.0 * np.var(parts)))


def is_significant_delay(delay: Delay | None) -> bool:
    """Return whether a delay is known well and long enough to be corrected."""
    return delay is not None and abs(delay[0]) > max(MIN_DELAY_S, 3.0 * delay[1])


def correct_delay(track: OdometryTrack, stamps_ns: StampArray, delay: Delay) -> FloatArray:
    """Return the odometry poses (n, 3) at `stamps_ns` (n,), from a track with this delay."""
    return track.at(np.clip(stamps_ns + round(1e9 * delay[0]), *track.stamps_ns[[0, -1]]))


def common_delay(delays: Sequence[Delay | None]) -> FloatArray | None:
    """Combine the delays of runs to one (2,), whose deviation includes that between runs."""
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
    """Return times every tenth of `half`, and headings there, averaged over +- `half`."""
    from scipy.ndimage import uniform_filter1d  # noqa: PLC0415  (a node measures no delay)

    # halfway between two samples, interpolated headings have less noise and seem to fit better
    fine = np.arange(times[0], times[-1], 0.1 * half)
    return fine, uniform_filter1d(np.interp(fine, times, np.unwrap(headings)), 21, mode='nearest')
