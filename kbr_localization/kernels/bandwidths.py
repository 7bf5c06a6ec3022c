"""
Bandwidths by gradients: cross-validation criteria of Bayes' rule and their derivatives.

A grid over one bandwidth for every coordinate is out of reach; the gradient costs as much as two
evaluations, whatever the number of coordinates, but for the derivatives of the kernel itself.
"""

from __future__ import annotations

from collections.abc import Sequence
import copy
from dataclasses import dataclass
from typing import Any

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel, require_kernel
from kbr_localization.kernels.checks import as_floats, as_positive, FloatArray, IndexArray, require
from kbr_localization.kernels.covariance import Covariance
from kbr_localization.kernels.distances import squared_distances
from kbr_localization.kernels.inference import as_pairs
from kbr_localization.kernels.kernels import RadialKernel
from kbr_localization.kernels.rules import PAPER_NAMES, regularise
import numpy as np
from numpy.typing import ArrayLike, NDArray
import scipy.linalg

METHODS = ('squared', 'thresholded', 'COND')
TARGETS = ('conditional', 'marginal')
# weights below this fraction of the largest have no part in a posterior
_NEGLIGIBLE = 1e-12
# a criterion as near to that of posteriors that are zero, as a fraction, has no slope to follow
_NO_WEIGHT = 1e-5
# bandwidths and delta stay within these factors of the start
_REACH = (1e3, 1e6)

Fold = tuple[IndexArray, IndexArray]


@dataclass(frozen=True, eq=False)
class TunedRule:
    """
    Outcome of `BandwidthCriterion.minimise`: the kernel on y, delta and the criterion there.

    `delta`: as KernelBayesRule takes it, without n; for COND the epsilon of the conditional mean.
    """

    kernel_y: RadialKernel
    delta: float
    value: float
    evaluations: int


class BandwidthCriterion:
    """
    Cross-validation criterion of Bayes' rule as a function of bandwidths of k_Y and of delta.

    Pairs `x` (n, ...), `y` (n, d); `kernel_y`: a radial kernel whose bandwidths are multiplied;
    `folds`: see `k_fold`; `epsilon`: of the sum rule. `method`: 'squared', 'thresholded' (or the
    papers' names) or 'COND', whose epsilon then is `delta`; the prior is the sample's own law.
    `target`: 'marginal', |mean_j m(. | Y_j) - m_X|^2 over a validation part ([KBR] section 4.2),
    or 'conditional', mean_j |m(. | Y_j) - k(., X_j)|^2, which also sees what x goes with what y.
    Both are in the RKHS of `kernel_x`, which therefore stays as it is.
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
        target: str = 'conditional',
    ) -> None:
        require_kernel('kernel_x', kernel_x)
        require('kernel_y', kernel_y, RadialKernel, 'a radial kernel such as GaussianKernel(0.5)')
        self.kernel_y, self.target = kernel_y, _one_of('target', target, TARGETS)
        self.method = _one_of('method', PAPER_NAMES.get(str(method), method), METHODS)
        points, self.y = as_pairs(kernel_x.encode('x', x), y)
        with_gram = kernel_x.gram(points)
        parts = [_indices(fold, len(points)) for fold in folds]
        self._folds = [self._prepared(with_gram, fold, epsilon) for fold in parts]
        if not self._folds:
            raise KernelError('folds: expected at least one fold, got none: see k_fold')

    def __call__(self, factors: ArrayLike, delta: float) -> tuple[float, FloatArray]:
        """
        Criterion and its derivatives by the logarithms of the factors and of delta.

        `factors`: scalar or (d,), > 0, times the bandwidths of `kernel_y`. Shapes: -> (), (p + 1,)
        with p = 1 or d.
        """
        ratios = as_floats('factors', factors)
        if ratios.shape not in ((), (self.y.shape[1],)) or np.any(ratios <= 0):
            raise KernelError(
                f'factors: expected a positive number or positive ones of shape '
                f'({self.y.shape[1]},), got shape {ratios.shape} with minimum '
                f'{ratios.min(initial=np.inf):g}: one for all coordinates of y, or one each'
            )
        kernel = rescaled(self.kernel_y, ratios)
        ridge = as_positive('delta', delta)
        parts = [self._of_fold(kernel, fold, ratios.ndim > 0, ridge) for fold in self._folds]
        values, gradients = zip(*parts, strict=True)
        return float(np.mean(values)), np.mean(gradients, axis=0)

    def minimise(self, delta: float, per_coordinate: bool = False) -> TunedRule:
        """
        Search from the given kernel and delta by L-BFGS, within a thousandfold of bandwidths.

        `per_coordinate`: one factor for every coordinate of y. KernelError where all posteriors
        are nearly zero, so that the criterion has no slope.
        """
        from scipy.optimize import minimize  # noqa: PLC0415

        count = self.y.shape[1] if per_coordinate else 1
        begin = np.append(np.zeros(count), np.log(as_positive('delta', delta)))
        reach = np.log([_REACH[0]] * count + [_REACH[1]])

        def loss(logs: FloatArray) -> tuple[float, FloatArray]:
            return self(_factors(logs, per_coordinate), float(np.exp(logs[-1])))

        bounds = np.column_stack([begin - reach, begin + reach])
        found = minimize(loss, begin, jac=True, method='L-BFGS-B', bounds=bounds)
        if found.fun > (1.0 - _NO_WEIGHT) * np.mean([fold['norms'] for fold in self._folds]):
            peak = self.kernel_y.diagonal(self.y[:1])[0]
            raise KernelError(
                f'delta, kernel_y: expected posteriors with weight to begin with, got none with '
                f'{delta:g} beside values up to {peak:.2g} of {self.kernel_y!r}: use '
                'normalised=False, lower delta, or widen the kernel'
            )
        kernel = rescaled(self.kernel_y, _factors(found.x, per_coordinate))
        return TunedRule(kernel, float(np.exp(found.x[-1])), float(found.fun), int(found.nfev))

    def _prepared(self, gram: FloatArray, fold: Fold, epsilon: float) -> dict[str, Any]:
        training, validation = fold
        own = gram[np.ix_(training, training)]
        mu = regularise(own, epsilon).solve(own.mean(axis=1))
        usable = mu > 0 if self.method == 'thresholded' else np.abs(mu) > _NEGLIGIBLE * mu.max()
        kept = np.arange(len(mu)) if self.method == 'COND' else np.flatnonzero(usable)
        return {
            'mu': mu[kept],
            'training': self.y[training[kept]],
            'validation': self.y[validation],
            'count': len(training),
            'gram': own[np.ix_(kept, kept)],
            'cross': gram[np.ix_(training[kept], validation)],
            'norms': self._norms(gram[np.ix_(validation, validation)]),
        }

    def _norms(self, gram: FloatArray) -> float:
        return float(gram.mean() if self.target == 'marginal' else gram.diagonal().mean())

    def _shift(self, fold: dict[str, Any], delta: float) -> tuple[Any, Any]:
        """Return what stands on the diagonal beside G_Y, and its derivative by log delta."""
        if self.method == 'COND':
            shift = np.full(len(fold['mu']), fold['count'] * delta)
            return shift, shift
        if self.method == 'thresholded':
            return delta / fold['mu'], delta / fold['mu']
        shift = 1j * np.sqrt(delta) / fold['mu']
        return shift, 0.5 * shift

    def _of_fold(
        self, kernel: RadialKernel, fold: dict[str, Any], per_coordinate: bool, delta: float
    ) -> tuple[float, FloatArray]:
        """Value and gradient by the adjoint method: one factorisation, two solves."""
        train, held_out = fold['training'], fold['validation']
        shift, shift_slope = self._shift(fold, delta)
        system = kernel.gram(train) + np.diag(shift)
        factor = scipy.linalg.lu_factor(system, overwrite_a=True, check_finite=False)
        cross = kernel.cross_gram(train, held_out)
        z = scipy.linalg.lu_solve(factor, cross, check_finite=False)
        value, slope = self._loss(np.asarray(z.real, dtype=np.float64), fold)
        # the system is symmetric, so that it is its own adjoint
        adjoint = scipy.linalg.lu_solve(factor, slope, check_finite=False)
        on_gram, on_cross = (adjoint @ z.T).real, adjoint.real
        gradient = [
            float(np.sum(on_cross * by_cross) - np.sum(on_gram * by_gram))
            for by_cross, by_gram in zip(
                log_derivatives(kernel, train, held_out, per_coordinate),
                log_derivatives(kernel, train, train, per_coordinate),
                strict=True,
            )
        ]
        by_delta = -float(np.sum((adjoint * z * shift_slope[:, np.newaxis]).real))
        return value, np.array([*gradient, by_delta])

    def _loss(self, weights: FloatArray, fold: dict[str, Any]) -> tuple[float, FloatArray]:
        """Squared distance in the RKHS of x, and its derivative by the weights (n, m)."""
        count = weights.shape[1]
        cross = fold['cross']
        if self.target == 'marginal':
            weights, cross = (np.mean(a, axis=1, keepdims=True) for a in (weights, cross))
        pulled = fold['gram'] @ weights - cross
        terms = np.sum(weights * (pulled - cross), axis=0)
        slope = np.broadcast_to(2.0 * pulled / count, (len(weights), count))
        return float(terms.mean()) + fold['norms'], slope


def rescaled(kernel: RadialKernel, factors: ArrayLike) -> RadialKernel:
    """Return the kernel with its bandwidths times a factor, or times one for each coordinate."""
    squares = as_floats('factors', factors) ** 2
    value = kernel.scale.value
    if squares.ndim and value.ndim == 2:
        raise KernelError(
            f'factors: expected a number for a kernel with a full matrix, got shape '
            f'{squares.shape}: give the kernel a scalar or a diagonal scale'
        )
    changed = copy.copy(kernel)
    changed.scale = Covariance(squares * value)
    return changed


def log_derivatives(
    kernel: RadialKernel, x: FloatArray, z: FloatArray, per_coordinate: bool
) -> list[NDArray[np.float64]]:
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


def _indices(fold: Fold, size: int) -> Fold:
    """Return both parts of a fold as arrays of row numbers."""
    parts = [np.asarray(part) for part in fold]
    usable = (
        a.ndim == 1 and a.dtype.kind in 'iu' and a.size and a.min() >= 0 and a.max() < size
        for a in parts
    )
    if len(parts) != 2 or not all(usable):
        raise KernelError(
            f'folds: expected pairs of training and validation indices in 0..{size - 1}, got '
            f'{", ".join(f"{a.dtype} of shape {a.shape}" for a in parts)}: see k_fold'
        )
    return parts[0], parts[1]


def _factors(logs: FloatArray, per_coordinate: bool) -> FloatArray:
    return np.asarray(np.exp(logs[:-1] if per_coordinate else logs[0]), dtype=np.float64)


def _one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise KernelError(f'{name}: expected one of {", ".join(known)}, got {value!r}')
    return value
