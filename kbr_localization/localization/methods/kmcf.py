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

from dataclasses import dataclass

from kbr_localization import se2
from kbr_localization.configuration import parameter, with_default
from kbr_localization.errors import KernelError
from kbr_localization.kernels.rules import BAYES_RULES, normalise
from kbr_localization.localization.filter.points import Points
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.algorithm1 import OnMapConfig
from kbr_localization.localization.methods.base import GatedConfig, MapLocalizer, MethodConfig
from kbr_localization.localization.methods.map_kernels import MapKernels, without_traces
from kbr_localization.se2 import FloatArray
import numpy as np


@dataclass(frozen=True)
class KmcfConfig(GatedConfig):
    """Parameters of the Kernel Monte Carlo Filter."""

    covariance_scale: float = with_default(MethodConfig, 'covariance_scale', 2.0)
    update_min_d: float = with_default(GatedConfig, 'update_min_d', 0.33)
    update_min_a: float = with_default(GatedConfig, 'update_min_a', 0.12)
    noise_scale: float = with_default(GatedConfig, 'noise_scale', 0.55)
    position_bandwidth: float = parameter(
        1.0,
        'bandwidth of k_X in x and y, metres; by default at least 6 times the distance between '
        'images of the map, up to 2.9',
        1e-3,
        100.0,
        search=(0.1, 3.0),
    )
    heading_bandwidth: float = with_default(OnMapConfig, 'heading_bandwidth', 0.6)
    state_ridge: float = with_default(OnMapConfig, 'state_ridge', 0.24)
    delta: float = with_default(OnMapConfig, 'delta', 1.2e-3)
    bayes_rule: str = parameter(
        'squared', 'regularisation of the kernel Bayes rule', choices=tuple(BAYES_RULES)
    )
    sharpening: float = parameter(
        0.017,
        'tau in k_Y = exp((k - 1) / tau); 0 leaves the image kernel unchanged',
        low=0.0,
        search=(0.004, 0.2),
    )
    points: int = parameter(400, 'points that are herded and moved', 10, 1_000_000)


class KernelMonteCarloFilter(MapLocalizer):
    """
    The localizer `kmcf`; see `Localizer` for the interface.

    `alpha` (n,): signed weights on the map poses after a correction, None once the robot has
    moved; `points` (m, 3): the equally weighted sample from then on, None before. The paper
    resamples only when few weights count; while a robot is tracked they always are few.
    """

    def __init__(
        self,
        kernel_map: KernelMap,
        config: KmcfConfig | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__(kernel_map, config or KmcfConfig(), rng)
        self.diagnostics['restarts'] = 0.0
        self.kernels = MapKernels(kernel_map, self.config)
        self.gaps = self.kernels.gaps
        self.alpha: FloatArray | None = None
        self.points: FloatArray | None = None
        self._prior: FloatArray | None = None  # values (n,) at the map of a global start

    def start(self, pose: FloatArray, covariance: FloatArray) -> None:
        """Sample a Gaussian about a pose (3,), covariance (3, 3)."""
        self.alpha = self._prior = None
        self.points = Points.gaussian(pose, covariance, self.config.points, self.rng).poses

    def start_anywhere(self) -> None:
        """Take the uniform law on the map."""
        self.alpha = self.points = None
        self._prior = self.kernels.gram_x.mean(axis=1)

    def move(self, increment: FloatArray) -> None:
        """Herd points from the posterior, if any; move them by an increment (3,) with noise."""
        if self.alpha is not None:
            self.points, self.alpha = self.herded(self.alpha), None
        if self.points is not None:
            variances = self.kernel_map.motion_noise.variances(increment)
            deviation = np.sqrt(self.config.noise_scale * variances)
            errors = deviation * self.rng.standard_normal(self.points.shape)
            self.points = se2.compose(se2.compose(self.points, self.corrected(increment)), errors)

    def weigh(self, similarities: FloatArray) -> None:
        """Correct the prior by the kernel values (n,) of an image."""
        prior = self._prior
        if self.alpha is not None:
            prior = self.kernels.gram_x @ self.alpha
        elif self.points is not None:
            sample = se2.to_plane_and_circle(self.points)
            prior = self.kernels.kernel.cross_gram(self.kernels.points, sample).mean(axis=1)
        if prior is None:
            return
        k_y = self.kernels.image_kernel(similarities)
        mu = without_traces(self.kernels.project(prior))
        rule, delta = BAYES_RULES[self.config.bayes_rule], self.config.delta
        try:
            self.alpha = normalise(rule(self.kernels.gram_y, mu, k_y, delta))
        except KernelError:
            self.diagnostics['restarts'] += 1
            self.alpha = self.kernels.given_image_alone(k_y, delta)
        self.points = self._prior = None

    def herded(self, alpha: FloatArray) -> FloatArray:
        """
        Map poses (m, 3), repeated, whose kernel mean is near that with weights alpha (n,).

        `KernelMean.herd` with the map poses to choose from, on the Gram matrix that is known.
        """
        # far points without weight are never chosen
        active = np.flatnonzero(np.abs(alpha) > 1e-6 * np.abs(alpha).max())
        gram = self.kernels.gram_x[np.ix_(active, active)]
        target, repulsion = gram @ alpha[active], np.zeros(len(active))
        chosen = np.empty(self.config.points, dtype=np.int64)
        for t in range(len(chosen)):
            chosen[t] = np.argmax(target - repulsion / (t + 1))
            repulsion += gram[chosen[t]]
        return self.kernel_map.poses[active[chosen]]

    def belief(self) -> Points | None:
        """Return the sample, or the positive part of the weights on the map poses."""
        if self.points is not None:
            return Points(self.points, np.full(len(self.points), 1.0 / len(self.points)))
        if self.alpha is None:
            return None
        weights = np.maximum(self.alpha, 0.0)
        return Points(self.kernel_map.poses, weights / weights.sum())
