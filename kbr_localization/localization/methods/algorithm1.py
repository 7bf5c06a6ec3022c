"""
[MbKSR] Algorithm 1 as printed: the belief is a kernel mean on the map's poses.

With alpha (n,) the weights of the posterior, u the odometry's increment and f its motion
(section 6.3), each image takes the steps

    m_j = sum_i alpha_i m(X_j | f(X_i, u))              (27), Mb-KSR
    mu = (G_X + n epsilon I)^-1 m                       (29)
    alpha = L G_Y ((L G_Y)^2 + delta I)^-1 L k_Y(y),    L = diag(mu)   (31)

and the answer is the map pose of the largest weight. Weights are signed and nothing scales them,
unless `normalise` is set.
"""

from __future__ import annotations

from dataclasses import dataclass

from kbr_localization import se2
from kbr_localization.configuration import parameter, with_default
from kbr_localization.errors import KernelError
from kbr_localization.kernels.filters import ModelTransition
from kbr_localization.kernels.inference import AdditiveNoiseModel
from kbr_localization.kernels.kernel_mean import KernelMean
from kbr_localization.kernels.noise import GaussianNoise
from kbr_localization.kernels.rules import normalise, squared_bayes_rule
from kbr_localization.localization.filter.points import Points
from kbr_localization.localization.localizer import nothing_known, PoseEstimate
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.base import (
    MapLocalizer,
    MethodConfig,
    odometry_calibration,
)
from kbr_localization.localization.methods.map_kernels import MapKernels
from kbr_localization.se2 import FloatArray
import numpy as np


@dataclass(frozen=True)
class OnMapConfig(MethodConfig):
    """Parameters of a belief on the map poses; the defaults suit `fkbf`."""

    position_bandwidth: float = parameter(
        1.3, 'bandwidth of k_X in x and y, metres', 1e-3, 100.0, search=(0.1, 3.0)
    )
    heading_bandwidth: float = parameter(
        0.45, 'bandwidth of k_X in (cos, sin) of the heading', 1e-3, 100.0, search=(0.1, 1.5)
    )
    state_ridge: float = parameter(
        0.12,
        'n epsilon in G_X + n epsilon I, for k_X with unit diagonal',
        1e-9,
        1e3,
        search=(1e-4, 30.0),
    )
    delta: float = parameter(
        2e-3, 'regularisation delta of the kernel Bayes rule', 1e-12, 1e12, search=(1e-8, 1.0)
    )


@dataclass(frozen=True)
class Algorithm1Config(OnMapConfig):
    """Parameters of Algorithm 1 of [MbKSR]."""

    state_ridge: float = with_default(OnMapConfig, 'state_ridge', 0.5)
    odometry_calibration: str = odometry_calibration('off')
    normalise: bool = parameter(False, 'scale the weights of every posterior to the sum 1')


class Algorithm1(MapLocalizer):
    """
    The localizer `algorithm1`, with signed weights alpha (n,) on the map poses.

    The variances of the motion are the maximum-likelihood estimates for one step from image to
    image, systematic errors included. Where the posterior has no positive weight at all, which the
    paper does not treat, it starts again from the conditional mean. See `Localizer` for the
    interface.
    """

    def __init__(
        self,
        kernel_map: KernelMap,
        config: OnMapConfig | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__(kernel_map, config or Algorithm1Config(), rng)
        self.diagnostics['restarts'] = 0.0
        self.kernels = MapKernels(kernel_map, self.config)
        self.gaps = self.kernels.gaps
        noise = GaussianNoise(kernel_map.motion_noise.step)
        self._transition = ModelTransition(AdditiveNoiseModel(moved, noise))
        self.alpha: FloatArray | None = None
        self.mu: FloatArray | None = None  # the prior weights of the next image

    def start(self, pose: FloatArray, covariance: FloatArray) -> None:
        """Project a Gaussian about a pose (3,), covariance (3, 3), on the map."""
        self.mu = self.kernels.project(self.kernels.gaussian_at_map(pose, covariance))
        self.alpha = self.after_prediction(self.mu)

    def start_anywhere(self) -> None:
        """Project the uniform law on the map."""
        self.alpha, self.mu = None, self.kernels.project(self.kernels.gram_x.mean(axis=1))

    def move(self, increment: FloatArray) -> None:
        """Apply the kernel sum rule, also to an increment (3,) of zero."""
        if self.alpha is not None:
            self.mu = self.predicted(self.alpha, increment)
            self.alpha = self.after_prediction(self.mu)

    def weigh(self, similarities: FloatArray) -> None:
        """Apply the kernel Bayes rule to the kernel values (n,) of an image."""
        if self.mu is None:
            return
        k_y = self.kernels.image_kernel(similarities)
        try:
            self.alpha = self.posterior(self.mu, k_y)
        except KernelError:
            self.diagnostics['restarts'] += 1
            self.alpha = self.kernels.given_image_alone(k_y, self.config.delta)
        self.mu = self.alpha

    def predicted(self, alpha: FloatArray, increment: FloatArray) -> FloatArray:
        """Weights mu (n,) after an odometry increment (3,): equations (27) and (29)."""
        belief = KernelMean(self.kernels.kernel, self.kernels.points, alpha)
        motion = self.corrected(increment)
        return self.kernels.project(self._transition.predict(belief, self.kernels.points, motion))

    def after_prediction(self, mu: FloatArray) -> FloatArray:
        """Weights (n,) of the belief after a prediction, until an image arrives."""
        return mu

    def posterior(self, mu: FloatArray, k_y: FloatArray) -> FloatArray:
        """Weights (n,) given an image with kernel vector (n,): equation (31)."""
        weights = squared_bayes_rule(self.kernels.gram_y, mu, k_y, self.config.delta)
        if not weights.max() > 0.0:
            raise KernelError('weights: expected one that is positive, got none')
        return normalise(weights) if self.config.normalise else weights

    def belief(self) -> Points | None:
        """Return the map poses with the positive part of the weights."""
        if self.alpha is None:
            return None
        weights = np.maximum(self.alpha, 0.0)
        if not weights.sum() > 0.0:  # a prediction that has left the map
            weights = np.ones_like(weights)
        self.diagnostics['negative_mass'] = float(-np.minimum(self.alpha, 0.0).sum())
        self.diagnostics['negative_mass'] /= float(weights.sum())
        return Points(self.kernel_map.poses, weights / weights.sum())

    def estimate(self) -> PoseEstimate:
        """Return the heaviest map pose, with mass and spread of the positive weights."""
        belief = self.belief()
        if belief is None or self.alpha is None:
            return nothing_known(self.diagnostics, self._updated)
        heaviest = self.kernel_map.poses[int(np.argmax(self.alpha))].copy()
        return self.summarize(belief, heaviest, chosen=heaviest)


def moved(points: FloatArray, increment: FloatArray) -> FloatArray:
    """Noise-free motion f of points (n, 4), x, y, cos, sin, by an odometry increment (3,)."""
    poses = se2.compose(se2.from_plane_and_circle(points), increment)
    return se2.to_plane_and_circle(poses)
