"""
Choose parameters by cross-validation over whole runs ([MbKSR] section 6.3 does it on a grid).

A random search: candidates near the best so far localize every run that was left out. The best are
scored once more with other starts and random numbers, against the defaults. The variances of the
motion are estimated by maximum likelihood, not searched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
import functools
import hashlib
import json
import math
import os
from pathlib import Path
import pickle
from types import TracebackType
from typing import Any
import zlib

from kbr_localization.datasets import Dataset
from kbr_localization.errors import LocalizationError
from kbr_localization.files import claim, read_json_lines
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.prune import cover
from kbr_localization.localization.methods.cross_validation import (
    Fold,
    make_folds,
    Record,
    run_trial,
    Values,
)
from kbr_localization.localization.methods.registry import (
    method_config,
    method_named,
    METHODS,
    with_values,
)
from kbr_localization.progress import Progress, silent
from kbr_localization.resources import code_state
from kbr_localization.vision import VisionConfig
from kbr_localization.workers import Workers
import numpy as np

_ROUNDS, _BEST = 4, 3
"""Rounds of the search, and how many of the best are varied and scored again."""
_SEARCH, _AGAIN = (0,), (1, 2)  # seeds of the starts


def searched(method: str) -> dict[str, tuple[float, float, bool]]:
    """Return of each parameter that is tuned the range, and whether it is a whole number."""
    return {
        field.name: (*field.metadata['search'], isinstance(field.default, int))
        for field in fields(method_named(method).config)
        if field.metadata.get('search')
    }


TUNED = tuple(name for name in METHODS if searched(name))
"""Methods that have something to tune."""


@dataclass(frozen=True)
class TuningPlan:
    """
    What is tuned, and how long.

    `trials`: candidates for each method, the same for all. `sizes`: images of the maps that the
    parameters are to suit; None stands for `max_images`, or all.
    """

    methods: tuple[str, ...] = TUNED
    trials: int = 60
    max_images: int | None = None
    sizes: tuple[int | None, ...] = (None,)
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = [method for method in self.methods if method not in TUNED]
        if unknown or not self.methods or len(set(self.methods)) < len(self.methods):
            raise LocalizationError(
                f'methods to tune: expected some of {", ".join(TUNED)}, each once, got '
                f'{", ".join(unknown or self.methods) or "none"}'
            )
        images = [size for size in (*self.sizes, self.max_images) if size is not None]
        if self.trials < 1 or not self.sizes or any(size < 1 for size in images):
            raise LocalizationError(
                'tuning: expected at least one trial, one map size and one image a map, got '
                f'{self.trials} trials, sizes {list(self.sizes)}, max_images {self.max_images}'
            )


@dataclass(frozen=True)
class TunedMethod:
    """Result for a method: values found, scores (metres, lower is better) and errors."""

    method: str
    values: Values
    default_score: float
    score: float
    rmse_m: float
    lost_fraction: float
    trials: int


def tune(
    datasets: Sequence[Dataset],
    plan: TuningPlan | None = None,
    vision: VisionConfig | None = None,
    filter_config: KbrConfig | Mapping[str, Any] | None = None,
    journal: Path | None = None,
    fresh: bool = False,
    progress: Progress = silent,
    workers: Workers | None = None,
) -> tuple[KernelMap, list[TunedMethod]]:
    """
    Build a map from runs with reference poses, with parameters chosen on these runs.

    `journal`: file of the finished trials, from which a stopped tuner continues; `fresh` starts it
    again. Parameters that are not searched stay as in `filter_config`; the result does not depend
    on the workers. Raises MapError when no image can be used, LocalizationError when the runs do
    not let each other be localized.
    """
    plan = plan or TuningPlan()
    kernel_map = build_map(
        datasets, vision, filter_config, seed=plan.seed, progress=progress, workers=workers
    )
    sizes = [size or plan.max_images for size in plan.sizes]
    folds = make_folds(kernel_map, datasets, sizes, plan.seed, progress)
    # runs that cannot be tuned leave no journal
    with Journal(journal, fresh) as trials:
        kernel_map, tuned = tune_map(kernel_map, folds, plan, trials, progress, workers)
    if plan.max_images is not None:
        rng = np.random.default_rng([plan.seed, 1])
        kernel_map = kernel_map.subset(cover(kernel_map.poses, plan.max_images, rng))
    return kernel_map, tuned


def tune_map(
    kernel_map: KernelMap,
    folds: Sequence[Fold],
    plan: TuningPlan,
    journal: Journal | None = None,
    progress: Progress = silent,
    workers: Workers | None = None,
) -> tuple[KernelMap, list[TunedMethod]]:
    """
    Choose parameters for a map that holds all images of the runs of the folds.

    Returns the map with the parameters found. Raises LocalizationError when no candidate works.
    """
    study = Study(folds, plan, journal or Journal(None), progress, workers or Workers())
    results = []
    for method in plan.methods:
        results.append(study.tune(method))
        kernel_map = with_values(method, kernel_map, results[-1].values)
    return kernel_map, results


class Study:
    """Trials on the same folds, run by workers; those that the journal has are not run again."""

    def __init__(
        self,
        folds: Sequence[Fold],
        plan: TuningPlan,
        journal: Journal,
        progress: Progress,
        workers: Workers,
    ) -> None:
        self.folds, self.plan, self.journal = folds, plan, journal
        self.progress, self.workers = progress, workers
        self._data = digest(
            [code_state(), plan.seed, hashlib.sha256(pickle.dumps(folds)).hexdigest()]
        )

    def tune(self, method: str) -> TunedMethod:
        """Search a method's values, and scale its covariance to hold what it promises."""
        config, trials = method_config(method, self.folds[0].maps[0]), self.plan.trials
        default = {name: getattr(config, name) for name in searched(method)}
        rounds = [part for part in np.array_split(np.arange(trials), _ROUNDS) if part.size]
        ranking: list[tuple[float, Values]] = []
        seeds = [self.plan.seed, zlib.crc32(method.encode())]
        for number, part in enumerate(rounds):
            parents = [values for _, values in ranking[:_BEST]] or [default]
            candidates = [
                propose(method, parents[i % len(parents)], number, [*seeds, i]) for i in part
            ]
            if number == 0:
                candidates[0] = default
            found = self._score(method, candidates, _SEARCH, int(part[0]))
            ranking += zip(map(_score_of, found), candidates, strict=True)
            ranking.sort(key=lambda pair: pair[0])
        best = [values for _, values in ranking if values != default][:_BEST]
        finalists = [default, *best]
        again = self._score(method, finalists, _AGAIN, trials)
        first = int(np.argmin([_score_of(record) for record in again]))
        chosen, score = again[first], _score_of(again[first])
        if not math.isfinite(score):
            raise LocalizationError(
                f'cannot tune {method}: every candidate failed ({chosen.get("error")})'
            )
        self.progress(f'tuning {method}', trials + _BEST + 1, trials + _BEST + 1)
        scale = float(np.clip(config.covariance_scale * chosen['spread'], 1e-3, 1e3))
        return TunedMethod(
            method=method,
            values=finalists[first] | {'covariance_scale': scale},
            default_score=_score_of(again[0]),
            score=score,
            rmse_m=chosen['rmse'],
            lost_fraction=chosen['lost'],
            trials=trials,
        )

    def _score(
        self, method: str, candidates: Sequence[Values], seeds: tuple[int, ...], done: int
    ) -> list[Record]:
        """Score candidates; `done`: trials of the method before them."""
        keys = [digest([self._data, method, values, seeds]) for values in candidates]
        known = self.journal.records
        missing = {k: v for k, v in zip(keys, candidates, strict=True) if k not in known}
        done += len(keys) - len(missing)
        total = self.plan.trials + _BEST + 1
        self.progress(f'tuning {method}', done, total)
        work = functools.partial(run_trial, self.folds, method, [self.plan.seed, *seeds])
        names = list(missing)
        for count, (index, record) in enumerate(
            self.workers.run(work, list(missing.values())), start=1
        ):
            self.journal.add(names[index], {'method': method, 'seeds': seeds, **record})
            self.progress(f'tuning {method}', done + count, total)
        return [known[key] for key in keys]


def propose(method: str, parent: Values, number: int, seeds: Sequence[int]) -> Values:
    """
    Draw a candidate near another one.

    About half of the parameters change, by log-normal steps that shrink with the number of the
    round; in the first one, 0, some are drawn from the whole range instead.
    """
    rng, space, values = np.random.default_rng(seeds), searched(method), dict(parent)
    changed = rng.random(len(space)) < 0.5
    changed[rng.integers(len(space))] = True
    for (name, (low, high, whole)), change in zip(space.items(), changed, strict=True):
        if not change:
            continue
        bounds = np.log([low, high])
        step = rng.standard_normal() * (bounds[1] - bounds[0]) / 6.0 / (1 + number)
        drawn = float(np.log(max(parent[name], low))) + step
        if number == 0 and rng.random() < 0.4:
            drawn = rng.uniform(*bounds)
        value = float(np.clip(np.exp(drawn), low, high))
        # six digits: the same value before and after a file
        values[name] = round(value) if whole else float(f'{value:.6g}')
    return values


def digest(description: Any) -> str:
    """Hash of plain values, the same in every process."""
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()


class Journal:
    """
    Finished trials as JSON lines, each under the hash of all that its result depends on.

    A line is written at once and synced: a killed process leaves at most one cut line, which is
    left out when the file is read. While a journal is open no other process can open it. Without
    a path it is kept in memory alone. Raises LocalizationError for a file that cannot be used.
    """

    def __init__(self, path: Path | None, fresh: bool = False) -> None:
        self.records: dict[str, Record] = {}
        self._file = None
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open('a+b')
            in_use = 'is in use by another tuner: wait for it, or write to another file'
            claim(self._file, LocalizationError(f'{path} {in_use}'))
            if fresh:
                self._file.truncate(0)
            for record in read_json_lines(self._file):
                if isinstance(record, dict) and 'key' in record:
                    self.records[record.pop('key')] = record
        except (OSError, LocalizationError) as error:
            self.close()
            if isinstance(error, LocalizationError):
                raise
            raise LocalizationError(
                f'cannot write the trials to {path}: {error.strerror or error}'
            ) from error

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let others use the file."""
        if self._file is not None:
            self._file.close()

    def add(self, key: str, record: Record) -> None:
        """Keep the result of a trial."""
        self.records[key] = record
        if self._file is not None:
            self._file.write((json.dumps({'key': key, **record}) + '\n').encode())
            self._file.flush()
            os.fsync(self._file.fileno())


def _score_of(record: Record) -> float:
    return math.inf if record['score'] is None else float(record['score'])
