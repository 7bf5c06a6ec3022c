"""Which images to keep so that they cover a map, and what is lost without the others."""

from __future__ import annotations

from dataclasses import dataclass

from kbr_localization import se2
from kbr_localization.errors import MapError
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist

Indices = NDArray[np.intp]
_MOST_DISTANCES = 2e9  # up to which points are chosen one by one; above, one for each grid cell


@dataclass(frozen=True)
class PruningLoss:
    """
    What a map lost.

    `images`, `kept`: their numbers. `radius`, `median`: largest and median distance in metres from
    a dropped image to the nearest one that stays, a turn counted by its chord on the unit circle.
    `mmd`: distance of the kernel means of all poses and of those that stay, relative to the norm
    of the former. `similarity`: median kernel value of a dropped image and the nearest one that
    stays.
    """

    images: int
    kept: int
    radius: float
    median: float
    mmd: float
    similarity: float


def prune(kernel_map: KernelMap, max_images: int, seed: int = 0) -> tuple[KernelMap, PruningLoss]:
    """Keep at most `max_images` images that cover the map (see `cover`), in their order."""
    if max_images < 1:
        raise MapError(f'max_images: expected at least 1, got {max_images}')
    kept = cover(kernel_map.poses, max_images, np.random.default_rng(seed))
    return kernel_map.subset(kept), _loss(kernel_map, kept)


def cover(poses: FloatArray, count: int, rng: np.random.Generator) -> Indices:
    """
    Choose poses that cover all of them: each next one is the farthest from those chosen.

    The distance is between (x, y, cos, sin). Where there are too many for that, the pose nearest
    to the middle of each cell of a grid is chosen. Shapes: (n, 3) -> sorted indices,
    min(count, n) of them or, of very many, a few less.
    """
    points = se2.to_plane_and_circle(poses)
    if count >= len(points):
        return np.arange(len(points))
    if float(len(points)) * count > _MOST_DISTANCES:
        return _one_per_cell(points, count)
    chosen = [int(rng.integers(len(points)))]
    distance = np.full(len(points), np.inf)
    while len(chosen) < count:
        distance = np.minimum(distance, np.sum((points - points[chosen[-1]]) ** 2, axis=1))
        distance[chosen[-1]] = -1.0  # less than others at the same place
        chosen.append(int(np.argmax(distance)))
    return np.sort(chosen)


def _one_per_cell(points: FloatArray, count: int) -> Indices:
    """Choose the point nearest to the middle of each occupied cell of the smallest such grid."""
    low, high = 0.02, float(np.ptp(points, axis=0).max()) + 1.0
    for _ in range(40):
        size = np.sqrt(low * high)
        low, high = (size, high) if _cells(points, size).max() >= count else (low, size)
    cell = _cells(points, high)
    inside = (points - points.min(axis=0)) / high
    offset = np.sum((inside - np.floor(inside) - 0.5) ** 2, axis=1)
    order = np.lexsort([offset, cell])
    return np.sort(order[np.searchsorted(cell[order], np.arange(cell.max() + 1))])


def _cells(points: FloatArray, size: float) -> Indices:
    """Return the number (n,) of the occupied cell that each point is in."""
    corner = np.floor((points - points.min(axis=0)) / size).astype(np.int64)
    keys = np.ravel_multi_index(tuple(corner.T), tuple(corner.max(axis=0) + 1))
    return np.asarray(np.unique(keys, return_inverse=True)[1])


def _loss(kernel_map: KernelMap, kept: Indices) -> PruningLoss:
    points, rows = se2.to_plane_and_circle(kernel_map.poses), kernel_map.descriptors
    dropped = np.setdiff1d(np.arange(len(points)), kept)
    distance, nearest = cKDTree(points[kept]).query(points[dropped])
    sample = np.linspace(0, len(dropped) - 1, min(len(dropped), 200)).astype(np.intp)
    values = [
        kernel_map.describer.cross_gram(rows[[dropped[i]]], rows[[kept[nearest[i]]]])[0, 0]
        for i in sample
    ]
    return PruningLoss(
        images=len(points),
        kept=len(kept),
        radius=float(distance.max(initial=0.0)),
        median=float(np.median(distance)) if dropped.size else 0.0,
        mmd=_mmd(kernel_map, points, kept),
        similarity=float(np.median(values)) if values else 1.0,
    )


def _mmd(kernel_map: KernelMap, points: FloatArray, kept: Indices) -> float:
    """Distance of the kernel means of samples of all points and of those kept, relative."""
    config = kernel_map.filter_config
    h, a = config.position_bandwidth, config.heading_bandwidth
    scaled = points / np.array([h, h, a, a])
    every, left = (part[:: -(-len(part) // 2000)] for part in (scaled, scaled[kept]))

    def mean(one: FloatArray, other: FloatArray) -> float:
        return float(np.exp(-0.5 * cdist(one, other, 'sqeuclidean')).mean())

    whole = mean(every, every)
    squared = whole - 2.0 * mean(every, left) + mean(left, left)
    return float(np.sqrt(max(squared, 0.0) / whole))
