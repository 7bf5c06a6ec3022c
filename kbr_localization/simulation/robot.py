"""A robot that drives through a rendered building: its camera and the errors of its odometry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
import math

import cv2
from kbr_localization.configuration import parameter, validate
from kbr_localization.datasets.odometry_noise import OdometryNoise
from kbr_localization.errors import ConfigurationError
from kbr_localization.simulation.light import Light
from kbr_localization.simulation.renderer import Camera
from kbr_localization.simulation.textures import Pixels
import numpy as np

VIEWS = (20.0, 140.0)  # degrees: bounds of a field of view


@dataclass(frozen=True)
class RobotCamera:
    """
    A camera on a robot: how it is mounted, what its lens and its sensor do to the image.

    Gain, gamma and noise multiply the values of the light; the defaults change nothing. The
    pitch is rendered to first order, as a shift of the horizon: it is for a camera that was
    mounted carelessly, not for one that looks down.
    """

    height: float = parameter(1.0, 'metres above the floor', 0.2, 2.5)
    pitch: float = parameter(0.0, 'radians, positive looks down', -0.35, 0.35)
    yaw: float = parameter(0.0, 'radians to the left of straight ahead', -0.8, 0.8)
    view: float = parameter(
        0.0, "horizontal field of view, degrees; 0 is the building's", 0.0, VIEWS[1]
    )
    vignetting: float = parameter(0.0, 'fraction of the light that corners lose', 0.0, 0.9)
    blur: float = parameter(0.0, 'Gaussian blur, pixels of an image 640 wide', 0.0, 10.0)
    gain: float = parameter(1.0, 'factor on the brightness', 0.2, 5.0)
    gamma: float = parameter(1.0, 'factor on the exponent of the response', 0.3, 3.0)
    noise: float = parameter(1.0, 'factor on the sensor noise', 0.0, 10.0)
    flicker: float = parameter(
        0.0, 'relative spread of the exposure from image to image', 0.0, 1.0
    )

    def __post_init__(self) -> None:
        validate(self)
        if 0.0 < self.view < VIEWS[0]:
            raise ConfigurationError(
                f"parameter 'view': expected 0 or a value in [{VIEWS[0]}, {VIEWS[1]}] degrees, "
                f'got {self.view}'
            )

    def mounted(self, camera: Camera, shake: float = 0.0) -> Camera:
        """Return a building's camera as mounted on this robot, `shake` pixels out of level."""
        focal = camera.focal
        if self.view:
            focal = camera.width / 2 / math.tan(math.radians(self.view) / 2)
        # looking down moves the horizon up in the image
        tilt = shake - focal * math.tan(self.pitch)
        return replace(camera, focal=focal, mount=self.height, tilt=tilt)

    def seen_through_lens(self, image: Pixels) -> Pixels:
        """Blur an image and darken its corners."""
        if self.blur > 0:
            sigma = self.blur * image.shape[1] / 640
            image = cv2.GaussianBlur(image, (0, 0), sigma)
        if self.vignetting > 0:
            height, width = image.shape[:2]
            y, x = np.mgrid[:height, :width].astype(np.float32)
            y, x = 2 * y / height - 1, 2 * x / width - 1
            factor = np.asarray(1 - self.vignetting * (x**2 + y**2) / 2, np.float32)
            if image.ndim == 3:
                factor = np.repeat(factor[:, :, np.newaxis], 3, axis=2)
            image = cv2.multiply(image, factor, dtype=cv2.CV_8U)
        return image

    def exposed(self, light: Light, rng: np.random.Generator | None) -> Light:
        """Return a light as the sensor of this camera has it, its gain drawn for one image."""
        flicker = 1.0
        if rng is not None and self.flicker > 0:
            flicker = math.exp(self.flicker * rng.normal())
        if (self.gain * flicker, self.gamma, self.noise) == (1.0, 1.0, 1.0):
            return light
        return replace(
            light,
            gain=float(np.clip(light.gain * self.gain * flicker, 0.2, 4.0)),
            gamma=float(np.clip(light.gamma * self.gamma, 0.3, 3.0)),
            noise=float(np.clip(light.noise * self.noise, 0.0, 50.0)),
        )


@dataclass(frozen=True)
class Robot:
    """A camera and the odometry of the wheels beneath it; the default is the usual one."""

    name: str = 'usual'
    camera: RobotCamera = field(default_factory=RobotCamera)
    odometry: OdometryNoise = field(default_factory=OdometryNoise)


def random_robot(seed: int | Sequence[int]) -> Robot:
    """
    Draw a robot as anybody might have built it.

    Its wheels lie up to 0.3 m ahead of or behind the pose's point and 0.1 m to its side, count
    metres and turns up to 3% wrong, drift up to 0.03 rad per metre and slip now and then. Its
    camera is up to 0.15 m higher or lower, 3 degrees out of level and out of line and 5% wider or
    narrower than the usual one, with random response, blur, noise, falloff and exposure.
    """
    rng = np.random.default_rng(seed)
    careless = math.radians(3.0)
    camera = RobotCamera(
        height=rng.uniform(0.85, 1.15),
        pitch=rng.uniform(-careless, careless),
        yaw=rng.uniform(-careless, careless),
        view=68.9 * rng.uniform(0.95, 1.05),
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
