"""The linear system A = G_X + n epsilon I of a map's poses, solved in part or as a whole."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
import functools

from kbr_localization.errors import LocalizationError
from kbr_localization.localization.kbr.state_kernel import StateKernel
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

Indices = NDArray[np.intp]
_CACHED_FACTORS = 8


@dataclass(frozen=True)
class Part:
    """Some poses of a map, indices (m,), and the `ridge` n epsilon of their system."""

    poses: Indices
    ridge: float


class PoseSystem:
    """
    Solves A s = v.

    `ridge` is n epsilon of the whole map, `largest` the poses up to which that is inverted.

    A part of the poses is solved by its Cholesky factor, the last few of which are kept. A map
    that is solved as a whole is inverted once: a product with the symmetric A^-1 reads half of it,
    where two triangular solves read the factor twice, one number after the other.
    """

    def __init__(self, kernel: StateKernel, poses: FloatArray, ridge: float, largest: int) -> None:
        self.kernel, self.poses, self.ridge = kernel, poses, ridge
        self._largest = largest
        self._factors: OrderedDict[tuple[bytes, float], FloatArray] = OrderedDict()

    def solve(self, part: Part, right_side: FloatArray) -> FloatArray:
        """
        Solve the system of some of the poses. Shapes: (m,) or (m, k) -> the same.

        Raises LocalizationError for a singular one.
        """
        if part.poses.size == 0:
            return right_side
        # LAPACK itself: the checks about it take longer than these small systems
        return np.asarray(lapack.dpotrs(self._factor(part), right_side, lower=1)[0])

    def inverse_rows(self, part: Part, rows: Indices) -> FloatArray:
        """
        Rows (k,) of the inverse of the system of some of the poses: (k, m).

        Raises LocalizationError for a singular one.
        """
        active = part.poses
        if len(self.poses) <= self._largest:
            inverse = self._whole_inverse[np.ix_(active[rows], active)]
            return np.asarray(inverse, dtype=np.float64)
        units = np.zeros((len(active), len(rows)))
        units[rows, np.arange(len(rows))] = 1.0
        return self.solve(part, units).T

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
        factor = self._cholesky(Part(np.arange(len(self.poses)), self.ridge))
        inverse = np.asarray(lapack.dpotri(factor, lower=1)[0])
        symmetric = np.tril(inverse) + np.tril(inverse, -1).T
        return np.asfortranarray(symmetric, dtype=np.float32)

    def _factor(self, part: Part) -> FloatArray:
        key = part.poses.tobytes(), part.ridge
        if key not in self._factors:
            self._factors[key] = self._cholesky(part)
        self._factors.move_to_end(key)
        while len(self._factors) > _CACHED_FACTORS:
            self._factors.popitem(last=False)
        return self._factors[key]

    def _cholesky(self, part: Part) -> FloatArray:
        gram = self.kernel.gram(self.poses[part.poses])
        gram.flat[:: part.poses.size + 1] += part.ridge
        # the transpose is in the order of LAPACK, which factors it in place; above the diagonal
        # it leaves what was there
        factor, failed = lapack.dpotrf(gram.T, lower=1, overwrite_a=1, clean=0)
        if failed:
            raise LocalizationError(
                f'{part.poses.size} map poses make a singular system: raise state_ridge, which '
                f'makes n epsilon {part.ridge:g}'
            )
        return np.asarray(factor)
