"""
Nearest image (NAI), dead reckoning, and a particle filter that combines the two.

The particle filter has the k-nearest-neighbour observation model (NN, [NN]).
"""

from __future__ import annotations

from dataclasses import dataclass

from kbr_localization import se2
from kbr_localization.configuration import parameter, validate, with_default
from kbr_localization.localization.filter.covariance import in_map_axes
from kbr_localization.localization.filter.points import Points
from kbr_localization.localization.localizer import nothing_known, PoseEstimate
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.base import (
    GatedConfig,
    MapLocalizer,
    MethodConfig,
    odometry_calibration,
)
from kbr_localization.se2 import FloatArray
import numpy as np


@dataclass(frozen=True)
class NearestConfig:
    """The nearest image (NAI) has no parameters."""


@dataclass(frozen=True)
class DeadReckoningConfig:
    """Parameters of dead reckoning; raises ConfigurationError for a value out of range."""

    odometry_calibration: str = odometry_calibration()
    noise_scale: float = parameter(10.0, 'factor on the motion variances', 1e-3, 1e4)

    def __post_init__(self) -> None:
        validate(self)


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


class NearestImage(MapLocalizer):
    """NAI: the pose of the most similar map image, each image on its own."""

    def __init__(
        self,
        kernel_map: KernelMap,
        config: NearestConfig | DeadReckoningConfig | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__(kernel_map, config or NearestConfig(), rng)
        self.pose: FloatArray | None = None
        self.covariance = np.zeros((3, 3))

    def start(self, pose: FloatArray, covariance: FloatArray) -> None:
        """Report the pose (3,) with covariance (3, 3) until an image arrives."""
        self.pose, self.covariance = np.asarray(pose, dtype=np.float64), np.asarray(covariance)

    def start_anywhere(self) -> None:
        """Forget the pose."""
        self.pose = None

    def move(self, increment: FloatArray) -> None:
        """Odometry is not used."""

    def weigh(self, similarities: FloatArray) -> None:
        """Take the pose of the most similar image, with the spread of the five nearest."""
        nearest = np.argsort(-similarities)[:5]
        self.pose = self.kernel_map.poses[nearest[0]].copy()
        deviation = self.kernel_map.poses[nearest] - self.pose
        deviation[:, 2] = se2.wrap_angle(deviation[:, 2])
        self.covariance = deviation.T @ deviation / len(nearest) + 1e-4 * np.eye(3)

    def belief(self) -> Points | None:
        """Return None: there is no belief but the pose."""
        return None

    def confidence(self) -> float:
        """Return the similarity of the most similar image."""
        return self.diagnostics.get('best_similarity', 0.0)

    def estimate(self) -> PoseEstimate:
        """Return the pose and its covariance, always localized."""
        if self.pose is None:
            return nothing_known(self.diagnostics, self._updated)
        return PoseEstimate(
            self.pose,
            self.covariance,
            self.confidence(),
            'localized',
            dict(self.diagnostics),
            self._updated,
        )


class DeadReckoning(NearestImage):
    """Odometry alone, from the initial pose or from the first image's nearest pose."""

    def __init__(
        self,
        kernel_map: KernelMap,
        config: DeadReckoningConfig | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__(kernel_map, config or DeadReckoningConfig(), rng)

    def wants_image(self) -> bool:
        """Whether there is no pose: only the first image of a global start counts."""
        return self.pose is None

    def wants_image_after(self, odometry_increment: FloatArray) -> bool:
        """Whether there is no pose, however far the robot moves."""
        return self.pose is None

    def move(self, increment: FloatArray) -> None:
        """Compose an increment (3,); the covariance only grows."""
        if self.pose is None:
            return
        motion = self.corrected(increment)
        variances = self.config.noise_scale * self.kernel_map.motion_noise.variances(motion)
        jacobian = np.eye(3)
        step = se2.compose(self.pose, motion) - self.pose
        jacobian[:2, 2] = [-step[1], step[0]]
        carried = jacobian @ self.covariance @ jacobian.T
        self.covariance = carried + in_map_axes(np.diag(variances), self.pose[2])
        self.pose = se2.compose(self.pose, motion)

    def weigh(self, similarities: FloatArray) -> None:
        """Take the start from an image when there is none."""
        if self.pose is None:
            super().weigh(similarities)

    def confidence(self) -> float:
        """Return one half: the error of the odometry is unknown."""
        return 0.5


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
        count = 4 * self.config.points  # as `kbr`
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
