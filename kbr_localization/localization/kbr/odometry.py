"""
Systematic errors of the odometry, learnt while the robot drives.

The values p of these errors (see `calibration`) move the motion of the pose by J(u) p to first
order, u being the odometry's increment. No image shows p, but given the path of a point it is
linear and Gaussian: over some steps, whose Jacobians S and noise Q are carried to the last body
frame, the path differs from the odometry by e = S p + noise. So each point carries the mean of its
own law of p, and all share the covariance V, which depends on the odometry alone (a
Rao-Blackwellised filter, Doucet, de Freitas, Murphy and Russell, UAI 2000):

    e ~ N(0, Q + S V S^T),   p <- p + G e,   V <- V - G S V,   G = V S^T (Q + S V S^T)^-1.

Points whose values are right stay where the images are; the others die out.
"""

from __future__ import annotations

from kbr_localization import se2
from kbr_localization.localization.calibration import (
    Calibration,
    moved_with_effects,
    NAMES,
    SIZE,
    twists,
)
from kbr_localization.localization.kbr.belief import Belief, weighted_mean
from kbr_localization.localization.motion import MotionNoise
from kbr_localization.se2 import FloatArray
import numpy as np

CHANGE_RATE = 3e-5
"""
Probability, per metre, that the odometry becomes another one: other tyres, wheels that slip.

So what was learnt of it is forgotten in days of driving, and `OdometryCheck` looks for an odometry
that is grossly wrong, or right again. The latter chose it, on photographs by night, whose images
look like the next place for some metres, and on drives with a wrong odometry
(`benchmarks.wrong_odometry` tries others). Before points that leave the belief weighed what is
left of it: with 5e-6 none of the right answers on the former was hidden, and 0.7% of the answers
on the latter were wrong and called localized; with 3e-5 3% and 0.6%, with 5e-4 8% and 0.3%.
"""
_SMALLEST = 1e-12 * np.eye(3)
_STILL = 1e-12  # rad²: has not turned
_LATERAL = NAMES.index('lateral_scale')


class OdometryCalibration:
    """
    The law of the odometry's errors on the points of beliefs, and the noise since an update.

    `how`: 'learnt' as above, 'mapped' keeps what the map's runs tell, 'off' takes all for zero.
    `expected`: (7,) what a first start expects (`Calibration.for_a_drive`).
    Beliefs hold the means (m, 7) as deviations from `expected`; `covariance` (7, 7) is common to
    all. `noise` (3, 3): covariance of the motion that no update has taken in yet, in the frame of
    the base. `learnt`: what a start begins with, None before a belief was worth relying on.
    """

    def __init__(
        self, noise: MotionNoise, calibration: Calibration, factor: float, how: str
    ) -> None:
        self._model, self._factor = noise, factor
        self._turning = np.zeros(2)  # sums of turns times motions aside, and times turns
        first = calibration.for_a_drive(how)
        self.expected, self._prior = first.values, first.covariance
        self.learnt: Calibration | None = None
        self.noise: FloatArray = np.zeros((3, 3))
        self._effects: FloatArray = np.zeros((3, SIZE))
        self._way = 0.0
        self.begin([])

    def begin(self, beliefs: list[Belief]) -> None:
        """Know no motion, and of the odometry what was learnt last or else what the map knows."""
        known = self.learnt or Calibration(self.expected, self._prior)
        self.covariance: FloatArray = known.covariance.copy()
        # errors multiply (a drift at a lever arm looks like a mounting angle): linear about these
        self._about: FloatArray = known.values - self.expected
        for belief in beliefs:
            belief.odometry = np.tile(self._about, (len(belief.points), 1))
        self._settle()

    def go_on_from(self, learnt: Calibration) -> None:
        """Take what was learnt in an earlier drive of this robot, from the next start on."""
        if self._prior.any():
            self.learnt = learnt

    def keep(self, belief: Belief) -> None:
        """Keep for later starts what a belief that may be relied on has learnt."""
        if self._prior.any():
            self.learnt = self.law(belief)

    def law(self, belief: Belief) -> Calibration:
        """Return the law of the errors of the odometry under a belief: mean and covariance."""
        mean = belief.weights @ belief.odometry
        deviations = np.sqrt(belief.weights)[:, np.newaxis] * (belief.odometry - mean)
        return Calibration(self.expected + mean, self.covariance + deviations.T @ deviations)

    def predict(self, increment: FloatArray, beliefs: list[Belief]) -> None:
        """Move beliefs by an odometry increment (3,), corrected by each point's own errors."""
        about = self.expected + self._about
        motion, effect = moved_with_effects(increment, about)
        effect[:, _LATERAL] *= self._at_will(increment)
        carried = se2.adjoint(se2.inverse(motion))
        diagonal = np.diag(self._factor * self._model.variances(increment))
        self.noise = carried @ self.noise @ carried.T + diagonal
        self._effects = carried @ self._effects + effect
        self._way += float(np.hypot(increment[0], increment[1]))
        for belief in beliefs:
            belief.move(motions(motion, effect, belief.odometry - self._about))

    def pool(self, belief: Belief) -> None:
        """
        Give the points the law of the errors that the belief as a whole has.

        It is approximated by a Gaussian given the pose: the mean is the linear regression of the
        errors on the pose, and the common covariance grows by that of the residuals and by that
        of the mean of so many effective points. Resampling leaves points of few ancestors, which
        by themselves would understate with how many other errors one gets to the same pose.
        """
        if not self._prior.any():
            return
        weights = belief.weights
        mean = weights @ belief.odometry
        apart = se2.between(weighted_mean(belief.points, weights[np.newaxis])[0], belief.points)
        apart -= weights @ apart
        errors = belief.odometry - mean
        weighted = weights[:, np.newaxis] * apart
        fitted = apart @ np.linalg.solve(weighted.T @ apart + _SMALLEST, weighted.T @ errors)
        belief.odometry = mean + fitted
        few = (weights[:, np.newaxis] * errors).T @ errors / belief.effective_size()
        errors -= fitted
        left = (weights[:, np.newaxis] * errors).T @ errors
        self.covariance = self.covariance + left + few
        self._about = mean

    def disperse(
        self, beliefs: list[Belief], rng: np.random.Generator, learn: bool = True
    ) -> None:
        """
        Draw the errors of the motion since the last update for every point, and learn from them.

        Without `learn` the parameters are taken as they are: points that may be at another place
        would learn what fits that place.
        """
        effects, prior = self._effects * learn, self.covariance
        total = self.noise + effects @ prior @ effects.T + _SMALLEST
        gain = np.linalg.solve(total, effects @ prior).T
        root = np.linalg.cholesky(total)
        for belief in beliefs:
            errors = rng.standard_normal(belief.points.shape) @ root.T
            belief.move(errors)
            belief.odometry = belief.odometry + errors @ gain.T
        learnt = prior - gain @ effects @ prior
        forgotten = min(CHANGE_RATE * self._way, 1.0) * self._prior
        self.covariance = 0.5 * (learnt + learnt.T) + forgotten
        self._settle()

    def described(self, belief: Belief) -> dict[str, float]:
        """Return the expected errors and their standard deviations by name, for diagnostics."""
        law = self.law(belief)
        values = {f'odometry_{n}': float(v) for n, v in zip(NAMES, law.values, strict=True)}
        deviations = zip(NAMES, law.deviations, strict=True)
        return values | {f'odometry_{n}_sd': float(deviation) for n, deviation in deviations}

    def _at_will(self, increment: FloatArray) -> float:
        """
        Return the fraction of a motion to the side that the base makes at will.

        One that only turns about some point of it reports motions aside in proportion: these are
        geometry, and their scale is that of the turns.
        """
        _, aside, turn = twists(increment)
        self._turning += turn * aside, turn * turn
        if aside == 0.0:
            return 0.0
        by_turning = turn * self._turning[0] / max(self._turning[1], _STILL)
        return float(1.0 - by_turning / aside)

    def _settle(self) -> None:
        self.noise, self._effects, self._way = np.zeros((3, 3)), np.zeros((3, SIZE)), 0.0


def motions(motion: FloatArray, effect: FloatArray, deviations: FloatArray) -> FloatArray:
    """
    Return the motions of points that take the odometry's errors for different ones.

    `motion` (3,) with the errors common to all and `effect` (3, 7) on it (`moved_with_effects`),
    `deviations` (m, 7) from these errors, to first order -> (m, 3).
    """
    return np.asarray(motion + deviations @ (se2.rotation(motion[2]) @ effect).T)
