"""
Records of an experiment: one for each seed, trial and cell, stored as soon as they are known.

The numbers are in results/records/<name>_<size>.json, which is replaced as a whole after every
task, so that an interrupted run continues where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
import itertools
import json
import logging
from pathlib import Path
import time
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
class Record:
    """What a task found."""

    task: Task
    values: Values


@dataclass(frozen=True)
class Records:
    """Records of all tasks that are done."""

    done: Sequence[Record]

    def at(self, **cell: Any) -> list[Values]:
        """Values of the cell, one for each replicate."""
        return [one.values for one in self._of(cell)]

    def column(self, name: str, **cell: Any) -> Any:
        """One value of the cell as an array (replicates, ...)."""
        return np.array([values[name] for values in self.at(**cell)], dtype=np.float64)

    def common(self, name: str, first: Values, second: Values) -> tuple[Any, Any]:
        """One value in two cells, of the seeds and trials that both have."""
        sides = [
            {(one.task.seed, one.task.trial): one.values[name] for one in self._of(cell)}
            for cell in (first, second)
        ]
        shared = [key for key in sides[0] if key in sides[1]]
        left, right = ([side[key] for key in shared] for side in sides)
        return np.array(left), np.array(right)

    def _of(self, cell: Mapping[str, Any]) -> list[Record]:
        wanted = set(cell.items())
        return [one for one in self.done if wanted <= set(one.task.cell)]


def tasks_of(size: Size, seeds: Sequence[int] = SEEDS) -> list[Task]:
    """All tasks: every first trial before a second one, of the first cell for all seeds first."""
    cells = [
        tuple(zip(size.axes, values, strict=True))
        for values in itertools.product(*size.axes.values())
    ]
    return [
        Task(seed, trial, cell) for trial in range(size.trials) for cell in cells for seed in seeds
    ]


class Store:
    """A JSON file with one line for every task."""

    def __init__(self, folder: Path, name: str, size: str) -> None:
        self.path = folder / 'records' / f'{name}_{size}.json'

    def load(self, tasks: Sequence[Task]) -> dict[str, Record]:
        """Return the records of those tasks that are stored."""
        values = self._read()
        return {task.key: Record(task, values[task.key]) for task in tasks if task.key in values}

    def save(self, records: Sequence[Record], keep: bool) -> None:
        """Replace the file; with `keep`, what is stored of other tasks stays."""
        values = {one.task.key: one.values for one in records}
        others = self._read() if keep else {}
        content = values | {k: v for k, v in others.items() if k not in values}
        lines = [
            f'{json.dumps(key, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}'
            for key, value in content.items()
        ]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, '{\n' + ',\n'.join(lines) + '\n}\n')

    def _read(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.path.exists():
            found = json.loads(self.path.read_text('utf-8'))
        return found


def run_tasks(
    trial: Trial,
    fixed: Mapping[str, Any],
    tasks: Sequence[Task],
    store: Store,
    resume: bool,
    jobs: int = 1,
    minutes: float = np.inf,
) -> Records:
    """
    Run what is not stored yet; `trial(rng, **cell, **fixed)` returns JSON values.

    After `minutes` no further task is begun. With `resume` what is stored of other seeds stays.
    """
    known = store.load(tasks) if resume else {}
    missing = [task for task in tasks if task.key not in known]
    deadline = time.monotonic() + 60.0 * minutes
    for record in _outcomes(trial, fixed, missing, jobs, deadline):
        known[record.task.key] = record
        store.save(_in_order(known, tasks), keep=resume)
    return Records(_in_order(known, tasks))


def _in_order(known: Mapping[str, Record], tasks: Sequence[Task]) -> list[Record]:
    return [known[task.key] for task in tasks if task.key in known]


def _outcomes(
    trial: Trial, fixed: Mapping[str, Any], tasks: Sequence[Task], jobs: int, deadline: float
) -> Iterator[Record]:
    in_time = itertools.takewhile(lambda task: time.monotonic() < deadline, tasks)
    if jobs == 1:
        yield from (_run(trial, fixed, task) for task in in_time)
        return
    parallel = Parallel(jobs, return_as='generator_unordered', pre_dispatch=jobs)
    yield from parallel(delayed(_run)(trial, fixed, task) for task in in_time)


def _run(trial: Trial, fixed: Mapping[str, Any], task: Task) -> Record:
    # of poor settings that a search tries
    logging.getLogger('kbr_localization.kernels').setLevel(logging.ERROR)
    with threadpool_limits(1):  # more threads would change the last bits, and what is stored
        values = trial(task.rng(), **dict(task.cell), **fixed)
    return Record(task, _rounded(values))


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
