"""
Noise and systematic errors of the odometry, learnt while the robot drives.

The values p of the systematic errors (`calibration`) change the motion by J(u) p to first order, u
being the odometry's increment. No image shows p, but given the path of a point p is linear and
Gaussian: over the steps since the last update, with Jacobians S and noise Q carried to the last
body frame, the path differs from the odometry by e = S p + noise. So each point carries the mean
of its own law of p, and all share the covariance V (Rao-Blackwellised filter, Doucet et al. 2000):

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
from kbr_localization.localization.filter.strata import Points
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.se2 import FloatArray
import numpy as np

GROSS_RATE = 0.01
"""Probability, per metre, that the odometry becomes grossly wrong."""
_DESCRIBED = [f'odometry_{name}{kind}' for kind in ('', '_sd') for name in NAMES]
_MOUNTING, _LATERAL, _FORWARD, _TURN = map(
    NAMES.index, ('mounting', 'lateral_scale', 'forward_scale', 'turn_scale')
)


class OdometryModel:
    """
    The law of the odometry's errors on points, and of the motion since the last update.

    Points hold means (m, 7) as deviations from `expected`; `covariance` (7, 7) is common to all.
    `noise`: (3, 3) of the motion since the last update, in the frame of the base. `learnt`: what a
    start begins with, None before a belief was confirmed.
    """

    def __init__(self, kernel_map: KernelMap, config: KbrConfig) -> None:
        self._model, self._config = kernel_map.motion_noise, config
        first = kernel_map.calibration.for_a_drive(config.odometry_calibration)
        self.expected, self._prior = first.values, first.covariance
        self.learnt: Calibration | None = None
        self.begin()

    def begin(self, points: Points | None = None) -> None:
        """Start without motion, with the errors that were learnt last or that the map knows."""
        known = self.learnt or Calibration(self.expected, self._prior)
        self.covariance: FloatArray = known.covariance.copy()
        # errors multiply (a drift at a lever arm looks like a mounting angle): linearise here
        self._about: FloatArray = known.values - self.expected
        if points is not None:
            points.odometry = np.tile(self._about, (len(points), 1))
        self._restart()

    def _restart(self) -> None:
        self.noise: FloatArray = np.zeros((3, 3))
        self._effects: FloatArray = np.zeros((3, SIZE))
        self._metres = 0.0

    def resume_from(self, learnt: Calibration) -> None:
        """
        Begin the next start with errors that were learnt before, unless none are learnt.

        A heading that jumped is described to first order (`gross_errors`) and not kept.
        """
        jumped = abs((learnt.values - self.expected)[_MOUNTING]) > 10.0 * LIMITS[_MOUNTING]
        if self._prior.any() and not jumped:
            self.learnt = learnt

    def law(self, points: Points) -> Calibration:
        """Return mean and covariance of the errors under points."""
        mean = points.weights @ points.odometry
        deviations = points.odometry - mean
        spread = (points.weights[:, np.newaxis] * deviations).T @ deviations
        return Calibration(self.expected + mean, self.covariance + spread)

    def described(self, points: Points) -> dict[str, float]:
        """Return the errors under points and their standard deviations, for diagnostics."""
        law = self.law(points)
        numbers = np.concatenate([law.values, law.deviations]).tolist()
        return dict(zip(_DESCRIBED, numbers, strict=True))

    def predict(self, increment: FloatArray, points: Points) -> None:
        """Move points by an odometry increment (3,), corrected by the errors of each."""
        motion, effect = moved_with_effects(increment, self.expected + self._about)
        carried = np.linalg.inv(se2.adjoint(motion))  # errors into the frame after the motion
        variances = self._config.noise_scale * self._model.variances(increment)
        self.noise = carried @ self.noise @ carried.T + np.diag(variances)
        self._effects = carried @ self._effects + effect
        self._metres += float(np.hypot(increment[0], increment[1]))
        slope = (se2.rotation(motion[2]) @ effect).T
        points.move(motion + (points.odometry - self._about) @ slope)

    def total_noise(self, learn: bool) -> FloatArray:
        """Return Q + S V S^T (3, 3), the noise since the last update; Q alone without learning."""
        effects = self._effects * learn
        return np.asarray(self.noise + effects @ self.covariance @ effects.T + 1e-12 * np.eye(3))

    def disperse(self, points: Points, rng: np.random.Generator, learn: bool) -> None:
        """
        Draw the noise since the last update for each point, and learn the errors from it.

        Without `learn` the errors stay: points at a wrong place would learn what fits that place.
        """
        effects, prior = self._effects * learn, self.covariance
        total = self.total_noise(learn)
        gain = np.linalg.solve(total, effects @ prior).T
        root = np.linalg.cholesky(total)
        errors = rng.standard_normal(points.poses.shape) @ root.T
        points.move(errors)
        points.odometry = points.odometry + errors @ gain.T
        posterior = prior - gain @ effects @ prior
        # other tyres, another load
        changed = min(self._config.carried_rate * self._metres, 1.0) * self._prior
        self.covariance = 0.5 * (posterior + posterior.T) + changed
        self._restart()


def gross_errors(size: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """
    Draw errors (size, 7) of a grossly wrong odometry, and motions (size, 3) that undo a jump.

    Its metres or its turns are wrong by a factor, or it is mirrored, or its heading has jumped, so
    that the robot moves in another direction than it says.
    """
    errors, turn = np.zeros((size, SIZE)), np.zeros((size, 3))
    low, high = np.log([1.15, 2.5])
    factors = np.exp(rng.uniform(low, high, size) * rng.choice([-1.0, 1.0], size))
    kind = rng.integers(5, size=size)
    errors[:, _FORWARD] = np.where(kind < 2, 1.0 - factors, 0.0)
    errors[:, _TURN] = np.where(kind == 2, 1.0 - factors, np.where(kind == 3, 2.0, 0.0))
    jump = np.where(kind == 4, rng.uniform(-np.pi, np.pi, size), 0.0)
    # to first order in the errors these turn the motion
    errors[:, _FORWARD] += 1.0 - np.cos(jump)
    errors[:, _LATERAL] = 1.0 - np.cos(jump)
    errors[:, _MOUNTING] = np.sin(jump)
    turn[:, 2] = -jump
    return errors, turn
