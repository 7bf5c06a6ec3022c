"""What the methods share whose belief is summarized by weighted points."""

from __future__ import annotations

from abc import abstractmethod

from kbr_localization.localization.filter.points import Points
from kbr_localization.localization.localizer import nothing_known, PoseEstimate
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.configs import GatedConfig
from kbr_localization.localization.methods.summary import summarize
from kbr_localization.localization.update_gate import GatedLocalizer, UpdateGate
from kbr_localization.se2 import FloatArray
import numpy as np


class BeliefMethod(GatedLocalizer):
    """
    A localizer with a belief, updated by the kernel vector of an image.

    `gaps` (3, 3): covariance of a pose about its map pose, for a belief that lives on those.
    """

    config: GatedConfig
    gaps: FloatArray | float = 0.0

    def __init__(
        self, kernel_map: KernelMap, config: GatedConfig, rng: np.random.Generator | None
    ) -> None:
        self.kernel_map, self.config = kernel_map, config
        self.rng = rng or np.random.default_rng(0)
        self.gate = UpdateGate(config.update_min_d, config.update_min_a)
        self.diagnostics: dict[str, float] = {}
        self._errors = kernel_map.calibration.for_a_drive(config.odometry_calibration).values
        self._updated = False

    @abstractmethod
    def update_similarities(self, similarities: FloatArray) -> None:
        """Take in the kernel vector (n,) of an image."""

    @abstractmethod
    def weighted_points(self) -> Points | None:
        """Return the belief as points with weights; None without one."""

    def update(self, descriptor: np.ndarray) -> None:
        """Take in an image (d,)."""
        self.update_similarities(self.kernel_map.similarities(descriptor))

    def estimate(self) -> PoseEstimate:
        """Summarize the belief about its highest mode."""
        belief = self.weighted_points()
        if belief is None:
            return nothing_known(self.diagnostics, self._updated)
        return summarize(belief, self.config, self.diagnostics, self._updated, self.gaps)

    def particles(self, size: int) -> FloatArray:
        """Poses (size, 3) drawn from the belief; none without one."""
        belief = self.weighted_points()
        if belief is None:
            return np.zeros((0, 3))
        return belief.resampled(size, np.random.default_rng(0)).poses
