"""A comparison in a folder: it can be stopped at any time and goes on where it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
import json
import logging
from pathlib import Path
from typing import Any

from kbr_localization.datasets import Dataset
from kbr_localization.datasets.frame import identity
from kbr_localization.datasets.selection import outside_fixes
from kbr_localization.errors import EvaluationError
from kbr_localization.evaluation.association import reference_trajectory
from kbr_localization.evaluation.described import describe_run, DescribedRun
from kbr_localization.evaluation.protocol import (
    comparison_rows,
    ComparisonPlan,
    Done,
    Outcome,
    run_tasks,
    Task,
)
from kbr_localization.evaluation.tum import write_tum
from kbr_localization.files import claim, new_file, read_json_lines, write_text
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.file import count_images
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.progress import Progress, silent
from kbr_localization.resources import code_state
from kbr_localization.vision import VisionConfig
from kbr_localization.workers import Workers
import numpy as np

PLAN, OUTCOMES, ROWS = 'plan.json', 'trials.jsonl', 'rows.json'
MAP = 'map.h5'

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MapSource:
    """Where the map of all training images comes from: a file that is `ready`, or the runs."""

    ready: Path | None = None
    vision: VisionConfig = field(default_factory=VisionConfig)
    filter_config: KbrConfig | Mapping[str, Any] = field(default_factory=dict)

    def make(
        self, training: Sequence[Dataset], seed: int, workers: Workers, report: Progress
    ) -> KernelMap:
        """Load the map, or build it."""
        if self.ready is not None:
            return KernelMap.load(self.ready)
        return build_map(training, self.vision, self.filter_config, None, seed, report, workers)

    def describe(self) -> dict[str, Any]:
        """Return what must not change between two sittings."""
        described = asdict(self)
        if self.ready is None:
            return described
        file = self.ready.stat()
        return described | {'ready': [str(self.ready.resolve()), file.st_size, file.st_mtime_ns]}


class ComparisonFolder:
    """
    Files of a comparison: the plan, the map, one line per finished trial, the rows.

    While it is claimed no other process can claim it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def claim(self, description: dict[str, Any]) -> Iterator[None]:
        """Start or take up the comparison; raises EvaluationError when it is another one."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / OUTCOMES).open('ab') as file:
            in_use = (
                f'{self.path} is in use: another process is at this comparison; wait for it, '
                'or give a new folder'
            )
            claim(file, EvaluationError(in_use))
            self._keep_plan(description)
            yield

    def _keep_plan(self, description: dict[str, Any]) -> None:
        plan = self.path / PLAN
        found = _read_plan(plan) if plan.exists() else {'code': description['code']}
        if found == description:
            return
        # before there is a map or a trial nothing was done that another plan could spoil
        if (self.path / MAP).exists() or self.outcomes() or 'code' not in found:
            raise EvaluationError(
                f'{self.path} holds another comparison (see {PLAN}): expected the same runs, '
                'sizes, trials, methods, parameters, seed and code of this package to go on with, '
                'or a new folder'
            )
        write_text(plan, json.dumps(description, indent=2))

    def outcomes(self) -> list[Outcome]:
        """Trials that are done, each once; what is no trial, as a cut line, is done again."""
        done: dict[Task, Outcome] = {}
        with (self.path / OUTCOMES).open('a+b') as file:
            values = read_json_lines(file)
        for value in values:
            try:
                outcome = Outcome(**(value | {'task': Task(**value['task'])}))
            except (ValueError, KeyError, TypeError):
                continue
            done[outcome.task] = outcome
        return list(done.values())

    def add(self, done: Done) -> None:
        """Keep a finished trial, and of the first the trajectories and the belief."""
        if done.outcome.task.trial == 0:
            self._write_trajectories(done)
        with (self.path / OUTCOMES).open('a', encoding='utf-8') as file:
            file.write(json.dumps(asdict(done.outcome)) + '\n')

    def trajectory_path(self, method: str, size: int, run: int) -> Path:
        """Where the trajectory of the first trial on a test run is kept."""
        return self.path / 'trajectories' / f'{method}_{size}_{run}.tum'

    def belief_path(self, method: str, size: int) -> Path:
        """Where the belief of the first trial on the first test run is kept: lines of x y h."""
        return self.path / 'trajectories' / f'{method}_{size}_0.belief.txt'

    def _write_trajectories(self, done: Done) -> None:
        (self.path / 'trajectories').mkdir(exist_ok=True)
        method, size = done.outcome.task.method, done.outcome.task.size
        for number, trajectory in enumerate(done.trajectories):
            write_tum(self.trajectory_path(method, size, number), trajectory)
        if len(done.belief):
            with new_file(self.belief_path(method, size)) as part:
                np.savetxt(part, done.belief, fmt='%.3f')


def compare(
    training: Sequence[Dataset],
    test: Sequence[Dataset],
    plan: ComparisonPlan,
    out: Path,
    source: MapSource | None = None,
    workers: Workers | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """
    Compare methods over map sizes, or go on with a comparison that was stopped.

    Returns the rows of `comparison_rows`; they are also written to `rows.json` in `out`, beside
    the map of all training images, the trials and the first trajectories. Raises EvaluationError
    for a folder of another comparison, sizes above the map's, and test runs without reference.
    """
    report, workers = progress or silent, workers or Workers()
    source = source or MapSource()
    if out.exists() and not out.is_dir():
        raise EvaluationError(f'{out} is a file: expected a folder, or the name of a new one')
    where = 'the training runs have' if source.ready is None else 'the map has'
    _refuse_large_sizes(plan, images_of(training, source), where)
    _refuse_unknown_poses(test)
    description = _description(training, test, plan, source)
    folder = ComparisonFolder(out)
    with folder.claim(description):
        if not (out / MAP).exists():
            made = source.make(training, plan.seed, workers, report)
            _refuse_large_sizes(plan, len(made))
            made.save(out / MAP)
        kernel_map = KernelMap.load(out / MAP)
        done = _finish(folder, kernel_map, test, plan, workers, report)
        rows = comparison_rows(plan, done)
        write_text(out / ROWS, json.dumps(rows, indent=2))
    return rows


def images_of(training: Sequence[Dataset], source: MapSource) -> int:
    """Count the images that a map can have at most."""
    return sum(map(len, training)) if source.ready is None else count_images(source.ready)


def _finish(
    folder: ComparisonFolder,
    kernel_map: KernelMap,
    test: Sequence[Dataset],
    plan: ComparisonPlan,
    workers: Workers,
    report: Progress,
) -> list[Outcome]:
    """Do what is left of the trials."""
    done = folder.outcomes()
    finished = {outcome.task for outcome in done}
    tasks = [task for task in plan.tasks() if task not in finished]
    if not tasks:
        return done
    runs = [describe_run(kernel_map.describer, dataset, report, workers) for dataset in test]
    _tell_unusable(runs)
    total = len(done) + len(tasks)
    report('comparing', len(done), total)
    for one in run_tasks(kernel_map, runs, tasks, plan.seed, workers):
        folder.add(one)
        done.append(one.outcome)
        report('comparing', len(done), total)
    return done


def _refuse_unknown_poses(test: Sequence[Dataset]) -> None:
    for dataset in test:
        if not len(reference_trajectory(dataset)):
            raise EvaluationError(
                outside_fixes(dataset)
                or f'{dataset.name} has no reference poses: expected test runs with ground truth'
            )


def _tell_unusable(runs: Sequence[DescribedRun]) -> None:
    for run in runs:
        broken = len(run.unusable)
        if broken == len(run):
            raise EvaluationError(f'no image of {run.name} could be used: {run.unusable[0]}')
        if broken:
            logger.warning(
                '%s: skipped %d of %d images that cannot be used', run.name, broken, len(run)
            )


def _refuse_large_sizes(plan: ComparisonPlan, images: int, where: str = 'the map has') -> None:
    if max(plan.sizes) > images:
        raise EvaluationError(
            f'size {max(plan.sizes)}: {where} only {images} images: give smaller --sizes'
        )


def _description(
    training: Sequence[Dataset],
    test: Sequence[Dataset],
    plan: ComparisonPlan,
    source: MapSource,
) -> dict[str, Any]:
    """Collect what must not change between two sittings, as it comes back from JSON."""
    described = {
        'code': code_state(),
        'training': [identity(dataset) for dataset in training],
        'test': [identity(dataset) for dataset in test],
        'map': source.describe(),
        **asdict(plan),
    }
    result: dict[str, Any] = json.loads(json.dumps(described))
    return result


def _read_plan(path: Path) -> dict[str, Any]:
    """Read what is there; nothing from what is no plan."""
    try:
        found = json.loads(path.read_bytes())
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
