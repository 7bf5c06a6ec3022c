"""The particle filter with the k-nearest-neighbour observation model (NN, [NN])."""

from __future__ import annotations

from dataclasses import dataclass

from kbr_localization import se2
from kbr_localization.configuration import parameter, with_default
from kbr_localization.localization.filter.points import Points
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.base import GatedConfig, MapLocalizer, MethodConfig
from kbr_localization.se2 import FloatArray
import numpy as np

_START_FACTOR = 4  # particles of a global start, as a multiple of those while tracking: as `kbr`


@dataclass(frozen=True)
class NearestNeighbourConfig(GatedConfig):
    """Parameters of the particle filter with k-nearest-neighbour observations."""

    covariance_scale: float = with_default(MethodConfig, 'covariance_scale', 0.6)
    neighbours: int = parameter(
        15, 'map images that say where the robot may be', 1, 1000, search=(1, 40)
    )
    power: float = parameter(60.0, 'exponent on the similarities', 0.0, 1000.0, search=(0.5, 80.0))
    position_bandwidth: float = parameter(
        0.4, 'spread about a neighbour, metres', 1e-3, 100.0, search=(0.1, 2.0)
    )
    heading_bandwidth: float = parameter(
        0.2, 'spread about a neighbour, radians', 1e-3, 10.0, search=(0.08, 1.2)
    )
    outlier_rate: float = parameter(
        0.005, 'likelihood far from all neighbours', 1e-12, 1.0, search=(1e-5, 0.3)
    )
    points: int = parameter(1000, 'number of particles', 10, 1_000_000)


class NearestNeighbourParticleFilter(MapLocalizer):
    """
    The localizer `knn-particle`: particles that move with the odometry and its noise.

    The likelihood is a kernel density about the k nearest images.
    """

    def __init__(
        self,
        kernel_map: KernelMap,
        config: NearestNeighbourConfig | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__(kernel_map, config or NearestNeighbourConfig(), rng)
        h, a = self.config.position_bandwidth, self.config.heading_bandwidth
        self._spread = np.array([h, h, a])
        self._points: Points | None = None

    def start(self, pose: FloatArray, covariance: FloatArray) -> None:
        """Sample a Gaussian about a pose (3,), covariance (3, 3)."""
        self._points = Points.gaussian(pose, covariance, self.config.points, self.rng)

    def start_anywhere(self) -> None:
        """Draw particles about map poses."""
        count = _START_FACTOR * self.config.points
        poses = self.kernel_map.poses[self.rng.integers(len(self.kernel_map), size=count)]
        self._points = Points(poses, np.full(count, 1.0 / count))
        self._points.move(self.rng.standard_normal(poses.shape) * self._spread)

    def move(self, increment: FloatArray) -> None:
        """Move every particle by an increment (3,) with noise."""
        if self._points is not None:
            self._points.move(self.corrected(increment))
            variances = self.kernel_map.motion_noise.variances(increment)
            deviations = np.sqrt(self.config.noise_scale * variances)
            self._points.move(self.rng.standard_normal(self._points.poses.shape) * deviations)

    def weigh(self, similarities: FloatArray) -> None:
        """Weigh the particles by the density about the images with the largest values (n,)."""
        if self._points is None:
            return
        nearest = np.argsort(-similarities)[: self.config.neighbours]
        weights = similarities[nearest] ** self.config.power
        difference = self._points.poses[:, np.newaxis] - self.kernel_map.poses[nearest]
        difference[..., 2] = se2.wrap_angle(difference[..., 2])
        density = np.exp(-0.5 * np.sum((difference / self._spread) ** 2, axis=-1))
        weights = weights / max(float(weights.sum()), 1e-300)
        self._points = self._points.reweighted(density @ weights + self.config.outlier_rate)
        if self._points.effective_size() < 0.5 * len(self._points):
            self._points = self._points.resampled(self.config.points, self.rng)

    def belief(self) -> Points | None:
        """Return the particles, None without a belief."""
        return self._points
