"""Choose parameters by random search with cross-validation over whole runs ([MbKSR] 6.3)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
import itertools
import logging
import math
from pathlib import Path
from typing import Any
import warnings
import zlib

from kbr_localization import se2
from kbr_localization.datasets import Dataset, OdometryTrack
from kbr_localization.errors import EvaluationError, KbrError
from kbr_localization.evaluation import reference_trajectory, run_errors
from kbr_localization.evaluation.journal import digest, run_once
from kbr_localization.evaluation.metrics import RunErrors, sigma_region
from kbr_localization.localization.config import length_scale
from kbr_localization.localization.filter.wrong_places import with_statistics
from kbr_localization.localization.localizer import NO_POSE
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.prune import cover
from kbr_localization.localization.methods.registry import (
    method_config,
    method_named,
    METHODS,
    with_values,
)
from kbr_localization.localization.motion import measure_odometry
from kbr_localization.localization.pipeline import localize
from kbr_localization.vision import VisionConfig
import numpy as np

MAX_FRAMES, MAX_FOLDS, MAX_FOLD_IMAGES = 4000, 6, 500
"""Upper limits: frames of all runs, folds, images of the map of a fold."""
MIN_COVERED_FRAMES = 20
"""Frames of a run left out that must lie where the other runs went."""
CAP_M = 3.0
"""Position errors are clipped here, so that one wrong place does not dominate the score."""
ROUNDS, FINALISTS = 4, 3
"""Rounds of the search, and how many of the best candidates are varied and scored again."""
TUNED = tuple(x for x, m in METHODS.items() if hasattr(m.config, 'covariance_scale'))
"""Methods with parameters to tune, which all scale their covariance."""

Parameters = dict[str, float]
Ranges = dict[str, tuple[float, float]]
Record = dict[str, Any]
Fold = tuple[KernelMap, Dataset]
Trial = tuple[str, Parameters, Sequence[int]]
"""Method, parameters, and a seed for each repetition."""


def tune(
    datasets: Sequence[Dataset],
    journal: Path,
    *,
    methods: Sequence[str] = TUNED,
    trials: int = 60,
    sizes: Sequence[int] = (),
    vision: VisionConfig | None = None,
    filter_values: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> tuple[KernelMap, list[Record]]:
    """
    Build a map from runs with reference poses and tune parameters on these runs.

    An interrupted search continues from the trials in `journal`. Returns the map, and for each
    method the values, the scores (RMSE of clipped errors plus fraction of lost frames, in metres),
    the RMSE and the fraction lost. Raises MapError or EvaluationError for unsuited runs.
    """
    if unknown := [method for method in methods if method not in TUNED]:
        raise EvaluationError(
            f'methods to tune: expected some of {", ".join(TUNED)}, got {", ".join(unknown)}'
        )
    kernel_map = build_map(datasets, vision, filter_values, None, seed)
    folds = make_folds(kernel_map, datasets, sizes or (MAX_FOLD_IMAGES,), seed)
    conditions, work, rows = digest(folds, seed), partial(run_trial, folds, seed), []
    for method in methods:

        def score(
            what: str, candidates: list[Parameters], *seeds: int, method: str = method
        ) -> list[Record]:
            tasks = [(method, values, seeds) for values in candidates]
            return run_once(f'tuning {method}, {what}', journal, conditions, work, tasks)

        rng = np.random.default_rng([seed, zlib.crc32(method.encode())])
        config = method_config(method, folds[0][0])
        found = _search(config, search_ranges(method, kernel_map), trials, rng, score)
        rows.append({'method': method, **found})
        kernel_map = with_values(method, kernel_map, found['values'])
    return kernel_map, rows


def search_ranges(method: str, kernel_map: KernelMap) -> Ranges:
    """Return the range of each tuned parameter; lengths scale with the map."""
    unit = length_scale(kernel_map.poses, kernel_map.decay_length)
    ranges = {}
    for field in fields(method_named(method).config):
        if field.metadata.get('search'):
            scale = unit if field.name in ('position_bandwidth', 'update_min_d') else 1.0
            low, high = field.metadata['search']
            ranges[field.name] = (scale * low, scale * high)
    return ranges


def _search(
    config: Any,
    ranges: Ranges,
    trials: int,
    rng: np.random.Generator,
    score: Callable[..., list[Record]],
) -> Record:
    """Search parameters, starting at a configuration, and scale the covariance to the errors."""
    default = {name: getattr(config, name) for name in ranges}
    best, found = [default], list[Record]()
    for number, part in enumerate(np.array_split(np.arange(trials), min(ROUNDS, trials))):
        candidates = [perturb(ranges, best[i % len(best)], number, rng) for i in part]
        candidates[0] = candidates[0] if number else default
        scored = score(f'round {number + 1}', candidates, 0)
        found = sorted([*found, *scored], key=lambda record: record['score'])
        best = [record['values'] for record in found[:FINALISTS]]
    finalists = [default, *(values for values in best if values != default)]
    again = score('the best again', finalists, 1, 2)
    chosen = min(again, key=lambda record: record['score'])
    if not math.isfinite(chosen['score']):
        raise EvaluationError(f'cannot tune: every trial failed ({chosen["error"]})')
    scale = float(np.clip(config.covariance_scale * chosen['spread'], 1e-3, 1e3))
    return {
        'values': chosen['values'] | {'covariance_scale': scale},
        'default_score': again[0]['score'],
        **{name: chosen[name] for name in ('score', 'rmse_m', 'lost_fraction')},
    }


def perturb(
    ranges: Ranges, parent: Parameters, number: int, rng: np.random.Generator
) -> Parameters:
    """Change about half of the values by log-normal steps that shrink with the round `number`."""
    values = dict(parent)
    for name, (low, high) in ranges.items():
        step = rng.standard_normal() * np.log(high / low) / 4.0 / (1 + number)
        if rng.random() < 0.5:
            value = float(np.clip(max(parent[name], low) * np.exp(step), low, high))
            # round to six digits, so that the journal holds the same value
            values[name] = type(parent[name])(float(f'{value:.6g}'))
    return values


def make_folds(
    kernel_map: KernelMap, datasets: Sequence[Dataset], sizes: Sequence[int], seed: int = 0
) -> list[Fold]:
    """Return folds: a run, or half of a single one, and a map of the others, for each size."""
    frame_at = {(n, frame.stamp_ns): frame for n, run in enumerate(datasets) for frame in run}
    stride = -(-len(kernel_map) // MAX_FRAMES)
    light = replace(kernel_map, thumbnails=())
    known = light.subset(np.arange(0, len(kernel_map), stride))
    stamps, poses, owner = known.stamps_ns, known.poses, known.run_index
    frames = [frame_at[key] for key in zip(owner.tolist(), stamps.tolist(), strict=True)]
    odometry = np.array([frame.odometry for frame in frames])
    if len(np.unique(owner)) == 1:
        owner = 2 * np.arange(len(owner)) // len(owner)
    of_others = [poses[owner != run] for run in owner]
    near = [se2.within(*both, 2.0, 1.0).any() for both in zip(of_others, poses, strict=True)]
    runs, covered = np.unique(owner), np.array(near)
    useful = [run for run in runs if covered[owner == run].sum() >= MIN_COVERED_FRAMES]
    if not useful:
        raise EvaluationError(
            f'cannot tune: expected a run with {MIN_COVERED_FRAMES} frames where the other runs '
            f'(or the other half of a single run) went, got {covered.sum()} such frames in '
            f'{len(runs)} runs: give longer runs through the same places'
        )
    folds, rng = [], np.random.default_rng([seed, 0])
    for out in rng.permutation(useful)[:MAX_FOLDS]:
        mine = np.flatnonzero(owner == out)
        left_out = tuple(
            replace(frames[n], image=image, reference=poses[n] if covered[n] else None)
            for n, image in zip(mine, known.descriptors[mine], strict=True)
        )
        run = Dataset(f'run {out}', OdometryTrack(stamps[mine], odometry[mine]), {}, left_out)
        tracks = [(odometry[owner == n], poses[owner == n]) for n in runs if n != out]
        errors, noise = measure_odometry(tracks)
        others = known.subset(np.flatnonzero(owner != out))
        rest = replace(others, calibration=errors, motion_noise=noise)
        for size in sizes:
            part = rest.subset(cover(rest.poses, min(size, MAX_FOLD_IMAGES), rng))
            folds.append((with_statistics(part), run))
    return folds


def run_trial(folds: Sequence[Fold], seed: int, trial: Trial) -> Record:
    """
    Return the mean scores of a method with some parameters over the folds.

    Each run is localized from its start and from a random frame. `spread`: factor on the
    covariance with which 95% of the positions lie inside 2 sigma. A failed trial has the score
    inf and its `error`.
    """
    method, values, seeds = trial
    results = []
    logging.disable(logging.WARNING)  # extreme parameters are ill-conditioned; the score shows it
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            for (number, (kernel_map, run)), each in itertools.product(enumerate(folds), seeds):
                changed = with_values(method, kernel_map, values)
                half = run.frames[: len(run) // 2]
                inside = [n for n, frame in enumerate(half) if frame.reference is not None]
                rng = np.random.default_rng([seed, each, number])
                for start in (0, *rng.choice(inside, min(len(inside), 1))):
                    part = Dataset(run.name, run.odometry, {}, run.frames[start:])
                    results.append(_localize(method, changed, part, int(rng.integers(2**31))))
    except (KbrError, ArithmeticError, ValueError, np.linalg.LinAlgError) as error:
        return {'values': values, 'score': math.inf, 'error': ' '.join(str(error).split())}
    finally:
        logging.disable(logging.NOTSET)
    rmse = np.mean([np.sqrt(np.mean(np.minimum(d.position_m, CAP_M) ** 2)) for d in results])
    lost = np.mean([np.mean(d.lost) for d in results])
    nees = np.concatenate([d.position_nees[~d.lost] for d in results])
    nees = nees[~np.isnan(nees)]
    enough = nees.size >= 10
    spread = np.quantile(nees, 0.95) / sigma_region(2.0, 2) if enough else 1.0
    return {
        'values': values,
        'score': float(rmse + lost),
        'rmse_m': float(rmse),
        'lost_fraction': float(lost),
        'spread': float(np.clip(spread, 0.05, 100.0)),
    }


def _localize(method: str, kernel_map: KernelMap, run: Dataset, seed: int) -> RunErrors:
    """Return the errors from a global start; poses with a status in `NO_POSE` are no estimates."""
    found = localize(kernel_map, run, method, seed=seed)
    unknown = np.isin(found.statuses, NO_POSE)[:, np.newaxis]
    estimates = replace(found, poses=np.where(unknown, np.nan, found.poses))
    return run_errors(reference_trajectory(run), estimates)
