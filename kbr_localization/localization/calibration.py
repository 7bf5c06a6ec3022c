"""
Systematic errors of a robot's odometry: what it reports of a motion, and what the motion was.

The wheels move about a point at (offset x, offset y) from the point whose pose the map knows, with
axes turned by the mounting angle. They count a fraction too many metres ahead, metres sideways (of
a base that can move sideways) and radians, and turn by the drift with every metre ahead. A step of
the odometry is an arc: a constant twist (v_x, v_y, w) = log of the increment in SE(2). The pose's
twist is then linear in all but the mounting angle m:

    w' = (1 - turn scale) w - drift v_x,
    v' = R(m) ((1 - forward scale) v_x, (1 - lateral scale) v_y) + w' (offset y, -offset x),

the adjoint map of the wheels' place (Sola, Deray and Atchuthan, *A micro Lie theory for state
estimation in robotics*, 2018, section II.F and appendix on SE(2)).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kbr_localization.se2 import FloatArray, wrap_angle
import numpy as np

NAMES = (
    'offset_x',
    'offset_y',
    'mounting',
    'forward_scale',
    'lateral_scale',
    'turn_scale',
    'drift',
)
"""Metres ahead and to the left, radians, fractions of what was counted, radians per metre."""
SIZE = len(NAMES)
LIMITS = np.array([0.3, 0.1, 0.03, 0.03, 0.03, 0.03, 0.03])
"""
Within which the errors of robots are uniform: other tyres, another load, a sensor elsewhere.

0.3 m along and 0.1 m across, 3 hundredths of a radian, 3% and 0.03 rad/m.
"""
UNLIKE = LIMITS / np.sqrt(3.0)
"""Standard deviations of those laws."""
_LENGTHS, _COUNTS = ('offset_x', 'offset_y'), ('forward_scale', 'lateral_scale')
_SMALL = 1e-4  # radians below which the series of sine and cosine are exact


@dataclass(frozen=True)
class Calibration:
    """
    The systematic errors of an odometry and how well they are known.

    `values` (7,) in the order of `NAMES`, with `covariance` (7, 7), which includes the variance
    between runs. `delay`: (2,) seconds by which the stamps of the odometry were behind the stamps
    of the reference poses, and their standard deviation; None if unknown.
    """

    values: FloatArray
    covariance: FloatArray
    delay: FloatArray | None = None

    @staticmethod
    def unknown() -> Calibration:
        """Return the prior: no errors, with the standard deviations of ordinary robots."""
        return Calibration(np.zeros(SIZE), np.diag(UNLIKE**2))

    def for_another_drive(self) -> Calibration:
        """
        Return the prior for another drive, maybe of another robot.

        The robot is that of these runs or, as likely, another one drawn from the same laws: the
        mean is half of the errors v that these runs show, the variance `UNLIKE`^2 + (v / 2)^2.
        What exceeds the laws is how this kind of robot is built, and is kept.
        """
        values = self.of_this_robot()
        halves = 0.5 * np.clip(values, -LIMITS, LIMITS)
        return Calibration(values - halves, np.diag(UNLIKE**2 + halves**2))

    def after_a_break(self) -> Calibration:
        """
        Return the prior for a robot that was switched off.

        Its tyres, load and sensors may have changed: the mean is what was learnt, the variance
        that of an ordinary robot about it. With the old variance a change would stay unnoticed
        for days of driving.
        """
        return Calibration(self.values, self.covariance + np.diag(UNLIKE**2), self.delay)

    def of_this_robot(self) -> FloatArray:
        """Return the errors (7,) of the robot of these runs, shrunk to 0 where unknown."""
        known = np.linalg.inv(self.covariance)
        return np.asarray(np.linalg.solve(known + np.diag(UNLIKE**-2.0), known @ self.values))

    def in_metres(self, scale: float) -> Calibration:
        """Return the same for poses whose positions are scaled."""
        slope = np.where(np.isin(NAMES, _LENGTHS + _COUNTS), scale, 1.0)
        covariance = self.covariance * np.outer(slope, slope)
        return Calibration(in_metres(self.values, scale), covariance, self.delay)

    def for_a_drive(self, how: str) -> Calibration:
        """Return the prior of a drive; `how`: learnt, mapped or off."""
        if how == 'learnt':
            return self.for_another_drive()
        values = self.of_this_robot() if how == 'mapped' else np.zeros(SIZE)
        return Calibration(values, np.zeros((SIZE, SIZE)))

    @property
    def deviations(self) -> FloatArray:
        """Return the standard deviations of the values, shape (7,)."""
        return np.sqrt(np.diag(self.covariance))

    def observable(self) -> np.ndarray:
        """Which errors (7,) are known better than before any run."""
        return np.asarray(self.deviations < UNLIKE)


def in_metres(values: FloatArray, scale: float, names: Sequence[str] = NAMES) -> FloatArray:
    """Return errors (..., k) of some names for poses whose positions are scaled."""
    counts = np.isin(names, _COUNTS)
    found = np.where(np.isin(names, _LENGTHS), scale * values, values)
    return np.where(counts, 1.0 - scale * (1.0 - values), found)


def moved(increments: FloatArray, values: FloatArray) -> FloatArray:
    """
    Return the motions of the pose of which an odometry reports increments.

    Shapes: (..., 3) and (7,) -> (..., 3), in the frame before the motion.
    """
    return _exp(_pose_twist(twists(increments), values))


def reported(motions: FloatArray, values: FloatArray) -> FloatArray:
    """
    Return the increments that an odometry reports of motions of the pose; undoes `moved`.

    Shapes: (..., 3) and (7,) -> (..., 3).
    """
    twist = twists(motions)
    offset_x, offset_y, mounting, forward, lateral, turn, drift = values
    x = twist[..., 0] - twist[..., 2] * offset_y
    y = twist[..., 1] + twist[..., 2] * offset_x
    cosine, sine = np.cos(mounting), np.sin(mounting)
    ahead = (cosine * x + sine * y) / (1.0 - forward)
    aside = (cosine * y - sine * x) / (1.0 - lateral)
    return _exp(np.stack([ahead, aside, (twist[..., 2] + drift * ahead) / (1.0 - turn)], axis=-1))


def effects(increments: FloatArray, values: FloatArray) -> FloatArray:
    """
    Return the derivatives of `moved` by the values, as errors in the frame after the motion.

    Shapes: (..., 3) and (7,) -> (..., 3, 7).
    """
    return moved_with_effects(increments, values)[1]


def moved_with_effects(
    increments: FloatArray, values: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """
    Return `moved` and `effects` at the cost of one of them.

    Shapes: (..., 3) and (7,) -> (..., 3) and (..., 3, 7).
    """
    reports = twists(increments)
    twist = _pose_twist(reports, values)
    return _exp(twist), _right_jacobian(twist) @ _twist_effects(reports, twist, values)


def _twist_effects(reports: FloatArray, twist: FloatArray, values: FloatArray) -> FloatArray:
    """Return the derivatives (..., 3, 7) of a twist (..., 3) by the values."""
    ahead, aside, angle = reports[..., 0], reports[..., 1], reports[..., 2]
    offset_x, offset_y, mounting, forward, lateral, _, _ = values
    cosine, sine = np.cos(mounting), np.sin(mounting)
    x, y = (1.0 - forward) * ahead, (1.0 - lateral) * aside
    by = np.zeros((*np.shape(ahead), 3, SIZE))
    by[..., 1, 0], by[..., 0, 1] = -twist[..., 2], twist[..., 2]
    by[..., 0, 2], by[..., 1, 2] = -sine * x - cosine * y, cosine * x - sine * y
    by[..., 0, 3], by[..., 1, 3] = -cosine * ahead, -sine * ahead
    by[..., 0, 4], by[..., 1, 4] = sine * aside, -cosine * aside
    for column, turned in ((5, -angle), (6, -ahead)):
        by[..., 0, column], by[..., 1, column] = turned * offset_y, -turned * offset_x
        by[..., 2, column] = turned
    return by


def _pose_twist(reports: FloatArray, values: FloatArray) -> FloatArray:
    """Twists (..., 3) of the pose, of those that the odometry reports."""
    offset_x, offset_y, mounting, forward, lateral, turn, drift = values
    x, y = (1.0 - forward) * reports[..., 0], (1.0 - lateral) * reports[..., 1]
    angle = (1.0 - turn) * reports[..., 2] - drift * reports[..., 0]
    cosine, sine = np.cos(mounting), np.sin(mounting)
    twist = np.empty(reports.shape)
    twist[..., 0] = cosine * x - sine * y + angle * offset_y
    twist[..., 1] = sine * x + cosine * y - angle * offset_x
    twist[..., 2] = angle
    return twist


def _sine_and_cosine_over(angle: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return sin(a) / a and (1 - cos(a)) / a."""
    small = np.abs(angle) < _SMALL
    safe = np.where(small, 1.0, angle)
    sine = np.where(small, 1.0 - angle**2 / 6.0, np.sin(safe) / safe)
    return sine, np.where(small, 0.5 * angle, (1.0 - np.cos(safe)) / safe)


def _exp(twist: FloatArray) -> FloatArray:
    """Increments (..., 3) of constant twists (..., 3) over one unit of time."""
    s, c = _sine_and_cosine_over(twist[..., 2])
    increment = np.empty(twist.shape)
    increment[..., 0] = s * twist[..., 0] - c * twist[..., 1]
    increment[..., 1] = c * twist[..., 0] + s * twist[..., 1]
    increment[..., 2] = twist[..., 2]
    return increment


def twists(increments: FloatArray) -> FloatArray:
    """
    Take steps for arcs: the constant twists that make them, with the least turn.

    A twist is metres ahead and to the left, and radians of turn, over one unit of time. Shapes:
    (..., 3) -> (..., 3).
    """
    increments = np.asarray(increments, dtype=np.float64)
    angle = wrap_angle(increments[..., 2])
    s, c = _sine_and_cosine_over(angle)
    squared = s**2 + c**2
    twist = np.empty(increments.shape)
    twist[..., 0] = (s * increments[..., 0] + c * increments[..., 1]) / squared
    twist[..., 1] = (s * increments[..., 1] - c * increments[..., 0]) / squared
    twist[..., 2] = angle
    return twist


def _right_jacobian(twist: FloatArray) -> FloatArray:
    """Errors (..., 3, 3) in the frame after an increment, by errors of its twist (..., 3)."""
    x, y, angle = twist[..., 0], twist[..., 1], twist[..., 2]
    s, c = _sine_and_cosine_over(angle)
    small = np.abs(angle) < _SMALL
    safe = np.where(small, 1.0, angle)
    ds = np.where(small, -angle / 3.0, (np.cos(safe) - s) / safe)
    dc = np.where(small, 0.5, (np.sin(safe) - c) / safe)
    # in the frame after the motion the matrix of s and c is its own transpose
    result = np.zeros((*np.shape(angle), 3, 3))
    result[..., 0, 0], result[..., 0, 1] = s, c
    result[..., 1, 0], result[..., 1, 1] = -c, s
    along, across = ds * x - dc * y, dc * x + ds * y
    cosine, sine = np.cos(angle), np.sin(angle)
    result[..., 0, 2] = cosine * along + sine * across
    result[..., 1, 2] = cosine * across - sine * along
    result[..., 2, 2] = 1.0
    return result
