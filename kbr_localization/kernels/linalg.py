"""
Regularised solves with Gram matrices.

The only place where a factorisation may fail. What rounding took from a positive semi-definite
matrix is given back by a larger ridge, as [KBR] Fig. 1 advises, and logged; a matrix that is
asymmetric or indefinite beyond rounding is no Gram matrix and refused.
"""

from __future__ import annotations

import logging

from kbr_localization.errors import KernelError
from kbr_localization.kernels.checks import (
    as_columns,
    as_positive,
    as_square,
    FloatArray,
    require_finite,
)
import numpy as np
from numpy.typing import ArrayLike, NDArray
import scipy.linalg

_LOG = logging.getLogger(__name__)
_GROWTH = 10.0
_ATTEMPTS = 16
# asymmetry and negative eigenvalues up to these fractions of n max |G_ij| are rounding, also
# that of a Gram matrix computed in single precision
_ASYMMETRY = 1e-6
_ROUNDING = 1e-6
# eigenvalues of larger matrices take too long to be told in a message
_TOLD_SIZE = 2000


class RegularisedCholesky:
    """
    Cholesky factor of G + ridge I, for a symmetric positive semi-definite G (n, n).

    `ridge` is the value that was used: when the factorisation fails it is multiplied by ten (from
    machine precision times the mean diagonal upwards) and the increase is logged as a warning.
    `name` says in messages which regulariser the ridge is.
    A ridge above the most negative eigenvalue makes any symmetric matrix positive definite and is
    then used as it is. Raises KernelError when G is not square, finite or symmetric, or when only
    a ridge beyond rounding would help: such a G is indefinite and comes from no kernel.
    """

    def __init__(self, gram: ArrayLike, ridge: float, name: str = 'ridge') -> None:
        matrix = as_square('gram', gram)
        require_finite('gram', matrix)
        require_symmetric('gram', matrix)
        self.size = matrix.shape[0]
        self.requested_ridge = as_positive(name, ridge, allow_zero=True)
        self.factor, self.ridge = _factorise(matrix, self.requested_ridge, name)

    def solve(self, right_side: ArrayLike) -> FloatArray:
        """Return (G + ridge I)^-1 b. Shapes: (n,) or (n, q) -> the same."""
        b = as_columns('right_side', right_side, self.size)
        solution = scipy.linalg.cho_solve((self.factor, True), b, check_finite=False)
        return np.asarray(solution, dtype=np.float64)


def require_symmetric(name: str, matrix: FloatArray) -> None:
    """Refuse an asymmetric matrix: G v and G^T v differ for a generic v. O(n^2), no copy."""
    probe = np.cos(np.arange(1.0, matrix.shape[0] + 1.0))
    gap = float(np.abs(matrix @ probe - probe @ matrix).max())
    if gap > _ASYMMETRY * _largest_eigenvalue_bound(matrix):
        worst = float(np.abs(matrix - matrix.T).max())
        raise KernelError(
            f'{name}: expected a symmetric matrix, got shape {matrix.shape} with |G - G^T| up to '
            f'{worst:.3g}: give k(x_i, x_j) of one sample, or (G + G^T) / 2 if that is meant'
        )


def solve_root_form(
    matrix: FloatArray, signs: FloatArray | float, delta: float, right_side: FloatArray
) -> tuple[NDArray[np.complex128], float]:
    """
    Solve (B + i sqrt(delta) J) z = b, B real symmetric, J = diag(signs); return z and delta.

    Its real part is B (B^2 + delta I)^-1 b for J = I, without squaring the condition number of B.
    A solve that is singular to working precision raises delta, and logs it. B needs no sign: the
    formula holds for every symmetric matrix, and that it is definite is not looked at. Raises
    KernelError when B is asymmetric. Shapes: (n, n), (n,) or scalar, (n,) or (n, q) -> as b.
    """
    size = matrix.shape[0]
    require_symmetric('gram', matrix)
    right = right_side.reshape(size, -1).astype(np.complex128)
    current = delta
    for _ in range(_ATTEMPTS):
        transposed = matrix.T if matrix.flags.c_contiguous else matrix
        shifted = np.array(transposed, dtype=np.complex128, order='F')
        shifted.flat[:: size + 1] += 1j * np.sqrt(current) * signs
        solution = _solve_symmetric(shifted, right)
        if solution is not None:
            warn_if_raised('delta', delta, current)
            return solution.reshape(right_side.shape), current
        current = max(current * _GROWTH, smallest_ridge(matrix) ** 2)
    raise KernelError(
        f'delta: system of shape {matrix.shape} is singular even with delta {current:.3g}: check '
        'that the Gram matrix and the weights are of ordinary size'
    )


def _solve_symmetric(
    matrix: NDArray[np.complex128], right: NDArray[np.complex128]
) -> NDArray[np.complex128] | None:
    norm = float(np.abs(matrix).sum(axis=0).max())
    work, _ = scipy.linalg.lapack.zsysv_lwork(matrix.shape[0], lower=1)
    factor, pivots, solution, info = scipy.linalg.lapack.zsysv(
        matrix, right, lwork=int(work.real), lower=1, overwrite_a=1
    )
    if info != 0:
        return None
    reciprocal_condition, _ = scipy.linalg.lapack.zsycon(factor, pivots, norm, lower=1)
    usable = reciprocal_condition > np.finfo(np.float64).eps
    return np.asarray(solution, dtype=np.complex128) if usable else None


def smallest_ridge(matrix: FloatArray) -> float:
    """Return the size of a rounding error in the eigenvalues. Shapes: (n, n)."""
    scale = float(np.abs(np.diag(matrix)).mean()) or 1.0
    return float(np.finfo(np.float64).eps) * float(matrix.shape[0]) * scale


def _largest_eigenvalue_bound(matrix: FloatArray) -> float:
    """Bound the largest eigenvalue by n max |G_ij|, without a temporary matrix."""
    return float(matrix.shape[0] * max(matrix.max(), -matrix.min()))


def _factorise(matrix: FloatArray, ridge: float, name: str) -> tuple[FloatArray, float]:
    smallest = smallest_ridge(matrix)
    largest = max(ridge, smallest, _ROUNDING * _largest_eigenvalue_bound(matrix))
    current = ridge
    while current <= largest:
        factor = _cholesky(matrix, current)
        if factor is not None:
            warn_if_raised(name, ridge, current)
            return factor, current
        current = max(current * _GROWTH, smallest)
    raise KernelError(
        f'gram: expected a positive semi-definite matrix, got shape {matrix.shape}{_told(matrix)} '
        f'for {name} = {ridge:.3g}: check that the kernel is positive definite; {name} above the '
        'most negative eigenvalue makes the solve possible, setting negative eigenvalues to zero '
        'makes it a Gram matrix'
    )


def _told(matrix: FloatArray) -> str:
    if matrix.shape[0] > _TOLD_SIZE:
        return ' that is indefinite beyond rounding'
    values = np.linalg.eigvalsh(matrix)
    return f' with eigenvalues from {values[0]:.3g} to {values[-1]:.3g}'


def _cholesky(matrix: FloatArray, ridge: float) -> FloatArray | None:
    # the transpose of a C-ordered matrix is Fortran-ordered as LAPACK wants it, and G = G^T
    shifted = np.array(matrix.T if matrix.flags.c_contiguous else matrix, order='F', copy=True)
    shifted.flat[:: matrix.shape[0] + 1] += ridge
    factor, info = scipy.linalg.lapack.dpotrf(shifted, lower=1, clean=0, overwrite_a=1)
    return np.asarray(factor, dtype=np.float64) if info == 0 else None


def warn_if_raised(name: str, requested: float, used: float) -> None:
    """Log that a regulariser is not what was asked for."""
    if used > requested:
        _LOG.warning(
            '%s raised from %.3g to %.3g: the factorisation failed; choose it larger, or remove '
            'duplicated points',
            name,
            requested,
            used,
        )
