"""How densely the images of a map lie, and how much they are like each other."""

from __future__ import annotations

from collections.abc import Callable

from kbr_localization.localization.kernel_map import KernelMap
from kbr_localization.localization.state_kernel import StateKernel
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray

_SAMPLES = 300
_COMPARED = 100  # map images that are compared with their neighbours
_APART = 0.8  # k_X of neighbours that count: nearer ones may be almost the same photograph

Search = Callable[[FloatArray], NDArray[np.intp]]


def neighbourhood(poses: FloatArray, kernel: StateKernel, search: Search) -> tuple[float, float]:
    """
    Measure the density of a map with poses (n, 3) on a sample of them.

    Returns the mean over the poses of k_X with the nearest other one, near 1 in a map without
    gaps, and of the sum of k_X over all others, the number of neighbours. `search`: indices of
    the poses in reach of one (1, 3).
    """
    sample = poses[:: max(1, len(poses) // _SAMPLES), np.newaxis]
    nearest, sums = np.zeros(len(sample)), np.zeros(len(sample))
    for index, pose in enumerate(sample):
        values = np.sort(kernel.cross_gram(pose, poses[search(pose)])[0])[:-1]
        nearest[index], sums[index] = values[-1:].sum(), values.sum()
    return float(nearest.mean()), float(sums.mean())


def neighbours_likeness(kernel_map: KernelMap, kernel: StateKernel, search: Search) -> float:
    """
    Kernel value k_Y that an image of the map usually has with the best of those around it.

    The median over a sample; NaN when none has another one around it.
    """
    found = []
    for index in range(0, len(kernel_map), max(1, len(kernel_map) // _COMPARED)):
        pose = kernel_map.poses[[index]]
        near = search(pose)
        near = near[kernel.cross_gram(pose, kernel_map.poses[near])[0] <= _APART]
        if near.size:
            image, others = kernel_map.descriptors[[index]], kernel_map.descriptors[near]
            found.append(float(kernel_map.describer.cross_gram(image, others).max()))
    return float(np.median(found)) if found else float('nan')
