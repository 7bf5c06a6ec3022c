"""
Regularised solves with Gram matrices.

Where rounding makes a factorisation fail, the ridge is raised ([KBR] Fig. 1) and a warning is
logged. A matrix that is asymmetric or indefinite beyond rounding is no Gram matrix: KernelError.
"""

from __future__ import annotations

import logging

from kbr_localization.errors import KernelError
from kbr_localization.kernels.checks import (
    as_columns,
    as_gram,
    as_positive,
    FloatArray,
    require_finite,
    ROUNDING,
)
import numpy as np
from numpy.typing import ArrayLike, NDArray
import scipy.linalg

_LOG = logging.getLogger(__name__)


class RegularisedCholesky:
    """
    Cholesky factor of G + ridge I, G (n, n) symmetric positive semi-definite.

    A factorisation that fails multiplies the ridge by ten; `ridge` is the value that was used.
    `name`: what the ridge is called in messages.
    """

    def __init__(self, gram: ArrayLike, ridge: float, name: str = 'ridge') -> None:
        matrix = as_gram('gram', gram)
        require_finite('gram', matrix)
        require_symmetric('gram', matrix)
        self.size = len(matrix)
        requested = as_positive(name, ridge, allow_zero=True)
        smallest = smallest_ridge(matrix)
        largest = max(requested, smallest, ROUNDING * _eigenvalue_bound(matrix))
        self.ridge = requested
        while self.ridge <= largest:
            # a C-ordered symmetric matrix is its transpose in the Fortran order of LAPACK
            shifted = np.array(matrix.T if matrix.flags.c_contiguous else matrix, order='F')
            shifted.flat[:: self.size + 1] += self.ridge
            self.factor, failed = scipy.linalg.lapack.dpotrf(shifted, lower=1, overwrite_a=1)
            if not failed:
                warn_if_raised(name, requested, self.ridge)
                return
            self.ridge = max(10.0 * self.ridge, smallest)
        raise KernelError(
            f'gram: expected a positive semi-definite matrix, got one that is indefinite beyond '
            f'rounding for {name} = {requested:.3g}: raise it, or check the kernel'
        )

    def solve(self, right_side: ArrayLike) -> FloatArray:
        """Return (G + ridge I)^-1 b. Shapes: (n,) or (n, q) -> the same."""
        b = as_columns('right_side', right_side, self.size)
        return np.asarray(scipy.linalg.cho_solve((self.factor, True), b, check_finite=False))


def solve_root_form(
    matrix: FloatArray, signs: FloatArray | float, delta: float, right_side: FloatArray
) -> tuple[NDArray[np.complex128], float]:
    """
    Solve (B + i sqrt(delta) J) z = b, B real symmetric, J = diag(signs); return z and delta.

    For J = I its real part is B (B^2 + delta I)^-1 b, without squaring the condition number of B.
    A system that is singular to working precision raises delta. Shapes: (n, n), (n,) or (n, q).
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
                warn_if_raised('delta', delta, used)
                return solution.reshape(right_side.shape), used
        used = max(10.0 * used, smallest_ridge(matrix) ** 2)
    raise KernelError(
        f'delta: expected a larger one, got a system that is singular even with {used:.3g}'
    )


def require_symmetric(name: str, matrix: FloatArray) -> None:
    """Refuse an asymmetric matrix: G v and G^T v differ for a generic v. O(n^2), no copy."""
    probe = np.cos(np.arange(1.0, len(matrix) + 1.0))
    if np.abs(matrix @ probe - probe @ matrix).max() > ROUNDING * _eigenvalue_bound(matrix):
        raise KernelError(
            f'{name}: expected a symmetric matrix, got |G - G^T| up to '
            f'{np.abs(matrix - matrix.T).max():.3g}: give k(x_i, x_j) of one sample'
        )


def smallest_ridge(matrix: FloatArray) -> float:
    """Return the size of a rounding error in the eigenvalues. Shapes: (n, n)."""
    scale = float(np.abs(np.diag(matrix)).mean()) or 1.0
    return float(np.finfo(np.float64).eps) * len(matrix) * scale


def _eigenvalue_bound(matrix: FloatArray) -> float:
    return float(len(matrix) * max(matrix.max(), -matrix.min()))


def warn_if_raised(name: str, requested: float, used: float) -> None:
    """Log that a regularisation constant is larger than the one that was asked for."""
    if used > requested:
        _LOG.warning(
            '%s raised from %.3g to %.3g, as the factorisation failed', name, requested, used
        )
