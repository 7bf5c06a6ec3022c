"""
The view of a camera in a floor plan: ray casting per image column, then one look-up in an atlas.

A picture of a wall is shrunk along its length by the slant of the view and in height by the
distance, so the atlas keeps every wall at all pairs of power-of-two shrinkings (a rip-map), and
the ground at equal ones (a mip-map). Looking up is then one cv2.remap of the whole view.
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
GUARD = 16  # pixels on both sides of a wall's texture that repeat its edge, for interpolation
PAGE = 1024  # pixels along a page; as every size on it, a multiple of the strongest shrinking
GROUND_SCALE = 32  # pixels per metre of floor and ceiling
FAR, NEAR = 200.0, 0.05  # metres: bounds of a ray


@dataclass(frozen=True)
class Camera:
    """
    A pinhole camera without distortion that looks ahead, its axis level.

    `width`, `height`: pixels. `focal`: pixels. `mount`: metres above the floor. `tilt`: pixels by
    which the horizon lies below the middle.
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
        """Sideways metres per metre ahead (width,) of each column's ray, to the right."""
        return np.asarray((np.arange(self.width) - (self.width - 1) / 2) / self.focal, np.float64)


@dataclass(frozen=True)
class View:
    """
    Where the ray of each column (width,) of a camera at a pose (3,) meets a wall.

    `depth`: metres ahead. `wall`: its index. `along`: metres from its start. `plane`: metres from
    the camera to its plane.
    """

    camera: Camera
    pose: FloatArray
    depth: FloatArray
    wall: NDArray[np.int64]
    along: FloatArray
    plane: FloatArray


def axes(pose: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return unit vectors (2,) ahead and to the right of a pose (3,)."""
    cosine, sine = np.cos(pose[2]), np.sin(pose[2])
    return np.array([cosine, sine]), np.array([sine, -cosine])


def cast(walls: Walls, camera: Camera, pose: FloatArray) -> View:
    """
    Find the nearest wall along each column's ray.

    Of a wall with start s, unit normal n and direction r, the ray p + z d meets the plane at
    depth z = n.(s - p) / n.d and the point r.(p + z d - s) along it.
    """
    ahead, right = axes(pose)
    slopes = camera.slopes[np.newaxis].astype(np.float32)

    def by_ray(vectors: FloatArray) -> Float32:
        """Products (k, width) of vectors (k, 2) and the rays."""
        return _column(vectors @ ahead) + _column(vectors @ right) * slopes

    offset = pose[:2] - walls.start
    ends = walls.length[:, np.newaxis] * walls.right - offset
    front = np.sum(offset * walls.normal, axis=1) > 1e-3
    facing = front & ((-offset @ ahead > NEAR) | (ends @ ahead > NEAR))
    offset, normal, along = offset[facing], walls.normal[facing], walls.right[facing]
    plane = np.sum(offset * normal, axis=1)
    # rays that move away from the wall never meet it
    depth = _column(-plane) / np.minimum(by_ray(normal), -1e-6)
    position = _column(np.sum(offset * along, axis=1)) + depth * by_ray(along)
    length = _column(walls.length[facing])
    missed = (position < -1e-3) | (position > length + 1e-3) | (depth < NEAR)
    depth[missed] = FAR
    nearest = np.argmin(depth, axis=0)
    columns = np.arange(camera.width)
    return View(
        camera,
        pose,
        depth[nearest, columns].astype(np.float64),
        np.flatnonzero(facing)[nearest],
        np.clip(position[nearest, columns], 0, length[nearest, 0]).astype(np.float64),
        plane[nearest],
    )


class Atlas:
    """
    The textures of a building, painted once and lit for every light.

    The walls lie on pages, one below the other; a page shrunk along stands to the right of the
    larger ones, a page shrunk in height below them. Floor and ceiling come last. `shape`: rows
    and columns of the atlas.
    """

    def __init__(self, plan: FloorPlan, style: Style, rng: np.random.Generator) -> None:
        self._plan, self._style = plan, style
        self._offset, self._page = _arrange(plan.walls.length * style.scale)
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
        """All textures at all sizes under a light and its `light_grid`: uint8 of `shape`."""
        atlas = np.zeros(self.shape, np.uint8)
        walls = shade(self._walls, self._light_on_walls(grid, light))
        for up, along in np.ndindex(LEVELS_UP, LEVELS_ALONG):
            _place(atlas, walls, (up, along), (self._page_row(up), _start(PAGE, along)))
        rows, columns = self._floor.shape
        ground = cv2.resize(grid, (columns, rows), interpolation=cv2.INTER_LINEAR)
        lamps = np.where(self._lamps > 0, 1.5 * light.lamps, 0.75 * ground)
        floor, ceiling = shade(self._floor, ground), shade(self._ceiling, lamps)
        for level in range(LEVELS_GROUND):
            for image, row in ((floor, self._floor_row), (ceiling, self._ceiling_row)):
                _place(atlas, image, (level, level), (row, _start(columns, level)))
        return atlas

    def picture(self, lit: Pixels, view: View) -> Pixels:
        """Image (height, width) of walls, floor and ceiling."""
        x, y = self._ground_maps(view.camera, view.pose)
        self._put_walls(x, y, view)
        image: Pixels = cv2.remap(lit, x, y, cv2.INTER_LINEAR)
        return image

    def _page_row(self, level: Any) -> Any:
        """First row of the pages shrunk 2^level times in height."""
        return self._pages * _start(self._style.rows, level)

    def _points(self, wall: int, along: Any, before: float) -> FloatArray:
        """Points (..., 2) some metres along a wall and before it."""
        walls = self._plan.walls
        points = walls.start[wall] + along * walls.right[wall] + before * walls.normal[wall]
        return np.asarray(points)

    def _insert(self, pages: NDArray[Any], image: NDArray[Any], wall: int) -> None:
        """Copy a wall onto its page and repeat its ends into the guards."""
        rows, columns = image.shape[:2]
        row, column = int(self._page[wall]) * rows, int(self._offset[wall])
        band = pages[row : row + rows]  # noqa: E203
        band[:, column : column + columns] = image  # noqa: E203
        band[:, column - GUARD : column] = image[:, :1]  # noqa: E203
        band[:, column + columns : column + columns + GUARD] = image[:, -1:]  # noqa: E203

    def _light_on_walls(self, grid: FloatGrid, light: Light) -> Float32:
        """Light of the cells in front of the walls, brighter at the top, on their pages."""
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
        """Atlas positions of floor and ceiling for every pixel, whether they are seen or not."""
        ahead, right = axes(pose)
        rows = np.arange(camera.height) - camera.horizon
        # half a pixel from the horizon at least, so that no row is infinitely far
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

    def _put_walls(self, x: Float32, y: Float32, view: View) -> None:
        """Overwrite the positions of the pixels that see a wall."""
        scale, camera = self._style.scale, view.camera
        metre = scale * view.depth / camera.focal
        slant = metre * view.depth / np.maximum(np.abs(view.plane), 1e-3)
        along, up = _level(slant, LEVELS_ALONG), _level(metre, LEVELS_UP)
        pixel = self._offset[view.wall] + view.along * scale
        wall_x = _start(PAGE, along) + pixel / 2.0**along - 0.5
        size = self._style.rows >> up
        first = self._page_row(up) + self._page[view.wall] * size
        top = camera.horizon - camera.focal * (HEIGHT - camera.mount) / view.depth
        bottom = camera.horizon + camera.focal * camera.mount / view.depth
        slope = size / (bottom - top)
        rows = np.arange(camera.height, dtype=np.float32)[:, np.newaxis]
        wall_y = rows * np.float32(slope) + np.float32(first - 0.5 - top * slope)
        np.clip(wall_y, np.float32(first), np.float32(first + size - 1), out=wall_y)
        seen = (rows >= np.float32(top)) & (rows <= np.float32(bottom))
        np.copyto(x, np.float32(wall_x), where=seen)
        np.copyto(y, wall_y, where=seen)


def _arrange(columns: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Put walls of the given pixels on pages, the longest first: first pixels (n,), pages (n,)."""
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
    """First pixel of an image of a size that is shrunk 2^level times, after all larger ones."""
    return 2 * size - (2 * size >> level)


def _place(atlas: Pixels, image: Pixels, levels: tuple[int, int], corner: tuple[int, int]) -> None:
    """Copy an image, shrunk 2^level times in height and width, into the atlas."""
    rows, columns = (side >> level for side, level in zip(image.shape, levels, strict=True))
    if any(levels):
        image = cv2.resize(image, (columns, rows), interpolation=cv2.INTER_AREA)
    row, column = corner
    atlas[row : row + rows, column : column + columns] = image  # noqa: E203


def _level(footprint: FloatArray, levels: int) -> NDArray[np.int64]:
    """Shrinking at which a pixel of the view is about one of the texture."""
    return np.clip(np.rint(np.log2(footprint)), 0, levels - 1).astype(np.int64)


def _column(values: FloatArray) -> Float32:
    return np.asarray(values, np.float32)[:, np.newaxis]
