"""
The two methods that say what images and odometry are worth alone.

Nearest image (NAI) and dead reckoning, behind the localizer's interface.
"""

from __future__ import annotations

from kbr_localization import se2
from kbr_localization.localization import calibration
from kbr_localization.localization.filter.covariance import in_map_axes
from kbr_localization.localization.localizer import Localizer, nothing_known, PoseEstimate
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.configs import DeadReckoningConfig
from kbr_localization.se2 import FloatArray
import numpy as np

_NEIGHBOURS = 5


class NearestImage(Localizer):
    """NAI: the pose of the most similar map image, each image on its own."""

    def __init__(self, kernel_map: KernelMap) -> None:
        self.kernel_map = kernel_map
        self._pose: FloatArray | None = None
        self._covariance = np.zeros((3, 3))
        self._similarity = 0.0
        self._updated = False

    def initialize(self, pose: FloatArray, covariance: FloatArray) -> None:
        """Report the pose (3,) with covariance (3, 3) until an image arrives."""
        self._pose, self._covariance = np.asarray(pose, dtype=np.float64), covariance

    def initialize_globally(self) -> None:
        """Forget the pose."""
        self._pose = None

    def wants_image(self) -> bool:
        """Every image counts."""
        return True

    def predict(self, odometry_increment: FloatArray) -> None:
        """Odometry is not used."""
        self._updated = False

    def update(self, descriptor: np.ndarray) -> None:
        """Look up the most similar image."""
        self.update_similarities(self.kernel_map.similarities(descriptor))

    def update_similarities(self, similarities: FloatArray) -> None:
        """Look up the largest entry of a kernel vector (n,)."""
        nearest = np.argsort(-similarities)[:_NEIGHBOURS]
        self._pose = self.kernel_map.poses[nearest[0]].copy()
        deviation = self.kernel_map.poses[nearest] - self._pose
        deviation[:, 2] = se2.wrap_angle(deviation[:, 2])
        self._covariance = deviation.T @ deviation / len(nearest) + 1e-4 * np.eye(3)
        self._similarity = float(similarities[nearest[0]])
        self._updated = True

    def estimate(self) -> PoseEstimate:
        """Return the pose; its covariance is the spread of the most similar images' poses."""
        diagnostics = {'best_similarity': self._similarity}
        if self._pose is None:
            return nothing_known(diagnostics, self._updated)
        return PoseEstimate(
            self._pose, self._covariance, self._similarity, 'localized', diagnostics, self._updated
        )


class DeadReckoning(Localizer):
    """Odometry alone, from the initial pose or from the first image's nearest pose."""

    def __init__(self, kernel_map: KernelMap, config: DeadReckoningConfig | None = None) -> None:
        self.config = config or DeadReckoningConfig()
        self._noise = kernel_map.motion_noise
        how = self.config.odometry_calibration
        self._errors = kernel_map.calibration.for_a_drive(how).values
        self._nearest = NearestImage(kernel_map)
        self._pose: FloatArray | None = None
        self._covariance = np.zeros((3, 3))
        self._updated = False

    def initialize(self, pose: FloatArray, covariance: FloatArray) -> None:
        """Start from a pose (3,) with covariance (3, 3)."""
        self._pose, self._covariance = np.asarray(pose, dtype=np.float64), np.asarray(covariance)
        self._updated = False

    def initialize_globally(self) -> None:
        """Start from the pose of the most similar map image."""
        self._pose, self._updated = None, False

    def wants_image(self) -> bool:
        """Only the first image of a global start counts."""
        return self._pose is None

    def predict(self, odometry_increment: FloatArray) -> None:
        """Compose an increment (3,)."""
        self._updated = False
        if self._pose is None:
            return
        increment = calibration.moved(odometry_increment, self._errors)
        variances = self.config.noise_scale * self._noise.variances(increment)
        jacobian = np.eye(3)
        step = se2.compose(self._pose, increment) - self._pose
        jacobian[:2, 2] = [-step[1], step[0]]
        moved = jacobian @ self._covariance @ jacobian.T
        self._covariance = moved + in_map_axes(np.diag(variances), self._pose[2])
        self._pose = se2.compose(self._pose, increment)

    def update(self, descriptor: np.ndarray) -> None:
        """Take the start from an image when there is none."""
        self.update_similarities(self._nearest.kernel_map.similarities(descriptor))

    def update_similarities(self, similarities: FloatArray) -> None:
        """Take the start from a kernel vector (n,) when there is none."""
        if self._pose is None:
            self._nearest.update_similarities(similarities)
            start = self._nearest.estimate()
            self.initialize(start.pose, start.covariance)
            self._updated = True

    def estimate(self) -> PoseEstimate:
        """Return the composed pose; its covariance only grows."""
        if self._pose is None:
            return nothing_known({})
        return PoseEstimate(self._pose, self._covariance, 0.5, 'localized', {}, self._updated)
