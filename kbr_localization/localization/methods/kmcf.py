"""
The Kernel Monte Carlo Filter [KMCF]: sampling prediction, correction by KBR, herding.

Kanagawa, Nishiyama, Gretton, Fukumizu, *Monte Carlo Filtering Using Kernel Embedding of
Distributions*, AAAI 2014, and *Filtering with State-Observation Examples via Kernel Monte Carlo
Filter*, Neural Computation 28 (2016). With points U_j of the prior and gamma_j their weights:

    U_j ~ p(x' | U_j, u)                                     prediction, by sampling
    m_i = sum_j gamma_j k_X(X_i, U_j)
    mu = (G_X + n epsilon I)^-1 m,  w = KBR(mu, k_Y(y))      correction: weights on the X_i
    U_1, U_2, ... = herding of sum_i w_i k_X(., X_i) in {X_i}   resampling

It shares the observation model with Algorithm 1; the prediction is the particle filter's.
"""

from __future__ import annotations

from kbr_localization import se2
from kbr_localization.errors import KernelError
from kbr_localization.kernels.rules import BAYES_RULES, normalise
from kbr_localization.localization import calibration
from kbr_localization.localization.filter.points import Points
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.belief_method import BeliefMethod
from kbr_localization.localization.methods.configs import KmcfConfig
from kbr_localization.localization.methods.map_kernels import (
    MapKernels,
    pose_kernel,
    without_traces,
)
from kbr_localization.se2 import FloatArray
import numpy as np

_HERDED = 1e-6  # of the largest weight: poses with less are not chosen


class KernelMonteCarloFilter(BeliefMethod):
    """
    The localizer `kmcf`; see `Localizer` for the interface.

    `alpha` (n,): signed weights on the map poses after a correction, None once the robot has
    moved; `points` (m, 3): the equally weighted sample from then on, None before. The paper
    resamples only when few weights count; while a robot is tracked they always are few.
    """

    config: KmcfConfig

    def __init__(
        self,
        kernel_map: KernelMap,
        config: KmcfConfig | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__(kernel_map, config or KmcfConfig(), rng)
        kernel = pose_kernel(self.config.position_bandwidth, self.config.heading_bandwidth)
        self.kernels = MapKernels(kernel_map, kernel, self.config.sharpening)
        self.kernels.regularise(self.config.state_ridge)
        self.gaps, self.diagnostics = self.kernels.gaps, {'updates': 0.0, 'restarts': 0.0}
        self.alpha: FloatArray | None = None
        self.points: FloatArray | None = None
        self._global_start = False

    def initialize(self, pose: FloatArray, covariance: FloatArray) -> None:
        """Start from a Gaussian about a pose (3,), covariance (3, 3)."""
        self._reset()
        self.points = Points.gaussian(pose, covariance, self.config.points, self.rng).poses

    def initialize_globally(self) -> None:
        """Start from the uniform law on the map."""
        self._reset()
        self._global_start = True

    def predict(self, odometry_increment: FloatArray) -> None:
        """Herd points from the posterior, if any; move them by an increment (3,) with noise."""
        self.gate.add(odometry_increment)
        self._updated = False
        if self.alpha is not None:
            self.points, self.alpha = self.herded(self.alpha), None
        if self.points is not None:
            variances = self.kernel_map.motion_noise.variances(odometry_increment)
            deviation = np.sqrt(self.config.noise_scale * variances)
            errors = deviation * self.rng.standard_normal(self.points.shape)
            increment = calibration.moved(odometry_increment, self._errors)
            self.points = se2.compose(se2.compose(self.points, increment), errors)

    def update_similarities(self, similarities: FloatArray) -> None:
        """Correct by the kernel vector (n,) of an image."""
        self.gate.restart()
        self._updated = True
        self.diagnostics['updates'] += 1
        self.diagnostics['best_similarity'] = float(similarities.max())
        prior = self._prior_at_map()
        if prior is None:
            return
        k_y = self.kernels.image_kernel(similarities)
        try:
            self.alpha = normalise(self.corrected(prior, k_y))
        except KernelError:
            self.diagnostics['restarts'] += 1
            self.alpha = self.kernels.given_image_alone(k_y, self.config.delta)
        self.points, self._global_start = None, False

    def corrected(self, prior_at_map: FloatArray, k_y: FloatArray) -> FloatArray:
        """Posterior weights (n,), from the values of the prior's kernel mean at the map (n,)."""
        mu = without_traces(self.kernels.project(prior_at_map))
        rule = BAYES_RULES[self.config.bayes_rule]
        return rule(self.kernels.gram_y, mu, k_y, self.config.delta)

    def herded(self, alpha: FloatArray) -> FloatArray:
        """
        Map poses (m, 3), repeated, whose kernel mean is near that with weights alpha (n,).

        `KernelMean.herd` with the map poses to choose from, on the Gram matrix that is known.
        """
        # far points without weight are never chosen
        active = np.flatnonzero(np.abs(alpha) > _HERDED * np.abs(alpha).max())
        gram = self.kernels.gram_x[np.ix_(active, active)]
        target, repulsion = gram @ alpha[active], np.zeros(len(active))
        chosen = np.empty(self.config.points, dtype=np.int64)
        for t in range(len(chosen)):
            chosen[t] = np.argmax(target - repulsion / (t + 1))
            repulsion += gram[chosen[t]]
        return self.kernel_map.poses[active[chosen]]

    def _reset(self) -> None:
        self.alpha, self.points = None, None
        self._global_start = self._updated = False
        self.gate.reopen()

    def _prior_at_map(self) -> FloatArray | None:
        """Values (n,) of the prior's kernel mean at the map poses; None without a start."""
        if self.alpha is not None:
            return np.asarray(self.kernels.gram_x @ self.alpha)
        if self.points is not None:
            sample = se2.to_plane_and_circle(self.points)
            cross = self.kernels.kernel.cross_gram(self.kernels.points, sample)
            return np.asarray(cross.mean(axis=1))
        return np.asarray(self.kernels.gram_x.mean(axis=1)) if self._global_start else None

    def weighted_points(self) -> Points | None:
        """Return the sample, or the positive part of the weights on the map poses."""
        if self.points is not None:
            return Points(self.points, np.full(len(self.points), 1.0 / len(self.points)))
        if self.alpha is None:
            return None
        weights = np.maximum(self.alpha, 0.0)
        return Points(self.kernel_map.poses, weights / weights.sum())
