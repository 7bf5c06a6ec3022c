"""
Algorithm 1 of [MbKSR] with the steps that make it work on sparse maps, each a parameter.

A sharper image kernel, updates gated by motion, predictions composed over several increments,
the thresholded rule and larger variances. Between two images negative weights are cut off, and
the weights add up to one. The belief stays on the map's poses.
"""

from __future__ import annotations

from kbr_localization import se2
from kbr_localization.errors import KernelError
from kbr_localization.kernels.noise import GaussianNoise
from kbr_localization.kernels.rules import BAYES_RULES, model_based_sum_rule, normalise
from kbr_localization.localization.filter.points import Points
from kbr_localization.localization.localizer import nothing_known, PoseEstimate
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.algorithm1 import Algorithm1
from kbr_localization.localization.methods.configs import AdaptedConfig
from kbr_localization.localization.methods.map_kernels import without_traces
from kbr_localization.localization.methods.summary import summarize
from kbr_localization.localization.update_gate import GatedLocalizer, UpdateGate
from kbr_localization.se2 import FloatArray
import numpy as np


class AdaptedAlgorithm1(GatedLocalizer, Algorithm1):
    """
    The localizer `algorithm1-adapted`; see `Algorithm1` for the steps and weights.

    The variances of the motion are those of one step from image to image times `noise_scale`;
    over several steps they add up.
    """

    def __init__(self, kernel_map: KernelMap, config: AdaptedConfig | None = None) -> None:
        self.adapted = config or AdaptedConfig()
        self.gate = UpdateGate(self.adapted.update_min_d, self.adapted.update_min_a)
        self._increment, self._steps = np.zeros(3), 0
        super().__init__(kernel_map, self.adapted)

    def initialize_globally(self) -> None:
        """Start from the uniform law on the map."""
        self._restart()
        n = len(self.kernel_map)
        self._mu = np.full(n, 1.0 / n)

    def predict(self, odometry_increment: FloatArray) -> None:
        """Compose an increment (3,); the sum rule follows at once, or when an image arrives."""
        self.gate.add(odometry_increment)
        self._updated = False
        self._increment = se2.compose(self._increment, self._corrected(odometry_increment))
        moves = bool(np.any(odometry_increment != 0.0))
        self._steps += moves
        if not self.adapted.multi_step and moves and self.alpha is not None:
            self._predict(self._increment)
            self.alpha = self._without_image()

    def update_similarities(self, similarities: FloatArray) -> None:
        """Apply the sum rule, if it is due, and the kernel Bayes rule to a kernel vector (n,)."""
        self.gate.restart()
        if self.alpha is not None and self._steps:
            self._predict(self._increment)
        # a law that is uniform on the map stays so wherever the robot has driven
        self._increment, self._steps = np.zeros(3), 0
        super().update_similarities(similarities)

    def estimate(self) -> PoseEstimate:
        """Summarize the positive part of the belief about its highest mode."""
        if self.alpha is None:
            return nothing_known(self.diagnostics, self._updated)
        belief, diagnostics = self._positive_part()
        points = se2.compose(belief.poses, self._increment)
        moved = Points(points, belief.weights)
        return summarize(moved, self.config, diagnostics, self._updated, self.kernels.gaps)

    def particles(self, size: int) -> FloatArray:
        """Return the `size` heaviest map poses (m, 3), moved by the way since the last image."""
        return se2.compose(super().particles(size), self._increment)

    def _sharpening(self) -> float:
        return self.adapted.sharpening

    def _restart(self) -> None:
        super()._restart()
        self._increment, self._steps = np.zeros(3), 0
        self.gate.reopen()

    def _predict(self, increment: FloatArray) -> None:
        """Mb-KSR with the composed increment, evaluated at the map's poses, then NP-KSR."""
        assert self.alpha is not None
        variances = self._steps * self.adapted.noise_scale * self.kernel_map.motion_noise.step
        wide = GaussianNoise(variances).conditional_kernel_mean(self.kernels.kernel)
        images = se2.to_plane_and_circle(se2.compose(self.kernel_map.poses, increment))
        prediction = model_based_sum_rule(wide, self.kernels.points, images, self.alpha)
        self._mu = self.kernels.project(prediction)
        self._increment, self._steps = np.zeros(3), 0

    def _without_image(self) -> FloatArray:
        """Return the predicted belief; one that has left the map may be anywhere on it."""
        assert self._mu is not None
        try:
            return normalise(np.maximum(self._mu, 0.0))
        except KernelError:
            self.diagnostics['restarts'] += 1
            n = len(self.kernel_map)
            self._mu = np.full(n, 1.0 / n)
            return self._mu

    def _posterior(self, mu: FloatArray, k_y: FloatArray) -> FloatArray:
        rule = BAYES_RULES[self.adapted.bayes_rule]
        return normalise(rule(self.kernels.gram_y, without_traces(mu), k_y, self.config.delta))
