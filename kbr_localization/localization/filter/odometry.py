"""
Noise and systematic errors of the odometry, learnt while the robot drives.

The systematic errors p (`calibration`) change the motion of an odometry increment u by J(u) p, to
first order. No image shows p, but given the path of a point p is linear and Gaussian: over the
steps since the last update, with Jacobian S and noise Q carried to the last body frame, the path
differs from the odometry by e = S p + noise. So each point carries its own mean of p, and all
share the covariance V (Rao-Blackwellised filter, Doucet et al. 2000):

    e ~ N(0, Q + S V S^T),   p <- p + G e,   V <- V - G S V,   G = V S^T (Q + S V S^T)^-1.

Points whose p is right stay where the images are; the others die out.
"""

from kbr_localization import se2
from kbr_localization.localization.calibration import (
    Calibration,
    LIMITS,
    moved_with_effects,
    NAMES,
    SIZE,
)
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.filter.hypotheses import Points
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.se2 import FloatArray
import numpy as np

GROSS_RATE = 0.01
"""Probability, per metre, that a gross error of the odometry begins."""
_DIAGNOSTICS = [f'odometry_{name}{kind}' for kind in ('', '_sd') for name in NAMES]
_MOUNTING, _LATERAL, _FORWARD, _TURN = map(
    NAMES.index, ('mounting', 'lateral_scale', 'forward_scale', 'turn_scale')
)


class OdometryModel:
    """
    The errors of the odometry, and the motion since the last update.

    Points hold means (m, 7) of the systematic errors, as deviations from `expected`; `covariance`
    (7, 7) is common to all. `noise` (3, 3): covariance of the motion since the last update, in the
    base frame. `learnt`: the prior of the next start, None before a belief was confirmed.
    """

    def __init__(self, kernel_map: KernelMap, config: KbrConfig) -> None:
        self._motion_noise, self._config = kernel_map.motion_noise, config
        first = kernel_map.calibration.prior_for_drive(config.odometry_calibration)
        self.expected, self._prior = first.values, first.covariance
        self.learnt: Calibration | None = None
        self.start()

    def start(self, points: Points | None = None) -> None:
        """Give `points` the errors that were learnt last, or else the map's; forget the motion."""
        known = self.learnt or Calibration(self.expected, self._prior)
        self.covariance: FloatArray = known.covariance.copy()
        # errors multiply (a drift at a lever arm looks like a mounting angle): linearise here
        self._linearised_at: FloatArray = known.values - self.expected
        if points is not None:
            points.odometry = np.tile(self._linearised_at, (len(points), 1))
        self._forget_motion()

    def _forget_motion(self) -> None:
        self.noise: FloatArray = np.zeros((3, 3))
        self._jacobian: FloatArray = np.zeros((3, SIZE))
        self._metres = 0.0

    def resume_from(self, learnt: Calibration) -> None:
        """
        Use learnt errors as the prior of the next start, where `odometry_calibration` is learnt.

        Ignore those of a heading that has jumped: they hold to first order only (`gross_errors`).
        """
        jumped = abs((learnt.values - self.expected)[_MOUNTING]) > 10.0 * LIMITS[_MOUNTING]
        if self._prior.any() and not jumped:
            self.learnt = learnt

    def estimate(self, points: Points) -> Calibration:
        """Return mean and covariance of the systematic errors under points."""
        mean = points.weights @ points.odometry
        deviations = points.odometry - mean
        spread = (points.weights[:, np.newaxis] * deviations).T @ deviations
        return Calibration(self.expected + mean, self.covariance + spread)

    def diagnostics(self, points: Points) -> dict[str, float]:
        """Return the systematic errors under points, and their standard deviations, by name."""
        errors = self.estimate(points)
        numbers = np.concatenate([errors.values, errors.deviations]).tolist()
        return dict(zip(_DIAGNOSTICS, numbers, strict=True))

    def predict(self, increment: FloatArray, points: Points) -> None:
        """Move points by an odometry increment (3,), corrected by the errors at each point."""
        motion, effect = moved_with_effects(increment, self.expected + self._linearised_at)
        carry = np.linalg.inv(se2.adjoint(motion))  # errors into the frame after the motion
        variances = self._config.noise_scale * self._motion_noise.variances(increment)
        self.noise = carry @ self.noise @ carry.T + np.diag(variances)
        self._jacobian = carry @ self._jacobian + effect
        self._metres += float(np.hypot(increment[0], increment[1]))
        slope = (se2.rotation(motion[2]) @ effect).T
        points.move(motion + (points.odometry - self._linearised_at) @ slope)

    def total_noise(self, learn: bool) -> FloatArray:
        """Return the noise (3, 3) since the last update: Q + S V S^T, or Q without `learn`."""
        s = self._jacobian * learn
        return np.asarray(self.noise + s @ self.covariance @ s.T + 1e-12 * np.eye(3))

    def sample_noise(self, points: Points, rng: np.random.Generator, learn: bool) -> None:
        """
        Move each point by a sample of the noise since the last update; learn its errors from that.

        Without `learn` the errors stay: points at a wrong place would learn what fits that place.
        """
        s, prior = self._jacobian * learn, self.covariance
        total = self.total_noise(learn)
        gain = np.linalg.solve(total, s @ prior).T
        root = np.linalg.cholesky(total)
        errors = rng.standard_normal(points.poses.shape) @ root.T
        points.move(errors)
        points.odometry = points.odometry + errors @ gain.T
        posterior = prior - gain @ s @ prior
        # the errors may have changed: other tyres, another load
        changed = min(self._config.carried_rate * self._metres, 1.0) * self._prior
        self.covariance = 0.5 * (posterior + posterior.T) + changed
        self._forget_motion()


def gross_errors(size: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """
    Draw gross errors (size, 7) of an odometry, and motions (size, 3) that undo heading jumps.

    Metres or turns are wrong by a factor, or turns are mirrored, or the heading has jumped, so
    that the robot moves in another direction than the odometry says.
    """
    errors, turn = np.zeros((size, SIZE)), np.zeros((size, 3))
    low, high = np.log([1.15, 2.5])
    factors = np.exp(rng.uniform(low, high, size) * rng.choice([-1.0, 1.0], size))
    kind = rng.integers(5, size=size)
    errors[:, _FORWARD] = np.where(kind < 2, 1.0 - factors, 0.0)
    errors[:, _TURN] = np.where(kind == 2, 1.0 - factors, np.where(kind == 3, 2.0, 0.0))
    jump = np.where(kind == 4, rng.uniform(-np.pi, np.pi, size), 0.0)
    # to first order in the errors these turn the motion by the jump
    errors[:, _FORWARD] += 1.0 - np.cos(jump)
    errors[:, _LATERAL] = 1.0 - np.cos(jump)
    errors[:, _MOUNTING] = np.sin(jump)
    turn[:, 2] = -jump
    return errors, turn
