"""What hangs and stands at a wall: doors, windows, posters, boards, radiators, shelves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

# OpenCV's type stubs do not say which type of pixel a function returns
Pixels = NDArray[Any]
Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Patch:
    """
    A stretch of wall to paint on, from floor to ceiling.

    `paint`: (height, width, 3) BGR view. `glow`: (height, width) view, how much of the daylight
    outside comes through. `scale`: pixels per metre. Positions are metres from the left and from
    the floor.
    """

    paint: Pixels
    glow: Pixels
    scale: float

    @property
    def width(self) -> float:
        """Metres from the left to the right end."""
        return float(self.paint.shape[1] / self.scale)

    @property
    def height(self) -> float:
        """Metres from the floor to the ceiling."""
        return float(self.paint.shape[0] / self.scale)

    def box(self, x: float, z: float, width: float, height: float) -> tuple[int, int, int, int]:
        """Pixel columns and rows (left, top, right, bottom) of a rectangle, inclusive."""
        left, right = round(x * self.scale), round((x + width) * self.scale) - 1
        top = round((self.height - z - height) * self.scale)
        bottom = round((self.height - z) * self.scale) - 1
        return left, top, right, bottom

    def fill(self, x: float, z: float, width: float, height: float, colour: Colour) -> None:
        """Paint a rectangle."""
        left, top, right, bottom = self.box(x, z, width, height)
        cv2.rectangle(self.paint, (left, top), (right, bottom), colour, -1)

    def frame(
        self, x: float, z: float, width: float, height: float, colour: Colour, thick: float = 0.03
    ) -> None:
        """Paint the outline of a rectangle."""
        left, top, right, bottom = self.box(x, z, width, height)
        pixels = max(1, round(thick * self.scale))
        cv2.rectangle(self.paint, (left, top), (right, bottom), colour, pixels)

    def light_up(self, x: float, z: float, width: float, height: float, amount: int) -> None:
        """Let daylight through a rectangle, 255 for all of it."""
        left, top, right, bottom = self.box(x, z, width, height)
        cv2.rectangle(self.glow, (left, top), (right, bottom), amount, -1)


def grey_or_tinted(rng: np.random.Generator, low: float, high: float, tint: float) -> Colour:
    """Draw a colour of a brightness in [low, high] and a saturation up to `tint`."""
    value = rng.uniform(low, high)
    b, g, r = np.clip(value * (1 + rng.uniform(-tint, tint, 3)), 0, 255)
    return float(b), float(g), float(r)


def door(patch: Patch, rng: np.random.Generator) -> None:
    """Paint a door with frame, handle, sign and sometimes a pane."""
    width, x = 0.95, (patch.width - 0.95) / 2
    colour = grey_or_tinted(rng, 70, 170, 0.35)
    patch.fill(x - 0.08, 0, width + 0.16, 2.13, grey_or_tinted(rng, 60, 120, 0.1))
    patch.fill(x, 0, width, 2.05, colour)
    for z in (0.2, 1.15) if rng.random() < 0.5 else ():
        patch.frame(x + 0.15, z, width - 0.3, 0.7, _darker(colour, 0.75))
    if rng.random() < 0.4:
        patch.fill(x + 0.25, 1.2, width - 0.5, 0.65, (60, 55, 50))
    side = 0.08 if rng.random() < 0.5 else width - 0.2
    patch.fill(x + side, 1.0, 0.12, 0.04, (200, 205, 210))
    sign(patch, x + width + 0.14, 1.5, rng)


def sign(patch: Patch, x: float, z: float, rng: np.random.Generator) -> None:
    """Paint a room's number beside its door."""
    patch.fill(x, z, 0.2, 0.14, (225, 225, 220))
    left, _, _, bottom = patch.box(x, z, 0.2, 0.14)
    cv2.putText(
        patch.paint, str(rng.integers(100, 400)), (left + 1, bottom - 3),
        cv2.FONT_HERSHEY_SIMPLEX, patch.scale / 260, (30, 30, 30), 1, cv2.LINE_AA,
    )  # fmt: skip


def window(patch: Patch, rng: np.random.Generator) -> None:
    """Paint a window with cross-bars; what is outside glows with the daylight."""
    width = min(1.5, patch.width - 0.2)
    x, z, height = (patch.width - width) / 2, 0.95, 1.35
    patch.fill(x - 0.08, z - 0.08, width + 0.16, height + 0.16, (215, 215, 215))
    outside = cv2.resize(
        _outside(rng),
        (round(width * patch.scale), round(height * patch.scale)),
        interpolation=cv2.INTER_CUBIC,
    )
    left, top, _, _ = patch.box(x, z, width, height)
    patch.paint[slice(top, top + outside.shape[0]), slice(left, left + outside.shape[1])] = outside
    patch.light_up(x, z, width, height, 255)
    for bar in np.linspace(x, x + width, 3):
        patch.fill(bar - 0.03, z, 0.06, height, (200, 200, 200))
        patch.light_up(bar - 0.03, z, 0.06, height, 0)
    patch.fill(x - 0.15, z - 0.13, width + 0.3, 0.06, (180, 180, 180))


def _outside(rng: np.random.Generator) -> Pixels:
    """Draw a few blotches of sky and trees, hardly coloured."""
    tint = rng.uniform(0.85, 1.0, (5, 6, 3))
    return np.asarray(rng.uniform(90, 220, (5, 6, 1)) * tint, np.uint8)


def poster(patch: Patch, rng: np.random.Generator) -> None:
    """Hang up a sheet with a picture and lines of text."""
    width = float(min(rng.uniform(0.5, 0.95), patch.width - 0.1))
    height = float(rng.uniform(0.6, 1.25))
    x = float(rng.uniform(0.05, patch.width - width - 0.04))
    sheet(patch, (x, float(rng.uniform(0.95, 1.25)), width, height), rng)


def sheet(
    patch: Patch, place: tuple[float, float, float, float], rng: np.random.Generator
) -> None:
    """Paint one sheet of paper at (x, z, width, height)."""
    x, z, width, height = place
    patch.fill(x, z, width, height, grey_or_tinted(rng, 150, 245, 0.25))
    if rng.random() < 0.5:
        patch.frame(x, z, width, height, grey_or_tinted(rng, 20, 120, 0.3), 0.02)
    picture = height * rng.uniform(0.3, 0.7)
    _picture(patch, (x + 0.06 * width, z + height - picture, 0.88 * width, 0.92 * picture), rng)
    line = z + height - picture - 0.06
    ink = grey_or_tinted(rng, 20, 90, 0.3)
    while line > z + 0.05:
        thick = float(rng.choice([0.012, 0.02, 0.035]))
        patch.fill(x + 0.08 * width, line, width * rng.uniform(0.4, 0.84), thick, ink)
        line -= 2.2 * thick + 0.015


def _picture(
    patch: Patch, place: tuple[float, float, float, float], rng: np.random.Generator
) -> None:
    left, top, right, bottom = patch.box(*place)
    shape = (max(2, bottom - top), max(2, right - left))
    canvas = np.full((*shape, 3), grey_or_tinted(rng, 30, 230, 0.5), dtype=np.uint8)
    for _ in range(int(rng.integers(3, 9))):
        colour = grey_or_tinted(rng, 10, 255, 0.6)
        centre = (int(rng.integers(shape[1])), int(rng.integers(shape[0])))
        extent = (rng.uniform(0.05, 0.4, 2) * min(shape)).astype(int) + 2
        if rng.random() < 0.5:
            angle = float(rng.uniform(0, 180))
            axes = (int(extent[0]), int(extent[1]))
            cv2.ellipse(canvas, centre, axes, angle, 0, 360, colour, -1, cv2.LINE_AA)
        else:
            corners = np.array(centre) + rng.integers(-extent.max(), extent.max() + 1, (4, 2))
            cv2.fillConvexPoly(canvas, cv2.convexHull(corners.astype(np.int32)), colour)
    target = patch.paint[slice(top, top + shape[0]), slice(left, left + shape[1])]
    target[...] = canvas[: target.shape[0], : target.shape[1]]


def board(patch: Patch, rng: np.random.Generator) -> None:
    """Hang up a notice board full of notes."""
    width = min(1.5, patch.width - 0.1)
    x, z, height = (patch.width - width) / 2, 1.0, 1.05
    patch.fill(x, z, width, height, grey_or_tinted(rng, 90, 150, 0.35))
    for _ in range(int(rng.integers(6, 12))):
        size = (float(rng.uniform(0.15, 0.32)), float(rng.uniform(0.15, 0.34)))
        left = float(rng.uniform(x + 0.03, x + width - size[0] - 0.03))
        low = float(rng.uniform(z + 0.03, z + height - size[1] - 0.03))
        sheet(patch, (left, low, *size), rng)
    patch.frame(x, z, width, height, (60, 75, 90), 0.04)


def radiator(patch: Patch, rng: np.random.Generator) -> None:
    """Put a radiator at the wall."""
    width = float(min(rng.uniform(0.9, 1.4), patch.width - 0.1))
    x = (patch.width - width) / 2
    patch.fill(x, 0.15, width, 0.6, (205, 210, 212))
    for rib in np.arange(x + 0.04, x + width - 0.03, 0.08):
        patch.fill(float(rib), 0.19, 0.03, 0.52, (140, 145, 148))


def extinguisher(patch: Patch, rng: np.random.Generator) -> None:
    """Hang up a fire extinguisher under its sign."""
    x = patch.width / 2
    patch.fill(x - 0.09, 0.55, 0.18, 0.5, (45, 40, 175))
    patch.fill(x - 0.05, 1.05, 0.1, 0.1, (30, 30, 30))
    patch.fill(x - 0.08, 0.72, 0.16, 0.14, (215, 220, 225))
    patch.fill(x - 0.12, 1.55, 0.24, 0.24, (50, 45, 190))
    patch.frame(x - 0.07, 1.6, 0.14, 0.14, (235, 235, 235), 0.02)
    if rng.random() < 0.5:
        patch.fill(x + 0.2, 1.1, 0.1, 0.14, (210, 210, 205))


def cabinet(patch: Patch, rng: np.random.Generator) -> None:
    """Put a cabinet at the wall."""
    width, x = min(1.0, patch.width - 0.1), 0.05
    colour = grey_or_tinted(rng, 90, 190, 0.2)
    patch.fill(x, 0.0, width, 1.85, colour)
    for row in range(int(rng.integers(2, 5))):
        z = 0.08 + row * 0.44
        patch.frame(x + 0.04, z, width - 0.08, 0.4, _darker(colour, 0.6), 0.02)
        patch.fill(x + width / 2 - 0.08, z + 0.3, 0.16, 0.03, _darker(colour, 0.35))


def shelf(patch: Patch, rng: np.random.Generator) -> None:
    """Fill the wall with shelves of boxes and books."""
    patch.fill(0, 0, patch.width, 2.3, (70, 72, 75))
    for z in np.arange(0.1, 2.0, 0.44):
        x = 0.03
        while x < patch.width - 0.1:
            width = float(rng.uniform(0.05, 0.4))
            height = float(rng.uniform(0.2, 0.38))
            width = min(width, patch.width - x - 0.02)
            patch.fill(x, float(z), width, height, grey_or_tinted(rng, 30, 220, 0.4))
            if width > 0.15:
                patch.fill(x + 0.04, float(z) + 0.08, 0.09, 0.06, (225, 225, 225))
            x += width + 0.01
        patch.fill(0, float(z) - 0.04, patch.width, 0.04, (150, 155, 160))
    for x in (0.0, patch.width - 0.05):
        patch.fill(x, 0, 0.05, 2.3, (140, 140, 145))


def plain(patch: Patch, rng: np.random.Generator) -> None:
    """Leave the wall alone but for a socket."""
    x = float(rng.uniform(0.1, patch.width - 0.2))
    patch.fill(x, 0.3, 0.09, 0.09, (215, 215, 210))


Motif = Callable[[Patch, np.random.Generator], None]


def _darker(colour: Colour, factor: float) -> Colour:
    b, g, r = (factor * value for value in colour)
    return b, g, r
