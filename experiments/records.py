"""
Records of an experiment: the numbers of each seed, trial and cell.

They are stored in results/records/<name>_<size>.json, which is replaced after each task, so that
an interrupted run can be resumed.
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
    Size of an experiment.

    `trials`: independent trials per seed; `axes`: values of the arguments whose product gives the
    cells, such as {'n': (100, 200)}; `fixed`: the other arguments of a trial.
    """

    trials: int
    axes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """One trial of one cell, with its own random numbers."""

    seed: int
    trial: int
    cell: tuple[tuple[str, Any], ...]

    @property
    def key(self) -> str:
        """Key in the JSON file."""
        parts = [*self.cell, ('seed', self.seed), ('trial', self.trial)]
        return ', '.join(f'{name} = {value}' for name, value in parts)

    def rng(self) -> np.random.Generator:
        """Return the generator of this task, which does not depend on the order of tasks."""
        return np.random.default_rng([self.seed, zlib.crc32(self.key.encode())])


@dataclass(frozen=True)
class Records:
    """Numbers of the finished tasks."""

    done: Mapping[Task, Values]

    def at(self, **cell: Any) -> list[Values]:
        """Return the values of a cell, one dictionary per replicate."""
        wanted = set(cell.items())
        return [values for task, values in self.done.items() if wanted <= set(task.cell)]

    def column(self, name: str, **cell: Any) -> Any:
        """Return one value of a cell as an array (replicates, ...)."""
        return np.array([values[name] for values in self.at(**cell)], dtype=np.float64)

    def common(self, name: str, first: Values, second: Values) -> tuple[Any, Any]:
        """Return one value in two cells, for the seeds and trials that both have."""
        sides: list[dict[Any, float]] = [{}, {}]
        for task, values in self.done.items():
            for side, cell in zip(sides, (first, second), strict=True):
                if set(cell.items()) <= set(task.cell):
                    side[task.seed, task.trial] = values[name]
        shared = [key for key in sides[0] if key in sides[1]]
        left, right = (np.array([side[key] for key in shared]) for side in sides)
        return left, right


def tasks_of(size: Size, seeds: Sequence[int] = SEEDS) -> list[Task]:
    """Return all tasks, ordered by trial, then cell, then seed."""
    cells = [
        tuple(zip(size.axes, values, strict=True))
        for values in itertools.product(*size.axes.values())
    ]
    return [
        Task(seed, trial, cell) for trial in range(size.trials) for cell in cells for seed in seeds
    ]


def stored(path: Path, tasks: Sequence[Task]) -> Records:
    """Read the records of the tasks that are in a file."""
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
    Run all tasks, or with `resume` only those that are not in the file, and store the results.

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
    # hide warnings about poor settings that a search tries
    logging.getLogger('kbr_localization.kernels').setLevel(logging.ERROR)
    with threadpool_limits(1):  # more threads would change the last bits of the results
        return task.key, _rounded(trial(task.rng(), **dict(task.cell), **fixed))


def _rounded(value: Any) -> Any:
    """Convert to JSON values with six digits, so that stored and fresh numbers are equal."""
    if isinstance(value, Mapping):
        return {str(key): _rounded(one) for key, one in value.items()}
    if isinstance(value, np.ndarray):
        return _rounded(value.tolist())
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    if isinstance(value, float | np.floating):
        return float(f'{value:.6g}')
    return value.item() if isinstance(value, np.generic) else value
