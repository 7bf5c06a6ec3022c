"""Kernels of dot products: linear and polynomial."""

from __future__ import annotations

from kbr_localization.kernels.algebra import Kernel
from kbr_localization.kernels.checks import as_count, as_points, as_positive, FloatArray
import numpy as np
from numpy.typing import ArrayLike


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
