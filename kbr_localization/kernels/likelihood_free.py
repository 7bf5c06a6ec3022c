"""
Posteriors without a likelihood: kernel ABC from a simulator, and density estimates for comparison.

Sources: [KBR] section 4.4, Nakagome, Fukumizu, Mano, *Kernel approximate Bayesian computation in
population genetic inferences* (2013); [KBR] section 5.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel
from kbr_localization.kernels.checks import (
    as_count,
    as_floats,
    as_generator,
    as_points,
    as_positive,
    FloatArray,
    renamed,
    require_callable,
)
from kbr_localization.kernels.covariance import Covariance
from kbr_localization.kernels.distances import squared_distances
from kbr_localization.kernels.inference import as_pairs, NonparametricModel
from kbr_localization.kernels.kernel_mean import KernelMean
from kbr_localization.kernels.kernels import GaussianKernel
from kbr_localization.kernels.selection import median_distance
import numpy as np
from numpy.typing import ArrayLike
import scipy.special

_SMALLEST_SUM = 1e-280
"""Below it terms that underflow may be a part of the sum."""


class KernelABC:
    """
    Kernel approximate Bayesian computation: posteriors of parameters from simulated pairs.

    `prior`: maps a number n and a generator to parameters (n, d); `simulator`: maps parameters
    (n, d) and a generator to summaries (n, p) of one simulation each; `size`: n; `kernel_x` on
    parameters, `kernel_y` on summaries: Gaussian with the median bandwidth when None; `epsilon`:
    see `rules`. Nothing is rejected: every simulation has a weight. Source: [KBR] eq. 19.
    """

    def __init__(
        self,
        prior: Callable[[int, np.random.Generator], Any],
        simulator: Callable[[FloatArray, np.random.Generator], Any],
        size: int = 1000,
        epsilon: float = 1e-4,
        kernel_x: Kernel | None = None,
        kernel_y: Kernel | None = None,
        rng: np.random.Generator | int = 0,
    ) -> None:
        require_callable('prior', prior, 'of a number and a generator to parameters (n, d)')
        require_callable('simulator', simulator, 'of parameters and a generator to summaries')
        generator, count = as_generator('rng', rng), as_count('size', size)
        self.x = as_points('prior(size, rng)', prior(count, generator))
        summaries = as_floats('simulator(x, rng)', simulator(self.x, generator))
        names = ('prior(size, rng)', 'simulator(x, rng)')
        self.x, self.y = as_pairs(self.x, summaries, names)
        self.kernel_x = kernel_x or median_kernel(self.x)
        self.kernel_y = kernel_y or median_kernel(self.y)
        model = NonparametricModel(self.kernel_y, self.kernel_x, self.y, self.x, epsilon)
        self._model = model

    def posterior(self, summary: ArrayLike) -> KernelMean:
        """
        Kernel mean of the parameters given observed summaries (p,), not normalised.

        Weights (G_Y + n epsilon I)^-1 k_Y(y) on the simulated parameters.
        """
        with renamed(x='summary'):
            return self._model.at(summary)


class DensityPosterior:
    """
    KDE + IW: posteriors by a kernel density estimate of p(y | x) and importance weights.

    What [KBR] compares with: p(y | x) = sum_j K(x - X_j) K(y - Y_j) / sum_j K(x - X_j) with
    Gaussian K, and the points U_i of the prior weighted by p(y | U_i). `x`: (n, d), `y`: (n, p)
    pairs; `bandwidth_x`, `bandwidth_y`: in the units of x and y. Source: [KBR] section 5.1.
    """

    def __init__(self, x: ArrayLike, y: ArrayLike, bandwidth_x: float, bandwidth_y: float) -> None:
        self.x, self.y = as_pairs(as_points('x', x), as_points('y', y))
        self._scale_x = Covariance(as_positive('bandwidth_x', bandwidth_x) ** 2)
        self._scale_y = Covariance(as_positive('bandwidth_y', bandwidth_y) ** 2)

    def weights(self, prior: ArrayLike, observations: ArrayLike) -> FloatArray:
        """
        Return importance weights of the prior's points, positive and of sum one for each query.

        Shapes: points (l, d), observations (q, p) -> (q, l). In logarithms, so that far
        observations have weights as well.
        """
        points = as_points('prior', prior, self.x.shape[1])
        queries = as_points('observations', observations, self.y.shape[1])
        near_x = -0.5 * squared_distances(points, self.x, self._scale_x)
        near_y = -0.5 * squared_distances(queries, self.y, self._scale_y)
        near_x -= scipy.special.logsumexp(near_x, axis=1, keepdims=True)
        return np.asarray(scipy.special.softmax(_log_products(near_y, near_x), axis=1))

    def posterior(self, prior: ArrayLike, observation: ArrayLike, kernel: Kernel) -> KernelMean:
        """Posterior as a kernel mean on the points (l, d) of the prior, given one y (p,)."""
        single = as_floats('observation', observation)
        if single.shape != self.y.shape[1:]:
            raise KernelError(
                f'observation: expected one point of shape {self.y.shape[1:]}, got {single.shape}'
                ': give one observation at a time'
            )
        points = as_points('prior', prior, self.x.shape[1])
        return KernelMean(kernel, points, self.weights(points, single[np.newaxis])[0])


def _log_products(left: FloatArray, right: FloatArray) -> FloatArray:
    """
    Logarithms of exp(left) exp(right)^T: (q, n), (l, n) -> (q, l).

    One product of matrices, and where it comes near the smallest float a sum in logarithms.
    """
    peaks = left.max(axis=1, keepdims=True)
    products = np.exp(left - peaks) @ np.exp(right).T
    far = np.any(products < _SMALLEST_SUM, axis=1)
    with np.errstate(divide='ignore'):
        result = np.asarray(np.log(products) + peaks, dtype=np.float64)
    for row in np.flatnonzero(far):
        result[row] = scipy.special.logsumexp(right + left[row], axis=1)
    return result


def median_kernel(points: FloatArray) -> GaussianKernel:
    """Return the plain Gaussian kernel of the median bandwidth ([KBR] section 5.1)."""
    return GaussianKernel(median_distance(points) ** 2, normalised=False)
