"""The uniform law on a map, whole and restricted to the places that face a given way."""

from __future__ import annotations

from kbr_localization.localization.kbr.pose_search import Indices, SECTORS
from kbr_localization.localization.kbr.state_kernel import StateKernel
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray

_SMALLEST = 1e-100


class UniformLaw:
    """
    Kernel mean of images under the uniform law on a map's places, sum_i mu_i k_Y(., Y_i).

    `weights`: mu (n,), or one that all images have, shape (1,). `sectors`: (n,) of the headings.
    Restricted to the places that face as theta, the law has weights in proportion to mu_i
    k(theta_i, theta), where k is the kernel k_X of the heading alone, at the middles of sectors.
    """

    def __init__(
        self, weights: FloatArray, sectors: NDArray[np.uint8], kernel: StateKernel
    ) -> None:
        self._weights, self._sectors = np.broadcast_to(weights, sectors.shape), sectors
        middles = np.zeros((SECTORS, 3))
        middles[:, 2] = (np.arange(SECTORS) + 0.5) * (2.0 * np.pi / SECTORS)
        self._alike = kernel.gram(middles)
        of_sectors = np.bincount(self._sectors, weights=self._weights, minlength=SECTORS)
        reached = self._alike @ of_sectors
        # where a narrow kernel sees nothing of the map the law has nothing
        self._scale = of_sectors.sum() / np.where(reached > _SMALLEST, reached, np.inf)

    def means(self, images: Indices, k_y: FloatArray) -> tuple[float, FloatArray]:
        """
        Values at an image y of which k_Y(Y_i, y) (k,) is known for some images (k,), else zero.

        Returns sum_i mu_i k_Y(Y_i, y), and the same for the law restricted to each sector of the
        heading (sectors,), scaled to the same mass.
        """
        values = self._weights[images] * k_y
        of_sectors = np.bincount(self._sectors[images], weights=values, minlength=SECTORS)
        return float(values.sum()), np.asarray(self._scale * (self._alike @ of_sectors))
