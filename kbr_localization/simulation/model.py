"""A building that renders: plan, textures, light, furniture and camera together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
import functools
import math

import cv2
from kbr_localization.configuration import parameter, validate
from kbr_localization.datasets.frame import Image
from kbr_localization.errors import DatasetError
from kbr_localization.se2 import FloatArray
from kbr_localization.simulation import driving, sprites
from kbr_localization.simulation.driving import Drive
from kbr_localization.simulation.floor_plan import FloorPlan, PLANS
from kbr_localization.simulation.light import (
    FloatGrid,
    Light,
    light_grid,
    LIGHTS,
    response,
    vignette,
)
from kbr_localization.simulation.renderer import Atlas, Camera, cast, look
from kbr_localization.simulation.robot import RobotCamera
from kbr_localization.simulation.sprites import crowd, Passerby, Standing
from kbr_localization.simulation.textures import Pixels, Style
import numpy as np

WALL_HEIGHT, CAMERA_HEIGHT = 2.75, 1.0  # metres
KEPT_LIGHTS = 3  # texture atlases of lights that a building keeps, of tens of megabytes each


@dataclass(frozen=True)
class BuildingConfig:
    """A building and the camera that drives through it."""

    kind: str = parameter('office', 'kind of floor plan', choices=tuple(PLANS))
    size: float = parameter(18.0, 'metres along the longer side', 14.0, 40.0)
    seed: int = parameter(0, 'of plan, textures and furniture', 0)
    unique: float = parameter(0.25, 'fraction of wall decoration found nowhere else', 0.0, 1.0)
    furniture: float = parameter(0.08, 'pieces of furniture per metre of wall', 0.0, 2.0)
    width: int = parameter(640, 'pixels of an image from left to right', 16, 4096)
    height: int = parameter(480, 'pixels of an image from top to bottom', 16, 4096)
    view: float = parameter(68.9, 'horizontal field of view, degrees', 20.0, 140.0)
    colour: bool = parameter(False, 'BGR images instead of grey ones')
    texture: int = parameter(96, 'pixels per metre of wall', 16, 96)

    def __post_init__(self) -> None:
        validate(self)


@dataclass(frozen=True)
class _Scene:
    """A building under one light."""

    atlas: Pixels
    grid: FloatGrid
    furniture: list[Standing]
    vignette: FloatGrid


class SyntheticBuilding:
    """
    A building that renders on demand.

    `plan`: its floor plan, by default one of the configured kind. `camera`: the pinhole camera of
    its images.
    """

    def __init__(
        self, config: BuildingConfig | None = None, plan: FloorPlan | None = None
    ) -> None:
        self.config = config or BuildingConfig()
        rng = np.random.default_rng([self.config.seed, 1])
        self.plan = plan or PLANS[self.config.kind](self.config.size, rng)
        style = Style(self.config.seed, self.config.unique, self.config.texture, WALL_HEIGHT)
        self._atlas = Atlas(self.plan, style, self.config.colour, rng)
        self._characters = [sprites.person(rng, self.config.colour) for _ in range(6)]
        pieces = [sprites.furniture(rng, self.config.colour) for _ in range(8)]
        self._furniture = sprites.furnish(self.plan, pieces, self.config.furniture, rng)
        focal = self.config.width / 2 / math.tan(math.radians(self.config.view) / 2)
        self.camera = Camera(
            self.config.width, self.config.height, focal, CAMERA_HEIGHT, WALL_HEIGHT
        )
        self._usual = RobotCamera(height=CAMERA_HEIGHT)
        shape = (self.config.height + 64, self.config.width + 64)
        self._noise = rng.normal(size=shape).astype(np.float32)
        self._scene = functools.lru_cache(KEPT_LIGHTS)(self._light_up)

    def render(
        self,
        pose: FloatArray,
        light: Light = LIGHTS['cloudy'],
        rng: np.random.Generator | None = None,
        people: Sequence[tuple[sprites.Sprite, FloatArray]] = (),
        turn: float = 0.0,
        eye: RobotCamera | None = None,
    ) -> Image:
        """
        Take a picture at a pose (3,) of the camera, which must lie in free space.

        `rng` draws sensor noise and the camera's shaking; without it there is neither. `people`:
        sprites and the points (2,) where they stand. `turn`: radians turned during the exposure.
        `eye`: how the camera is mounted and what it does to the image; its yaw is in the pose.
        Returns uint8 (height, width), or (height, width, 3) BGR for a building in colour.
        Raises DatasetError for a pose inside of a wall.
        """
        pose = np.asarray(pose, dtype=np.float64)
        if pose.shape != (3,) or not np.all(np.isfinite(pose)) or not self.plan.is_free(pose[:2]):
            raise DatasetError(
                f'cannot render: expected a pose (x, y, heading) in free space, got {pose}'
            )
        scene = self._scene(light)
        eye = eye or self._usual
        camera = eye.mounted(self.camera, 0.0 if rng is None else rng.normal(0, 1.5))
        hits = cast(self.plan.walls, camera, pose)
        image = look(scene.atlas, self._atlas.layout, camera, pose, hits)
        walking = [self._lit(Standing(sprite, point), scene.grid) for sprite, point in people]
        sprites.put(image, camera, pose, hits, [*scene.furniture, *walking])
        smear = round(abs(turn) * camera.focal)
        image = cv2.blur(image, (smear, 1)) if smear > 1 else image
        image = cv2.multiply(image, scene.vignette, dtype=cv2.CV_8U)
        image, light = eye.seen_through_lens(image), eye.exposed(light, rng)
        image = cv2.LUT(image, response(light, float(image[::8, ::8].mean())))
        return np.asarray(image if rng is None else self._add_noise(image, light.noise, rng))

    def drive(
        self, length_m: float, rng: np.random.Generator, speed: float = 0.8, wander: float = 0.1
    ) -> Drive:
        """Drive at random through the building: true poses at 20 Hz over about `length_m`."""
        nodes = driving.random_walk(self.plan, length_m, rng)
        return driving.follow(self.plan, nodes, speed, wander, rng)

    def tour(self, rng: np.random.Generator, speed: float = 0.8, wander: float = 0.1) -> Drive:
        """Drive every way of the building once in each direction: true poses at 20 Hz."""
        return driving.follow(self.plan, driving.tour(self.plan, rng), speed, wander, rng)

    def passers_by(self, count: int, seconds: float, rng: np.random.Generator) -> list[Passerby]:
        """People who walk through the building for some time."""
        return crowd(self.plan, self._characters, count, seconds, rng)

    def _light_up(self, light: Light) -> _Scene:
        grid = light_grid(self.plan, light)
        field = vignette((self.camera.height, self.camera.width), light)
        if self.config.colour:
            field = cv2.merge([field] * 3)
        return _Scene(
            self._atlas.lit(light),
            grid,
            [self._lit(item, grid) for item in self._furniture],
            field,
        )

    def _lit(self, item: Standing, grid: FloatGrid) -> Standing:
        return replace(item, brightness=float(grid[self.plan.cells(item.point)]))

    def _add_noise(self, image: Pixels, sigma: float, rng: np.random.Generator) -> Pixels:
        row, column = rng.integers(0, 65, 2)
        height, width = image.shape[:2]
        noise: FloatGrid = self._noise[row : row + height, column : column + width]  # noqa: E203
        noise = noise * np.float32(sigma)
        if image.ndim == 3:
            noise = cv2.merge([noise] * 3)
        return cv2.add(image, noise, dtype=cv2.CV_8U)
