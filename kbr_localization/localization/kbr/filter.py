"""
The kernel Bayes filter: [MbKSR] with a belief that may leave the map's poses.

The belief is a kernel mean on moving points. It is predicted by the model-based kernel sum rule,
whose noise is composed over the steps since the last update and drawn for every point (a kernel
Monte Carlo filter, Kanagawa et al., AAAI 2014), and updated by the kernel Bayes rule off the map.
"""

from __future__ import annotations

from dataclasses import replace

from kbr_localization import se2
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.kbr.belief import Belief
from kbr_localization.localization.kbr.estimate import OTHER_WAY, summarize
from kbr_localization.localization.kbr.gate import UpdateGate
from kbr_localization.localization.kbr.hypotheses import Hypotheses
from kbr_localization.localization.kbr.likelihood import Likelihood
from kbr_localization.localization.kbr.odometry import OdometryCalibration
from kbr_localization.localization.kbr.starting import drawn_from_image, Regularisation
from kbr_localization.localization.localizer import nothing_known, PoseEstimate
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.map_statistics import MapStatistics
from kbr_localization.localization.map.similarity import FullSimilarity, Similarity
from kbr_localization.se2 import FloatArray
import numpy as np

_START_FACTOR = 4  # points of a global start, as a multiple of the points while tracking
_RESAMPLE_BELOW = 0.5  # of the points are effective
_MOVED = 0.1  # metres in which an image of a living camera changes


class KernelBayesFilter:
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
        statistics = kernel_map.statistics or MapStatistics()
        self.hypotheses = Hypotheses(self.likelihood, statistics, self.config, self.rng)
        self.odometry = OdometryCalibration(
            kernel_map.motion_noise, self.config.noise_scale, self.config.odometry_calibration
        )
        self.regularisation = Regularisation(self.config)
        self.gate = UpdateGate(self.config.update_min_d, self.config.update_min_a)
        self.belief: Belief | None = None
        self.why: dict[str, float] = {'updates': 0.0, 'recoveries': 0.0, 'frozen_images': 0.0}
        self._last_image: np.ndarray | None = None
        self._way, self._images = 0.0, 0
        self._global_start = self._updated = False

    def initialize(self, pose: FloatArray, covariance: FloatArray) -> None:
        """Start from a Gaussian about a pose (3,), covariance (3, 3)."""
        self._reset()
        self.belief = Belief.gaussian(pose, covariance, self.config.points, self.rng)
        self.hypotheses.confirmation.given()

    def initialize_globally(self) -> None:
        """Start anywhere on the map: the first image draws the points."""
        self._reset()
        self._global_start = True

    def follow_map(self, kernel_map: KernelMap) -> None:
        """Go on with the belief on a map that has more images at its end."""
        self.kernel_map = kernel_map
        self.likelihood = self.hypotheses.likelihood = Likelihood(kernel_map, self.config)

    def wants_image(self) -> bool:
        """Whether the robot has moved enough since the last update, or there was none."""
        return self.gate.due()

    def predict(self, odometry_increment: FloatArray) -> None:
        """Mb-KSR: move the points; the noise of the steps is composed until the next update."""
        self.gate.add(odometry_increment)
        self._updated = False
        if self.belief is not None:
            self._way += float(np.hypot(odometry_increment[0], odometry_increment[1]))
            self.odometry.predict(odometry_increment, self._beliefs())

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
            return nothing_known(self.why, self._updated)
        confirmation, hypotheses = self.hypotheses.confirmation, self.hypotheses
        why = self.why | self.odometry.described(self.belief)
        why |= {
            'elsewhere': hypotheses.elsewhere,
            'log_evidence': confirmation.mean,
            'informative': hypotheses.informative.probability,
        }
        estimate = summarize(
            self.belief,
            self.config,
            self.odometry.noise,
            1.0 - hypotheses.elsewhere,
            confirmation.confirmed,
            confirmation.mean if self._images else None,
            why,
            self._updated,
        )
        if estimate.status == 'not localized':
            return estimate
        # the images say where on the map the robot is; the map may itself lie elsewhere
        of_map = self.kernel_map.uncertainty_at(estimate.pose)
        return replace(estimate, covariance=estimate.covariance + of_map)

    def particles(self, size: int) -> FloatArray:
        """Poses (size, 3) drawn from the belief; none without one."""
        if self.belief is None:
            return np.zeros((0, 3))
        # its own generator: who looks at the belief must not change its course
        return self.belief.resampled(size, np.random.default_rng(0)).points

    def _take_in(self, seen: Similarity, image: np.ndarray) -> None:
        self.gate.restart()
        self._updated = True
        self.why |= {'updates': self.why['updates'] + 1, 'best_similarity': seen.best}
        if self._is_frozen(image):
            self.why['frozen_images'] += 1
            self.hypotheses.confirmation.see(0.0, 1.0)
            return
        self.hypotheses.see(seen)
        if self._global_start:
            self._start(seen)
        elif self.belief is not None:
            self._weigh(self.belief, seen)
            self._images += 1

    def _is_frozen(self, image: np.ndarray) -> bool:
        """Whether an image is the last one again, to the last bit, though the robot has moved."""
        before, self._last_image = self._last_image, image
        if before is None or self._way <= _MOVED:
            return False
        return bool(np.array_equal(image, before))

    def _start(self, seen: Similarity) -> None:
        """Global start: draw points where the image could be, weigh them, keep the usual many."""
        size = _START_FACTOR * self.config.points
        born = drawn_from_image(self.likelihood, seen, size, self.rng)
        self.hypotheses.weigh(born, seen)
        self.belief = born.resampled(self.config.points, self.rng)
        self._global_start, self._images = False, 1
        self.regularisation.begin()

    def _weigh(self, belief: Belief, seen: Similarity) -> None:
        self.odometry.disperse(self._beliefs(), self.rng)
        self.regularisation.apply(belief, self.rng)
        found = self.hypotheses.update(belief, seen, self._way)
        self._way = 0.0
        if found is not None:
            self._recover(belief, found)
        elif belief.effective_size() < _RESAMPLE_BELOW * len(belief.points):
            self.belief = belief.resampled(self.config.points, self.rng)

    def _recover(self, belief: Belief, found: Belief) -> None:
        """Take over what was found elsewhere; the belief itself gets to a place nearby."""
        apart = se2.between(
            belief.mode(self.config.mode_bandwidth), found.mode(self.config.mode_bandwidth)
        )
        elsewhere = np.hypot(apart[0], apart[1]) > self.config.localized_radius
        self.hypotheses.drop()
        if elsewhere or abs(apart[2]) > OTHER_WAY:
            self.belief = found.resampled(self.config.points, self.rng)
            self.hypotheses.confirmation.forget()
            self.regularisation.begin()
            self.why['recoveries'] += 1

    def _beliefs(self) -> list[Belief]:
        both = (self.belief, self.hypotheses.alternatives)
        return [belief for belief in both if belief is not None]

    def _in_reach(self) -> np.ndarray:
        """Map poses that matter: compared first, because values count relative to the best one."""
        found = [self.likelihood.in_reach(belief.points) for belief in self._beliefs()]
        return np.unique(np.concatenate([np.zeros(0, dtype=np.intp), *found]))

    def _reset(self) -> None:
        self.belief = None
        self.hypotheses.forget()
        self.odometry.reset()
        self.gate.reopen()
        self._global_start = self._updated = False
        self.regularisation.stop()
        self._way, self._images, self._last_image = 0.0, 0, None
