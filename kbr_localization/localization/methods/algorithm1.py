"""
[MbKSR] Algorithm 1: the belief is a kernel mean on the map's poses.

As printed it updates at every image and keeps the image kernel as it is; gating, composition of
several predictions and a sharper image kernel can be switched on one by one by `FilterConfig`.
"""

from __future__ import annotations

from kbr_localization import se2
from kbr_localization.errors import KernelError, LocalizationError
from kbr_localization.kernels.kernels import GaussianKernel
from kbr_localization.kernels.noise import GaussianNoise
from kbr_localization.kernels.rules import (
    BAYES_RULES,
    conditional_mean,
    model_based_sum_rule,
    nonparametric_sum_rule,
    normalise,
    regularise,
)
from kbr_localization.localization.config import as_printed, FilterConfig
from kbr_localization.localization.kbr.belief import Belief
from kbr_localization.localization.kbr.gate import UpdateGate
from kbr_localization.localization.kbr.summary import nothing_known, summarize
from kbr_localization.localization.localizer import PoseEstimate
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.motion import without_drift
from kbr_localization.se2 import FloatArray
import numpy as np

_TRACE = 1e-8  # of the largest weight: what is smaller counts as zero in a prior


LARGEST_DENSE = 8000
"""Map images up to which the dense matrices of the printed algorithms are made."""


class MapPoseFilter:
    """
    Kernel Bayes filter whose points are the map's poses, with signed weights alpha (n,).

    The variances of the motion are those of one step from image to image; over several steps
    they add up. See `Localizer` for the interface.
    """

    def __init__(self, kernel_map: KernelMap, config: FilterConfig | None = None) -> None:
        _refuse_large(kernel_map)
        self.kernel_map = kernel_map
        self.config = config or as_printed(kernel_map.filter_config)
        self.gate = UpdateGate(self.config.update_min_d, self.config.update_min_a)
        self._drift = kernel_map.motion_noise.known_drift(self.config.odometry_drift)
        h, a = self.config.position_bandwidth, self.config.heading_bandwidth
        self.kernel = GaussianKernel([h * h, h * h, a * a, a * a])
        self._points = se2.to_plane_and_circle(kernel_map.poses)
        n, peak = len(kernel_map), self.kernel.peak(4)
        gram = self.kernel.gram(self._points)
        self.regularised_gram = regularise(gram, self.config.state_ridge * peak / n)
        self.gram_y = self._image_kernel(
            kernel_map.describer.cross_gram(kernel_map.descriptors, kernel_map.descriptors)
        )
        self.why: dict[str, float] = {'updates': 0.0, 'restarts': 0.0}
        self.alpha: FloatArray | None = None
        self._mu: FloatArray | None = None
        self._increment, self._steps = np.zeros(3), 0
        self._updated = False

    def initialize(self, pose: FloatArray, covariance: FloatArray) -> None:
        """Start from a Gaussian about a pose (3,), covariance (3, 3)."""
        self._restart()
        turn = np.eye(4)[:, :3].copy()
        turn[2:, 2] = [-np.sin(pose[2]), np.cos(pose[2])]
        spread = turn @ covariance @ turn.T + 1e-9 * np.eye(4)
        wide = GaussianNoise(spread).conditional_kernel_mean(self.kernel)
        centre = se2.to_plane_and_circle(pose)[np.newaxis]
        self._mu = self._on_map(model_based_sum_rule(wide, self._points, centre, np.ones(1)))
        self.alpha = self._without_image()

    def initialize_globally(self) -> None:
        """Start from the uniform law on the map."""
        self._restart()
        n = len(self.kernel_map)
        self._mu = np.full(n, 1.0 / n)

    def wants_image(self) -> bool:
        """Whether an update is due after the motion so far."""
        return self.gate.due()

    def predict(self, odometry_increment: FloatArray) -> None:
        """Compose the increment; the sum rule is applied when an image arrives."""
        self.gate.add(odometry_increment)
        self._updated = False
        self._increment = se2.compose(self._increment, self._corrected(odometry_increment))
        moved = bool(np.any(odometry_increment != 0.0))
        self._steps += moved
        if not self.config.multi_step and moved and self.alpha is not None:
            self._predict()
            self.alpha = self._without_image()

    def update(self, descriptor: np.ndarray) -> None:
        """Apply the model-based kernel sum rule and the kernel Bayes rule."""
        self.update_similarities(self.kernel_map.similarities(descriptor))

    def update_similarities(self, similarities: FloatArray) -> None:
        """Update by the kernel vector (n,) of an image."""
        self.gate.restart()
        self._updated = True
        self.why['updates'] += 1
        self.why['best_similarity'] = float(similarities.max())
        if self.alpha is not None and self._steps:
            self._predict()
        if self._mu is None:
            return
        k_y = self._image_kernel(similarities)
        try:
            rule = BAYES_RULES[self.config.bayes_rule]
            prior = without_traces(self._mu)
            self.alpha = normalise(rule(self.gram_y, prior, k_y, self.config.delta))
        except KernelError:
            self.why['restarts'] += 1
            self.alpha = self._conditional_mean(k_y)
        self._mu = self.alpha

    def estimate(self) -> PoseEstimate:
        """Summarize the positive part of the belief about its highest mode."""
        if self.alpha is None:
            return nothing_known(self.why, self._updated)
        weights = np.maximum(self.alpha, 0.0)
        points = se2.compose(self.kernel_map.poses, self._increment)
        belief = Belief(points, weights / weights.sum())
        pending = np.zeros(3)
        why = self.why | {'negative_mass': float(-np.minimum(self.alpha, 0.0).sum())}
        return summarize(belief, self.config, pending, 1.0, why, self._updated)

    def particles(self, size: int) -> FloatArray:
        """Return the `size` heaviest map poses (at most)."""
        if self.alpha is None:
            return np.zeros((0, 3))
        return self.kernel_map.poses[np.argsort(-self.alpha)[:size]]

    def _corrected(self, increment: FloatArray) -> FloatArray:
        return without_drift(increment, self._drift)

    def _restart(self) -> None:
        self.alpha, self._mu = None, None
        self._increment, self._steps = np.zeros(3), 0
        self._updated = False
        self.gate.reopen()

    def _without_image(self) -> FloatArray:
        """Return the predicted belief; one that has left the map may be anywhere on it."""
        assert self._mu is not None
        try:
            return normalise(np.maximum(self._mu, 0.0))
        except KernelError:
            self.why['restarts'] += 1
            n = len(self.kernel_map)
            self._mu = np.full(n, 1.0 / n)
            return self._mu

    def _predict(self) -> None:
        """Mb-KSR with the composed increment, evaluated at the map's poses, then NP-KSR."""
        assert self.alpha is not None
        variances = self._steps * self.config.noise_scale * self.kernel_map.motion_noise.step
        wide = GaussianNoise(variances).conditional_kernel_mean(self.kernel)
        moved = se2.to_plane_and_circle(se2.compose(self.kernel_map.poses, self._increment))
        prediction = model_based_sum_rule(wide, self._points, moved, self.alpha)
        self._mu = self._on_map(prediction)
        self._increment, self._steps = np.zeros(3), 0

    def _on_map(self, kernel_mean_at_map: FloatArray) -> FloatArray:
        return nonparametric_sum_rule(self.regularised_gram, kernel_mean_at_map)

    def _conditional_mean(self, k_y: FloatArray) -> FloatArray:
        n = len(self.kernel_map)
        weights = conditional_mean(regularise(self.gram_y, self.config.delta / n), k_y)
        return normalise(np.maximum(weights, 0.0) + 1e-12)

    def _image_kernel(self, similarities: FloatArray) -> FloatArray:
        tau = self.config.sharpening
        return np.exp((similarities - 1.0) / tau) if tau > 0.0 else similarities


def without_traces(mu: FloatArray) -> FloatArray:
    """
    Prior weights mu (n,) with zeros in place of what is 1e-8 of the largest or less.

    The Bayes rules give such a point no weight worth mentioning and cost O(m^3) for the m points
    that are not zero: while tracking, a few of the map's.
    """
    size = np.abs(mu)
    return np.where(size > _TRACE * size.max(), mu, 0.0)


def _refuse_large(kernel_map: KernelMap) -> None:
    n = len(kernel_map)
    if n > LARGEST_DENSE:
        raise LocalizationError(
            f'the printed algorithms need matrices of {n} x {n} numbers ({8e-9 * n * n:.0f} GB '
            f'each): expected a map of at most {LARGEST_DENSE} images; take the method kbr, or '
            f'make a smaller map with `kbr map prune MAP --max-images {LARGEST_DENSE}`'
        )
