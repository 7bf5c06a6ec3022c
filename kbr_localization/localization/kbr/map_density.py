"""How densely the images of a map lie, and how much they are like each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kbr_localization.localization.kbr.state_kernel import StateKernel
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray

_SAMPLES = 300
_COMPARED = 100  # map images that are compared with their neighbours
_APART = 0.8  # closeness of neighbours that count: nearer ones may be almost the same photograph
_COPY = 0.98  # closeness from which on a pose is the same one again, as of a robot that stands

LEAST_DENSITY = 0.1
"""The smallest density that is told from others where it scales something."""

Search = Callable[[FloatArray], NDArray[np.intp]]


def nearest_closeness(poses: FloatArray, closeness: StateKernel, search: Search) -> float:
    """
    Mean over poses (n, 3) of the closeness to the nearest other place: 1 in a map without gaps.

    Measured on a sample of them. The same place taken again fills no gap and does not count; what
    is nearly as close counts as 1. `search`: indices of the poses in reach of one (1, 3).
    """
    values = _values(poses, closeness, search)
    return float(np.mean([v[v < _COPY][-1:].sum() for v in values])) / _COPY


def neighbours_seen(poses: FloatArray, kernel: StateKernel, search: Search) -> float:
    """Mean over poses (n, 3) of the sum of k_X over all others: how many neighbours one has."""
    return float(np.mean([v.sum() for v in _values(poses, kernel, search)]))


def _values(poses: FloatArray, kernel: StateKernel, search: Search) -> Iterator[FloatArray]:
    """Kernel values of poses of a sample with the others in reach of each, in rising order."""
    for pose in poses[:: max(1, len(poses) // _SAMPLES), np.newaxis]:
        yield np.sort(kernel.cross_gram(pose, poses[search(pose)])[0])[:-1]


def neighbours_likeness(kernel_map: KernelMap, closeness: StateKernel, search: Search) -> float:
    """
    Kernel value k_Y that an image of the map usually has with the best of those around it.

    The median over a sample; NaN when none has another one around it.
    """
    found = []
    for index in range(0, len(kernel_map), max(1, len(kernel_map) // _COMPARED)):
        pose = kernel_map.poses[[index]]
        near = search(pose)
        near = near[closeness.cross_gram(pose, kernel_map.poses[near])[0] <= _APART]
        if near.size:
            image, others = kernel_map.descriptors[[index]], kernel_map.descriptors[near]
            found.append(float(kernel_map.describer.cross_gram(image, others).max()))
    return float(np.median(found)) if found else float('nan')
