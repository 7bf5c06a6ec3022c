"""A comparison in a folder: it can be stopped at any time and goes on where it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
import json
from pathlib import Path
from typing import Any

from kbr_localization import __version__
from kbr_localization.datasets import Dataset
from kbr_localization.errors import EvaluationError
from kbr_localization.evaluation.described import describe_run, DescribedRun
from kbr_localization.evaluation.protocol import (
    comparison_rows,
    ComparisonPlan,
    Outcome,
    run_tasks,
)
from kbr_localization.evaluation.tum import write_tum
from kbr_localization.localization.config import FilterConfig
from kbr_localization.localization.kernel_map import KernelMap
from kbr_localization.localization.mapping import build_map
from kbr_localization.localization.tuning import tune, TuningPlan
from kbr_localization.localization.tuning_space import TUNED
from kbr_localization.progress import Progress, silent
from kbr_localization.trajectory import Trajectory
from kbr_localization.vision import VisionConfig
from kbr_localization.workers import ThisProcess, Workers

PLAN, OUTCOMES, ROWS = 'plan.json', 'trials.jsonl', 'rows.json'
MAP, TUNING = 'map.h5', 'tuning.jsonl'


@dataclass(frozen=True)
class MapSource:
    """
    Where the map of all training images comes from.

    `ready`: a map file, otherwise it is built of the training runs. `tuning_trials`: candidates
    for each method that are tried on the training runs to choose its parameters; 0 keeps those of
    `filter_config`. The map sizes of the plan are what they are to suit.
    """

    ready: Path | None = None
    tuning_trials: int = 0
    vision: VisionConfig = field(default_factory=VisionConfig)
    filter_config: FilterConfig | Mapping[str, Any] = field(default_factory=dict)

    def make(
        self,
        training: Sequence[Dataset],
        plan: ComparisonPlan,
        journal: Path,
        workers: Workers,
        report: Progress,
    ) -> KernelMap:
        """Load, build, or tune the map."""
        if self.ready is not None:
            return KernelMap.load(self.ready)
        configurations = (self.vision, self.filter_config)
        methods = tuple(method for method in plan.methods if method in TUNED)
        if not (self.tuning_trials and methods):
            return build_map(training, *configurations, None, plan.seed, report, workers)
        tuning = TuningPlan(
            methods,
            self.tuning_trials,
            sizes=plan.sizes,
            seed=plan.seed,
            random_maps=True,
        )
        return tune(training, tuning, *configurations, journal, False, report, workers)[0]

    def describe(self) -> dict[str, Any]:
        """Return what must not change between two sittings."""
        described = asdict(self)
        return described | {'ready': None if self.ready is None else str(self.ready)}


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
    source: MapSource | None = None,
    workers: Workers | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """
    Compare methods over map sizes, or go on with a comparison that was stopped.

    Returns the rows of `comparison_rows`; they are also written to `rows.json` in `out`, beside
    the map of all training images, the trials and the first trajectories. Raises EvaluationError
    for a folder of another comparison and for sizes above the map's.
    """
    report, workers = progress or silent, workers or ThisProcess()
    source = source or MapSource()
    if source.ready is None:
        _refuse_large_sizes(plan, sum(len(dataset) for dataset in training))
    folder = ComparisonFolder(out)
    folder.claim(_description(training, test, plan, source))
    if not (out / MAP).exists():
        source.make(training, plan, out / TUNING, workers, report).save(out / MAP)
    kernel_map = KernelMap.load(out / MAP)
    _refuse_large_sizes(plan, len(kernel_map))
    runs = [describe_run(kernel_map.describer, dataset, report, workers) for dataset in test]
    done = _finish(folder, kernel_map, runs, plan, workers, report)
    rows = comparison_rows(plan, done)
    (out / ROWS).write_text(json.dumps(rows, indent=2), encoding='utf-8')
    return rows


def _finish(
    folder: ComparisonFolder,
    kernel_map: KernelMap,
    runs: Sequence[DescribedRun],
    plan: ComparisonPlan,
    workers: Workers,
    report: Progress,
) -> list[Outcome]:
    """Do what is left of the trials."""
    done = folder.outcomes()
    finished = {outcome.task for outcome in done}
    tasks = [task for task in plan.tasks() if task not in finished]
    total = len(done) + len(tasks)
    report('comparing', len(done), total)
    for outcome, trajectories in run_tasks(kernel_map, runs, tasks, plan.seed, workers):
        folder.add(outcome, trajectories)
        done.append(outcome)
        report('comparing', len(done), total)
    return done


def _refuse_large_sizes(plan: ComparisonPlan, images: int) -> None:
    if max(plan.sizes) > images:
        raise EvaluationError(
            f'size {max(plan.sizes)}: the training runs have only {images} images'
        )


def _description(
    training: Sequence[Dataset],
    test: Sequence[Dataset],
    plan: ComparisonPlan,
    source: MapSource,
) -> dict[str, Any]:
    """Collect what must not change between two sittings, as it comes back from JSON."""
    described = {
        'package_version': __version__,
        'training': [[dataset.name, len(dataset)] for dataset in training],
        'test': [[dataset.name, len(dataset)] for dataset in test],
        'map': source.describe(),
        **asdict(plan),
    }
    result: dict[str, Any] = json.loads(json.dumps(described))
    return result
