"""
The view of a camera in a floor plan: ray casting per image column, then one look-up in an atlas.

A picture of a wall is shrunk along its length by the slant of the view and in height by the
distance, so the atlas keeps every wall at all pairs of power-of-two shrinkings (a rip-map), and
the ground at equal ones (a mip-map). Looking up is then one cv2.remap of the whole view.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
from kbr_localization.se2 import FloatArray
from kbr_localization.simulation.floor_plan import FloorPlan, Walls
from kbr_localization.simulation.light import FloatGrid, Light, light_grid
from kbr_localization.simulation.textures import (
    KINDS,
    paint_ground,
    paint_lamps,
    paint_wall,
    Pixels,
    Style,
)
import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]

LEVELS_ALONG, LEVELS_UP, LEVELS_GROUND = 6, 4, 5
GUARD = 16  # pixels on both sides of a wall's texture that repeat its edge, for interpolation
PAGE = 1024  # pixels along a page; as every size on it, a multiple of the strongest shrinking
GROUND_SCALE = 32  # pixels per metre of floor and ceiling
LARGEST = 32767  # pixels along a side that cv2.remap can address


@dataclass(frozen=True)
class Layout:
    """
    Where everything lies in the atlas.

    `offset`: (n,) pixel along its page where each wall starts. `page`: (n,) its page.
    `pages`: their number. `columns`, `rows`: pixels of a page. `ground`: rows and columns of
    floor and ceiling, which lie below the pages. `scale`: pixels per metre of a wall.
    """

    offset: NDArray[np.int64]
    page: NDArray[np.int64]
    pages: int
    columns: int
    rows: int
    ground: tuple[int, int]
    scale: int

    def page_column(self, level: int) -> int:
        """First column of the pages shrunk 2^level times along."""
        return 2 * self.columns - (2 * self.columns >> level)

    def page_row(self, level: int) -> int:
        """First row of the pages shrunk 2^level times in height."""
        return self.pages * (2 * self.rows - (2 * self.rows >> level))

    @property
    def floor_row(self) -> int:
        """First row of the floor."""
        return self.page_row(LEVELS_UP)

    @property
    def ceiling_row(self) -> int:
        """First row of the ceiling."""
        return self.floor_row + self.ground[0]

    def ground_column(self, level: int) -> int:
        """First column of floor and ceiling shrunk 2^level times."""
        return 2 * self.ground[1] - (2 * self.ground[1] >> level)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the atlas."""
        return self.ceiling_row + self.ground[0], 2 * max(self.columns, self.ground[1])


class Atlas:
    """The textures of a building, painted once and lit for every light."""

    def __init__(
        self, plan: FloorPlan, style: Style, colour: bool, rng: np.random.Generator
    ) -> None:
        self._plan, self._style = plan, style
        offset, page = _arrange(plan.walls.length * style.scale)
        self._pages, self._glow = self._paint_pages(offset, page, rng)
        self._floor, self._ceiling = paint_ground(style, plan, GROUND_SCALE, rng)
        self._lamps = paint_lamps(plan, self._ceiling.shape, GROUND_SCALE)
        self.layout = Layout(
            offset, page, int(page.max()) + 1, PAGE, style.rows, self._floor.shape[:2], style.scale
        )
        if not colour:
            self._pages, self._floor, self._ceiling = (
                cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
                for image in (self._pages, self._floor, self._ceiling)
            )

    def lit(self, light: Light) -> Pixels:
        """All textures at all sizes under a light: uint8 of the layout's shape."""
        grid = light_grid(self._plan, light)
        shape = self.layout.shape + self._pages.shape[2:]
        atlas = np.zeros(shape, np.uint8)
        layout, pages = self.layout, self._lit_pages(grid, light)
        for up, along in np.ndindex(LEVELS_UP, LEVELS_ALONG):
            size = (layout.columns >> along, layout.pages * layout.rows >> up)
            _place(atlas, pages, size, (layout.page_row(up), layout.page_column(along)))
        ground = cv2.resize(grid, self.layout.ground[::-1], interpolation=cv2.INTER_LINEAR)
        self._place_ground(atlas, _shade(self._floor, ground), self.layout.floor_row)
        lamps = np.where(self._lamps > 0, 1.5 * light.lamps, 0.75 * ground)
        self._place_ground(atlas, _shade(self._ceiling, lamps), self.layout.ceiling_row)
        return atlas

    def _paint_pages(
        self, offset: NDArray[np.int64], page: NDArray[np.int64], rng: np.random.Generator
    ) -> tuple[Pixels, Pixels]:
        rows = self._style.rows
        paint = np.zeros((rows * (int(page.max()) + 1), PAGE, 3), np.uint8)
        glow = np.zeros(paint.shape[:2], np.uint8)
        walls, outside = self._plan.walls, self._plan.outside
        for index in range(len(walls.length)):
            kind = self._plan.kinds[walls.region[index]]
            if outside[index] and f'{kind} outside' in KINDS:
                kind = f'{kind} outside'
            length = float(walls.length[index])
            images = paint_wall(self._style, kind, length, rng)
            for target, image in zip((paint, glow), images, strict=True):
                _insert(target, image, int(page[index]) * rows, int(offset[index]))
        return paint, glow

    def _lit_pages(self, grid: FloatGrid, light: Light) -> Pixels:
        """Pages under the light of the cells in front of their walls, brighter at the top."""
        rows, walls = self._style.rows, self._plan.walls
        shade = np.zeros(self._pages.shape[:2], np.float32)
        profile = np.linspace(1.15, 0.75, rows, dtype=np.float32)[:, np.newaxis]
        for index, length in enumerate(walls.length):
            along = np.arange(0.05, length, 0.1)[:, np.newaxis]
            points = walls.start[index] + along * walls.right[index] + 0.1 * walls.normal[index]
            brightness = grid[self._plan.cells(points)][np.newaxis]
            columns = max(1, round(length * self._style.scale))
            strip = cv2.resize(brightness, (columns, 1), interpolation=cv2.INTER_LINEAR)
            row, column = int(self.layout.page[index]) * rows, int(self.layout.offset[index])
            _insert(shade, profile * strip, row, column)
        glow = self._glow > 0
        shade[glow] = 1.3 * light.daylight
        return _shade(self._pages, shade)

    def _place_ground(self, atlas: Pixels, ground: Pixels, row: int) -> None:
        rows, columns = self.layout.ground
        for level in range(LEVELS_GROUND):
            size = (columns >> level, rows >> level)
            _place(atlas, ground, size, (row, self.layout.ground_column(level)))


def _arrange(columns: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Put walls of the given pixels one after the other on pages, the longest first."""
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


def _insert(target: NDArray[Any], image: NDArray[Any], row: int, column: int) -> None:
    """Copy a wall onto its page and repeat its ends into the guards."""
    rows, columns = image.shape[:2]
    band = target[row : row + rows]  # noqa: E203
    band[:, column : column + columns] = image  # noqa: E203
    band[:, column - GUARD : column] = image[:, :1]  # noqa: E203
    band[:, column + columns : column + columns + GUARD] = image[:, -1:]  # noqa: E203


def _shade(image: Pixels, factor: FloatGrid) -> Pixels:
    if image.ndim == 3:
        factor = cv2.merge([np.asarray(factor, np.float32)] * 3)
    shaded: Pixels = cv2.multiply(image, np.asarray(factor, np.float32), dtype=cv2.CV_8U)
    return shaded


def _place(atlas: Pixels, image: Pixels, size: tuple[int, int], corner: tuple[int, int]) -> None:
    if size != image.shape[1::-1]:
        image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    row, column = corner
    atlas[row : row + size[1], column : column + size[0]] = image  # noqa: E203


FAR, NEAR = 200.0, 0.05  # metres: bounds of a ray


@dataclass(frozen=True)
class Camera:
    """
    A pinhole camera without distortion that looks ahead, its axis level.

    `width`, `height`: pixels. `focal`: pixels. `mount`: metres above the floor. `ceiling`: metres
    of the ceiling above the floor. `tilt`: pixels by which the horizon lies below the middle.
    """

    width: int
    height: int
    focal: float
    mount: float
    ceiling: float
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
class Hits:
    """Where the ray of each column (width,) meets a wall: depth ahead, which, how far along it."""

    depth: FloatArray
    wall: NDArray[np.int64]
    along: FloatArray
    plane: FloatArray


def axes(heading: float) -> tuple[FloatArray, FloatArray]:
    """Return unit vectors (2,) ahead and to the right of a heading in radians."""
    cosine, sine = np.cos(heading), np.sin(heading)
    return np.array([cosine, sine]), np.array([sine, -cosine])


def cast(walls: Walls, camera: Camera, pose: FloatArray) -> Hits:
    """
    Find the nearest wall along each column's ray.

    Of a wall with start s, unit normal n and direction r, the ray p + z d meets the plane at
    depth z = n.(s - p) / n.d and the point r.(p + z d - s) along it.
    """
    ahead, right = axes(float(pose[2]))
    offset = pose[:2] - walls.start
    ends = walls.length[:, np.newaxis] * walls.right - offset
    front = np.sum(offset * walls.normal, axis=1) > 1e-3
    facing = front & ((-offset @ ahead > NEAR) | (ends @ ahead > NEAR))
    offset, normal, along = offset[facing], walls.normal[facing], walls.right[facing]
    plane = np.sum(offset * normal, axis=1)
    slopes = camera.slopes[np.newaxis].astype(np.float32)
    approach = _outer(normal, ahead, right, slopes)
    # rays that move away from the wall never meet it
    depth = _column(-plane) / np.minimum(approach, -1e-6)
    position = _column(np.sum(offset * along, axis=1)) + depth * _outer(
        along, ahead, right, slopes
    )
    length = _column(walls.length[facing])
    missed = (position < -1e-3) | (position > length + 1e-3) | (depth < NEAR)
    depth[missed] = FAR
    nearest = np.argmin(depth, axis=0)
    columns = np.arange(camera.width)
    return Hits(
        depth[nearest, columns].astype(np.float64),
        np.flatnonzero(facing)[nearest],
        np.clip(position[nearest, columns], 0, length[nearest, 0]).astype(np.float64),
        plane[nearest],
    )


def look(atlas: Pixels, layout: Layout, camera: Camera, pose: FloatArray, hits: Hits) -> Pixels:
    """Image (height, width) or (height, width, 3) of walls, floor and ceiling."""
    x, y = _ground_maps(layout, camera, pose)
    _put_walls(x, y, layout, camera, hits)
    image: Pixels = cv2.remap(atlas, x, y, cv2.INTER_LINEAR)
    return image


def wall_rows(camera: Camera, depth: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Rows of the upper and lower edge (width,) of walls at the given depths."""
    top = camera.horizon - camera.focal * (camera.ceiling - camera.mount) / depth
    return top, camera.horizon + camera.focal * camera.mount / depth


def _outer(vectors: FloatArray, ahead: FloatArray, right: FloatArray, slopes: Float32) -> Float32:
    return _column(vectors @ ahead) + _column(vectors @ right) * slopes


def _column(values: FloatArray) -> Float32:
    return np.asarray(values, np.float32)[:, np.newaxis]


def _ground_maps(layout: Layout, camera: Camera, pose: FloatArray) -> tuple[Float32, Float32]:
    """Atlas positions of floor and ceiling for every pixel, whether they are seen or not."""
    ahead, right = axes(float(pose[2]))
    rows = np.arange(camera.height) - camera.horizon
    # half a pixel from the horizon at least, so that no row is infinitely far
    rows = np.where(rows < 0, np.minimum(rows, -0.5), np.maximum(rows, 0.5))
    below = np.where(rows > 0, camera.mount, camera.ceiling - camera.mount)
    depth = np.minimum(camera.focal * below / np.abs(rows), FAR)
    footprint = GROUND_SCALE * depth**1.5 / camera.focal / np.sqrt(below)
    level = np.clip(np.rint(np.log2(footprint)), 0, LEVELS_GROUND - 1).astype(np.int64)
    shrink = GROUND_SCALE / 2.0**level
    first_row = np.where(rows > 0, layout.floor_row, layout.ceiling_row)
    first_column = np.array([layout.ground_column(value) for value in range(LEVELS_GROUND)])[level]
    maps = []
    for axis, first in ((0, first_column), (1, first_row)):
        centre = first - 0.5 + shrink * (pose[axis] + depth * ahead[axis])
        slopes = camera.slopes[np.newaxis].astype(np.float32)
        maps.append(_column(centre) + _column(shrink * depth * right[axis]) * slopes)
    return maps[0], maps[1]


def _put_walls(x: Float32, y: Float32, layout: Layout, camera: Camera, hits: Hits) -> None:
    """Overwrite the positions of the pixels that see a wall."""
    metre = layout.scale * hits.depth / camera.focal
    slant = metre * hits.depth / np.maximum(np.abs(hits.plane), 1e-3)
    along = np.clip(np.rint(np.log2(slant)), 0, LEVELS_ALONG - 1).astype(np.int64)
    up = np.clip(np.rint(np.log2(metre)), 0, LEVELS_UP - 1).astype(np.int64)
    column = np.array([layout.page_column(level) for level in range(LEVELS_ALONG)])[along]
    pixel = layout.offset[hits.wall] + hits.along * layout.scale
    wall_x = column + pixel / 2.0**along - 0.5
    first = np.array([layout.page_row(level) for level in range(LEVELS_UP)])[up]
    size = layout.rows >> up
    first = first + layout.page[hits.wall] * size
    top, bottom = wall_rows(camera, hits.depth)
    slope = size / (bottom - top)
    rows = np.arange(camera.height, dtype=np.float32)[:, np.newaxis]
    wall_y = rows * np.float32(slope) + np.float32(first - 0.5 - top * slope)
    np.clip(wall_y, np.float32(first), np.float32(first + size - 1), out=wall_y)
    seen = (rows >= np.float32(top)) & (rows <= np.float32(bottom))
    np.copyto(x, np.float32(wall_x), where=seen)
    np.copyto(y, wall_y, where=seen)
