"""
How far a trajectory is from the reference of its run; no alignment of any kind.

Conventions. Every frame of the run that has a reference counts. A frame without an estimate is
an error without bound: it is lost, it is inside of no threshold, and it enters the medians as
infinity; only the root mean squares, which infinity would swallow, are taken over the frames
that have an estimate (as `evo_ape` does), and `frames_without_estimate` says how many are not.
An estimate that is not finite is none.
"""

from dataclasses import dataclass
import math

from kbr_localization import se2
from kbr_localization.datasets import Dataset
from kbr_localization.datasets.tracks import explain_missing_reference
from kbr_localization.errors import EvaluationError
from kbr_localization.localization.localizer import LOST_M, sigma_region, UNKNOWN_VARIANCE
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.se2 import FloatArray, StampArray
from kbr_localization.trajectory import Trajectory
import numpy as np
from numpy.typing import NDArray

TOLERANCE_S = 0.01
"""Seconds by which the stamps of a frame and its estimate may differ, as evo_ape has it."""
HOLD_M = 5.0
"""Travel, or half of a run's, over which an error has to stay below `LOST_M`."""
THRESHOLDS = ((0.25, 2.0), (0.5, 5.0), (5.0, 10.0))
"""Metres and degrees of the `within_…` fractions, as visual localization reports them."""
SAME_PLACE_M = 1.0
SAME_PLACE_DEG = 30.0
SUMMARY = (
    'localized_after_s', 'localized_after_m', 'below_1m_after_s', 'below_1m_after_m',
    'rmse_once_below_1m_m', 'lost_fraction_once_below_1m', 'wrong_called_localized',
    'position_rmse_m',
)  # fmt: skip
"""Metrics that tables show."""

Metrics = dict[str, float | int | None]


@dataclass(frozen=True)
class RunErrors:
    """
    The errors of a run, frame by frame; all arrays are (n,), one entry per frame.

    `stamps_ns`: of the frames. `travel_m`: distance along the reference since the first frame.
    `position_m`, `heading_deg`: infinite where a frame has no estimate. `estimate`: index into
    the trajectory, -1 where there is none. `position_surprise`, `heading_surprise`: squared
    Mahalanobis distances under the stated covariance (2 and 1 degrees of freedom), NaN where
    the estimate states none or owns that it is not localized. `stated_m`: standard deviation of
    the position, the root of the trace of its covariance, NaN likewise. `said`: which frames were
    called localized, empty where the trajectory has no statuses.
    """

    stamps_ns: StampArray
    travel_m: FloatArray
    position_m: FloatArray
    heading_deg: FloatArray
    estimate: NDArray[np.int64]
    position_surprise: FloatArray
    heading_surprise: FloatArray
    stated_m: FloatArray
    said: NDArray[np.bool_]

    @property
    def lost(self) -> NDArray[np.bool_]:
        """Which frames are more than `LOST_M` off, or have no estimate."""
        return self.position_m > LOST_M


def run_errors(
    reference: Trajectory, trajectory: Trajectory, tolerance_s: float = TOLERANCE_S
) -> RunErrors:
    """Compare a trajectory with reference poses, associated by stamp; raises EvaluationError."""
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
    surprise, heading_surprise, deviation = np.full((3, len(reference)), np.nan)
    if len(trajectory.covariances):
        covariance = trajectory.covariances[estimate]
        variance = np.diagonal(covariance, axis1=1, axis2=2)
        known = answered & np.all((variance > 0) & (variance < UNKNOWN_VARIANCE), axis=1)
        deviation[known] = np.sqrt(variance[known, :2].sum(axis=1))
        heading_surprise[known] = difference[known, 2] ** 2 / variance[known, 2]
        surprise[known] = np.inf  # where the covariance is not definite
        known[known] = np.linalg.det(covariance[known, :2, :2]) > 0.0
        offset = difference[known, :2, np.newaxis]
        squares = offset * np.linalg.solve(covariance[known, :2, :2], offset)
        surprise[known] = squares.sum(axis=(1, 2))
    said = np.array([status == 'localized' for status in trajectory.statuses], dtype=bool)
    return RunErrors(
        stamps_ns=reference.stamps_ns,
        travel_m=se2.travelled(reference.poses),
        position_m=np.hypot(difference[:, 0], difference[:, 1]),
        heading_deg=np.degrees(np.abs(difference[:, 2])),
        estimate=estimate,
        position_surprise=surprise,
        heading_surprise=heading_surprise,
        stated_m=deviation,
        said=answered & said[estimate] if said.size else said,
    )


def run_metrics(errors: RunErrors) -> Metrics:
    """
    Reduce the errors of a run to the numbers that `kbr evaluate` prints.

    A number that does not exist (an infinite median, no covariance, no status) is None.
    `…_once_below_1m`: over all frames from `below_1m_from` on. `wrong_called_localized`: fraction
    of the answers more than `LOST_M` off that were called localized. `coverage_…`: fraction of the
    truths inside of the k sigma region of their estimates, over `coverage_frames`. `sharpness`:
    mean stated deviation over mean error, since any covariance that is wide enough covers: 1.13
    where errors are Gaussian, as stated and as large in all directions, 1.25 along one line.
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
    said = errors.said
    localized = int(said.argmax()) if said.any() else None
    for name, frame in (('localized', localized), ('below_1m', below)):
        metrics[f'{name}_after_m'] = None if frame is None else float(errors.travel_m[frame])
        metrics[f'{name}_after_s'] = None if frame is None else float(seconds[frame])
    rest = errors.position_m[below:] if below is not None else np.zeros(0)
    wrong = (errors.estimate >= 0) & errors.lost
    told = said.size and wrong.any()
    metrics |= {
        'rmse_once_below_1m_m': _rmse(rest),
        'lost_fraction_once_below_1m': float(np.mean(rest > LOST_M)) if rest.size else None,
        'wrong_called_localized': float(np.mean(said[wrong])) if told else None,
    }
    known = ~np.isnan(errors.stated_m)
    error = float(errors.position_m[known].mean()) if known.any() else 0.0
    metrics['sharpness'] = float(errors.stated_m[known].mean()) / error if error else None
    metrics['coverage_frames'] = int(known.sum())
    for name, surprise, freedom in (
        ('coverage', errors.position_surprise[known], 2),
        ('heading_coverage', errors.heading_surprise[known], 1),
    ):
        for sigma in (1, 2, 3):
            inside = surprise <= sigma_region(sigma, freedom)
            metrics[f'{name}_{sigma}sigma'] = float(inside.mean()) if known.any() else None
    return metrics


def below_1m_from(errors: RunErrors) -> int | None:
    """Index of the first frame from which the error stays below `LOST_M`, or None."""
    total = errors.travel_m[-1]
    end = errors.travel_m + min(HOLD_M, total / 2)
    until = np.searchsorted(errors.travel_m, end, side='right')
    losses = np.concatenate([[0], np.cumsum(errors.lost)])
    held = (losses[until] == losses[: errors.lost.size]) & (end <= total + 1e-6)
    return int(np.argmax(held)) if np.any(held) else None


def _rmse(values: FloatArray) -> float | None:
    answered = values[np.isfinite(values)]
    return float(np.sqrt(np.mean(answered**2))) if answered.size else None


def _finite(value: np.floating) -> float | None:
    return float(value) if math.isfinite(value) else None


def associate(
    frame_stamps_ns: StampArray, estimate_stamps_ns: StampArray, tolerance_s: float
) -> NDArray[np.int64]:
    """Index of the estimate nearest in time to each frame, which serves it alone; else -1."""
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
    """Collect the stamps and reference poses of the frames that have one; no image is read."""
    known = [(frame.stamp_ns, frame.reference) for frame in dataset if frame.reference is not None]
    stamps = np.array([stamp for stamp, _ in known], dtype=np.int64)
    return Trajectory(stamps, np.array([pose for _, pose in known]).reshape(-1, 3))


def required_reference(dataset: Dataset) -> Trajectory:
    """As `reference_trajectory`, of a run that has some; raises EvaluationError for others."""
    reference = reference_trajectory(dataset)
    if not len(reference):
        raise EvaluationError(
            explain_missing_reference(dataset)
            or f'{dataset.name} has no reference poses: expected a run with ground truth'
        )
    return reference


def frame_note(kernel_map: KernelMap, dataset: Dataset) -> str:
    """Say that reference poses of a run are in another frame than the map's; else nothing."""
    known = any(frame.reference is not None for frame in dataset)
    if kernel_map.aligned is not False or not known:
        return ''
    return (
        f'the frame of the map is that of its first image, not that of the reference poses of '
        f'{dataset.name}: errors against them, and a start from them, mean nothing before '
        '`kbr map align`'
    )


def same_place(
    poses: FloatArray, pose: FloatArray, within_m: float = SAME_PLACE_M
) -> NDArray[np.bool_]:
    """Which poses (n, 3) are at the place of a pose (3,), heading included."""
    return se2.within(poses, pose, within_m, float(np.radians(SAME_PLACE_DEG)))
