"""
Choose parameters by cross-validation over whole runs ([MbKSR] section 6.3 does it on a grid).

A seeded random search in generations: candidates near the best so far are screened on a few short
starts, the best third of them is scored on the whole runs, and the finalists once more with other
starts and random numbers, against the defaults. The variances of the motion are estimated by
maximum likelihood, not searched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
import math
from pathlib import Path
from typing import Any
import zlib

from kbr_localization.datasets import Dataset
from kbr_localization.errors import LocalizationError
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.prune import cover
from kbr_localization.localization.methods.method_configs import parameter_value, with_values
from kbr_localization.localization.tuning.folds import Fold, make_folds
from kbr_localization.localization.tuning.journal import Journal, Record
from kbr_localization.localization.tuning.score import CALIBRATION, FRESH, FULL, QUICK
from kbr_localization.localization.tuning.space import (
    Dimension,
    propose,
    search_space,
    TUNED,
    Values,
)
from kbr_localization.localization.tuning.study import Study
from kbr_localization.progress import Progress, silent
from kbr_localization.vision import VisionConfig
from kbr_localization.workers import Workers
import numpy as np

_GENERATIONS = 4
_PROMOTED = 3  # one of so many candidates is scored on the whole runs
_PARENTS = 3
_FINALISTS = 3


@dataclass(frozen=True)
class TuningPlan:
    """
    What is tuned, and how long.

    `trials`: candidates for each method, the same for all. `sizes`: images of the maps that the
    parameters are to suit; None stands for `max_images`, or all. `random_maps`: try them on images
    chosen at random, as in a comparison, instead of evenly.
    """

    methods: tuple[str, ...] = TUNED
    trials: int = 60
    max_images: int | None = None
    sizes: tuple[int | None, ...] = (None,)
    seed: int = 0
    random_maps: bool = False

    def __post_init__(self) -> None:
        """Refuse an empty plan, methods that have no parameters and maps of no image."""
        unknown = [method for method in self.methods if method not in TUNED]
        if unknown or not self.methods:
            raise LocalizationError(
                f'methods to tune: expected some of {", ".join(TUNED)}, got '
                f'{", ".join(unknown) or "none"}'
            )
        if len(set(self.methods)) < len(self.methods):
            raise LocalizationError(
                f'methods {", ".join(self.methods)}: expected each of them once'
            )
        if self.trials < 1 or not self.sizes:
            raise LocalizationError(
                f'tuning: expected at least one trial and one map size, got {self.trials} trials, '
                f'sizes {list(self.sizes)}'
            )
        if any(size is not None and size < 1 for size in self.sizes):
            raise LocalizationError(
                f'tuning: expected map sizes of at least one image, got {list(self.sizes)}'
            )


@dataclass(frozen=True)
class TunedMethod:
    """Result for a method: values found, scores (metres, lower is better) and errors."""

    method: str
    values: Values
    default_score: float
    score: float
    rmse_m: float
    lost_fraction: float
    trials: int


def tune(
    datasets: Sequence[Dataset],
    plan: TuningPlan | None = None,
    vision: VisionConfig | None = None,
    filter_config: KbrConfig | Mapping[str, Any] | None = None,
    journal: Path | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
    workers: Workers | None = None,
) -> tuple[KernelMap, list[TunedMethod]]:
    """
    Build a map from runs with reference poses, with parameters chosen on these runs.

    `journal`: file of the finished trials, from which a stopped tuner goes on; `fresh` starts it
    anew. Parameters that are not searched stay as in `filter_config`; the result does not depend
    on the workers. Raises MapError when no image can be used, LocalizationError when the runs do
    not let each other be localized.
    """
    plan = plan or TuningPlan()
    if plan.max_images is not None and plan.max_images < 1:
        raise LocalizationError(f'max_images: expected at least 1, got {plan.max_images}')
    kernel_map = build_map(
        datasets, vision, filter_config, seed=plan.seed, progress=progress, workers=workers
    )
    folds = _folds(kernel_map, datasets, plan, progress, workers)
    # runs that cannot be tuned leave no journal
    with Journal(journal, fresh) as trials:
        kernel_map, tuned = _tune_on(folds, kernel_map, plan, trials, progress, workers)
    if plan.max_images is not None:
        rng = np.random.default_rng([plan.seed, 1])
        kernel_map = kernel_map.subset(cover(kernel_map.poses, plan.max_images, rng))
    return kernel_map, tuned


def tune_map(
    kernel_map: KernelMap,
    datasets: Sequence[Dataset],
    plan: TuningPlan,
    journal: Journal | None = None,
    progress: Progress | None = None,
    workers: Workers | None = None,
) -> tuple[KernelMap, list[TunedMethod]]:
    """
    Choose parameters for a map that holds all images of its runs, the datasets.

    Returns the map with the parameters found. Raises LocalizationError when the runs do not let
    each other be localized, or no candidate works at all.
    """
    folds = _folds(kernel_map, datasets, plan, progress, workers)
    return _tune_on(folds, kernel_map, plan, journal or Journal(None), progress, workers)


def _folds(
    kernel_map: KernelMap,
    datasets: Sequence[Dataset],
    plan: TuningPlan,
    progress: Progress | None,
    workers: Workers | None,
) -> list[Fold]:
    sizes = [size or plan.max_images for size in plan.sizes]
    return make_folds(kernel_map, datasets, sizes, plan.seed, progress, plan.random_maps, workers)


def _tune_on(
    folds: list[Fold],
    kernel_map: KernelMap,
    plan: TuningPlan,
    journal: Journal,
    progress: Progress | None,
    workers: Workers | None,
) -> tuple[KernelMap, list[TunedMethod]]:
    study = Study(folds, plan.seed, workers or Workers(), journal, progress or silent)
    results = []
    for method in plan.methods:
        result, spread = _tune_method(study, method, plan.trials)
        # of the map that was tried: the one at hand may have been calibrated for another method
        scale = parameter_value(method, folds[0].maps[0], 'covariance_scale') * spread
        calibrated = {'covariance_scale': float(np.clip(scale, 1e-3, 1e3))}
        results.append(replace(result, values=result.values | calibrated))
        kernel_map = with_values(method, kernel_map, results[-1].values)
    return kernel_map, results


def _tune_method(study: Study, method: str, trials: int) -> tuple[TunedMethod, float]:
    """Best values of a method, and the factor that makes its covariance honest."""
    study.start(method, _evaluations(trials))
    tried = study.folds[0].maps[0]
    space = search_space(method)
    default = {d.name: parameter_value(method, tried, d.name) for d in space}
    ranking = _search(study, method, space, default, trials)
    finalists = [default, *(values for _, values in ranking[:_FINALISTS] if values != default)]
    full = study.score(method, finalists, FULL)
    fresh = study.score(method, finalists, FRESH)
    totals = _totals(full, fresh)
    best = int(np.argmin(totals))
    if not math.isfinite(totals[best]):
        # a journal of the version before has it under its former name
        failed = (r for r in (*full, *fresh) if r['score'] is None)
        reason = next((r.get('error', r.get('why', '')) for r in failed), 'no finite score')
        raise LocalizationError(f'cannot tune {method}: every candidate failed ({reason})')
    (calibrated,) = study.score(method, [finalists[best]], CALIBRATION)
    study.finish()
    pair = (full[best], fresh[best])
    tuned = TunedMethod(
        method=method,
        values=finalists[best],
        default_score=totals[0],
        score=totals[best],
        rmse_m=float(np.mean([record['rmse'] for record in pair])),
        lost_fraction=float(np.mean([record['lost'] for record in pair])),
        trials=trials,
    )
    return tuned, float(calibrated.get('spread', 1.0))


def _totals(full: list[Record], fresh: list[Record]) -> list[float]:
    """
    Mean scores of the finalists, the default first.

    Who was best of many on `FULL` was partly lucky: without beating the default on fresh starts
    it does not replace it.
    """
    bar = _score(fresh[0])
    totals = [0.5 * (_score(a) + _score(b)) for a, b in zip(full, fresh, strict=True)]
    better = [index == 0 or _score(record) < bar for index, record in enumerate(fresh)]
    return [total if ok else math.inf for total, ok in zip(totals, better, strict=True)]


def _search(
    study: Study, method: str, space: Sequence[Dimension], default: Values, trials: int
) -> list[tuple[float, Values]]:
    """Candidates scored on the whole runs, best first."""
    ranking: list[tuple[float, Values]] = []
    for generation, count in enumerate(_shares(trials)):
        parents = [values for _, values in ranking[:_PARENTS]] or [default]
        seeds = [study.seed, zlib.crc32(method.encode()), generation]
        candidates = [
            propose(
                space, parents[i % len(parents)], generation, np.random.default_rng([*seeds, i])
            )
            for i in range(count)
        ]
        if generation == 0:
            candidates[0] = default
        screened = study.score(method, candidates, QUICK)
        order = np.argsort([_score(record) for record in screened], kind='stable')
        promoted = [candidates[index] for index in order[: _promoted(count)]]
        if generation == 0 and default not in promoted:
            promoted[-1] = default
        scored = study.score(method, promoted, FULL)
        ranking += zip(map(_score, scored), promoted, strict=True)
        ranking.sort(key=lambda pair: pair[0])
    return ranking


def _score(record: Record) -> float:
    return math.inf if record['score'] is None else float(record['score'])


def _shares(trials: int) -> list[int]:
    """Candidates of each generation."""
    sizes = [len(part) for part in np.array_split(np.arange(trials), _GENERATIONS)]
    return [size for size in sizes if size]


def _promoted(count: int) -> int:
    return -(-count // _PROMOTED)


def _evaluations(trials: int) -> int:
    """Count the evaluations: screened, scored, the finalists' two, and the winner's last."""
    return trials + sum(map(_promoted, _shares(trials))) + 2 * (_FINALISTS + 1) + 1
