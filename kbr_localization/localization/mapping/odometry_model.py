"""
The motion between images by an odometry with systematic errors.

The motion from image t to image t + 1 of a segment is the odometry's increment u_t plus J(u_t) p,
to first order in the parameters p (7,) of `calibration`: offset, mounting, scales, drift. Its
random noise has variances that grow with the distance.

Wheels drift and slip. Points tracked from image to image measure the turns of the robot, and so
the drift of the wheels without any loop closure. Where too few points are tracked, the turn is
that of the wheels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
import itertools

from kbr_localization import se2
from kbr_localization.datasets import Dataset
from kbr_localization.localization.calibration import (
    MotionNoise,
    moved_with_effects,
    NAMES,
    SIZE,
    twists,
)
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.mapping.trajectories import Indices, Trajectories
from kbr_localization.se2 import FloatArray
from kbr_localization.vision import turning
from kbr_localization.vision.preparation import LoadableImage
from kbr_localization.workers import run_batches
import numpy as np

_FLOOR = 1e-8  # rad², the variance of a standing robot

OFFSET, SCALE, DRIFT = map(NAMES.index, ('offset_x', 'forward_scale', 'drift'))
"""Loop closures do not determine the scale: they hold in a scaled map as well."""
ROBOT_SD = np.array([0.15, 0.05, 0.02, 0.02, 0.02, 0.02, 0.02])
"""Standard deviations of p among robots."""
RUN_SD = np.array([0.001, 0.001, 0.002, 0.004, 0.004, 0.004, 0.004])
"""Standard deviations of p between runs of one robot: tyres, load and floor change."""


@dataclass(frozen=True)
class Prior:
    """Noise of an odometry, mean (7,) and deviations (7,) of p; by default of any robot."""

    noise: MotionNoise = field(default_factory=MotionNoise.default)
    mean: FloatArray = field(default_factory=lambda: np.zeros(SIZE))
    deviations: FloatArray = field(default_factory=ROBOT_SD.copy)


def jacobians(increments: FloatArray) -> FloatArray:
    """Return J (m, 3, 7) of odometry increments (m, 3): derivatives of the motion by p."""
    return se2.rotation(increments[:, 2]) @ moved_with_effects(increments, np.zeros(SIZE))[1]


def corrected_poses(trajectories: Trajectories, parameters: FloatArray) -> FloatArray:
    """Return poses (n, 3) by the odometry with p (7,) corrected; fixed segments do not change."""
    poses = trajectories.odometry.copy()
    for number in np.flatnonzero(~trajectories.fixed).tolist():
        span = trajectories.span(number)
        steps = se2.steps(trajectories.odometry[span])
        poses[span] = se2.chain(np.zeros(3), steps + jacobians(steps) @ parameters)
    return poses


class PathNoise:
    """
    Covariances of the motion between two images of a segment, from cumulative sums.

    An error of the heading at image t displaces image k by the error times |x_k - x_t|. So the
    cumulative sums of variance, variance times x_t and variance times |x_t|^2 give the variance
    between any two images.
    """

    def __init__(self, trajectories: Trajectories, poses: FloatArray, noise: MotionNoise) -> None:
        before = np.maximum(np.arange(len(trajectories)) - 1, 0)
        moving = (np.diff(trajectories.segment, prepend=-1) == 0) & ~trajectories.fixed_images
        steps = se2.between(trajectories.odometry[before], trajectories.odometry)
        variances = noise.variances(steps * moving[:, np.newaxis])
        heading, place = variances[:, 2], poses[:, :2]
        self._poses = poses
        self._heading = np.cumsum(heading)
        self._position = np.cumsum(0.5 * (variances[:, 0] + variances[:, 1]))
        self._lever = np.cumsum(heading[:, np.newaxis] * place, axis=0)
        self._square = np.cumsum(heading * np.sum(place**2, axis=1))

    def between(self, start: Indices, end: Indices) -> FloatArray:
        """Return diagonal covariances (q, 3, 3) of motions from `start` to `end`, at `end`."""
        low, high = np.minimum(start, end), np.maximum(start, end)
        heading = self._heading[high] - self._heading[low]
        place = self._poses[end, :2]
        lever = (
            heading * np.sum(place**2, axis=-1)
            - 2.0 * np.sum(place * (self._lever[high] - self._lever[low]), axis=-1)
            + self._square[high]
            - self._square[low]
        )
        position = self._position[high] - self._position[low] + np.maximum(lever, 0.0)
        return np.stack([position, position, heading], axis=-1)[:, :, np.newaxis] * np.eye(3)


@dataclass(frozen=True)
class CorrectedOdometry:
    """
    Odometry (n, 3) with headings corrected by the camera, and the prior of its other errors.

    `drift`: radians per metre that were removed. `share`: fraction of the steps between images
    whose turn the camera measured. `view`: calibration of the camera, None if it was not used.
    """

    odometry: FloatArray
    prior: Prior
    drift: float = 0.0
    share: float = 0.0
    view: turning.View | None = None

    def summary(self, base: bool) -> list[str]:
        """Report what the camera measured, line by line; `base`: the map has base poses."""
        lines = []
        if self.share:
            lines.append(
                f'the camera measured {self.share:.0%} of the turns between images: the wheels '
                f'turn by {self.drift:+.4f} rad per metre too much'
            )
        offset, deviation = self.prior.mean[OFFSET], self.prior.deviations[OFFSET]
        if deviation < ROBOT_SD[OFFSET]:
            lines.append(
                f'the camera is {abs(offset):.2f} m {"behind" if offset > 0.0 else "ahead of"} '
                f'the point whose motion the odometry reports (± {deviation:.2f} m): the poses '
                f'are those of {"that point" if base else "the camera"}'
            )
        elif base:
            lines.append(
                'warning: the images do not show how far the camera is ahead of the point whose '
                f'motion the odometry reports: poses of that point err by about {deviation:.2f} m'
            )
        return lines


def track_points(
    datasets: Sequence[Dataset], described: KernelMap
) -> tuple[list[LoadableImage], list[turning.Flow]]:
    """Return the images (n,) of a map of one camera, and the points tracked between them."""
    images: list[LoadableImage] = []
    if described.cameras:
        return images, []
    for number, dataset in enumerate(datasets):
        at = {int(frame.stamp_ns): frame.image for frame in dataset}
        of_run = described.stamps_ns[described.run_index == number]
        images += [at[int(stamp)] for stamp in of_run]
    flows = track_images(images)
    for border in np.flatnonzero(np.diff(described.run_index)):
        flows[border] = flows[border][:0]
    return images, flows


def track_images(images: Sequence[LoadableImage]) -> list[turning.Flow]:
    """Track points from each image to the next: n - 1 flows (k, 4), empty for broken images."""
    return run_batches('following points', _track_all, list(itertools.pairwise(images)), 64)


def _track_all(pairs: Sequence[tuple[LoadableImage, LoadableImage]]) -> list[turning.Flow]:
    images = pairs[0][0], *(after for _, after in pairs)
    pictures = [turning.load_small(image) for image in images]
    return [turning.follow(first, second) for first, second in itertools.pairwise(pictures)]


def correct_headings(
    odometry: FloatArray, run: Indices, points: Sequence[turning.Flow]
) -> CorrectedOdometry:
    """
    Correct the headings of odometry poses (n, 3) of runs (n,) by points tracked in their images.

    The odometry is not corrected if there are too few points, or if camera and odometry turn
    differently, because the camera looks aside or is upside down. The same drift is removed from
    all runs, also from those without points.
    """
    uncorrected = CorrectedOdometry(odometry, Prior())
    steps, noise = se2.steps(odometry), MotionNoise.default()
    inside = np.flatnonzero(np.diff(run) == 0)
    seen = _measure_turns(points, steps, np.diff(run) != 0)
    if seen is None:
        return uncorrected
    view, turns = seen[0], turning.Turns._make(values[inside] for values in seen[1])
    count = np.isfinite(turns.angle).sum()
    if count < 30:
        return uncorrected
    wheels = noise.variances(steps[inside])[:, 2] + _FLOOR
    fused, variances, drift, deviation = _fuse_turns(steps[inside], turns, wheels)
    if abs(drift) > 3.0 * ROBOT_SD[DRIFT]:
        return uncorrected
    steps[inside, 2] = fused
    mean, deviations = np.zeros(SIZE), ROBOT_SD.copy()
    # systematic errors of the camera: 0.002 rad/m of drift, 0.03 m of offset
    deviations[DRIFT] = min(float(np.hypot(deviation, 0.002)), ROBOT_SD[DRIFT])
    spread = float(np.hypot(view.deviation, 0.03))
    if spread < ROBOT_SD[OFFSET]:
        mean[OFFSET], deviations[OFFSET] = view.offset or 0.0, spread
    less = np.array([1.0, 1.0, variances.sum() / wheels.sum()])
    noise = replace(noise, per_metre=noise.per_metre * less, per_radian=noise.per_radian * less)
    prior = Prior(noise, mean, deviations)
    share = float(count / len(inside))
    return CorrectedOdometry(se2.chain(odometry[0], steps), prior, drift, share, view)


def _measure_turns(
    points: Sequence[turning.Flow], steps: FloatArray, between_runs: np.ndarray
) -> tuple[turning.View, turning.Turns] | None:
    """Return view and turns of the camera; None if it looks aside or turns differently."""
    # runs of one image have no steps
    if not points or between_runs.all():
        return None
    moved = twists(steps)
    moved[between_runs] = np.nan
    on_arcs, view = turning.find_views(points, moved)
    # other turns than those of the odometry, or the driving direction is out of view
    if on_arcs.turn_mismatch > 0.3 or np.abs(on_arcs.ahead).max() > 0.5:
        return None
    # with `on_arcs` the focal length absorbs other errors: its turns sum up to the odometry's
    return view, turning.estimate_turns(points, moved, on_arcs)


def _fuse_turns(
    steps: FloatArray, seen: turning.Turns, wheels: FloatArray
) -> tuple[FloatArray, FloatArray, float, float]:
    """
    Fuse the turns of wheels, with variances `wheels` (m,), and camera.

    Return turns (m,), their variances (m,), the drift of the wheels, and its deviation.
    """
    metres, known = np.hypot(steps[:, 0], steps[:, 1]), np.isfinite(seen.angle)
    differ = np.where(known, steps[:, 2] - seen.angle, 0.0)
    # a robust line through the origin, with the prior `ROBOT_SD`
    slope, information = turning.robust_line(metres[known, np.newaxis], differ[known])
    of_line, usual = float(information[0, 0]), ROBOT_SD[DRIFT] ** -2
    drift, deviation = float(slope[0]) * of_line / (of_line + usual), (of_line + usual) ** -0.5
    differ -= drift * metres
    variance = (1.4826 * np.median(np.abs(differ[known]))) ** 2
    least = max(variance - float(np.median(wheels[known])), 0.1 * variance, _FLOOR)
    relative = np.where(known, seen.deviation / np.median(seen.deviation[known]), 1.0)
    camera = least * np.maximum(relative, 1.0) ** 2
    weight = wheels / (wheels + camera)
    # outliers: a wheel slipped, or the points are on a moving object
    outliers = np.abs(differ) > 5.0 * np.sqrt(wheels + camera)
    # trust the camera if many points agree, except in fast turns, which confuse points
    sure = (seen.inliers >= 20) & (seen.inlier_ratio > 0.6) & (np.abs(steps[:, 2]) < 0.2)
    weight[outliers] = np.where(sure[outliers], 1.0, 0.0)
    weight[~known] = 0.0
    turns = steps[:, 2] - drift * metres - np.where(known, weight * differ, 0.0)
    return turns, np.where(weight > 0.0, weight * camera, wheels), drift, deviation
