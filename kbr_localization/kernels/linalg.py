"""
Regularised linear solves with Gram matrices, dense or of low rank.

If rounding makes a factorisation fail, the ridge is raised ([KBR] Fig. 1) and a warning is logged.
A matrix that is asymmetric or indefinite beyond rounding raises KernelError.
"""

from dataclasses import dataclass
import logging

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel
from kbr_localization.kernels.checks import (
    as_floats,
    as_gram,
    as_positive,
    FloatArray,
    IndexArray,
    require_finite,
    require_symmetric,
    ROUNDING,
)
import numpy as np
from numpy.typing import ArrayLike, NDArray
import scipy.linalg

_LOG = logging.getLogger(__name__)


class RegularisedCholesky:
    """
    Cholesky factor of G + ridge I, G (n, n) symmetric positive semi-definite.

    Each failed factorisation multiplies the ridge by ten; the attribute `ridge` is the value used.
    `name`: name of the ridge in messages.
    """

    def __init__(self, gram: ArrayLike, ridge: float, name: str = 'ridge') -> None:
        matrix = as_gram('gram', gram)
        require_finite('gram', matrix)
        require_symmetric('gram', matrix)
        self.size = len(matrix)
        self.ridge = as_positive(name, ridge)
        smallest = smallest_ridge(matrix)
        bound = len(matrix) * max(matrix.max(), -matrix.min())  # upper bound of the eigenvalues
        largest = max(self.ridge, smallest, ROUNDING * bound)
        while self.ridge <= largest:
            # LAPACK needs Fortran order, which a symmetric C-ordered matrix has when transposed
            shifted = np.array(matrix.T if matrix.flags.c_contiguous else matrix, order='F')
            shifted.flat[:: self.size + 1] += self.ridge
            self.factor, failed = scipy.linalg.lapack.dpotrf(shifted, lower=1, overwrite_a=1)
            if not failed:
                _warn_if_raised(name, ridge, self.ridge)
                return
            self.ridge = max(10.0 * self.ridge, smallest)
        raise KernelError(
            f'gram: expected a positive semi-definite matrix, got one that is indefinite beyond '
            f'rounding for {name} = {ridge:.3g}: raise it, or check the kernel'
        )

    def solve(self, right_side: ArrayLike) -> FloatArray:
        """Return (G + ridge I)^-1 b. Shapes: (n,) or (n, q) -> the same."""
        b = as_floats('right_side', right_side, self.size, ...)
        return np.asarray(scipy.linalg.cho_solve((self.factor, True), b, check_finite=False))


def solve_root_form(
    matrix: FloatArray, signs: FloatArray | float, delta: float, right_side: FloatArray
) -> tuple[NDArray[np.complex128], float]:
    """
    Solve (B + i sqrt(delta) J) z = b, B real symmetric, J = diag(signs); return z and delta.

    For J = I the real part of z is B (B^2 + delta I)^-1 b, without squaring the condition number
    of B. delta is raised while the system is numerically singular. Shapes: (n, n), (n,) or (n, q).
    """
    require_symmetric('gram', matrix)
    size, used = len(matrix), delta
    right = right_side.reshape(size, -1).astype(np.complex128)
    for _ in range(16):
        shifted = np.array(matrix.T, dtype=np.complex128, order='F')
        shifted.flat[:: size + 1] += 1j * np.sqrt(used) * signs
        norm = float(np.abs(shifted).sum(axis=0).max())
        work, _ = scipy.linalg.lapack.zsysv_lwork(size, lower=1)
        factor, pivots, solution, failed = scipy.linalg.lapack.zsysv(
            shifted, right, lwork=int(work.real), lower=1, overwrite_a=1
        )
        if not failed:
            reciprocal, _ = scipy.linalg.lapack.zsycon(factor, pivots, norm, lower=1)
            if reciprocal > np.finfo(np.float64).eps:
                _warn_if_raised('delta', delta, used)
                return solution.reshape(right_side.shape), used
        used = max(10.0 * used, smallest_ridge(matrix) ** 2)
    raise KernelError(
        f'delta: expected a larger one, got a system that is singular even with {used:.3g}'
    )


def smallest_ridge(matrix: FloatArray) -> float:
    """Return the magnitude of rounding errors in the eigenvalues. Shapes: (n, n)."""
    scale = float(np.abs(np.diag(matrix)).mean()) or 1.0
    return float(np.finfo(np.float64).eps) * len(matrix) * scale


def _warn_if_raised(name: str, requested: float, used: float) -> None:
    if used > requested:
        _LOG.warning(
            '%s raised from %.3g to %.3g: the factorisation failed', name, requested, used
        )


@dataclass(frozen=True, eq=False)
class LowRankGram:
    """
    Gram matrix G of n points as Gamma Gamma^T + E, E positive semi-definite.

    `factor` Gamma: (n, r); `residual`: (n,) diagonal of E, whose sum bounds its norm; `pivots`:
    (r,) indices of the points whose kernel columns were used.
    """

    factor: FloatArray
    residual: FloatArray
    pivots: IndexArray

    def __len__(self) -> int:
        return len(self.factor)

    @property
    def rank(self) -> int:
        """Rank r."""
        return int(self.factor.shape[1])


def incomplete_cholesky(kernel: Kernel, points: ArrayLike, tolerance: float = 1e-3) -> LowRankGram:
    """
    Approximate the Gram matrix of points (n, d) by r of its columns: O(n r^2) time, O(n r) memory.

    Pivoted incomplete Cholesky (Fine and Scheinberg, 2001; [KBR] section 5.2, tolerance 0.001).
    Stops when the trace of the residual is at most `tolerance` times the trace of G. KernelError
    if a residual is negative beyond rounding: the kernel is indefinite.
    """
    array = as_floats('points', points, 'n', 'd', ...)
    residual = np.array(kernel.diagonal(array))
    target = as_positive('tolerance', tolerance, allow_zero=True) * residual.sum()
    peak = float(residual.max())
    if peak <= 0.0 or tolerance >= 1.0:
        raise KernelError(
            f'tolerance, kernel: expected a tolerance < 1 and k(x, x) > 0, got {tolerance:g} and '
            f'{peak:.3g}'
        )
    factor = np.empty((residual.size, min(64, residual.size)), order='F')
    pivots: list[int] = []
    # stop where residuals are rounding errors: more columns would only add noise
    floor = 4.0 * np.finfo(np.float64).eps * peak
    while residual.sum() > target and residual.max() > floor:
        rank, pivot = len(pivots), int(np.argmax(residual))
        if rank == factor.shape[1]:
            grown = np.empty((residual.size, min(2 * rank, residual.size)), order='F')
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
                f'diagonal of the residual of {len(pivots)} columns: check the kernel, or raise '
                'the tolerance'
            )
        np.maximum(residual, 0.0, out=residual)
        residual[pivots] = 0.0
    return LowRankGram(factor[:, : len(pivots)], residual, np.array(pivots, dtype=np.int64))


class RegularisedLowRank:
    """
    Solves with Gamma Gamma^T + ridge I in O(n r), after O(n r^2) for Gamma (n, r) = Q R.

    Within the span of Q the matrix is R R^T + ridge I, which RegularisedCholesky solves.
    """

    def __init__(self, factor: FloatArray, ridge: float, name: str = 'ridge') -> None:
        self.size = len(factor)
        self._basis, triangle = np.linalg.qr(factor)
        self._inner = RegularisedCholesky(triangle @ triangle.T, ridge, name)
        self.ridge = self._inner.ridge

    def solve(self, right_side: ArrayLike) -> FloatArray:
        """Return (Gamma Gamma^T + ridge I)^-1 b. Shapes: (n,) or (n, q) -> the same."""
        b = as_floats('right_side', right_side, self.size, ...)
        inside = self._basis.T @ b
        outside = b - self._basis @ inside
        # project twice: division by the ridge amplifies rounding errors inside the span
        outside -= self._basis @ (self._basis.T @ outside)
        return np.asarray(self._basis @ self._inner.solve(inside) + outside / self.ridge)
