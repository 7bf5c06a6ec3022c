"""The Gram matrices of a map: what the methods with a belief on the map poses share."""

from __future__ import annotations

from typing import Any

from kbr_localization import se2
from kbr_localization.errors import LocalizationError
from kbr_localization.kernels.kernels import GaussianKernel
from kbr_localization.kernels.noise import GaussianNoise
from kbr_localization.kernels.rules import (
    conditional_mean,
    model_based_sum_rule,
    nonparametric_sum_rule,
    normalise,
    regularise,
)
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.se2 import FloatArray
import numpy as np
from scipy.spatial import cKDTree

LARGEST_DENSE = 8000
"""Map images up to which matrices of all pairs of them are made."""


class MapKernels:
    """
    Gaussian kernel k_X on (x, y, cos, sin) and image kernel k_Y, with the map's Gram matrices.

    `config` has `position_bandwidth`, `heading_bandwidth`, `state_ridge` and maybe `sharpening`
    tau: k_Y = exp((k - 1) / tau), or k itself for 0. `kernel`: k_X, normalised as a density;
    `points` (n, 4); `gram_x`, `gram_y` (n, n); `gaps` (3, 3): covariance of a pose about its map
    pose. Raises LocalizationError for a map of more than `LARGEST_DENSE` images.
    """

    def __init__(self, kernel_map: KernelMap, config: Any) -> None:
        _refuse_large(len(kernel_map))
        widths = np.array([config.position_bandwidth] * 2 + [config.heading_bandwidth] * 2)
        self.kernel = GaussianKernel(widths**2, normalised=True)
        self.sharpening = getattr(config, 'sharpening', 0.0)
        self.points = se2.to_plane_and_circle(kernel_map.poses)
        self.gram_x = self.kernel.gram(self.points)
        rows = kernel_map.describer.cross_gram(kernel_map.descriptors, kernel_map.descriptors)
        self.gram_y = self.image_kernel(np.asarray(rows, dtype=np.float64))
        self.gaps = gaps_between(kernel_map.poses)
        epsilon = config.state_ridge * self.kernel.peak(4) / len(self.points)
        self._regularised = regularise(self.gram_x, epsilon)

    def project(self, kernel_mean_at_map: FloatArray) -> FloatArray:
        """NP-KSR: weights mu (n,) from the values of a kernel mean at the map poses."""
        return nonparametric_sum_rule(self._regularised, kernel_mean_at_map)

    def image_kernel(self, similarities: FloatArray) -> FloatArray:
        """Return k_Y of similarities, of any shape."""
        if self.sharpening > 0.0:
            return np.asarray(np.exp((similarities - 1.0) / self.sharpening))
        return np.asarray(similarities, dtype=np.float64)

    def gaussian_at_map(self, pose: FloatArray, covariance: FloatArray) -> FloatArray:
        """
        Values (n,) at the map poses of the kernel mean of a Gaussian about a pose (3,).

        It is Mb-KSR with the Gaussian for the transition: what a large sample would give.
        """
        turn = np.eye(4)[:, :3].copy()
        turn[2:, 2] = [-np.sin(pose[2]), np.cos(pose[2])]
        values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
        rounded = (vectors * np.maximum(values, 0.0)) @ vectors.T
        spread = turn @ rounded @ turn.T + 1e-9 * np.eye(4)
        wide = GaussianNoise(spread).conditional_kernel_mean(self.kernel)
        centre = se2.to_plane_and_circle(pose)[np.newaxis]
        return model_based_sum_rule(wide, self.points, centre, np.ones(1))

    def given_image_alone(self, k_y: FloatArray, delta: float) -> FloatArray:
        """Weights (n,) of the conditional mean ("COND"), their positive part normalised."""
        weights = conditional_mean(regularise(self.gram_y, delta / len(self.points)), k_y)
        return normalise(np.maximum(weights, 0.0) + 1e-12)


def without_traces(mu: FloatArray) -> FloatArray:
    """
    Prior weights mu (n,) with zeros in place of what is 1e-8 of the largest or less.

    The Bayes rules give such a point no weight worth mentioning and cost O(m^3) for the m points
    that are not zero: while tracking, a few of the map's.
    """
    size = np.abs(mu)
    return np.where(size > 1e-8 * size.max(), mu, 0.0)


def gaps_between(poses: FloatArray) -> FloatArray:
    """
    Covariance (3, 3) of a pose about the nearest of the map's poses (n, 3).

    Taken from the distances between a map pose and the nearest other one, a quarter of their mean
    square: the pose lies between the two.
    """
    smallest = 1e-4 * np.eye(3)
    if len(poses) < 2:
        return smallest
    distances, nearest = cKDTree(poses[:, :2]).query(poses[:, :2], k=2)
    turns = se2.wrap_angle(poses[nearest[:, 1], 2] - poses[:, 2])
    square = np.mean(distances[:, 1] ** 2)
    # poses at one place may face anywhere: take the median turn between neighbours
    return smallest + 0.25 * np.diag([square, square, np.median(turns**2)])


def _refuse_large(n: int) -> None:
    if n > LARGEST_DENSE:
        raise LocalizationError(
            f'this method needs matrices of {n} x {n} numbers ({8e-9 * n * n:.0f} GB '
            f'each): expected a map of at most {LARGEST_DENSE} images; take the method kbr, or '
            f'make a smaller map with `kbr map prune MAP --max-images {LARGEST_DENSE}`'
        )
