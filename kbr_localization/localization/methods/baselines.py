"""
What the paper compares with, behind the localizer's interface.

Nearest image (NAI), dead reckoning, and the k-nearest-neighbour observation model in a particle
filter (NN, [NN]). The fully-nonparametric filter is in `nonparametric`.
"""

from __future__ import annotations

from kbr_localization import se2
from kbr_localization.localization.config import FilterConfig, NearestNeighbourConfig
from kbr_localization.localization.kbr.belief import Belief
from kbr_localization.localization.kbr.gate import UpdateGate
from kbr_localization.localization.kbr.summary import in_map_axes, nothing_known, summarize
from kbr_localization.localization.localizer import PoseEstimate
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.motion import without_drift
from kbr_localization.se2 import FloatArray
import numpy as np

_NEIGHBOURS = 5
_START_FACTOR = 4  # particles of a global start, as a multiple of those while tracking: as `kbr`


class NearestImage:
    """NAI: the pose of the most similar map image, each image on its own."""

    def __init__(self, kernel_map: KernelMap) -> None:
        self.kernel_map = kernel_map
        self._pose: FloatArray | None = None
        self._covariance = np.zeros((3, 3))
        self._similarity = 0.0
        self._updated = False

    def initialize(self, pose: FloatArray, covariance: FloatArray) -> None:
        """Report the pose until an image arrives."""
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
        why = {'best_similarity': self._similarity}
        if self._pose is None:
            return nothing_known(why, self._updated)
        return PoseEstimate(
            self._pose, self._covariance, self._similarity, 'localized', why, self._updated
        )


class DeadReckoning:
    """Odometry alone, from the initial pose or from the first image's nearest pose."""

    def __init__(self, kernel_map: KernelMap, config: FilterConfig | None = None) -> None:
        self.config = config or kernel_map.filter_config
        self._noise = kernel_map.motion_noise
        self._drift = self._noise.known_drift(self.config.odometry_drift)
        self._nearest = NearestImage(kernel_map)
        self._pose: FloatArray | None = None
        self._covariance = np.zeros((3, 3))

    def initialize(self, pose: FloatArray, covariance: FloatArray) -> None:
        """Start from a pose (3,) with covariance (3, 3)."""
        self._pose, self._covariance = np.asarray(pose, dtype=np.float64), np.asarray(covariance)

    def initialize_globally(self) -> None:
        """Start from the pose of the most similar map image."""
        self._pose = None

    def wants_image(self) -> bool:
        """Only the first image of a global start counts."""
        return self._pose is None

    def predict(self, odometry_increment: FloatArray) -> None:
        """Compose the increment."""
        if self._pose is None:
            return
        increment = without_drift(odometry_increment, self._drift)
        variances = self.config.noise_scale * self._noise.variances(increment)
        jacobian = np.eye(3)
        step = se2.compose(self._pose, increment) - self._pose
        jacobian[:2, 2] = [-step[1], step[0]]
        moved = jacobian @ self._covariance @ jacobian.T
        self._covariance = moved + in_map_axes(variances, self._pose[2])
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

    def estimate(self) -> PoseEstimate:
        """Return the composed pose; its covariance only grows."""
        if self._pose is None:
            return nothing_known({})
        return PoseEstimate(self._pose, self._covariance, 0.5, 'localized', {})


class NearestNeighbourParticleFilter:
    """NN: a particle filter whose likelihood is a kernel density about the k nearest images."""

    def __init__(
        self,
        kernel_map: KernelMap,
        config: FilterConfig | None = None,
        neighbour_config: NearestNeighbourConfig | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.kernel_map = kernel_map
        self.config = config or kernel_map.filter_config
        self.neighbours = neighbour_config or NearestNeighbourConfig()
        self.rng = rng or np.random.default_rng(0)
        self._drift = kernel_map.motion_noise.known_drift(self.config.odometry_drift)
        self.gate = UpdateGate(self.config.update_min_d, self.config.update_min_a)
        self.belief: Belief | None = None
        self._updated = False

    def initialize(self, pose: FloatArray, covariance: FloatArray) -> None:
        """Start from a Gaussian about a pose (3,), covariance (3, 3)."""
        self.belief = Belief.gaussian(pose, covariance, self.neighbours.points, self.rng)
        self.gate.reopen()

    def initialize_globally(self) -> None:
        """Start from particles all over the map."""
        size = _START_FACTOR * self.neighbours.points
        chosen = self.rng.integers(len(self.kernel_map), size=size)
        points = self.kernel_map.poses[chosen].copy()
        self.belief = Belief(points, np.full(len(points), 1.0 / len(points)))
        self.belief.disperse(self._spread() ** 2, self.rng)
        self.gate.reopen()

    def wants_image(self) -> bool:
        """Whether an update is due after the motion so far."""
        return self.gate.due()

    def predict(self, odometry_increment: FloatArray) -> None:
        """Move every particle with noise."""
        self.gate.add(odometry_increment)
        self._updated = False
        if self.belief is not None:
            self.belief.move(without_drift(odometry_increment, self._drift))
            variances = self.kernel_map.motion_noise.variances(odometry_increment)
            self.belief.disperse(self.neighbours.noise_scale * variances, self.rng)

    def update(self, descriptor: np.ndarray) -> None:
        """Weigh the particles by an image (d,)."""
        self.update_similarities(self.kernel_map.similarities(descriptor))

    def update_similarities(self, similarities: FloatArray) -> None:
        """Weigh the particles by a kernel vector (n,)."""
        self.gate.restart()
        self._updated = True
        if self.belief is None:
            return
        self.belief.reweigh(self.likelihood(self.belief.points, similarities))
        if self.belief.effective_size() < 0.5 * len(self.belief.points):
            self.belief = self.belief.resampled(self.neighbours.points, self.rng)

    def likelihood(self, points: FloatArray, similarities: FloatArray) -> FloatArray:
        """Density (m,) about the k nearest images' poses, weighted by their similarity."""
        nearest = np.argsort(-similarities)[: self.neighbours.neighbours]
        share = similarities[nearest] ** self.neighbours.power
        difference = points[:, np.newaxis] - self.kernel_map.poses[nearest]
        difference[..., 2] = se2.wrap_angle(difference[..., 2])
        density = np.exp(-0.5 * np.sum((difference / self._spread()) ** 2, axis=-1))
        share = share / max(float(share.sum()), 1e-300)
        return np.asarray(density @ share + self.neighbours.outlier_rate)

    def estimate(self) -> PoseEstimate:
        """Summarize the particles about their highest mode."""
        if self.belief is None:
            return nothing_known({}, self._updated)
        return summarize(self.belief, self.config, np.zeros(3), 1.0, {}, self._updated)

    def particles(self, size: int) -> FloatArray:
        """Poses (size, 3) drawn from the particles."""
        if self.belief is None:
            return np.zeros((0, 3))
        return self.belief.resampled(size, np.random.default_rng(0)).points

    def _spread(self) -> FloatArray:
        h, a = self.neighbours.position_bandwidth, self.neighbours.heading_bandwidth
        return np.array([h, h, a])
