"""
The way between images by an odometry with systematic errors.

The parameters p (6,) are those of `calibration`, to first order: offset, mounting, scales, drift.
Over the images of a piece the motion from image t to image t + 1 is the odometry's increment u_t
plus J(u_t) p, with random noise whose variances grow with the way.
"""

from __future__ import annotations

from dataclasses import dataclass

from kbr_localization import se2
from kbr_localization.localization import calibration
from kbr_localization.localization.mapping.trajectories import Indices, Trajectories
from kbr_localization.localization.motion import MotionNoise
from kbr_localization.se2 import FloatArray
import numpy as np

NAMES = tuple(name for name in calibration.NAMES if name != 'lateral_scale')
"""Parameters of a robot that does not move sideways."""
PARAMETERS = len(NAMES)
AMONG_ALL = [calibration.NAMES.index(name) for name in NAMES]
"""Their places among the errors of a calibration."""
ROBOT = np.array([0.15, 0.05, 0.02, 0.02, 0.02, 0.02])
"""Standard deviations of p of a robot that nothing is known of."""
RUN = np.array([0.001, 0.001, 0.002, 0.004, 0.004, 0.004])
"""The same between runs of one robot: tyres, load, floor; the offset stays."""
OFFSET = NAMES.index('offset_x')
SCALE = NAMES.index('forward_scale')
"""What closures cannot tell: a map that is larger as a whole has all of them as well."""


@dataclass(frozen=True)
class Belief:
    """Parameters (6,) of an odometry and their standard deviations (6,)."""

    mean: FloatArray
    deviations: FloatArray

    @staticmethod
    def unknown() -> Belief:
        """Say what is known of any robot."""
        return Belief(np.zeros(PARAMETERS), ROBOT)


@dataclass(frozen=True)
class Prior:
    """What is known of an odometry before any closure: its noise, and its systematic errors."""

    noise: MotionNoise
    belief: Belief

    @staticmethod
    def unknown() -> Prior:
        """Say what is known of any robot."""
        return Prior(MotionNoise.default(), Belief.unknown())


def jacobians(increments: FloatArray) -> FloatArray:
    """J (m, 3, 6) of odometry increments (m, 3): change of the motion by each parameter."""
    effects = calibration.effects(increments, np.zeros(calibration.SIZE))
    return se2.rotation(increments[:, 2]) @ effects[..., AMONG_ALL]


def tracks(trajectories: Trajectories, parameters: FloatArray) -> FloatArray:
    """
    Poses (n, 3) by the odometry corrected for parameters, each piece from its own origin on.

    Those of fixed pieces stay.

    `parameters`: (6,), or (runs, 6) for each run.
    """
    poses = np.empty((len(trajectories), 3))
    for piece, run in enumerate(trajectories.run_of_piece):
        members = trajectories.members(piece)
        odometry = trajectories.odometry[members]
        if trajectories.fixed[piece]:
            poses[members] = odometry
            continue
        steps = se2.between(odometry[:-1], odometry[1:])
        p = parameters if parameters.ndim == 1 else parameters[run]
        poses[members] = se2.chain(np.zeros(3), steps + jacobians(steps) @ p)
    return poses


@dataclass(frozen=True)
class Wander:
    """
    How uncertain the way between images of a piece is, by running sums over its images.

    With the noise of a step at image t the heading of all later images errs, and the position of
    image k by that times |x_k - x_t|: the sums of variance, variance times x_t and variance times
    |x_t|^2 give that of any two images.

    `poses`: (n, 3). Sums up to each image: `turned` (n,) rad², `moved` (n,) m², `lever` (n, 2)
    rad² m, `square` (n,) rad² m².
    """

    poses: FloatArray
    turned: FloatArray
    moved: FloatArray
    lever: FloatArray
    square: FloatArray

    @staticmethod
    def of(trajectories: Trajectories, poses: FloatArray, noise: MotionNoise) -> Wander:
        """Sum along the images of all pieces, at poses (n, 3)."""
        before = np.maximum(np.arange(len(trajectories)) - 1, 0)
        same = (trajectories.piece[before] == trajectories.piece) & (
            np.arange(len(trajectories)) > 0
        )
        steps = (
            se2.between(trajectories.odometry[before], trajectories.odometry) * same[:, np.newaxis]
        )
        variances = noise.variances(steps) * ~trajectories.fixed[trajectories.piece][:, np.newaxis]
        heading, place = variances[:, 2], poses[:, :2]
        return Wander(
            poses,
            np.cumsum(heading),
            np.cumsum(0.5 * (variances[:, 0] + variances[:, 1])),
            np.cumsum(heading[:, np.newaxis] * place, axis=0),
            np.cumsum(heading * np.sum(place**2, axis=1)),
        )

    def between(self, start: Indices, end: Indices, at: Indices) -> tuple[FloatArray, FloatArray]:
        """
        Variances of the ways from images `start` (q,) to `end` (q,), as seen at images `at` (q,).

        (q,) of the position in m², of each axis, and (q,) of the heading in rad².
        """
        low, high = np.minimum(start, end), np.maximum(start, end)
        heading = self.turned[high] - self.turned[low]
        place = self.poses[at, :2]
        lever = (
            heading * np.sum(place**2, axis=-1)
            - 2.0 * np.sum(place * (self.lever[high] - self.lever[low]), axis=-1)
            + self.square[high]
            - self.square[low]
        )
        return self.moved[high] - self.moved[low] + np.maximum(lever, 0.0), heading
