"""
[MbKSR] Algorithm 1 as printed: the belief is a kernel mean on the map's poses.

With alpha (n,) the weights of the posterior, u the odometry's increment and f its motion
(section 6.3), each image takes the steps

    m_j = sum_i alpha_i m(X_j | f(X_i, u))              (27), Mb-KSR
    mu = (G_X + n epsilon I)^-1 m                       (29)
    alpha = L G_Y ((L G_Y)^2 + delta I)^-1 L k_Y(y),    L = diag(mu)   (31)

and the answer is the map pose of the largest weight. Weights are signed and nothing scales them.
`adapted` has the steps that the filter needs on sparse maps.
"""

from __future__ import annotations

from kbr_localization import se2
from kbr_localization.errors import KernelError
from kbr_localization.kernels.filters import ModelTransition
from kbr_localization.kernels.kernel_mean import KernelMean
from kbr_localization.kernels.models import AdditiveNoiseModel
from kbr_localization.kernels.noise import GaussianNoise
from kbr_localization.kernels.rules import squared_bayes_rule
from kbr_localization.localization import calibration
from kbr_localization.localization.filter.points import Points
from kbr_localization.localization.localizer import (
    Localizer,
    nothing_known,
    PoseEstimate,
)
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.configs import AdaptedConfig, PrintedConfig
from kbr_localization.localization.methods.map_kernels import MapKernels, pose_kernel
from kbr_localization.localization.methods.summary import summarize_about
from kbr_localization.se2 import FloatArray
import numpy as np


class Algorithm1(Localizer):
    """
    The localizer `algorithm1`, with signed weights alpha (n,) on the map poses.

    The variances of the motion are the maximum-likelihood estimates for one step from image to
    image, of the odometry as it is. Where the posterior has no positive weight at all, which the
    paper does not treat, it starts again from the conditional mean. See `Localizer` for the
    interface.
    """

    def __init__(
        self, kernel_map: KernelMap, config: PrintedConfig | AdaptedConfig | None = None
    ) -> None:
        self.kernel_map = kernel_map
        self.config = config or PrintedConfig()
        kernel = pose_kernel(self.config.position_bandwidth, self.config.heading_bandwidth)
        self.kernels = MapKernels(kernel_map, kernel, self._sharpening())
        self.kernels.regularise(self.config.state_ridge)
        noise = GaussianNoise(kernel_map.motion_noise.step)
        self._transition = ModelTransition(AdditiveNoiseModel(moved, noise), self.kernels.kernel)
        how = self.config.odometry_calibration
        self._errors = kernel_map.calibration.for_a_drive(how).values
        self.diagnostics: dict[str, float] = {'updates': 0.0, 'restarts': 0.0}
        self.alpha: FloatArray | None = None
        self._mu: FloatArray | None = None
        self._updated = False

    def initialize(self, pose: FloatArray, covariance: FloatArray) -> None:
        """Start from a Gaussian about a pose (3,), covariance (3, 3)."""
        mu = self.kernels.project(self.kernels.gaussian_at_map(pose, covariance))
        self._restart()
        self._mu = mu
        self.alpha = self._without_image()

    def initialize_globally(self) -> None:
        """Start from the uniform law on the map."""
        self._restart()
        self._mu = self.kernels.project(self.kernels.gram_x.mean(axis=1))

    def wants_image(self) -> bool:
        """Every image counts."""
        return True

    def predict(self, odometry_increment: FloatArray) -> None:
        """Apply the model-based kernel sum rule, also to an increment (3,) of zero."""
        self._updated = False
        if self.alpha is not None:
            self._predict(self._corrected(odometry_increment))
            self.alpha = self._without_image()

    def update(self, descriptor: np.ndarray) -> None:
        """Apply the kernel Bayes rule to an image (d,)."""
        self.update_similarities(self.kernel_map.similarities(descriptor))

    def update_similarities(self, similarities: FloatArray) -> None:
        """Apply the kernel Bayes rule to the kernel vector (n,) of an image."""
        self._updated = True
        self.diagnostics['updates'] += 1
        self.diagnostics['best_similarity'] = float(similarities.max())
        if self._mu is None:
            return
        k_y = self.kernels.image_kernel(similarities)
        try:
            self.alpha = self._posterior(self._mu, k_y)
        except KernelError:
            self.diagnostics['restarts'] += 1
            self.alpha = self.kernels.given_image_alone(k_y, self.config.delta)
        self._mu = self.alpha

    def estimate(self) -> PoseEstimate:
        """Return the heaviest map pose; mass and spread are those of the positive weights."""
        if self.alpha is None:
            return nothing_known(self.diagnostics, self._updated)
        heaviest = self.kernel_map.poses[int(np.argmax(self.alpha))].copy()
        belief, diagnostics = self._positive_part()
        return summarize_about(
            heaviest, belief, self.config, diagnostics, self._updated, self.kernels.gaps
        )

    def particles(self, size: int) -> FloatArray:
        """Return the `size` heaviest map poses (m, 3), at most all; (0, 3) without a belief."""
        if self.alpha is None:
            return np.zeros((0, 3))
        return self.kernel_map.poses[np.argsort(-self.alpha)[:size]]

    def _sharpening(self) -> float:
        return 0.0

    def _corrected(self, increment: FloatArray) -> FloatArray:
        return calibration.moved(increment, self._errors)

    def _restart(self) -> None:
        self.alpha, self._mu = None, None
        self._updated = False

    def _predict(self, increment: FloatArray) -> None:
        assert self.alpha is not None
        belief = KernelMean(self.kernels.kernel, self.kernels.points, self.alpha)
        self._mu = self.kernels.project(
            self._transition.predict(belief, self.kernels.points, increment)
        )

    def _without_image(self) -> FloatArray:
        """Weights of the belief after a prediction."""
        assert self._mu is not None
        return self._mu

    def _posterior(self, mu: FloatArray, k_y: FloatArray) -> FloatArray:
        weights = squared_bayes_rule(self.kernels.gram_y, mu, k_y, self.config.delta)
        if not weights.max() > 0.0:
            raise KernelError('weights: expected one that is positive, got none')
        return weights

    def _positive_part(self) -> tuple[Points, dict[str, float]]:
        """Points of the positive weights, and the fraction of the negative ones."""
        assert self.alpha is not None
        weights = np.maximum(self.alpha, 0.0)
        total = weights.sum()
        if not total > 0.0:  # a prediction that has left the map
            weights, total = np.ones_like(weights), len(weights)
        negative = float(-np.minimum(self.alpha, 0.0).sum() / total)
        return Points(self.kernel_map.poses, weights / total), self.diagnostics | {
            'negative_mass': negative
        }


def moved(points: FloatArray, increment: FloatArray) -> FloatArray:
    """Noise-free motion f of points (n, 4), x, y, cos, sin, by an odometry increment (3,)."""
    poses = se2.compose(se2.from_plane_and_circle(points), increment)
    return se2.to_plane_and_circle(poses)
