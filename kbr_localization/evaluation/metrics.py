"""
Errors of a trajectory against the reference poses of its run, without any alignment.

Each frame with a reference pose counts. The error of a frame without a finite estimate is
infinite: the frame is lost and outside all thresholds, and medians include it. Only root mean
squares leave such frames out, as `evo_ape` does; `frames_without_estimate` counts them.
"""

from dataclasses import dataclass
import math

from kbr_localization import se2
from kbr_localization.datasets import Dataset
from kbr_localization.datasets.tracks import explain_missing_reference
from kbr_localization.errors import EvaluationError
from kbr_localization.localization.localizer import UNKNOWN_VARIANCE
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.se2 import FloatArray, StampArray
from kbr_localization.trajectory import Trajectory
import numpy as np
from numpy.typing import NDArray
from scipy import special

TOLERANCE_S = 0.01
"""Largest difference of the stamps of a frame and its estimate, the default of evo_ape."""
LOST_M = 1.0
"""Position error in metres above which a robot counts as lost."""
HOLD_M = 5.0
"""Distance (at most half of the run) over which the error must stay below `LOST_M`."""
THRESHOLDS = ((0.25, 2.0), (0.5, 5.0), (5.0, 10.0))
"""Metres and degrees of the `within_…` fractions, customary in visual localization."""
SUMMARY = (
    'localized_after_s', 'localized_after_m', 'below_1m_after_s', 'below_1m_after_m',
    'rmse_once_below_1m_m', 'lost_fraction_once_below_1m', 'wrong_called_localized',
    'position_rmse_m',
)  # fmt: skip
"""Metrics shown in tables."""

Metrics = dict[str, float | int | None]


@dataclass(frozen=True)
class RunErrors:
    """
    Errors of the frames of a run; all arrays are (n,), one entry for each frame.

    `travel_m`: distance along the reference since the first frame. `position_m`, `heading_deg`:
    infinite without an estimate. `estimate`: index into the trajectory, -1 without an estimate.
    `position_nees`, `heading_nees`: squared errors normalized by the stated covariance (2 and 1
    degrees of freedom), NaN without a covariance or where it states that the pose is unknown.
    `stated_m`: stated standard deviation of the position, the square root of the trace of its
    covariance, NaN likewise. `called_localized`: empty if the trajectory has no statuses.
    """

    stamps_ns: StampArray
    travel_m: FloatArray
    position_m: FloatArray
    heading_deg: FloatArray
    estimate: NDArray[np.int64]
    position_nees: FloatArray
    heading_nees: FloatArray
    stated_m: FloatArray
    called_localized: NDArray[np.bool_]

    @property
    def lost(self) -> NDArray[np.bool_]:
        """Mark frames with an error above `LOST_M` or without an estimate."""
        return self.position_m > LOST_M


def run_errors(
    reference: Trajectory, trajectory: Trajectory, tolerance_s: float = TOLERANCE_S
) -> RunErrors:
    """Compare a trajectory with reference poses by stamp; raises EvaluationError if none match."""
    estimate = associate(reference.stamps_ns, trajectory.stamps_ns, tolerance_s)
    if (estimate < 0).all():
        (first, last), (begin, end) = (
            (of.stamps_ns[[0, -1]] if len(of) else [0, 0]) for of in (reference, trajectory)
        )
        raise EvaluationError(
            f'no estimate within {tolerance_s:g} s of any frame: the run spans '
            f'[{first * 1e-9:.3f}, {last * 1e-9:.3f}] s, the trajectory [{begin * 1e-9:.3f}, '
            f'{end * 1e-9:.3f}] s; does the trajectory belong to this run? If so, give a larger '
            'tolerance'
        )
    estimate[~np.isfinite(trajectory.poses[estimate]).all(axis=1)] = -1
    answered = estimate >= 0
    difference = np.full((len(reference), 3), np.inf)
    poses = trajectory.poses[estimate[answered]]
    difference[answered] = se2.difference(poses, reference.poses[answered])
    position_nees, heading_nees, deviation = np.full((3, len(reference)), np.nan)
    if len(trajectory.covariances):
        covariance = trajectory.covariances[estimate]
        variance = np.diagonal(covariance, axis1=1, axis2=2)
        known = answered & np.all((variance > 0) & (variance < UNKNOWN_VARIANCE), axis=1)
        deviation[known] = np.sqrt(variance[known, :2].sum(axis=1))
        heading_nees[known] = difference[known, 2] ** 2 / variance[known, 2]
        position_nees[known] = np.inf  # if the covariance is not positive definite
        known[known] = np.linalg.det(covariance[known, :2, :2]) > 0.0
        offset = difference[known, :2, np.newaxis]
        squares = offset * np.linalg.solve(covariance[known, :2, :2], offset)
        position_nees[known] = squares.sum(axis=(1, 2))
    localized = np.array([status == 'localized' for status in trajectory.statuses], dtype=bool)
    return RunErrors(
        stamps_ns=reference.stamps_ns,
        travel_m=se2.travelled(reference.poses),
        position_m=np.hypot(difference[:, 0], difference[:, 1]),
        heading_deg=np.degrees(np.abs(difference[:, 2])),
        estimate=estimate,
        position_nees=position_nees,
        heading_nees=heading_nees,
        stated_m=deviation,
        called_localized=answered & localized[estimate] if localized.size else localized,
    )


def run_metrics(errors: RunErrors) -> Metrics:
    """
    Return the metrics that `kbr evaluate` prints.

    A metric that does not exist (infinite median, no covariance, no status) is None.
    `…_once_below_1m`: over the frames from `below_1m_from` on. `wrong_called_localized`: fraction
    of the estimates with an error above `LOST_M` that were called localized. `coverage_…`:
    fraction of the true poses inside the k sigma region of the estimate, over `coverage_frames`.
    `sharpness`: mean stated deviation over mean error, because a wide covariance always covers;
    1.13 for errors from the stated, isotropic Gaussian, 1.25 for a Gaussian along one line.
    """
    metrics: Metrics = {
        'frames': int(errors.position_m.size),
        'frames_without_estimate': int(np.count_nonzero(errors.estimate < 0)),
        'position_rmse_m': _rmse(errors.position_m),
        'position_median_m': _finite(np.median(errors.position_m)),
        'heading_rmse_deg': _rmse(errors.heading_deg),
        'heading_median_deg': _finite(np.median(errors.heading_deg)),
        'lost_fraction': float(np.mean(errors.lost)),
    }
    for metres, degrees in THRESHOLDS:
        inside = (errors.position_m <= metres) & (errors.heading_deg <= degrees)
        metrics[f'within_{metres:g}m_{degrees:g}deg'] = float(np.mean(inside))
    seconds, below = (errors.stamps_ns - errors.stamps_ns[0]) * 1e-9, below_1m_from(errors)
    called = errors.called_localized
    localized = int(called.argmax()) if called.any() else None
    for name, frame in (('localized', localized), ('below_1m', below)):
        metrics[f'{name}_after_m'] = None if frame is None else float(errors.travel_m[frame])
        metrics[f'{name}_after_s'] = None if frame is None else float(seconds[frame])
    rest = errors.position_m[below:] if below is not None else np.zeros(0)
    wrong = (errors.estimate >= 0) & errors.lost
    metrics |= {
        'rmse_once_below_1m_m': _rmse(rest),
        'lost_fraction_once_below_1m': float(np.mean(rest > LOST_M)) if rest.size else None,
        'wrong_called_localized': (
            float(np.mean(called[wrong])) if called.size and wrong.any() else None
        ),
    }
    known = ~np.isnan(errors.stated_m)
    error = float(errors.position_m[known].mean()) if known.any() else 0.0
    metrics['sharpness'] = float(errors.stated_m[known].mean()) / error if error else None
    metrics['coverage_frames'] = int(known.sum())
    for name, nees, freedom in (
        ('coverage', errors.position_nees[known], 2),
        ('heading_coverage', errors.heading_nees[known], 1),
    ):
        for sigma in (1, 2, 3):
            inside = nees <= sigma_region(sigma, freedom)
            metrics[f'{name}_{sigma}sigma'] = float(inside.mean()) if known.any() else None
    return metrics


def below_1m_from(errors: RunErrors) -> int | None:
    """Return the first frame from which the error stays below `LOST_M` for `HOLD_M`, or None."""
    total = errors.travel_m[-1]
    end = errors.travel_m + min(HOLD_M, total / 2)
    until = np.searchsorted(errors.travel_m, end, side='right')
    losses = np.concatenate([[0], np.cumsum(errors.lost)])
    held = (losses[until] == losses[: errors.lost.size]) & (end <= total + 1e-6)
    return int(np.argmax(held)) if np.any(held) else None


def sigma_region(sigmas: float, dimensions: int) -> float:
    """Return the squared Mahalanobis distance at the border of a k-sigma region."""
    # quantile of the chi-square distribution; scipy.stats takes half a second to import
    return float(2.0 * special.gammaincinv(0.5 * dimensions, special.chdtr(1, sigmas**2)))


def _rmse(values: FloatArray) -> float | None:
    answered = values[np.isfinite(values)]
    return float(np.sqrt(np.mean(answered**2))) if answered.size else None


def _finite(value: np.floating) -> float | None:
    return float(value) if math.isfinite(value) else None


def associate(
    frame_stamps_ns: StampArray, estimate_stamps_ns: StampArray, tolerance_s: float
) -> NDArray[np.int64]:
    """Return the estimate (n,) nearest in time to each frame, -1 for none; each is used once."""
    found = np.full(frame_stamps_ns.size, -1, dtype=np.int64)
    if not estimate_stamps_ns.size:
        return found
    last = estimate_stamps_ns.size - 1
    after = np.clip(np.searchsorted(estimate_stamps_ns, frame_stamps_ns), 0, last)
    both = np.stack([np.maximum(after - 1, 0), after])
    distances = np.abs(estimate_stamps_ns[both] - frame_stamps_ns)
    choice = np.argmin(distances, axis=0), np.arange(frame_stamps_ns.size)
    nearest, distance = both[choice], distances[choice]
    closest_first = np.argsort(distance, kind='stable')
    winners = closest_first[np.unique(nearest[closest_first], return_index=True)[1]]
    winners = winners[distance[winners] <= np.rint(tolerance_s * 1e9)]
    found[winners] = nearest[winners]
    return found


def reference_trajectory(dataset: Dataset) -> Trajectory:
    """Return the stamps and poses of the frames with a reference pose; reads no image."""
    known = [(frame.stamp_ns, frame.reference) for frame in dataset if frame.reference is not None]
    stamps = np.array([stamp for stamp, _ in known], dtype=np.int64)
    return Trajectory(stamps, np.array([pose for _, pose in known]).reshape(-1, 3))


def required_reference(dataset: Dataset) -> Trajectory:
    """Return `reference_trajectory`; raises EvaluationError if it is empty."""
    reference = reference_trajectory(dataset)
    if not len(reference):
        raise EvaluationError(
            explain_missing_reference(dataset)
            or f'{dataset.name} has no reference poses: expected a run with ground truth'
        )
    return reference


def frame_note(kernel_map: KernelMap, dataset: Dataset) -> str:
    """Return a note if the reference poses of a run are not in the frame of the map, else ''."""
    known = any(frame.reference is not None for frame in dataset)
    if kernel_map.aligned or not known:
        return ''
    return (
        f'the frame of the map is that of its first image, not that of the reference poses of '
        f'{dataset.name}: errors against them, and a start from them, mean nothing before '
        '`kbr map align`'
    )
