"""Covariance and scale matrices, the squared distances that they define, the median distance."""

from __future__ import annotations

from kbr_localization.errors import KernelError
from kbr_localization.kernels.checks import as_floats, as_points, as_sample, FloatArray
import numpy as np
from numpy.typing import ArrayLike
import scipy.linalg
from scipy.spatial.distance import cdist


class Covariance:
    """
    Symmetric positive definite matrix S of R^d.

    `value`: scalar (S = value I in any dimension), diagonal (d,) or full matrix (d, d).
    """

    def __init__(self, value: ArrayLike, name: str = 'covariance') -> None:
        self.value = as_floats(name, value).copy()
        square = self.value.ndim == 2 and self.value.shape[0] == self.value.shape[1]
        if self.value.size == 0 or not (self.value.ndim < 2 or square):
            raise KernelError(
                f'{name}: expected a scalar, (d,) or (d, d), got shape {self.value.shape}'
            )
        if square and np.any(np.abs(self.value - self.value.T) > _rounding(self.value)):
            raise KernelError(f'{name}: expected a symmetric matrix: use (S + S.T) / 2')
        smallest = np.linalg.eigvalsh(self.value)[0] if square else self.value.min()
        if smallest <= 0.0:
            raise KernelError(
                f'{name}: expected positive variances or a positive definite matrix, got '
                f'{smallest:.3g}'
            )
        self._root = np.linalg.cholesky(self.value) if square else np.sqrt(self.value)

    @property
    def dimension(self) -> int | None:
        """Dimension d, or None for a scalar, which fits any dimension."""
        return len(self.value) if self.value.ndim else None

    def whiten(self, x: FloatArray) -> FloatArray:
        """Return L^-1 x, S = L L^T. (n, d) -> (n, d)."""
        if self.value.ndim < 2:
            return np.asarray(x / self._root)
        return np.asarray(scipy.linalg.solve_triangular(self._root, x.T, lower=True).T)

    def colour(self, x: FloatArray) -> FloatArray:
        """Return L x: standard normal draws become draws of N(0, S). (n, d) -> (n, d)."""
        if self.dimension not in (None, x.shape[1]):
            raise KernelError(f'dimension: expected {self.dimension}, got {x.shape[1]}')
        return np.asarray(x * self._root if self.value.ndim < 2 else x @ self._root.T)

    def log_det(self, dimension: int) -> float:
        """Return log |S| in R^dimension."""
        root = np.diag(self._root) if self.value.ndim == 2 else self._root
        return 2.0 * float(np.log(np.broadcast_to(root, dimension)).sum())

    def matrix(self, dimension: int) -> FloatArray:
        """Return it in full (d, d)."""
        if self.value.ndim == 2:
            return self.value
        return np.diag(np.broadcast_to(self.value, dimension))

    def __add__(self, other: Covariance) -> Covariance:
        if None not in (self.dimension, other.dimension) and self.dimension != other.dimension:
            raise KernelError(
                f'covariance: expected one dimension, got {self.dimension} and {other.dimension}'
            )
        if 2 not in (self.value.ndim, other.value.ndim):
            return Covariance(self.value + other.value)
        dimension = self.dimension or other.dimension or 1
        return Covariance(self.matrix(dimension) + other.matrix(dimension))

    def ratio_to(self, other: Covariance) -> float | None:
        """Return c with S = c * other, or None when the two are not proportional."""
        dimension = self.dimension or other.dimension or 1
        mine, theirs = self.matrix(dimension), other.matrix(dimension)
        if mine.shape != theirs.shape:
            return None
        ratio = float(np.trace(mine) / np.trace(theirs))
        return ratio if np.all(np.abs(mine - ratio * theirs) <= _rounding(mine)) else None

    def __repr__(self) -> str:
        return f'Covariance({self.value.tolist()})'


def as_covariance(name: str, value: ArrayLike | Covariance) -> Covariance:
    """Return a Covariance as it is, or make one of an array."""
    return value if isinstance(value, Covariance) else Covariance(value, name)


def _rounding(matrix: FloatArray) -> FloatArray:
    """Return the rounding of each entry (d, d), in the units of its two coordinates."""
    root = np.sqrt(np.abs(matrix.diagonal()))
    return np.asarray(1e-10 * np.multiply.outer(root, root))


def squared_distances(x: ArrayLike, z: ArrayLike, scale: Covariance) -> FloatArray:
    """Distances (x_i - z_j)^T S^-1 (x_i - z_j). (n, d), (m, d) -> (n, m)."""
    left = as_points('x', x, scale.dimension)
    right = left if z is x else as_points('z', z, left.shape[1])
    if scale.dimension is None:
        return np.asarray(_squared_euclidean(left, right) / scale.value)
    a = scale.whiten(left)
    return _squared_euclidean(a, a if right is left else scale.whiten(right))


def _squared_euclidean(a: FloatArray, b: FloatArray) -> FloatArray:
    if a.shape[1] <= 16 or min(len(a), len(b)) <= 8:
        return np.asarray(cdist(a, b, 'sqeuclidean'))
    # |a|^2 + |b|^2 - 2 a b is faster in many dimensions; centring avoids cancellation
    centre = a.mean(axis=0)
    left = a - centre
    right = left if b is a else b - centre
    distances = -2.0 * (left @ right.T)
    distances += (left * left).sum(axis=1)[:, np.newaxis]
    distances += (right * right).sum(axis=1)
    np.maximum(distances, 0.0, out=distances)
    if b is a:
        np.fill_diagonal(distances, 0.0)
        distances = 0.5 * (distances + distances.T)
    return np.asarray(distances)


def median_distance(points: ArrayLike, max_points: int = 2000, seed: int = 0) -> float:
    """
    Median of the pairwise distances, the usual first bandwidth ([KBR] section 5.1).

    Of `max_points` random points when there are more; matrices count as vectors of their
    entries. Shapes: (n, d) or (n, 3, 3), n > 1.
    """
    array = as_sample('points', points)
    array = array.reshape(len(array), -1)
    if len(array) > max_points:
        chosen = np.random.default_rng(seed).choice(len(array), max_points, replace=False)
        array = array[chosen]
    squared = squared_distances(array, array, Covariance(1.0))
    # rounding parts equal points in many dimensions
    labels = np.unique(array, axis=0, return_inverse=True)[1].reshape(-1)
    squared[np.equal.outer(labels, labels)] = 0.0
    distances = np.sqrt(squared[np.triu_indices(len(array), 1)])
    positive = distances[distances > 0]
    if positive.size == 0:
        raise KernelError(
            f'points: expected at least two different points, got {len(array)} equal ones'
        )
    return float(np.median(distances)) or float(np.median(positive))
