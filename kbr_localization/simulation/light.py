"""Light that changes between runs: lamps, daylight, and the response of the camera."""

from dataclasses import dataclass
from typing import Any

import cv2
from kbr_localization.simulation.floor_plan import CELL, FloorPlan, SOLID
import numpy as np
from numpy.typing import NDArray

FloatGrid = NDArray[Any]
Pixels = NDArray[Any]  # the type stubs of OpenCV leave the pixel type open

AMBIENT = 0.35
LAMP_REACH = 1.6  # metres at which the light of a lamp has fallen to one half
LEAK = 0.2  # fraction of the light of a lamp that reaches other regions through open doors


@dataclass(frozen=True)
class Light:
    """Light in the building and exposure of the camera during one run."""

    lamps: float = 0.8  # brightness of the lamps
    daylight: float = 0.7  # brightness outside the windows
    spread: float = 0.25  # relative standard deviation of the brightness of lamps
    broken: float = 0.1  # fraction of the lamps that are off
    gradient: float = 0.15  # fall of brightness across the image
    gain: float = 1.0  # brightness of the image after exposure
    gamma: float = 1.0  # exponent of the camera response
    noise: float = 2.5  # standard deviation of the sensor noise, grey levels
    exposure: float = 0.02  # seconds, over which the image of a turning camera blurs
    seed: int = 0  # selects weak and broken lamps and the direction of the gradient


LIGHTS = {
    'cloudy': Light(),
    'sunny': Light(
        lamps=0.55, daylight=1.6, gradient=0.25, gain=1.1, gamma=0.9, exposure=0.01, seed=1,
    ),
    'night': Light(
        lamps=1.0, daylight=0.05, spread=0.4, broken=0.25, gradient=0.2, gamma=1.2, noise=5.0,
        exposure=0.03, seed=2,
    ),
}  # fmt: skip
"""Light for each weather of COLD."""


def light_grid(plan: FloorPlan, light: Light) -> FloatGrid:
    """Return the brightness (rows, columns) of the cells, from daylight and lamps."""
    rng = np.random.default_rng([light.seed, 7])
    power = light.lamps * np.clip(rng.normal(1, light.spread, len(plan.lamps)), 0.1, None)
    power[rng.random(len(plan.lamps)) < light.broken] = 0.0
    rows, columns = plan.region.shape
    y, x = (np.mgrid[:rows, :columns] + 0.5).astype(np.float32) * CELL
    lamp_region = plan.region[plan.cells(plan.lamps)]
    grid = np.full((rows, columns), AMBIENT * (0.3 + 0.7 * light.daylight), np.float32)
    for (lamp_x, lamp_y), region, watts in zip(plan.lamps, lamp_region, power, strict=True):
        falloff = watts / (1 + ((x - lamp_x) ** 2 + (y - lamp_y) ** 2) / LAMP_REACH**2)
        grid += falloff * np.where(plan.region == region, 1.0, LEAK).astype(np.float32)
    # compress like the response of a camera: twice the light is less than twice as bright
    grid = np.float32(1.4) * grid / (grid + np.float32(0.8))
    # smooth over free cells only, so that light does not cross walls
    free = (plan.region != SOLID).astype(np.float32)
    weight = cv2.blur(free, (3, 3))
    smooth = cv2.blur(grid * free, (3, 3)) / np.maximum(weight, 1e-6)
    return np.asarray(np.where(weight > 0, smooth, grid), np.float32)


def shade(image: Pixels, factor: FloatGrid) -> Pixels:
    """Return an image (h, w) times a factor (h, w), clipped to 8 bits."""
    return np.asarray(cv2.multiply(image, np.asarray(factor, np.float32), dtype=cv2.CV_8U))


def centred(shape: tuple[int, ...]) -> tuple[FloatGrid, FloatGrid]:
    """Return the rows and columns (h, w) of all pixels, scaled to [-1, 1]."""
    y, x = np.mgrid[: shape[0], : shape[1]].astype(np.float32)
    return 2 * y / shape[0] - 1, 2 * x / shape[1] - 1


def vignette(shape: tuple[int, int], light: Light) -> FloatGrid:
    """Return the factor (h, w), about 1, of lens vignetting and the gradient of a light."""
    y, x = centred(shape)
    angle = np.random.default_rng([light.seed, 8]).uniform(0, 2 * np.pi)
    slope = light.gradient * (np.cos(angle) * x + np.sin(angle) * y)
    return np.asarray((1 - 0.12 * (x**2 + y**2)) * (1 + slope), np.float32)


def expose(image: Pixels, gain: float, gamma: float) -> Pixels:
    """Expose an image towards a mean grey level of 115, with limits, and apply a gamma."""
    mean = float(image[::8, ::8].mean())
    exposure = float(np.clip((115.0 / max(mean, 1.0)) ** 0.8, 0.5, 2.0)) * gain
    levels = np.minimum(np.arange(256) * (exposure / 255), 1.0) ** gamma
    return np.asarray(cv2.LUT(image, np.asarray(np.rint(255 * levels), np.uint8)))
