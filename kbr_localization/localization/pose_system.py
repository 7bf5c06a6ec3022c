"""The linear system A = G_X + n epsilon I of a map's poses, solved in part or as a whole."""

from __future__ import annotations

from collections import OrderedDict
import functools

from kbr_localization.errors import LocalizationError
from kbr_localization.localization.state_kernel import StateKernel
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack
import scipy.sparse

Indices = NDArray[np.intp]
_CACHED_FACTORS = 8
_VANISHING = 1e-7


class PoseSystem:
    """
    Solves A s = v; `ridge` is n epsilon.

    A part of the poses is solved by its Cholesky factor, the last few of which are kept. A map
    that is solved as a whole is inverted once: A^-1 is nearly sparse, because poses far apart do
    not matter to each other, and a product with it reads far less memory than the factor has.
    """

    def __init__(self, kernel: StateKernel, poses: FloatArray, ridge: float) -> None:
        self.kernel, self.poses, self.ridge = kernel, poses, ridge
        self._factors: OrderedDict[bytes, FloatArray] = OrderedDict()

    def solve(self, active: Indices, right_side: FloatArray) -> FloatArray:
        """
        Solve the system of some of the poses, indices (m,). Shapes: (m,) or (m, k) -> the same.

        Raises LocalizationError for a singular one.
        """
        # LAPACK itself: the checks about it take longer than these small systems
        return np.asarray(lapack.dpotrs(self._factor(active), right_side, lower=1)[0])

    def solve_whole(self, right_side: FloatArray) -> FloatArray:
        """
        Solve the system of all poses, (n,) -> (n,), for a map of moderate size.

        Entries of the inverse below c = 1e-7 are left out: the error is at most c |v|_1, a
        hundredth of that in practice.
        """
        return np.asarray(self._inverse @ right_side)

    @functools.cached_property
    def solution_of_ones(self) -> FloatArray:
        """A^-1 1 (n,) of all poses."""
        return self.solve_whole(np.ones(len(self.poses)))

    @functools.cached_property
    def _inverse(self) -> scipy.sparse.csr_array:
        factor = self._cholesky(np.arange(len(self.poses)))
        lower = np.tril(lapack.dpotri(factor, lower=1)[0])
        lower[np.abs(lower) < _VANISHING] = 0.0
        return scipy.sparse.csr_array(lower + np.tril(lower, -1).T)

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
