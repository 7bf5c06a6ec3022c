"""
Choosing kernels and regularisation: median heuristic, cross-validation, kernel-mean criterion.

A search evaluates a score for every combination of a grid on every fold; the lower score is the
better one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
import copy
from dataclasses import dataclass
import importlib
import itertools
from typing import Any

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel
from kbr_localization.kernels.checks import (
    as_floats,
    as_points,
    as_positive,
    as_sample,
    FloatArray,
    IndexArray,
)
from kbr_localization.kernels.filters import means
from kbr_localization.kernels.inference import KernelBayesRule
from kbr_localization.kernels.kernel_mean import KernelMean
from kbr_localization.kernels.kernels import Covariance, RadialKernel, squared_distances
from kbr_localization.kernels.rules import BAYES_RULES, normalise, PAPER_NAMES, regularise
import numpy as np
from numpy.typing import ArrayLike
import scipy.linalg

Fold = tuple[IndexArray, IndexArray]
Score = Callable[..., float]
Maker = Callable[..., Any]


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
    x: FloatArray, y: FloatArray, make_rule: Maker, *fold: IndexArray, **setting: Any
) -> float:
    """
    Mean squared error of posterior means, with the sample's own law as the prior.

    `make_rule(x, y, **setting)` builds the rule. Bind the first three arguments with
    functools.partial to get a score for `grid_search`; `fold`: training and validation indices.
    """
    training, validation = fold
    rule: KernelBayesRule = make_rule(x[training], y[training], **setting)
    prior = KernelMean.of_sample(rule.kernel_x, rule.x)
    columns = rule.posterior_weights(prior, y[validation]).T
    estimates = [np.tensordot(normalise(weights), rule.x, axes=1) for weights in columns]
    return float(np.mean((np.array(estimates) - x[validation]) ** 2))


def filter_score(
    x: FloatArray, y: FloatArray, make_filter: Maker, *fold: IndexArray, **setting: Any
) -> float:
    """
    Mean squared error of a filter that is trained on one part and run over the other.

    `make_filter(x, y, **setting)` builds it; with two contiguous folds this is the validation of
    [KBR] section 5.3. Bind the first three arguments with functools.partial.
    """
    training, validation = fold
    estimates = means(make_filter(x[training], y[training], **setting).run(y[validation]))
    return float(np.mean((estimates - x[validation]) ** 2))


def kernel_mean_score(
    x: FloatArray, y: FloatArray, make_rule: Maker, *fold: IndexArray, **setting: Any
) -> float:
    """
    Return |mean_j m(. | Y_j) - m_X|^2, j over the validation part ([KBR] section 4.2).

    The posterior averaged over the observations is the marginal, whose empirical kernel mean m_X
    is: the score needs no point estimate. Arguments as in `point_score`.
    """
    training, validation = fold
    rule: KernelBayesRule = make_rule(x[training], y[training], **setting)
    prior = KernelMean.of_sample(rule.kernel_x, rule.x)
    weights = rule.posterior_weights(prior, y[validation])
    averaged = KernelMean(rule.kernel_x, rule.x, weights.mean(axis=1))
    return averaged.mmd(KernelMean.of_sample(rule.kernel_x, x[validation])) ** 2


@dataclass(frozen=True, eq=False)
class TunedRule:
    """
    Outcome of `BandwidthCriterion.minimise`: the kernel on y, delta and the criterion there.

    `delta`: as KernelBayesRule takes it, without n.
    """

    kernel_y: RadialKernel
    delta: float
    value: float
    evaluations: int


@dataclass(frozen=True, eq=False)
class _FoldData:
    """What a fold needs: training points with prior weight, and Gram matrices of x."""

    mu: FloatArray
    training: FloatArray
    validation: FloatArray
    gram: FloatArray
    cross: FloatArray
    norm: float


class BandwidthCriterion:
    """
    Cross-validation criterion of Bayes' rule as a function of bandwidths of k_Y and of delta.

    Pairs `x` (n, ...), `y` (n, d); `kernel_y`: a radial kernel whose bandwidths are multiplied;
    `folds`: see `k_fold`; `epsilon`: of the sum rule; `method`: see KernelBayesRule. The criterion
    is mean_j |m(. | Y_j) - k(., X_j)|^2 over a validation part, with the sample's own law as the
    prior, in the RKHS of `kernel_x`, which is therefore not tuned.
    """

    def __init__(
        self,
        kernel_x: Kernel,
        kernel_y: RadialKernel,
        x: ArrayLike,
        y: ArrayLike,
        folds: Sequence[Fold],
        epsilon: float,
        method: str = 'squared',
    ) -> None:
        self.kernel_y, self.method = kernel_y, PAPER_NAMES.get(method, method)
        if self.method not in BAYES_RULES:
            raise KernelError(f'method: expected one of {", ".join(BAYES_RULES)}, got {method!r}')
        if not folds or not isinstance(kernel_y, RadialKernel):
            raise KernelError(
                f'folds, kernel_y: expected one fold or more, a radial kernel, got {kernel_y!r}'
            )
        points = as_sample('x', x)
        self.y = as_points('y', y)
        gram = kernel_x.gram(points)
        self._folds = [self._prepare(gram, fold, epsilon) for fold in folds]

    def _prepare(self, gram: FloatArray, fold: Fold, epsilon: float) -> _FoldData:
        training, validation = (np.asarray(part) for part in fold)
        own = gram[np.ix_(training, training)]
        mu = regularise(own, epsilon).solve(own.mean(axis=1))
        # weights below rounding have no part in a posterior
        usable = mu > 0 if self.method == 'thresholded' else np.abs(mu) > 1e-12 * mu.max()
        kept = np.flatnonzero(usable)
        return _FoldData(
            mu[kept],
            self.y[training[kept]],
            self.y[validation],
            own[np.ix_(kept, kept)],
            gram[np.ix_(training[kept], validation)],
            float(gram.diagonal()[validation].mean()),
        )

    def __call__(self, factors: ArrayLike, delta: float) -> tuple[float, FloatArray]:
        """
        Criterion, and its derivatives by the logarithms of the factors and of delta (p + 1,).

        `factors`: scalar or (d,), > 0, times the bandwidths of `kernel_y`.
        """
        ratios = as_floats('factors', factors)
        if ratios.shape not in ((), (self.y.shape[1],)) or np.any(ratios <= 0):
            raise KernelError(
                f'factors: expected positive numbers, one or ({self.y.shape[1]},), got {ratios}'
            )
        kernel, ridge = rescaled(self.kernel_y, ratios), as_positive('delta', delta)
        parts = [self._of_fold(kernel, fold, ratios.ndim > 0, ridge) for fold in self._folds]
        values, gradients = zip(*parts, strict=True)
        return float(np.mean(values)), np.mean(gradients, axis=0)

    def minimise(self, delta: float, per_coordinate: bool = False) -> TunedRule:
        """
        Search by L-BFGS, within a thousandfold of the bandwidths and a millionfold of delta.

        `per_coordinate`: one factor for every coordinate of y. KernelError where all posteriors
        are nearly zero, so that the criterion has no slope.
        """
        from scipy.optimize import minimize  # noqa: PLC0415

        count = self.y.shape[1] if per_coordinate else 1
        begin = np.append(np.zeros(count), np.log(as_positive('delta', delta)))
        reach = np.log([1e3] * count + [1e6])

        def split(logs: FloatArray) -> tuple[FloatArray, float]:
            return np.exp(logs[:-1] if per_coordinate else logs[0]), float(np.exp(logs[-1]))

        bounds = np.column_stack([begin - reach, begin + reach])
        found = minimize(
            lambda logs: self(*split(logs)), begin, jac=True, method='L-BFGS-B', bounds=bounds
        )
        if found.fun > (1.0 - 1e-5) * np.mean([fold.norm for fold in self._folds]):
            raise KernelError(
                f'delta, kernel_y: expected posteriors with weight, got none with {delta:g} and '
                f'{self.kernel_y!r}: use normalised=False, lower delta, or widen the kernel'
            )
        factors, chosen = split(found.x)
        return TunedRule(
            rescaled(self.kernel_y, factors), chosen, float(found.fun), int(found.nfev)
        )

    def _of_fold(
        self, kernel: RadialKernel, fold: _FoldData, per_coordinate: bool, delta: float
    ) -> tuple[float, FloatArray]:
        """Value and gradient by the adjoint method: one factorisation, two solves."""
        train, held_out = fold.training, fold.validation
        # added to the diagonal of G_Y, and its derivative by log delta
        shift: Any = delta / fold.mu
        if self.method == 'squared':
            shift = 1j * np.sqrt(delta) / fold.mu
        by_log = 0.5 * shift if self.method == 'squared' else shift
        factor = scipy.linalg.lu_factor(kernel.gram(train) + np.diag(shift), overwrite_a=True)
        z = scipy.linalg.lu_solve(factor, kernel.cross_gram(train, held_out))
        # squared distance in the RKHS of x, and its derivative by the weights
        pulled = fold.gram @ z.real - fold.cross
        value = float(np.sum(z.real * (pulled - fold.cross), axis=0).mean()) + fold.norm
        slope = 2.0 * pulled / z.shape[1]
        # the system is symmetric, so that it is its own adjoint
        adjoint = scipy.linalg.lu_solve(factor, slope)
        on_gram, on_cross = (adjoint @ z.T).real, adjoint.real
        by_bandwidths = [
            float(np.sum(on_cross * by_cross) - np.sum(on_gram * by_gram))
            for by_cross, by_gram in zip(
                _log_derivatives(kernel, train, held_out, per_coordinate),
                _log_derivatives(kernel, train, train, per_coordinate),
                strict=True,
            )
        ]
        by_delta = -float(np.sum((adjoint * z * by_log[:, np.newaxis]).real))
        return value, np.array([*by_bandwidths, by_delta])


def rescaled(kernel: RadialKernel, factors: ArrayLike) -> RadialKernel:
    """Return the kernel with its bandwidths times a factor, or times one for each coordinate."""
    squares = as_floats('factors', factors) ** 2
    if squares.ndim and kernel.scale.value.ndim == 2:
        raise KernelError(
            f'factors: expected a number for a kernel with a full matrix, got {squares.shape}'
        )
    changed = copy.copy(kernel)
    changed.scale = Covariance(squares * kernel.scale.value)
    return changed


def _log_derivatives(
    kernel: RadialKernel, x: FloatArray, z: FloatArray, per_coordinate: bool
) -> list[FloatArray]:
    """Return derivatives of k(x_i, z_j) by the logarithm of each bandwidth: p times (n, m)."""
    dimension = x.shape[1]
    s = squared_distances(x, z, kernel.scale)
    slope = 2.0 * kernel.peak(dimension) * kernel.slope(s, dimension)
    # a density's peak falls with every bandwidth
    falling = kernel.cross_gram(x, z) if kernel.normalised else np.zeros(1)
    if not per_coordinate:
        return [slope * s - dimension * falling]
    a, b = kernel.scale.whiten(x), kernel.scale.whiten(z)
    return [slope * np.subtract.outer(a[:, c], b[:, c]) ** 2 - falling for c in range(dimension)]
