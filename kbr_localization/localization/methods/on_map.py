"""
Beliefs that are kernel means on the map's poses: Algorithm 1 of [MbKSR], fKBF and KMCF.

With alpha (n,) the signed weights of the posterior and u the odometry's increment (section 6.3),
Algorithm 1 as printed takes for each image the steps

    m_j = sum_i alpha_i m(X_j | X_i, u)                 (27), Mb-KSR
    mu = (G_X + n epsilon I)^-1 m                       (29)
    alpha = L G_Y ((L G_Y)^2 + delta I)^-1 L k_Y(y),    L = diag(mu)   (31)

and reports the map pose of the largest weight. The weights are not scaled, unless `normalise` is
set. The fully-nonparametric kernel Bayes filter ([KBR] section 4.3) learns the motion from the
transitions of the runs of the map: a kernel on the controls multiplies k_X in the prediction. The
kernel Monte Carlo filter (Kanagawa, Nishiyama, Gretton, Fukumizu, AAAI 2014 and Neural Computation
28, 2016) predicts by sampling and resamples by herding: with points U_j of the prior,

    U_j ~ p(x' | U_j, u),    m_i = mean of k_X(X_i, U_j),    then mu and alpha as above,
    U_1, U_2, ... = herding of sum_i alpha_i k_X(., X_i) in {X_i : alpha_i is not 0}.
"""

from typing import Any

from kbr_localization import se2
from kbr_localization.errors import KernelError, LocalizationError
from kbr_localization.kernels.inference import AdditiveNoiseModel
from kbr_localization.kernels.kernel_mean import KernelMean
from kbr_localization.kernels.kernels import GaussianKernel
from kbr_localization.kernels.noise import GaussianNoise
from kbr_localization.kernels.rules import (
    conditional_mean,
    nonparametric_sum_rule,
    normalise,
    regularise,
    squared_bayes_rule,
)
from kbr_localization.localization.filter.hypotheses import Points
from kbr_localization.localization.localizer import PoseEstimate
from kbr_localization.localization.methods.base import config_class, GATED, MapLocalizer, ON_MAP
from kbr_localization.se2 import FloatArray
import numpy as np
from scipy.spatial import cKDTree
from scipy.spatial.distance import pdist

LARGEST_DENSE = 8000
"""Largest number of map images for which Gram matrices are computed."""
MIN_TRANSITIONS = 2
"""Steps from an image of a run to the next one, without which `fkbf` learns no motion."""
SAMPLE = 1000
"""Poses drawn from the Gaussian that a belief starts from."""


class OnMap(MapLocalizer):
    """
    A belief with weights alpha (n,) on the map poses, corrected by the kernel Bayes rule.

    `kernel`: Gaussian k_X on (x, y, cos, sin), normalised as a density; `states` (n, 4); `gram_x`,
    `gram_y` (n, n), with the image kernel k_Y = exp((k - 1) / sharpening), or k itself. Raises
    LocalizationError for a map of more than `LARGEST_DENSE` images.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        kernel_map, config, n = self.kernel_map, self.config, len(self.kernel_map)
        if n > LARGEST_DENSE:
            raise LocalizationError(
                f'this method needs matrices of {n} x {n} numbers ({8e-9 * n * n:.0f} GB each): '
                f'expected a map of at most {LARGEST_DENSE} images; take the method kbr, or make '
                f'a smaller map with `kbr map prune MAP --max-images {LARGEST_DENSE}`'
            )
        widths = np.array([config.position_bandwidth] * 2 + [config.heading_bandwidth] * 2)
        self.kernel = GaussianKernel(widths**2, normalised=True)
        self.ridge = config.state_ridge * self.kernel.peak(4)
        self.states = se2.to_plane_and_circle(kernel_map.poses)
        self.gram_x = self.kernel.gram(self.states)
        self._regularised = regularise(self.gram_x, self.ridge / n)
        rows = kernel_map.describer.cross_gram(kernel_map.descriptors, kernel_map.descriptors)
        self.gram_y = self.image_kernel(rows)
        self.gaps = gaps_between(kernel_map.poses)
        self.alpha: FloatArray | None = None
        self.mu: FloatArray | None = None  # weights of the prior of the next image
        self.diagnostics['restarts'] = 0.0

    def start(self, pose: FloatArray | None, covariance: FloatArray | None) -> None:
        """Project a Gaussian about a pose (3,), or the uniform distribution, on the map poses."""
        if pose is None or covariance is None:
            self.alpha, self.mu = None, self.projected(self.gram_x.mean(axis=1))
        else:
            drawn = Points.gaussian(pose, covariance, SAMPLE, np.random.default_rng(0))
            self.alpha = self.mu = self.mean_of(drawn.poses)

    def move(self, increment: FloatArray) -> None:
        if self.alpha is not None:
            self.alpha = self.mu = self.predicted(self.alpha, increment)

    def predicted(self, alpha: FloatArray, increment: FloatArray) -> FloatArray:
        """Return weights mu (n,) after an odometry increment (3,)."""
        raise NotImplementedError

    def image_kernel(self, similarities: FloatArray) -> FloatArray:
        tau = getattr(self.config, 'sharpening', 0.0)
        values = np.asarray(similarities, dtype=np.float64)
        return np.asarray(np.exp((values - 1.0) / tau)) if tau > 0.0 else values

    def projected(self, kernel_mean_at_map: FloatArray) -> FloatArray:
        """Return weights mu (n,) of a kernel mean, given its values at the map poses: NP-KSR."""
        return nonparametric_sum_rule(self._regularised, kernel_mean_at_map)

    def mean_of(self, poses: FloatArray) -> FloatArray:
        """Return weights mu (n,) of the kernel mean of equally weighted poses (m, 3): NP-KSR."""
        sample = se2.to_plane_and_circle(poses)
        return self.projected(self.kernel.cross_gram(self.states, sample).mean(axis=1))

    def weigh(self, similarities: FloatArray) -> None:
        """Apply the kernel Bayes rule, or the conditional mean where it leaves no weight."""
        if self.mu is None:
            return
        k_y, epsilon = self.image_kernel(similarities), self.config.delta / len(self.states)
        try:
            self.alpha = self.posterior(self.mu, k_y)
        except KernelError:
            self.diagnostics['restarts'] += 1
            weights = conditional_mean(regularise(self.gram_y, epsilon), k_y)
            self.alpha = normalise(np.maximum(weights, 0.0) + 1e-12)
        self.mu = self.alpha

    def posterior(self, mu: FloatArray, k_y: FloatArray) -> FloatArray:
        """Return weights (n,) of sum 1, given an image with kernel vector (n,)."""
        # negligible prior weights get negligible posterior weights, at a cost of O(m^3)
        size = np.abs(mu)
        mu = np.where(size > 1e-8 * size.max(), mu, 0.0)
        return normalise(squared_bayes_rule(self.gram_y, mu, k_y, self.config.delta))

    def belief(self) -> Points | None:
        """Return the map poses with the positive part of the weights."""
        if self.alpha is None:
            return None
        weights = np.maximum(self.alpha, 0.0)
        if not weights.sum() > 0.0:  # the prediction has left the map
            weights = np.ones_like(weights)
        self.diagnostics['negative_mass'] = float((weights - self.alpha).sum() / weights.sum())
        return Points(self.kernel_map.poses, weights / weights.sum())


class Algorithm1(OnMap):
    """
    The localizer `algorithm1`, as printed; see `Localizer` for the interface.

    The variances of the motion are the maximum-likelihood estimates for one step from image to
    image, systematic errors included. Where the posterior has no positive weight, a case that the
    paper does not treat, restart from the conditional mean.
    """

    parameters = config_class('Algorithm1Config', **ON_MAP | {'state_ridge': 0.5}, normalise=False)

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        noise = GaussianNoise(self.kernel_map.motion_noise.step)
        self._motion = AdditiveNoiseModel(_move_states, noise)

    def predicted(self, alpha: FloatArray, increment: FloatArray) -> FloatArray:
        """Return weights mu (n,) after an odometry increment (3,): equations (27) and (29)."""
        belief = KernelMean(self.kernel, self.states, alpha)
        return self.projected(self._motion.predict(belief, self.states, increment))

    def posterior(self, mu: FloatArray, k_y: FloatArray) -> FloatArray:
        """Return weights (n,) given an image with kernel vector (n,): equation (31)."""
        weights = squared_bayes_rule(self.gram_y, mu, k_y, self.config.delta)
        if not weights.max() > 0.0:
            raise KernelError('weights: expected one that is positive, got none')
        return normalise(weights) if self.config.normalise else weights

    def estimate(self) -> PoseEstimate:
        """Return the heaviest map pose, with mass and second moment of the positive weights."""
        heaviest = 0 if self.alpha is None else int(np.argmax(self.alpha))
        return self.summarize(0.0, self.kernel_map.poses[heaviest].copy())


class FullyNonparametricFilter(OnMap):
    """
    The localizer `fkbf`: prediction mu = (G_X + n eps I)^-1 G_XX' w with learnt w.

    Differences from the paper: w is divided by its sum (with few transitions the weights would
    vanish step by step), negative weights are cut off between two images, and the pose is the mean
    about the highest mode. Raises LocalizationError for a map with fewer than `MIN_TRANSITIONS`
    transitions.
    """

    parameters = config_class('OnMapConfig', **ON_MAP)

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        kernel_map = self.kernel_map
        known = np.flatnonzero(np.isfinite(kernel_map.controls).all(axis=1))
        if known.size < MIN_TRANSITIONS:
            raise LocalizationError(
                'fkbf learns the motion from steps of the odometry between images of the map: '
                f'expected {MIN_TRANSITIONS} or more, got {known.size}; take a map of more '
                'images, or another method'
            )
        # one width for metres and radians; the map's controls have the errors of the odometry
        self.controls = np.asarray(kernel_map.controls[known], dtype=np.float64)
        distances = pdist(self.controls[:: max(1, known.size // 500)])
        width = max(float(np.median(distances)), 1e-3)
        self.control_kernel = GaussianKernel(width**2, normalised=False)
        joint = self.gram_x[np.ix_(known, known)] * self.control_kernel.gram(self.controls)
        self._joint = regularise(joint, self.ridge / known.size)
        following = se2.to_plane_and_circle(kernel_map.next_poses[known])
        self._following = self.kernel.cross_gram(self.states, following)
        self._from_map = self.gram_x[known]

    def start(self, pose: FloatArray | None, covariance: FloatArray | None) -> None:
        super().start(pose, covariance)
        if pose is None:
            self.mu = self._uniform()
        self._cut_off()

    def move(self, increment: FloatArray) -> None:
        if np.any(increment != 0.0):
            super().move(increment)
            self._cut_off()

    def predicted(self, alpha: FloatArray, increment: FloatArray) -> FloatArray:
        closeness = self.control_kernel.cross_gram(self.controls, increment[np.newaxis])[:, 0]
        weights = nonparametric_sum_rule(self._joint, (self._from_map @ alpha) * closeness)
        total = float(np.sum(weights))
        return self.projected(self._following @ (weights / total if total > 1e-9 else weights))

    def _cut_off(self) -> None:
        """Keep the positive weights of a prediction; without any, it has left the map: restart."""
        if self.alpha is not None:
            try:
                self.alpha = normalise(np.maximum(self.alpha, 0.0))
            except KernelError:
                self.diagnostics['restarts'] += 1
                self.alpha = self.mu = self._uniform()

    def estimate(self) -> PoseEstimate:
        return self.summarize(0.8 * self.config.position_bandwidth)

    def _uniform(self) -> FloatArray:
        return np.full(len(self.kernel_map), 1.0 / len(self.kernel_map))


class KernelMonteCarloFilter(OnMap):
    """
    The localizer `kmcf`; see `Localizer` for the interface.

    `alpha` (n,): weights on the map poses after an image, None once the robot has moved; `points`:
    from then on the equally weighted sample, None before. The paper resamples only when the
    effective size is small; while a robot is tracked it always is.
    """

    parameters = config_class(
        'KmcfConfig',
        **GATED
        | ON_MAP
        | {
            'covariance_scale': 2.0,
            'update_min_d': 0.33,
            'update_min_a': 0.12,
            'noise_scale': 0.55,
            'position_bandwidth': 1.0,
            'heading_bandwidth': 0.6,
            'state_ridge': 0.24,
            'delta': 1.2e-3,
            'sharpening': 0.017,
            'points': 400,
        },
    )

    points: Points | None = None

    def start(self, pose: FloatArray | None, covariance: FloatArray | None) -> None:
        super().start(None, None)
        self.points = None
        if pose is not None and covariance is not None:
            self.points = Points.gaussian(pose, covariance, self.config.points, self.rng)

    def move(self, increment: FloatArray) -> None:
        """Herd points from the posterior of the last image, then move them with noise."""
        if self.alpha is not None:
            self.points, self.alpha = self.herded(self.alpha), None
        if self.points is not None:
            self.drive(self.points, increment)

    def weigh(self, similarities: FloatArray) -> None:
        """Project the sample, or the last posterior if there is none, and weigh it."""
        if self.points is not None:
            self.mu = self.mean_of(self.points.poses)
        elif self.alpha is not None:
            self.mu = self.projected(self.gram_x @ self.alpha)
        super().weigh(similarities)
        self.points = None

    def herded(self, alpha: FloatArray) -> Points:
        """Herd with weights alpha (n,) on the known Gram matrix, among map poses with weight."""
        active = np.flatnonzero(np.abs(alpha) > 1e-6 * np.abs(alpha).max())
        gram = self.gram_x[np.ix_(active, active)]
        target, repulsion = gram @ alpha[active], np.zeros(len(active))
        size = self.config.points
        chosen = np.empty(size, dtype=np.int64)
        for t in range(size):
            chosen[t] = np.argmax(target - repulsion / (t + 1))
            repulsion += gram[chosen[t]]
        return Points(self.kernel_map.poses[active[chosen]], np.full(size, 1.0 / size))

    def belief(self) -> Points | None:
        return super().belief() if self.points is None else self.points


def gaps_between(poses: FloatArray) -> FloatArray:
    """Return the covariance (3, 3) of a pose that lies between two neighbours of poses (n, 3)."""
    smallest = 1e-4 * np.eye(3)
    if len(poses) < 2:
        return smallest
    distances, nearest = cKDTree(poses[:, :2]).query(poses[:, :2], k=2)
    turns = se2.wrap_angle(poses[nearest[:, 1], 2] - poses[:, 2])
    square = np.mean(distances[:, 1] ** 2)
    # poses at one place may have any heading: take the median turn between neighbours
    return smallest + 0.25 * np.diag([square, square, np.median(turns**2)])


def _move_states(states: FloatArray, increment: FloatArray) -> FloatArray:
    """Return states f(x, u) (n, 4): x, y, cos, sin after a noise-free odometry increment (3,)."""
    poses = se2.compose(se2.from_plane_and_circle(states), increment)
    return se2.to_plane_and_circle(poses)
