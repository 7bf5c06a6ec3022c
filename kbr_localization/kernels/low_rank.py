"""
Low-rank Gram matrices G = Gamma Gamma^T + E from kernel columns only, and solves with them.

Pivoted incomplete Cholesky (Fine and Scheinberg, 2001; [KBR] section 4.2): O(n r^2) time, O(n r)
memory. E is positive semi-definite; its diagonal is kept and bounds its norm.
"""

from __future__ import annotations

from dataclasses import dataclass
import math

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel
from kbr_localization.kernels.checks import (
    as_columns,
    as_count,
    as_positive,
    as_sample,
    FloatArray,
    IndexArray,
    ROUNDING,
)
from kbr_localization.kernels.linalg import RegularisedCholesky, smallest_ridge, warn_if_raised
import numpy as np
from numpy.typing import ArrayLike
import scipy.linalg


@dataclass(frozen=True, eq=False)
class LowRankGram:
    """
    Gram matrix G of n points as Gamma Gamma^T + E.

    `factor` Gamma: (n, r); `residual`: (n,) diagonal of E >= 0, whose sum bounds its norm;
    `pivots`: (r,) indices of the points whose kernel columns were used; `triangle`: (r, r) their
    rows of Gamma.
    """

    factor: FloatArray
    residual: FloatArray
    pivots: IndexArray
    triangle: FloatArray

    @property
    def size(self) -> int:
        """Return the number n of points."""
        return len(self.factor)

    @property
    def rank(self) -> int:
        """Return the rank r."""
        return int(self.factor.shape[1])

    def features(self, kernel: Kernel, points: FloatArray, new_points: FloatArray) -> FloatArray:
        """Rows phi (m, r) with k(x_i, z_j) = Gamma_i phi_j^T, x the sample, z new points."""
        columns = kernel.cross_gram(points[self.pivots], new_points)
        return np.asarray(scipy.linalg.solve_triangular(self.triangle, columns, lower=True).T)


def incomplete_cholesky(
    kernel: Kernel, points: ArrayLike, tolerance: float = 1e-3, max_rank: int | None = None
) -> LowRankGram:
    """
    Low-rank Gram matrix of points (n, d), from r kernel columns.

    Stops when the trace of the residual is at most `tolerance` times the trace of G, or at
    `max_rank`. The pivot is the largest residual; KernelError when one is negative beyond
    rounding: the kernel is indefinite. Source: [KBR] section 5.2, where the tolerance is 0.001.
    """
    array = as_sample('points', points)
    residual = np.array(kernel.diagonal(array))
    target = as_positive('tolerance', tolerance, allow_zero=True) * residual.sum()
    limit = residual.size
    if max_rank is not None:
        limit = min(as_count('max_rank', max_rank), limit)
    peak = float(residual.max())
    if peak <= 0.0 or tolerance >= 1.0:
        raise KernelError(
            f'tolerance, kernel: expected a tolerance < 1 and k(x, x) > 0, got {tolerance:g} and '
            f'{peak:.3g}'
        )
    factor = np.empty((residual.size, min(64, limit)), order='F')
    pivots: list[int] = []
    # below rounding more columns would only add noise
    floor = 4.0 * np.finfo(np.float64).eps * peak
    while len(pivots) < limit and residual.sum() > target and residual.max() > floor:
        rank, pivot = len(pivots), int(np.argmax(residual))
        if rank == factor.shape[1]:
            grown = np.empty((residual.size, min(2 * rank, limit)), order='F')
            grown[:, :rank] = factor
            factor = grown
        column = kernel.cross_gram(array, array[[pivot]])[:, 0]
        new = column - factor[:, :rank] @ factor[pivot, :rank]
        # exact zeros above the diagonal keep Gamma[pivots] triangular
        new[pivots] = 0.0
        new[pivot] = residual[pivot]
        factor[:, rank] = new / np.sqrt(residual[pivot])
        residual -= factor[:, rank] ** 2
        pivots.append(pivot)
        if residual.min() < -ROUNDING * peak:
            raise KernelError(
                f'gram: expected a positive semi-definite matrix, got {residual.min():.3g} on the '
                f'diagonal that {len(pivots)} columns leave: check the kernel, or raise the '
                'tolerance'
            )
        np.maximum(residual, 0.0, out=residual)
        residual[pivots] = 0.0
    gamma = factor[:, : len(pivots)]
    return LowRankGram(gamma, residual, np.array(pivots, dtype=np.int64), gamma[pivots])


class RegularisedLowRank:
    """
    Solves with Gamma Gamma^T + ridge I by Woodbury's identity, in O(n r) after O(n r^2).

    `factor` Gamma: (n, r). One such solve is wrong by about machine precision times the trace
    over the ridge; it is refined until it is as good as a dense one. A ridge too near to rounding
    for that is raised, see RegularisedCholesky.
    """

    def __init__(self, factor: FloatArray, ridge: float, name: str = 'ridge') -> None:
        self.factor, self.size = factor, len(factor)
        small = factor.T @ factor
        rounding, requested = smallest_ridge(small), as_positive(name, ridge)
        usable = max(requested, 10.0 * rounding)
        warn_if_raised(name, requested, usable)
        self._small = RegularisedCholesky(small, usable, name)
        self.ridge = self._small.ridge
        # each solve multiplies the residual by this error, until it is 1e-10
        error = 2.0 * rounding / self.ridge
        self._refinements = max(math.ceil(math.log(1e-10) / math.log(error)) - 1, 0)

    def solve(self, right_side: ArrayLike) -> FloatArray:
        """Return (Gamma Gamma^T + ridge I)^-1 b. Shapes: (n,) or (n, q) -> the same."""
        b = as_columns('right_side', right_side, self.size)
        solution = self._solve_once(b)
        for _ in range(self._refinements):
            residual = b - self.factor @ (self.factor.T @ solution) - self.ridge * solution
            solution = solution + self._solve_once(residual)
        return solution

    def _solve_once(self, b: FloatArray) -> FloatArray:
        inner = self._small.solve(self.factor.T @ b)
        return np.asarray((b - self.factor @ inner) / self.ridge)
