"""What a kernel is, how kernels combine (sums, products, scaling, coordinates), dot products."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import reduce
import math
from typing import Any

from kbr_localization.errors import KernelError
from kbr_localization.kernels.checks import (
    as_count,
    as_floats,
    as_points,
    as_positive,
    FloatArray,
    require,
    select_columns,
)
import numpy as np
from numpy.typing import ArrayLike


class Kernel(ABC):
    """
    A positive definite kernel k: Gram matrices, cross-Gram matrices and their diagonal.

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
        return np.asarray(0.5 * (matrix + matrix.T), dtype=np.float64)

    def encode(self, name: str, value: Any) -> FloatArray:
        """Return data as points: numbers as they are; kernels on other objects number them."""
        return as_floats(name, value)

    def encode_one(self, name: str, value: Any) -> FloatArray:
        """Return one datum as a point (...)."""
        return as_floats(name, value)

    def on(self, *columns: int) -> ColumnsKernel:
        """Return the kernel that sees only these coordinates of its points."""
        return ColumnsKernel(self, columns)

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


class SumKernel(Kernel):
    """Sum k_1 + k_2 + ... of kernels on the same points."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self.kernels = _flatten(SumKernel, kernels)

    def cross_gram(self, x: ArrayLike, z: ArrayLike) -> FloatArray:
        """Matrix of k(x_i, z_j). Shapes: (n, d), (m, d) -> (n, m)."""
        return reduce(np.add, (kernel.cross_gram(x, z) for kernel in self.kernels))

    def diagonal(self, x: ArrayLike) -> FloatArray:
        """Values k(x_i, x_i). Shapes: (n, d) -> (n,)."""
        return reduce(np.add, (kernel.diagonal(x) for kernel in self.kernels))

    def __repr__(self) -> str:
        return f'({" + ".join(map(repr, self.kernels))})'


class ProductKernel(Kernel):
    """Product k_1 k_2 ... of kernels on the same points; with `on`, of different coordinates."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self.kernels = _flatten(ProductKernel, kernels)

    def cross_gram(self, x: ArrayLike, z: ArrayLike) -> FloatArray:
        """Matrix of k(x_i, z_j). Shapes: (n, d), (m, d) -> (n, m)."""
        return reduce(np.multiply, (kernel.cross_gram(x, z) for kernel in self.kernels))

    def diagonal(self, x: ArrayLike) -> FloatArray:
        """Values k(x_i, x_i). Shapes: (n, d) -> (n,)."""
        return reduce(np.multiply, (kernel.diagonal(x) for kernel in self.kernels))

    def __repr__(self) -> str:
        return f'({" * ".join(map(repr, self.kernels))})'


class ScaledKernel(Kernel):
    """Kernel c k for a constant c > 0."""

    def __init__(self, kernel: Kernel, factor: float) -> None:
        require_kernel('kernel', kernel)
        self.kernel = kernel
        self.factor = as_positive('factor', factor)

    def cross_gram(self, x: ArrayLike, z: ArrayLike) -> FloatArray:
        """Matrix of c k(x_i, z_j). Shapes: (n, d), (m, d) -> (n, m)."""
        return np.asarray(self.factor * self.kernel.cross_gram(x, z), dtype=np.float64)

    def diagonal(self, x: ArrayLike) -> FloatArray:
        """Values c k(x_i, x_i). Shapes: (n, d) -> (n,)."""
        return np.asarray(self.factor * self.kernel.diagonal(x), dtype=np.float64)

    def __repr__(self) -> str:
        return f'{self.factor!r} * {self.kernel!r}'


class ColumnsKernel(Kernel):
    """Kernel that sees only some coordinates of its points."""

    def __init__(self, kernel: Kernel, columns: Sequence[int]) -> None:
        self.kernel = kernel
        if not columns or not all(isinstance(c, int | np.integer) and c >= 0 for c in columns):
            raise KernelError(
                f'columns: expected at least one index, all integers >= 0, got {columns}: '
                'name the coordinates that the kernel sees'
            )
        self.columns = tuple(int(column) for column in columns)

    def select(self, name: str, x: ArrayLike) -> FloatArray:
        """Return the columns of the points that the kernel sees. (n, d) -> (n, len(columns))."""
        return select_columns(name, x, self.columns)

    def cross_gram(self, x: ArrayLike, z: ArrayLike) -> FloatArray:
        """Matrix of k(x_i, z_j). Shapes: (n, d), (m, d) -> (n, m)."""
        left = self.select('x', x)
        return self.kernel.cross_gram(left, left if z is x else self.select('z', z))

    def diagonal(self, x: ArrayLike) -> FloatArray:
        """Values k(x_i, x_i). Shapes: (n, d) -> (n,)."""
        return self.kernel.diagonal(self.select('x', x))

    def __repr__(self) -> str:
        return f'{self.kernel!r}.on({", ".join(map(str, self.columns))})'


def require_kernel(name: str, value: Any) -> None:
    """Refuse what is no kernel."""
    require(name, value, Kernel, 'a kernel such as GaussianKernel(0.5)')


def factors_of(kernel: Kernel) -> tuple[float, list[Kernel]]:
    """Return c and the factors k_1, k_2, ... of a kernel c k_1 k_2 ...."""
    if isinstance(kernel, ScaledKernel):
        scale, factors = factors_of(kernel.kernel)
        return kernel.factor * scale, factors
    if not isinstance(kernel, ProductKernel):
        return 1.0, [kernel]
    parts = [factors_of(part) for part in kernel.kernels]
    return math.prod(scale for scale, _ in parts), [one for _, some in parts for one in some]


def _flatten(
    kind: type[SumKernel] | type[ProductKernel], kernels: Sequence[Kernel]
) -> tuple[Kernel, ...]:
    if not isinstance(kernels, Sequence) or not kernels:
        raise KernelError(f'kernels: expected at least one kernel in a list, got {kernels!r}')
    for part in kernels:
        require_kernel('kernels', part)
    nested = [part.kernels if isinstance(part, kind) else (part,) for part in kernels]
    return tuple(kernel for group in nested for kernel in group)


class PolynomialKernel(Kernel):
    """
    Kernel (x^T z + c)^p of vectors; not characteristic: it sees moments up to order p only.

    `degree` p >= 1, an integer; `offset` c >= 0, which lets the lower moments in.
    """

    def __init__(self, degree: int = 2, offset: float = 1.0) -> None:
        self.degree = as_count('degree', degree)
        self.offset = as_positive('offset', offset, allow_zero=True)

    def cross_gram(self, x: ArrayLike, z: ArrayLike) -> FloatArray:
        """Matrix of k(x_i, z_j). Shapes: (n, d), (m, d) -> (n, m)."""
        left = as_points('x', x)
        products = left @ as_points('z', z, left.shape[1]).T + self.offset
        return np.asarray(products**self.degree, dtype=np.float64)

    def diagonal(self, x: ArrayLike) -> FloatArray:
        """Values k(x_i, x_i). Shapes: (n, d) -> (n,)."""
        squares = (as_points('x', x) ** 2).sum(axis=1) + self.offset
        return np.asarray(squares**self.degree, dtype=np.float64)

    def __repr__(self) -> str:
        return f'PolynomialKernel({self.degree}, {self.offset})'


class LinearKernel(PolynomialKernel):
    """Kernel x^T z + c: its kernel mean is the mean of the law."""

    def __init__(self, offset: float = 0.0) -> None:
        super().__init__(1, offset)

    def __repr__(self) -> str:
        return f'LinearKernel({self.offset})'
