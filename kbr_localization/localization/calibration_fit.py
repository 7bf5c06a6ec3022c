"""
Systematic errors of the odometry from runs whose poses are known, and the noise about them.

A run is cut into windows of a metre of way. Over window i the reference differs from the
calibrated odometry by e_i = T_i - M_i(p), with noise of covariance Q_i that grows with way and
turning. The errors p solve the likelihood equations

    sum_i w_i S_i^T Q_i^-1 (T_i - M_i(p)) = 0,     w_i = (n + 3) / (n + e_i^T Q_i^-1 e_i),

of Student's t with n degrees of freedom, which slip and jumps of the reference cannot bend, Q_i
included (Lange, Little and Taylor, *Robust statistical modeling using the t distribution*, JASA
1989). The derivatives S_i are taken along the reference: derivatives along the odometry share its
noise and would make all scales too small (an instrumental variable, Durbin 1954). The covariance
is the sandwich of estimating equations, with correlated neighbours (Newey and West, Econometrica
1987).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kbr_localization import se2
from kbr_localization.localization import calibration as model
from kbr_localization.localization.calibration import Calibration, SIZE
from kbr_localization.se2 import FloatArray
import numpy as np
from scipy import special

Track = tuple[FloatArray, FloatArray]
"""Poses (n, 3) of the odometry and of the reference, of the same moments."""
WINDOW_METRES = 1.0
_FREEDOM = 4.0  # of Student's t: the usual compromise (Lange et al., section 3)
_FEWEST = 10
"""Windows without which a run tells nothing."""
_SIDEWAYS = 0.05  # of the way: more than wheels slip, less than an omnidirectional base moves
_ANY_RIG = np.array([1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5])  # no errors are larger: m, rad, fractions
_FARTHEST = 1.8 * _ANY_RIG  # where a fit without a minimum ends: a scale of 1 counts nothing
_LEAST = 1e-10  # smallest variance over a window, for odometry that is the truth


@dataclass(frozen=True)
class Windows:
    """
    What a run tells window by window, for errors `values` (7,) of the odometry.

    `ways` (w, 2): metres and radians. `errors` (w, 3): the reference's motion in the frame after
    the calibrated one. `slopes`, `instruments` (w, 3, 7): derivatives of that motion by the
    values, along the odometry and along the reference.
    """

    ways: FloatArray
    errors: FloatArray
    slopes: FloatArray
    instruments: FloatArray


def calibrate_run(odometry: FloatArray, reference: FloatArray) -> Calibration | None:
    """
    Estimate the systematic errors of one run, None of one that is too short or fits no errors.

    Shapes: (n, 3) and (n, 3), poses of the same moments. What the run does not tell (the offset
    where it has no turns) has the deviation of any rig.
    """
    marks = window_marks(odometry)
    if len(marks) - 1 < _FEWEST:
        return None
    precision = np.diag(_ANY_RIG**-2.0)
    values = first = _first_guess(odometry, reference, marks)
    weights = np.ones(len(marks) - 1)
    for _ in range(50):
        windows = windows_of(odometry, reference, marks, values)
        variances, weights = _student(windows, weights)
        scaled = windows.instruments * (weights[:, np.newaxis] / variances)[..., np.newaxis]
        slope = np.einsum('wap,waq->pq', scaled, windows.slopes) + precision
        score = np.einsum('wap,wa->p', scaled, windows.errors) - precision @ (values - first)
        step = np.linalg.solve(slope, score)
        values = values + np.clip(step, -_ANY_RIG, _ANY_RIG)
        values = np.clip(values, first - _FARTHEST, first + _FARTHEST)
        if np.all(np.abs(step) < 1e-7):
            break
    windows = windows_of(odometry, reference, marks, values)
    found = Calibration(values, _uncertainty(windows, *_student(windows, weights), precision))
    return found if np.all(found.deviations <= _FARTHEST) else None


def combined(runs: Sequence[Calibration]) -> Calibration:
    """
    Combine the systematic errors of runs, for another run of that kind.

    The variance between the runs (DerSimonian and Laird, *Meta-analysis in clinical trials*, 1986)
    is part of the covariance that is returned.
    """
    if len(runs) < 2:
        return runs[0] if runs else Calibration.unknown()
    values = np.array([run.values for run in runs])
    between = variance_between(values, np.array([np.diag(run.covariance) for run in runs]))
    inverses = [np.linalg.inv(run.covariance + np.diag(between)) for run in runs]
    covariance = np.linalg.inv(np.sum(inverses, axis=0))
    mean = covariance @ np.sum([w @ v for w, v in zip(inverses, values, strict=True)], axis=0)
    return Calibration(mean, 0.5 * (covariance + covariance.T) + np.diag(between))


def variance_between(values: FloatArray, variances: FloatArray) -> FloatArray:
    """
    Variance between the runs of values (r, k) with variances (r, k) -> (k,).

    By DerSimonian and Laird; zero for one run.
    """
    if len(values) < 2:
        return np.zeros(values.shape[1])
    weights = 1.0 / variances
    total = weights.sum(axis=0)
    means = (weights * values).sum(axis=0) / total
    excess = (weights * (values - means) ** 2).sum(axis=0) - (len(values) - 1)
    return np.asarray(np.maximum(excess, 0.0) / (total - (weights**2).sum(axis=0) / total))


def window_marks(odometry: FloatArray) -> np.ndarray:
    """
    Choose where windows of a metre of way begin and end.

    Shapes: (n, 3) -> (w + 1,) increasing indices; none of an empty run.
    """
    way = se2.travelled(odometry)
    if len(way) == 0:
        return np.zeros(0, dtype=np.intp)
    return np.unique(np.searchsorted(way, np.arange(0.0, way[-1], WINDOW_METRES)))


def windows_of(
    odometry: FloatArray, reference: FloatArray, marks: np.ndarray, values: FloatArray
) -> Windows:
    """
    Compare the odometry, calibrated by values (7,), with the reference over windows.

    Shapes: (n, 3), (n, 3) and (w + 1,) increasing indices of them.
    """
    increments = se2.between(odometry[:-1], odometry[1:])
    motions = se2.between(reference[:-1], reference[1:])
    track = se2.chain(np.zeros(3), model.moved(increments, values))
    start, end = marks[:-1], marks[1:]
    errors = se2.between(
        se2.between(track[start], track[end]), se2.between(reference[start], reference[end])
    )
    amounts = np.stack([np.hypot(*increments[:, :2].T), np.abs(increments[:, 2])], axis=-1)
    ways = sums(amounts, marks)
    known = np.ones(SIZE)
    known[model.NAMES.index('lateral_scale')] = moves_sideways(odometry)
    slopes = known * _slopes(model.effects(increments, values), track, marks)
    told = model.reported(motions, values)
    instruments = known * _slopes(model.effects(told, values), reference, marks)
    return Windows(ways, errors, slopes, instruments)


def moves_sideways(odometry: FloatArray) -> bool:
    """
    Whether the base moves sideways other than by turning: an omnidirectional one.

    Shapes: (n, 3) poses.
    """
    marks = window_marks(odometry)
    if len(marks) - 1 < _FEWEST:
        return False
    found = sums(model.twists(se2.between(odometry[:-1], odometry[1:])), marks)
    aside, turn = found[:, 1], found[:, 2]
    aside = aside - turn * (aside @ turn) / max(float(turn @ turn), 1e-12)
    return bool(np.abs(aside).sum() > _SIDEWAYS * np.abs(found[:, 0]).sum())


def _first_guess(odometry: FloatArray, reference: FloatArray, marks: np.ndarray) -> FloatArray:
    """Take the angle between the motions for the mounting, which may be any; all else is small."""
    ways = [
        se2.between(track[marks[:-1]], track[marks[1:]])[:, :2] @ [1.0, 1.0j]
        for track in (odometry, reference)
    ]
    values = np.zeros(SIZE)
    # no window counts more than its way, however far the reference jumps
    sizes = np.maximum(np.abs(ways[1]), 1e-9)
    values[2] = np.angle(np.sum(np.conj(ways[0]) * ways[1] / sizes))
    return values


def _slopes(effects: FloatArray, track: FloatArray, marks: np.ndarray) -> FloatArray:
    """
    Add up the effects of steps over windows, in the frame after each window.

    Shapes: (n - 1, 3, 7), (n, 3) and (w + 1,) -> (w, 3, 7).
    """
    fixed = sums(se2.adjoint(track[1:]) @ effects, marks)
    return np.asarray(se2.adjoint(se2.inverse(track[marks[1:]])) @ fixed)


def sums(amounts: FloatArray, marks: np.ndarray) -> FloatArray:
    """
    Sum amounts of steps over windows.

    Shapes: (n - 1, ...) and (w + 1,) -> (w, ...).
    """
    total = np.concatenate([np.zeros((1, *amounts.shape[1:])), np.cumsum(amounts, axis=0)])
    return np.asarray(total[marks[1:]] - total[marks[:-1]])


def _student(windows: Windows, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Variances (w, 3) of the errors and weights (w,) of the windows, by maximum likelihood."""
    squared = windows.errors**2
    rates = [fit_variance(windows.ways, weights * squared[:, axis]) for axis in range(3)]
    variances = np.maximum(windows.ways @ np.transpose(rates), _LEAST)
    return variances, (_FREEDOM + 3.0) / (_FREEDOM + np.sum(squared / variances, axis=1))


def _uncertainty(
    windows: Windows, variances: FloatArray, weights: FloatArray, precision: FloatArray
) -> FloatArray:
    """Covariance (7, 7) of the values that solve the likelihood equations."""
    whitened = windows.instruments / variances[..., np.newaxis]
    # the derivative of w e by e
    outer = windows.errors[:, :, np.newaxis] * (windows.errors / variances)[:, np.newaxis]
    falling = (2.0 * weights**2 / (_FREEDOM + 3.0))[:, np.newaxis, np.newaxis] * outer
    derivative = weights[:, np.newaxis, np.newaxis] * np.eye(3) - falling
    slope = np.einsum('wap,wab,wbq->pq', whitened, derivative, windows.slopes) + precision
    inverse = np.linalg.inv(slope)
    # what a window has drawn the values towards itself (MacKinnon and White's HC3)
    weighted = weights[:, np.newaxis, np.newaxis] * whitened
    leverage = np.einsum('wap,pq,wbq->wab', windows.slopes, inverse, weighted)
    errors = np.linalg.solve(np.eye(3) - leverage, windows.errors[..., np.newaxis])[..., 0]
    scores = np.einsum('wap,wa->wp', weighted, errors)
    lagged = scores[:-1].T @ scores[1:]
    spread = scores.T @ scores + 0.5 * (lagged + lagged.T)  # Newey and West, with one lag
    covariance = inverse @ (spread + precision) @ inverse.T
    few = np.sqrt(_few(scores @ inverse.T))
    return np.asarray(
        0.5 * np.outer(few, few) * (covariance + covariance.T) + 1e-12 * np.eye(SIZE)
    )


def _few(influences: FloatArray) -> FloatArray:
    """
    Return factors (7,) on the variances for errors that few windows show, from their influences.

    A variance estimated from few squares is uncertain: Student's t with the degrees of freedom of
    the sum (Satterthwaite, Biometrics Bulletin 1946).
    """
    squares = influences**2 / np.maximum(np.sum(influences**2, axis=0), 1e-300)
    # the fourth moment of a Gaussian is three squares of the second
    freedom = 3.0 / np.maximum(np.sum(squares**2, axis=0), 1e-12)
    quantiles = special.stdtrit(np.maximum(freedom - SIZE, 3.0), 0.975)  # of Student's law
    return np.asarray((quantiles / special.ndtri(0.975)) ** 2)


def fit_variance(amounts: FloatArray, squared: FloatArray) -> FloatArray:
    """
    Fit variance = amounts @ rates to squared errors, by reweighted least squares.

    Shapes: (m, k) and (m,) -> (k,) rates that are not negative. It is the Gaussian maximum
    likelihood estimate.
    """
    from scipy.optimize import nnls  # noqa: PLC0415  (a node fits no variances and starts sooner)

    rates = np.zeros(amounts.shape[1])
    first = int(np.argmax(amounts.any(axis=0)))  # the first that there is any of
    rates[first] = squared.sum() / amounts[:, first].sum()
    for _ in range(20):
        variance = np.maximum(amounts @ rates, 1e-9)
        rates = nnls(amounts / variance[:, np.newaxis], squared / variance)[0]
    return np.asarray(rates)
