"""The linear system A = G_X + n epsilon I of a map's poses, solved in part or as a whole."""

from __future__ import annotations

from collections import OrderedDict
import functools

from kbr_localization.errors import LocalizationError
from kbr_localization.localization.kbr.state_kernel import StateKernel
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

Indices = NDArray[np.intp]
_CACHED_FACTORS = 8


class PoseSystem:
    """
    Solves A s = v; `ridge` is n epsilon, `largest` the poses up to which it is inverted.

    A part of the poses is solved by its Cholesky factor, the last few of which are kept. A map
    that is solved as a whole is inverted once: a product with the symmetric A^-1 reads half of it,
    where two triangular solves read the factor twice, one number after the other.
    """

    def __init__(self, kernel: StateKernel, poses: FloatArray, ridge: float, largest: int) -> None:
        self.kernel, self.poses, self.ridge = kernel, poses, ridge
        self._largest = largest
        self._factors: OrderedDict[bytes, FloatArray] = OrderedDict()

    def solve(self, active: Indices, right_side: FloatArray) -> FloatArray:
        """
        Solve the system of some of the poses, indices (m,). Shapes: (m,) or (m, k) -> the same.

        Raises LocalizationError for a singular one.
        """
        if active.size == 0:
            return right_side
        # LAPACK itself: the checks about it take longer than these small systems
        return np.asarray(lapack.dpotrs(self._factor(active), right_side, lower=1)[0])

    def inverse_rows(self, active: Indices, rows: Indices) -> FloatArray:
        """
        Rows (k,) of the inverse of the system of some of the poses, indices (m,): (k, m).

        Raises LocalizationError for a singular one.
        """
        if len(self.poses) <= self._largest:
            part = self._whole_inverse[np.ix_(active[rows], active)]
            return np.asarray(part, dtype=np.float64)
        units = np.zeros((len(active), len(rows)))
        units[rows, np.arange(len(rows))] = 1.0
        return self.solve(active, units).T

    def solve_whole(self, right_side: FloatArray) -> FloatArray:
        """Solve the system of all poses, (n,) -> (n,), for a map of moderate size."""
        inverse = self._whole_inverse
        return np.asarray(blas.ssymv(1.0, inverse, right_side, lower=1), dtype=np.float64)

    @functools.cached_property
    def solution_of_ones(self) -> FloatArray:
        """A^-1 1 (n,) of all poses."""
        return self.solve_whole(np.ones(len(self.poses)))

    @functools.cached_property
    def _whole_inverse(self) -> NDArray[np.float32]:
        """A^-1 (n, n) in column order; in single precision, as it is read from memory anew."""
        factor = self._cholesky(np.arange(len(self.poses)))
        inverse = np.asarray(lapack.dpotri(factor, lower=1)[0])
        symmetric = np.tril(inverse) + np.tril(inverse, -1).T
        return np.asfortranarray(symmetric, dtype=np.float32)

    def _factor(self, active: Indices) -> FloatArray:
        key = active.tobytes()
        if key not in self._factors:
            self._factors[key] = self._cholesky(active)
        self._factors.move_to_end(key)
        while len(self._factors) > _CACHED_FACTORS:
            self._factors.popitem(last=False)
        return self._factors[key]

    def _cholesky(self, active: Indices) -> FloatArray:
        gram = self.kernel.gram(self.poses[active])
        gram.flat[:: active.size + 1] += self.ridge
        factor, failed = lapack.dpotrf(gram, lower=1)
        if failed:
            raise LocalizationError(
                f'{active.size} map poses make a singular system: raise state_ridge, which makes '
                f'n epsilon {self.ridge:g}'
            )
        return np.asarray(factor)
