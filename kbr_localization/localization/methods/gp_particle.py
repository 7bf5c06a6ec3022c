"""
Particle filter with a Gaussian-process observation model [GP-PF].

Lopez-Antequera, Petkov, Gonzalez-Jimenez, *Image-based localization using Gaussian processes*,
IPIN 2016; Jaenal, Moreno, Gonzalez-Jimenez, *Appearance-based sequential robot localization using
a patchwise approximation of a descriptor manifold*, Sensors 2021. A process for each number of a
descriptor regresses it on the pose; all share the kernel k_X, so with z_i the descriptors of the
map images and K = G_X + s I

    mean(x) = k_X(x)^T K^-1 Z,     variance(x) = 1 + s - k_X(x)^T K^-1 k_X(x)

in units of the variance of each component, and an image weighs a particle by the Gaussian density
of its descriptor. The descriptor is the projection on the principal components of the image
kernel (kernel PCA; Schoelkopf, Smola, Mueller 1998): the processes know no other feature of it.
"""

from __future__ import annotations

from kbr_localization import se2
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.configs import GaussianProcessConfig
from kbr_localization.localization.methods.map_kernels import pose_kernel, refuse_large
from kbr_localization.localization.methods.particles import ParticleFilter
from kbr_localization.se2 import FloatArray
import numpy as np
import scipy.linalg


class ImageComponents:
    """
    Principal components of the map's images, from their kernel matrix (n, n).

    `values` (n, q): of the map images, each of variance one.
    """

    def __init__(self, gram: FloatArray, count: int) -> None:
        n = len(gram)
        self._row_means, self._mean = gram.mean(axis=1), float(gram.mean())
        centred = gram - self._row_means[:, np.newaxis] - self._row_means + self._mean
        first = max(0, n - min(count, max(n - 1, 1)))
        spread, axes = scipy.linalg.eigh(centred, subset_by_index=[first, n - 1])
        kept = spread > 1e-10 * max(float(spread[-1]), 1e-300)
        self._axes = np.sqrt(n) * axes[:, kept] / spread[kept]
        self.values = centred @ self._axes

    def of(self, similarities: FloatArray) -> FloatArray:
        """Components (q,) of an image with kernel vector (n,)."""
        centred = similarities - similarities.mean() - self._row_means + self._mean
        return np.asarray(centred @ self._axes)


class PoseRegression:
    """
    Gaussian processes from the pose to `values` (n, q), of unit variance, with common kernel.

    `noise`: variance s of what is added to each value.
    """

    def __init__(
        self, poses: FloatArray, values: FloatArray, position: float, heading: float, noise: float
    ) -> None:
        self._kernel = pose_kernel(position, heading, normalised=False)
        self._points, self._noise = se2.to_plane_and_circle(poses), noise
        gram = self._kernel.gram(self._points) + noise * np.eye(len(poses))
        lower = scipy.linalg.cholesky(gram, lower=True)
        self._root = scipy.linalg.solve_triangular(lower, np.eye(len(poses)), lower=True)
        self._weights = self._root.T @ (self._root @ values)

    def at(self, poses: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Predictive mean (m, q) and variance (m,) of the values, noise included."""
        cross = self._kernel.cross_gram(se2.to_plane_and_circle(poses), self._points)
        explained_variance = np.sum((cross @ self._root.T) ** 2, axis=1)
        return cross @ self._weights, np.maximum(1.0 - explained_variance, 0.0) + self._noise


class GaussianProcessParticleFilter(ParticleFilter):
    """The localizer `gp-particle`; see `Localizer` for the interface."""

    def __init__(
        self,
        kernel_map: KernelMap,
        config: GaussianProcessConfig | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        refuse_large(kernel_map)
        self.process = config = config or GaussianProcessConfig()
        h, a = config.position_bandwidth, config.heading_bandwidth
        spread = 0.5 * np.array([h, h, a])
        super().__init__(kernel_map, config, config.points, spread, rng)
        rows = kernel_map.describer.cross_gram(kernel_map.descriptors, kernel_map.descriptors)
        self.components = ImageComponents(np.asarray(rows, dtype=np.float64), config.components)
        self.regression = PoseRegression(
            kernel_map.poses, self.components.values, h, a, config.noise
        )

    def likelihood(self, points: FloatArray, similarities: FloatArray) -> FloatArray:
        """Density (m,) of the image's components to the `power`, 1 at the best of the points."""
        logarithm = self.process.power * self.log_density(points, similarities)
        return np.asarray(np.exp(logarithm - logarithm.max()) + self.process.outlier_rate)

    def log_density(self, points: FloatArray, similarities: FloatArray) -> FloatArray:
        """Log density (m,) of the image's components at points (m, 3), up to a constant."""
        mean, variance = self.regression.at(points)
        seen = self.components.of(similarities)
        squared = np.sum((seen - mean) ** 2, axis=1)
        return np.asarray(-0.5 * (squared / variance + len(seen) * np.log(variance)))
