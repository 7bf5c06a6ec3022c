"""
Fukumizu's slides (2012): kernel ridge regression against local linear regression over dimension.

Y = f(X) + Z with X ~ N(0, I_m), Z ~ N(0, 0.1^2) and n = 100 for three functions f, of which only
the first lies in the RKHS of a Gaussian kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from experiments import common
from experiments.claims import below, Claim
from experiments.records import Records, Size
from kbr_localization.kernels import (
    conditional_mean,
    GaussianKernel,
    k_fold,
    median_distance,
    regularise,
)
from kbr_localization.kernels.covariance import Covariance, squared_distances
from matplotlib import pyplot
import numpy as np

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    '(A) exp(-|x|²/2)': lambda x: np.exp(-0.5 * np.sum(x**2, axis=1)),
    '(B) mean of x': lambda x: x.mean(axis=1),
    '(C) 1 / (1.5 + |x|²)': lambda x: 1.0 / (1.5 + np.sum(x**2, axis=1)),
}
EPSILONS = 10.0 ** np.arange(-7.0, 0.0)
WIDTHS = (0.5, 1.0, 2.0, 4.0)
"""Of the kernels, as multiples of the median distance."""
NEIGHBOURS = (0.3, 0.5, 0.7, 1.0, 2.0, 4.0)
"""Span of the local fit: part of the points within it, or beyond one a multiple of the largest."""


Settings = Sequence[tuple[float, ...]]


def ridge(x: Any, y: Any, queries: Any, settings: Settings) -> list[Any]:
    """
    Kernel ridge regression, the conditional mean's weights applied to y, for settings (width, ε).

    Shapes: -> one (q,) for every setting.
    """
    median = median_distance(x)
    kernels = {
        width: GaussianKernel((width * median) ** 2, normalised=False) for width, _ in settings
    }
    grams = {width: (one.gram(x), one.cross_gram(x, queries)) for width, one in kernels.items()}
    return [
        conditional_mean(regularise(grams[width][0], epsilon), grams[width][1]).T @ y
        for width, epsilon in settings
    ]


def local_linear(x: Any, y: Any, queries: Any, settings: Settings) -> list[Any]:
    """
    Local linear regression with Epanechnikov weights of a span of neighbours, as locfit.

    Shapes: -> one (q,) for every setting (span,).
    """
    squared = squared_distances(queries, x, Covariance(1.0))
    return [_local_linear(x, y, queries, squared, span) for (span,) in settings]


def _local_linear(x: Any, y: Any, queries: Any, squared: Any, span: float) -> Any:
    count = min(max(int(np.ceil(span * len(x))), x.shape[1] + 2), len(x))
    nearest = np.partition(squared, count - 1, axis=1)[:, [count - 1]]
    reach = nearest * max(span, 1.0) ** 2
    weights = np.maximum(1.0 - squared / reach, 0.0)
    return np.array([_fit(x - u, y, w) for u, w in zip(queries, weights, strict=True)])


def _fit(offsets: Any, y: Any, weights: Any) -> float:
    """Value at the origin of the weighted linear fit; of least norm when it is not unique."""
    near = weights > 0
    root = np.sqrt(weights[near])
    design = np.column_stack([np.ones(near.sum()), offsets[near]]) * root[:, np.newaxis]
    return float(np.linalg.lstsq(design, root * y[near], rcond=None)[0][0])


METHODS: dict[str, tuple[Callable[..., Any], list[tuple[float, ...]]]] = {
    'kernel ridge': (ridge, [(width, epsilon) for width in WIDTHS for epsilon in EPSILONS]),
    'local linear': (local_linear, [(span,) for span in NEIGHBOURS]),
}


def cross_validated(method: str, x: Any, y: Any, folds: int) -> tuple[float, ...]:
    """Return the setting of the lowest K-fold squared error."""
    estimate, settings = METHODS[method]
    losses = np.zeros(len(settings))
    for train, rest in k_fold(len(x), folds):
        found = estimate(x[train], y[train], x[rest], settings)
        losses += [float(np.sum((values - y[rest]) ** 2)) for values in found]
    return settings[int(np.argmin(losses))]


def trial(
    rng: np.random.Generator, dimensions: Sequence[int], queries: int
) -> dict[str, dict[str, list[float]]]:
    """Mean squared errors of both methods for every function and dimension."""
    errors: dict[str, dict[str, list[float]]] = {}
    for name, function in FUNCTIONS.items():
        runs = [errors_of(function, m, queries, rng) for m in dimensions]
        errors[name] = {method: [run[method] for run in runs] for method in METHODS}
    return errors


def errors_of(
    function: Callable[[Any], Any], dimension: int, queries: int, rng: np.random.Generator
) -> dict[str, float]:
    """Mean squared errors of both methods against the noise-free function."""
    x, test = (rng.standard_normal((count, dimension)) for count in (100, queries))
    y = function(x) + 0.1 * rng.standard_normal(len(x))
    errors = {}
    for method, (estimate, _) in METHODS.items():
        (values,) = estimate(x, y, test, [cross_validated(method, x, y, 5)])
        errors[method] = float(np.mean((values - function(test)) ** 2))
    return errors


def judge(records: Records, size: Size) -> common.Outcome:
    """Errors over dimension for the three functions."""
    dimensions, rows, texts, claims = size.fixed['dimensions'], [], [], []
    for name in FUNCTIONS:
        short = name.partition(' ')[0]
        errors = {m: np.array([one[name][m] for one in records.at()]) for m in METHODS}
        rows += common.rows_over('m', dimensions, errors, function=name)
        ridge_errors, local_errors = errors.values()
        texts.append(
            f'{short} ridge {ridge_errors[:, -1].mean():.2g}, local '
            f'{local_errors[:, -1].mean():.2g}'
        )
        claims.append(_degrades_more_slowly(short, ridge_errors, local_errors))
        if short != '(B)':
            text = f'{short} kernel ridge below local linear at m = {dimensions[-1]}'
            claims.append(below(text, ridge_errors[:, -1], local_errors[:, -1]))
    ours = f'MSE at m = {dimensions[-1]}: ' + '; '.join(texts)
    return common.Outcome(rows, ours, claims, lambda: _draw(rows))


def _degrades_more_slowly(short: str, ridge_errors: Any, local_errors: Any) -> Claim:
    """Judge the growth from m = 1 to the worst m, relative to the mean error at m = 1."""
    growths = []
    for errors in (ridge_errors, local_errors):
        worst = errors.mean(axis=0).argmax()
        growths.append(errors[:, worst] / errors[:, 0].mean())
    text = f'{short} MSE of the worst m over that of m = 1 lower for kernel ridge'
    return below(text, *growths)


def _draw(rows: Sequence[common.Row]) -> Any:
    figure, grid = pyplot.subplots(1, 3, figsize=(9.5, 3.2), constrained_layout=True)
    for axes, name in zip(grid, FUNCTIONS, strict=True):
        common.curves(axes, [row for row in rows if row['function'] == name], 'm')
        axes.set(title=name, xlabel='dimension m', ylabel='MSE', ylim=(0.0, None))
    return figure


EXPERIMENT = common.Experiment(
    name='slides_regression',
    source='[slides] comparison of regressions',
    paper='kernel ridge regression degrades more slowly with the dimension m than local linear '
    'regression (figure without numbers; n = 100, 500 runs)',
    settings='functions, n and noise as printed; bandwidths and ε by five-fold cross-validation; '
    'local linear with Epanechnikov weights on a nearest-neighbour span, written here in place of '
    "R's locfit; spans reach up to a nearly global fit. (B) is linear: there local linear "
    'regression fits the true model and stays below kernel ridge.',
    sizes={
        'tiny': Size(1, {}, {'dimensions': (1, 4), 'queries': 20}),
        'reduced': Size(4, {}, {'dimensions': (1, 2, 4, 6, 8, 10), 'queries': 100}),
        'full': Size(100, {}, {'dimensions': tuple(range(1, 11)), 'queries': 200}),
    },
    trial=trial,
    judge=judge,
)
