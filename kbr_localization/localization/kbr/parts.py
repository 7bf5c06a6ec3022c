"""What the filter `kbr` consists of, and how it begins and is asked; the rest is in `filter`."""

from __future__ import annotations

from kbr_localization.localization.calibration import Calibration
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.kbr.belief import Belief
from kbr_localization.localization.kbr.gate import GatedLocalizer, UpdateGate
from kbr_localization.localization.kbr.likelihood import Likelihood
from kbr_localization.localization.kbr.monitor import Monitor
from kbr_localization.localization.kbr.odometry import OdometryCalibration
from kbr_localization.localization.kbr.pose_search import Indices
from kbr_localization.localization.kbr.starting import drawn_about, Regularisation
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.map_statistics import MapStatistics
from kbr_localization.se2 import FloatArray
import numpy as np


class FilterParts(GatedLocalizer):
    """
    The parts of a filter on a map.

    `belief`: None before the first pose or image. `likelihood`: the kernel Bayes rule with the
    map's images. `odometry`: its errors, learnt on the way. `hypotheses`: what else may be true.
    """

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
            kernel_map.calibration,
            self.config.noise_scale,
            self.config.odometry_calibration,
        )
        statistics = kernel_map.statistics or MapStatistics()
        self.monitor = Monitor(self.likelihood, statistics, self.config, self.rng)
        self.hypotheses = self.monitor.hypotheses
        self.confirmation = self.hypotheses.confirmation
        self.regularisation = Regularisation(self.config)
        self.gate = UpdateGate(self.config.update_min_d, self.config.update_min_a)
        self.belief: Belief | None = None
        counts = ('updates', 'recoveries', 'frozen_images')
        self.diagnostics: dict[str, float] = dict.fromkeys(counts, 0.0)
        self._global_start = self._updated = False

    def initialize(self, pose: FloatArray, covariance: FloatArray) -> None:
        """
        Start from a Gaussian about a pose (3,), covariance (3, 3): metres and radians.

        It is a claim: called localized when the images from now on have confirmed it.
        """
        self.initialize_globally()
        self._global_start = False
        self.belief = drawn_about(pose, covariance, self.config, self.rng)
        self.odometry.begin([self.belief])
        self.regularisation.begin()

    def confirm(self) -> None:
        """Call the belief localized until images refute it: it goes on from a confirmed one."""
        self.confirmation.go_on()

    def initialize_globally(self) -> None:
        """Start anywhere on the map: the first image draws the points."""
        self.belief = None
        self.monitor.forget()
        self.gate.reopen()
        self._global_start, self._updated = True, False

    def follow_map(self, kernel_map: KernelMap) -> bool:
        """Go on with the belief on a map that has more images at its end."""
        self.kernel_map = kernel_map
        centring = self.likelihood.centring.extended(kernel_map.descriptors)
        self.likelihood = Likelihood(kernel_map, self.config, centring=centring)
        self.hypotheses.follow(self.likelihood)
        return True

    def know_odometry(self, learnt: Calibration) -> None:
        """Take what was learnt of the odometry in an earlier drive, from the next start on."""
        self.odometry.go_on_from(learnt)

    def particles(self, size: int) -> FloatArray:
        """Poses (size, 3) drawn from the belief; none without one."""
        return np.zeros((0, 3)) if self.belief is None else self.belief.drawn(size)

    def _beliefs(self, belief: Belief) -> list[Belief]:
        """List the belief, and the points that look elsewhere if there are any."""
        other = self.hypotheses.alternatives
        return [belief] if other is None else [belief, other]

    def _moving(self, belief: Belief) -> list[Belief]:
        """List these, and the points that follow another odometry if there are any."""
        led = self.monitor.check.led
        return [*self._beliefs(belief), *([] if led is None else [led])]

    def _in_reach(self) -> Indices | None:
        """
        Find map poses that matter, None before a belief.

        They are compared first, as values count relative to the best.
        """
        if self.belief is None:
            return None
        points = [belief.points for belief in self._moving(self.belief)]
        return self.likelihood.in_reach(np.concatenate(points))
