"""Which points to keep so that they cover all of them."""

from __future__ import annotations

from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]
_GREEDY = 2e9
"""Distances up to which every pose is weighed at every choice; above, cells are chosen."""
_ROUNDS = 40
_SMALLEST_CELL = 0.02


def choose(points: FloatArray, count: int, rng: np.random.Generator) -> Indices:
    """
    Choose points that cover all of them.

    Shapes: (n, d) -> increasing indices, min(count, n) of them or, of very many, a few less.
    """
    if count >= len(points):
        return np.arange(len(points))
    if float(len(points)) * count <= _GREEDY:
        return _farthest(points, count, rng)
    return _one_per_cell(points, count)


def _farthest(points: FloatArray, count: int, rng: np.random.Generator) -> Indices:
    chosen = [int(rng.integers(len(points)))]
    distance = np.full(len(points), np.inf)
    while len(chosen) < count:
        distance = np.minimum(distance, np.sum((points - points[chosen[-1]]) ** 2, axis=1))
        # others at its place have zero
        distance[chosen[-1]] = -1.0
        chosen.append(int(np.argmax(distance)))
    return np.sort(chosen)


def _one_per_cell(points: FloatArray, count: int) -> Indices:
    """Point nearest to the middle of each occupied cell, the cells as small as can be."""
    low, high = _SMALLEST_CELL, float(np.ptp(points, axis=0).max()) + 1.0
    for _ in range(_ROUNDS):
        size = np.sqrt(low * high)
        low, high = (size, high) if len(_cells(points, size)[1]) > count else (low, size)
    cell, first = _cells(points, high)
    inside = (points - points.min(axis=0)) / high
    offset = inside - np.floor(inside) - 0.5
    order = np.lexsort([np.sum(offset**2, axis=1), cell])
    return np.sort(order[np.searchsorted(cell[order], np.arange(len(first)))])


def _cells(points: FloatArray, size: float) -> tuple[Indices, Indices]:
    """Cell number of each point, and a point of each cell."""
    corner = np.floor((points - points.min(axis=0)) / size).astype(np.int64)
    keys = np.ravel_multi_index(tuple(corner.T), tuple(corner.max(axis=0) + 1))
    _, first, cell = np.unique(keys, return_index=True, return_inverse=True)
    return cell, first
