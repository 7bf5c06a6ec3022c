"""
Systematic errors of the odometry, learnt while the robot drives.

The point whose motion the wheels measure lies at (ox, oy) from the point whose pose the map knows,
its axis turned by the mounting angle; the wheels count too far, turn too far, and drift with every
metre. To first order the motion of the pose is the odometry's increment u = (dx, dy, dtheta) plus
J(u) p, with p = (ox, oy, mounting, forward scale, turn scale, drift) and

          | 1 - cos   sin      -dy   -dx    0        0  |
    J =   | -sin      1 - cos   dx   -dy    0        0  |      (sin, cos of dtheta).
          | 0         0         0     0    -dtheta  -dx |

No image shows p, but given the path of a point it is linear and Gaussian: over some steps, whose
Jacobians S and noise Q are carried to the last body frame, the path differs from the odometry by
e = S p + noise. So each point carries the mean of its own law of p, and all share the covariance
V, which depends on the odometry alone (a Rao-Blackwellised filter, Doucet, de Freitas, Murphy and
Russell, UAI 2000):

    e ~ N(0, Q + S V S^T),   p <- p + G e,   V <- V - G S V,   G = V S^T (Q + S V S^T)^-1.

Points whose parameters are right stay where the images are; the others die out.
"""

from __future__ import annotations

from kbr_localization import se2
from kbr_localization.localization.kbr.belief import Belief
from kbr_localization.localization.motion import MotionNoise
from kbr_localization.se2 import FloatArray
import numpy as np

NAMES = ('offset_x', 'offset_y', 'mounting', 'forward_scale', 'turn_scale', 'drift')
"""Metres, metres, radians, shares of the motion, radians per metre."""
_OTHER_ROBOT = np.array([0.07, 0.02, 0.002, 0.008, 0.008, 0.008])
"""Standard deviations of these between the runs of a map and a later one: tyres, load, rig."""
_MEMORY = 2000.0  # metres in which they may have become any other
_SMALLEST = 1e-12 * np.eye(3)


def jacobian(increment: FloatArray) -> FloatArray:
    """J (3, 6) of an odometry increment (3,): change of the motion by each parameter."""
    dx, dy, turn = increment
    cosine, sine = np.cos(turn), np.sin(turn)
    return np.array(
        [
            [1.0 - cosine, sine, -dy, -dx, 0.0, 0.0],
            [-sine, 1.0 - cosine, dx, -dy, 0.0, 0.0],
            [0.0, 0.0, 0.0, 0.0, -turn, -dx],
        ]
    )


class OdometryCalibration:
    """
    The law of the odometry's parameters on the points of beliefs, and the noise since an update.

    `how`: 'learnt' as above, 'mapped' keeps what the map's runs tell, 'off' takes all for zero.
    Beliefs hold the means (m, 6) as deviations from `mapped`; `covariance` (6, 6) is common to
    all. `noise` (3, 3): covariance of the motion that no update has taken in yet, in the frame of
    the base.
    """

    def __init__(self, noise: MotionNoise, factor: float, how: str) -> None:
        self._model, self._factor = noise, factor
        self.mapped = np.zeros(len(NAMES))
        self.mapped[-1] = noise.known_drift(how)
        deviations = np.where(np.arange(len(NAMES)) < len(NAMES) - 1, _OTHER_ROBOT, 0.0)
        deviations[-1] = max(noise.drift_deviation, _OTHER_ROBOT[-1])
        self._prior = np.diag(deviations**2) * (how == 'learnt')
        self.noise: FloatArray = np.zeros((3, 3))
        self._effects: FloatArray = np.zeros((3, len(NAMES)))
        self._way = 0.0
        self.reset()

    def reset(self) -> None:
        """Know no more than the map does, and no motion."""
        self.covariance: FloatArray = self._prior.copy()
        self._settle()

    def predict(self, increment: FloatArray, beliefs: list[Belief]) -> None:
        """Move beliefs by an odometry increment (3,), each point by what it takes it for."""
        effect = jacobian(increment)
        carried = _transport(increment + effect @ self.mapped)
        diagonal = np.diag(self._factor * self._model.variances(increment))
        self.noise = carried @ self.noise @ carried.T + diagonal
        self._effects = carried @ self._effects + effect
        self._way += float(np.hypot(increment[0], increment[1]))
        for belief in beliefs:
            belief.move(increment + (self.mapped + belief.odometry) @ effect.T)

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
        forgotten = min(self._way / _MEMORY, 1.0) * self._prior
        self.covariance = 0.5 * (learnt + learnt.T) + forgotten
        self._settle()

    def mean(self, belief: Belief) -> FloatArray:
        """Return the expected parameters (6,) under a belief."""
        return np.asarray(self.mapped + belief.weights @ belief.odometry)

    def described(self, belief: Belief) -> dict[str, float]:
        """Return the expected parameters by name, for diagnostics."""
        names = (f'odometry_{name}' for name in NAMES)
        return dict(zip(names, self.mean(belief).tolist(), strict=True))

    def _settle(self) -> None:
        self.noise, self._effects, self._way = np.zeros((3, 3)), np.zeros((3, len(NAMES))), 0.0


def _transport(increment: FloatArray) -> FloatArray:
    """Return the (3, 3) that carries an error in the frame before a motion to that after it."""
    x, y, heading = se2.inverse(increment)
    cosine, sine = np.cos(heading), np.sin(heading)
    return np.array([[cosine, -sine, y], [sine, cosine, -x], [0.0, 0.0, 1.0]])
