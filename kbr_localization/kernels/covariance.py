"""Covariance and scale matrices: a scalar, a diagonal or a full matrix behind one interface."""

from __future__ import annotations

from kbr_localization.errors import KernelError
from kbr_localization.kernels.checks import as_floats, FloatArray
import numpy as np
from numpy.typing import ArrayLike
import scipy.linalg


class Covariance:
    """
    A symmetric positive definite matrix S of R^d, kept in the cheapest form that it was given in.

    `value`: scalar (S = value I in any dimension), (d,) diagonal of S, or (d, d) full matrix.
    Raises KernelError unless S is symmetric and positive definite.
    """

    def __init__(self, value: ArrayLike, name: str = 'covariance') -> None:
        self.value = _checked(name, value)
        self._factor = _factor(name, self.value)

    @property
    def dimension(self) -> int | None:
        """Dimension d, or None for a scalar, which fits any dimension."""
        return None if self.value.ndim == 0 else int(self.value.shape[0])

    def whiten(self, x: FloatArray) -> FloatArray:
        """Map x to L^-1 x, S = L L^T: squared distances become those of S^-1. (n, d) -> (n, d)."""
        if self.value.ndim < 2:
            return np.asarray(x / self._factor, dtype=np.float64)
        whitened = scipy.linalg.solve_triangular(self._factor, x.T, lower=True, check_finite=False)
        return np.asarray(whitened.T, dtype=np.float64)

    def colour(self, x: FloatArray) -> FloatArray:
        """Map x to L x: standard normal draws become draws of N(0, S). (n, d) -> (n, d)."""
        if self.dimension not in (None, x.shape[1]):
            raise KernelError(
                f'dimension: expected {self.dimension}, that of {self!r}, got {x.shape[1]}: draw '
                'noise of the dimension of the images'
            )
        coloured = x * self._factor if self.value.ndim < 2 else x @ self._factor.T
        return np.asarray(coloured, dtype=np.float64)

    def log_det(self, dimension: int) -> float:
        """Logarithm of |S| in the given dimension."""
        if self.value.ndim == 0:
            return float(dimension * np.log(self.value))
        diagonal = self._factor if self.value.ndim == 1 else np.diag(self._factor)
        return float(2.0 * np.sum(np.log(diagonal)))

    def matrix(self, dimension: int) -> FloatArray:
        """Return the full (d, d) matrix."""
        if self.value.ndim == 2:
            return self.value
        return np.diag(np.broadcast_to(self.value, dimension))

    def scaled(self, factor: float) -> Covariance:
        """Return factor * S."""
        return Covariance(factor * self.value)

    def __add__(self, other: Covariance) -> Covariance:
        if self.dimension is None or other.dimension is None or self.dimension == other.dimension:
            return Covariance(_sum(self.value, other.value))
        raise KernelError(
            f'covariance: expected matrices of one dimension, got {self.dimension} and '
            f'{other.dimension}: give kernel and noise the dimension of the state'
        )

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
    """Return the value itself when it is a Covariance, else one made from the array."""
    return value if isinstance(value, Covariance) else Covariance(value, name)


def _sum(a: FloatArray, b: FloatArray) -> FloatArray:
    if a.ndim == b.ndim or 2 not in (a.ndim, b.ndim):
        return np.asarray(a + b, dtype=np.float64)
    full, other = (a, b) if a.ndim == 2 else (b, a)
    return np.asarray(full + np.diag(np.broadcast_to(other, full.shape[0])), dtype=np.float64)


def _checked(name: str, value: ArrayLike) -> FloatArray:
    array = as_floats(name, value).copy()
    array.setflags(write=False)
    square = array.ndim == 2 and array.shape[0] == array.shape[1]
    if array.size == 0 or not (array.ndim < 2 or square):
        raise KernelError(
            f'{name}: expected a scalar, a diagonal (d,) or a matrix (d, d), '
            f'got shape {array.shape}'
        )
    if array.ndim == 2 and np.any(np.abs(array - array.T) > _rounding(array)):
        raise KernelError(
            f'{name}: expected a symmetric matrix, got shape {array.shape} with asymmetry '
            f'{np.abs(array - array.T).max():.3g}: use (S + S.T) / 2'
        )
    if array.ndim < 2 and np.any(array <= 0):
        raise KernelError(
            f'{name}: expected positive variances, got {array.min():g} in shape {array.shape}: '
            'give squared bandwidths > 0'
        )
    return array


def _rounding(matrix: FloatArray) -> FloatArray:
    """Return the rounding of entries (d, d), in the units of their two coordinates."""
    root = np.sqrt(np.abs(matrix.diagonal()))
    return np.asarray(1e-10 * np.multiply.outer(root, root))


def _factor(name: str, value: FloatArray) -> FloatArray:
    if value.ndim < 2:
        return np.sqrt(value)
    try:
        return np.asarray(np.linalg.cholesky(value), dtype=np.float64)
    except np.linalg.LinAlgError:
        smallest = float(np.linalg.eigvalsh(value)[0])
        raise KernelError(
            f'{name}: expected a positive definite matrix, got shape {value.shape} with smallest '
            f'eigenvalue {smallest:.3g}: add a small multiple of the identity'
        ) from None
