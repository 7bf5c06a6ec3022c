"""
Regressors for scikit-learn: conditional means, Bayes' rule and filters.

As usual in scikit-learn, X is observed and y is predicted: X corresponds to the observation `y` of
the other modules, and y to their state `x`. Only this module needs scikit-learn (1.6 or later).

`kernel` on X and `target_kernel` on y are a Kernel, or None for the Gaussian kernel of `width` or
`target_width` times the median distance. Search over widths or over kernels:
`{'kernel': [GaussianKernel(s) for s in (0.1, 1.0)]}`.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel, PrecomputedKernel
from kbr_localization.kernels.checks import FloatArray
from kbr_localization.kernels.filters import KernelBayesFilter, KernelBayesSmoother
from kbr_localization.kernels.inference import KernelBayesRule, NonparametricModel
from kbr_localization.kernels.kernel_mean import KernelMean
from kbr_localization.kernels.kernels import GaussianKernel, median_kernel
from kbr_localization.kernels.rules import conditional_mean, regularise, warn_if_cancelling
import numpy as np

try:
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        f'the estimators need scikit-learn 1.6 or later ({error}): pip install scikit-learn'
    ) from error


KernelArgument = Kernel | str | None


def _make_kernel(kernel: KernelArgument, points: FloatArray, width: float) -> Kernel:
    if isinstance(kernel, Kernel):
        return kernel
    if kernel is not None:
        raise KernelError(
            f'kernel or target_kernel: expected a Kernel, None or, for a kernel of pairs of X in '
            f"regressors, 'precomputed', got {kernel!r}"
        )
    if np.all(points == points[:1]):
        return GaussianKernel(width**2, normalised=False)
    return median_kernel(points, width)


class _Regressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Base class; predictions have the shape of the y of fit."""

    kernel: KernelArgument
    width: float

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self._is_precomputed()
        tags.target_tags.multi_output = True
        return tags

    def _is_precomputed(self) -> bool:
        return isinstance(self.kernel, str) and self.kernel == 'precomputed'

    def _checked(self, *data: Any, **settings: Any) -> Any:
        # scikit-learn would ignore the mask
        data = tuple(
            np.ma.filled(d.astype(float), np.nan) if np.ma.is_masked(d) else d for d in data
        )
        return validate_data(self, *data, dtype=np.float64, **settings)

    def _pairs(self, X: Any, y: Any, **settings: Any) -> tuple[FloatArray, FloatArray]:
        """Check the data of fit; y becomes (n, k)."""
        points, target = self._checked(X, y, multi_output=True, y_numeric=True, **settings)
        target = np.asarray(target, dtype=np.float64)
        self._target_shape = target.shape[1:]
        return points, target.reshape(len(target), -1)

    def _learn_kernel(self, points: FloatArray) -> None:
        """Set `kernel_` on X, and `_points`: X or row numbers of the Gram matrix."""
        self._points = points
        if not self._is_precomputed():
            self.kernel_ = _make_kernel(self.kernel, points, self.width)
            return
        if points.shape[0] != points.shape[1]:
            raise KernelError(f'X: expected the square Gram matrix, got {points.shape}')
        self.kernel_ = PrecomputedKernel(points)
        self._points = self.kernel_.points()

    def _kernel_vectors(self, X: Any) -> FloatArray:
        """Return k(x_i, query_j), (n, q)."""
        check_is_fitted(self)
        queries = self._checked(X, reset=False)
        if not self._is_precomputed():
            queries = self.kernel_.cross_gram(queries, self._points)
        return np.asarray(queries.T)

    @abstractmethod
    def _moments(self, X: Any) -> tuple[FloatArray, FloatArray]:
        """Means and variances of y, (q, k) each."""

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return means of y, with `return_std` also deviations. (q, d) -> (q,) or (q, k)."""
        mean, variance = self._moments(X)
        shape = (len(mean), *self._target_shape)
        std = np.sqrt(np.maximum(variance, 0.0)).reshape(shape)
        return (mean.reshape(shape), std) if return_std else mean.reshape(shape)


@dataclass(eq=False, repr=False)
class ConditionalMeanRegressor(_Regressor):
    """
    Conditional mean of y given X by the conditional kernel mean, equal to kernel ridge regression.

    `kernel` and `width`: see the module; with 'precomputed' fit takes the Gram matrix (n, n) and
    predict k(query_i, x_j) (q, n). `epsilon`: Tikhonov constant of C_XX, n epsilon on the Gram
    matrix. Far from the sample the weights vanish, and the standard deviation is the sample's.
    Shapes: X (n, d), y (n,) or (n, k). Source: [MbKSR] eq. 7.
    """

    kernel: KernelArgument = None
    width: float = 1.0
    epsilon: float = 1e-3

    def fit(self, X: Any, y: Any) -> ConditionalMeanRegressor:
        """Fit to pairs; returns self."""
        points, self.y_ = self._pairs(X, y)
        self._learn_kernel(points)
        self._regularised = regularise(self.kernel_.gram(self._points), self.epsilon)
        return self

    def _moments(self, X: Any) -> tuple[FloatArray, FloatArray]:
        k_x = self._kernel_vectors(X)
        weights, average = conditional_mean(self._regularised, k_x).T, self.y_.mean(axis=0)
        mean, centred = weights @ self.y_, self.y_ - average
        rest = 1.0 - weights.sum(axis=1, keepdims=True)
        first = weights @ centred
        second = weights @ centred**2 + rest * (centred**2).mean(axis=0)
        return mean, second - first**2


@dataclass(eq=False, repr=False)
class _BayesRegressor(_Regressor):
    kernel: KernelArgument = None
    target_kernel: KernelArgument = None
    width: float = 1.0
    target_width: float = 1.0
    epsilon: float = 1e-3
    delta: float | None = None
    method: str = 'squared'


@dataclass(eq=False, repr=False)
class KernelBayesRegressor(_BayesRegressor):
    """
    Posterior means of y given X by the kernel Bayes' rule, with a given prior.

    `kernel`, `target_kernel`, `width`, `target_width`: see the module; `kernel` may be
    'precomputed' as in ConditionalMeanRegressor. `prior`: points (l, k) of y, or None for the
    training sample. `epsilon`, `delta`, `method`: see KernelBayesRule; 'pKBR' gives better
    standard deviations, since its weights cancel less. If the weights of an observation are zero,
    cancel or have a negative sum, the prior mean is predicted. Shapes: X (n, d), y (n,) or (n, k).
    """

    prior: Any = None

    def fit(self, X: Any, y: Any) -> KernelBayesRegressor:
        """Fit to pairs; returns self."""
        points, states = self._pairs(X, y)
        self._learn_kernel(points)
        kernel_y = _make_kernel(self.target_kernel, states, self.target_width)
        settings = self.epsilon, self.delta, self.method
        self.rule_ = KernelBayesRule(kernel_y, self.kernel_, states, self._points, *settings)
        prior = states if self.prior is None else np.reshape(self.prior, (len(self.prior), -1))
        law = KernelMean.of_sample(kernel_y, prior)
        self.mu_ = self.rule_.likelihood.sum_rule_weights(law)
        return self

    def _moments(self, X: Any) -> tuple[FloatArray, FloatArray]:
        k_y = self._kernel_vectors(X)
        weights = self.rule_.from_vectors(self.mu_, k_y).T
        total = weights.sum(axis=1, keepdims=True)
        share = total / np.maximum(np.abs(weights).sum(axis=1, keepdims=True), 1e-300)
        found = share > 1e-9
        warn_if_cancelling(float(share[found].min(initial=1.0)))
        mass = self.mu_.sum()
        fallback = self.mu_ / mass if mass > 0 else np.full(len(self.mu_), 1.0 / len(self.mu_))
        normalised = np.where(found, weights / np.where(found, total, 1.0), fallback)
        mean = normalised @ self.rule_.x
        return mean, normalised @ self.rule_.x**2 - mean**2


@dataclass(eq=False, repr=False)
class KernelFilterRegressor(_BayesRegressor):
    """
    States y of a run given its observations X, by a filter or smoother learnt from another run.

    fit takes one run: at least two rows of X and y in temporal order. predict takes another run
    and returns the posterior mean at each step given the observations so far, or with `smooth`
    given all of them; rows are in temporal order, and a row with NaN is a missing observation.
    With a hundred rows and little noise the smoother is worse than the filter: compare them.
    Parameters as in KernelBayesRegressor, but without `prior` and 'precomputed'. Search them with
    TimeSeriesSplit: other folds join rows that do not follow each other. Source: [KBR] 4.3.
    """

    smooth: bool = False

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def fit(self, X: Any, y: Any) -> KernelFilterRegressor:
        """Fit transitions and observations to one run; returns self."""
        points, states = self._pairs(X, y, ensure_min_samples=2, ensure_all_finite='allow-nan')
        seen = np.isfinite(points).all(axis=1)
        kernel_y = _make_kernel(self.target_kernel, states, self.target_width)
        kernel_x = _make_kernel(self.kernel, points[seen], self.width)
        settings = self.epsilon, self.delta, self.method
        rule = KernelBayesRule(kernel_y, kernel_x, states[seen], points[seen], *settings)
        step = kernel_y, kernel_y, states[:-1], states[1:]
        self.filter_ = KernelBayesFilter(NonparametricModel(*step, self.epsilon), rule)
        backward = KernelBayesRule(*step, *settings)
        self.smoother_ = KernelBayesSmoother(self.filter_, backward)
        return self

    def _moments(self, X: Any) -> tuple[FloatArray, FloatArray]:
        check_is_fitted(self)
        queries = self._checked(X, reset=False, ensure_all_finite='allow-nan')
        beliefs = (self.smoother_ if self.smooth else self.filter_).run(queries)
        mean = np.array([belief.mean() for belief in beliefs])
        variance = np.array([belief.covariance().diagonal() for belief in beliefs])
        return mean, variance
