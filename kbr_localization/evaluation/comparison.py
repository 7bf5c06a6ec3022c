"""Comparison of methods on random subsets of a map, as in [MbKSR] section 6.3 and Fig. 6."""

from collections.abc import Sequence
from dataclasses import replace
import functools
import itertools
import json
import logging
from pathlib import Path
from typing import Any, NamedTuple

from kbr_localization.datasets import Dataset
from kbr_localization.errors import DatasetError, EvaluationError, LocalizationError
from kbr_localization.evaluation import metrics
from kbr_localization.evaluation.journal import digest, run_once
from kbr_localization.evaluation.metrics import Metrics, RunErrors
from kbr_localization.files import write_text
from kbr_localization.localization.map.build import describe_images
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.registry import method_named
from kbr_localization.localization.pipeline import localize
from kbr_localization.vision import Describer
import numpy as np

logger = logging.getLogger(__name__)

_MEANS = (*metrics.SUMMARY, 'position_median_m', 'coverage_2sigma', 'sharpness', 'ms_per_frame')
"""Metrics whose means over the trials are in a row."""


class DescribedRun(Dataset):
    """A run whose images are descriptors (m, d), and the mean time to describe one."""

    descriptors: np.ndarray
    seconds_per_image: float


def describe_run(describer: Describer, dataset: Dataset) -> DescribedRun:
    """Describe each image of a run once; raises EvaluationError if none can be used."""
    images = [frame.image for frame in dataset]
    described = describe_images(describer, images, f'describing {dataset.name}')
    unusable = {number: str(found.error) for number, found in enumerate(described) if found.error}
    if len(unusable) == len(images):
        reason = unusable.get(0, 'it has none')
        raise EvaluationError(f'no image of {dataset.name} could be used: {reason}')
    if unusable:
        text = '%s: skipped %d of %d images that cannot be used'
        logger.warning(text, dataset.name, len(unusable), len(images))
    unknown = np.zeros(describer.size, dtype=describer.dtype)
    descriptors = np.array([unknown if d.descriptor is None else d.descriptor for d in described])
    frames = tuple(
        replace(frame, image=functools.partial(_load, descriptors[number], unusable.get(number)))
        for number, frame in enumerate(dataset)
    )
    run = DescribedRun(dataset.name, dataset.odometry, dict(dataset.skipped), frames)
    run.descriptors = descriptors
    run.seconds_per_image = float(np.mean([found.seconds for found in described]))
    return run


def _load(descriptor: np.ndarray, error: str | None) -> np.ndarray:
    if error is not None:
        raise DatasetError(error)
    return descriptor


class Task(NamedTuple):
    method: str
    size: int
    trial: int


def plan_tasks(
    methods: Sequence[str], sizes: Sequence[int], trials: int, images: int
) -> list[Task]:
    """Return all tasks, small maps first; raises LocalizationError or EvaluationError."""
    for method in methods:
        method_named(method)
    for size in sizes:
        if not 1 <= size <= images:
            raise EvaluationError(
                f'size {size}: expected 1 to {images}, as the map has {images} images: give '
                'other --sizes'
            )
    products = itertools.product(sorted(sizes), range(trials), dict.fromkeys(methods))
    return [Task(method, size, trial) for size, trial, method in products]


def compare(
    kernel_map: KernelMap, test: Sequence[Dataset], tasks: Sequence[Task], out: Path, seed: int = 0
) -> list[dict[str, Any]]:
    """Localize test runs on random subsets of a map; write rows and trials to folder `out`."""
    if out.exists() and not out.is_dir():
        raise EvaluationError(f'{out} is a file: expected a folder, or the name of a new one')
    for dataset in test:
        metrics.required_reference(dataset)  # fail before the long work
    out.mkdir(parents=True, exist_ok=True)
    runs = [describe_run(kernel_map.describer, dataset) for dataset in test]
    used = [kernel_map.poses, kernel_map.descriptors[:], vars(kernel_map.filter_config)]
    frames = [(run.name, f.stamp_ns, f.odometry, f.reference) for run in test for f in run]
    conditions = digest(*used, kernel_map.baselines, frames, seed)
    work = functools.partial(run_task, replace(kernel_map, thumbnails=()), runs, seed)
    found = run_once('comparing', out / 'trials.jsonl', conditions, work, tasks)
    rows = comparison_rows(tasks, found)
    write_text(out / 'rows.json', json.dumps(rows, indent=2))
    return rows


def random_map(kernel_map: KernelMap, task: Task, seed: int) -> KernelMap:
    """Return a map of a random subset of the images, the same for all methods of a trial."""
    rng = np.random.default_rng([seed, task.size, task.trial])
    return kernel_map.subset(np.sort(rng.choice(len(kernel_map), task.size, replace=False)))


def run_task(
    kernel_map: KernelMap, runs: Sequence[DescribedRun], seed: int, task: Task
) -> Metrics:
    """Return the mean metrics over the runs; raises EvaluationError for too small a map."""
    small = random_map(kernel_map, task, seed)
    summaries = []
    for number, run in enumerate(runs):
        # use the same seed for all methods of a trial
        own_seed = int(np.random.default_rng([seed, task.trial, number]).integers(2**31))
        try:
            trajectory = localize(small, run, task.method, seed=own_seed)
        except LocalizationError as error:
            raise EvaluationError(
                f'{task.method} on a random map of {task.size} images: {error}: give larger '
                '--sizes, or leave it out of --methods'
            ) from error
        errors = metrics.run_errors(metrics.reference_trajectory(run), trajectory)
        summary = complete_metrics(errors)
        # add the time to read and describe the images that were used
        describing = float(np.mean(trajectory.updated)) * run.seconds_per_image
        summary['ms_per_frame'] = 1000.0 * (float(np.mean(trajectory.seconds)) + describing)
        summaries.append(summary)
    return {key: _mean([each[key] for each in summaries]) for key in summaries[0]}


def complete_metrics(errors: RunErrors) -> Metrics:
    """
    Return metrics in which a run that never got localized, or below 1 m, got there at its end.

    Means over the other runs only would favour methods that fail.
    """
    complete = metrics.run_metrics(errors)
    seconds = float(errors.stamps_ns[-1] - errors.stamps_ns[0]) * 1e-9
    if complete['below_1m_after_m'] is None:
        complete['lost_fraction_once_below_1m'] = 1.0
    for name in ('localized_after', 'below_1m_after'):
        if complete[f'{name}_m'] is None:
            complete |= {f'{name}_m': float(errors.travel_m[-1]), f'{name}_s': seconds}
    return complete


def comparison_rows(tasks: Sequence[Task], found: Sequence[Metrics]) -> list[dict[str, Any]]:
    """Return a row for each method and size: means over the trials that have a value."""
    rows = []
    for method, size in dict.fromkeys((task.method, task.size) for task in tasks):
        mine = [m for task, m in zip(tasks, found, strict=True) if task[:2] == (method, size)]
        rmse = [m['position_rmse_m'] for m in mine if m['position_rmse_m'] is not None]
        rows.append(
            {'method': method, 'size': size, 'trials': len(mine)}
            | {name: _mean([m[name] for m in mine]) for name in _MEANS}
            | {'position_rmse_m_sd': float(np.std(rmse, ddof=1)) if len(rmse) > 1 else None}
        )
    return rows


def _mean(values: Sequence[float | int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
