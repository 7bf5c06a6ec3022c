"""Choose images that cover a map, and measure the loss without the others."""

from typing import NamedTuple

from kbr_localization import se2
from kbr_localization.errors import MapError
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

Indices = NDArray[np.intp]
MAX_DISTANCES = 2e9  # computed by the farthest-point choice; beyond, a grid is used instead


class PruningLoss(NamedTuple):
    """Largest and median distance of dropped images to the nearest kept one, see `cover`."""

    radius: float
    median: float


def prune(kernel_map: KernelMap, max_images: int) -> tuple[KernelMap, PruningLoss]:
    """Keep at most `max_images` images, which cover the map (see `cover`), in their order."""
    kept = cover(kernel_map.poses, max_images, np.random.default_rng(0))
    points = se2.to_plane_and_circle(kernel_map.poses)
    dropped = np.setdiff1d(np.arange(len(points)), kept)
    if not dropped.size:
        return kernel_map, PruningLoss(0.0, 0.0)
    distance = cKDTree(points[kept]).query(points[dropped])[0]
    return kernel_map.subset(kept), PruningLoss(float(distance.max()), float(np.median(distance)))


def cover(poses: FloatArray, count: int, rng: np.random.Generator) -> Indices:
    """
    Choose `count` of poses (n, 3) that cover all of them: repeatedly the farthest one.

    The distance is Euclidean between (x, y, cos, sin), in metres. Beyond `MAX_DISTANCES`, choose
    one pose in each cell of the finest grid with at most `count` occupied cells. Return sorted
    indices, min(count, n) of them or, by the grid, some less. Raises MapError for a count below 1.
    """
    if count < 1:
        raise MapError(f'max_images: expected at least 1, got {count}')
    points = se2.to_plane_and_circle(poses)
    if count >= len(points):
        return np.arange(len(points))
    if float(len(points)) * count > MAX_DISTANCES:
        low, high = 0.02, float(np.ptp(points, axis=0).max()) + 1.0
        for _ in range(40):
            size = np.sqrt(low * high)
            low, high = (size, high) if len(_one_per_cell(points, size)) > count else (low, size)
        return np.sort(_one_per_cell(points, high))
    chosen = [int(rng.integers(len(points)))]
    distance = np.full(len(points), np.inf)
    while len(chosen) < count:
        distance = np.minimum(distance, np.sum((points - points[chosen[-1]]) ** 2, axis=1))
        distance[chosen[-1]] = -1.0  # never choose it again
        chosen.append(int(np.argmax(distance)))
    return np.sort(chosen)


def _one_per_cell(points: FloatArray, size: float) -> Indices:
    """Return the first point of each occupied cell of a grid."""
    cell = np.floor((points - points.min(axis=0)) / size).astype(np.int64)
    keys = np.ravel_multi_index(tuple(cell.T), tuple(cell.max(axis=0) + 1))
    return np.unique(keys, return_index=True)[1]
