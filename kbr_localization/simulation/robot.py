"""Simulated robots: camera, odometry errors, and the path through a building."""

from collections.abc import Sequence
from dataclasses import dataclass, field
import math

from kbr_localization import se2
from kbr_localization.datasets.odometry_noise import OdometryNoise
from kbr_localization.se2 import FloatArray
from kbr_localization.simulation.floor_plan import FloorPlan
from kbr_localization.simulation.renderer import Camera
import numpy as np

RATE = 20  # poses per second of a drive, as in COLD
STEP_NS = 10**9 // RATE
REST = 10  # poses at rest before and after a drive
FINE = 0.02  # metres between the points of the path
VIEW = 68.9  # default horizontal field of view, degrees
SPEED, WANDER = 0.8, 0.1  # maximum speed, m/s; standard deviation of the lateral offset, metres
LOOK_AHEAD = 0.6  # metres from the robot to the point that it steers to


@dataclass(frozen=True)
class RobotCamera:
    """Mounting and errors of a camera; a pitch is approximated by a shift of the horizon."""

    height: float = 1.0  # metres above the floor
    pitch: float = 0.0  # radians, positive looks down
    yaw: float = 0.0  # radians to the left of straight ahead
    view: float = VIEW  # horizontal field of view, degrees
    vignetting: float = 0.0  # fraction of the light lost in the corners
    blur: float = 0.0  # standard deviation, pixels of an image of width 640
    gain: float = 1.0  # factor on the brightness
    gamma: float = 1.0  # factor on the exponent of the camera response
    noise: float = 1.0  # factor on the sensor noise
    flicker: float = 0.0  # relative standard deviation of the exposure between images

    def mounted(self, width: int, height: int, shake: float = 0.0) -> Camera:
        """Return the camera for an image size in pixels; `shake` shifts the horizon, pixels."""
        focal = width / 2 / math.tan(math.radians(self.view) / 2)
        # looking down moves the horizon up in the image
        return Camera(width, height, focal, self.height, shake - focal * math.tan(self.pitch))


@dataclass(frozen=True)
class Robot:
    """A camera and the errors of the wheel odometry."""

    name: str = 'usual'
    camera: RobotCamera = field(default_factory=RobotCamera)
    odometry: OdometryNoise = field(default_factory=OdometryNoise)


def random_robot(seed: int | Sequence[int]) -> Robot:
    """
    Draw a robot with random errors of assembly and calibration.

    The wheels' point is up to 0.3 m ahead or behind and 0.1 m aside of the pose. The odometry
    scales are up to 3% wrong, it drifts up to 0.03 rad per metre, and the wheels slip sometimes.
    Relative to the default, the camera is up to 0.15 m higher or lower, 3 degrees off in pitch
    and yaw, and 5% wider or narrower; response, blur, noise, vignetting and flicker are random.
    """
    rng = np.random.default_rng(seed)
    tilt = math.radians(3.0)
    camera = RobotCamera(
        height=rng.uniform(0.85, 1.15),
        pitch=rng.uniform(-tilt, tilt),
        yaw=rng.uniform(-tilt, tilt),
        view=VIEW * rng.uniform(0.95, 1.05),
        vignetting=rng.uniform(0.0, 0.4),
        blur=rng.uniform(0.0, 1.2),
        gain=math.exp(rng.uniform(-0.3, 0.3)),
        gamma=math.exp(rng.uniform(-0.3, 0.3)),
        noise=math.exp(rng.uniform(-0.7, 0.7)),
        flicker=rng.uniform(0.0, 0.15),
    )
    odometry = OdometryNoise(
        yaw_bias=rng.uniform(-0.03, 0.03),
        offset_x=rng.uniform(-0.3, 0.3),
        offset_y=rng.uniform(-0.1, 0.1),
        forward_scale=rng.uniform(0.97, 1.03),
        turn_scale=rng.uniform(0.97, 1.03),
        slip_rate=rng.uniform(0.0, 0.04),
        slip_size=rng.uniform(0.01, 0.05),
    )
    return Robot(f'random {seed}', camera, odometry)


def drive_along(plan: FloorPlan, nodes: list[int], rng: np.random.Generator) -> FloatArray:
    """Return poses (m, 3) at 20 Hz along nodes: pure pursuit with limited accelerations."""
    path = _fine_path(plan, nodes, rng)
    last, first = len(path) - 1, path[min(len(path) - 1, round(LOOK_AHEAD / FINE))] - path[0]
    x, y, heading = float(path[0, 0]), float(path[0, 1]), math.atan2(first[1], first[0])
    poses, target, speed_now, turn_now = [(x, y, heading)] * REST, 0, 0.0, 0.0
    while target < last or speed_now > 0.05:
        while target < last and math.hypot(path[target, 0] - x, path[target, 1] - y) < LOOK_AHEAD:
            target += 1
        ahead, aside = float(path[target, 0]) - x, float(path[target, 1]) - y
        distance = math.hypot(ahead, aside)
        error = math.remainder(math.atan2(aside, ahead) - heading, 2 * math.pi)
        wanted = SPEED * max(0.0, 1.0 - abs(error) / 0.9)
        if target == last:
            wanted = min(wanted, distance) if distance > 0.1 else 0.0
        turn = max(-1.0, min(1.0, 2.0 * error)) if distance > 0.1 else 0.0
        speed_now = _limited(speed_now, wanted, 0.8 / RATE)
        turn_now = _limited(turn_now, turn, 4.0 / RATE)
        # replace the arc by its chord
        step, middle = speed_now / RATE, heading + turn_now / RATE / 2
        x, y = x + step * math.cos(middle), y + step * math.sin(middle)
        heading += turn_now / RATE
        poses.append((x, y, heading))
    result = np.array([*poses, *[poses[-1]] * REST])
    result[:, 2] = se2.wrap_angle(result[:, 2])
    return result


def _fine_path(plan: FloorPlan, nodes: list[int], rng: np.random.Generator) -> FloatArray:
    """Return points (k, 2) every `FINE` metres, with random offsets that change over 3 m."""
    corners, metres = plan.path(nodes)
    at = np.arange(0.0, metres[-1] + FINE, FINE)
    path = np.stack([np.interp(at, metres, line) for line in corners.T], axis=1)
    knots = rng.normal(0, WANDER, (2, int(metres[-1] / 3.0) + 2))
    shift = [np.interp(at / 3.0, np.arange(line.size), line) for line in knots]
    return np.asarray(path + np.clip(np.stack(shift, axis=1), -2 * WANDER, 2 * WANDER))


def _limited(value: float, wanted: float, step: float) -> float:
    return max(value - step, min(value + step, wanted))
