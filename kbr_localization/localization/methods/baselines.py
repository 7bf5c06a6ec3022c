"""
Nearest image (NAI), dead reckoning, and a particle filter that combines the two.

The particle filter has the k-nearest-neighbour observation model (NN, [NN]).
"""

from typing import Any

from kbr_localization import se2
from kbr_localization.localization.filter.hypotheses import Points
from kbr_localization.localization.localizer import PoseEstimate, unknown_pose
from kbr_localization.localization.methods.base import config_class, GATED, MapLocalizer
from kbr_localization.se2 import FloatArray
import numpy as np


class NearestImage(MapLocalizer):
    """The localizer `nearest` (NAI): the pose of the map image most similar to the last image."""

    parameters = config_class('NearestConfig')
    pose: FloatArray | None = None

    def start(self, pose: FloatArray | None, covariance: FloatArray | None) -> None:
        """Report the pose (3,) with covariance (3, 3), if any, until an image arrives."""
        self.pose = None if pose is None else np.array(pose, dtype=np.float64)
        self.covariance = np.zeros((3, 3)) if covariance is None else np.array(covariance)

    def move(self, increment: FloatArray) -> None:
        """Odometry is not used."""

    def weigh(self, similarities: FloatArray) -> None:
        """Take the pose of the most similar image, with the spread of the five nearest."""
        nearest = np.argsort(-similarities)[:5]
        self.pose = self.kernel_map.poses[nearest[0]].copy()
        deviation = se2.difference(self.kernel_map.poses[nearest], self.pose)
        self.covariance = deviation.T @ deviation / len(nearest) + 1e-4 * np.eye(3)

    def belief(self) -> Points | None:
        return None

    def confidence(self) -> float:
        return self.diagnostics.get('best_similarity', 0.0)

    def estimate(self) -> PoseEstimate:
        details = dict(self.diagnostics), self._updated
        if self.pose is None:
            return unknown_pose(*details)
        return PoseEstimate(self.pose, self.covariance, self.confidence(), 'localized', *details)


class DeadReckoning(NearestImage):
    """Odometry alone, from the initial pose or from the pose nearest to the first image."""

    parameters = config_class('DeadReckoningConfig', noise_scale=10.0)

    def wants_image(self) -> bool:
        """Whether there is no pose: only a global start uses an image, the first one."""
        return self.pose is None

    def move(self, increment: FloatArray) -> None:
        """Compose an increment (3,); the covariance only grows."""
        if self.pose is None:
            return
        motion = self.corrected(increment)
        variances = self.config.noise_scale * self.kernel_map.motion_noise.variances(motion)
        before, self.pose = self.pose, se2.compose(self.pose, motion)
        jacobian = se2.adjoint((before - self.pose) * np.array([1.0, 1.0, 0.0]))
        carried = jacobian @ self.covariance @ jacobian.T
        turn = se2.rotation(before[2])
        self.covariance = carried + turn @ np.diag(variances) @ turn.T

    def weigh(self, similarities: FloatArray) -> None:
        if self.pose is None:
            super().weigh(similarities)

    def confidence(self) -> float:
        return 0.5  # the error of the odometry is unknown


class NearestNeighbourParticleFilter(MapLocalizer):
    """The localizer `knn-particle`: particles weighed by a density about the k nearest images."""

    parameters = config_class(
        'NearestNeighbourConfig',
        **GATED | {'covariance_scale': 0.6},
        neighbours=15,
        power=60.0,
        position_bandwidth=0.4,
        heading_bandwidth=0.2,
        outlier_rate=0.005,
        points=1000,
    )

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        h, a = self.config.position_bandwidth, self.config.heading_bandwidth
        self._spread = np.array([h, h, a])
        self._points: Points | None = None

    def start(self, pose: FloatArray | None, covariance: FloatArray | None) -> None:
        """Sample a Gaussian about a pose (3,), covariance (3, 3), or draw about map poses."""
        if pose is not None and covariance is not None:
            self._points = Points.gaussian(pose, covariance, self.config.points, self.rng)
            return
        count = 4 * self.config.points  # as `kbr`
        poses = self.kernel_map.poses[self.rng.integers(len(self.kernel_map), size=count)]
        self._points = Points(poses, np.full(count, 1.0 / count))
        self._points.move(self.rng.standard_normal(poses.shape) * self._spread)

    def move(self, increment: FloatArray) -> None:
        if self._points is not None:
            self.drive(self._points, increment)

    def weigh(self, similarities: FloatArray) -> None:
        """Weigh the particles by a density about the poses of the most similar images."""
        if self._points is None:
            return
        nearest = np.argsort(-similarities)[: self.config.neighbours]
        weights = similarities[nearest] ** self.config.power
        poses = self._points.poses[:, np.newaxis]
        away = se2.difference(poses, self.kernel_map.poses[nearest]) / self._spread
        density = np.exp(-0.5 * np.sum(away**2, axis=-1))
        weights = weights / max(float(weights.sum()), 1e-300)
        posterior = self._points.weights * (density @ weights + self.config.outlier_rate)
        self._points.weights = posterior / posterior.sum()
        if self._points.effective_size() < 0.5 * len(self._points):
            self._points = self._points.resampled(self.config.points, self.rng)

    def belief(self) -> Points | None:
        return self._points
