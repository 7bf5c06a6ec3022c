"""How good a method's parameters are: the error of localizing what the map has not seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from kbr_localization.localization.methods.method_configs import with_values
from kbr_localization.localization.methods.registry import make_localizer
from kbr_localization.localization.tuning.folds import Fold
from kbr_localization.localization.tuning.space import Values
from kbr_localization.se2 import FloatArray
import numpy as np

QUICK, FULL, FRESH, CALIBRATION = 0, 1, 2, 3
"""Rungs: short starts; whole runs and starts; the same with other randomness; more of both."""

CAP_M = 3.0
"""Errors count up to this much, so that one wrong guess does not hide everything else."""
COVERAGE = 0.95
_SIGMAS = 2.0
_SHORT_M, _SHORT_FRAMES = 15.0, 15
_ASK_EVERY = 3  # frames: neighbours have nearly the same error, and the answer costs most
_STARTS = {QUICK: 2, FULL: 3, FRESH: 5, CALIBRATION: 20}
_WHOLE_RUNS = {QUICK: 0, FULL: 1, FRESH: 1, CALIBRATION: 4}  # a 95% quantile needs many errors


@dataclass(frozen=True)
class Episode:
    """Frames [start, stop) of a run, localized from a global start."""

    start: int
    stop: int
    seed: int


@dataclass(frozen=True)
class Outcome:
    """
    What an episode gave.

    `score`: RMSE of the capped errors plus the fraction of lost frames, metres. `rmse`:
    that of the positions, metres. `lost`: fraction of lost frames. `surprises`: (k,) squared
    Mahalanobis distances of the positions that are not lost and state a covariance.
    """

    score: float
    rmse: float
    lost: float
    surprises: FloatArray


def run_trial(
    folds: Sequence[Fold], method: str, values: Values, rung: int, seed: int
) -> dict[str, Any]:
    """
    Score a method with parameters: arithmetic mean over the folds, geometric over map sizes.

    `spread`: factor on the covariance that would put 95% of the positions inside of 2 sigma. A
    trial that fails has the score None and its `error`.
    """
    try:
        with _quiet():
            by_size = [
                _on_size(folds, size, method, values, rung, seed)
                for size in _sizes(len(folds[0].maps), rung)
            ]
    except (KbrError, ArithmeticError, ValueError, np.linalg.LinAlgError) as error:
        return {'score': None, 'error': ' '.join(str(error).split())}
    outcomes = [outcome for size in by_size for fold in size for outcome in fold]
    means = [float(np.mean([_balanced(fold) for fold in size])) for size in by_size]
    return {
        'score': float(np.exp(np.mean(np.log(np.array(means) + 1e-3)))),
        'rmse': float(np.mean([outcome.rmse for outcome in outcomes])),
        'lost': float(np.mean([outcome.lost for outcome in outcomes])),
        'spread': _spread(np.concatenate([outcome.surprises for outcome in outcomes])),
    }


def episodes(fold: Fold, rung: int, seed: int) -> list[Episode]:
    """Choose short stretches from random frames, and the whole run first but on `QUICK`."""
    rng = np.random.default_rng([seed, rung])
    seeds = rng.integers(2**31, size=_WHOLE_RUNS[rung])
    chosen = [Episode(0, len(fold.run), int(number)) for number in seeds]
    travel = se2.travelled(fold.run.poses)
    reach = min(_SHORT_M, 0.5 * travel[-1])
    inner = np.flatnonzero(fold.covered & (travel <= travel[-1] - reach))
    for _ in range(_STARTS[rung]):
        start = int(rng.choice(inner if inner.size else np.flatnonzero(fold.covered)))
        far = int(np.searchsorted(travel, travel[start] + reach, side='right'))
        stop = min(max(far, start + _SHORT_FRAMES), len(fold.run))
        chosen.append(Episode(start, stop, int(rng.integers(2**31))))
    return chosen


def _sizes(count: int, rung: int) -> list[int]:
    """Positions of the map sizes that take part: the first and the last are enough to screen."""
    return sorted({0, count - 1}) if rung == QUICK else list(range(count))


def _on_size(
    folds: Sequence[Fold], size: int, method: str, values: Values, rung: int, seed: int
) -> list[list[Outcome]]:
    return [
        [
            run_episode(with_values(method, fold.maps[size], values), method, fold, episode)
            for episode in episodes(fold, rung, seed + number)
        ]
        for number, fold in enumerate(folds)
    ]


def run_episode(kernel_map: KernelMap, method: str, fold: Fold, episode: Episode) -> Outcome:
    """Localize a stretch of the run left out; every third pose is asked for and scored."""
    run = fold.run.part(slice(episode.start, episode.stop))
    localizer = make_localizer(method, kernel_map, episode.seed)
    localizer.initialize_globally()
    increments = se2.between(run.odometry[:-1], run.odometry[1:])
    asked = np.arange(0, len(run), _ASK_EVERY)
    estimates = []
    for index, row in enumerate(run.rows):
        if index:
            localizer.predict(increments[index - 1])
        if localizer.wants_image():
            localizer.update(np.array([row]))
        if index % _ASK_EVERY == 0:
            estimates.append(localizer.estimate())
    covered = fold.covered[episode.start + asked]
    return _outcome(estimates, run.poses[asked], covered)


def _outcome(estimates: list[PoseEstimate], truth: FloatArray, covered: np.ndarray) -> Outcome:
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
    surprises = _surprises(offset[stated], covariance[stated])
    return Outcome(rmse + lost, rmse, lost, surprises)


def _surprises(offset: FloatArray, covariance: FloatArray) -> FloatArray:
    floor = 1e-9 * np.eye(2)
    solved = np.linalg.solve(covariance + floor, offset[..., np.newaxis])[..., 0]
    return np.asarray(np.sum(offset * solved, axis=1))


def _spread(surprises: FloatArray) -> float:
    """Ratio of the distance that holds 95% to the one of a Gaussian's 2 sigma region."""
    if surprises.size < 10:
        return 1.0
    wanted = np.quantile(surprises, COVERAGE) / sigma_region(_SIGMAS, 2)
    return float(np.clip(wanted, 0.05, 100.0))


def _balanced(outcomes: list[Outcome]) -> float:
    """Mean score; the whole run, when there is one, weighs as much as all the short starts."""
    scores = [outcome.score for outcome in outcomes]
    if len(scores) <= _STARTS[QUICK]:
        return float(np.mean(scores))
    return 0.5 * scores[0] + 0.5 * float(np.mean(scores[1:]))


@contextmanager
def _quiet() -> Iterator[None]:
    """Far-fetched parameters overflow and are ill-conditioned; their score says enough."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), np.errstate(all='ignore'):
            warnings.simplefilter('ignore')
            yield
    finally:
        logging.disable(before)
