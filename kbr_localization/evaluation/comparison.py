"""
The comparison of localization methods over map sizes, as in [MbKSR] section 6.3 and its Fig. 6.

A map is built of all training images; a trial keeps a random subset of them, and every method
localizes the test runs on it from a global start. The vocabulary and the motion variances come
from all of the training runs. Finished trials are lines of a file in the folder of the comparison:
one that was interrupted continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
import functools
import json
import logging
from pathlib import Path
from typing import Any

from kbr_localization.datasets import Dataset
from kbr_localization.datasets.frame import identity
from kbr_localization.datasets.selection import outside_fixes
from kbr_localization.errors import EvaluationError, LocalizationError
from kbr_localization.evaluation.described import describe_run, DescribedRun, on_described_run
from kbr_localization.evaluation.metrics import (
    Metrics,
    reference_trajectory,
    run_errors,
    run_metrics,
)
from kbr_localization.evaluation.tum import write_tum
from kbr_localization.files import claim, new_file, read_json_lines, write_text
from kbr_localization.localization.localizer import Localizer, PoseEstimate
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.fkbf import FEWEST
from kbr_localization.localization.methods.registry import METHODS
from kbr_localization.localization.pipeline import localize
from kbr_localization.progress import Progress, silent
from kbr_localization.resources import code_state
from kbr_localization.se2 import FloatArray
from kbr_localization.trajectory import Trajectory
from kbr_localization.workers import Workers
import numpy as np

PLAN, OUTCOMES, ROWS, MAP = 'plan.json', 'trials.jsonl', 'rows.json', 'map.h5'
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

logger = logging.getLogger(__name__)


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

    `trajectories`: of the test runs. `belief`: points (k, 3) at some moments of the first test
    run, for the first trial of a method that has one.
    """

    outcome: Outcome
    trajectories: list[Trajectory]
    belief: FloatArray


def compare(
    make_map: Callable[[], KernelMap],
    made_of: Any,
    test: Sequence[Dataset],
    plan: ComparisonPlan,
    out: Path,
    workers: Workers | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """
    Compare methods over map sizes in a folder, or continue a comparison that was interrupted.

    `make_map`: loads or builds the map; `made_of`: what it is made of, as JSON has it. Returns the
    rows of `comparison_rows`. The folder gets them as `rows.json`, the map, the trials and the
    trajectories of the first ones. Raises EvaluationError for a folder of another comparison,
    sizes above the map's, and test runs without reference.
    """
    if out.exists() and not out.is_dir():
        raise EvaluationError(f'{out} is a file: expected a folder, or the name of a new one')
    for dataset in test:
        if not len(reference_trajectory(dataset)):
            raise EvaluationError(
                outside_fixes(dataset)
                or f'{dataset.name} has no reference poses: expected test runs with ground truth'
            )
    out.mkdir(parents=True, exist_ok=True)
    with (out / OUTCOMES).open('ab') as file:
        in_use = f'{out} is in use by another process: wait for it, or give a new folder'
        claim(file, EvaluationError(in_use))
        runs = [identity(dataset) for dataset in test]
        _keep_plan(out, {'code': code_state(), 'map': made_of, 'test': runs, **asdict(plan)})
        if not (out / MAP).exists():
            made = make_map()
            refuse_large_sizes(plan, len(made))
            made.save(out / MAP)
        done = _finish(out, test, plan, workers or Workers(), progress or silent)
        rows = comparison_rows(plan, done)
        write_text(out / ROWS, json.dumps(rows, indent=2))
    return rows


def refuse_large_sizes(plan: ComparisonPlan, images: int, where: str = 'the map has') -> None:
    """Raise EvaluationError for sizes above a number of images."""
    if max(plan.sizes) > images:
        raise EvaluationError(
            f'size {max(plan.sizes)}: {where} only {images} images: give smaller --sizes'
        )


def _keep_plan(out: Path, described: dict[str, Any]) -> None:
    """Write what must not change between two sittings, or compare it with what is there."""
    file, text = out / PLAN, json.dumps(described, indent=2)
    if file.exists() and file.read_bytes() == text.encode():
        return
    # before there is a map or a trial nothing was done that another plan could spoil
    foreign = file.exists() and b'"code"' not in file.read_bytes()
    if foreign or (out / MAP).exists() or outcomes_in(out):
        raise EvaluationError(
            f'{out} holds another comparison (see {PLAN}): expected the same runs, sizes, trials, '
            'methods, parameters, seed and code of this package to go on with, or a new folder'
        )
    write_text(file, text)


def outcomes_in(out: Path) -> list[Outcome]:
    """Trials that are done, each once; what is no trial, as a cut line, is done again."""
    done: dict[Task, Outcome] = {}
    with (out / OUTCOMES).open('a+b') as file:
        values = read_json_lines(file)
    for value in values:
        try:
            outcome = Outcome(**(value | {'task': Task(**value['task'])}))
        except (ValueError, KeyError, TypeError):
            continue
        done[outcome.task] = outcome
    return list(done.values())


def _finish(
    out: Path, test: Sequence[Dataset], plan: ComparisonPlan, workers: Workers, report: Progress
) -> list[Outcome]:
    """Do what is left of the trials."""
    kernel_map, done = KernelMap.load(out / MAP), outcomes_in(out)
    finished = {outcome.task for outcome in done}
    tasks = [task for task in plan.tasks() if task not in finished]
    if not tasks:
        return done
    runs = [describe_run(kernel_map.describer, dataset, report, workers) for dataset in test]
    for run in runs:
        broken = len(run.unusable)
        if broken == len(run):
            raise EvaluationError(f'no image of {run.name} could be used: {run.unusable[0]}')
        if broken:
            logger.warning(
                '%s: skipped %d of %d images that cannot be used', run.name, broken, len(run)
            )
    total = len(done) + len(tasks)
    report('comparing', len(done), total)
    light = replace(on_described_run(kernel_map, runs[0]), thumbnails=())
    work = functools.partial(run_task, light, runs, plan.seed)
    for _, one in workers.run(work, tasks):
        _keep(out, one)
        done.append(one.outcome)
        report('comparing', len(done), total)
    return done


def _keep(out: Path, done: Done) -> None:
    """Write a finished trial, and of the first the trajectories and the belief."""
    task = done.outcome.task
    if task.trial == 0:
        (out / 'trajectories').mkdir(exist_ok=True)
        for number, trajectory in enumerate(done.trajectories):
            write_tum(trajectory_path(out, task, number), trajectory)
        if len(done.belief):
            with new_file(belief_path(out, task)) as part:
                np.savetxt(part, done.belief, fmt='%.3f')
    with (out / OUTCOMES).open('a', encoding='utf-8') as file:
        file.write(json.dumps(asdict(done.outcome)) + '\n')


def trajectory_path(out: Path, task: Task, run: int) -> Path:
    """Where the trajectory of the first trial on a test run is kept."""
    return out / 'trajectories' / f'{task.method}_{task.size}_{run}.tum'


def belief_path(out: Path, task: Task) -> Path:
    """Where the belief of the first trial on the first test run is kept: lines of x y h."""
    return trajectory_path(out, task, 0).with_suffix('.belief.txt')


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
    small, beliefs = random_map(kernel_map, task, seed), list[FloatArray]()

    def watch(localizer: Localizer, _: PoseEstimate) -> None:
        beliefs.append(localizer.particles(150))

    trajectories, summaries, times = [], [], []
    for number, run in enumerate(runs):
        known = on_described_run(small, run)
        observe = watch if (task.trial, number) == (0, 0) else None
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
        summaries.append(complete(run_metrics(errors), float(errors.travel_m[-1]), seconds))
        assert trajectory.seconds is not None and trajectory.updated is not None
        # and reading and describing the images that the localizer asked for
        describing = float(np.mean(trajectory.updated)) * run.seconds_per_image
        times.append(1000.0 * (float(np.mean(trajectory.seconds)) + describing))
    metrics = {key: _mean(summary[key] for summary in summaries) for key in summaries[0]}
    moments = np.linspace(0, len(beliefs) - 1, 9).round().astype(int) if beliefs else ()
    belief = np.concatenate([np.zeros((0, 3)), *(beliefs[moment] for moment in moments)])
    return Done(Outcome(task, metrics, float(np.mean(times))), trajectories, belief)


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
