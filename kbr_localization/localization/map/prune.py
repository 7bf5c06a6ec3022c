"""Fewer images in a map, chosen to cover it, and what that loses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kbr_localization import se2
from kbr_localization.errors import MapError
from kbr_localization.localization.map.covering import choose
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

Indices = NDArray[np.intp]
_SAMPLE = 2000
_CUT = 6.0  # bandwidths after which a Gaussian kernel is nothing


@dataclass(frozen=True)
class PruningLoss:
    """
    What a map lost.

    `images`, `kept`: their numbers. `radius`: largest distance of a dropped image's pose from the
    nearest one that stays, in metres, where a turn counts as the way of (cos, sin); `median`: the
    median of these. `mmd`: distance of the kernel means of all poses and of those that stay,
    relative to the former's norm. `similarity`: median kernel value of a dropped image and the
    nearest one that stays.
    """

    images: int
    kept: int
    radius: float
    median: float
    mmd: float
    similarity: float


def prune(kernel_map: KernelMap, max_images: int, seed: int = 0) -> tuple[KernelMap, PruningLoss]:
    """
    Keep at most `max_images` images, each next one farthest from those chosen before.

    Where that would take too long, one image for each cell of a grid over (x, y, cos, sin). The
    map's parameters and the order of its images stay. Raises MapError for less than one image.
    """
    if max_images < 1:
        raise MapError(f'max_images: expected at least 1, got {max_images}')
    points = se2.to_plane_and_circle(kernel_map.poses)
    kept = choose(points, max_images, np.random.default_rng(seed))
    return kernel_map.subset(kept), _loss(kernel_map, points, kept)


def _loss(kernel_map: KernelMap, points: FloatArray, kept: Indices) -> PruningLoss:
    dropped = np.setdiff1d(np.arange(len(points)), kept)
    distance, nearest = cKDTree(points[kept]).query(points[dropped])
    looked = np.linspace(0, len(dropped) - 1, min(len(dropped), 200)).astype(np.intp)
    values = [
        kernel_map.describer.cross_gram(
            kernel_map.descriptors[dropped[i]][np.newaxis],
            kernel_map.descriptors[kept[nearest[i]]][np.newaxis],
        )[0, 0]
        for i in looked
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
    """
    Distance of the kernel means of all points and of those kept, relative to the former's norm.

    |m - m'|^2 is the mean of m - m' over all points less its mean over those kept; of very many
    points a sample is taken for these means, while m and m' themselves are exact.
    """
    config = kernel_map.filter_config
    h, a = config.position_bandwidth, config.heading_bandwidth
    scaled = points / np.array([h, h, a, a])
    samples = [part[:: -(-len(part) // _SAMPLE)] for part in (scaled, scaled[kept])]
    means = [_mean_function(part) for part in (scaled, scaled[kept])]
    whole = means[0](samples[0])
    squared = np.mean(whole - means[1](samples[0])) - np.mean(
        means[0](samples[1]) - means[1](samples[1])
    )
    return float(np.sqrt(max(float(squared), 0.0) / float(np.mean(whole))))


def _mean_function(points: FloatArray) -> Callable[[FloatArray], FloatArray]:
    """Kernel mean of points (n, d) of a Gaussian kernel of bandwidth 1, as a function."""
    tree = cKDTree(points)

    def mean(places: FloatArray) -> FloatArray:
        sums = [
            np.exp(-0.5 * np.sum((points[near] - place) ** 2, axis=1)).sum()
            for place, near in zip(places, tree.query_ball_point(places, _CUT), strict=True)
        ]
        return np.array(sums) / len(points)

    return mean
