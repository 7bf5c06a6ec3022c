"""
The fully-nonparametric kernel Bayes filter (fKBF), [KBR] section 4.3.

It learns the motion from the transitions of the training runs instead of a model: a Gaussian
kernel on the controls multiplies k_X in the prediction. Beyond the paper, the learnt weights are
divided by their sum (where transitions are few the belief would fade from step to step), negative
weights are cut off between two images, and the pose is the mean about the highest mode.
"""

from __future__ import annotations

from kbr_localization import se2
from kbr_localization.errors import KernelError, LocalizationError
from kbr_localization.kernels.kernels import GaussianKernel
from kbr_localization.kernels.rules import (
    nonparametric_sum_rule,
    normalise,
    regularise,
    squared_bayes_rule,
)
from kbr_localization.localization.localizer import PoseEstimate
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.algorithm1 import Algorithm1, OnMapConfig
from kbr_localization.localization.methods.base import MapLocalizer
from kbr_localization.localization.methods.map_kernels import without_traces
from kbr_localization.se2 import FloatArray
import numpy as np

FEWEST = 2
"""Images with a step to the next one of their run, from which a motion can be learnt."""


class FullyNonparametricFilter(Algorithm1):
    """
    The localizer `fkbf`: prediction mu = (G_X + n eps I)^-1 G_XX' w with learnt w.

    Raises LocalizationError for a map with fewer than `FEWEST` known transitions between images.
    """

    def __init__(
        self,
        kernel_map: KernelMap,
        config: OnMapConfig | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__(kernel_map, config or OnMapConfig(), rng)
        known = np.flatnonzero(np.isfinite(kernel_map.controls).all(axis=1))
        if known.size < FEWEST:
            raise LocalizationError(
                f'fkbf learns the motion from steps of the odometry at the images of the map: '
                f'expected {FEWEST} or more, got {known.size}; take a map of more images, or '
                'another method'
            )
        kernel, points = self.kernels.kernel, self.kernels.points
        start, following = points[known], kernel_map.next_poses[known]
        # a metre weighs as much as a radian; the map's controls drift as the odometry does
        self.controls = np.asarray(kernel_map.controls[known], dtype=np.float64)
        self.control_kernel = GaussianKernel(_median_square(self.controls), normalised=False)
        joint = kernel.gram(start) * self.control_kernel.gram(self.controls)
        self._joint = regularise(joint, self.config.state_ridge * kernel.peak(4) / known.size)
        self._following = kernel.cross_gram(points, se2.to_plane_and_circle(following))
        self._from_map = kernel.cross_gram(start, points)

    def start_anywhere(self) -> None:
        """Take the uniform law on the map."""
        self.alpha, self.mu = None, self._uniform()

    def move(self, increment: FloatArray) -> None:
        """Apply the kernel sum rule with learnt transitions, where the robot moves."""
        if np.any(increment != 0.0):
            super().move(increment)

    def predicted(self, alpha: FloatArray, increment: FloatArray) -> FloatArray:
        """Weights mu (n,) after an odometry increment (3,)."""
        closeness = self.control_kernel.cross_gram(self.controls, increment[np.newaxis])[:, 0]
        weights = nonparametric_sum_rule(self._joint, (self._from_map @ alpha) * closeness)
        total = float(np.sum(weights))
        return self.kernels.project(
            self._following @ (weights / total if total > 1e-9 else weights)
        )

    def after_prediction(self, mu: FloatArray) -> FloatArray:
        """Weights (n,) of the positive part; a belief that has left the map is uniform on it."""
        try:
            return normalise(np.maximum(mu, 0.0))
        except KernelError:
            self.diagnostics['restarts'] += 1
            self.mu = self._uniform()
            return self.mu

    def posterior(self, mu: FloatArray, k_y: FloatArray) -> FloatArray:
        """Weights (n,) given an image with kernel vector (n,), with the sum 1."""
        gram, delta = self.kernels.gram_y, self.config.delta
        return normalise(squared_bayes_rule(gram, without_traces(mu), k_y, delta))

    def estimate(self) -> PoseEstimate:
        """Summarize the positive part of the belief about its highest mode."""
        return MapLocalizer.estimate(self)

    def mode_width(self) -> float:
        """Return the bandwidth in metres with which the mode of the belief is sought."""
        return 0.8 * float(self.config.position_bandwidth)

    def _uniform(self) -> FloatArray:
        return np.full(len(self.kernel_map), 1.0 / len(self.kernel_map))


def _median_square(controls: FloatArray) -> float:
    """Squared median distance between controls, the usual bandwidth."""
    sample = controls[:: max(1, len(controls) // 500)]
    distances = np.linalg.norm(sample[:, np.newaxis] - sample, axis=-1)
    median = float(np.median(distances[np.triu_indices(len(sample), 1)]))
    return max(median, 1e-3) ** 2
