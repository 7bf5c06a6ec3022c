"""Textures of walls, floor and ceiling, and of the objects at walls."""

from collections.abc import Callable
from dataclasses import dataclass
import itertools
from typing import Any

import cv2
from kbr_localization.simulation.floor_plan import CELL, FloorPlan, SOLID
from kbr_localization.simulation.light import Pixels
import numpy as np
from numpy.typing import NDArray

Colour = tuple[float, float, float]
Random = np.random.Generator
HEIGHT = 2.75
"""Metres from floor to ceiling."""
UNIQUE = 0.25
"""Probability that a motif is replaced by one that no other wall has."""


@dataclass(frozen=True)
class Style:
    """Seed of the colours and motifs that repeat in a building; `scale` in pixels per metre."""

    seed: int
    scale: int

    @property
    def rows(self) -> int:
        """Return the pixels from floor to ceiling, divisible by the strongest shrinking."""
        return 8 * round(HEIGHT * self.scale / 8)


class Patch:
    """
    A part of a wall to paint on, from floor to ceiling.

    `paint`: (h, w, 3) BGR, painted in place. `glow`: (h, w), 255 where all daylight comes
    through, painted in place. `scale`: pixels per metre. Positions x and z are metres from the
    left and from the floor.
    """

    def __init__(self, paint: Pixels, glow: Pixels, scale: float) -> None:
        self.paint, self.glow, self.scale = paint, glow, scale
        self.height, self.width = (float(side / scale) for side in glow.shape)

    def box(self, x: float, z: float, width: float, height: float) -> tuple[int, int, int, int]:
        """Return the pixels (left, top, right, bottom) of a rectangle, inclusive."""
        left, right = round(x * self.scale), round((x + width) * self.scale) - 1
        top = round((self.height - z - height) * self.scale)
        bottom = round((self.height - z) * self.scale) - 1
        return left, top, right, bottom

    def fill(
        self,
        x: float,
        z: float,
        width: float,
        height: float,
        colour: Colour,
        line: float = 0.0,
        glow: int | None = None,
    ) -> None:
        """Paint a rectangle, or its outline `line` metres thick, and set its `glow`."""
        left, top, right, bottom = self.box(x, z, width, height)
        pixels = max(1, round(line * self.scale)) if line else -1
        cv2.rectangle(self.paint, (left, top), (right, bottom), colour, pixels)
        if glow is not None:
            cv2.rectangle(self.glow, (left, top), (right, bottom), glow, -1)

    def paste(self, x: float, z: float, width: float, height: float, image: Pixels) -> None:
        """Paste an image at the upper left corner of a rectangle, clipped at the wall's end."""
        left, top, _, _ = self.box(x, z, width, height)
        rows, columns = image.shape[:2]
        target = self.paint[top : top + rows, left : left + columns]  # noqa: E203
        target[...] = image[: target.shape[0], : target.shape[1]]


def grey_or_tinted(rng: Random, low: float, high: float, tint: float) -> Colour:
    """Draw a random colour with brightness in [low, high] and saturation up to `tint`."""
    value = rng.uniform(low, high)
    b, g, r = np.clip(value * (1 + rng.uniform(-tint, tint, 3)), 0, 255)
    return float(b), float(g), float(r)


def _darker(colour: Colour, factor: float) -> Colour:
    b, g, r = (factor * value for value in colour)
    return b, g, r


def _door(patch: Patch, rng: Random) -> None:
    width, x = 0.95, (patch.width - 0.95) / 2
    colour = grey_or_tinted(rng, 70, 170, 0.35)
    patch.fill(x - 0.08, 0, width + 0.16, 2.13, grey_or_tinted(rng, 60, 120, 0.1))
    patch.fill(x, 0, width, 2.05, colour)
    for z in (0.2, 1.15) if rng.random() < 0.5 else ():
        patch.fill(x + 0.15, z, width - 0.3, 0.7, _darker(colour, 0.75), line=0.03)
    if rng.random() < 0.4:
        patch.fill(x + 0.25, 1.2, width - 0.5, 0.65, (60, 55, 50))
    side = 0.08 if rng.random() < 0.5 else width - 0.2
    patch.fill(x + side, 1.0, 0.12, 0.04, (200, 205, 210))
    sign = (x + width + 0.14, 1.5, 0.2, 0.14)
    patch.fill(*sign, (225, 225, 220))
    left, _, _, bottom = patch.box(*sign)
    cv2.putText(
        patch.paint, str(rng.integers(100, 400)), (left + 1, bottom - 3),
        cv2.FONT_HERSHEY_SIMPLEX, patch.scale / 260, (30, 30, 30), 1, cv2.LINE_AA,
    )  # fmt: skip


def _window(patch: Patch, rng: Random) -> None:
    width, height, z = min(1.5, patch.width - 0.2), 1.35, 0.95
    x = (patch.width - width) / 2
    patch.fill(x - 0.08, z - 0.08, width + 0.16, height + 0.16, (215, 215, 215))
    # blurred patches for sky and trees, almost grey
    tint = rng.uniform(0.85, 1.0, (5, 6, 3))
    outside = np.asarray(rng.uniform(90, 220, (5, 6, 1)) * tint, np.uint8)
    size = (round(width * patch.scale), round(height * patch.scale))
    patch.fill(x, z, width, height, (215, 215, 215), glow=255)
    patch.paste(x, z, width, height, cv2.resize(outside, size, interpolation=cv2.INTER_CUBIC))
    for bar in np.linspace(x, x + width, 3):
        patch.fill(bar - 0.03, z, 0.06, height, (200, 200, 200), glow=0)
    patch.fill(x - 0.15, z - 0.13, width + 0.3, 0.06, (180, 180, 180))


def _poster(patch: Patch, rng: Random) -> None:
    width = float(min(rng.uniform(0.5, 0.95), patch.width - 0.1))
    height = float(rng.uniform(0.6, 1.25))
    x = float(rng.uniform(0.05, patch.width - width - 0.04))
    _sheet(patch, x, float(rng.uniform(0.95, 1.25)), width, height, rng)


def _sheet(patch: Patch, x: float, z: float, width: float, height: float, rng: Random) -> None:
    patch.fill(x, z, width, height, grey_or_tinted(rng, 150, 245, 0.25))
    if rng.random() < 0.5:
        patch.fill(x, z, width, height, grey_or_tinted(rng, 20, 120, 0.3), line=0.02)
    picture = height * rng.uniform(0.3, 0.7)
    _picture(patch, (x + 0.06 * width, z + height - picture, 0.88 * width, 0.92 * picture), rng)
    line = z + height - picture - 0.06
    ink = grey_or_tinted(rng, 20, 90, 0.3)
    while line > z + 0.05:
        thick = float(rng.choice([0.012, 0.02, 0.035]))
        patch.fill(x + 0.08 * width, line, width * rng.uniform(0.4, 0.84), thick, ink)
        line -= 2.2 * thick + 0.015


def _picture(patch: Patch, place: tuple[float, float, float, float], rng: Random) -> None:
    left, top, right, bottom = patch.box(*place)
    rows, columns = max(2, bottom - top), max(2, right - left)
    canvas = np.full((rows, columns, 3), grey_or_tinted(rng, 30, 230, 0.5), dtype=np.uint8)
    for _ in range(int(rng.integers(3, 9))):
        colour = grey_or_tinted(rng, 10, 255, 0.6)
        centre = (int(rng.integers(columns)), int(rng.integers(rows)))
        extent = (rng.uniform(0.05, 0.4, 2) * min(rows, columns)).astype(int) + 2
        if rng.random() < 0.5:
            angle = float(rng.uniform(0, 180))
            cv2.ellipse(canvas, centre, extent.tolist(), angle, 0, 360, colour, -1, cv2.LINE_AA)
        else:
            corners = np.array(centre) + rng.integers(-extent.max(), extent.max() + 1, (4, 2))
            cv2.fillConvexPoly(canvas, cv2.convexHull(corners.astype(np.int32)), colour)
    patch.paste(*place, canvas)


def _board(patch: Patch, rng: Random) -> None:
    width, height, z = min(1.5, patch.width - 0.1), 1.05, 1.0
    x = (patch.width - width) / 2
    patch.fill(x, z, width, height, grey_or_tinted(rng, 90, 150, 0.35))
    for _ in range(int(rng.integers(6, 12))):
        size = (float(rng.uniform(0.15, 0.32)), float(rng.uniform(0.15, 0.34)))
        left = float(rng.uniform(x + 0.03, x + width - size[0] - 0.03))
        low = float(rng.uniform(z + 0.03, z + height - size[1] - 0.03))
        _sheet(patch, left, low, *size, rng)
    patch.fill(x, z, width, height, (60, 75, 90), line=0.04)


def _radiator(patch: Patch, rng: Random) -> None:
    width = float(min(rng.uniform(0.9, 1.4), patch.width - 0.1))
    x = (patch.width - width) / 2
    patch.fill(x, 0.15, width, 0.6, (205, 210, 212))
    for rib in np.arange(x + 0.04, x + width - 0.03, 0.08):
        patch.fill(float(rib), 0.19, 0.03, 0.52, (140, 145, 148))


def _extinguisher(patch: Patch, rng: Random) -> None:
    x = patch.width / 2
    patch.fill(x - 0.09, 0.55, 0.18, 0.5, (45, 40, 175))
    patch.fill(x - 0.05, 1.05, 0.1, 0.1, (30, 30, 30))
    patch.fill(x - 0.08, 0.72, 0.16, 0.14, (215, 220, 225))
    patch.fill(x - 0.12, 1.55, 0.24, 0.24, (50, 45, 190))
    patch.fill(x - 0.07, 1.6, 0.14, 0.14, (235, 235, 235), line=0.02)
    if rng.random() < 0.5:
        patch.fill(x + 0.2, 1.1, 0.1, 0.14, (210, 210, 205))


def _cabinet(patch: Patch, rng: Random) -> None:
    width, x = min(1.0, patch.width - 0.1), 0.05
    colour = grey_or_tinted(rng, 90, 190, 0.2)
    patch.fill(x, 0.0, width, 1.85, colour)
    for row in range(int(rng.integers(2, 5))):
        z = 0.08 + row * 0.44
        patch.fill(x + 0.04, z, width - 0.08, 0.4, _darker(colour, 0.6), line=0.02)
        patch.fill(x + width / 2 - 0.08, z + 0.3, 0.16, 0.03, _darker(colour, 0.35))


def _shelf(patch: Patch, rng: Random) -> None:
    patch.fill(0, 0, patch.width, 2.3, (70, 72, 75))
    for z in np.arange(0.1, 2.0, 0.44).tolist():
        x = 0.03
        while x < patch.width - 0.1:
            width, height = float(rng.uniform(0.05, 0.4)), float(rng.uniform(0.2, 0.38))
            width = min(width, patch.width - x - 0.02)
            patch.fill(x, z, width, height, grey_or_tinted(rng, 30, 220, 0.4))
            if width > 0.15:
                patch.fill(x + 0.04, z + 0.08, 0.09, 0.06, (225, 225, 225))
            x += width + 0.01
        patch.fill(0, z - 0.04, patch.width, 0.04, (150, 155, 160))
    for x in (0.0, patch.width - 0.05):
        patch.fill(x, 0, 0.05, 2.3, (140, 140, 145))


def _socket(patch: Patch, rng: Random) -> None:
    patch.fill(float(rng.uniform(0.1, patch.width - 0.2)), 0.3, 0.09, 0.09, (215, 215, 210))


Motif = Callable[[Patch, Random], None]
KINDS: dict[str, list[tuple[Motif, float]]] = {
    'corridor': [(_door, 1.5), (_poster, 1.0), (_socket, 0.5)],
    'crossing': [(_socket, 1.0), (_extinguisher, 0.75), (_poster, 1.25)],
    'crossing outside': [(_window, 1.75), (_radiator, 1.5)],
    'room': [(_cabinet, 1.25), (_board, 1.75), (_poster, 1.0)],
    'room outside': [(_window, 1.75), (_radiator, 1.25)],
    'hall': [(_shelf, 2.0), (_shelf, 1.0)],
}
"""Motifs of each kind of wall, repeated in this order, with their widths in metres."""


def paint_wall(style: Style, kind: str, length: float, rng: Random) -> tuple[Pixels, Pixels]:
    """Return grey levels and `glow` (rows, columns) of a wall; `rng` draws its unique parts."""
    scale, shape = style.scale, (style.rows, max(1, round(length * style.scale)))
    # inner and outer walls of a room have the same colours
    base = np.random.default_rng([style.seed, len(kind.split(maxsplit=1)[0])])
    plaster = np.full((*shape, 3), grey_or_tinted(base, 150, 205, 0.08), np.float32)
    rail = style.rows - round(0.9 * scale)
    plaster[rail:] = grey_or_tinted(base, 105, 170, 0.12)
    plaster[rail : rail + round(0.05 * scale)] *= 0.6  # noqa: E203
    plaster[style.rows - round(0.1 * scale) :] *= 0.5  # noqa: E203
    paint = _painted(plaster, 1 + 0.10 * _cloud(shape, scale * 0.5, rng))
    patch = Patch(paint, np.zeros(shape, np.uint8), scale)
    # leave doorways bare
    motifs, x = KINDS.get(kind, []) if length > 0.5 else [], 0.25
    for index, (motif, width) in enumerate(itertools.cycle(motifs)):
        if x + width > patch.width:
            break
        draw, by = motif, np.random.default_rng([style.seed, index % len(motifs), len(motifs)])
        if rng.random() < UNIQUE:
            draw, by = (_poster, _board, _cabinet, _socket)[int(rng.integers(4))], rng
        part = slice(round(x * scale), round((x + width) * scale))
        draw(Patch(paint[:, part], patch.glow[:, part], scale), by)
        x += width
    # add grain, so that a wall has texture from close by
    grain = cv2.GaussianBlur(rng.normal(0, 9, shape).astype(np.float32), (0, 0), 1.0)
    np.clip(paint + grain[..., np.newaxis], 0, 255, out=paint, casting='unsafe')
    return _in_grey(paint), patch.glow


def paint_ground(style: Style, plan: FloorPlan, scale: int, rng: Random) -> tuple[Pixels, Pixels]:
    """Return floor and ceiling (rows, columns) of the plan at `scale` pixels per metre."""
    rows, columns = (cells * round(CELL * scale) for cells in plan.region.shape)
    base = np.random.default_rng([style.seed, 99])
    floor = np.full((rows, columns, 3), grey_or_tinted(base, 80, 130, 0.15), np.float32)
    tile, panel = scale // 2, round(scale * 0.625)
    shades = base.uniform(0.9, 1.1, (rows // tile + 1, columns // tile + 1))
    tiles = np.kron(shades, np.ones((tile, tile)))[:rows, :columns]
    tiles[::tile] *= 0.8
    tiles[:, ::tile] *= 0.8
    tiles *= 1 + 0.15 * _cloud((rows, columns), scale * 1.5, rng)
    ceiling = np.full((rows, columns, 3), grey_or_tinted(base, 170, 215, 0.05), np.float32)
    ceiling[::panel] *= 0.75
    ceiling[:, ::panel] *= 0.75
    stains = 1 + 0.05 * _cloud((rows, columns), scale, rng)
    return _in_grey(_painted(floor, tiles)), _in_grey(_painted(ceiling, stains))


def paint_lamps(plan: FloorPlan, shape: tuple[int, ...], scale: int) -> Pixels:
    """Return a mask (rows, columns) of the ceiling lamps, 255 inside a lamp."""
    mask = np.zeros(shape[:2], np.uint8)
    for x, y in plan.lamps:
        low = (round((x - 0.6) * scale), round((y - 0.15) * scale))
        high = (round((x + 0.6) * scale), round((y + 0.15) * scale))
        cv2.rectangle(mask, low, high, 255, -1)
    solid = (plan.region == SOLID).astype(np.uint8)
    mask[cv2.resize(solid, mask.shape[::-1], interpolation=cv2.INTER_NEAREST) > 0] = 0
    return mask


def _in_grey(paint: Pixels) -> Pixels:
    return np.asarray(cv2.cvtColor(paint, cv2.COLOR_BGR2GRAY))


def _painted(paint: Pixels, factor: NDArray[Any]) -> Pixels:
    return np.asarray(np.clip(paint * factor[..., np.newaxis], 0, 255), np.uint8)


def _cloud(shape: tuple[int, int], size: float, rng: Random) -> NDArray[np.float32]:
    """Return smooth noise in [-1, 1]: patches of about `size` pixels, and two finer octaves."""
    total = np.zeros(shape, np.float32)
    for octave in range(3):
        cells = [max(2, round(extent / size * 2**octave) + 1) for extent in shape]
        coarse = rng.uniform(-1, 1, cells).astype(np.float32)
        smooth = cv2.resize(coarse, shape[::-1], interpolation=cv2.INTER_CUBIC)
        total += smooth / 2**octave
    return total / np.float32(1.75)
