"""
Choosing kernels and regularisation: median heuristic, cross-validation, kernel-mean criterion.

A search evaluates a score for every combination of a grid on every fold; evaluations are
independent and run in parallel through joblib. The lower score is the better one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
import importlib
import itertools
from typing import Any

from kbr_localization.errors import KernelError
from kbr_localization.kernels.checks import (
    as_count,
    as_floats,
    as_generator,
    as_points,
    FloatArray,
    IndexArray,
    require,
    require_callable,
)
from kbr_localization.kernels.covariance import Covariance
from kbr_localization.kernels.distances import squared_distances
from kbr_localization.kernels.filters import KernelBayesFilter, means
from kbr_localization.kernels.inference import KernelBayesRule
from kbr_localization.kernels.kernel_mean import KernelMean
from kbr_localization.kernels.rules import normalise
import numpy as np
from numpy.typing import ArrayLike

Progress = Callable[[str, int, int], None]
Fold = tuple[IndexArray, IndexArray]
Score = Callable[..., float]


def median_distance(points: ArrayLike, max_points: int = 2000, seed: int = 0) -> float:
    """
    Median of the pairwise distances, the usual first bandwidth ([KBR] section 5.1).

    Of `max_points` random points when there are more; matrices count as vectors of their
    entries. Shapes: (n, d) or (n, 3, 3), n > 1.
    """
    as_count('max_points', max_points, 2)
    array = as_floats('points', points)
    if array.ndim > 2:
        array = array.reshape(len(array), -1)
    array = as_points('points', array)
    if array.shape[0] > max_points:
        chosen = as_generator('seed', seed).choice(array.shape[0], max_points, replace=False)
        array = array[chosen]
    squared = squared_distances(array, array, Covariance(1.0))
    # in many dimensions rounding parts equal points, and would be the median where most are equal
    labels = np.unique(array, axis=0, return_inverse=True)[1].reshape(-1)
    squared[np.equal.outer(labels, labels)] = 0.0
    distances = np.sqrt(squared[np.triu_indices(array.shape[0], 1)])
    positive = distances[distances > 0]
    if positive.size == 0:
        raise KernelError(
            f'points: expected at least two different points, got shape {array.shape} without '
            'any: a bandwidth cannot be derived from equal points'
        )
    median = float(np.median(distances))
    return median if median > 0 else float(np.median(positive))


def k_fold(size: int, folds: int, rng: np.random.Generator | int | None = None) -> list[Fold]:
    """
    Split 0..size-1 into `folds` parts; return (training, validation) indices for each.

    Contiguous parts, which suits time series, or random ones when `rng`, a generator or a
    seed, is given.
    """
    if not 2 <= as_count('folds', folds, 0) <= as_count('size', size, 2):
        remedy = 'use two or more' if folds < 2 else 'use fewer folds'
        raise KernelError(f'folds: expected 2..{size} for {size} points, got {folds}: {remedy}')
    order = np.arange(size) if rng is None else as_generator('rng', rng).permutation(size)
    parts = np.array_split(order, folds)
    return [(np.sort(np.setdiff1d(order, part)), np.sort(part)) for part in parts]


def leave_one_group_out(groups: ArrayLike) -> list[Fold]:
    """Return one fold per group, e.g. whole runs: train on the others, validate on it. (n,)."""
    labels = np.asarray(groups)
    unique = np.unique(labels)
    if labels.ndim != 1 or unique.size < 2:
        raise KernelError(
            f'groups: expected labels (n,) of at least two groups, got shape {labels.shape} with '
            f'{unique.size}: name the run that every point belongs to'
        )
    return [(np.flatnonzero(labels != g), np.flatnonzero(labels == g)) for g in unique]


@dataclass(frozen=True, eq=False)
class SearchResult:
    """
    Outcome of a grid search.

    `settings`: every combination; `scores`: (combinations, folds), infinite where it failed;
    `best`: the combination of the lowest mean score.
    """

    settings: list[dict[str, Any]]
    scores: FloatArray

    @property
    def mean_scores(self) -> FloatArray:
        """Mean score of every combination (combinations,)."""
        return np.asarray(self.scores.mean(axis=1), dtype=np.float64)

    @property
    def best(self) -> dict[str, Any]:
        """Return the combination of the lowest mean score; KernelError if each has failed."""
        means = self.mean_scores
        if not np.any(means < np.inf):
            raise KernelError(
                f'grid: expected a setting with a score on every fold, got {len(means)} that '
                'failed on one at least: give other values, or fewer folds'
            )
        return self.settings[int(np.argmin(means))]


def grid_search(
    score: Score,
    grid: Mapping[str, Iterable[Any]],
    folds: Sequence[Fold],
    n_jobs: int = 1,
    progress: Progress | None = None,
) -> SearchResult:
    """
    Evaluate `score(training, validation, **setting)` for every setting of the grid and fold.

    A KernelError within `score`, and a score that is no number, count as an infinite score; when
    all fail the last is raised.
    `n_jobs` > 1 (or -1) needs joblib and a score that can be pickled. The result does not depend
    on `n_jobs`.
    """
    require_callable('score', score, 'of training and validation indices and a setting')
    require('grid', grid, Mapping, 'a mapping from names to the values to try')
    require('folds', folds, list | tuple, 'pairs of training and validation indices, see k_fold')
    if not isinstance(n_jobs, int | np.integer) or n_jobs == 0:
        raise KernelError(
            f'n_jobs: expected a number of processes or -1 for all, got {n_jobs!r}: use n_jobs=1'
        )
    for name, values in grid.items():
        require(f'grid[{name!r}]', values, Iterable, 'the values to try, such as [0.1, 1.0]')
    settings = [
        dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())
    ]
    if not settings or not folds:
        raise KernelError(
            f'grid, folds: expected at least one setting and one fold, got {len(settings)} and '
            f'{len(folds)}: an empty list of values leaves nothing to try'
        )
    tasks = [(score, fold, setting) for setting in settings for fold in folds]
    outcomes: list[float | KernelError] = []
    for outcome in _evaluate_all(tasks, n_jobs):
        outcomes.append(outcome)
        if progress is not None:
            progress('grid search', len(outcomes), len(tasks))
    failures = [outcome for outcome in outcomes if isinstance(outcome, KernelError)]
    if len(failures) == len(outcomes):
        raise failures[-1]
    values = [np.inf if isinstance(outcome, KernelError) else outcome for outcome in outcomes]
    return SearchResult(settings, np.reshape(values, (len(settings), len(folds))))


def point_score(
    x: FloatArray,
    y: FloatArray,
    make_rule: Callable[..., KernelBayesRule],
    training: IndexArray,
    validation: IndexArray,
    **setting: Any,
) -> float:
    """
    Mean squared error of posterior means, with the sample's own law as the prior.

    `make_rule(x, y, **setting)` builds the rule. Bind the first three arguments with
    functools.partial to get a score for `grid_search`.
    """
    rule = make_rule(x[training], y[training], **setting)
    prior = KernelMean.of_sample(rule.kernel_x, rule.x)
    columns = rule.posterior_weights(prior, y[validation]).T
    estimates = [np.tensordot(normalise(weights), rule.x, axes=1) for weights in columns]
    return float(np.mean((np.array(estimates) - x[validation]) ** 2))


def filter_score(
    x: FloatArray,
    y: FloatArray,
    make_filter: Callable[..., KernelBayesFilter],
    training: IndexArray,
    validation: IndexArray,
    **setting: Any,
) -> float:
    """
    Mean squared error of a filter that is trained on one part and run over the other.

    `make_filter(x, y, **setting)` builds it; with two contiguous folds this is the validation of
    [KBR] section 5.3. Bind the first three arguments with functools.partial.
    """
    kernel_filter = make_filter(x[training], y[training], **setting)
    estimates = means(kernel_filter.run(y[validation]))
    return float(np.mean((estimates - x[validation]) ** 2))


def kernel_mean_score(
    x: FloatArray,
    y: FloatArray,
    make_rule: Callable[..., KernelBayesRule],
    training: IndexArray,
    validation: IndexArray,
    **setting: Any,
) -> float:
    """
    Return the term of one fold in the general criterion of [KBR] section 4.2.

    The posterior averaged over the observations is the marginal: the score is
    |mean_j m(. | Y_j) - m_X|^2 in the RKHS, j over the validation part, whose empirical kernel
    mean m_X is. It needs no point estimate. Arguments as in `point_score`.
    """
    rule = make_rule(x[training], y[training], **setting)
    prior = KernelMean.of_sample(rule.kernel_x, rule.x)
    weights = rule.posterior_weights(prior, y[validation])
    averaged = KernelMean(rule.kernel_x, rule.x, weights.mean(axis=1))
    return averaged.mmd(KernelMean.of_sample(rule.kernel_x, x[validation])) ** 2


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Show a progress bar in the terminal; yields what `grid_search` takes as `progress`."""
    try:
        rich = importlib.import_module('rich.progress')
    except ImportError as error:
        raise KernelError(
            f'progress_bar: expected the package rich, got none ({error}): pip install rich'
        ) from error
    with rich.Progress() as bar:
        tasks: dict[str, Any] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield report


def _evaluate_all(
    tasks: list[tuple[Score, Fold, dict[str, Any]]], n_jobs: int
) -> Iterator[float | KernelError]:
    """Evaluate in the order of the tasks, lazily, so that progress can be reported."""
    if n_jobs == 1:
        return itertools.starmap(_evaluate, tasks)
    try:
        joblib = importlib.import_module('joblib')
    except ImportError as error:
        raise KernelError(
            f'n_jobs: {n_jobs} needs joblib ({error}): pip install joblib, or use n_jobs=1'
        ) from error
    parallel = joblib.Parallel(n_jobs=n_jobs, return_as='generator')
    evaluations: Iterator[float | KernelError] = parallel(
        joblib.delayed(_evaluate)(*task) for task in tasks
    )
    return evaluations


def _evaluate(score: Score, fold: Fold, setting: dict[str, Any]) -> float | KernelError:
    try:
        value = score(*fold, **setting)
    except KernelError as error:
        return error
    number = np.asarray(value)
    if number.ndim != 0 or number.dtype.kind not in 'iuf' or np.isnan(number):
        return KernelError(
            f'score: expected a number, got {value!r} for {setting}: return the mean error of the '
            'validation part, the lower the better'
        )
    return float(number)
