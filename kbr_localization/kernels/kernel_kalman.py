"""
Kernel Kalman filter: Kalman's recursion on kernel means and covariance operators.

The belief is a mean and a covariance in the RKHS, both on the features of the training states.
Source: [KKR], Gebhardt, Kupcsik, Neumann, *The kernel Kalman rule*, AAAI 2017.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel, require_kernel
from kbr_localization.kernels.checks import (
    as_floats,
    as_points_like,
    as_positive,
    FloatArray,
    require,
)
from kbr_localization.kernels.inference import as_pairs, kernel_vector
from kbr_localization.kernels.kernel_mean import KernelMean
from kbr_localization.kernels.rules import regularise
import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True, eq=False)
class KernelGaussian:
    """
    Mean sum_i m_i k(., X_i) and covariance operator sum_ij S_ij k(., X_i) (x) k(., X_j).

    `kernel`: on states; `points` X: (n, ...); `weights` m: (n,); `covariance_weights` S: (n, n).
    """

    kernel: Kernel
    points: FloatArray
    weights: FloatArray
    covariance_weights: FloatArray

    def kernel_mean(self) -> KernelMean:
        """Return the mean, an embedding like any other."""
        return KernelMean(self.kernel, self.points, self.weights)

    def mean(self) -> FloatArray:
        """Mean of the state, sum_i m_i X_i without normalisation. Shapes: -> (d,), (3, 3)."""
        return np.asarray(np.tensordot(self.weights, self.points, axes=1), dtype=np.float64)

    def covariance(self) -> FloatArray:
        """Covariance X^T S X of the state's mean estimate. Shapes: -> (d, d)."""
        flat = self.points.reshape(len(self.points), -1)
        return np.asarray(flat.T @ self.covariance_weights @ flat, dtype=np.float64)


class KernelKalmanFilter:
    """
    Kalman filter on the features k_X(., x), learnt from transitions and their observations.

    `x`, `x_next`: (n, ...) transitions (X_i, X'_i); `y_next`: (n, ...) observed at x_next;
    `epsilon`: Tikhonov constant of both conditional operators, see `rules`; `kappa` > 0: variance
    of the observation noise in the RKHS of k_Y, R = kappa I. The noise of the transition is the
    empirical covariance of its residuals.
    With linear kernels this is the Kalman filter of the ridge regressions x -> x', x' -> y.
    O(n^3) a step.
    """

    def __init__(
        self,
        kernel_x: Kernel,
        kernel_y: Kernel,
        x: ArrayLike,
        x_next: ArrayLike,
        y_next: ArrayLike,
        epsilon: float,
        kappa: float,
    ) -> None:
        require_kernel('kernel_x', kernel_x)
        require_kernel('kernel_y', kernel_y)
        self.kernel_x, self.kernel_y = kernel_x, kernel_y
        pairs = kernel_x.encode('x', x), kernel_x.encode('x_next', x_next)
        before, self.x = as_pairs(*pairs, ('x', 'x_next'))
        observed = kernel_y.encode('y_next', y_next)
        self.y = as_pairs(observed, self.x, ('y_next', 'x_next'))[0]
        self.kappa = as_positive('kappa', kappa)
        gram = kernel_x.gram(before)
        transition = regularise(gram, epsilon)
        self._transition = transition.solve(kernel_x.cross_gram(before, self.x))
        residual = np.eye(len(gram)) - transition.solve(gram)
        self._noise = residual @ residual.T / len(gram)
        gram_next = kernel_x.gram(self.x)
        self._regularised_gram_x = regularise(gram_next, epsilon)
        self._observation = self._regularised_gram_x.solve(gram_next)
        self._gram_y = kernel_y.gram(self.y)

    def start(self, states: ArrayLike | None = None) -> KernelGaussian:
        """
        Belief before the first observation: mean and covariance of a sample of first states.

        `states` (k, ...): the training states when None, taken as they are; others are projected
        onto these by the conditional operator.
        """
        projection = np.eye(len(self.x))
        if states is not None:
            first = as_points_like('states', self.kernel_x.encode('states', states), self.x)
            projection = self._regularised_gram_x.solve(self.kernel_x.cross_gram(self.x, first))
        count = projection.shape[1]
        mean = projection.mean(axis=1)
        scatter = projection @ projection.T / count - np.outer(mean, mean)
        return self._belief(mean, scatter)

    def predict(self, belief: KernelGaussian) -> KernelGaussian:
        """One step of the transition: T m and T S T^T + V."""
        require('belief', belief, KernelGaussian, 'what start, predict or update returned')
        t = self._transition
        spread = t @ belief.covariance_weights @ t.T + self._noise
        return self._belief(t @ belief.weights, spread)

    def update(self, belief: KernelGaussian, observation: ArrayLike) -> KernelGaussian:
        """
        Kernel Kalman rule: gain Q = S O^T (G_Y O S O^T + kappa I)^-1, m + Q (k_Y(y) - G_Y O m).

        Shapes: observation (...), one point.
        """
        require('belief', belief, KernelGaussian, 'what start, predict or update returned')
        k_y = kernel_vector(self.kernel_y, self.y, observation)
        o, s = self._observation, belief.covariance_weights
        spread = s @ o.T
        innovation = self._gram_y @ (o @ spread)
        innovation.flat[:: len(o) + 1] += self.kappa
        gain = np.linalg.solve(innovation.T, spread.T).T
        mean = belief.weights + gain @ (k_y - self._gram_y @ (o @ belief.weights))
        return self._belief(mean, s - gain @ (self._gram_y @ spread.T))

    def run(
        self, observations: ArrayLike, states: ArrayLike | None = None
    ) -> list[KernelGaussian]:
        """Filter a sequence (T, ...); `states` as in `start`. Returns every posterior belief."""
        points = self.kernel_y.encode('observations', observations)
        sequence = as_points_like('observations', points, self.y)
        beliefs = [self.update(self.start(states), sequence[0])]
        for observation in sequence[1:]:
            beliefs.append(self.update(self.predict(beliefs[-1]), observation))
        return beliefs

    def _belief(self, mean: FloatArray, spread: FloatArray) -> KernelGaussian:
        return KernelGaussian(self.kernel_x, self.x, mean, 0.5 * (spread + spread.T))


def kalman_means(beliefs: Iterable[KernelGaussian]) -> FloatArray:
    """Means of the states of a run. Shapes: -> (T, d)."""
    values = [belief.mean() for belief in beliefs]
    if not values:
        raise KernelError('beliefs: expected at least one, got none: filter a run first')
    return as_floats('beliefs', values)
