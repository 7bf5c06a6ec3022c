"""
Cross-validation over whole runs: a map of the other runs, localization of the one left out.

The score of parameters is the error of localizing what the map has not seen. Images enter through
their kernel alone, which does not depend on what is tuned: the Gram matrix of all images is
computed once, and a descriptor is from then on its row number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
import logging
from typing import Any
import warnings

from kbr_localization import se2
from kbr_localization.datasets import Dataset
from kbr_localization.errors import KbrError, LocalizationError
from kbr_localization.localization.filter.wrong_places import with_statistics
from kbr_localization.localization.localizer import (
    LOST_M,
    PoseEstimate,
    sigma_region,
    UNKNOWN_VARIANCE,
)
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.prune import cover
from kbr_localization.localization.map.similarity import GramDescriber
from kbr_localization.localization.methods.registry import make_localizer, with_values
from kbr_localization.localization.motion import measure_odometry
from kbr_localization.progress import Progress, silent
from kbr_localization.se2 import FloatArray
import numpy as np
from scipy.spatial import cKDTree

MAX_FRAMES = 4000
"""Frames of all runs that take part; longer runs are thinned evenly."""
MAX_FOLD_IMAGES = 500
"""Images of the maps in cross-validation: more would cost time and change little."""
MAX_FOLDS = 6
NEAR_M, NEAR_RAD = 2.0, 1.0
"""A frame counts when a training pose is this near: elsewhere nobody could know the answer."""
_MIN_FRAMES = 20

CAP_M = 3.0
"""Errors count up to this much, so that one wrong guess does not hide everything else."""
_ASK_EVERY = 3  # frames: neighbours have nearly the same error, and the answer costs most

logger = logging.getLogger(__name__)
Values = dict[str, float]
Record = dict[str, Any]


@dataclass(frozen=True)
class Frames:
    """Frames of a run: `rows` (m,) of the Gram matrix, `odometry` and `poses` (m, 3)."""

    rows: np.ndarray
    odometry: FloatArray
    poses: FloatArray

    def __len__(self) -> int:
        """Count the frames."""
        return len(self.rows)

    def part(self, frames: slice) -> Frames:
        """Return consecutive frames."""
        return Frames(self.rows[frames], self.odometry[frames], self.poses[frames])


@dataclass(frozen=True)
class Fold:
    """A run left out, `covered` (m,) where the training runs went, and maps of the others."""

    run: Frames
    covered: np.ndarray
    maps: tuple[KernelMap, ...]


def make_folds(
    kernel_map: KernelMap,
    datasets: Sequence[Dataset],
    sizes: Sequence[int | None] = (None,),
    seed: int = 0,
    progress: Progress = silent,
) -> list[Fold]:
    """
    Leave each run out once; a single run is split into two halves of time.

    `kernel_map` holds all images of the datasets. A fold has a map for each of `sizes`, its images
    chosen to cover the training runs. Raises LocalizationError when too little of the left-out
    runs lies where the others went.
    """
    capped = [str(size) for size in sizes if size is not None and size > MAX_FOLD_IMAGES]
    if capped:
        logger.warning(
            'parameters for maps of %s images are tuned on maps of %d, the most that are tried',
            ', '.join(capped),
            MAX_FOLD_IMAGES,
        )
    runs = _runs(kernel_map, datasets)
    # Replace the descriptors by row numbers of the Gram matrix of all frames.
    rows = np.concatenate([run.rows for run in runs])
    gram = _gram(kernel_map, rows, progress)
    numbers = np.full((len(kernel_map), 1), -1, dtype=np.int64)
    numbers[rows, 0] = np.arange(len(rows))
    indexed = replace(
        kernel_map, descriptors=numbers, describer=GramDescriber(gram), thumbnails=()
    )
    rng = np.random.default_rng([seed, 0])
    left_out = np.sort(rng.permutation(len(runs))[:MAX_FOLDS])
    folds = [_fold(indexed, runs, int(index), sizes, rng) for index in left_out]
    useful = [fold for fold in folds if fold.covered.sum() >= _MIN_FRAMES]
    if not useful:
        raise LocalizationError(
            f'cannot tune: at most {max(fold.covered.sum() for fold in folds)} frames of a run '
            'lie where the other runs (or the other half of a single run) went, expected '
            f'{_MIN_FRAMES}: give runs through the same places'
        )
    share = float(np.mean(np.concatenate([fold.covered for fold in useful])))
    if share < 0.5:
        logger.warning(
            'only %.0f%% of the frames lie where the other runs (or the other half of a single '
            'run) went the same way, and tuning uses these alone: add a second run through the '
            'same places',
            100.0 * share,
        )
    return useful


def _runs(kernel_map: KernelMap, datasets: Sequence[Dataset]) -> list[Frames]:
    """Frames of each run that are in the map, thinned; the halves of a single run."""
    stride = -(-len(kernel_map) // MAX_FRAMES)
    runs = []
    for index, dataset in enumerate(datasets):
        rows = np.flatnonzero(kernel_map.run_index == index)[::stride]
        at = {frame.stamp_ns: frame.odometry for frame in dataset}
        odometry = np.array([at[int(stamp)] for stamp in kernel_map.stamps_ns[rows]])
        runs.append(Frames(rows, odometry.reshape(-1, 3), kernel_map.poses[rows]))
    runs = [run for run in runs if len(run)]
    if len(runs) == 1:
        half = len(runs[0]) // 2
        runs = [runs[0].part(slice(half)), runs[0].part(slice(half, None))]
    most = max(map(len, runs))
    if most < _MIN_FRAMES:
        raise LocalizationError(
            f'cannot tune: the longest run (or half of a single run) has {most} usable frames, '
            f'expected {_MIN_FRAMES}: give longer runs'
        )
    return runs


def _gram(kernel_map: KernelMap, rows: np.ndarray, progress: Progress) -> np.ndarray:
    """Kernel values (n, n) of all pairs of images."""
    n, descriptors = len(rows), kernel_map.descriptors[rows]
    gram = np.empty((n, n), dtype=np.float32)
    for start in range(0, n, 32):
        block = slice(start, start + 32)
        gram[block, start:] = kernel_map.describer.cross_gram(
            descriptors[block], descriptors[start:]
        )
        gram[start:, block] = gram[block, start:].T
        progress('comparing images', min(start + 32, n), n)
    return gram


def _fold(
    indexed: KernelMap,
    runs: Sequence[Frames],
    left_out: int,
    sizes: Sequence[int | None],
    rng: np.random.Generator,
) -> Fold:
    run, others = runs[left_out], [r for index, r in enumerate(runs) if index != left_out]
    training = indexed.subset(np.concatenate([other.rows for other in others]))
    calibration, noise = measure_odometry([(other.odometry, other.poses) for other in others])
    training = replace(training, motion_noise=noise, calibration=calibration)
    counts = [min(size or MAX_FOLD_IMAGES, MAX_FOLD_IMAGES) for size in sizes]
    maps = [training.subset(cover(training.poses, count, rng)) for count in counts]
    numbered = replace(run, rows=indexed.descriptors[run.rows, 0])
    return Fold(numbered, near(run.poses, training.poses), tuple(with_statistics(m) for m in maps))


def near(poses: FloatArray, known: FloatArray) -> np.ndarray:
    """Which poses (m, 3) have a known pose (n, 3) within reach that faces the same way."""
    groups = cKDTree(known[:, :2]).query_ball_point(poses[:, :2], NEAR_M)
    return np.array(
        [
            bool(np.any(np.abs(se2.wrap_angle(known[group, 2] - pose[2])) <= NEAR_RAD))
            for pose, group in zip(poses, groups, strict=True)
        ]
    )


@dataclass(frozen=True)
class Outcome:
    """
    What localizing a run gave.

    `score`: RMSE of the capped errors plus the fraction of lost frames, metres. `rmse`: of the
    positions, metres. `lost`: fraction of lost frames. `surprises`: (k,) squared Mahalanobis
    distances of the positions that are not lost and state a covariance.
    """

    score: float
    rmse: float
    lost: float
    surprises: FloatArray


def run_trial(folds: Sequence[Fold], method: str, seeds: Sequence[int], values: Values) -> Record:
    """
    Score a method with parameters: arithmetic mean over the folds, geometric over map sizes.

    `seeds`: one for all, then one for each time that the runs are localized. `spread`: factor on
    the covariance that would put 95% of the positions inside of 2 sigma. A trial that fails has
    the score None and its `error`.
    """
    outcomes, sizes = [], range(len(folds[0].maps))
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # far-fetched parameters are ill-conditioned: the score tells
    try:
        with warnings.catch_warnings(), np.errstate(all='ignore'):
            warnings.simplefilter('ignore')
            for size in sizes:
                for number, fold in enumerate(folds):
                    kernel_map = with_values(method, fold.maps[size], values)
                    for seed in seeds[1:]:
                        rng = np.random.default_rng([seeds[0], seed, number])
                        for start in _starts(fold, rng):
                            outcomes.append(localize_fold(kernel_map, method, fold, start, rng))
    except (KbrError, ArithmeticError, ValueError, np.linalg.LinAlgError) as error:
        return {'values': values, 'score': None, 'error': ' '.join(str(error).split())}
    finally:
        logging.disable(disabled)
    scores = np.array([outcome.score for outcome in outcomes]).reshape(len(sizes), -1)
    return {
        'values': values,
        'score': float(np.exp(np.mean(np.log(scores.mean(axis=1) + 1e-3)))),
        'rmse': float(np.mean([outcome.rmse for outcome in outcomes])),
        'lost': float(np.mean([outcome.lost for outcome in outcomes])),
        'spread': spread(np.concatenate([outcome.surprises for outcome in outcomes])),
    }


def _starts(fold: Fold, rng: np.random.Generator) -> list[int]:
    """Return the first frame, and one of the first half that a training run covers."""
    half = np.flatnonzero(fold.covered[: len(fold.run) // 2])
    return [0, int(rng.choice(half))] if half.size else [0]


def localize_fold(
    kernel_map: KernelMap, method: str, fold: Fold, start: int, rng: np.random.Generator
) -> Outcome:
    """Localize the run left out from a frame on; every third pose is asked for and scored."""
    run, covered = fold.run.part(slice(start, None)), fold.covered[start::_ASK_EVERY]
    localizer = make_localizer(method, kernel_map, int(rng.integers(2**31)))
    localizer.initialize_globally()
    increments = se2.between(run.odometry[:-1], run.odometry[1:])
    estimates = []
    for index, row in enumerate(run.rows):
        if index:
            localizer.predict(increments[index - 1])
        if localizer.wants_image():
            localizer.update(np.array([row]))
        if index % _ASK_EVERY == 0:
            estimates.append(localizer.estimate())
    return judge(estimates, run.poses[::_ASK_EVERY], covered)


def judge(estimates: list[PoseEstimate], truth: FloatArray, covered: np.ndarray) -> Outcome:
    """Compare estimates with true poses (n, 3) where they are `covered` (n,)."""
    offset = (np.array([estimate.pose for estimate in estimates]) - truth)[covered, :2]
    covariance = np.array([estimate.covariance for estimate in estimates])[covered, :2, :2]
    known = np.all(np.diagonal(covariance, axis1=1, axis2=2) < UNKNOWN_VARIANCE, axis=1)
    error = np.where(np.isfinite(offset).all(axis=1), np.hypot(*offset.T), np.inf)
    # without any belief the pose is a placeholder that may be right by chance
    placeholder = np.array([estimate.confidence == 0.0 for estimate in estimates])[covered]
    error[placeholder & ~known] = np.inf
    rmse = float(np.sqrt(np.mean(np.minimum(error, CAP_M) ** 2))) if error.size else 0.0
    lost = float(np.mean(error > LOST_M)) if error.size else 0.0
    stated = known & (error <= LOST_M)
    scaled = covariance[stated] + 1e-9 * np.eye(2)
    solved = np.linalg.solve(scaled, offset[stated, :, np.newaxis])[..., 0]
    return Outcome(rmse + lost, rmse, lost, np.asarray(np.sum(offset[stated] * solved, axis=1)))


def spread(surprises: FloatArray) -> float:
    """Ratio of the distance that holds 95% to the one of a Gaussian's 2 sigma region."""
    if surprises.size < 10:
        return 1.0
    wanted = np.quantile(surprises, 0.95) / sigma_region(2.0, 2)
    return float(np.clip(wanted, 0.05, 100.0))
