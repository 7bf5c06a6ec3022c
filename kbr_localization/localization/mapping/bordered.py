"""
Normal equations of many poses, related sparsely, and a few parameters, related to all of them.

With A of the poses, C of the parameters and B between them, A is factorised sparsely, and the
Schur complement C - B^T A^-1 B as it is: full columns would fill the factor of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbr_localization.errors import MapError
from kbr_localization.localization.mapping.trajectories import Indices
from kbr_localization.se2 import FloatArray
import numpy as np
from scipy import linalg, sparse
from scipy.sparse.linalg import splu

UNRELATED = (
    'the poses of the images cannot be solved for: parts of the runs are related to nothing; '
    'build a map of each run, or drive where both have been, in the same direction, for 20 m'
)
_BATCH = 256  # right sides that are solved for at once


class NormalEquations:
    """
    J^T W J and -J^T W e, put together from blocks.

    `size`: number of unknowns, of which the first `sparse_size` are the poses. `right` (size,).
    """

    def __init__(self, size: int, sparse_size: int) -> None:
        self.size, self.sparse_size = size, sparse_size
        self.right = np.zeros(size)
        self._rows: list[Indices] = []
        self._columns: list[Indices] = []
        self._values: list[FloatArray] = []

    def add(
        self,
        error: FloatArray,
        information: FloatArray,
        blocks: Sequence[tuple[Indices, FloatArray]],
    ) -> None:
        """Add errors (m, d) with information (m, d, d) and derivatives (m, d, w) at columns."""
        weighted = [(first, np.swapaxes(d, 1, 2) @ information) for first, d in blocks]
        for first, left in weighted:
            rows = first[:, np.newaxis] + np.arange(left.shape[1])
            gradient = (left @ error[:, :, np.newaxis])[:, :, 0]
            self.right -= np.bincount(rows.ravel(), gradient.ravel(), minlength=self.size)
            for second, derivative in blocks:
                columns = second[:, np.newaxis] + np.arange(derivative.shape[2])
                product = left @ derivative
                shape = product.shape
                self._rows.append(np.broadcast_to(rows[:, :, np.newaxis], shape).ravel())
                self._columns.append(np.broadcast_to(columns[:, np.newaxis], shape).ravel())
                self._values.append(product.ravel())

    def matrix(self) -> sparse.csc_matrix:
        """Return the whole matrix."""
        values, rows = np.concatenate(self._values), np.concatenate(self._rows)
        columns = np.concatenate(self._columns)
        return sparse.csc_matrix((values, (rows, columns)), shape=(self.size, self.size))

    def factor(self) -> Bordered:
        """Factorise; raises MapError where parts are related to nothing."""
        return Bordered(self.matrix(), self.sparse_size)


class Bordered:
    """A symmetric positive matrix, its first rows sparse and its last ones full, factorised."""

    def __init__(self, matrix: sparse.csc_matrix, sparse_size: int) -> None:
        n = self.sparse_size = sparse_size
        border = matrix[:n, n:].toarray()
        try:
            self._factor = splu(
                matrix[:n, :n],
                permc_spec='MMD_AT_PLUS_A',
                diag_pivot_thresh=0.0,
                options={'SymmetricMode': True},
            )
            self._carried = self._factor.solve(border)
            schur = matrix[n:, n:].toarray() - border.T @ self._carried
            self._schur = linalg.cho_factor(schur)
        except (RuntimeError, np.linalg.LinAlgError) as error:
            raise MapError(UNRELATED) from error

    def step(self, right: FloatArray) -> FloatArray:
        """Solve for all unknowns. Shapes: (n + k,) -> (n + k,)."""
        n = self.sparse_size
        poses = self._factor.solve(right[:n])
        rest = linalg.cho_solve(self._schur, right[n:] - self._carried.T @ right[:n])
        return np.concatenate([poses - self._carried @ rest, rest])

    def solve(self, right: FloatArray) -> FloatArray:
        """Rows of the poses (n, r) of the inverse, times right sides (n, r) at the poses alone."""
        result = np.empty_like(right)
        for begin in range(0, right.shape[1], _BATCH):
            block = slice(begin, begin + _BATCH)
            some = right[:, block]
            rest = linalg.cho_solve(self._schur, self._carried.T @ some)
            result[:, block] = self._factor.solve(some) + self._carried @ rest
        return result

    def of_border(self) -> FloatArray:
        """Rows of the last unknowns (k, k) of the inverse: the covariance of these."""
        return np.asarray(linalg.cho_solve(self._schur, np.eye(self._carried.shape[1])))

    def covariances(self, columns: Indices, slopes: FloatArray) -> FloatArray:
        """Covariances (m, d, d) of linear functions (m, d, w) of unknowns at columns (m, w)."""
        m, d, _ = slopes.shape
        found = np.empty((m, d, d))
        for begin in range(0, m, _BATCH // d):
            some = slice(begin, min(begin + _BATCH // d, m))
            at, slope = columns[some], slopes[some]
            right = np.zeros((self.sparse_size, len(at), d))
            which = np.arange(len(at))[:, np.newaxis]
            np.add.at(right, (at, which), np.swapaxes(slope, 1, 2))
            solved = self.solve(right.reshape(self.sparse_size, -1)).reshape(right.shape)
            found[some] = slope @ solved[at, which]
        return found
