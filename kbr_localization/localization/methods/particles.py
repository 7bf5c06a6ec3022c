"""
Particle filters: what they share, and the k-nearest-neighbour observation model (NN, [NN]).

A subclass gives the likelihood of an image at the particles.
"""

from __future__ import annotations

from abc import abstractmethod

from kbr_localization import se2
from kbr_localization.localization import calibration
from kbr_localization.localization.filter.points import Points
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.belief_method import BeliefMethod
from kbr_localization.localization.methods.configs import GatedConfig, NearestNeighbourConfig
from kbr_localization.se2 import FloatArray
import numpy as np

_START_FACTOR = 4  # particles of a global start, as a multiple of those while tracking: as `kbr`
_RESAMPLE_BELOW = 0.5


class ParticleFilter(BeliefMethod):
    """
    Particles that move with the odometry and its noise; see `Localizer` for the interface.

    `size`: how many; `spread` (3,): standard deviations about the map poses, along, across and in
    heading, with which a global start draws them.
    """

    def __init__(
        self,
        kernel_map: KernelMap,
        config: GatedConfig,
        size: int,
        spread: FloatArray,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__(kernel_map, config, rng)
        self.size, self.spread = size, spread
        self.belief: Points | None = None

    @abstractmethod
    def likelihood(self, points: FloatArray, similarities: FloatArray) -> FloatArray:
        """Likelihood (m,) of an image with kernel vector (n,) at points (m, 3), up to a factor."""

    def initialize(self, pose: FloatArray, covariance: FloatArray) -> None:
        """Start from a Gaussian about a pose (3,), covariance (3, 3)."""
        self.belief = Points.gaussian(pose, covariance, self.size, self.rng)
        self.gate.reopen()

    def initialize_globally(self) -> None:
        """Start from particles all over the map."""
        chosen = self.rng.integers(len(self.kernel_map), size=_START_FACTOR * self.size)
        points = self.kernel_map.poses[chosen].copy()
        self.belief = Points(points, np.full(len(points), 1.0 / len(points)))
        self.belief.move(self.rng.standard_normal(points.shape) * self.spread)
        self.gate.reopen()

    def predict(self, odometry_increment: FloatArray) -> None:
        """Move every particle by an increment (3,) with noise."""
        self.gate.add(odometry_increment)
        self._updated = False
        if self.belief is not None:
            self.belief.move(calibration.moved(odometry_increment, self._errors))
            variances = self.kernel_map.motion_noise.variances(odometry_increment)
            deviations = np.sqrt(self.config.noise_scale * variances)
            self.belief.move(self.rng.standard_normal(self.belief.poses.shape) * deviations)

    def update_similarities(self, similarities: FloatArray) -> None:
        """Weigh the particles by a kernel vector (n,)."""
        self.gate.restart()
        self._updated = True
        if self.belief is None:
            return
        self.belief = self.belief.reweighted(self.likelihood(self.belief.poses, similarities))
        if self.belief.effective_size() < _RESAMPLE_BELOW * len(self.belief):
            self.belief = self.belief.resampled(self.size, self.rng)

    def weighted_points(self) -> Points | None:
        """Return the particles, None without a belief."""
        return self.belief


class NearestNeighbourParticleFilter(ParticleFilter):
    """NN: the likelihood is a kernel density about the k nearest images ([NN])."""

    def __init__(
        self,
        kernel_map: KernelMap,
        config: NearestNeighbourConfig | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.neighbours = config or NearestNeighbourConfig()
        h, a = self.neighbours.position_bandwidth, self.neighbours.heading_bandwidth
        spread = np.array([h, h, a])
        super().__init__(kernel_map, self.neighbours, self.neighbours.points, spread, rng)

    def likelihood(self, points: FloatArray, similarities: FloatArray) -> FloatArray:
        """Density (m,) about the k nearest images' poses, weighted by their similarity."""
        nearest = np.argsort(-similarities)[: self.neighbours.neighbours]
        weights = similarities[nearest] ** self.neighbours.power
        difference = points[:, np.newaxis] - self.kernel_map.poses[nearest]
        difference[..., 2] = se2.wrap_angle(difference[..., 2])
        density = np.exp(-0.5 * np.sum((difference / self.spread) ** 2, axis=-1))
        weights = weights / max(float(weights.sum()), 1e-300)
        return np.asarray(density @ weights + self.neighbours.outlier_rate)
