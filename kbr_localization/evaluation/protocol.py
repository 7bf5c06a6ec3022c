"""
The comparison of localization methods over map sizes, as in [MbKSR] section 6.3 and its Fig. 6.

A map is built of all training images; a trial keeps a random subset of them, and every method
localizes the test runs on it from a global start. The vocabulary and the motion variances come
from all of the training runs; what a trial lacks is map images.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
import functools
from typing import Any

from kbr_localization.errors import EvaluationError, LocalizationError
from kbr_localization.evaluation.association import reference_trajectory
from kbr_localization.evaluation.described import DescribedRun, on_described_run
from kbr_localization.evaluation.metrics import Metrics, run_errors, run_metrics
from kbr_localization.localization.localizer import Localizer, PoseEstimate
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.fkbf import FEWEST
from kbr_localization.localization.methods.registry import METHODS
from kbr_localization.localization.pipeline import localize
from kbr_localization.se2 import FloatArray
from kbr_localization.trajectory import Trajectory
from kbr_localization.workers import Workers
import numpy as np

_OTHER_PLAN = 'give larger --sizes, or leave it out of --methods'
_MEANS = {
    'localized_after_s': 'localized_after_s',
    'localized_after_m': 'localized_after_m',
    'below_1m_after_s': 'below_1m_after_s',
    'below_1m_after_m': 'below_1m_after_m',
    'rmse_once_below_1m_m_mean': 'rmse_once_below_1m_m',
    'position_median_m': 'position_median_m',
    'lost_fraction': 'lost_fraction_once_below_1m',
    'wrong_called_localized': 'wrong_called_localized',
    'coverage_2sigma': 'coverage_2sigma',
    'sharpness': 'sharpness',
}
"""Means over trials in a row of a comparison, and the metrics that they are of."""


@dataclass(frozen=True)
class ComparisonPlan:
    """What is compared: sizes of the map in images, trials per size, methods, seed."""

    sizes: tuple[int, ...]
    trials: int
    methods: tuple[str, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = [method for method in self.methods if method not in METHODS]
        if not self.sizes or min(self.sizes) < 1 or self.trials < 1 or not self.methods:
            raise EvaluationError(
                'comparison: expected at least one size of one image, one trial and one method, '
                f'got sizes {list(self.sizes)}, {self.trials} trials, methods {list(self.methods)}'
            )
        if len(set(self.methods)) < len(self.methods):
            raise EvaluationError(f'methods {", ".join(self.methods)}: expected each of them once')
        if unknown:
            raise EvaluationError(
                f'unknown method {unknown[0]!r}: expected all or some of {", ".join(METHODS)}'
            )
        if 'fkbf' in self.methods and min(self.sizes) < FEWEST:
            raise EvaluationError(
                f'size {min(self.sizes)}: fkbf learns the motion from {FEWEST} images or more: '
                f'{_OTHER_PLAN}'
            )

    def tasks(self) -> list[Task]:
        """All of the work, the small maps first."""
        return [
            Task(method, size, trial)
            for size in self.sizes
            for trial in range(self.trials)
            for method in self.methods
        ]


@dataclass(frozen=True)
class Task:
    """One method on one random map."""

    method: str
    size: int
    trial: int


@dataclass(frozen=True)
class Outcome:
    """What came of a task: the means of the test runs' metrics, as `complete` has them."""

    task: Task
    metrics: Metrics
    ms_per_frame: float


@dataclass(frozen=True)
class Done:
    """
    A finished task.

    `trajectories`: of the test runs. `belief`: points (k, 3) of it at some moments of the first
    test run, for the first trial of a method that has one.
    """

    outcome: Outcome
    trajectories: list[Trajectory]
    belief: FloatArray


class BeliefWatcher:
    """Collects points (k, 3) of the belief at nine moments of a run, as observer of `localize`."""

    def __init__(self, frames: int) -> None:
        self._moments = set(np.linspace(0, frames - 1, 9).round().astype(int).tolist())
        self._frame = 0
        self.points = np.zeros((0, 3))

    def __call__(self, localizer: Localizer, estimate: PoseEstimate) -> None:
        """Take the next frame."""
        if self._frame in self._moments:
            self.points = np.concatenate([self.points, localizer.particles(150)])
        self._frame += 1


def random_map(kernel_map: KernelMap, task: Task, seed: int) -> KernelMap:
    """
    Keep a random subset of the map's images, the same for every method of a trial.

    Raises EvaluationError when the map has fewer images than asked for.
    """
    if task.size > len(kernel_map):
        raise EvaluationError(
            f'size {task.size}: the training runs have only {len(kernel_map)} usable images'
        )
    rng = np.random.default_rng([seed, task.size, task.trial])
    kept = np.sort(rng.choice(len(kernel_map), task.size, replace=False))
    return kernel_map.subset(kept)


def run_task(kernel_map: KernelMap, runs: Sequence[DescribedRun], seed: int, task: Task) -> Done:
    """
    Localize the test runs with one method on one random map.

    Raises EvaluationError for a map that the method cannot do with.
    """
    small = random_map(kernel_map, task, seed)
    trajectories, summaries, times = [], [], []
    watcher = BeliefWatcher(len(runs[0]))
    for number, run in enumerate(runs):
        known = on_described_run(small, run)
        observe = watcher if (task.trial, number) == (0, 0) else None
        # the same for every method of a trial
        own_seed = int(np.random.default_rng([seed, task.trial, number]).integers(2**31))
        try:
            trajectory = localize(known, run, task.method, seed=own_seed, observe=observe)
        except LocalizationError as error:
            raise EvaluationError(
                f'{task.method} on a random map of {task.size} images: {error}: {_OTHER_PLAN}'
            ) from error
        errors = run_errors(reference_trajectory(run), trajectory)
        trajectories.append(trajectory)
        seconds = float(errors.stamps_ns[-1] - errors.stamps_ns[0]) * 1e-9
        travel = float(errors.travel_m[-1])
        summaries.append(complete(run_metrics(errors), travel, seconds))
        assert trajectory.seconds is not None and trajectory.updated is not None
        # and reading and describing the images that the localizer asked for
        describing = float(np.mean(trajectory.updated)) * run.seconds_per_image
        times.append(1000.0 * (float(np.mean(trajectory.seconds)) + describing))
    metrics = {key: _mean(summary[key] for summary in summaries) for key in summaries[0]}
    return Done(Outcome(task, metrics, float(np.mean(times))), trajectories, watcher.points)


def complete(metrics: Metrics, travel_m: float, seconds: float) -> Metrics:
    """
    Count what a run never reached, the status or an error below 1 m, as reached at its end.

    Left out of the means, the worst runs would improve them.
    """
    filled: Metrics = {}
    for name in ('localized_after', 'below_1m_after'):
        if metrics[f'{name}_m'] is None:
            filled |= {f'{name}_m': travel_m, f'{name}_s': seconds}
    if metrics['below_1m_after_m'] is None:
        filled['lost_fraction_once_below_1m'] = 1.0
    return metrics | filled


def run_tasks(
    kernel_map: KernelMap,
    runs: Sequence[DescribedRun],
    tasks: Sequence[Task],
    seed: int,
    workers: Workers | None = None,
) -> Iterable[Done]:
    """Run tasks by workers, one thread each; yields what is done as it is done."""
    light = replace(on_described_run(kernel_map, runs[0]), thumbnails=())
    work = functools.partial(run_task, light, runs, seed)
    for _, done in (workers or Workers()).run(work, tasks):
        yield done


def comparison_rows(plan: ComparisonPlan, outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """
    Reduce the trials of every method and size to one row.

    Means over the trials that have a value, and the standard deviation of the RMSE, None of one.
    `lost_fraction` is over the frames once the error was below 1 m. A run that was never enters
    it with 1, and `..._after_...` with its length; `rmse_once_below_1m_m_mean` leaves it out, and
    `position_median_m` leaves infinite ones out.
    """
    by_row: dict[tuple[str, int], list[Outcome]] = {}
    # the mean of the same numbers in another order may differ in the last bit
    for outcome in sorted(outcomes, key=lambda outcome: outcome.task.trial):
        by_row.setdefault((outcome.task.method, outcome.task.size), []).append(outcome)
    return [
        _row(method, size, by_row[method, size])
        for method in plan.methods
        for size in plan.sizes
        if (method, size) in by_row
    ]


def _row(method: str, size: int, outcomes: list[Outcome]) -> dict[str, Any]:
    def mean(key: str) -> float | None:
        return _mean(outcome.metrics[key] for outcome in outcomes)

    found = [outcome.metrics['position_rmse_m'] for outcome in outcomes]
    rmse = [float(value) for value in found if value is not None]
    return {
        'method': method,
        'size': size,
        'trials': len(outcomes),
        **{name: mean(key) for name, key in _MEANS.items()},
        'ms_per_frame': float(np.mean([outcome.ms_per_frame for outcome in outcomes])),
        'position_rmse_m_mean': mean('position_rmse_m'),
        'position_rmse_m_sd': float(np.std(rmse, ddof=1)) if len(rmse) > 1 else None,
    }


def _mean(values: Iterable[float | int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
