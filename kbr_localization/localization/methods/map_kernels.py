"""The map under a method's kernels: what the methods with a belief on the map poses share."""

from __future__ import annotations

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
from kbr_localization.localization.methods.summary import gaps_between
from kbr_localization.se2 import FloatArray
import numpy as np

LARGEST_DENSE = 8000
"""Map images up to which matrices of all pairs of them are made."""

_TRACE = 1e-8  # of the largest weight: what is smaller counts as zero in a prior


class MapKernels:
    """
    Gaussian kernel k_X on (x, y, cos, sin) and image kernel k_Y, with the map's Gram matrices.

    `kernel`: k_X, normalised as a density (`pose_kernel`); `points` (n, 4); `gram_x`, `gram_y`
    (n, n); `gaps` (3, 3): covariance of a pose about its map pose; `sharpening` tau: k_Y =
    exp((k - 1) / tau), or k itself for 0. Raises LocalizationError for a map of more than
    `LARGEST_DENSE` images.
    """

    def __init__(
        self, kernel_map: KernelMap, kernel: GaussianKernel, sharpening: float = 0.0
    ) -> None:
        refuse_large(kernel_map)
        self.kernel = kernel
        self.sharpening = sharpening
        self.points = se2.to_plane_and_circle(kernel_map.poses)
        self.gram_x = self.kernel.gram(self.points)
        rows = kernel_map.describer.cross_gram(kernel_map.descriptors, kernel_map.descriptors)
        self.gram_y = self.image_kernel(np.asarray(rows, dtype=np.float64))
        self.gaps = gaps_between(kernel_map.poses)

    def regularise(self, ridge: float) -> None:
        """Factor G_X + n epsilon I, `ridge` in units of k_X(x, x)."""
        n = len(self.points)
        self.regularised_gram = regularise(self.gram_x, ridge * self.kernel.peak(4) / n)

    def project(self, kernel_mean_at_map: FloatArray) -> FloatArray:
        """NP-KSR: weights mu (n,) from the values of a kernel mean at the map poses."""
        return nonparametric_sum_rule(self.regularised_gram, kernel_mean_at_map)

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
        n = len(self.points)
        weights = conditional_mean(regularise(self.gram_y, delta / n), k_y)
        return normalise(np.maximum(weights, 0.0) + 1e-12)


def pose_kernel(position: float, heading: float, normalised: bool = True) -> GaussianKernel:
    """Gaussian kernel on (x, y, cos, sin) with bandwidths in metres and of the circle."""
    scale = [position**2, position**2, heading**2, heading**2]
    return GaussianKernel(scale, normalised=normalised)


def without_traces(mu: FloatArray) -> FloatArray:
    """
    Prior weights mu (n,) with zeros in place of what is 1e-8 of the largest or less.

    The Bayes rules give such a point no weight worth mentioning and cost O(m^3) for the m points
    that are not zero: while tracking, a few of the map's.
    """
    size = np.abs(mu)
    return np.where(size > _TRACE * size.max(), mu, 0.0)


def refuse_large(kernel_map: KernelMap) -> None:
    """Raise LocalizationError where matrices of all pairs of images would not fit."""
    n = len(kernel_map)
    if n > LARGEST_DENSE:
        raise LocalizationError(
            f'this method needs matrices of {n} x {n} numbers ({8e-9 * n * n:.0f} GB '
            f'each): expected a map of at most {LARGEST_DENSE} images; take the method kbr, or '
            f'make a smaller map with `kbr map prune MAP --max-images {LARGEST_DENSE}`'
        )
