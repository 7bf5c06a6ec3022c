"""
Low-rank Gram matrices G = Gamma Gamma^T + E from kernel columns only, and solves with them.

Pivoted incomplete Cholesky (Fine and Scheinberg, 2001; [KBR] section 4.2): O(n r^2) time, O(n r)
memory; the n x n matrix is never formed. E is positive semi-definite and its diagonal is kept, so
its norm is bounded by its trace and every rule can bound its distance from the dense result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
import math

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel, require_kernel
from kbr_localization.kernels.checks import (
    as_columns,
    as_count,
    as_floats,
    as_positive,
    FloatArray,
    IndexArray,
    require_callable,
    ROUNDING,
)
from kbr_localization.kernels.linalg import RegularisedCholesky, smallest_ridge, warn_if_raised
import numpy as np
from numpy.typing import ArrayLike
import scipy.linalg

_FIRST_CAPACITY = 64
# Woodbury's identity divides a difference by the ridge: ridges of fewer roundings are raised, and
# what one solve leaves as residual is refined until it is this part of the right side
_ROUNDINGS = 10.0
_ACCURACY = 1e-10


@dataclass(frozen=True, eq=False)
class LowRankGram:
    """
    Gram matrix G of n points as Gamma Gamma^T + E.

    `factor` Gamma: (n, r); `residual`: (n,) diagonal of E >= 0; `pivots`: (r,) indices, in the
    sample that was factored, of the points whose kernel columns were used; `triangle`: (r, r)
    their rows of Gamma.
    """

    factor: FloatArray
    residual: FloatArray
    pivots: IndexArray
    triangle: FloatArray

    @property
    def size(self) -> int:
        """Return the number n of points."""
        return int(self.factor.shape[0])

    @property
    def rank(self) -> int:
        """Return the rank r."""
        return int(self.factor.shape[1])

    @property
    def trace_error(self) -> float:
        """Trace of E: a bound of its spectral and Frobenius norm."""
        return float(self.residual.sum())

    def features(self, kernel: Kernel, points: ArrayLike, new_points: ArrayLike) -> FloatArray:
        """
        Return rows phi with k(x_i, z_j) = Gamma_i phi_j^T up to the residual, for new points z.

        `points`: the sample that was factored. Shapes: (n, d), (m, d) -> (m, r).
        """
        pivots = kernel.encode('points', points)[self.pivots]
        columns = kernel.cross_gram(pivots, new_points)
        rows = scipy.linalg.solve_triangular(
            self.triangle, columns, lower=True, check_finite=False
        )
        return np.asarray(rows.T, dtype=np.float64)

    def restricted(self, indices: IndexArray) -> LowRankGram:
        """Return the matrix of some of the points; its pivots are kept as they were."""
        return replace(self, factor=self.factor[indices], residual=self.residual[indices])

    def extended(self, kernel: Kernel, points: ArrayLike, new_points: ArrayLike) -> LowRankGram:
        """Append new points; arguments and shapes as in `features`."""
        rows = self.features(kernel, points, new_points)
        residual = np.maximum(kernel.diagonal(new_points) - (rows**2).sum(axis=1), 0.0)
        return replace(
            self,
            factor=np.concatenate([self.factor, rows]),
            residual=np.concatenate([self.residual, residual]),
        )

    def dense(self) -> FloatArray:
        """Gamma Gamma^T as a matrix (n, n), for small n."""
        return np.asarray(self.factor @ self.factor.T, dtype=np.float64)


def incomplete_cholesky(
    kernel: Kernel, points: ArrayLike, tolerance: float = 1e-3, max_rank: int | None = None
) -> LowRankGram:
    """
    Low-rank Gram matrix of points from r kernel columns.

    Stops when the trace of the residual is at most `tolerance` times the trace of G, or at
    `max_rank`. Shapes: (n, d). Source: [KBR] section 5.2, where the tolerance is 0.001.
    """
    require_kernel('kernel', kernel)
    array = kernel.encode('points', points)
    if array.ndim < 2 or array.shape[0] == 0:
        raise KernelError(
            f'points: expected shape (n, d) with n > 0, got {array.shape}: give the sample whose '
            'Gram matrix is wanted'
        )

    def column(index: int) -> FloatArray:
        return kernel.cross_gram(array, array[[index]])[:, 0]

    return pivoted_cholesky(kernel.diagonal(array), column, tolerance, max_rank)


def pivoted_cholesky(
    diagonal: ArrayLike,
    column: Callable[[int], FloatArray],
    tolerance: float = 1e-3,
    max_rank: int | None = None,
) -> LowRankGram:
    """
    Low-rank form of a positive semi-definite matrix known by its diagonal and its columns.

    `column(i)` returns column i (n,); it is called r times. The pivot is the largest residual.
    Raises KernelError when a residual is negative beyond rounding: the matrix is indefinite.
    """
    require_callable('column', column, 'of an index that returns that column (n,)')
    residual = np.array(as_floats('diagonal', diagonal))
    if residual.ndim != 1 or residual.size == 0:
        raise KernelError(
            f'diagonal: expected shape (n,) with n > 0, got {residual.shape}: give k(x_i, x_i)'
        )
    target = as_positive('tolerance', tolerance, allow_zero=True) * float(residual.sum())
    most = residual.size if max_rank is None else as_count('max_rank', max_rank)
    limit = min(most, residual.size)
    # below rounding the residual is noise, and more columns would only add to it
    peak = float(residual.max())
    floor = 4.0 * np.finfo(np.float64).eps * peak
    factor = np.empty((residual.size, min(_FIRST_CAPACITY, limit)), order='F')
    pivots: list[int] = []
    while len(pivots) < limit and residual.sum() > target and residual.max() > floor:
        factor = _with_capacity(factor, len(pivots) + 1, limit)
        _eliminate(factor, pivots, residual, column)
        _require_semidefinite(residual, peak, len(pivots))
        np.maximum(residual, 0.0, out=residual)
        residual[pivots] = 0.0
    if not pivots and residual.sum() > 0.0:
        raise KernelError(
            f'tolerance: expected less than 1, the part of the trace that may be lost, got '
            f'{tolerance:g}: it would leave nothing of the matrix'
        )
    if not pivots:
        raise KernelError(
            f'diagonal: expected a positive trace, got {residual.sum():.3g} in shape '
            f'{residual.shape}: give a kernel that is positive at these points'
        )
    chosen = np.array(pivots, dtype=np.int64)
    gamma = factor[:, : chosen.size]
    return LowRankGram(gamma, residual, chosen, gamma[chosen])


def _eliminate(
    factor: FloatArray,
    pivots: list[int],
    residual: FloatArray,
    column: Callable[[int], FloatArray],
) -> None:
    """Add one column to Gamma and subtract its square from the residual, in place."""
    rank, pivot = len(pivots), int(np.argmax(residual))
    root = np.sqrt(residual[pivot])
    new = column(pivot) - factor[:, :rank] @ factor[pivot, :rank]
    # exact zeros above the diagonal keep Gamma[pivots] triangular
    new[pivots] = 0.0
    new[pivot] = residual[pivot]
    factor[:, rank] = new / root
    residual -= factor[:, rank] ** 2
    pivots.append(pivot)


def _require_semidefinite(residual: FloatArray, peak: float, rank: int) -> None:
    lowest = float(residual.min())
    if lowest < -ROUNDING * peak:
        raise KernelError(
            f'gram: expected a positive semi-definite matrix, got shape {2 * residual.shape} with '
            f'{lowest:.3g} on the diagonal of what {rank} columns leave of it: check that the '
            'kernel is positive definite; with values of single precision, raise the tolerance'
        )


def _with_capacity(factor: FloatArray, needed: int, limit: int) -> FloatArray:
    if needed <= factor.shape[1]:
        return factor
    wider = np.empty((factor.shape[0], min(2 * factor.shape[1], limit)), order='F')
    wider[:, : factor.shape[1]] = factor
    return wider


class RegularisedLowRank:
    """
    Solves with Gamma Gamma^T + ridge I by Woodbury's identity, in O(n r) after O(n r^2).

    One such solve is wrong by about machine precision times trace(G) / ridge; it is refined by
    solves for its residual until it is as good as a dense one. `ridge` is the value that was
    used: one near the rounding of the eigenvalues, where that does not converge, is raised and
    the increase logged, see RegularisedCholesky.
    """

    def __init__(self, gram: LowRankGram, ridge: float, name: str = 'ridge') -> None:
        self.gram = gram
        self.size = gram.size
        small = gram.factor.T @ gram.factor
        rounding = smallest_ridge(small)
        requested = as_positive(name, ridge)
        usable = max(requested, _ROUNDINGS * rounding)
        warn_if_raised(name, requested, usable)
        self._small = RegularisedCholesky(small, usable, name)
        self.ridge = self._small.ridge
        # twice: the rounding of the products and of the difference
        error = 2.0 * rounding / self.ridge
        self._refinements = max(math.ceil(math.log(_ACCURACY) / math.log(error)) - 1, 0)

    def solve(self, right_side: ArrayLike) -> FloatArray:
        """Return (Gamma Gamma^T + ridge I)^-1 b. Shapes: (n,) or (n, q) -> the same."""
        b = as_columns('right_side', right_side, self.size)
        factor, solution = self.gram.factor, self._solve_once(b)
        for _ in range(self._refinements):
            residual = b - factor @ (factor.T @ solution) - self.ridge * solution
            solution = solution + self._solve_once(residual)
        return solution

    def _solve_once(self, b: FloatArray) -> FloatArray:
        inner = self._small.solve(self.gram.factor.T @ b)
        return np.asarray((b - self.gram.factor @ inner) / self.ridge, dtype=np.float64)

    def error_bound(self, solution: ArrayLike) -> FloatArray:
        """
        Bound of the Euclidean distance between a solution and that of the dense G + ridge I.

        From (G + r)^-1 - (G' + r)^-1 = -(G + r)^-1 E (G' + r)^-1: trace(E) |w| / r. Shapes: (n,)
        -> (), (n, q) -> (q,).
        """
        norms = np.linalg.norm(as_columns('solution', solution, self.size), axis=0)
        return np.asarray(self.gram.trace_error * norms / self.ridge, dtype=np.float64)
