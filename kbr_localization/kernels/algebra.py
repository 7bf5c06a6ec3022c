"""What a kernel is, how kernels combine, and kernels that are dot products or known matrices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
import copy
from functools import reduce
import inspect
from typing import Any, ClassVar

from kbr_localization.errors import KernelError
from kbr_localization.kernels.checks import (
    as_count,
    as_gram,
    as_points,
    as_positive,
    FloatArray,
    IndexArray,
    require_finite,
)
from kbr_localization.kernels.linalg import require_symmetric
import numpy as np
from numpy.typing import ArrayLike


class Kernel(ABC):
    """
    A positive definite kernel k.

    `k1 + k2`, `sum([k1, k2])`, `k1 * k2` and `c * k` are kernels; `k.on(0, 1)` sees coordinates 0
    and 1 only.
    """

    @abstractmethod
    def cross_gram(self, x: ArrayLike, z: ArrayLike) -> FloatArray:
        """Matrix of k(x_i, z_j). Shapes: (n, d), (m, d) -> (n, m)."""

    @abstractmethod
    def diagonal(self, x: ArrayLike) -> FloatArray:
        """Values k(x_i, x_i). Shapes: (n, d) -> (n,)."""

    def gram(self, x: ArrayLike) -> FloatArray:
        """Matrix of k(x_i, x_j), exactly symmetric. Shapes: (n, d) -> (n, n)."""
        matrix = self.cross_gram(x, x)
        return np.asarray(0.5 * (matrix + matrix.T))

    def on(self, *columns: int) -> ColumnsKernel:
        """Return the kernel that sees only these coordinates of its points."""
        return ColumnsKernel(self, columns)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments by name, as scikit-learn searches them."""
        names = [name for name in inspect.signature(type(self)).parameters if hasattr(self, name)]
        own = {name: getattr(self, name) for name in names}
        parts = [(name, part) for name, part in own.items() if deep and isinstance(part, Kernel)]
        inner = {f'{name}__{k}': v for name, part in parts for k, v in part.get_params().items()}
        return own | inner

    def set_params(self, **values: Any) -> Kernel:
        """Change arguments, also of an inner kernel (`kernel__name`); returns itself."""
        own = self.get_params(deep=False)
        for name, value in values.items():
            head, _, inner = name.partition('__')
            if head not in own:
                raise KernelError(f'{head}: expected one of {", ".join(own)} of {self!r}')
            own[head] = own[head].set_params(**{inner: value}) if inner else value
        self.__dict__.update(vars(type(self)(**own)))
        return self

    def __sklearn_clone__(self) -> Kernel:
        return copy.deepcopy(self)

    def __add__(self, other: Kernel) -> SumKernel:
        return SumKernel((self, other))

    def __radd__(self, other: Any) -> Kernel:
        # sum() begins with 0
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __mul__(self, other: Kernel | float) -> Kernel:
        if isinstance(other, Kernel):
            return ProductKernel((self, other))
        return ScaledKernel(self, other)

    def __rmul__(self, factor: float) -> ScaledKernel:
        return ScaledKernel(self, factor)


class _Combination(Kernel):
    """Kernels on the same points, combined entry by entry; nested ones are flattened."""

    combine: ClassVar[Callable[..., Any]]
    symbol: ClassVar[str]

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        if not kernels or not all(isinstance(kernel, Kernel) for kernel in kernels):
            raise KernelError(f'kernels: expected one kernel or more, got {kernels!r}')
        nested = (k.kernels if isinstance(k, type(self)) else (k,) for k in kernels)
        self.kernels: tuple[Kernel, ...] = tuple(kernel for group in nested for kernel in group)

    def cross_gram(self, x: ArrayLike, z: ArrayLike) -> FloatArray:
        """Sum or product of the matrices. Shapes: (n, d), (m, d) -> (n, m)."""
        return np.asarray(reduce(type(self).combine, (k.cross_gram(x, z) for k in self.kernels)))

    def diagonal(self, x: ArrayLike) -> FloatArray:
        """Sum or product of the diagonals. Shapes: (n, d) -> (n,)."""
        return np.asarray(reduce(type(self).combine, (k.diagonal(x) for k in self.kernels)))

    def __repr__(self) -> str:
        return f'({self.symbol.join(map(repr, self.kernels))})'


class SumKernel(_Combination):
    """Sum k_1 + k_2 + ... of kernels on the same points."""

    combine = np.add
    symbol = ' + '


class ProductKernel(_Combination):
    """Product k_1 k_2 ... of kernels on the same points; with `on`, of different coordinates."""

    combine = np.multiply
    symbol = ' * '


class ScaledKernel(Kernel):
    """Kernel c k, c > 0."""

    def __init__(self, kernel: Kernel, factor: float) -> None:
        self.kernel, self.factor = kernel, as_positive('factor', factor)

    def cross_gram(self, x: ArrayLike, z: ArrayLike) -> FloatArray:
        """Matrix of c k(x_i, z_j). Shapes: (n, d), (m, d) -> (n, m)."""
        return np.asarray(self.factor * self.kernel.cross_gram(x, z))

    def diagonal(self, x: ArrayLike) -> FloatArray:
        """Values c k(x_i, x_i). Shapes: (n, d) -> (n,)."""
        return np.asarray(self.factor * self.kernel.diagonal(x))

    def __repr__(self) -> str:
        return f'{self.factor!r} * {self.kernel!r}'


class ColumnsKernel(Kernel):
    """Kernel that sees only some coordinates of its points."""

    def __init__(self, kernel: Kernel, columns: Sequence[int]) -> None:
        self.kernel = kernel
        if not columns or not all(isinstance(c, int | np.integer) and c >= 0 for c in columns):
            raise KernelError(f'columns: expected indices >= 0, at least one, got {columns}')
        self.columns = tuple(int(column) for column in columns)

    def _select(self, name: str, x: ArrayLike) -> FloatArray:
        points = as_points(name, x)
        if points.shape[1] <= max(self.columns):
            raise KernelError(
                f'{name}: expected a coordinate {max(self.columns)}, got {points.shape}'
            )
        return points[:, self.columns]

    def cross_gram(self, x: ArrayLike, z: ArrayLike) -> FloatArray:
        """Matrix of k(x_i, z_j). Shapes: (n, d), (m, d) -> (n, m)."""
        left = self._select('x', x)
        return self.kernel.cross_gram(left, left if z is x else self._select('z', z))

    def diagonal(self, x: ArrayLike) -> FloatArray:
        """Values k(x_i, x_i). Shapes: (n, d) -> (n,)."""
        return self.kernel.diagonal(self._select('x', x))

    def __repr__(self) -> str:
        return f'{self.kernel!r}.on({", ".join(map(str, self.columns))})'


class PolynomialKernel(Kernel):
    """
    Kernel (x^T z + c)^p, `degree` p >= 1, `offset` c >= 0.

    Not characteristic: it sees moments up to order p only.
    """

    def __init__(self, degree: int = 2, offset: float = 1.0) -> None:
        self.degree = as_count('degree', degree)
        self.offset = as_positive('offset', offset, allow_zero=True)

    def cross_gram(self, x: ArrayLike, z: ArrayLike) -> FloatArray:
        """Matrix of k(x_i, z_j). Shapes: (n, d), (m, d) -> (n, m)."""
        left = as_points('x', x)
        products = left @ as_points('z', z, left.shape[1]).T + self.offset
        return np.asarray(products**self.degree)

    def diagonal(self, x: ArrayLike) -> FloatArray:
        """Values (|x_i|^2 + c)^p. Shapes: (n, d) -> (n,)."""
        return np.asarray(((as_points('x', x) ** 2).sum(axis=1) + self.offset) ** self.degree)

    def __repr__(self) -> str:
        return f'PolynomialKernel({self.degree}, {self.offset})'


class LinearKernel(PolynomialKernel):
    """Kernel x^T z + c: its kernel mean is the mean of the law."""

    def __init__(self, offset: float = 0.0) -> None:
        super().__init__(1, offset)


class PrecomputedKernel(Kernel):
    """
    Kernel known by a Gram matrix: points are row numbers (n, 1).

    `matrix` (N, N): Gram matrix of all points that will be asked for, training sample and queries.
    """

    def __init__(self, matrix: ArrayLike) -> None:
        self.matrix = as_gram('matrix', matrix)
        require_finite('matrix', self.matrix)
        require_symmetric('matrix', self.matrix)

    def points(self) -> FloatArray:
        """All row numbers (N, 1); the first n of them stand for n points."""
        return np.arange(float(len(self.matrix)))[:, np.newaxis]

    def cross_gram(self, x: ArrayLike, z: ArrayLike) -> FloatArray:
        """Matrix of k(x_i, z_j). Shapes: (n, 1), (m, 1) -> (n, m)."""
        return self.matrix[np.ix_(self._rows('x', x), self._rows('z', z))]

    def diagonal(self, x: ArrayLike) -> FloatArray:
        """Values k(x_i, x_i). Shapes: (n, 1) -> (n,)."""
        return self.matrix.diagonal()[self._rows('x', x)]

    def _rows(self, name: str, value: ArrayLike) -> IndexArray:
        points = as_points(name, value, 1)[:, 0]
        rows = points.astype(np.int64)
        if np.any(rows != points) or rows.min() < 0 or rows.max() >= len(self.matrix):
            raise KernelError(
                f'{name}: expected row numbers in 0..{len(self.matrix) - 1}, as in points(), got '
                f'{points.min():g} to {points.max():g}'
            )
        return rows

    def __repr__(self) -> str:
        return f'PrecomputedKernel(shape={self.matrix.shape}, id={id(self)})'
