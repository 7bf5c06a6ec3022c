"""The class Kernel, sums and products of kernels, the linear kernel, precomputed Gram matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, ClassVar

from kbr_localization.errors import KernelError
from kbr_localization.kernels.checks import (
    as_floats,
    as_gram,
    as_positive,
    FloatArray,
    require_finite,
    require_symmetric,
)
import numpy as np
from numpy.typing import ArrayLike


class Kernel:
    """
    A positive definite kernel k.

    `k1 + k2`, `k1 * k2` and `c * k` are kernels; `k.on(0, 1)` uses coordinates 0 and 1 only. Two
    kernels with equal repr are treated as equal. A subclass defines `_matrix` and `_diagonal`,
    whose arguments have been checked to have the shape `point`, or `cross_gram` and `diagonal`.
    """

    point: tuple[Any, ...] = ('d',)
    _matrix: Callable[..., Any]
    _diagonal: Callable[..., Any]

    def cross_gram(self, x: ArrayLike, z: ArrayLike) -> FloatArray:
        """Matrix of k(x_i, z_j). Shapes: (n, d), (m, d) -> (n, m)."""
        left = self._points('x', x)
        return np.asarray(self._matrix(left, left if z is x else self._points('z', z)))

    def diagonal(self, x: ArrayLike) -> FloatArray:
        """Values k(x_i, x_i). Shapes: (n, d) -> (n,)."""
        return np.asarray(self._diagonal(self._points('x', x)))

    def gram(self, x: ArrayLike) -> FloatArray:
        """Matrix of k(x_i, x_j), exactly symmetric. Shapes: (n, d) -> (n, n)."""
        matrix = self.cross_gram(x, x)
        return np.asarray(0.5 * (matrix + matrix.T))

    def _points(self, name: str, value: ArrayLike) -> FloatArray:
        return as_floats(name, value, 'n', *self.point)

    def on(self, *columns: int) -> ColumnsKernel:
        """Return the kernel on these coordinates of the points."""
        return ColumnsKernel(self, columns)

    def __add__(self, other: Kernel) -> SumKernel:
        return SumKernel((self, other))

    def __mul__(self, other: Kernel | float) -> Kernel:
        if isinstance(other, Kernel):
            return ProductKernel((self, other))
        return ScaledKernel(self, other)

    def __rmul__(self, factor: float) -> ScaledKernel:
        return ScaledKernel(self, factor)

    def __repr__(self) -> str:
        exact = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in vars(self).items()}
        return f'{type(self).__name__}({", ".join(f"{k}={v!r}" for k, v in exact.items())})'


class _Combination(Kernel):
    """Kernels on the same points, combined elementwise."""

    point = ('d', ...)
    combine: ClassVar[Callable[..., Any]]

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        if not kernels or not all(isinstance(kernel, Kernel) for kernel in kernels):
            raise KernelError(f'kernels: expected one kernel or more, got {kernels!r}')
        self.kernels = tuple(kernels)

    def _matrix(self, x: FloatArray, z: FloatArray) -> Any:
        return reduce(type(self).combine, (kernel.cross_gram(x, z) for kernel in self.kernels))

    def _diagonal(self, x: FloatArray) -> Any:
        return reduce(type(self).combine, (kernel.diagonal(x) for kernel in self.kernels))


class SumKernel(_Combination):
    """Sum k_1 + k_2 + ... of kernels on the same points."""

    combine = np.add


class ProductKernel(_Combination):
    """Product k_1 k_2 ... of kernels on the same points, or with `on` on different coordinates."""

    combine = np.multiply


class ScaledKernel(Kernel):
    """Kernel c k, c > 0."""

    point = ('d', ...)

    def __init__(self, kernel: Kernel, factor: float) -> None:
        self.kernel, self.factor = kernel, as_positive('factor', factor)

    def _matrix(self, x: FloatArray, z: FloatArray) -> Any:
        return self.factor * self.kernel.cross_gram(x, z)

    def _diagonal(self, x: FloatArray) -> Any:
        return self.factor * self.kernel.diagonal(x)


class ColumnsKernel(Kernel):
    """Kernel on some coordinates of the points."""

    def __init__(self, kernel: Kernel, columns: Sequence[int]) -> None:
        self.kernel, self.columns = kernel, tuple(columns)
        if not self.columns:
            raise KernelError('on: expected the numbers of one or more coordinates, got none')

    def _points(self, name: str, value: ArrayLike) -> FloatArray:
        points = super()._points(name, value)
        if not 0 <= min(self.columns) <= max(self.columns) < points.shape[1]:
            raise KernelError(f'{name}: expected coordinates {self.columns}, got {points.shape}')
        return points[:, self.columns]

    def _matrix(self, x: FloatArray, z: FloatArray) -> Any:
        return self.kernel.cross_gram(x, z)

    def _diagonal(self, x: FloatArray) -> Any:
        return self.kernel.diagonal(x)


class LinearKernel(Kernel):
    """Kernel x^T z + c, `offset` c >= 0; its kernel mean encodes only the mean."""

    def __init__(self, offset: float = 0.0) -> None:
        self.offset = as_positive('offset', offset, allow_zero=True)

    def _matrix(self, x: FloatArray, z: FloatArray) -> Any:
        return x @ z.T + self.offset

    def _diagonal(self, x: FloatArray) -> Any:
        return (x**2).sum(axis=1) + self.offset


class PrecomputedKernel(Kernel):
    """
    Kernel given by a Gram matrix; its points are row numbers (n, 1).

    `matrix` (N, N): Gram matrix of all points that will be used, training sample and queries.
    """

    point = (1,)

    def __init__(self, matrix: ArrayLike) -> None:
        self.matrix = as_gram('matrix', matrix)
        require_finite('matrix', self.matrix)
        require_symmetric('matrix', self.matrix)

    def points(self) -> FloatArray:
        """Return all row numbers (N, 1)."""
        return np.arange(float(len(self.matrix)))[:, np.newaxis]

    def _points(self, name: str, value: ArrayLike) -> FloatArray:
        points = super()._points(name, value)
        if not np.isin(points, self.points()).all():
            raise KernelError(
                f'{name}: expected row numbers in 0..{len(self.matrix) - 1}, as in points(), got '
                f'{points.min():g} to {points.max():g}'
            )
        return points

    def _matrix(self, x: FloatArray, z: FloatArray) -> Any:
        return self.matrix[np.ix_(x[:, 0].astype(np.int64), z[:, 0].astype(np.int64))]

    def _diagonal(self, x: FloatArray) -> Any:
        return self.matrix.diagonal()[x[:, 0].astype(np.int64)]

    def __repr__(self) -> str:
        return f'PrecomputedKernel(shape={self.matrix.shape}, id={id(self)})'
