"""How densely the images of a map lie, as the kernel k_X sees it."""

from __future__ import annotations

from collections.abc import Callable

from kbr_localization.localization.state_kernel import StateKernel
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray

_SAMPLES = 300


def neighbourhood(
    poses: FloatArray, kernel: StateKernel, search: Callable[[FloatArray], NDArray[np.intp]]
) -> tuple[float, float]:
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
