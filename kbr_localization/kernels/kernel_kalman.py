"""
Kernel Kalman filter: Kalman's recursion on kernel means and covariance operators.

The belief is a mean and a covariance in the RKHS, both on the features of the training states.
Source: [KKR], Gebhardt, Kupcsik, Neumann, *The kernel Kalman rule*, AAAI 2017.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kbr_localization.kernels.algebra import Kernel
from kbr_localization.kernels.checks import as_positive, as_sample, as_sequence, FloatArray
from kbr_localization.kernels.inference import kernel_vector
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
        return np.asarray(np.tensordot(self.weights, self.points, axes=1))

    def covariance(self) -> FloatArray:
        """Covariance X^T S X of the state's mean estimate. Shapes: -> (d, d)."""
        flat = self.points.reshape(len(self.points), -1)
        return np.asarray(flat.T @ self.covariance_weights @ flat)


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
        self.kernel_x, self.kernel_y = kernel_x, kernel_y
        before = as_sample('x', x)
        self.x = as_sample('x_next', x_next, before.shape[1:], size=len(before))
        self.y = as_sample('y_next', y_next, size=len(before))
        self.kappa = as_positive('kappa', kappa)
        gram, gram_next = kernel_x.gram(before), kernel_x.gram(self.x)
        transition = regularise(gram, epsilon)
        self._transition = transition.solve(kernel_x.cross_gram(before, self.x))
        residual = np.eye(len(gram)) - transition.solve(gram)
        self._noise = residual @ residual.T / len(gram)
        self._regularised_gram_x = regularise(gram_next, epsilon)
        self._observation = self._regularised_gram_x.solve(gram_next)
        self._gram_y = kernel_y.gram(self.y)

    def start(self, states: ArrayLike | None = None) -> KernelGaussian:
        """Mean and covariance of a sample of first states (k, ...), or the training states."""
        projection = np.eye(len(self.x))
        if states is not None:
            first = as_sample('states', states, self.x.shape[1:])
            projection = self._regularised_gram_x.solve(self.kernel_x.cross_gram(self.x, first))
        mean = projection.mean(axis=1)
        scatter = projection @ projection.T / projection.shape[1] - np.outer(mean, mean)
        return self._belief(mean, scatter)

    def predict(self, belief: KernelGaussian) -> KernelGaussian:
        """One step of the transition: T m and T S T^T + V."""
        t = self._transition
        spread = t @ belief.covariance_weights @ t.T + self._noise
        return self._belief(t @ belief.weights, spread)

    def update(self, belief: KernelGaussian, observation: ArrayLike) -> KernelGaussian:
        """
        Kernel Kalman rule: gain Q = S O^T (G_Y O S O^T + kappa I)^-1, m + Q (k_Y(y) - G_Y O m).

        Shapes: observation (...), one point.
        """
        k_y = kernel_vector(self.kernel_y, self.y, observation)
        o, s = self._observation, belief.covariance_weights
        spread = s @ o.T
        innovation = self._gram_y @ (o @ spread)
        innovation.flat[:: len(o) + 1] += self.kappa
        gain = np.linalg.solve(innovation.T, spread.T).T
        mean = belief.weights + gain @ (k_y - self._gram_y @ (o @ belief.weights))
        return self._belief(mean, s - gain @ (self._gram_y @ spread.T))

    def run(
        self, observations: ArrayLike | Sequence[Any], states: ArrayLike | None = None
    ) -> list[KernelGaussian]:
        """
        Beliefs of a sequence (T, ...) after each update; `states` as in `start`.

        An observation that is None, masked or has NaN is missing and updates nothing.
        """
        beliefs: list[KernelGaussian] = []
        for observation in as_sequence('observations', observations, self.y.shape[1:]):
            belief = self.predict(beliefs[-1]) if beliefs else self.start(states)
            beliefs.append(belief if observation is None else self.update(belief, observation))
        return beliefs

    def _belief(self, mean: FloatArray, spread: FloatArray) -> KernelGaussian:
        return KernelGaussian(self.kernel_x, self.x, mean, 0.5 * (spread + spread.T))


def kalman_means(beliefs: Iterable[KernelGaussian]) -> FloatArray:
    """Means of the states of a run. Shapes: -> (T, d)."""
    return np.array([belief.mean() for belief in beliefs])
