"""
Records of an experiment: one for each seed, trial and cell, stored as soon as they are known.

The numbers are in results/records/<name>_<size>.json, which is replaced as a whole after every
task, so that an interrupted run continues where it was.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
import itertools
import json
import logging
from pathlib import Path
from typing import Any
import zlib

from joblib import delayed, Parallel
from kbr_localization.files import write_text
import numpy as np
from threadpoolctl import threadpool_limits

Values = dict[str, Any]
Trial = Callable[..., Values]
SEEDS = (0, 1, 2, 3, 4)


@dataclass(frozen=True)
class Size:
    """
    How much of an experiment is run.

    `trials`: independent ones for each seed; `axes`: the cells are their product, as in
    {'n': (100, 200)}; `fixed`: the other arguments of a trial.
    """

    trials: int
    axes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """One trial of one cell: its random numbers depend on nothing else."""

    seed: int
    trial: int
    cell: tuple[tuple[str, Any], ...]

    @property
    def key(self) -> str:
        """Name in the store."""
        parts = [*self.cell, ('seed', self.seed), ('trial', self.trial)]
        return ', '.join(f'{name} = {value}' for name, value in parts)

    def rng(self) -> np.random.Generator:
        """Return the task's own generator, the same in whatever order the tasks are run."""
        return np.random.default_rng([self.seed, zlib.crc32(self.key.encode())])


@dataclass(frozen=True)
class Records:
    """What the tasks found that are done."""

    done: Mapping[Task, Values]

    def at(self, **cell: Any) -> list[Values]:
        """Values of the cell, one for each replicate."""
        wanted = set(cell.items())
        return [values for task, values in self.done.items() if wanted <= set(task.cell)]

    def column(self, name: str, **cell: Any) -> Any:
        """One value of the cell as an array (replicates, ...)."""
        return np.array([values[name] for values in self.at(**cell)], dtype=np.float64)

    def common(self, name: str, first: Values, second: Values) -> tuple[Any, Any]:
        """One value in two cells, of the seeds and trials that both have."""
        sides: list[dict[Any, float]] = [{}, {}]
        for task, values in self.done.items():
            for side, cell in zip(sides, (first, second), strict=True):
                if set(cell.items()) <= set(task.cell):
                    side[task.seed, task.trial] = values[name]
        shared = [key for key in sides[0] if key in sides[1]]
        left, right = (np.array([side[key] for key in shared]) for side in sides)
        return left, right


def tasks_of(size: Size, seeds: Sequence[int] = SEEDS) -> list[Task]:
    """All tasks: every first trial before a second one, of the first cell for all seeds first."""
    cells = [
        tuple(zip(size.axes, values, strict=True))
        for values in itertools.product(*size.axes.values())
    ]
    return [
        Task(seed, trial, cell) for trial in range(size.trials) for cell in cells for seed in seeds
    ]


def stored(path: Path, tasks: Sequence[Task]) -> Records:
    """Read the records of those tasks that a file has."""
    values = _read(path)
    return Records({task: values[task.key] for task in tasks if task.key in values})


def run_tasks(
    trial: Trial,
    fixed: Mapping[str, Any],
    tasks: Sequence[Task],
    path: Path,
    resume: bool,
    jobs: int = 1,
) -> Records:
    """
    Run all tasks, or with `resume` those that the file lacks, and keep what it has.

    `trial(rng, **cell, **fixed)` returns JSON values.
    """
    known = _read(path) if resume else {}
    missing = [task for task in tasks if task.key not in known]
    parallel = Parallel(jobs, return_as='generator_unordered', pre_dispatch=jobs)
    for key, values in parallel(delayed(_run)(trial, fixed, task) for task in missing):
        known[key] = values
        ordered = [task.key for task in tasks if task.key in known]
        _write(path, {key: known[key] for key in dict.fromkeys([*ordered, *known])})
    return Records({task: known[task.key] for task in tasks})


def _read(path: Path) -> dict[str, Values]:
    found: dict[str, Values] = json.loads(path.read_text('utf-8')) if path.exists() else {}
    return found


def _write(path: Path, values: Mapping[str, Values]) -> None:
    lines = [
        f'{json.dumps(key, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}'
        for key, value in values.items()
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, '{\n' + ',\n'.join(lines) + '\n}\n')


def _run(trial: Trial, fixed: Mapping[str, Any], task: Task) -> tuple[str, Any]:
    # of poor settings that a search tries
    logging.getLogger('kbr_localization.kernels').setLevel(logging.ERROR)
    with threadpool_limits(1):  # more threads would change the last bits, and what is stored
        return task.key, _rounded(trial(task.rng(), **dict(task.cell), **fixed))


def _rounded(value: Any) -> Any:
    """Plain JSON with floats of six digits, so that stored and fresh numbers are the same."""
    if isinstance(value, Mapping):
        return {str(key): _rounded(one) for key, one in value.items()}
    if isinstance(value, np.ndarray):
        return _rounded(value.tolist())
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    if isinstance(value, float | np.floating):
        return float(f'{value:.6g}')
    return value.item() if isinstance(value, np.generic) else value
