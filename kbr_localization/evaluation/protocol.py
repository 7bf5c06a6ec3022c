"""
The comparison of localization methods over map sizes, as in [MbKSR] section 6.3 and its Fig. 6.

A map is built of all training images; a trial keeps a random subset of them, and every method
localizes the test runs on it from a global start. The vocabulary and the motion variances come
from all of the training runs; what a trial lacks is map images.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
import functools
from typing import Any

from kbr_localization.errors import EvaluationError, LocalizationError
from kbr_localization.evaluation.association import reference_trajectory
from kbr_localization.evaluation.described import DescribedRun, on_described_run
from kbr_localization.evaluation.metrics import Metrics, run_errors, summarize
from kbr_localization.localization.localizer import Localizer, PoseEstimate
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.nonparametric import FEWEST
from kbr_localization.localization.methods.registry import METHODS
from kbr_localization.localization.pipeline import localize
from kbr_localization.se2 import FloatArray
from kbr_localization.trajectory import Trajectory
from kbr_localization.workers import ThisProcess, Workers
import numpy as np

MOMENTS, BELIEF_POINTS = 9, 150
_OTHER_PLAN = 'give larger --sizes, or leave it out of --methods'


@dataclass(frozen=True)
class ComparisonPlan:
    """What is compared: sizes of the map in images, trials per size, methods, seed."""

    sizes: tuple[int, ...]
    trials: int
    methods: tuple[str, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse an empty plan and unknown methods."""
        if not self.sizes or min(self.sizes) < 1 or self.trials < 1 or not self.methods:
            raise EvaluationError(
                'comparison: expected at least one size of one image, one trial and one method, '
                f'got sizes {list(self.sizes)}, {self.trials} trials, methods {list(self.methods)}'
            )
        unknown = [method for method in self.methods if method not in METHODS]
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

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return asdict(self)

    @staticmethod
    def from_json(values: dict[str, Any]) -> Outcome:
        """Undo `to_json`."""
        return Outcome(**(values | {'task': Task(**values['task'])}))


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
    """Collects points of the belief at `MOMENTS` moments of a run of so many frames."""

    def __init__(self, frames: int) -> None:
        self._moments = set(np.linspace(0, frames - 1, MOMENTS).round().astype(int).tolist())
        self._frame = 0
        self._points = [np.zeros((0, 3))]

    @property
    def points(self) -> FloatArray:
        """Return what was collected: (k, 3)."""
        return np.concatenate(self._points)

    def __call__(self, localizer: Localizer, estimate: PoseEstimate) -> None:
        """Look at the belief after a frame, as an observer of `localize`."""
        if self._frame in self._moments:
            self._points.append(localizer.particles(BELIEF_POINTS))
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


def task_seed(task: Task, seed: int, run: int) -> int:
    """Return the seed of the localizer on a test run, the same for every method of a trial."""
    return int(np.random.default_rng([seed, task.trial, run]).integers(2**31))


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
        own_seed = task_seed(task, seed, number)
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
        summaries.append(complete(summarize(errors), travel, seconds))
        times.append(_ms_per_frame(trajectory, run))
    metrics = {key: _mean(summary[key] for summary in summaries) for key in summaries[0]}
    return Done(Outcome(task, metrics, float(np.mean(times))), trajectories, watcher.points)


def complete(metrics: Metrics, travel_m: float, seconds: float) -> Metrics:
    """
    Let a run that never localized count as lost after the whole of its length and time.

    Left out of the means, the worst runs would improve them.
    """
    if metrics['localized_after_m'] is not None:
        return metrics
    return metrics | {
        'localized_after_m': travel_m,
        'localized_after_s': seconds,
        'lost_fraction_after_localized': 1.0,
    }


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
    for _, done in (workers or ThisProcess()).run(work, tasks):
        yield done


def comparison_rows(plan: ComparisonPlan, outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """
    Reduce the trials of every method and size to one row.

    Means over the trials that have a value, and the standard deviation of the RMSE, None of one.
    `lost_fraction` is that of the frames after localizing: what is lost before,
    `localized_after_m` tells. A run that never localized enters them with 1 and its length,
    `rmse_after_localized_m_mean` not at all, and `position_median_m` not when it is infinite.
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
        'localized_after_s': mean('localized_after_s'),
        'localized_after_m': mean('localized_after_m'),
        'rmse_after_localized_m_mean': mean('rmse_after_localized_m'),
        'position_median_m': mean('position_median_m'),
        'lost_fraction': mean('lost_fraction_after_localized'),
        'wrong_called_localized': mean('wrong_called_localized'),
        'coverage_2sigma': mean('coverage_2sigma'),
        'sharpness': mean('sharpness'),
        'ms_per_frame': float(np.mean([outcome.ms_per_frame for outcome in outcomes])),
        'position_rmse_m_mean': mean('position_rmse_m'),
        'position_rmse_m_sd': float(np.std(rmse, ddof=1)) if len(rmse) > 1 else None,
    }


def _ms_per_frame(trajectory: Trajectory, run: DescribedRun) -> float:
    """Time of the localizer, and of reading and describing the images that it asked for."""
    assert trajectory.seconds is not None and trajectory.updated is not None
    describing = float(np.mean(trajectory.updated)) * run.seconds_per_image
    return 1000.0 * (float(np.mean(trajectory.seconds)) + describing)


def _mean(values: Iterable[float | int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
