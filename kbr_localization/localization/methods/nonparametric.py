"""
The fully-nonparametric kernel Bayes filter (fKBF), [KBR] section 4.3.

It learns the motion from the transitions of the training runs instead of a model. A Gaussian
kernel on the controls multiplies k_X in the prediction. Beyond the paper, the learnt weights are
divided by their sum: where transitions are few it would fade from step to step.
"""

from __future__ import annotations

from dataclasses import asdict

from kbr_localization import se2
from kbr_localization.errors import LocalizationError
from kbr_localization.kernels.kernels import GaussianKernel
from kbr_localization.kernels.rules import nonparametric_sum_rule, regularise
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.adapted import AdaptedAlgorithm1
from kbr_localization.localization.methods.configs import AdaptedConfig, OnMapConfig
from kbr_localization.se2 import FloatArray
import numpy as np

FEWEST = 2
"""Images with a step to the next one of their run, from which a motion can be learnt."""
_AT_EVERY_IMAGE = {
    'bayes_rule': 'squared',
    'sharpening': 0.0,
    'multi_step': False,
    'update_min_d': 0.0,
    'update_min_a': 0.0,
}


class FullyNonparametricFilter(AdaptedAlgorithm1):
    """
    The localizer `fkbf`: prediction mu = (G_X + n eps I)^-1 G_XX' w with learnt w.

    Raises LocalizationError for a map with fewer than `FEWEST` known transitions between images.
    """

    def __init__(self, kernel_map: KernelMap, config: OnMapConfig | None = None) -> None:
        plain = asdict(config or OnMapConfig())
        super().__init__(kernel_map, AdaptedConfig(**(plain | _AT_EVERY_IMAGE)))
        known = np.flatnonzero(np.isfinite(kernel_map.controls).all(axis=1))
        if known.size < FEWEST:
            raise LocalizationError(
                f'fkbf learns the motion from steps of the odometry at the images of the map: '
                f'expected {FEWEST} or more, got {known.size}; take a map of more images, or '
                'another method'
            )
        # a metre of way weighs as much as a radian of turning
        self._controls = np.asarray(kernel_map.controls[known], dtype=np.float64)
        self._control_kernel = GaussianKernel(_median_square(self._controls), normalised=False)
        self._known = known
        self._learn_transitions(known)

    def _learn_transitions(self, known: np.ndarray) -> None:
        """Factor the Gram matrix of starts and controls of the transitions (c,)."""
        kernel, points = self.kernels.kernel, self.kernels.points
        start, following = points[known], self.kernel_map.next_poses[known]
        joint = kernel.gram(start) * self._control_kernel.gram(self._controls)
        epsilon = self.config.state_ridge * kernel.peak(4) / known.size
        self._regularised_joint = regularise(joint, epsilon)
        self._following = kernel.cross_gram(points, se2.to_plane_and_circle(following))
        self._from_map = kernel.cross_gram(start, points)

    def _corrected(self, increment: FloatArray) -> FloatArray:
        return increment  # the map's controls, to which it is compared, drift as well

    def _predict(self, increment: FloatArray) -> None:
        assert self.alpha is not None
        control = increment[np.newaxis]
        closeness = self._control_kernel.cross_gram(self._controls, control)[:, 0]
        prior = (self._from_map @ self.alpha) * closeness
        weights = nonparametric_sum_rule(self._regularised_joint, prior)
        total = float(np.sum(weights))
        if total > 1e-9:
            weights = weights / total
        self._mu = self.kernels.project(self._following @ weights)
        self._increment, self._steps = np.zeros(3), 0


def _median_square(controls: FloatArray) -> float:
    """Squared median distance between controls, the usual bandwidth."""
    sample = controls[:: max(1, len(controls) // 500)]
    distances = np.linalg.norm(sample[:, np.newaxis] - sample, axis=-1)
    median = float(np.median(distances[np.triu_indices(len(sample), 1)]))
    return max(median, 1e-3) ** 2
