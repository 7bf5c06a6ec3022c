"""
The odometry motion model: systematic errors and noise of the reported motion.

[MbKSR] section 6.3 and [PR] section 5.4 move a pose by rotation, translation, rotation. Composing
the increment in the base frame gives the same pose and has no singularity when the robot stands.

The odometry is that of the wheels' point, at (offset x, offset y) from the point whose pose is in
the map, with axes turned by the mounting angle. It counts a fraction too many metres ahead, metres
sideways (of a base that can move sideways) and radians, and turns by the drift with every metre
ahead. A step of the odometry is an arc: a constant twist (v_x, v_y, w) = log of the increment in
SE(2). The twist of the pose is then linear in all errors but the mounting angle m:

    w' = (1 - turn scale) w - drift v_x,
    v' = R(m) ((1 - forward scale) v_x, (1 - lateral scale) v_y) + w' (offset y, -offset x),

the adjoint map of the wheels' point (Sola, Deray and Atchuthan, *A micro Lie theory for state
estimation in robotics*, 2018, section II.F and appendix on SE(2)). In the code a vector of the
plane is a complex number: R(m) is exp(i m), the arc of a twist ends at v (exp(i w) - 1) / (i w).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kbr_localization.se2 import FloatArray, wrap_angle
import numpy as np
from numpy.typing import NDArray

Complex = NDArray[np.complex128]

NAMES = (
    'offset_x',
    'offset_y',
    'mounting',
    'forward_scale',
    'lateral_scale',
    'turn_scale',
    'drift',
)
"""Metres ahead and to the left, radians, fractions of the reported motion, radians per metre."""
SIZE = len(NAMES)
LIMITS = np.array([0.3, 0.1, 0.03, 0.03, 0.03, 0.03, 0.03])
"""Bounds of uniform errors of other robots: other tyres, another load, a sensor elsewhere."""
PRIOR_DEVIATIONS = LIMITS / np.sqrt(3.0)
"""Standard deviations of these uniform distributions."""
_METRES = np.isin(NAMES, ('offset_x', 'offset_y'))
_OF_METRES = np.isin(NAMES, ('forward_scale', 'lateral_scale'))
_WORDS = {
    'offset_x': ('m', 'lie {} ahead of the point of the poses', 'lie {} behind it'),
    'offset_y': ('m', 'lie {} to the left of the point of the poses', 'lie {} to the right of it'),
    'mounting': ('rad', 'are {} turned to the left', 'are {} turned to the right'),
    'forward_scale': ('%', 'count {} too many metres ahead', 'count {} too few metres ahead'),
    'lateral_scale': ('%', 'count {} too many metres aside', 'count {} too few metres aside'),
    'turn_scale': ('%', 'count {} too much of every turn', 'count {} too little of every turn'),
    'drift': (
        'rad',
        'turn {} to the left with every metre',
        'turn {} to the right with every metre',
    ),
}
"""Unit, and what the wheels do if the value is positive or negative."""


@dataclass(frozen=True)
class Calibration:
    """
    The systematic errors of an odometry, with their covariance.

    `values` (7,) in the order of `NAMES`; `covariance` (7, 7), which includes the variance between
    runs. `delay` (2,): seconds by which the stamps of the odometry were behind the stamps of the
    reference poses, and their standard deviation; None if unknown.
    """

    values: FloatArray
    covariance: FloatArray
    delay: FloatArray | None = None

    @staticmethod
    def unknown() -> Calibration:
        """Return the prior: mean zero, with the standard deviations of ordinary robots."""
        return Calibration(np.zeros(SIZE), np.diag(PRIOR_DEVIATIONS**2))

    def prior_for_drive(self, how: str) -> Calibration:
        """
        Return the prior of a drive.

        `how`: 'off' assumes no errors, 'mapped' the errors of the map's runs, shrunk to 0 where
        uncertain. 'learnt' assumes that the robot is the one of these runs or, as likely, another
        one, with errors within `LIMITS`: the mean is half of the errors v, the variance
        `PRIOR_DEVIATIONS`^2 + (v / 2)^2. Errors beyond `LIMITS` are the design of this kind of
        robot: the excess is kept.
        """
        precision = np.linalg.inv(self.covariance)
        shrunk = precision + np.diag(PRIOR_DEVIATIONS**-2.0)
        values = np.linalg.solve(shrunk, precision @ self.values)
        if how == 'learnt':
            halves = 0.5 * np.clip(values, -LIMITS, LIMITS)
            return Calibration(values - halves, np.diag(PRIOR_DEVIATIONS**2 + halves**2))
        return Calibration(values * (how == 'mapped'), np.zeros((SIZE, SIZE)))

    def prior_after_restart(self) -> Calibration:
        """
        Return the prior for a robot that was switched off: the learnt errors, made uncertain.

        With the learnt covariance, a change of tyres would stay unnoticed for days of driving.
        """
        covariance = self.covariance + np.diag(PRIOR_DEVIATIONS**2)
        return Calibration(self.values, covariance, self.delay)

    def in_metres(self, scale: float) -> Calibration:
        """Return the calibration for poses whose positions are scaled."""
        slope = np.where(_METRES | _OF_METRES, scale, 1.0)
        covariance = self.covariance * np.outer(slope, slope)
        return Calibration(in_metres(self.values, scale), covariance, self.delay)

    @property
    def deviations(self) -> FloatArray:
        """Return the standard deviations of the values, shape (7,)."""
        return np.sqrt(np.diag(self.covariance))

    def observable(self) -> NDArray[np.bool_]:
        """Return which errors (7,) are known better than before any run."""
        return np.asarray(self.deviations < PRIOR_DEVIATIONS)

    def described(self) -> dict[str, dict[str, Any]]:
        """Return value, standard deviation, observability and a sentence for each error."""
        found = {}
        columns = (array.tolist() for array in (self.values, self.deviations, self.observable()))
        for name, value, sd, observable in zip(NAMES, *columns, strict=True):
            unit, *sides = _WORDS[name]
            factor, digits = (100.0, 2) if unit == '%' else (1.0, 4)
            size, spread = (f'{factor * abs(x):.{digits}f}' for x in (value, sd))
            words = 'the wheels ' + sides[int(value < 0.0)].format(f'{size} ± {spread} {unit}')
            if not observable:
                words = 'not observable: the runs ' + (
                    'do not move sideways'
                    if name == 'lateral_scale'
                    else 'hardly turn, are short, or have no poses but those of this odometry'
                )
            found[name] = {'value': value, 'sd': sd, 'observable': observable, 'words': words}
        if self.delay is not None:
            seconds, sd = map(float, self.delay)
            side = 'behind' if seconds >= 0.0 else 'ahead of'
            words = f'the stamps of the odometry are {abs(seconds):.3f} ± {sd:.3f} s '
            words += f'{side} those of the poses'
            found['delay'] = {'value': seconds, 'sd': sd, 'observable': True, 'words': words}
        return found


@dataclass(frozen=True)
class MotionNoise:
    """
    Variances of an odometry increment in the base frame: along, across, heading.

    They grow with the motion: `per_metre` (3,) in m², m², rad² per metre and `per_radian` (3,) per
    radian of turning, about the systematic errors (`Calibration`). `per_metre_aside` (3,): the
    same per metre sideways, of an omnidirectional base; else None.
    `step` (4,): variances of x, y, cos, sin for one step from image to image, systematic errors
    included, as in [MbKSR] section 6.3.
    """

    per_metre: FloatArray
    per_radian: FloatArray
    step: FloatArray
    per_metre_aside: FloatArray | None = None

    @staticmethod
    def default() -> MotionNoise:
        """Return variances of an ordinary indoor robot, for runs too short to estimate them."""
        return MotionNoise(
            per_metre=np.array([4e-4, 2e-4, 2e-4]),
            per_radian=np.array([1e-4, 1e-4, 1e-3]),
            step=np.array([4e-4, 4e-4, 4e-4, 4e-4]),
        )

    def variances(self, increment: FloatArray) -> FloatArray:
        """Return noise variances of the shape of the increments (..., 3)."""
        radians = np.abs(increment[..., 2])[..., np.newaxis]
        turning = np.asarray(radians * self.per_radian)
        if self.per_metre_aside is None:
            metres = np.hypot(increment[..., 0], increment[..., 1])[..., np.newaxis]
            return metres * self.per_metre + turning
        ahead, aside = np.abs(increment[..., [0]]), np.abs(increment[..., [1]])
        return ahead * self.per_metre + aside * self.per_metre_aside + turning

    def in_metres(self, scale: float) -> MotionNoise:
        """Return the noise for poses whose positions are scaled."""
        metres, aside = np.array([scale**2, scale**2, 1.0]), self.per_metre_aside
        return MotionNoise(
            per_metre=metres * self.per_metre,
            per_radian=metres * self.per_radian,
            step=np.array([*metres, 1.0]) * self.step,
            per_metre_aside=None if aside is None else metres * aside,
        )


def in_metres(values: FloatArray, scale: float) -> FloatArray:
    """Return systematic errors (..., 7) for poses whose positions are scaled."""
    found = np.where(_METRES, scale * values, values)
    return np.where(_OF_METRES, 1.0 - scale * (1.0 - values), found)


def moved(increments: FloatArray, values: FloatArray) -> FloatArray:
    """
    Return the motions (..., 3) of the robot, given reported increments (..., 3).

    It removes the systematic errors `values` (7,); the motions are in the frame before them.
    """
    return moved_with_effects(increments, values)[0]


def moved_with_effects(
    increments: FloatArray, values: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return `moved`, and its derivatives (..., 3, 7) by the values, in the frame afterwards."""
    offset_x, offset_y, mounting, forward, lateral, turn_scale, drift = values
    offset, axes = offset_x + 1j * offset_y, np.exp(1j * mounting)
    reported, reported_turn = _log(increments)
    ahead, aside = reported.real, reported.imag
    along = axes * ((1.0 - forward) * ahead + 1j * (1.0 - lateral) * aside)
    turn = (1.0 - turn_scale) * reported_turn - drift * ahead
    velocity = along - 1j * turn * offset
    chord, slope = _chord(turn)
    by_turn = np.stack([0.0 * turn] * 5 + [-reported_turn, -ahead], axis=-1)
    by_velocity = np.stack(
        [
            -1j * turn,
            turn + 0j,
            1j * along,
            -axes * ahead,
            -1j * axes * aside,
            1j * offset * reported_turn,
            1j * offset * ahead,
        ],
        axis=-1,
    )
    change = chord[..., None] * by_velocity + (slope * velocity)[..., None] * by_turn
    change = np.exp(-1j * turn)[..., None] * change
    effects = np.stack([change.real, change.imag, by_turn], axis=-2)
    return _increments(chord * velocity, turn), effects


def reported(motions: FloatArray, values: FloatArray) -> FloatArray:
    """Return the increments (..., 3) reported for motions (..., 3): the inverse of `moved`."""
    offset_x, offset_y, mounting, forward, lateral, turn_scale, drift = values
    velocity, turn = _log(motions)
    along = np.exp(-1j * mounting) * (velocity + 1j * turn * (offset_x + 1j * offset_y))
    ahead, aside = along.real / (1.0 - forward), along.imag / (1.0 - lateral)
    turn = (turn + drift * ahead) / (1.0 - turn_scale)
    return _increments(_chord(turn)[0] * (ahead + 1j * aside), turn)


def twists(increments: FloatArray) -> FloatArray:
    """Return the twist (..., 3) of each step: metres ahead and left, turn within pi."""
    return _increments(*_log(increments))


def _log(increments: FloatArray) -> tuple[Complex, FloatArray]:
    increments = np.asarray(increments, dtype=np.float64)
    turn = wrap_angle(increments[..., 2])
    return (increments[..., 0] + 1j * increments[..., 1]) / _chord(turn)[0], turn


def _chord(turn: FloatArray) -> tuple[Complex, Complex]:
    """Return (exp(i w) - 1) / (i w), the chord of an arc of length 1, and its slope by w."""
    half, ratio = np.exp(0.5j * turn), np.sinc(turn / (2.0 * np.pi))
    small = np.abs(turn) < 1e-4  # where the series is exact
    slope = np.where(small, -turn / 12.0, (half.real - ratio) / np.where(small, 1.0, turn))
    return half * ratio, half * (0.5j * ratio + slope)


def _increments(position: Complex, turn: FloatArray) -> FloatArray:
    return np.stack([position.real, position.imag, turn], axis=-1)
