"""
All textures of a building in one image, at several widths and heights each.

A picture of a wall is shrunk along its length by the slant of the view and in height by the
distance, so the atlas keeps every wall at all pairs of power-of-two shrinkings (a rip-map), and
the ground at equal ones (a mip-map). Looking up is then one cv2.remap of the whole view.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
from kbr_localization.simulation.floor_plan import FloorPlan
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
    """The textures of a building, painted once, and lit anew for every light."""

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
