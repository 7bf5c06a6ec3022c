"""How good a method's parameters are: the error of localizing what the map has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
import logging
from typing import Any
import warnings

from kbr_localization import se2
from kbr_localization.errors import KbrError
from kbr_localization.localization.localizer import (
    LOST_M,
    PoseEstimate,
    sigma_region,
    UNKNOWN_VARIANCE,
)
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.folds import Fold
from kbr_localization.localization.methods.registry import make_localizer, with_values
from kbr_localization.se2 import FloatArray
import numpy as np

Values = dict[str, float]
Record = dict[str, Any]

CAP_M = 3.0
"""Errors count up to this much, so that one wrong guess does not hide everything else."""
_ASK_EVERY = 3  # frames: neighbours have nearly the same error, and the answer costs most


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
