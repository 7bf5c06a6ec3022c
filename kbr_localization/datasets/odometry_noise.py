"""Simulate the errors of wheel odometry, for single steps and whole runs."""

from dataclasses import dataclass
import math
import zlib

from kbr_localization import se2
from kbr_localization.configuration import Config, parameter
from kbr_localization.datasets.frame import OdometryTrack
from kbr_localization.se2 import FloatArray
import numpy as np

TRACK_M = 0.4
"""Distance of the two wheels of the simulated robot, for wheel slip."""
MIN_STEP = 1e-6
"""Metres and radians up to which a step counts as rest, without errors."""


@dataclass(frozen=True)
class OdometryNoise(Config):
    """Errors of wheel odometry; deviations are those of 0.2 s of driving. Defaults fit COLD."""

    along: float = parameter(0.0049, 'standard deviation along the motion, m', 0.0, 1.0)
    across: float = parameter(0.0019, 'standard deviation across it, m', 0.0, 1.0)
    turn: float = parameter(0.0029, 'standard deviation of the heading, rad', 0.0, 1.0)
    yaw_bias: float = parameter(0.012, 'systematic turn, rad per metre', -1.0, 1.0)
    offset_x: float = parameter(0.0, "the wheels' point, metres ahead of the base", -2.0, 2.0)
    offset_y: float = parameter(0.0, "the wheels' point, metres to its left", -2.0, 2.0)
    mounting: float = parameter(0.0, 'heading of the wheels on the robot, rad', -3.2, 3.2)
    forward_scale: float = parameter(1.0, 'metres reported per metre forward', 0.5, 2.0)
    turn_scale: float = parameter(1.0, 'radians reported per radian turned', 0.5, 2.0)
    slip_rate: float = parameter(0.0, 'slips per metre', 0.0, 10.0)
    slip_size: float = parameter(0.03, 'metres that the slipping wheel turns too far', 0.0, 1.0)


def reported_steps(
    steps: FloatArray,
    step_ns: int | se2.StampArray,
    noise: OdometryNoise,
    rng: np.random.Generator,
) -> FloatArray:
    """
    Return the increments (m, 3) of the wheels' point that odometry reports for true ones.

    `steps`: (m, 3) true increments of the base. `step_ns`: duration of each, one number or (m,).
    A robot at rest has no errors.
    """
    distance = np.hypot(steps[:, 0], steps[:, 1])
    moving = (distance > MIN_STEP) | (np.abs(steps[:, 2]) > MIN_STEP)
    # deviations of 0.2 s, scaled to the duration
    scale = np.sqrt(np.broadcast_to(np.asarray(step_ns) / 200_000_000, distance.shape))
    deviations = np.array([noise.along, noise.across, noise.turn]) * scale[:, np.newaxis]
    errors = rng.normal(size=steps.shape) * deviations * moving[:, np.newaxis]
    errors[:, 2] += noise.yaw_bias * distance
    scales = np.array([noise.forward_scale, 1.0, noise.turn_scale])
    # increments of the wheels' point w: w^-1 (step) w
    wheels = np.array([noise.offset_x, noise.offset_y, noise.mounting])
    of_wheels = se2.between(wheels, se2.compose(steps, wheels)) if wheels.any() else steps
    reported: FloatArray = of_wheels * scales + errors
    if noise.slip_rate > 0:
        # use another generator, so that slips do not change the other draws
        own = rng.spawn(1)[0]
        slipping = own.random(len(distance)) > np.exp(-noise.slip_rate * distance)
        left_or_right = np.where(own.random(len(distance)) < 0.5, -1.0, 1.0) * slipping
        reported[:, 0] += 0.5 * noise.slip_size * slipping
        reported[:, 2] += noise.slip_size / TRACK_M * left_or_right
    return reported


def reported_track(
    truth: OdometryTrack, noise: OdometryNoise, rng: np.random.Generator
) -> OdometryTrack:
    """Return odometry of the wheels' point along true poses; its origin is random within 5 m."""
    steps = se2.steps(truth.poses)
    reported = reported_steps(steps, np.diff(truth.stamps_ns), noise, rng)
    origin = np.array([*rng.uniform(-5, 5, 2), rng.uniform(-math.pi, math.pi)])
    return OdometryTrack(truth.stamps_ns, se2.chain(origin, reported))


def synthetic_odometry(truth: OdometryTrack, name: str, seed: int = 0) -> OdometryTrack:
    """Return odometry along true poses at 20 Hz, with errors as on COLD, by name and seed."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    first, last = truth.stamps_ns[[0, -1]].tolist()
    # at most 2,000,000 poses, if the span is very long
    step = max(50_000_000, (last - first) // 2_000_000)
    stamps = np.append(np.arange(first, last, step, dtype=np.int64), np.int64(last))
    poses = se2.interpolate(truth.stamps_ns, truth.poses, stamps)
    return reported_track(OdometryTrack(stamps, poses), OdometryNoise(), rng)
