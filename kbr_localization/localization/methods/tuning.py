"""
Choose parameters by cross-validation over whole runs ([MbKSR] section 6.3 does it on a grid).

A random search: candidates near the best so far localize every run on a map of the others, and
the best are scored once more, with other starts and random numbers, against the defaults. Images
enter through their kernel alone, which does not depend on what is tuned: the Gram matrix of all
images is computed once, and a descriptor is from then on its row number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
import hashlib
import json
import logging
import math
from pathlib import Path
import pickle
from tempfile import TemporaryFile
from typing import Any
import warnings
import zlib

from kbr_localization import se2
from kbr_localization.datasets import Dataset
from kbr_localization.errors import KbrError, LocalizationError
from kbr_localization.files import claim, read_json_lines
from kbr_localization.localization.filter.wrong_places import with_statistics
from kbr_localization.localization.localizer import Localizer, LOST_M, sigma_region
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.prune import cover
from kbr_localization.localization.map.similarity import GramDescriber
from kbr_localization.localization.methods.registry import (
    make_localizer,
    method_config,
    method_named,
    METHODS,
    with_values,
)
from kbr_localization.localization.motion import measure_odometry
from kbr_localization.progress import Progress, silent
from kbr_localization.resources import code_state
from kbr_localization.se2 import FloatArray
from kbr_localization.vision import VisionConfig
from kbr_localization.workers import batches, Workers
import numpy as np

MAX_FRAMES, MAX_FOLDS, MAX_FOLD_IMAGES = 4000, 6, 500
"""Frames of all runs and runs left out that take part, and images of the maps of the others."""
FEWEST = 20
"""Frames of a run that have to lie where the others went."""
CAP_M = 3.0
"""Errors count up to this much, so that one wrong guess does not hide everything else."""
ROUNDS, BEST = 4, 3
"""Rounds of the search, and how many of the best are varied and scored again."""

Values = dict[str, float]
Record = dict[str, Any]


def searched(method: str) -> dict[str, tuple[float, float]]:
    """Return the range of each parameter that is tuned."""
    config = method_named(method).config
    return {f.name: f.metadata['search'] for f in fields(config) if f.metadata.get('search')}


TUNED = tuple(x for x, m in METHODS.items() if hasattr(m.config, 'covariance_scale'))
"""Methods that have something to tune, and a covariance to scale."""


@dataclass(frozen=True)
class Fold:
    """
    A run left out, and a map of the others.

    `rows` (m,) of its frames in the Gram matrix, `odometry` and `poses` (m, 3); `covered` (m,)
    where the other runs went: elsewhere nobody could know the answer.
    """

    rows: np.ndarray
    odometry: FloatArray
    poses: FloatArray
    covered: np.ndarray
    kernel_map: KernelMap


def tune(
    datasets: Sequence[Dataset],
    *,
    methods: Sequence[str] = TUNED,
    trials: int = 60,
    sizes: Sequence[int] = (),
    max_images: int | None = None,
    vision: VisionConfig | None = None,
    filter_values: Mapping[str, Any] | None = None,
    journal: Path | None = None,
    fresh: bool = False,
    seed: int = 0,
    progress: Progress = silent,
    workers: Workers | None = None,
) -> tuple[KernelMap, list[Record]]:
    """
    Build a map from runs with reference poses, with parameters chosen on these runs.

    Tries so many candidates for each method on maps of `sizes` images, by default `max_images`.
    Finished trials are kept in `journal`, from which a stopped tuner continues unless `fresh`; the
    workers change no result. Returns the map, and for each method values, scores (RMSE of capped
    errors plus fraction of lost frames, in metres), RMSE and fraction lost. Raises MapError when
    no image can be used, LocalizationError when the runs do not let each other be localized.
    """
    unknown = [method for method in methods if method not in TUNED]
    if unknown:
        raise LocalizationError(
            f'methods to tune: expected some of {", ".join(TUNED)}, got {", ".join(unknown)}'
        )
    kernel_map = build_map(datasets, vision, filter_values, None, seed, progress, workers)
    sizes = sizes or (max_images or MAX_FOLD_IMAGES,)
    folds, tuned = make_folds(kernel_map, datasets, sizes, seed, progress), []
    data = [code_state(), hashlib.sha256(pickle.dumps(folds)).hexdigest(), seed]
    with journal.open('a+b') if journal else TemporaryFile() as file:
        in_use = 'is in use by another tuner: wait for it, or write to another file'
        claim(file, LocalizationError(f'{journal} {in_use}'))
        if fresh:
            file.truncate(0)
        known = {line['key']: line for line in read_json_lines(file)}
        done = Counter[str]()

        def score(method: str, candidates: list[Values], *seeds: int) -> list[Record]:
            """Run the trials that the journal does not have."""
            described = [json.dumps([data, method, values, seeds]) for values in candidates]
            keys = [hashlib.sha256(text.encode()).hexdigest() for text in described]
            missing = {k: v for k, v in zip(keys, candidates, strict=True) if k not in known}
            trial, new = partial(run_trial, folds, method, [seed, *seeds]), list(missing)
            done[method] += len(keys) - len(new)
            for number, record in (workers or Workers()).run(trial, list(missing.values())):
                line = known[new[number]] = {'key': new[number], 'method': method, **record}
                file.write((json.dumps(line) + '\n').encode())
                file.flush()
                done[method] += 1
                progress(f'tuning {method}', done[method], trials + BEST + 1)
            return [known[key] for key in keys]

        for method in methods:
            default = method_config(method, folds[0].kernel_map)
            tuned.append(_search(method, default, trials, seed, partial(score, method)))
            kernel_map = with_values(method, kernel_map, tuned[-1]['values'])
    if max_images is not None:
        rng = np.random.default_rng([seed, 1])
        kernel_map = kernel_map.subset(cover(kernel_map.poses, max_images, rng))
    return kernel_map, tuned


def _search(
    method: str, config: Any, trials: int, seed: int, score: Callable[..., list[Record]]
) -> Record:
    """Search a method's values, and scale its covariance to hold what it promises."""
    default = {name: getattr(config, name) for name in searched(method)}
    rng = np.random.default_rng([seed, zlib.crc32(method.encode())])
    best, found = [default], list[Record]()
    for number, part in enumerate(np.array_split(np.arange(trials), min(ROUNDS, trials))):
        parents = [best[i % len(best)] for i in part]
        candidates = [propose(method, parent, number, rng) for parent in parents]
        candidates[0] = candidates[0] if number else default
        found = sorted([*found, *score(candidates, 0)], key=lambda record: record['score'])
        best = [record['values'] for record in found[:BEST]]
    finalists = [default, *(values for values in best if values != default)]
    again = score(finalists, 1, 2)
    chosen = min(again, key=lambda record: record['score'])
    if not math.isfinite(chosen['score']):
        raise LocalizationError(f'cannot tune {method}: every trial failed ({chosen["error"]})')
    scale = float(np.clip(config.covariance_scale * chosen['spread'], 1e-3, 1e3))
    return {
        'method': method,
        'values': chosen['values'] | {'covariance_scale': scale},
        'default_score': again[0]['score'],
        **{name: chosen[name] for name in ('score', 'rmse_m', 'lost_fraction')},
    }


def propose(method: str, parent: Values, number: int, rng: np.random.Generator) -> Values:
    """Change about half of the values, by log-normal steps that shrink in rounds 0, 1, ..."""
    values = dict(parent)
    for name, (low, high) in searched(method).items():
        step = rng.standard_normal() * np.log(high / low) / 4.0 / (1 + number)
        if rng.random() < 0.5:
            value = float(np.clip(max(parent[name], low) * np.exp(step), low, high))
            # six digits: the same value before and after a file
            values[name] = type(parent[name])(float(f'{value:.6g}'))
    return values


def make_folds(
    kernel_map: KernelMap,
    datasets: Sequence[Dataset],
    sizes: Sequence[int],
    seed: int = 0,
    progress: Progress = silent,
) -> list[Fold]:
    """
    Leave each run out, or each half of a single one; a fold for each size of the map of the rest.

    `kernel_map` holds all images of the datasets. Raises LocalizationError when too little of the
    runs lies where the others went.
    """
    stride, runs = -(-len(kernel_map) // MAX_FRAMES), []
    for number, dataset in enumerate(datasets):
        rows = np.flatnonzero(kernel_map.run_index == number)[::stride]
        at = {frame.stamp_ns: frame.odometry for frame in dataset}
        if len(rows):
            runs.append((rows, np.array([at[int(t)] for t in kernel_map.stamps_ns[rows]])))
    if len(runs) == 1:
        runs = list(zip(*(np.array_split(part, 2) for part in runs[0]), strict=True))
    rows = np.concatenate([frames for frames, _ in runs])
    owner = np.repeat(np.arange(len(runs)), [len(frames) for frames, _ in runs])
    poses = kernel_map.poses[rows]
    tracks = [(odometry, kernel_map.poses[frames]) for frames, odometry in runs]
    frames = zip(owner, poses, strict=True)
    covered = np.array(
        [se2.within(poses[owner != run], pose, 2.0, 1.0).any() for run, pose in frames]
    )
    useful = [run for run in range(len(runs)) if covered[owner == run].sum() >= FEWEST]
    if not useful:
        raise LocalizationError(
            f'cannot tune: expected a run with {FEWEST} frames where the other runs (or the other '
            f'half of a single run) went, got {covered.sum()} such frames in {len(runs)} runs: '
            'give longer runs through the same places'
        )
    numbers, gram = np.arange(len(rows)), np.empty((len(rows), len(rows)), dtype=np.float32)
    indexed = kernel_map.subset(rows)
    for part in batches(numbers, 32):
        compared = indexed.descriptors[part], indexed.descriptors[part[0] :]  # noqa: E203
        gram[part, part[0] :] = kernel_map.describer.cross_gram(*compared)  # noqa: E203
        gram[part[0] :, part] = gram[part, part[0] :].T  # noqa: E203
        progress('comparing images', int(part[-1]) + 1, len(rows))
    known = GramDescriber(gram)
    indexed = replace(indexed, descriptors=numbers[:, None], describer=known, thumbnails=())
    folds, rng = [], np.random.default_rng([seed, 0])
    for run in rng.permutation(useful)[:MAX_FOLDS]:
        own = owner == run
        rest = indexed.subset(numbers[~own])
        errors, noise = measure_odometry([t for other, t in enumerate(tracks) if other != run])
        rest = replace(rest, motion_noise=noise, calibration=errors)
        for size in sizes:
            part = rest.subset(cover(rest.poses, min(size, MAX_FOLD_IMAGES), rng))
            left_out = numbers[own], tracks[run][0], poses[own], covered[own]
            folds.append(Fold(*left_out, with_statistics(part)))
    return folds


def run_trial(folds: Sequence[Fold], method: str, seeds: Sequence[int], values: Values) -> Record:
    """
    Score a method with parameters: the mean over the folds, each from two starts.

    `seeds`: one for all, then one for each time that the runs are localized. `spread`: factor on
    the covariance that would put 95% of the positions inside of 2 sigma. A trial that fails has
    the score inf and its `error`.
    """
    drives = []
    logging.disable(logging.WARNING)  # far-fetched parameters are ill-conditioned: the score tells
    try:
        with warnings.catch_warnings(), np.errstate(all='ignore'):
            warnings.simplefilter('ignore')
            for number, fold in enumerate(folds):
                kernel_map = with_values(method, fold.kernel_map, values)
                half = np.flatnonzero(fold.covered[: len(fold.rows) // 2])
                for seed in seeds[1:]:
                    rng = np.random.default_rng([seeds[0], seed, number])
                    for start in [0, *rng.choice(half, min(half.size, 1))]:
                        localizer = make_localizer(method, kernel_map, int(rng.integers(2**31)))
                        drives.append(localize(localizer, fold, int(start)))
    except (KbrError, ArithmeticError, ValueError, np.linalg.LinAlgError) as error:
        return {'values': values, 'score': math.inf, 'error': ' '.join(str(error).split())}
    finally:
        logging.disable(logging.NOTSET)
    errors = [np.where(error < CAP_M, error, CAP_M) for error, _ in drives]
    rmse = float(np.mean([np.sqrt(np.mean(error**2)) for error in errors]))
    lost = float(np.mean([np.mean(error > LOST_M) for error in errors]))
    found = np.concatenate([surprise[error <= LOST_M] for error, surprise in drives])
    spread = np.quantile(found, 0.95) / sigma_region(2.0, 2) if found.size >= 10 else 1.0
    return {
        'values': values,
        'score': rmse + lost,
        'rmse_m': rmse,
        'lost_fraction': lost,
        'spread': float(np.clip(spread, 0.05, 100.0)),
    }


def localize(localizer: Localizer, fold: Fold, start: int) -> tuple[FloatArray, FloatArray]:
    """
    Localize the run of a fold from a frame on.

    Returns position errors (k,), inf without a pose, and their squared Mahalanobis distances, of
    every third covered frame: neighbours have nearly the same error, and the answer costs most.
    """
    localizer.initialize_globally()
    asked = set((start + np.flatnonzero(fold.covered[start:]))[::3])
    errors, surprises = [], []
    for index in range(start, len(fold.rows)):
        if index > start:
            localizer.predict(se2.between(fold.odometry[index - 1], fold.odometry[index]))
        if localizer.wants_image():
            localizer.update(fold.rows[[index]])
        if index in asked:
            estimate = localizer.estimate()
            offset = (estimate.pose - fold.poses[index])[:2]
            covariance = estimate.covariance[:2, :2] + 1e-9 * np.eye(2)
            errors.append(np.hypot(*offset) if estimate.has_pose else np.inf)
            surprises.append(offset @ np.linalg.solve(covariance, offset))
    return np.array(errors), np.array(surprises)
