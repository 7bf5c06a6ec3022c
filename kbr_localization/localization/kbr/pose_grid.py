"""Which map poses lie near given points: a uniform grid, whose questions cost what they find."""

from __future__ import annotations

from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]
_CELLS_PER_REACH = 3
_MARGIN = 3  # cells that a reach spans to each side
_LARGEST_SPAN = 2.0**30  # cells along a side, so that two indices fit into one number
_BLOCK = 7  # cells of a side of the blocks that points are grouped by
_FEW = 1 << 16  # numbers of cells that are ticked off one by one


class PoseGrid:
    """
    Positions sorted into square cells, for neighbours within a fixed distance `reach`.

    Poses: (n, 2) or (n, 3), of which x and y count. Memory is four bytes a pose beside the
    occupied cells. A k-d tree answers the same question point by point; here it is answered for a
    thousand points that share a few dozen cells at once.
    """

    def __init__(self, poses: FloatArray, reach: float) -> None:
        self.reach = reach
        span = np.ptp(poses[:, :2], axis=0)
        self.side = max(reach / _CELLS_PER_REACH, float(span.max()) / _LARGEST_SPAN)
        self._low = poses[:, :2].min(axis=0)
        self._beyond = np.floor(span / self.side) + 1.0 + _MARGIN
        # cells that poses reach and a rim about them, where everything farther away is put
        self._stride = int(self._beyond[1]) + _MARGIN + 2
        keys = self._keys(poses)
        self._order = np.argsort(keys, kind='stable').astype(np.int32)
        keys, starts = np.unique(keys[self._order], return_index=True)
        self._occupied = keys
        self._starts = np.append(starts, len(poses))
        steps = np.arange(-_MARGIN, _MARGIN + 1)
        x, y = np.meshgrid(steps, steps)
        self._around = (x * self._stride + y).ravel()

    def near(self, points: FloatArray) -> Indices:
        """
        Find all poses within `reach` of any of the points, and some a little farther.

        Shapes: (m, 2) or (m, 3) -> (k,) increasing indices.
        """
        first, last = self._ranges(points)
        sizes = last - first
        offsets = np.repeat(first - np.cumsum(sizes) + sizes, sizes)
        found = self._order[offsets + np.arange(len(offsets))].astype(np.intp)
        found.sort()
        return found

    def blocks(self, points: FloatArray) -> list[Indices]:
        """Group points (m, 3) by square blocks of `_BLOCK` cells: lists of their indices."""
        blocks = self._cells(points) // _BLOCK
        _, member = np.unique(blocks, axis=0, return_inverse=True)
        order = np.argsort(member.ravel(), kind='stable')
        return np.split(order, np.flatnonzero(np.diff(member.ravel()[order])) + 1)

    def _cells(self, points: FloatArray) -> NDArray[np.int64]:
        cells = np.floor((points[:, :2] - self._low) / self.side)
        return np.asarray(np.clip(cells, -_MARGIN - 1.0, self._beyond), dtype=np.int64)

    def _keys(self, points: FloatArray) -> NDArray[np.int64]:
        """Numbers of the points' cells, the rows of cells one after the other."""
        x, y = self._cells(points).T
        return np.asarray(x * self._stride + y)

    def _ranges(self, points: FloatArray) -> tuple[Indices, Indices]:
        """Begin and end, in the order of the cells, of the poses in the cells about points."""
        around = _distinct(_distinct(self._keys(points))[:, np.newaxis] + self._around)
        position = np.searchsorted(self._occupied, around)
        position[position == len(self._occupied)] = 0
        found = position[self._occupied[position] == around]
        return self._starts[found], self._starts[found + 1]


def _distinct(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sort numbers of cells, each of them once; ticking off is much faster than sorting."""
    if not keys.size:
        return keys.ravel()
    low, high = int(keys.min()), int(keys.max())
    if high - low >= _FEW:
        return np.unique(keys)
    met = np.zeros(high - low + 1, dtype=bool)
    met[keys - low] = True
    return np.flatnonzero(met) + low
