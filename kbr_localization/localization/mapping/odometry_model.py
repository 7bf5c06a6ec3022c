"""
The motion between images by an odometry with systematic errors.

The parameters p (6,), see `calibration`, are to first order: offset, mounting, scales, drift.
The motion from image t to image t + 1 of a segment is the odometry's increment u_t plus J(u_t) p,
with random noise whose variances grow with the distance.
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
IN_CALIBRATION = [calibration.NAMES.index(name) for name in NAMES]
"""Their indices among the errors of a calibration."""
ROBOT = np.array([0.15, 0.05, 0.02, 0.02, 0.02, 0.02])
"""Standard deviations of p of a robot that nothing is known of."""
RUN = np.array([0.001, 0.001, 0.002, 0.004, 0.004, 0.004])
"""The same between runs of one robot: tyres, load, floor; the offset stays."""
OFFSET = NAMES.index('offset_x')
SCALE = NAMES.index('forward_scale')
"""Not observable from loop closures: they hold in a scaled map as well."""


@dataclass(frozen=True)
class Prior:
    """The noise of an odometry, and mean (6,) and standard deviations (6,) of its parameters."""

    noise: MotionNoise
    mean: FloatArray
    deviations: FloatArray

    @staticmethod
    def unknown() -> Prior:
        """Return what is known of any robot."""
        return Prior(MotionNoise.default(), np.zeros(PARAMETERS), ROBOT)


def jacobians(increments: FloatArray) -> FloatArray:
    """J (m, 3, 6) of odometry increments (m, 3): change of the motion by each parameter."""
    _, effects = calibration.moved_with_effects(increments, np.zeros(calibration.SIZE))
    return se2.rotation(increments[:, 2]) @ effects[..., IN_CALIBRATION]


def tracks(trajectories: Trajectories, parameters: FloatArray) -> FloatArray:
    """
    Poses (n, 3) by the odometry corrected for parameters (6,), each segment from its own origin.

    Poses of fixed segments stay.
    """
    poses = trajectories.odometry.copy()
    for number in np.flatnonzero(~trajectories.fixed).tolist():
        span = trajectories.span(number)
        odometry = trajectories.odometry[span]
        steps = se2.between(odometry[:-1], odometry[1:])
        poses[span] = se2.chain(np.zeros(3), steps + jacobians(steps) @ parameters)
    return poses


class Wander:
    """
    How uncertain the motion between images of a segment is, by running sums over its images.

    Noise of the heading at image t moves image k by that times |x_k - x_t|: the sums of variance,
    variance times x_t and variance times |x_t|^2 up to each image give the variance between any
    two images.
    """

    def __init__(self, trajectories: Trajectories, poses: FloatArray, noise: MotionNoise) -> None:
        before = np.maximum(np.arange(len(trajectories)) - 1, 0)
        moving = (np.diff(trajectories.segment, prepend=-1) == 0) & ~trajectories.known
        steps = se2.between(trajectories.odometry[before], trajectories.odometry)
        variances = noise.variances(steps * moving[:, np.newaxis])
        heading, place = variances[:, 2], poses[:, :2]
        self._poses = poses
        self._heading = np.cumsum(heading)
        self._position = np.cumsum(0.5 * (variances[:, 0] + variances[:, 1]))
        self._lever = np.cumsum(heading[:, np.newaxis] * place, axis=0)
        self._square = np.cumsum(heading * np.sum(place**2, axis=1))

    def between(self, start: Indices, end: Indices, at: Indices) -> FloatArray:
        """
        Covariances (q, 3, 3) of the motion from images `start` (q,) to `end` (q,), seen at `at`.

        They are diagonal: position in m², the same for each axis, and heading in rad².
        """
        low, high = np.minimum(start, end), np.maximum(start, end)
        heading = self._heading[high] - self._heading[low]
        place = self._poses[at, :2]
        lever = (
            heading * np.sum(place**2, axis=-1)
            - 2.0 * np.sum(place * (self._lever[high] - self._lever[low]), axis=-1)
            + self._square[high]
            - self._square[low]
        )
        position = self._position[high] - self._position[low] + np.maximum(lever, 0.0)
        return np.stack([position, position, heading], axis=-1)[:, :, np.newaxis] * np.eye(3)
