"""
Choosing kernels and regularisation: median heuristic, cross-validation, kernel-mean criterion.

A search evaluates a score for every combination of a grid on every fold; the lower score is the
better one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
import importlib
import itertools
from typing import Any

from kbr_localization.errors import KernelError
from kbr_localization.kernels.checks import FloatArray, IndexArray
from kbr_localization.kernels.filters import KernelBayesFilter, means
from kbr_localization.kernels.inference import KernelBayesRule
from kbr_localization.kernels.kernel_mean import KernelMean
from kbr_localization.kernels.rules import normalise
import numpy as np

Fold = tuple[IndexArray, IndexArray]
Score = Callable[..., float]


def k_fold(size: int, folds: int, rng: np.random.Generator | int | None = None) -> list[Fold]:
    """
    Split 0..size-1 into `folds` parts; return (training, validation) indices for each.

    Contiguous parts, which suits time series, or random ones when `rng` is given.
    """
    if not 2 <= folds <= size:
        raise KernelError(f'folds: expected 2..{size} for {size} points, got {folds}')
    order = np.arange(size) if rng is None else np.random.default_rng(rng).permutation(size)
    parts = np.array_split(order, folds)
    return [(np.sort(np.setdiff1d(order, part)), np.sort(part)) for part in parts]


@dataclass(frozen=True, eq=False)
class SearchResult:
    """Outcome of a grid search: every `settings`, and `scores` (settings, folds)."""

    settings: list[dict[str, Any]]
    scores: FloatArray

    @property
    def mean_scores(self) -> FloatArray:
        """Mean score of every combination; infinite where it failed on a fold."""
        return np.asarray(self.scores.mean(axis=1))

    @property
    def best(self) -> dict[str, Any]:
        """Return the combination of the lowest mean score; KernelError if each has failed."""
        if not np.isfinite(self.mean_scores).any():
            raise KernelError(
                f'grid: expected a setting with a score on every fold, got {len(self.settings)} '
                'that failed on one at least'
            )
        return self.settings[int(np.argmin(self.mean_scores))]


def grid_search(
    score: Score, grid: Mapping[str, Iterable[Any]], folds: Sequence[Fold], n_jobs: int = 1
) -> SearchResult:
    """
    Evaluate `score(training, validation, **setting)` for every setting of the grid and fold.

    A KernelError within `score`, and NaN, count as an infinite score; when all fail the last
    error is raised. `n_jobs` > 1 (or -1) needs joblib and a score that can be pickled.
    """
    settings = [
        dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())
    ]
    if not settings or not folds:
        raise KernelError(
            f'grid, folds: expected one of each or more, got {len(settings)} and {len(folds)}'
        )
    tasks = [(score, fold, setting) for setting in settings for fold in folds]
    outcomes: list[float | KernelError]
    if n_jobs == 1:
        outcomes = list(itertools.starmap(_evaluate, tasks))
    else:
        try:
            joblib = importlib.import_module('joblib')
        except ImportError as error:
            raise KernelError(f'n_jobs > 1 needs joblib ({error}): pip install joblib') from error
        outcomes = joblib.Parallel(n_jobs)(joblib.delayed(_evaluate)(*task) for task in tasks)
    failures = [outcome for outcome in outcomes if isinstance(outcome, KernelError)]
    if len(failures) == len(outcomes):
        raise failures[-1]
    values = [np.inf if isinstance(outcome, KernelError) else outcome for outcome in outcomes]
    return SearchResult(settings, np.reshape(values, (len(settings), len(folds))))


def _evaluate(score: Score, fold: Fold, setting: dict[str, Any]) -> float | KernelError:
    try:
        value = float(score(*fold, **setting))
    except KernelError as error:
        return error
    if np.isnan(value):
        return KernelError(f'score: expected a number, got NaN for {setting}')
    return value


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
    Return |mean_j m(. | Y_j) - m_X|^2, j over the validation part ([KBR] section 4.2).

    The posterior averaged over the observations is the marginal, whose empirical kernel mean m_X
    is: the score needs no point estimate. Arguments as in `point_score`.
    """
    rule = make_rule(x[training], y[training], **setting)
    prior = KernelMean.of_sample(rule.kernel_x, rule.x)
    weights = rule.posterior_weights(prior, y[validation])
    averaged = KernelMean(rule.kernel_x, rule.x, weights.mean(axis=1))
    return averaged.mmd(KernelMean.of_sample(rule.kernel_x, x[validation])) ** 2
