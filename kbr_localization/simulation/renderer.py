"""
Render a floor plan: cast a ray for each image column, then look all pixels up in a texture atlas.

The image of a wall is shrunk along the wall by the viewing angle and in height by the distance.
So the atlas holds each wall at all pairs of power-of-two scales (a rip-map), and floor and ceiling
at equal scales (a mip-map). One cv2.remap then renders the whole image.
"""

from dataclasses import dataclass
from typing import Any

import cv2
from kbr_localization.se2 import FloatArray
from kbr_localization.simulation.floor_plan import CELL, FloorPlan, Walls
from kbr_localization.simulation.light import FloatGrid, Light, Pixels, shade
from kbr_localization.simulation.textures import (
    HEIGHT,
    KINDS,
    paint_ground,
    paint_lamps,
    paint_wall,
    Style,
)
import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]

LEVELS_ALONG, LEVELS_UP, LEVELS_GROUND = 6, 4, 5
GUARD = 16  # pixels on both sides of a wall texture that repeat its edge, for interpolation
PAGE = 1024  # pixels along a page; like all sizes on it, a multiple of the strongest shrinking
GROUND_SCALE = 32  # pixels per metre of floor and ceiling
FAR, NEAR = 200.0, 0.05  # metres: largest and smallest depth of a ray


@dataclass(frozen=True)
class Camera:
    """
    A level pinhole camera without distortion that looks ahead.

    `width`, `height`, `focal`: pixels. `mount`: metres above the floor. `tilt`: pixels from the
    image centre down to the horizon.
    """

    width: int
    height: int
    focal: float
    mount: float
    tilt: float = 0.0

    @property
    def horizon(self) -> float:
        """Row of the horizon."""
        return (self.height - 1) / 2 + self.tilt

    @property
    def slopes(self) -> FloatArray:
        """Return metres to the right per metre ahead (width,) of the ray of each column."""
        return np.asarray((np.arange(self.width) - (self.width - 1) / 2) / self.focal, np.float64)


@dataclass(frozen=True)
class RayHits:
    """
    Where the rays of the columns (width,) of a camera at a pose (3,) hit walls.

    `depth`: metres ahead. `wall`: index of the wall. `along`: metres from the start of the wall.
    `plane`: metres from the camera to the plane of the wall.
    """

    camera: Camera
    pose: FloatArray
    depth: FloatArray
    wall: NDArray[np.int64]
    along: FloatArray
    plane: FloatArray


def axes(pose: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the unit vectors (2,) ahead of a pose (3,) and to its right."""
    cosine, sine = np.cos(pose[2]), np.sin(pose[2])
    return np.array([cosine, sine]), np.array([sine, -cosine])


def cast_rays(walls: Walls, camera: Camera, pose: FloatArray) -> RayHits:
    """
    Find the nearest wall on the ray of each column.

    The ray p + z d meets the plane of a wall with start s, unit normal n and direction r at depth
    z = n.(s - p) / n.d, r.(p + z d - s) metres along the wall.
    """
    ahead, right = axes(pose)
    slopes = camera.slopes[np.newaxis].astype(np.float32)

    def by_ray(vectors: FloatArray) -> Float32:
        """Return the dot products (k, width) of vectors (k, 2) and the rays."""
        return _column(vectors @ ahead) + _column(vectors @ right) * slopes

    offset = pose[:2] - walls.start
    ends = walls.length[:, np.newaxis] * walls.right - offset
    front = np.sum(offset * walls.normal, axis=1) > 1e-3
    facing = front & ((-offset @ ahead > NEAR) | (ends @ ahead > NEAR))
    offset, normal, along = offset[facing], walls.normal[facing], walls.right[facing]
    plane = np.sum(offset * normal, axis=1)
    # a ray that leads away from the wall never meets it
    depth = _column(-plane) / np.minimum(by_ray(normal), -1e-6)
    position = _column(np.sum(offset * along, axis=1)) + depth * by_ray(along)
    length = _column(walls.length[facing])
    missed = (position < -1e-3) | (position > length + 1e-3) | (depth < NEAR)
    depth[missed] = FAR
    nearest = np.argmin(depth, axis=0)
    columns = np.arange(camera.width)
    return RayHits(
        camera,
        pose,
        depth[nearest, columns].astype(np.float64),
        np.flatnonzero(facing)[nearest],
        np.clip(position[nearest, columns], 0, length[nearest, 0]).astype(np.float64),
        plane[nearest],
    )


class Atlas:
    """
    The textures of a building in one image, painted once and shaded for each light.

    Wall textures lie on pages. The pages are stacked downwards, first at full height, then at
    smaller heights; copies shrunk along the walls follow to the right. Floor and ceiling are at
    the bottom. `shape`: rows and columns of the atlas.
    """

    def __init__(self, plan: FloorPlan, style: Style, rng: np.random.Generator) -> None:
        self._plan, self._style = plan, style
        self._offset, self._page = _pack(plan.walls.length * style.scale)
        self._pages = int(self._page.max()) + 1
        self._walls, self._glow = np.zeros((2, style.rows * self._pages, PAGE), np.uint8)
        for wall, length in enumerate(plan.walls.length.tolist()):
            kind = plan.kinds[plan.walls.region[wall]]
            behind = self._points(wall, 0.5 * length, -1.5 * CELL)
            size = np.array(plan.region.shape[::-1]) * CELL
            if f'{kind} outside' in KINDS and np.any((behind < 0) | (behind > size)):
                kind = f'{kind} outside'
            paint, glow = paint_wall(style, kind, length, rng)
            self._insert(self._walls, paint, wall)
            self._insert(self._glow, glow, wall)
        self._floor, self._ceiling = paint_ground(style, plan, GROUND_SCALE, rng)
        self._lamps = paint_lamps(plan, self._ceiling.shape, GROUND_SCALE)
        rows, columns = self._floor.shape
        self._floor_row = self._page_row(LEVELS_UP)
        self._ceiling_row = self._floor_row + rows
        self.shape = self._ceiling_row + rows, 2 * max(PAGE, columns)

    def lit(self, light: Light, grid: FloatGrid) -> Pixels:
        """Return all textures (`shape`, uint8) at all scales in a light with its `light_grid`."""
        atlas = np.zeros(self.shape, np.uint8)
        walls = shade(self._walls, self._light_on_walls(grid, light))
        for up, along in np.ndindex(LEVELS_UP, LEVELS_ALONG):
            _copy_shrunk(atlas, walls, (up, along), (self._page_row(up), _start(PAGE, along)))
        rows, columns = self._floor.shape
        ground = cv2.resize(grid, (columns, rows), interpolation=cv2.INTER_LINEAR)
        lamps = np.where(self._lamps > 0, 1.5 * light.lamps, 0.75 * ground)
        floor, ceiling = shade(self._floor, ground), shade(self._ceiling, lamps)
        for level in range(LEVELS_GROUND):
            for image, row in ((floor, self._floor_row), (ceiling, self._ceiling_row)):
                _copy_shrunk(atlas, image, (level, level), (row, _start(columns, level)))
        return atlas

    def picture(self, lit: Pixels, hits: RayHits) -> Pixels:
        """Return the image (height, width) of walls, floor and ceiling."""
        x, y = self._ground_maps(hits.camera, hits.pose)
        self._overwrite_walls(x, y, hits)
        image: Pixels = cv2.remap(lit, x, y, cv2.INTER_LINEAR)
        return image

    def _page_row(self, level: Any) -> Any:
        """Return the first row of the pages shrunk 2^level times in height."""
        return self._pages * _start(self._style.rows, level)

    def _points(self, wall: int, along: Any, before: float) -> FloatArray:
        """Return points (..., 2) at metres along a wall and in front of it."""
        walls = self._plan.walls
        points = walls.start[wall] + along * walls.right[wall] + before * walls.normal[wall]
        return np.asarray(points)

    def _insert(self, pages: NDArray[Any], image: NDArray[Any], wall: int) -> None:
        """Copy the image of a wall to its page, and its end columns into the guards."""
        rows, columns = image.shape[:2]
        row, column = int(self._page[wall]) * rows, int(self._offset[wall])
        band = pages[row : row + rows]  # noqa: E203
        band[:, column : column + columns] = image  # noqa: E203
        band[:, column - GUARD : column] = image[:, :1]  # noqa: E203
        band[:, column + columns : column + columns + GUARD] = image[:, -1:]  # noqa: E203

    def _light_on_walls(self, grid: FloatGrid, light: Light) -> Float32:
        """Return the light in front of the walls on their pages, brighter at the top."""
        factor = np.zeros(self._walls.shape, np.float32)
        profile = np.linspace(1.15, 0.75, self._style.rows, dtype=np.float32)[:, np.newaxis]
        for wall, length in enumerate(self._plan.walls.length):
            points = self._points(wall, np.arange(0.05, length, 0.1)[:, np.newaxis], 0.1)
            brightness = grid[self._plan.cells(points)][np.newaxis]
            size = (max(1, round(length * self._style.scale)), 1)
            strip = cv2.resize(brightness, size, interpolation=cv2.INTER_LINEAR)
            self._insert(factor, profile * strip, wall)
        factor[self._glow > 0] = 1.3 * light.daylight
        return factor

    def _ground_maps(self, camera: Camera, pose: FloatArray) -> tuple[Float32, Float32]:
        """Return the atlas coordinates of floor or ceiling for each pixel, also behind walls."""
        ahead, right = axes(pose)
        rows = np.arange(camera.height) - camera.horizon
        # at least half a pixel from the horizon, so that no row is infinitely far away
        rows = np.where(rows < 0, np.minimum(rows, -0.5), np.maximum(rows, 0.5))
        below = np.where(rows > 0, camera.mount, HEIGHT - camera.mount)
        depth = np.minimum(camera.focal * below / np.abs(rows), FAR)
        footprint = GROUND_SCALE * depth**1.5 / camera.focal / np.sqrt(below)
        level = _level(footprint, LEVELS_GROUND)
        shrink = GROUND_SCALE / 2.0**level
        first_row = np.where(rows > 0, self._floor_row, self._ceiling_row)
        first_column = _start(self._floor.shape[1], level)
        slopes = camera.slopes[np.newaxis].astype(np.float32)
        maps = []
        for axis, first in ((0, first_column), (1, first_row)):
            centre = first - 0.5 + shrink * (pose[axis] + depth * ahead[axis])
            maps.append(_column(centre) + _column(shrink * depth * right[axis]) * slopes)
        return maps[0], maps[1]

    def _overwrite_walls(self, x: Float32, y: Float32, hits: RayHits) -> None:
        """Overwrite the atlas coordinates of the pixels that show a wall."""
        scale, camera = self._style.scale, hits.camera
        metre = scale * hits.depth / camera.focal
        slant = metre * hits.depth / np.maximum(np.abs(hits.plane), 1e-3)
        along, up = _level(slant, LEVELS_ALONG), _level(metre, LEVELS_UP)
        pixel = self._offset[hits.wall] + hits.along * scale
        wall_x = _start(PAGE, along) + pixel / 2.0**along - 0.5
        size = self._style.rows >> up
        first = self._page_row(up) + self._page[hits.wall] * size
        top = camera.horizon - camera.focal * (HEIGHT - camera.mount) / hits.depth
        bottom = camera.horizon + camera.focal * camera.mount / hits.depth
        slope = size / (bottom - top)
        rows = np.arange(camera.height, dtype=np.float32)[:, np.newaxis]
        wall_y = rows * np.float32(slope) + np.float32(first - 0.5 - top * slope)
        np.clip(wall_y, np.float32(first), np.float32(first + size - 1), out=wall_y)
        seen = (rows >= np.float32(top)) & (rows <= np.float32(bottom))
        np.copyto(x, np.float32(wall_x), where=seen)
        np.copyto(y, wall_y, where=seen)


def _pack(columns: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Assign walls to pages, the longest first; return first columns (n,) and pages (n,)."""
    needed = np.ceil(columns).astype(np.int64) + 2 * GUARD
    offset, page = np.zeros_like(needed), np.zeros_like(needed)
    free: list[int] = []
    for index in np.argsort(-needed, kind='stable'):
        fitting = next((i for i, room in enumerate(free) if room >= needed[index]), len(free))
        if fitting == len(free):
            free.append(PAGE)
        offset[index], page[index] = PAGE - free[fitting] + GUARD, fitting
        free[fitting] -= int(needed[index])
    return offset, page


def _start(size: int, level: Any) -> Any:
    """Return the first pixel of the copy shrunk 2^level times, after all larger copies."""
    return 2 * size - (2 * size >> level)


def _copy_shrunk(
    atlas: Pixels, image: Pixels, levels: tuple[int, int], corner: tuple[int, int]
) -> None:
    """Copy an image into the atlas, its height and width shrunk 2^level times."""
    rows, columns = (side >> level for side, level in zip(image.shape, levels, strict=True))
    if any(levels):
        image = cv2.resize(image, (columns, rows), interpolation=cv2.INTER_AREA)
    row, column = corner
    atlas[row : row + rows, column : column + columns] = image  # noqa: E203


def _level(footprint: FloatArray, levels: int) -> NDArray[np.int64]:
    """Return the level at which a texture pixel is about as large as an image pixel."""
    return np.clip(np.rint(np.log2(footprint)), 0, levels - 1).astype(np.int64)


def _column(values: FloatArray) -> Float32:
    return np.asarray(values, np.float32)[:, np.newaxis]
