"""
Estimators with fit and predict: conditional means, Bayes' rule and filters as regressors.

They follow the conventions of scikit-learn and pass its checks, so that its pipelines and searches
take them, without needing it. X is what is observed and y what is wanted: X is the `y` of the rest
of the toolbox, and y its state `x`.
"""

from __future__ import annotations

from typing import Any

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel
from kbr_localization.kernels.checks import FloatArray
from kbr_localization.kernels.embedding import Embedding
from kbr_localization.kernels.estimator_base import as_target, Estimator, resolved
from kbr_localization.kernels.filters import KernelBayesFilter, LearntTransition, means
from kbr_localization.kernels.inference import KernelBayesRule
from kbr_localization.kernels.kernel_mean import KernelMean
from kbr_localization.kernels.objects import PrecomputedKernel
from kbr_localization.kernels.rules import conditional_mean, regularise
from kbr_localization.kernels.smoother import KernelBayesSmoother
import numpy as np

# signed weights whose sum is below this part of the sum of their sizes have no mass
_CANCELLED = 1e-9


class ConditionalMeanRegressor(Estimator):
    """
    Conditional mean of y given X by the conditional kernel mean; the same as kernel ridge.

    `kernel` on X: a Kernel, None for the Gaussian of `width` times the median distance, or
    'precomputed': then fit takes the Gram matrix (n, n) and predict k(query_i, x_j) (q, n). A
    kernel on objects takes lists of them. `epsilon`: Tikhonov constant of C_XX, n epsilon on the
    Gram matrix. Shapes: X (n, d), y (n,) or (n, k). Source: [MbKSR] eq. 7.
    """

    def __init__(
        self,
        kernel: Kernel | str | None = None,
        width: float = 1.0,
        epsilon: float = 1e-3,
    ) -> None:
        self.kernel, self.width, self.epsilon = kernel, width, epsilon

    def fit(self, X: Any, y: Any) -> ConditionalMeanRegressor:
        """Learn from pairs; returns itself."""
        points, self.y_ = self._begin(X, y)
        self._points = points
        if self._is_precomputed():
            gram = points
        else:
            self.kernel_ = resolved(self.kernel, points, self.width)
            gram = self.kernel_.gram(points)
        self._regularised = regularise(0.5 * (gram + gram.T), self.epsilon)
        return self

    def weights(self, X: Any) -> FloatArray:
        """Weights of the conditional kernel means on the training y: (q, ...) -> (q, n)."""
        queries = self._queries(X)
        if self._is_precomputed():
            return conditional_mean(self._regularised, queries.T).T
        k_x = self.kernel_.cross_gram(self._points, queries)
        return conditional_mean(self._regularised, k_x).T

    def predict(self, X: Any) -> FloatArray:
        """Conditional means of y. Shapes: (q, d) -> (q,) or (q, k)."""
        return self._shaped(self.weights(X) @ self.y_)


class KernelBayesRegressor(Estimator):
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
        points, states = self._begin(X, y)
        self.target_kernel_ = resolved(self.target_kernel, states, self.target_width)
        if self._is_precomputed():
            table = PrecomputedKernel(0.5 * (points + points.T))
            points = table.points()
            self.kernel_: Kernel = table
        else:
            self.kernel_ = resolved(self.kernel, points, self.width)
        self.rule_ = KernelBayesRule(
            self.target_kernel_, self.kernel_, states, points,
            self.epsilon, self.delta, self.method,
        )  # fmt: skip
        self.prior_ = self._prior(states)
        return self

    def _prior(self, states: FloatArray) -> Embedding:
        if isinstance(self.prior, Embedding):
            return self.prior
        points = states
        if self.prior is not None:
            points = as_target(self.prior, 'prior')
            points = points.reshape(len(points), -1)
        if points.shape[1:] != states.shape[1:]:
            raise KernelError(
                f'prior: expected points of y, shape (l, {states.shape[1]}), got {points.shape}'
            )
        return KernelMean.of_sample(self.target_kernel_, points)

    def weights(self, X: Any) -> FloatArray:
        """Posterior weights on the training y, not normalised. Shapes: (q, ...) -> (q, n)."""
        queries = self._queries(X)
        if not self._is_precomputed():
            return self.rule_.posterior_weights(self.prior_, queries).T
        mu = self.rule_.likelihood.sum_rule_weights(self.prior_)
        return self.rule_.from_vectors(mu, queries.T).T

    def predict(self, X: Any) -> FloatArray:
        """Posterior means of y. Shapes: (q, d) -> (q,) or (q, k)."""
        weights = self.weights(X)
        # relative to the weights, whose unit is that of the kernel and of delta
        total = weights.sum(axis=1, keepdims=True)
        found = total > _CANCELLED * np.abs(weights).sum(axis=1, keepdims=True)
        mu = self.rule_.likelihood.sum_rule_weights(self.prior_)
        fallback = mu / mu.sum() if mu.sum() > 0 else np.full(len(mu), 1.0 / len(mu))
        normalised = np.where(found, weights / np.where(found, total, 1.0), fallback)
        return self._shaped(normalised @ self.rule_.x)


class KernelFilterRegressor(Estimator):
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
        points, states = self._begin(X, y)
        if len(states) < 2:
            raise KernelError('X: expected a run of two steps or more, got 1 sample')
        kernel_y = resolved(self.target_kernel, states, self.target_width)
        kernel_x = resolved(self.kernel, points, self.width)
        settings = (self.epsilon, self.delta, self.method)
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
