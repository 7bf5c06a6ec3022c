"""
Cross-validation of kernel parameters and regularisation constants.

Lower scores are better. `grid_search` evaluates a score for every combination of a grid;
`posterior_score` is smooth, so that it also suits an optimiser.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import itertools
from typing import Any, NamedTuple

from kbr_localization.errors import KernelError
from kbr_localization.kernels.checks import FloatArray, IndexArray
from kbr_localization.kernels.filters import means
from kbr_localization.kernels.inference import KernelBayesRule
from kbr_localization.kernels.kernel_mean import KernelMean
from kbr_localization.kernels.rules import normalise
import numpy as np

Fold = tuple[IndexArray, IndexArray]
Score = Callable[..., float]
Factory = Callable[..., Any]


def k_fold(size: int, folds: int, rng: np.random.Generator | int | None = None) -> list[Fold]:
    """
    Split 0..size-1 into `folds` parts; return (training, validation) indices for each.

    The parts are contiguous, as time series need, or random if `rng` is given.
    """
    if not 2 <= folds <= size:
        raise KernelError(f'folds: expected 2..{size} for {size} points, got {folds}')
    order = np.arange(size) if rng is None else np.random.default_rng(rng).permutation(size)
    parts = np.array_split(order, folds)
    return [(np.sort(np.setdiff1d(order, part)), np.sort(part)) for part in parts]


class SearchResult(NamedTuple):
    """
    Result of a grid search.

    `settings`: all combinations; `scores` (settings, folds): infinite where the score failed;
    `mean_scores` (settings,); `best`: the combination of the lowest mean score.
    """

    settings: list[dict[str, Any]]
    scores: FloatArray
    mean_scores: FloatArray
    best: dict[str, Any]


def grid_search(
    score: Score, grid: Mapping[str, Iterable[Any]], folds: Sequence[Fold]
) -> SearchResult:
    """
    Evaluate `score(training, validation, **setting)` for every setting of the grid and fold.

    A KernelError in `score`, or NaN, counts as an infinite score. If no setting has a finite score
    on every fold, the last error is raised.
    """
    settings = [
        dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())
    ]
    if not settings or not folds:
        raise KernelError(
            f'grid, folds: expected one of each or more, got {len(settings)} and {len(folds)}'
        )
    scores = np.full((len(settings), len(folds)), np.inf)
    failure = KernelError('grid: expected a setting with a score on every fold, got none')
    for (i, setting), (j, fold) in itertools.product(enumerate(settings), enumerate(folds)):
        try:
            scores[i, j] = np.nan_to_num(score(*fold, **setting), nan=np.inf)
        except KernelError as error:
            failure = error
    mean_scores = scores.mean(axis=1)
    if not np.isfinite(mean_scores).any():
        raise failure
    return SearchResult(settings, scores, mean_scores, settings[int(np.argmin(mean_scores))])


def point_score(
    x: FloatArray, y: FloatArray, make_rule: Factory, *fold: IndexArray, **setting: Any
) -> float:
    """
    Return the mean squared error of posterior means; the prior is the training sample.

    `make_rule(x, y, **setting)` returns a KernelBayesRule. Bind the first three arguments with
    functools.partial to get a score; `fold`: training and validation indices.
    """
    rule, weights = _posteriors(x, y, make_rule, fold, setting)
    estimates = [np.tensordot(normalise(column), rule.x, axes=1) for column in weights.T]
    return float(np.mean((np.array(estimates) - x[fold[1]]) ** 2))


def posterior_score(
    x: FloatArray, y: FloatArray, make_rule: Factory, *fold: IndexArray, **setting: Any
) -> float:
    """
    Return mean_j |m(. | Y_j) - k_X(., X_j)|^2 over the validation part.

    It is smooth in all parameters, but k_X must be fixed, since the score is measured in its RKHS.
    Arguments as in `point_score`.
    """
    rule, weights = _posteriors(x, y, make_rule, fold, setting)
    kernel, states = rule.kernel_x, x[fold[1]]
    product = kernel.gram(rule.x) @ weights - 2.0 * kernel.cross_gram(rule.x, states)
    return float(np.mean(np.sum(weights * product, axis=0) + kernel.diagonal(states)))


def kernel_mean_score(
    x: FloatArray, y: FloatArray, make_rule: Factory, *fold: IndexArray, **setting: Any
) -> float:
    """
    Return |mean_j m(. | Y_j) - m_X|^2 over the validation part ([KBR] section 4.2).

    The posterior averaged over observations is the marginal, and m_X is the empirical kernel mean
    of the marginal, so no point estimate is needed. Arguments as in `point_score`.
    """
    rule, weights = _posteriors(x, y, make_rule, fold, setting)
    averaged = KernelMean(rule.kernel_x, rule.x, weights.mean(axis=1))
    return averaged.mmd(KernelMean.of_sample(rule.kernel_x, x[fold[1]])) ** 2


def filter_score(
    x: FloatArray, y: FloatArray, make_filter: Factory, *fold: IndexArray, **setting: Any
) -> float:
    """
    Return the mean squared error of a filter trained on one part and run on the other.

    `make_filter(x, y, **setting)` returns the filter. With one of two contiguous folds this is
    the validation of [KBR] section 5.3. Bind the first three arguments with functools.partial.
    """
    training, validation = fold
    estimates = means(make_filter(x[training], y[training], **setting).run(y[validation]))
    return float(np.mean((estimates - x[validation]) ** 2))


def _posteriors(
    x: FloatArray, y: FloatArray, make_rule: Factory, fold: Sequence[IndexArray], setting: Any
) -> tuple[KernelBayesRule, FloatArray]:
    """Return the rule of the training part, and its weights (n, q) for the validation part."""
    training, validation = fold
    rule: KernelBayesRule = make_rule(x[training], y[training], **setting)
    prior = KernelMean.of_sample(rule.kernel_x, rule.x)
    return rule, rule.posterior_weights(prior, y[validation])
