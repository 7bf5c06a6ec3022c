"""
The odometry motion model and the maximum-likelihood estimate of its variances.

[MbKSR] section 6.3 and [PR] section 5.4 move a pose by rotation, translation, rotation. Composing
the increment in the base frame gives the same pose and has no singularity when the robot stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kbr_localization import se2
from kbr_localization.errors import LocalizationError
from kbr_localization.localization.calibration import Calibration, moved, twists
from kbr_localization.localization.calibration_fit import (
    calibrate_run,
    combined,
    fit_variance,
    moves_sideways,
    sums,
    Track,
    window_marks,
)
from kbr_localization.se2 import FloatArray
import numpy as np

_FLOOR = 1e-7
_JUMP = 0.5  # of the way over a window: no wheels slip so far
_UNSEEN = 1e-6  # metres ahead over a window, of rounding


@dataclass(frozen=True)
class MotionNoise:
    """
    Errors of an odometry increment in the base frame: along, across, heading.

    The variances grow with the way: `per_metre` (3,) in m², m², rad² per metre and `per_radian`
    (3,) per radian of turning, about the systematic errors (see `calibration`).
    `per_metre_aside` (3,): the same per metre sideways, of an omnidirectional base; else None.
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
        """Variances of increments. Shapes: (..., 3) -> (..., 3)."""
        radians = np.abs(increment[..., 2])[..., np.newaxis]
        turning = np.asarray(radians * self.per_radian)
        if self.per_metre_aside is None:
            metres = np.hypot(increment[..., 0], increment[..., 1])[..., np.newaxis]
            return metres * self.per_metre + turning
        ahead, aside = np.abs(increment[..., [0]]), np.abs(increment[..., [1]])
        return ahead * self.per_metre + aside * self.per_metre_aside + turning

    def in_metres(self, scale: float) -> MotionNoise:
        """Return the errors of the same increments for poses whose positions are scaled."""
        metres = np.array([scale**2, scale**2, 1.0])
        aside = self.per_metre_aside
        return MotionNoise(
            per_metre=metres * self.per_metre,
            per_radian=metres * self.per_radian,
            step=np.array([*metres, 1.0]) * self.step,
            per_metre_aside=None if aside is None else metres * aside,
        )


def measure_odometry(tracks: Sequence[Track]) -> tuple[Calibration, MotionNoise]:
    """
    Measure the systematic errors of the odometry of runs, and then the noise about them.

    `tracks`: per run, odometry (n, 3) and reference (n, 3) poses of the same frames. The noise is
    fitted by maximum likelihood over windows of a metre, about the errors of each run: wheel
    errors are correlated, and the variance of a single step is overconfident. Windows that err by
    more than half their length are jumps of the reference. Runs that are too short give
    `MotionNoise.default()`. Raises LocalizationError for poses that are not finite or not paired.
    """
    for odometry, reference in tracks:
        _check_track(odometry, reference)
    runs = [calibrate_run(*track) for track in tracks]
    calibration = combined([run for run in runs if run is not None])
    corrected = [
        (_corrected(odometry, (run or calibration).values), reference)
        for run, (odometry, reference) in zip(runs, tracks, strict=True)
    ]
    return calibration, replace(_noise_about(corrected), step=_step_variances(tracks))


def estimate_noise(tracks: Sequence[Track]) -> MotionNoise:
    """Measure the noise alone, see `measure_odometry`."""
    return measure_odometry(tracks)[1]


def _check_track(odometry: FloatArray, reference: FloatArray) -> None:
    if odometry.shape != reference.shape or odometry.shape[1:] != (3,):
        raise LocalizationError(
            f'odometry of shape {odometry.shape} and reference of shape {reference.shape}: '
            'expected (n, 3) of both, one pose of each per frame'
        )
    missing = int(np.sum(~np.isfinite(odometry + reference).all(axis=1)))
    if missing:
        raise LocalizationError(
            f'odometry and reference: expected finite poses, got {missing} of {len(odometry)} '
            'frames with others: leave these frames out'
        )


def _corrected(odometry: FloatArray, values: FloatArray) -> FloatArray:
    """Poses (n, 3) that the odometry would have without errors of these values (7,)."""
    if len(odometry) == 0:
        return odometry
    return se2.chain(odometry[0], moved(se2.between(odometry[:-1], odometry[1:]), values))


def _noise_about(tracks: Sequence[Track]) -> MotionNoise:
    """Noise of odometry that has no systematic errors, without its `step`."""
    found = [_window_errors(*track) for track in tracks]
    ways = np.concatenate([np.zeros((0, 3)), *(way for way, _ in found)])
    errors = np.concatenate([np.zeros((0, 3)), *(error for _, error in found)])
    usual = np.hypot(errors[:, 0], errors[:, 1]) <= _JUMP * np.hypot(ways[:, 0], ways[:, 2])
    ways, errors = ways[usual], errors[usual]
    if len(errors) < 10:
        return MotionNoise.default()
    aside = any(moves_sideways(odometry) for odometry, _ in tracks)
    if not aside:
        ways = np.stack([np.hypot(ways[:, 0], ways[:, 2]), ways[:, 1]], axis=-1)
    default = MotionNoise.default()
    fitted = np.stack([default.per_metre, default.per_radian, default.per_metre], axis=-1)
    # a base that moved only sideways shows nothing of the noise ahead
    first, end = 0 if ways[:, 0].mean() > _UNSEEN else 1, ways.shape[1]
    for axis in range(3):
        rates = fit_variance(ways[:, first:], errors[:, axis] ** 2)
        fitted[axis, first:end] = np.maximum(rates, _FLOOR)
    return replace(
        default,
        per_metre=fitted[:, 0],
        per_radian=fitted[:, 1],
        per_metre_aside=fitted[:, 2] if aside else None,
    )


def _window_errors(odometry: FloatArray, reference: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Of each window metres ahead, radians and metres aside (w, 3); errors (w, 3)."""
    marks = window_marks(odometry)
    steps = np.abs(twists(se2.between(odometry[:-1], odometry[1:])))
    start, end = marks[:-1], marks[1:]
    error = se2.between(
        se2.between(odometry[start], odometry[end]), se2.between(reference[start], reference[end])
    )
    return sums(steps[:, [0, 2, 1]], marks), error


def _step_variances(tracks: Sequence[Track]) -> FloatArray:
    """
    Variances (4,) of x', y', cos', sin' given the pose and the odometry before.

    The usual ones where no run has a step.
    """
    nothing = np.zeros((0, 3))
    steps = [(nothing, nothing, nothing)]
    for odometry, reference in tracks:
        increments = se2.between(odometry[:-1], odometry[1:])
        steps.append((reference[:-1], increments, reference[1:]))
    found = step_variances(*(np.concatenate(parts) for parts in zip(*steps, strict=True)))
    return MotionNoise.default().step if found is None else found


def step_variances(
    poses: FloatArray, increments: FloatArray, following: FloatArray
) -> FloatArray | None:
    """
    Variances (4,) of x', y', cos', sin' about a pose moved by an increment, by maximum likelihood.

    Poses, increments and the poses that follow are (n, 3); rows with NaN do not count. None where
    there are no others.
    """
    predicted = se2.compose(poses, increments)
    errors = se2.to_plane_and_circle(following) - se2.to_plane_and_circle(predicted)
    errors = errors[np.isfinite(errors).all(axis=1)]
    if len(errors) == 0:
        return None
    return np.asarray(np.maximum(np.mean(errors**2, axis=0), 1e-9))
