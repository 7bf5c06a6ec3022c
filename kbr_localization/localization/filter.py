"""
The kernel Bayes filter: [MbKSR] Algorithm 1 with a belief that may leave the map's poses.

Predict by the model-based kernel sum rule, composed analytically over the increments since the
last update; update by the kernel Bayes rule on the moved points (see `observation`).
"""

from __future__ import annotations

from kbr_localization import se2
from kbr_localization.localization.belief import Belief
from kbr_localization.localization.config import FilterConfig
from kbr_localization.localization.gate import UpdateGate
from kbr_localization.localization.kernel_map import KernelMap
from kbr_localization.localization.localizer import PoseEstimate
from kbr_localization.localization.observation import ObservationModel
from kbr_localization.localization.similarity import FullSimilarity, Similarity
from kbr_localization.localization.summary import nothing_known, summarize
from kbr_localization.se2 import FloatArray
import numpy as np

_START_FACTOR = 4  # points of a global start, as a multiple of the points while tracking
_START_SPREAD = 0.6  # of a new point about its map pose, in bandwidths
_RESAMPLE_BELOW = 0.5
_EVIDENCE_MEMORY = 0.7


class KernelBayesFilter:
    """The localizer `kbr`: see `Localizer` for its interface."""

    def __init__(
        self,
        kernel_map: KernelMap,
        config: FilterConfig | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.kernel_map = kernel_map
        self.config = config or kernel_map.filter_config
        self.rng = rng or np.random.default_rng(0)
        self.observation = ObservationModel(kernel_map, self.config)
        self.gate = UpdateGate(self.config.update_min_d, self.config.update_min_a)
        self.belief: Belief | None = None
        self._seekers: Belief | None = None
        self._seekers_mass = 0.0
        self._pending = np.zeros(3)
        self._global_start = False
        self._evidence = 0.0
        self._updated = False
        self.why: dict[str, float] = {'updates': 0.0, 'recoveries': 0.0}

    def initialize(self, pose: FloatArray, covariance: FloatArray) -> None:
        """Start from a Gaussian about a pose (3,), covariance (3, 3)."""
        self._reset()
        self.belief = Belief.gaussian(pose, covariance, self.config.points, self.rng)
        self._evidence = 1.0

    def initialize_globally(self) -> None:
        """Start anywhere on the map: the first image draws the points."""
        self._reset()
        self._global_start = True

    def follow_map(self, kernel_map: KernelMap) -> None:
        """Go on with the belief on a map that has more images at its end."""
        self.kernel_map = kernel_map
        self.observation = ObservationModel(kernel_map, self.config)

    def wants_image(self) -> bool:
        """Whether the robot has moved enough since the last update, or there was none."""
        return self.gate.due()

    def predict(self, odometry_increment: FloatArray) -> None:
        """Move the points; their noise is drawn before the next update (Mb-KSR, composed)."""
        self.gate.add(odometry_increment)
        self._updated = False
        if self.belief is None:
            return
        self._pending += self.config.noise_scale * self.kernel_map.motion_noise.variances(
            odometry_increment
        )
        for belief in self._beliefs():
            belief.points = se2.compose(belief.points, odometry_increment)
        if not self.config.multi_step or self.gate.overdue():
            self._disperse()

    def update(self, descriptor: np.ndarray) -> None:
        """Weigh the points by an image (d,): the kernel Bayes rule."""
        self._take_in(self.kernel_map.compare(descriptor, thorough=self._global_start))

    def update_similarities(self, similarities: FloatArray) -> None:
        """Update by the kernel vector (n,) of an image."""
        self._take_in(FullSimilarity(similarities))

    def estimate(self) -> PoseEstimate:
        """Summarize the belief about its highest mode."""
        if self.belief is None:
            return nothing_known(self.why, self._updated)
        why = self.why | {'recovery_mass': self._seekers_mass}
        pending = self.config.covariance_scale * self._pending
        return summarize(self.belief, self.config, pending, self._evidence, why, self._updated)

    def particles(self, size: int) -> FloatArray:
        """Poses (size, 3) drawn from the belief; none without one."""
        if self.belief is None:
            return np.zeros((0, 3))
        # its own generator: who looks at the belief must not change its course
        return self.belief.resampled(size, np.random.default_rng(0)).points

    def _take_in(self, similarity: Similarity) -> None:
        self.gate.restart()
        self._updated = True
        self.why['updates'] += 1
        if self._global_start:
            self._start(similarity)
        elif self.belief is not None:
            self._disperse()
            for belief in self._beliefs():
                # all that may matter is computed first, because values count relative to the best
                similarity.at(self.observation.in_reach(belief.points))
            self._weigh(similarity)
        self.why['best_similarity'] = similarity.best

    def _reset(self) -> None:
        self.belief, self._seekers = None, None
        self._seekers_mass, self._evidence = 0.0, 0.0
        self._pending = np.zeros(3)
        self._global_start = False
        self.gate.reopen()

    def _beliefs(self) -> list[Belief]:
        return [belief for belief in (self.belief, self._seekers) if belief is not None]

    def _disperse(self) -> None:
        for belief in self._beliefs():
            belief.disperse(self._pending, self.rng)
        self._pending = np.zeros(3)

    def _start(self, similarity: Similarity) -> None:
        """Global start: draw points where the image could be, weigh them, keep the usual many."""
        size = _START_FACTOR * self.config.points
        born = self._born(similarity, size)
        factors = self._factors(born.points, similarity, self.config.initial_outlier_rate)
        born.reweigh(factors)
        self.belief = born.resampled(self.config.points, self.rng)
        self._global_start = False
        self._evidence = 1.0

    def _born(self, similarity: Similarity, size: int) -> Belief:
        """
        Points about candidates' poses, weighted as a sample of the uniform law on these.

        Half of them are drawn from the conditional mean of the pose given the image, which is
        where they are needed; importance weights make up for that.
        """
        candidates = self.observation.plausible(similarity)
        n = len(candidates)
        likely = self.observation.sharpened(similarity.at(candidates), similarity.best)
        proposal = 0.5 / n + 0.5 * likely / likely.sum()
        chosen = self.rng.choice(n, size=size, p=proposal)
        h, a = self.config.position_bandwidth, self.config.heading_bandwidth
        spread = _START_SPREAD * np.array([h, h, a])
        centres = self.kernel_map.poses[candidates[chosen]]
        points = centres + self.rng.standard_normal((size, 3)) * spread
        points[:, 2] = se2.wrap_angle(points[:, 2])
        weights = 1.0 / (n * proposal[chosen])
        return Belief(points, weights / weights.sum())

    def _factors(
        self, points: FloatArray, similarity: Similarity, outlier_rate: float
    ) -> FloatArray:
        evidence = self.observation.evidence(points, similarity)
        return np.minimum(evidence, 1.0) + outlier_rate

    def _weigh(self, similarity: Similarity) -> None:
        assert self.belief is not None
        factors = self._factors(self.belief.points, similarity, self.config.outlier_rate)
        evidence = self.belief.reweigh(factors)
        self._evidence = _EVIDENCE_MEMORY * self._evidence + (1.0 - _EVIDENCE_MEMORY) * evidence
        if self.config.recovery_points and self.config.recovery_rate > 0.0:
            self._seek(similarity, evidence)
        if self.belief.effective_size() < _RESAMPLE_BELOW * len(self.belief.points):
            self.belief = self.belief.resampled(self.config.points, self.rng)

    def _seek(self, similarity: Similarity, evidence: float) -> None:
        """
        Follow the hypothesis that the robot was carried elsewhere.

        Its prior weight is `recovery_rate` per update; it takes over when it explains the images
        better than the belief by more than that.
        """
        # the rate is that of the whole map: places that the image does not point at drop out
        share = len(self.observation.plausible(similarity)) / similarity.size
        rate, size = share * self.config.recovery_rate, self.config.recovery_points
        born = self._born(similarity, size)
        if self._seekers is None:
            self._seekers, self._seekers_mass = born, rate
        else:
            total = self._seekers_mass + rate
            weights = [self._seekers.weights * self._seekers_mass, born.weights * rate]
            points = np.concatenate([self._seekers.points, born.points])
            self._seekers = Belief(points, np.concatenate(weights) / total)
            self._seekers_mass = total
        factors = self._factors(self._seekers.points, similarity, self.config.outlier_rate)
        odds = self._seekers_mass * self._seekers.reweigh(factors)
        self._seekers_mass = odds / (odds + (1.0 - min(self._seekers_mass, 0.5)) * evidence)
        self._seekers = self._seekers.resampled(size, self.rng)
        if self._seekers_mass > 0.5:
            self._recover()

    def _recover(self) -> None:
        assert self._seekers is not None
        self.belief = self._seekers.resampled(self.config.points, self.rng)
        self._seekers, self._seekers_mass = None, 0.0
        self._evidence = 1.0
        self.why['recoveries'] += 1
