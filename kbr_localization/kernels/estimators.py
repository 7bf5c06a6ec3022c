"""
Estimators of scikit-learn: conditional means, Bayes' rule and filters as regressors.

X is what is observed and y what is wanted: X is the `y` of the rest of the toolbox, and y its
state `x`. Only this module needs scikit-learn (1.6 or later).
"""

from __future__ import annotations

from typing import Any

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel, PrecomputedKernel
from kbr_localization.kernels.checks import FloatArray
from kbr_localization.kernels.filters import (
    KernelBayesFilter,
    KernelBayesSmoother,
    LearntTransition,
    means,
)
from kbr_localization.kernels.inference import KernelBayesRule
from kbr_localization.kernels.kernel_mean import Embedding, KernelMean
from kbr_localization.kernels.kernels import GaussianKernel, median_kernel
from kbr_localization.kernels.rules import conditional_mean, regularise
import numpy as np

try:
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        f'the estimators need scikit-learn 1.6 or later ({error}): pip install scikit-learn'
    ) from error


class _Regressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Tables in, predictions in the shape of the y of fit out."""

    kernel: Kernel | str | None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self._is_precomputed()
        tags.target_tags.multi_output = True
        return tags

    def _is_precomputed(self) -> bool:
        return isinstance(self.kernel, str) and self.kernel == 'precomputed'

    def _pairs(self, X: Any, y: Any, least: int = 1) -> tuple[FloatArray, FloatArray]:
        """Check the data of fit; y becomes (n, k)."""
        points, target = validate_data(
            self,
            X,
            y,
            dtype=np.float64,
            multi_output=True,
            y_numeric=True,
            ensure_min_samples=least,
        )
        if self._is_precomputed() and points.shape[0] != points.shape[1]:
            raise KernelError(f'X: expected the square Gram matrix, got {points.shape}')
        target = np.asarray(target, dtype=np.float64)
        self._target_shape = target.shape[1:]
        return points, target.reshape(len(target), -1)

    def _queries(self, X: Any) -> Any:
        check_is_fitted(self)
        return validate_data(self, X, dtype=np.float64, reset=False)

    def _shaped(self, rows: FloatArray) -> FloatArray:
        return rows.reshape(len(rows), *self._target_shape)


def _resolved(kernel: Kernel | str | None, points: FloatArray, width: float) -> Kernel:
    """Return the kernel, or the plain Gaussian of `width` times the median distance for None."""
    if isinstance(kernel, Kernel):
        return kernel
    if kernel is not None:
        raise KernelError(
            f"kernel: expected a kernel, None or in some estimators 'precomputed', got {kernel!r}"
        )
    if np.all(points == points[0]):
        return GaussianKernel(width**2, normalised=False)
    return median_kernel(points, width)


class ConditionalMeanRegressor(_Regressor):
    """
    Conditional mean of y given X by the conditional kernel mean; the same as kernel ridge.

    `kernel` on X: a Kernel, None for the Gaussian of `width` times the median distance, or
    'precomputed': then fit takes the Gram matrix (n, n) and predict k(query_i, x_j) (q, n).
    `epsilon`: Tikhonov constant of C_XX, n epsilon on the Gram matrix. Shapes: X (n, d), y (n,) or
    (n, k). Source: [MbKSR] eq. 7.
    """

    def __init__(
        self, kernel: Kernel | str | None = None, width: float = 1.0, epsilon: float = 1e-3
    ) -> None:
        self.kernel, self.width, self.epsilon = kernel, width, epsilon

    def fit(self, X: Any, y: Any) -> ConditionalMeanRegressor:
        """Learn from pairs; returns itself."""
        gram, self.y_ = self._pairs(X, y)
        if not self._is_precomputed():
            self._points, self.kernel_ = gram, _resolved(self.kernel, gram, self.width)
            gram = self.kernel_.gram(gram)
        self._regularised = regularise(gram, self.epsilon)
        return self

    def weights(self, X: Any) -> FloatArray:
        """Weights of the conditional kernel means on the training y: (q, ...) -> (q, n)."""
        k_x = self._queries(X)
        if not self._is_precomputed():
            k_x = self.kernel_.cross_gram(k_x, self._points)
        return conditional_mean(self._regularised, k_x.T).T

    def predict(self, X: Any) -> FloatArray:
        """Conditional means of y. Shapes: (q, d) -> (q,) or (q, k)."""
        return self._shaped(self.weights(X) @ self.y_)


class KernelBayesRegressor(_Regressor):
    """
    Posterior means of y given X by the kernel Bayes' rule, under a prior of one's own.

    `kernel` on X and `target_kernel` on y: a Kernel, or None for the Gaussian of `width` or
    `target_width` times the median distance; `kernel` may be 'precomputed' as in
    ConditionalMeanRegressor. `prior`: points (l, k) of y, an embedding, or None for the law of the
    sample. `epsilon`, `delta`, `method`: see KernelBayesRule. An observation whose weights are
    zero, cancel or have a negative sum gets the prior's mean. Shapes: X (n, d), y (n,) or (n, k).
    """

    def __init__(
        self,
        kernel: Kernel | str | None = None,
        target_kernel: Kernel | None = None,
        width: float = 1.0,
        target_width: float = 1.0,
        epsilon: float = 1e-3,
        delta: float = 1e-6,
        method: str = 'squared',
        prior: Any = None,
    ) -> None:
        self.kernel, self.target_kernel = kernel, target_kernel
        self.width, self.target_width = width, target_width
        self.epsilon, self.delta, self.method, self.prior = epsilon, delta, method, prior

    def fit(self, X: Any, y: Any) -> KernelBayesRegressor:
        """Learn from pairs; returns itself."""
        points, states = self._pairs(X, y)
        self.target_kernel_ = _resolved(self.target_kernel, states, self.target_width)
        if self._is_precomputed():
            self.kernel_: Kernel = PrecomputedKernel(points)
            points = np.arange(float(len(points)))[:, np.newaxis]
        else:
            self.kernel_ = _resolved(self.kernel, points, self.width)
        settings = self.epsilon, self.delta, self.method
        self.rule_ = KernelBayesRule(self.target_kernel_, self.kernel_, states, points, *settings)
        prior: Any = states if self.prior is None else self.prior
        if not isinstance(prior, Embedding):
            prior = KernelMean.of_sample(self.target_kernel_, np.reshape(prior, (len(prior), -1)))
        self.mu_ = self.rule_.likelihood.sum_rule_weights(prior)
        return self

    def weights(self, X: Any) -> FloatArray:
        """Posterior weights on the training y, not normalised. Shapes: (q, ...) -> (q, n)."""
        k_y = self._queries(X)
        if not self._is_precomputed():
            k_y = self.kernel_.cross_gram(k_y, self.rule_.y)
        return self.rule_.from_vectors(self.mu_, k_y.T).T

    def predict(self, X: Any) -> FloatArray:
        """Posterior means of y. Shapes: (q, d) -> (q,) or (q, k)."""
        weights = self.weights(X)
        total = weights.sum(axis=1, keepdims=True)
        found = total > 1e-9 * np.abs(weights).sum(axis=1, keepdims=True)
        mass = self.mu_.sum()
        fallback = self.mu_ / mass if mass > 0 else np.full(len(self.mu_), 1.0 / len(self.mu_))
        normalised = np.where(found, weights / np.where(found, total, 1.0), fallback)
        return self._shaped(normalised @ self.rule_.x)


class KernelFilterRegressor(_Regressor):
    """
    States y of a run given its observations X, by a filter or smoother that a run has taught.

    fit takes one run: rows of X and y in the order of time, two at least. predict takes another
    run and returns the posterior mean of every step given the observations up to it, with `smooth`
    given all of them; the order of its rows matters. Parameters as in KernelBayesRegressor.
    Source: [KBR] section 4.3.
    """

    def __init__(
        self,
        kernel: Kernel | None = None,
        target_kernel: Kernel | None = None,
        width: float = 1.0,
        target_width: float = 1.0,
        epsilon: float = 1e-3,
        delta: float = 1e-6,
        method: str = 'squared',
        smooth: bool = False,
    ) -> None:
        self.kernel, self.target_kernel = kernel, target_kernel
        self.width, self.target_width = width, target_width
        self.epsilon, self.delta, self.method, self.smooth = epsilon, delta, method, smooth

    def fit(self, X: Any, y: Any) -> KernelFilterRegressor:
        """Learn transitions and observations from one run; returns itself."""
        points, states = self._pairs(X, y, 2)
        kernel_y = _resolved(self.target_kernel, states, self.target_width)
        kernel_x = _resolved(self.kernel, points, self.width)
        settings = self.epsilon, self.delta, self.method
        rule = KernelBayesRule(kernel_y, kernel_x, states, points, *settings)
        transition = LearntTransition(kernel_y, states[:-1], states[1:], self.epsilon)
        self.filter_ = KernelBayesFilter(transition, rule)
        backward = KernelBayesRule(kernel_y, kernel_y, states[:-1], states[1:], *settings)
        self.smoother_ = KernelBayesSmoother(self.filter_, backward)
        return self

    def predict(self, X: Any) -> FloatArray:
        """Posterior means of the states of a run. Shapes: (T, d) -> (T,) or (T, k)."""
        queries = self._queries(X)
        runner: Any = self.smoother_ if self.smooth else self.filter_
        return self._shaped(means(runner.run(queries)))
