"""
Positive definite kernels on vectors: Gram matrices of points given as float arrays (n, d).

A kernel that is normalised is a probability density in x - x'; that makes the model-based kernel
sum rule free of coefficients ([MbKSR] section 4.1).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
import math

from kbr_localization.kernels.checks import as_points, FloatArray
from kbr_localization.kernels.covariance import as_covariance, Covariance
import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial.distance import cdist

# below this dimension differences are as fast as the matrix product, and exact
_DIRECT_DIMENSION = 16


class Kernel(ABC):
    """A positive definite kernel k: Gram matrices, cross-Gram matrices and their diagonal."""

    @abstractmethod
    def cross_gram(self, x: ArrayLike, z: ArrayLike) -> FloatArray:
        """Matrix of k(x_i, z_j). Shapes: (n, d), (m, d) -> (n, m)."""

    @abstractmethod
    def diagonal(self, x: ArrayLike) -> FloatArray:
        """Values k(x_i, x_i). Shapes: (n, d) -> (n,)."""

    def gram(self, x: ArrayLike) -> FloatArray:
        """Matrix of k(x_i, x_j), exactly symmetric. Shapes: (n, d) -> (n, n)."""
        matrix = self.cross_gram(x, x)
        return np.asarray(0.5 * (matrix + matrix.T), dtype=np.float64)


class GaussianKernel(Kernel):
    """
    Gaussian kernel exp(-(x - x')^T R^-1 (x - x') / 2), times |2 pi R|^-1/2 when normalised.

    `covariance` R: scalar (squared bandwidth), diagonal (d,) or full matrix (d, d).
    Source: [MbKSR] eq. 18.
    """

    def __init__(self, covariance: ArrayLike | Covariance, normalised: bool = True) -> None:
        self.covariance = as_covariance('covariance', covariance)
        self.normalised = normalised

    def cross_gram(self, x: ArrayLike, z: ArrayLike) -> FloatArray:
        """Matrix of k(x_i, z_j). Shapes: (n, d), (m, d) -> (n, m)."""
        values = squared_distances(x, z, self.covariance)
        values *= -0.5
        np.exp(values, out=values)
        values *= self.peak(np.shape(x)[1])
        return values

    def diagonal(self, x: ArrayLike) -> FloatArray:
        """Values k(x_i, x_i), all equal to the peak. Shapes: (n, d) -> (n,)."""
        points = as_points('x', x, self.covariance.dimension)
        return np.full(points.shape[0], self.peak(points.shape[1]))

    def peak(self, dimension: int) -> float:
        """Value k(x, x) in R^dimension."""
        if not self.normalised:
            return 1.0
        log_det = self.covariance.log_det(dimension)
        return math.exp(-0.5 * (dimension * math.log(2.0 * math.pi) + log_det))

    def __repr__(self) -> str:
        return f'GaussianKernel({self.covariance.value.tolist()}, normalised={self.normalised})'


def squared_distances(x: ArrayLike, z: ArrayLike, scale: Covariance) -> FloatArray:
    """
    Squared Mahalanobis distances (x_i - z_j)^T S^-1 (x_i - z_j).

    Shapes: (n, d), (m, d) -> (n, m).
    """
    left = as_points('x', x, scale.dimension)
    right = left if z is x else as_points('z', z, left.shape[1])
    a = scale.whiten(left)
    b = a if right is left else scale.whiten(right)
    if a.shape[1] <= _DIRECT_DIMENSION:
        return np.asarray(cdist(a, b, 'sqeuclidean'), dtype=np.float64)
    return _distances_by_product(a, b)


def _distances_by_product(a: FloatArray, b: FloatArray) -> FloatArray:
    # centring keeps the cancellation in |a|^2 + |b|^2 - 2ab small
    centre = a.mean(axis=0)
    same = b is a
    a, b = a - centre, b - centre
    distances = (a * a).sum(axis=1)[:, np.newaxis] + (b * b).sum(axis=1) - 2.0 * (a @ b.T)
    np.maximum(distances, 0.0, out=distances)
    if same:
        np.fill_diagonal(distances, 0.0)
    return np.asarray(distances, dtype=np.float64)
