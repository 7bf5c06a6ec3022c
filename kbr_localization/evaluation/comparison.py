"""A comparison in a folder: it can be stopped at any time and goes on where it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
import json
from pathlib import Path
from typing import Any

from kbr_localization import __version__
from kbr_localization.datasets import Dataset
from kbr_localization.errors import EvaluationError
from kbr_localization.evaluation.described import describe_run
from kbr_localization.evaluation.protocol import (
    comparison_rows,
    ComparisonPlan,
    Outcome,
    run_tasks,
)
from kbr_localization.evaluation.tum import write_tum
from kbr_localization.localization.kernel_map import KernelMap
from kbr_localization.localization.mapping import build_map
from kbr_localization.trajectory import Trajectory

Progress = Callable[[str, int, int], None]

PLAN, OUTCOMES, ROWS, MAP = 'plan.json', 'trials.jsonl', 'rows.json', 'map.h5'


class ComparisonFolder:
    """Files of a comparison: the plan, the map, one line per finished trial, the rows."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def claim(self, description: dict[str, Any]) -> None:
        """Start or take up the comparison; raises EvaluationError when it is another one."""
        self.path.mkdir(parents=True, exist_ok=True)
        plan = self.path / PLAN
        if not plan.exists():
            plan.write_text(json.dumps(description, indent=2), encoding='utf-8')
            return
        try:
            found = json.loads(plan.read_text(encoding='utf-8'))
        except ValueError:
            found = None
        if found != description:
            raise EvaluationError(
                f'{self.path} holds another comparison (see {PLAN}): expected the same runs, '
                'sizes, trials, methods, parameters and seed to go on with, or a new folder'
            )

    def outcomes(self) -> list[Outcome]:
        """Trials that are done; a line that a crash cut off is dropped."""
        path = self.path / OUTCOMES
        if not path.exists():
            return []
        lines = path.read_text(encoding='utf-8').split('\n')
        path.write_text('\n'.join([*lines[:-1], '']), encoding='utf-8')
        return [Outcome.from_json(json.loads(line)) for line in lines[:-1]]

    def add(self, outcome: Outcome, trajectories: Sequence[Trajectory]) -> None:
        """Keep a finished trial, and the trajectories of the first."""
        if outcome.task.trial == 0:
            self._write_trajectories(outcome, trajectories)
        with (self.path / OUTCOMES).open('a', encoding='utf-8') as file:
            file.write(json.dumps(outcome.to_json()) + '\n')

    def trajectory_path(self, method: str, size: int, run: int) -> Path:
        """Where the trajectory of the first trial on a test run is kept."""
        return self.path / 'trajectories' / f'{method}_{size}_{run}.tum'

    def _write_trajectories(self, outcome: Outcome, trajectories: Sequence[Trajectory]) -> None:
        (self.path / 'trajectories').mkdir(exist_ok=True)
        for number, trajectory in enumerate(trajectories):
            task = outcome.task
            write_tum(self.trajectory_path(task.method, task.size, number), trajectory)


def compare(
    training: Sequence[Dataset],
    test: Sequence[Dataset],
    plan: ComparisonPlan,
    out: Path,
    build: Callable[..., KernelMap] = build_map,
    jobs: int = 1,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """
    Compare methods over map sizes, or go on with a comparison that was stopped.

    `build` makes the map of all training images. Returns the rows of `comparison_rows`; they are
    also written to `rows.json` in `out`, beside the map, the trials and the first trajectories.
    Raises EvaluationError for a folder of another comparison and for sizes above the map's.
    """
    report = progress or (lambda what, done, total: None)
    _refuse_large_sizes(plan, sum(len(dataset) for dataset in training))
    folder = ComparisonFolder(out)
    folder.claim(_description(training, test, plan))
    kernel_map = _map(folder, training, build, plan, report)
    runs = [describe_run(kernel_map.describer, dataset, report) for dataset in test]
    done = folder.outcomes()
    finished = {outcome.task for outcome in done}
    tasks = [task for task in plan.tasks() if task not in finished]
    total = len(done) + len(tasks)
    report('comparing', len(done), total)
    for outcome, trajectories in run_tasks(kernel_map, runs, tasks, plan.seed, jobs):
        folder.add(outcome, trajectories)
        done.append(outcome)
        report('comparing', len(done), total)
    rows = comparison_rows(plan, done)
    (out / ROWS).write_text(json.dumps(rows, indent=2), encoding='utf-8')
    return rows


def _refuse_large_sizes(plan: ComparisonPlan, images: int) -> None:
    if max(plan.sizes) > images:
        raise EvaluationError(
            f'size {max(plan.sizes)}: the training runs have only {images} images'
        )


def _map(
    folder: ComparisonFolder,
    training: Sequence[Dataset],
    build: Callable[..., KernelMap],
    plan: ComparisonPlan,
    report: Progress,
) -> KernelMap:
    path = folder.path / MAP
    if path.exists():
        return KernelMap.load(path)
    kernel_map = build(training, seed=plan.seed, progress=report)
    kernel_map.save(path)
    return kernel_map


def _description(
    training: Sequence[Dataset], test: Sequence[Dataset], plan: ComparisonPlan
) -> dict[str, Any]:
    """Collect what must not change between two sittings, as it comes back from JSON."""
    described = {
        'package_version': __version__,
        'training': [[dataset.name, len(dataset)] for dataset in training],
        'test': [[dataset.name, len(dataset)] for dataset in test],
        **asdict(plan),
    }
    result: dict[str, Any] = json.loads(json.dumps(described))
    return result
