"""
The motion between images by an odometry with systematic errors.

The parameters p (7,), see `calibration`, are to first order: offset, mounting, scales, drift.
The motion from image t to image t + 1 of a segment is the odometry's increment u_t plus J(u_t) p,
with random noise whose variances grow with the distance.

Wheels drift and slip; points that are followed from image to image measure the turns of the robot,
and by them the drift of the wheels is known before any place is shown again. Where too few points
are seen the wheels alone count.
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

_FLOOR = 1e-8  # rad², so that a standing robot has some variance

OFFSET, SCALE, DRIFT = map(NAMES.index, ('offset_x', 'forward_scale', 'drift'))
"""The scale is not observable from loop closures: they hold in a scaled map as well."""
ROBOT_SD = np.array([0.15, 0.05, 0.02, 0.02, 0.02, 0.02, 0.02])
"""Standard deviations of p of a robot that nothing is known of."""
RUN_SD = np.array([0.001, 0.001, 0.002, 0.004, 0.004, 0.004, 0.004])
"""The same between runs of one robot: tyres, load, floor; the offset stays."""


@dataclass(frozen=True)
class Prior:
    """Noise of an odometry, mean (7,) and deviations (7,) of its errors; of any by default."""

    noise: MotionNoise = field(default_factory=MotionNoise.default)
    mean: FloatArray = field(default_factory=lambda: np.zeros(SIZE))
    deviations: FloatArray = field(default_factory=ROBOT_SD.copy)


def jacobians(increments: FloatArray) -> FloatArray:
    """J (m, 3, 7) of odometry increments (m, 3): change of the motion by each parameter."""
    return se2.rotation(increments[:, 2]) @ moved_with_effects(increments, np.zeros(SIZE))[1]


def corrected_poses(trajectories: Trajectories, parameters: FloatArray) -> FloatArray:
    """Poses (n, 3) by the odometry corrected for parameters (7,); fixed segments stay."""
    poses = trajectories.odometry.copy()
    for number in np.flatnonzero(~trajectories.fixed).tolist():
        span = trajectories.span(number)
        steps = se2.steps(trajectories.odometry[span])
        poses[span] = se2.chain(np.zeros(3), steps + jacobians(steps) @ parameters)
    return poses


class PathNoise:
    """
    How uncertain the motion between images of a segment is, by running sums over its images.

    Noise of the heading at image t moves image k by that times |x_k - x_t|: the sums of variance,
    variance times x_t and variance times |x_t|^2 up to each image give the variance between any
    two images.
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
        """Diagonal covariances (q, 3, 3) of motions from `start` to `end` (q,), seen there."""
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
    Odometry (n, 3) with its headings corrected, and what is known of it then.

    `drift`: radians per metre that were taken out. `share`: of the ways between images, those on
    which the camera saw the turn. `view`: of that camera, None where it told nothing.
    """

    odometry: FloatArray
    prior: Prior
    drift: float = 0.0
    share: float = 0.0
    view: turning.View | None = None

    def summary(self, base: bool) -> list[str]:
        """Say what the camera did, a line each, if it did; of a map of the base or the camera."""
        lines = []
        if self.share:
            lines.append(
                f'the camera saw the turn between {self.share:.0%} of the images: the wheels turn '
                f'by {self.drift:+.4f} rad per metre too much'
            )
        offset, deviation = self.prior.mean[OFFSET], self.prior.deviations[OFFSET]
        if deviation < ROBOT_SD[OFFSET]:
            lines.append(
                f'the camera is {abs(offset):.2f} m {"behind" if offset > 0.0 else "ahead of"} '
                f'the point whose way the odometry tells, give or take {deviation:.2f} m: the '
                f'poses are those of {"that point" if base else "the camera"}'
            )
        elif base:
            lines.append(
                'warning: the images do not tell how far the camera is ahead of the point whose '
                f'way the odometry tells: the poses of that point err by {deviation:.2f} m or so'
            )
        return lines


def track_points(
    datasets: Sequence[Dataset], described: KernelMap
) -> tuple[list[LoadableImage], list[turning.Flow]]:
    """Find the images (n,) of a map of one camera, and follow points from each to the next."""
    images: list[LoadableImage] = []
    if described.cameras:
        return images, []
    for number, dataset in enumerate(datasets):
        at = {int(frame.stamp_ns): frame.image for frame in dataset}
        of_run = described.stamps_ns[described.run_index == number]
        images += [at[int(stamp)] for stamp in of_run]
    flows = follow_images(images)
    for border in np.flatnonzero(np.diff(described.run_index)):
        flows[border] = flows[border][:0]
    return images, flows


def follow_images(images: Sequence[LoadableImage]) -> list[turning.Flow]:
    """Follow points from each image to the next: n - 1 flows (k, 4), none of broken images."""
    return run_batches('following points', _follow_all, list(itertools.pairwise(images)), 64)


def _follow_all(pairs: Sequence[tuple[LoadableImage, LoadableImage]]) -> list[turning.Flow]:
    pictures = [
        turning.load_small(image) for image in (pairs[0][0], *(after for _, after in pairs))
    ]
    return [turning.follow(first, second) for first, second in itertools.pairwise(pictures)]


def correct_headings(
    odometry: FloatArray, run: Indices, points: Sequence[turning.Flow]
) -> CorrectedOdometry:
    """
    Correct the headings of odometry poses (n, 3) of runs (n,) by points of their images.

    Without points, or where too few images have some, the odometry is not corrected; nor is it
    where points and odometry turn differently, as with a camera that looks aside or is upside
    down. All runs have one drift taken out, also those without points.
    """
    unknown = CorrectedOdometry(odometry, Prior())
    steps, noise = se2.steps(odometry), MotionNoise.default()
    inside, seen = np.flatnonzero(np.diff(run) == 0), _seen(points, steps, np.diff(run) != 0)
    if seen is None:
        return unknown
    view, turns = seen[0], turning.Turns._make(values[inside] for values in seen[1])
    count = np.isfinite(turns.angle).sum()
    if count < 30:
        return unknown
    law = noise.variances(steps[inside])[:, 2] + _FLOOR
    fused, variances, drift, deviation = _fused(steps[inside], turns, law)
    if abs(drift) > 3.0 * ROBOT_SD[DRIFT]:
        return unknown
    steps[inside, 2] = fused
    mean, deviations = np.zeros(SIZE), ROBOT_SD.copy()
    # the camera itself may seem to turn by 0.002 rad/m, and to be 0.03 m elsewhere
    deviations[DRIFT] = min(float(np.hypot(deviation, 0.002)), ROBOT_SD[DRIFT])
    spread = float(np.hypot(view.deviation, 0.03))
    if spread < ROBOT_SD[OFFSET]:
        mean[OFFSET], deviations[OFFSET] = view.offset or 0.0, spread
    less = np.array([1.0, 1.0, variances.sum() / law.sum()])
    noise = replace(noise, per_metre=noise.per_metre * less, per_radian=noise.per_radian * less)
    prior = Prior(noise, mean, deviations)
    share = float(count / len(inside))
    return CorrectedOdometry(se2.chain(odometry[0], steps), prior, drift, share, view)


def _seen(
    points: Sequence[turning.Flow], steps: FloatArray, between_runs: np.ndarray
) -> tuple[turning.View, turning.Turns] | None:
    """Find the view, and the turns, unless the camera looks aside or sees other turns."""
    # a single image has no way to the next one of its run
    if not points or between_runs.all():
        return None
    moved = twists(steps)
    moved[between_runs] = np.nan
    on_arcs, view = turning.find_views(points, moved)
    # the camera sees other turns than the odometry, or where the robot drives to is out of view
    if on_arcs.turn_mismatch > 0.3 or np.abs(on_arcs.ahead).max() > 0.5:
        return None
    # on arcs the focal length takes up what is wrong: the sum of all turns is the odometry's
    return view, turning.estimate_turns(points, moved, on_arcs)


def _fused(
    steps: FloatArray, seen: turning.Turns, law: FloatArray
) -> tuple[FloatArray, FloatArray, float, float]:
    """Find turns (m,) by wheels and camera, variances (m,), the wheels' drift, its deviation."""
    metres, known = np.hypot(steps[:, 0], steps[:, 1]), np.isfinite(seen.angle)
    differ = np.where(known, steps[:, 2] - seen.angle, 0.0)
    # a robust line through the origin, with the prior of robots
    slope, information = turning.robust_line(metres[known, np.newaxis], differ[known])
    of_line, usual = float(information[0, 0]), ROBOT_SD[DRIFT] ** -2
    drift, deviation = float(slope[0]) * of_line / (of_line + usual), (of_line + usual) ** -0.5
    differ -= drift * metres
    spread = (1.4826 * np.median(np.abs(differ[known]))) ** 2
    least = max(spread - float(np.median(law[known])), 0.1 * spread, _FLOOR)
    relative = np.where(known, seen.deviation / np.median(seen.deviation[known]), 1.0)
    camera = least * np.maximum(relative, 1.0) ** 2
    weight = law / (law + camera)
    # a wheel has slipped, or the points are on something that moves
    outlying = np.abs(differ) > 5.0 * np.sqrt(law + camera)
    # the camera is right where many points agree, unless a fast turn took points for others
    sure = (seen.inliers >= 20) & (seen.inlier_ratio > 0.6) & (np.abs(steps[:, 2]) < 0.2)
    weight[outlying] = np.where(sure[outlying], 1.0, 0.0)
    weight[~known] = 0.0
    turns = steps[:, 2] - drift * metres - np.where(known, weight * differ, 0.0)
    return turns, np.where(weight > 0.0, weight * camera, law), drift, deviation
