"""
The kernel Bayes filter: [MbKSR] Algorithm 1 with a belief that may leave the map's poses.

Predict by the model-based kernel sum rule, composed analytically over the increments since the
last update; update by the kernel Bayes rule on the moved points (see `observation`).
"""

from __future__ import annotations

from kbr_localization import se2
from kbr_localization.localization.config import FilterConfig
from kbr_localization.localization.kbr.belief import Belief
from kbr_localization.localization.kbr.calibration import Calibration
from kbr_localization.localization.kbr.drift import DriftFilter
from kbr_localization.localization.kbr.gate import UpdateGate
from kbr_localization.localization.kbr.observation import ObservationModel
from kbr_localization.localization.kbr.outliers import OutlierRate
from kbr_localization.localization.kbr.recovery import draw_from_image, EXPLAINED, Recovery
from kbr_localization.localization.kbr.settling import Settling
from kbr_localization.localization.kbr.summary import (
    about_mode,
    nothing_known,
    OTHER_WAY,
    summarize,
)
from kbr_localization.localization.localizer import PoseEstimate
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.similarity import FullSimilarity, Similarity
from kbr_localization.localization.motion import PendingNoise
from kbr_localization.se2 import FloatArray
import numpy as np

_START_FACTOR = 4  # points of a global start, as a multiple of the points while tracking
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
        self.calibration = Calibration(self.observation)
        self.outliers = OutlierRate(self.observation, self.config)
        self.recovery = Recovery(self.observation, self.config, self.rng)
        self._pending = PendingNoise(
            kernel_map.motion_noise, self.config.noise_scale, self.config.motion_law
        )
        self._drift = DriftFilter(kernel_map.motion_noise, self.config.odometry_drift)
        self._settling = Settling(self.config)
        self._sure = False
        self._global_start = False
        self._evidence = 0.0
        self._updated = False
        self.why: dict[str, float] = {'updates': 0.0, 'recoveries': 0.0}

    def initialize(self, pose: FloatArray, covariance: FloatArray) -> None:
        """Start from a Gaussian about a pose (3,), covariance (3, 3)."""
        self._reset()
        self.belief = Belief.gaussian(pose, covariance, self.config.points, self.rng)
        self.recovery.trust_belief()
        self._evidence = 1.0

    def initialize_globally(self) -> None:
        """Start anywhere on the map: the first image draws the points."""
        self._reset()
        self._global_start = True
        self.gate.share = self.config.start_share

    def follow_map(self, kernel_map: KernelMap) -> None:
        """Go on with the belief on a map that has more images at its end."""
        self.kernel_map = kernel_map
        self.observation = ObservationModel(kernel_map, self.config)
        self.recovery.observation = self.observation
        self.calibration.observation = self.observation
        self.outliers.observation = self.observation

    def wants_image(self) -> bool:
        """Whether the robot has moved enough since the last update, or there was none."""
        return self.gate.due()

    def predict(self, odometry_increment: FloatArray) -> None:
        """Move the points; their noise is drawn before the next update (Mb-KSR, composed)."""
        self.gate.add(odometry_increment)
        self._updated = False
        if self.belief is None:
            return
        self._pending.add(odometry_increment)
        self._drift.add(odometry_increment)
        for belief in self._beliefs():
            belief.move(self._drift.corrected(odometry_increment, belief))
        if not self.config.multi_step or self.gate.overdue():
            self._disperse()

    def update(self, descriptor: np.ndarray) -> None:
        """Weigh the points by an image (d,): the kernel Bayes rule."""
        self._disperse()
        self._take_in(self._compare(descriptor))

    def update_similarities(self, similarities: FloatArray) -> None:
        """Update by the kernel vector (n,) of an image."""
        self._disperse()
        self._take_in(FullSimilarity(similarities))

    def estimate(self) -> PoseEstimate:
        """Summarize the belief about its highest mode."""
        if self.belief is None:
            return nothing_known(self.why, self._updated)
        why = self.why | {
            'recovery_mass': self.recovery.mass,
            'explained_images': float(self.recovery.explained),
            'odometry_drift': self._drift.mean(self.belief),
        }
        pending, wider = self._pending.variances, self.calibration.widening
        proven = self.recovery.proven
        return summarize(
            self.belief, self.config, pending, self._evidence, why, self._updated, wider, proven
        )

    def particles(self, size: int) -> FloatArray:
        """Poses (size, 3) drawn from the belief; none without one."""
        if self.belief is None:
            return np.zeros((0, 3))
        # its own generator: who looks at the belief must not change its course
        return self.belief.resampled(size, np.random.default_rng(0)).points

    def _compare(self, descriptor: np.ndarray) -> Similarity:
        """Compare with the map, on a large one as far as the points reach."""
        nearby = self._reached() if self.kernel_map.is_large else None
        return self.kernel_map.compare(descriptor, self._global_start, nearby)

    def _take_in(self, similarity: Similarity) -> None:
        self.gate.restart()
        self._updated = True
        self.why['updates'] += 1
        self.why['outlier_rate'] = outlier_rate = self.outliers.take_in(similarity)
        if self._global_start:
            self._start(similarity)
        elif self.belief is not None:
            self._weigh(similarity, outlier_rate)
        if not self._sure and self._is_sure():
            self._sure = True
            self.gate.share = 1.0
        if self._sure:
            self._settling.calm()
        self.calibration.see(self.observation.whole_best(similarity))
        self.why['best_similarity'] = similarity.best

    def _reset(self) -> None:
        self.belief = None
        self.recovery.forget()
        self.calibration.forget()
        self.outliers.forget()
        self._evidence = 0.0
        self._pending.clear()
        self._drift.reset()
        self._settling.stop()
        self._sure = False
        self._global_start = False
        self.gate.reopen()
        self.gate.share = 1.0

    def _is_sure(self) -> bool:
        """Whether the belief lies about one place, as it does once a global start is over."""
        if self.belief is None:
            return False
        return about_mode(self.belief, self.config)[1] >= self.config.localized_mass

    def _beliefs(self) -> list[Belief]:
        return [belief for belief in (self.belief, self.recovery.belief) if belief is not None]

    def _reached(self) -> np.ndarray:
        """Map poses that matter: compared first, because values count relative to the best one."""
        found = [self.observation.in_reach(belief.points) for belief in self._beliefs()[::-1]]
        return np.unique(np.concatenate([np.zeros(0, dtype=np.intp), *found]))

    def _disperse(self) -> None:
        variance = float(self._pending.variances[2])
        for belief in self._beliefs():
            errors = self._pending.draw(len(belief.points), self.rng)
            self._drift.share(errors, belief, variance, self.rng)
            belief.move(errors)
        self._drift.settle(variance)
        self._pending.clear()

    def _start(self, similarity: Similarity) -> None:
        """Global start: draw points where the image could be, weigh them, keep the usual many."""
        size = _START_FACTOR * self.config.points
        born = draw_from_image(self.observation, similarity, size, self.rng)
        factors = self.observation.factors(
            born.points, similarity, self.config.initial_outlier_rate
        )
        born.reweigh(factors)
        self.belief = born.resampled(self.config.points, self.rng)
        self._global_start = False
        self._settling.begin()
        self._evidence = 1.0

    def _weigh(self, similarity: Similarity, outlier_rate: float) -> None:
        assert self.belief is not None
        if np.any(self._settling.variances > 0.0):
            self.belief.disperse(self._settling.variances, self.rng)
        explained = self._reweigh(self.belief, similarity, outlier_rate)
        recovery = self.recovery
        recovery.witness(explained)
        in_gap = 0.0 if explained > EXPLAINED else recovery.in_gap(self.belief)
        self._judge(similarity, explained, in_gap)
        found = None
        if recovery.is_on:
            found = recovery.weigh(similarity, self.belief, explained, in_gap, outlier_rate)
        if found is not None and self._is_elsewhere(found):
            self._recover(found)
        elif self.belief.effective_size() < _RESAMPLE_BELOW * len(self.belief.points):
            self.belief = self.belief.resampled(self.config.points, self.rng)

    def _judge(self, similarity: Similarity, explained: float, in_gap: float) -> None:
        """Smooth how well the belief explains images; one that says nothing changes little."""
        trust = self.observation.trust_in(similarity)
        expected = max(explained, trust * in_gap)
        self._evidence += (1.0 - _EVIDENCE_MEMORY) * (expected - trust * self._evidence)

    def _reweigh(self, belief: Belief, similarity: Similarity, outlier_rate: float) -> float:
        """Weigh by what the points explain and by supervision; return what all explain."""
        config = self.config
        weights = belief.weights if config.importance_weighted else None
        explained = self.observation.explained(belief.points, similarity, weights)
        evidence = float(belief.weights @ explained)
        factors = explained + self.observation.anywhere(similarity, outlier_rate)
        if config.odometry_supervision > 0.0:
            predicted = belief.mode(config.mode_bandwidth)[np.newaxis]
            pull = self.observation.kernel.cross_gram(belief.points, predicted)[:, 0]
            factors = factors + config.odometry_supervision * pull
        belief.reweigh(factors)
        return evidence

    def _is_elsewhere(self, found: Belief) -> bool:
        """Whether points are about another place than the belief, or face another way."""
        assert self.belief is not None
        width = self.config.mode_bandwidth
        apart = se2.between(self.belief.mode(width), found.mode(width))
        elsewhere = bool(np.hypot(apart[0], apart[1]) > self.config.localized_radius)
        if not (elsewhere or abs(apart[2]) > OTHER_WAY):
            self.recovery.drop()  # the belief itself gets there
            return False
        return True

    def _recover(self, found: Belief) -> None:
        self.belief = found.resampled(self.config.points, self.rng)
        self.recovery.forget()
        self._settling.begin()
        self._sure = False
        self._evidence = 1.0
        self.why['recoveries'] += 1
