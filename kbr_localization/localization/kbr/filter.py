"""
The kernel Bayes filter: [MbKSR] with a belief that may leave the map's poses.

The belief is a kernel mean on moving points. It is predicted by the model-based kernel sum rule,
whose noise is composed over the steps since the last update and drawn for every point (a kernel
Monte Carlo filter, Kanagawa et al., AAAI 2014), and updated by the kernel Bayes rule off the map.
"""

from __future__ import annotations

from dataclasses import replace

from kbr_localization.localization.calibration import Calibration
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.kbr.belief import Belief
from kbr_localization.localization.kbr.estimate import are_apart, summarize
from kbr_localization.localization.kbr.gate import GatedLocalizer, UpdateGate
from kbr_localization.localization.kbr.likelihood import Likelihood
from kbr_localization.localization.kbr.odometry import OdometryCalibration
from kbr_localization.localization.kbr.starting import (
    drawn_about,
    drawn_from_image,
    Regularisation,
)
from kbr_localization.localization.kbr.supervision import Supervision
from kbr_localization.localization.localizer import FormerNames, nothing_known, PoseEstimate
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.map_statistics import MapStatistics
from kbr_localization.localization.map.similarity import FullSimilarity, Similarity
from kbr_localization.se2 import FloatArray
import numpy as np

_START_FACTOR = 4  # points of a global start, as a multiple of the points while tracking
_RESAMPLE_BELOW = 0.5  # of the points are effective


class KernelBayesFilter(GatedLocalizer, FormerNames):
    """The localizer `kbr`: see `Localizer` for its interface."""

    def __init__(
        self,
        kernel_map: KernelMap,
        config: KbrConfig | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.config = config or kernel_map.filter_config
        self.rng = rng or np.random.default_rng(0)
        self.kernel_map = kernel_map
        self.likelihood = Likelihood(kernel_map, self.config)
        self.odometry = OdometryCalibration(
            kernel_map.motion_noise,
            kernel_map.known_odometry,
            self.config.noise_scale,
            self.config.odometry_calibration,
        )
        statistics = kernel_map.statistics or MapStatistics()
        self.supervision = Supervision(
            self.likelihood, statistics, self.config, self.odometry.mapped, self.rng
        )
        self.hypotheses = self.supervision.hypotheses
        self.confirmation = self.hypotheses.confirmation
        self.regularisation = Regularisation(self.config)
        self.gate = UpdateGate(self.config.update_min_d, self.config.update_min_a)
        self.belief: Belief | None = None
        counts = ('updates', 'recoveries', 'frozen_images')
        self.diagnostics: dict[str, float] = dict.fromkeys(counts, 0.0)
        self._global_start = self._updated = False

    def initialize(self, pose: FloatArray, covariance: FloatArray) -> None:
        """Start from a Gaussian about a pose (3,), covariance (3, 3)."""
        self.initialize_globally()
        self._global_start = False
        self.belief = drawn_about(pose, covariance, self.config.points, self.rng)
        self.odometry.begin([self.belief])
        self.confirmation.given()

    def initialize_globally(self) -> None:
        """Start anywhere on the map: the first image draws the points."""
        self.belief = None
        self.supervision.forget()
        self.gate.reopen()
        self.regularisation.stop()
        self._global_start, self._updated = True, False

    def follow_map(self, kernel_map: KernelMap) -> bool:
        """Go on with the belief on a map that has more images at its end."""
        self.kernel_map = kernel_map
        self.likelihood = self.hypotheses.likelihood = Likelihood(kernel_map, self.config)
        return True

    def know_odometry(self, learnt: Calibration) -> None:
        """Take what was learnt of the odometry in an earlier drive, from the next start on."""
        self.odometry.go_on_from(learnt)

    def predict(self, odometry_increment: FloatArray) -> None:
        """Mb-KSR: move the points; the noise of the steps is composed until the next update."""
        self.gate.add(odometry_increment)
        self._updated = False
        if self.belief is not None:
            self.odometry.predict(odometry_increment, self._beliefs(self.belief))
            self.supervision.predict(odometry_increment)

    def update(self, descriptor: np.ndarray) -> None:
        """KBR: weigh the points by an image (d,), compared with the map."""
        nearby = self._in_reach() if self.kernel_map.is_large else None
        self._take_in(self.kernel_map.compare(descriptor, self._global_start, nearby), descriptor)

    def update_similarities(self, similarities: FloatArray) -> None:
        """Update by the kernel vector (n,) of an image."""
        self._take_in(FullSimilarity(similarities), similarities)

    def estimate(self) -> PoseEstimate:
        """Summarize the belief about its highest mode."""
        if self.belief is None:
            return nothing_known(self.diagnostics, self._updated)
        diagnostics = self.diagnostics | self.odometry.described(self.belief)
        diagnostics |= self.supervision.described()
        noise, proof = self.odometry.noise, self.supervision.proof()
        answer = summarize(self.belief, self.config, noise, proof, diagnostics, self._updated)
        covariance = answer.covariance
        if answer.has_pose:
            # the images say where on the map the robot is; the map may itself lie elsewhere
            covariance = covariance + self.kernel_map.uncertainty_at(answer.pose)
        return replace(answer, covariance=covariance, odometry=self.odometry.learnt)

    def particles(self, size: int) -> FloatArray:
        """Poses (size, 3) drawn from the belief; none without one."""
        return np.zeros((0, 3)) if self.belief is None else self.belief.drawn(size)

    def _take_in(self, seen: Similarity, image: np.ndarray) -> None:
        self.gate.restart()
        self._updated = True
        self.diagnostics['updates'] += 1
        self.diagnostics['best_similarity'] = seen.best
        if self.supervision.is_frozen(image):
            self.diagnostics['frozen_images'] += 1
            return
        self.hypotheses.see(seen)
        if self._global_start:
            self._start(seen)
        elif self.belief is not None:
            self._weigh(self.belief, seen)

    def _start(self, seen: Similarity) -> None:
        """Global start: draw points where the image could be, weigh them, keep the usual many."""
        size = _START_FACTOR * self.config.points
        born = drawn_from_image(self.likelihood, seen, size, self.rng)
        self.odometry.begin([born])
        self.supervision.start(born, seen)
        self.belief = born.resampled(self.config.points, self.rng)
        self._global_start = False
        self.regularisation.begin()

    def _weigh(self, belief: Belief, seen: Similarity) -> None:
        """Draw the noise of the motion, weigh the points; resample, or take up another place."""
        noise, confirmed = self.odometry.noise, self.confirmation.confirmed
        self.odometry.disperse(self._beliefs(belief), self.rng, learn=confirmed)
        self.regularisation.apply(belief, self.rng)
        found = self.supervision.update(belief, seen, noise)
        if confirmed:
            self.odometry.pool(belief)
        if self.confirmation.confirmed:
            self.odometry.keep(belief)
        if found is not None:
            self._recover(belief, found)
        elif belief.effective_size() < _RESAMPLE_BELOW * len(belief.points):
            self.belief = belief.resampled(self.config.points, self.rng)

    def _recover(self, belief: Belief, found: Belief) -> None:
        """Take over what was found elsewhere; the belief itself gets to a place nearby."""
        self.hypotheses.drop()
        if are_apart(belief, found, self.config):
            self.belief = found.resampled(self.config.points, self.rng)
            self.odometry.begin([self.belief])
            self.confirmation.forget()
            self.regularisation.begin()
            self.diagnostics['recoveries'] += 1
            self.supervision.check.follow(self.belief)

    def _beliefs(self, belief: Belief) -> list[Belief]:
        other = self.hypotheses.alternatives
        return [belief] if other is None else [belief, other]

    def _in_reach(self) -> np.ndarray | None:
        """Map poses that matter: compared first, because values count relative to the best one."""
        if self.belief is None:
            return np.zeros(0, dtype=np.intp)
        found = [self.likelihood.in_reach(b.points) for b in self._beliefs(self.belief)]
        return np.unique(np.concatenate(found))
