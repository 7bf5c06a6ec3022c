"""
The systematic turn of the odometry, learnt while the robot drives.

Wheels of unequal diameter turn the odometry by the same angle with every metre ([PR] section 5.4
leaves this to calibration). Taken for noise it makes every prediction err to the same side, and
the belief lags behind the truth. The runs of a map tell the drift of the robot that made them
(`estimate_noise`); what the robot at hand has beyond that is a constant of its state which no
image shows. Given the path of a point it is linear and Gaussian: over w metres its heading turns
by -w d + e, with e of the odometry's variance q. So each point carries the mean of its own law
of d, which moves with the error that was drawn for it, and all of them share the variance v, which
depends on the odometry alone (the Rao-Blackwellised particle filter of Doucet, de Freitas, Murphy
and Russell, UAI 2000):

    error ~ N(0, q + w^2 v),   d <- d - g error,   v <- q v / (q + w^2 v),   g = w v / (q + w^2 v).

Points whose drift is right stay where the images are; the others die out. Errors beyond six
standard deviations, which the Cauchy law draws, count as six.
"""

from __future__ import annotations

from kbr_localization.localization.kbr.belief import Belief
from kbr_localization.localization.motion import MotionNoise, without_drift
from kbr_localization.se2 import FloatArray
import numpy as np

_MEMORY = 1000.0  # metres after which a drift may have become any other
_TELLING = 6.0  # standard deviations: errors beyond it are not the odometry's usual ones


class DriftFilter:
    """
    The law of the drift on the points of beliefs, in radians per metre forward.

    `how`: 'learnt' as above, 'mapped' keeps the drift of the map's runs, 'off' takes it for zero.
    Beliefs hold the means as deviations from that of the map; `variance` is common to all.
    """

    def __init__(self, noise: MotionNoise, how: str) -> None:
        self.mapped = noise.known_drift(how)
        self._prior = noise.drift_deviation**2 if how == 'learnt' else 0.0
        self.reset()

    def reset(self) -> None:
        """Know no more than the map does."""
        self.variance, self._way = self._prior, 0.0

    def add(self, increment: FloatArray) -> None:
        """Take note of an odometry increment (3,)."""
        self._way += float(increment[0])

    def corrected(self, increment: FloatArray, belief: Belief) -> FloatArray:
        """Return increments (m, 3) for the points of a belief, or (3,) for all of them."""
        if self._prior == 0.0:
            return without_drift(increment, self.mapped)
        return without_drift(increment, self.mapped + belief.drift)

    def share(
        self, errors: FloatArray, belief: Belief, variance: float, rng: np.random.Generator
    ) -> None:
        """
        Add what the drift may differ by to errors (m, 3) drawn for a belief, and learn from them.

        `variance`: of the errors' heading. The errors and the belief's drift are changed.
        """
        total = variance + self._way**2 * self.variance
        if self._prior == 0.0 or total == 0.0:
            return
        spread = abs(self._way) * np.sqrt(self.variance)
        errors[:, 2] += spread * rng.standard_normal(len(errors))
        telling = _TELLING * np.sqrt(total)
        usual = np.clip(errors[:, 2], -telling, telling)  # wheels that slip tell nothing of drift
        belief.drift = belief.drift - self._way * self.variance / total * usual

    def settle(self, variance: float) -> None:
        """Start counting the way again, once all beliefs have had their share."""
        total = variance + self._way**2 * self.variance
        if total > 0.0:
            self.variance *= variance / total
        forgotten = self._prior * abs(self._way) / _MEMORY
        self.variance, self._way = min(self.variance + forgotten, self._prior), 0.0

    def mean(self, belief: Belief) -> float:
        """Return the expected drift under a belief."""
        return self.mapped + float(belief.weights @ belief.drift)
