"""
The comparison of localization methods over map sizes, as in [MbKSR] section 6.3 and its Fig. 6.

A trial keeps a random subset of the images of a map, and every method localizes the test runs on
it from a global start. Finished trials are lines of a file in the folder of the comparison: one
that was interrupted continues.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
import functools
import itertools
import json
import logging
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from kbr_localization.datasets import Dataset
from kbr_localization.datasets.frame import identity
from kbr_localization.datasets.tracks import outside_fixes
from kbr_localization.errors import EvaluationError, LocalizationError
from kbr_localization.evaluation.described import (
    describe_run,
    DescribedRun,
    on_given_descriptors,
)
from kbr_localization.evaluation.metrics import (
    Metrics,
    reference_trajectory,
    run_errors,
    run_metrics,
)
from kbr_localization.evaluation.tum import write_tum
from kbr_localization.files import claim, read_json_lines, write_text
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.on_map import FEWEST
from kbr_localization.localization.methods.registry import METHODS
from kbr_localization.localization.pipeline import localize
from kbr_localization.progress import Progress, silent
from kbr_localization.resources import code_state
from kbr_localization.trajectory import Trajectory
from kbr_localization.workers import Workers
import numpy as np

MAP = 'map.h5'
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
    'ms_per_frame': 'ms_per_frame',
    'position_rmse_m_mean': 'position_rmse_m',
}
"""Columns of a row that are means over the trials, and the metrics that they are of."""
logger = logging.getLogger(__name__)


class Task(NamedTuple):
    """One method on one random map."""

    method: str
    size: int
    trial: int


@dataclass(frozen=True)
class ComparisonPlan:
    """What is compared: sizes of the map in images, trials per size, methods, seed."""

    sizes: tuple[int, ...]
    trials: int
    methods: tuple[str, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1 or self.trials < 1 or not self.methods:
            raise EvaluationError(
                'comparison: expected at least one size of one image, one trial and one method, '
                f'got sizes {list(self.sizes)}, {self.trials} trials, methods {list(self.methods)}'
            )
        wrong = [m for m in self.methods if m not in METHODS or self.methods.count(m) > 1]
        if wrong:
            raise EvaluationError(
                f'method {wrong[0]!r}: expected some of {", ".join(METHODS)}, each of them once'
            )
        if 'fkbf' in self.methods and min(self.sizes) < FEWEST:
            raise EvaluationError(
                f'size {min(self.sizes)}: fkbf learns the motion from {FEWEST} images or more: '
                'give larger --sizes, or leave it out of --methods'
            )

    def check_sizes(self, images: int) -> None:
        """Raise EvaluationError for sizes above a number of images."""
        if max(self.sizes) > images:
            raise EvaluationError(
                f'size {max(self.sizes)}: the map has only {images} images: give smaller --sizes'
            )

    def tasks(self) -> list[Task]:
        """All of the work, the small maps first."""
        trials = itertools.product(self.sizes, range(self.trials), self.methods)
        return [Task(method, size, trial) for size, trial, method in trials]


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
    workers, report = workers or Workers(), progress or silent
    if out.exists() and not out.is_dir():
        raise EvaluationError(f'{out} is a file: expected a folder, or the name of a new one')
    for dataset in test:
        if not len(reference_trajectory(dataset)):
            raise EvaluationError(
                outside_fixes(dataset)
                or f'{dataset.name} has no reference poses: expected test runs with ground truth'
            )
    out.mkdir(parents=True, exist_ok=True)
    with (out / 'trials.jsonl').open('a+b') as journal:
        in_use = f'{out} is in use by another process: wait for it, or give a new folder'
        claim(journal, EvaluationError(in_use))
        made = {'code': code_state(), 'map': made_of, 'test': [identity(run) for run in test]}
        done = _finished(journal, json.loads(json.dumps(made | asdict(plan))), out)
        if not (out / MAP).exists():
            whole = make_map()
            plan.check_sizes(len(whole))
            whole.save(out / MAP)
        planned = plan.tasks()
        tasks = [task for task in planned if task not in done]
        if tasks:
            kernel_map = KernelMap.load(out / MAP)
            runs = _described(kernel_map, test, workers, report)
            light = replace(on_given_descriptors(kernel_map), thumbnails=())
            work = functools.partial(run_task, light, runs, plan.seed)
            (out / 'trajectories').mkdir(exist_ok=True)
            for number, (metrics, trajectories) in workers.run(work, tasks):
                task = tasks[number]
                if task.trial == 0:
                    for run, trajectory in enumerate(trajectories):
                        write_tum(trajectory_path(out, task, run), trajectory)
                journal.write(json.dumps({'task': task, 'metrics': metrics}).encode() + b'\n')
                journal.flush()
                done[task] = metrics
                report('comparing', len(done), len(planned))
        rows = comparison_rows(plan, done)
        write_text(out / 'rows.json', json.dumps(rows, indent=2))
    return rows


def _finished(journal: BinaryIO, plan: dict[str, Any], out: Path) -> dict[Task, Metrics]:
    """Metrics of the trials in a journal, whose first line is what must not change."""
    lines, done = read_json_lines(journal), {}
    if not lines:
        journal.write(json.dumps(plan).encode() + b'\n')
    elif lines[0] != plan:
        raise EvaluationError(
            f'{out} holds another comparison: expected the same runs, sizes, trials, methods, '
            'parameters, seed and code of this package to go on with, or a new folder'
        )
    for line in lines[1:]:
        with suppress(KeyError, TypeError):  # it was cut off: the trial is done again
            done[Task(*line['task'])] = line['metrics']
    return done


def _described(
    kernel_map: KernelMap, test: Sequence[Dataset], workers: Workers, report: Progress
) -> list[DescribedRun]:
    runs = [describe_run(kernel_map.describer, dataset, report, workers) for dataset in test]
    for run in runs:
        broken = len(run.unusable)
        if broken == len(run):
            raise EvaluationError(f'no image of {run.name} could be used: {run.unusable[0]}')
        if broken:
            what = '%s: skipped %d of %d images that cannot be used'
            logger.warning(what, run.name, broken, len(run))
    return runs


def trajectory_path(out: Path, task: Task, run: int) -> Path:
    """Where the trajectory of the first trial on a test run is kept."""
    return out / 'trajectories' / f'{task.method}_{task.size}_{run}.tum'


def random_map(kernel_map: KernelMap, task: Task, seed: int) -> KernelMap:
    """Keep a random subset of the map's images, the same for every method of a trial."""
    rng = np.random.default_rng([seed, task.size, task.trial])
    return kernel_map.subset(np.sort(rng.choice(len(kernel_map), task.size, replace=False)))


def run_task(
    kernel_map: KernelMap, runs: Sequence[DescribedRun], seed: int, task: Task
) -> tuple[Metrics, list[Trajectory]]:
    """
    Localize the test runs with one method on one random map; means of metrics, and trajectories.

    Raises EvaluationError for a map that the method cannot do with.
    """
    small = on_given_descriptors(random_map(kernel_map, task, seed))
    trajectories, summaries = [], []
    for number, run in enumerate(runs):
        # the same for every method of a trial
        own_seed = int(np.random.default_rng([seed, task.trial, number]).integers(2**31))
        try:
            trajectory = localize(small, run, task.method, seed=own_seed)
        except LocalizationError as error:
            raise EvaluationError(
                f'{task.method} on a random map of {task.size} images: {error}: give larger '
                '--sizes, or leave it out of --methods'
            ) from error
        errors = run_errors(reference_trajectory(run), trajectory)
        trajectories.append(trajectory)
        seconds = float(errors.stamps_ns[-1] - errors.stamps_ns[0]) * 1e-9
        summary = complete(run_metrics(errors), float(errors.travel_m[-1]), seconds)
        assert trajectory.seconds is not None and trajectory.updated is not None
        # and reading and describing the images that the localizer asked for
        describing = float(np.mean(trajectory.updated)) * run.seconds_per_image
        summary['ms_per_frame'] = 1000.0 * (float(np.mean(trajectory.seconds)) + describing)
        summaries.append(summary)
    return {key: _mean([each[key] for each in summaries]) for key in summaries[0]}, trajectories


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


def comparison_rows(plan: ComparisonPlan, done: Mapping[Task, Metrics]) -> list[dict[str, Any]]:
    """
    Reduce the trials of every method and size to one row.

    Means over the trials that have a value, and the standard deviation of the RMSE, None of one.
    `lost_fraction` is over the frames once the error was below 1 m. A run that was never enters
    it with 1, and `..._after_...` with its length; `rmse_once_below_1m_m_mean` leaves it out, and
    `position_median_m` leaves infinite ones out.
    """
    rows = []
    for method, size in itertools.product(plan.methods, plan.sizes):
        # in one order, as another one changes the last bit of a mean
        found = [done.get(Task(method, size, trial)) for trial in range(plan.trials)]
        mine = [metrics for metrics in found if metrics is not None]
        rmse = [m['position_rmse_m'] for m in mine if m['position_rmse_m'] is not None]
        if mine:
            rows.append(
                {'method': method, 'size': size, 'trials': len(mine)}
                | {name: _mean([m[key] for m in mine]) for name, key in _MEANS.items()}
                | {'position_rmse_m_sd': float(np.std(rmse, ddof=1)) if len(rmse) > 1 else None}
            )
    return rows


def _mean(values: Sequence[float | int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
