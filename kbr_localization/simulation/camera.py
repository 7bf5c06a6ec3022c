"""A camera in a floor plan: ray casting per image column, then one look-up of the whole view."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
from kbr_localization.se2 import FloatArray
from kbr_localization.simulation.atlas import (
    GROUND_SCALE,
    Layout,
    LEVELS_ALONG,
    LEVELS_GROUND,
    LEVELS_UP,
)
from kbr_localization.simulation.floor_plan import Walls
from kbr_localization.simulation.textures import Pixels
import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]

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
