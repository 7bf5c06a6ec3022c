"""
The subspace kernel Kalman filter [KKR].

Gebhardt, Kupcsik, Neumann, *The Kernel Kalman Rule: Efficient Nonparametric Inference with
Recursive Least Squares*, AAAI 2017, and Machine Learning 108 (2019). The belief is the mean and
the covariance of the features of the pose, in the span of some map poses; the image's features
are a linear function of them, learnt from the map. With Psi (n, r) the features of the map poses
in an orthonormal basis of the subspace, B = Psi (Psi^T Psi + lambda I)^-1 and kappa the variance
of the observation, the conditional operator of the image given the pose maps a mean nu (r,) to
sum_i (B nu)_i k_Y(., Y_i), and the kernel Kalman rule is

    nu <- nu + Q (k_Y(y) - G_Y B nu),     S <- S - Q G_Y B S,
    Q = S B^T (G_Y B S B^T + kappa I)^-1.

The motion is F nu with F the conditional operator of the pose after the increment. The paper
learns it from transitions; with controls every transition of a map would be needed with every
increment, so the map poses are pushed through the odometry model instead: E psi(x') in closed
form (Mb-KSR). The covariance V of what F leaves over, (1/n) sum_i r_i r_i^T with
r_i = psi(x'_i) - F psi_i, is estimated from one x'_i drawn for each map pose.
"""

from __future__ import annotations

from kbr_localization import se2
from kbr_localization.kernels.low_rank import incomplete_cholesky
from kbr_localization.kernels.noise import GaussianNoise
from kbr_localization.localization import calibration
from kbr_localization.localization.filter.points import Points
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.belief_method import BeliefMethod
from kbr_localization.localization.methods.configs import KernelKalmanConfig
from kbr_localization.localization.methods.map_kernels import MapKernels, pose_kernel
from kbr_localization.se2 import FloatArray
import numpy as np
import scipy.linalg

_TOLERANCE = 1e-6  # of the trace of G_X that the subspace may leave out
_START_SAMPLE = 1000
_RINGING = 0.3  # of the largest weight: what a regularised inverse leaves elsewhere is smaller


class PoseSubspace:
    """
    Features of poses in the span of at most `rank` map poses, chosen by pivoted Cholesky.

    `features` Psi (n, r) of the map poses; `readout` B (n, r): weights on the map poses of a mean
    in the subspace are B nu.
    """

    def __init__(self, kernels: MapKernels, rank: int, ridge: float) -> None:
        self._kernel, points = kernels.kernel, kernels.points
        peak = self._kernel.peak(4)
        self._scale = float(np.sqrt(peak))
        gram = incomplete_cholesky(self._kernel, points, _TOLERANCE, min(rank, len(points)))
        self._pivots, self._triangle = points[gram.pivots], gram.triangle
        self.features = np.asarray(gram.factor) / self._scale
        inner = self.features.T @ self.features + ridge * np.eye(self.features.shape[1])
        factor = scipy.linalg.cho_factor(inner, lower=True)
        self.readout = np.asarray(scipy.linalg.cho_solve(factor, self.features.T).T)

    def of(self, poses: FloatArray) -> FloatArray:
        """Features (m, r) of poses (m, 3)."""
        points = se2.to_plane_and_circle(poses)
        return self._projected(self._kernel.cross_gram(self._pivots, points))

    def expected(self, poses: FloatArray, variances: FloatArray) -> FloatArray:
        """Return E psi(x) (m, r) for Gaussian x about poses (m, 3), `variances` (4,): Mb-KSR."""
        wide = GaussianNoise(variances).conditional_kernel_mean(self._kernel)
        return self._projected(wide.cross_gram(self._pivots, se2.to_plane_and_circle(poses)))

    def _projected(self, columns: FloatArray) -> FloatArray:
        rows = scipy.linalg.solve_triangular(self._triangle, columns, lower=True)
        return np.asarray(rows.T) / self._scale


class KernelKalmanFilter(BeliefMethod):
    """
    The localizer `kernel-kalman`; see `Localizer` for the interface.

    `mean` nu (r,) and `covariance` S (r, r) of the features, None without a belief.
    """

    config: KernelKalmanConfig

    def __init__(
        self,
        kernel_map: KernelMap,
        config: KernelKalmanConfig | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__(kernel_map, config or KernelKalmanConfig(), rng)
        kernel = pose_kernel(self.config.position_bandwidth, self.config.heading_bandwidth)
        self.kernels = MapKernels(kernel_map, kernel, self.config.sharpening)
        self.subspace = PoseSubspace(self.kernels, self.config.subspace, self.config.state_ridge)
        readout = self.subspace.readout
        self._information = readout.T @ self.kernels.gram_y @ readout / self.config.delta
        self.gaps, self.diagnostics = self.kernels.gaps, {'updates': 0.0}
        self.mean: FloatArray | None = None
        self.covariance = np.zeros((0, 0))
        self._increment, self._variances = np.zeros(3), np.zeros(3)
        self._known = False

    def initialize(self, pose: FloatArray, covariance: FloatArray) -> None:
        """Start from a Gaussian about a pose (3,), covariance (3, 3)."""
        self._reset()
        sample = Points.gaussian(pose, covariance, _START_SAMPLE, self.rng).poses
        self.mean, self.covariance = _moments(self.subspace.of(sample))
        self._known = True

    def initialize_globally(self) -> None:
        """Start from the uniform law on the map."""
        self._reset()
        self.mean, self.covariance = _moments(self.subspace.features)

    def predict(self, odometry_increment: FloatArray) -> None:
        """Compose an increment (3,); the transition is applied when an image arrives."""
        self.gate.add(odometry_increment)
        self._updated = False
        increment = calibration.moved(odometry_increment, self._errors)
        self._increment = se2.compose(self._increment, increment)
        variances = self.kernel_map.motion_noise.variances(odometry_increment)
        self._variances = self._variances + self.config.noise_scale * variances

    def update_similarities(self, similarities: FloatArray) -> None:
        """Apply the transition and the kernel Kalman rule to the kernel vector (n,)."""
        self.gate.restart()
        self._updated = True
        self.diagnostics['updates'] += 1
        self.diagnostics['best_similarity'] = float(similarities.max())
        if self.mean is None:
            return
        if self._known and np.any(self._variances > 0.0):
            self.move()
        self._increment, self._variances = np.zeros(3), np.zeros(3)
        self.correct(self.kernels.image_kernel(similarities))
        self._known = True

    def move(self) -> None:
        """Apply nu <- F nu, S <- F S F^T + V for the motion since the last image."""
        assert self.mean is not None
        moved = se2.compose(self.kernel_map.poses, self._increment)
        # noise of the wheels in any direction, that of the heading on a circle in any place
        position, turn = self._variances[:2].mean(), 0.5 * self._variances[2]
        variances = np.maximum([position, position, turn, turn], 1e-12)
        expected = self.subspace.expected(moved, variances)
        transition = expected.T @ self.subspace.readout
        errors = np.sqrt(self._variances) * self.rng.standard_normal(moved.shape)
        drawn = self.subspace.of(se2.compose(moved, errors))
        residuals = drawn - self.subspace.features @ transition.T
        noise = residuals.T @ residuals / len(residuals)
        self.mean = transition @ self.mean
        self.covariance = transition @ self.covariance @ transition.T + noise

    def correct(self, k_y: FloatArray) -> None:
        """
        Apply the kernel Kalman rule for an image with kernel vector (n,).

        In the form of the information filter, S <- (I + S B^T G_Y B / kappa)^-1 S and
        nu <- nu + S B^T (k_Y - G_Y B nu) / kappa, which solves for r numbers instead of n.
        """
        assert self.mean is not None
        readout, r = self.subspace.readout, len(self.mean)
        gain = np.linalg.solve(np.eye(r) + self.covariance @ self._information, self.covariance)
        self.covariance = 0.5 * (gain + gain.T)
        innovation = readout.T @ k_y / self.config.delta - self._information @ self.mean
        self.mean = self.mean + self.covariance @ innovation

    def _reset(self) -> None:
        self.mean, self.covariance = None, np.zeros((0, 0))
        self._increment, self._variances = np.zeros(3), np.zeros(3)
        self._known = self._updated = False
        self.gate.reopen()

    def weighted_points(self) -> Points | None:
        """Return the positive part of the weights, on the map poses where the robot is by now."""
        if self.mean is None or not self._known:
            return None
        weights = np.maximum(self.subspace.readout @ self.mean, 0.0)
        weights = np.where(weights > _RINGING * weights.max(), weights, 0.0)
        if not weights.sum() > 0.0:
            weights = np.ones(len(weights))
        points = se2.compose(self.kernel_map.poses, self._increment)
        return Points(points, weights / weights.sum())


def _moments(features: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean (r,) and covariance (r, r) of features (m, r)."""
    mean = features.mean(axis=0)
    centred = features - mean
    return mean, np.asarray(centred.T @ centred / len(features))
