"""Textures of a building's walls, floor and ceiling."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
from kbr_localization.simulation import motifs
from kbr_localization.simulation.floor_plan import CELL, FloorPlan, SOLID
from kbr_localization.simulation.motifs import Patch, Pixels
import numpy as np
from numpy.typing import NDArray

FloatImage = NDArray[np.float32]

# what a wall of each kind shows, one after the other, with widths in metres
KINDS: dict[str, list[tuple[motifs.Motif, float]]] = {
    'corridor': [(motifs.door, 1.5), (motifs.poster, 1.0), (motifs.plain, 0.5)],
    'crossing': [(motifs.plain, 1.0), (motifs.extinguisher, 0.75), (motifs.poster, 1.25)],
    'crossing outside': [(motifs.window, 1.75), (motifs.radiator, 1.5)],
    'room': [(motifs.cabinet, 1.25), (motifs.board, 1.75), (motifs.poster, 1.0)],
    'room outside': [(motifs.window, 1.75), (motifs.radiator, 1.25)],
    'hall': [(motifs.shelf, 2.0), (motifs.shelf, 1.0)],
}
_OTHERS: list[motifs.Motif] = [motifs.poster, motifs.board, motifs.cabinet, motifs.plain]
_DOORWAY_WIDTH = 0.5
"""Walls up to this length stay bare."""


@dataclass(frozen=True)
class Style:
    """
    The colours and the repeating motifs of one building.

    `seed`: of what repeats. `unique`: chance that a motif is replaced by one that is found
    nowhere else. `scale`: pixels per metre. `height`: metres from floor to ceiling.
    """

    seed: int
    unique: float
    scale: int
    height: float

    @property
    def rows(self) -> int:
        """Pixels from floor to ceiling, divisible by the atlas' strongest shrinking."""
        return 8 * round(self.height * self.scale / 8)


def paint_wall(
    style: Style, kind: str, length: float, rng: np.random.Generator
) -> tuple[Pixels, Pixels]:
    """
    Paint one wall: BGR (rows, columns, 3) and daylight (rows, columns).

    Walls of one kind share their motifs and the order of these; `rng` draws what is particular to
    this wall: stains, and the motifs that are replaced.
    """
    columns = max(1, round(length * style.scale))
    # the outer walls of a room have the colours of the others
    base = np.random.default_rng([style.seed, len(kind.split(maxsplit=1)[0])])
    paint = _plaster(style, columns, base, rng)
    patch = Patch(paint, np.zeros((style.rows, columns), np.uint8), style.scale)
    if length > _DOORWAY_WIDTH and kind in KINDS:
        _hang_motifs(style, patch, KINDS[kind], rng)
    _add_grain(paint, rng)
    return patch.paint, patch.glow


def paint_ground(
    style: Style, plan: FloorPlan, scale: int, rng: np.random.Generator
) -> tuple[Pixels, Pixels]:
    """Floor and ceiling (rows, columns, 3) of the whole plan, `scale` pixels per metre."""
    shape = (
        plan.region.shape[0] * round(CELL * scale),
        plan.region.shape[1] * round(CELL * scale),
    )
    base = np.random.default_rng([style.seed, 99])
    return _floor(shape, scale, base, rng), _ceiling(shape, scale, base, rng)


def paint_lamps(plan: FloorPlan, shape: tuple[int, ...], scale: int) -> Pixels:
    """Mask (rows, columns) of the ceiling's lamps, 255 where one shines."""
    mask = np.zeros(shape[:2], np.uint8)
    for x, y in plan.lamps:
        low = (round((x - 0.6) * scale), round((y - 0.15) * scale))
        high = (round((x + 0.6) * scale), round((y + 0.15) * scale))
        cv2.rectangle(mask, low, high, 255, -1)
    solid = (plan.region == SOLID).astype(np.uint8)
    mask[cv2.resize(solid, mask.shape[::-1], interpolation=cv2.INTER_NEAREST) > 0] = 0
    return mask


def _plaster(
    style: Style, columns: int, base: np.random.Generator, rng: np.random.Generator
) -> Pixels:
    wall = motifs.grey_or_tinted(base, 150, 205, 0.08)
    lower = motifs.grey_or_tinted(base, 105, 170, 0.12)
    paint = np.full((style.rows, columns, 3), wall, np.float32)
    rail = style.rows - round(0.9 * style.scale)
    paint[rail:] = lower
    paint[slice(rail, rail + round(0.05 * style.scale))] *= 0.6
    paint[slice(style.rows - round(0.1 * style.scale), None)] *= 0.5
    stains = 1 + 0.10 * cloud((style.rows, columns), style.scale * 0.5, rng)
    return np.asarray(np.clip(paint * stains[..., np.newaxis], 0, 255), np.uint8)


def _hang_motifs(
    style: Style,
    patch: Patch,
    sequence: list[tuple[motifs.Motif, float]],
    rng: np.random.Generator,
) -> None:
    x = 0.25
    for index in range(1000):
        motif, width = sequence[index % len(sequence)]
        if x + width > patch.width:
            return
        shared = np.random.default_rng([style.seed, index % len(sequence), len(sequence)])
        if rng.random() < style.unique:
            motif, shared = _OTHERS[int(rng.integers(len(_OTHERS)))], rng
        left, right = round(x * style.scale), round((x + width) * style.scale)
        motif(Patch(patch.paint[:, left:right], patch.glow[:, left:right], style.scale), shared)
        x += width


def _add_grain(paint: Pixels, rng: np.random.Generator) -> None:
    """Fine structure, so that a wall is not flat from close by."""
    grain = cv2.GaussianBlur(rng.normal(0, 9, paint.shape[:2]).astype(np.float32), (0, 0), 1.0)
    np.clip(paint + grain[..., np.newaxis], 0, 255, out=paint, casting='unsafe')


def _floor(
    shape: tuple[int, int], scale: int, base: np.random.Generator, rng: np.random.Generator
) -> Pixels:
    floor = np.full((*shape, 3), motifs.grey_or_tinted(base, 80, 130, 0.15), np.float32)
    tile = scale // 2
    shades = base.uniform(0.9, 1.1, (shape[0] // tile + 1, shape[1] // tile + 1))
    tiles = np.kron(shades, np.ones((tile, tile)))[: shape[0], : shape[1]]
    tiles[::tile] *= 0.8
    tiles[:, ::tile] *= 0.8
    tiles *= 1 + 0.15 * cloud(shape, scale * 1.5, rng)
    return np.asarray(np.clip(floor * tiles[..., np.newaxis], 0, 255), np.uint8)


def _ceiling(
    shape: tuple[int, int], scale: int, base: np.random.Generator, rng: np.random.Generator
) -> Pixels:
    ceiling = np.full((*shape, 3), motifs.grey_or_tinted(base, 170, 215, 0.05), np.float32)
    panel = round(scale * 0.625)
    ceiling[::panel] *= 0.75
    ceiling[:, ::panel] *= 0.75
    ceiling *= (1 + 0.05 * cloud(shape, scale, rng))[..., np.newaxis]
    return np.asarray(np.clip(ceiling, 0, 255), np.uint8)


def cloud(shape: tuple[int, int], size: float, rng: np.random.Generator) -> FloatImage:
    """Smooth noise in [-1, 1], its patches about `size` pixels wide, with two finer octaves."""
    total = np.zeros(shape, np.float32)
    for octave in range(3):
        cells = [max(2, round(extent / size * 2**octave) + 1) for extent in shape]
        coarse = rng.uniform(-1, 1, cells).astype(np.float32)
        smooth = cv2.resize(coarse, shape[::-1], interpolation=cv2.INTER_CUBIC)
        total += smooth / 2**octave
    return total / np.float32(1.75)
