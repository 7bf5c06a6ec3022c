"""
A small ray caster: colour images of a room with a table and a chair.

All objects are axis-aligned boxes of uniform colour, shaded by surface orientation and distance,
so that an image determines the position and orientation of the camera.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Scene:
    """
    Boxes in a room.

    `low`, `high`: corners (b, 3); `colours`: (b, 3) in 0..1; `walls`: half the room's sides (3,).
    """

    low: Any
    high: Any
    colours: Any
    walls: Any

    def render(self, position: Any, rotation: Any, pixels: int, view: float = 1.0) -> Any:
        """
        Return an image (pixels, pixels, 3) in 0..1.

        `rotation`: its columns are the right, down and forward axes of the camera; `view`: tangent
        of half the field of view.
        """
        grid = np.linspace(-view, view, pixels)
        right, down = np.meshgrid(grid, grid)
        rays = np.stack([right, down, np.ones_like(right)], axis=-1).reshape(-1, 3) @ rotation.T
        image, depth = self._room(position, rays)
        for low, high, colour in zip(self.low, self.high, self.colours, strict=True):
            near, axis = _enter(position, rays, low, high)
            closer = (near > 0.0) & (near < depth)
            shade = np.array([0.75, 0.6, 1.0])[axis[closer], np.newaxis]
            image[closer], depth[closer] = colour * shade, near[closer]
        length = depth * np.linalg.norm(rays, axis=1)
        image *= (1.0 / (1.0 + 0.03 * length))[:, np.newaxis]
        return np.clip(image, 0.0, 1.0).reshape(pixels, pixels, 3)

    def _room(self, position: Any, rays: Any) -> tuple[Any, Any]:
        """Return colours and depths of walls, floor and ceiling, with a smooth pattern."""
        safe = np.where(np.abs(rays) < 1e-12, 1e-12, rays)
        exits = (np.sign(safe) * self.walls - position) / safe
        axis, depth = exits.argmin(axis=1), exits.min(axis=1)
        side = np.sign(safe[np.arange(len(rays)), axis])
        points = (position + depth[:, np.newaxis] * rays) / self.walls
        base = WALL_COLOURS[axis, (side > 0).astype(int)]
        pattern = 0.8 + 0.2 * np.sin(3.0 * points.sum(axis=1))
        return base * pattern[:, np.newaxis], depth


WALL_COLOURS = np.array(
    [
        [[0.9, 0.4, 0.3], [0.3, 0.6, 0.9]],
        [[0.4, 0.8, 0.4], [0.9, 0.8, 0.3]],
        [[0.5, 0.4, 0.3], [0.9, 0.9, 0.95]],
    ]
)


def furnished(walls: tuple[float, float, float] = (15.0, 15.0, 3.0)) -> Scene:
    """Return a room with a table at its centre and a chair beside it, both on the floor."""
    boxes = [
        ((-1.6, -1.0, 1.0), (1.6, 1.0, 1.3), (0.7, 0.45, 0.2)),
        *_legs((-1.5, -0.9), (1.5, 0.9), 1.0, (0.5, 0.3, 0.1)),
        ((2.0, -0.6, 0.5), (3.2, 0.6, 0.7), (0.8, 0.2, 0.2)),
        ((3.0, -0.6, 0.7), (3.2, 0.6, 2.0), (0.8, 0.2, 0.2)),
        *_legs((2.1, -0.5), (3.1, 0.5), 0.5, (0.4, 0.1, 0.1)),
    ]
    low, high, colours = (np.array(part, dtype=np.float64) for part in zip(*boxes, strict=True))
    floor = np.array([0.0, 0.0, -walls[2]])
    return Scene(low + floor, high + floor, colours, np.array(walls))


def looking_at(position: Any, target: Any) -> Any:
    """Return the rotation (3, 3) of an upright camera at a position that looks at a target."""
    forward = (target - position) / np.linalg.norm(target - position)
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    return np.column_stack([right, np.cross(forward, right), forward])


def _legs(low: Any, high: Any, height: float, colour: Any) -> list[Any]:
    corners = [(x, y) for x in (low[0], high[0]) for y in (low[1], high[1])]
    half = 0.12
    return [((x - half, y - half, 0.0), (x + half, y + half, height), colour) for x, y in corners]


def _enter(position: Any, rays: Any, low: Any, high: Any) -> tuple[Any, Any]:
    """Return the distance along each ray to a box, infinite if it misses, and the axis hit."""
    safe = np.where(np.abs(rays) < 1e-12, 1e-12, rays)
    first, second = (low - position) / safe, (high - position) / safe
    enter, leave = np.minimum(first, second), np.maximum(first, second)
    near, axis = enter.max(axis=1), enter.argmax(axis=1)
    return np.where(near <= leave.min(axis=1), near, np.inf), axis
