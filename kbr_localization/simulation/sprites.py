"""People and furniture: flat pictures that stand in the building, walk, and face the camera."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cv2
from kbr_localization.se2 import FloatArray
from kbr_localization.simulation.driving import path_of, random_walk
from kbr_localization.simulation.floor_plan import FloorPlan
from kbr_localization.simulation.renderer import axes, Camera, Hits
from kbr_localization.simulation.textures import Colour, grey_or_tinted, Pixels
import numpy as np

ROWS = 288  # pixels of a sprite's height at full size
CLOSEST = 0.6  # metres; nobody comes closer to the camera
STRIDES = 4  # pictures of one person while walking
STRIDE_M = 1.5  # metres of two steps
KEEP_RIGHT = 0.45  # metres by which people keep to the right of the middle of their way


@dataclass(frozen=True)
class Sprite:
    """
    A picture with a mask, at full size and at halves of it.

    `pictures`, `masks`: uint8 images, each half as large as the one before. `width`, `height`:
    metres.
    """

    pictures: tuple[Pixels, ...]
    masks: tuple[Pixels, ...]
    width: float
    height: float


@dataclass(frozen=True)
class Standing:
    """A sprite at a point (2,) of the floor, lit with a brightness."""

    sprite: Sprite
    point: FloatArray
    brightness: float = 1.0


def person(rng: np.random.Generator, colour: bool) -> tuple[Sprite, ...]:
    """Draw a person in the pictures of one stride."""
    clothes = [grey_or_tinted(rng, low, high, 0.5) for low, high in ((30, 200), (20, 110))]
    tone = float(rng.uniform(110, 215))
    skin, hair = (0.7 * tone, 0.85 * tone, 1.1 * tone), grey_or_tinted(rng, 20, 110, 0.2)
    height, stripes = float(rng.uniform(1.6, 1.9)), int(rng.integers(3))
    phases = np.arange(STRIDES) * 2 * np.pi / STRIDES
    pictures = []
    for phase in phases:
        canvas, mask = (np.zeros((ROWS, ROWS // 2, *more), np.uint8) for more in ((3,), ()))
        _draw_person(canvas, mask, float(np.sin(phase)), (*clothes, skin, hair), stripes)
        pictures.append(_sprite(canvas, mask, height, colour))
    return tuple(pictures)


def furniture(rng: np.random.Generator, colour: bool) -> Sprite:
    """Draw a plant, a bin, a chair or a parcel."""
    draw, height = _FURNITURE[int(rng.integers(len(_FURNITURE)))]
    canvas, mask = (np.zeros((ROWS, int(ROWS * 0.75), *more), np.uint8) for more in ((3,), ()))
    draw(canvas, mask, rng)
    return _sprite(canvas, mask, height, colour)


def furnish(
    plan: FloorPlan, sprites: Sequence[Sprite], density: float, rng: np.random.Generator
) -> list[Standing]:
    """Put furniture along the walls, `density` pieces a metre, off the robot's ways."""
    placed = []
    for start, right, normal, length in zip(
        plan.walls.start, plan.walls.right, plan.walls.normal, plan.walls.length, strict=True
    ):
        for _ in range(int(rng.poisson(density * length))):
            point = start + right * rng.uniform(0, length) + 0.3 * normal
            sprite = sprites[int(rng.integers(len(sprites)))]
            if _distance_to_ways(plan, point) > 0.6:
                placed.append(Standing(sprite, point))
    return placed


def put(
    image: Pixels, camera: Camera, pose: FloatArray, hits: Hits, items: list[Standing]
) -> None:
    """Draw what stands in view and before the walls into the image, the farthest first."""
    if not items:
        return
    ahead, right = axes(float(pose[2]))
    offsets = np.array([item.point for item in items]) - pose[:2]
    depths, sides = offsets @ ahead, offsets @ right
    in_view = (depths > CLOSEST) & (np.abs(sides) < depths * camera.width / camera.focal)
    for index in np.argsort(-depths):
        if in_view[index]:
            _put_one(image, camera, hits, items[index], (depths[index], sides[index]))


def _put_one(
    image: Pixels, camera: Camera, hits: Hits, item: Standing, place: tuple[float, float]
) -> None:
    depth, side = place
    metre = camera.focal / depth
    width, height = item.sprite.width * metre, item.sprite.height * metre
    left = (camera.width - 1) / 2 + side * metre - width / 2
    top = camera.horizon + camera.mount * metre - height
    first, last = (min(max(0, round(end)), camera.width) for end in (left, left + width))
    highest, lowest = (min(max(0, round(end)), camera.height) for end in (top, top + height))
    seen = hits.depth[first:last] > depth
    if highest >= lowest or not np.any(seen):
        return
    level = int(np.clip(np.log2(ROWS / max(height, 1.0)), 0, len(item.sprite.masks) - 1))
    picture, mask = item.sprite.pictures[level], item.sprite.masks[level]
    scale = mask.shape[0] / height
    to_sprite = np.array([[scale, 0, (first - left) * scale], [0, scale, (highest - top) * scale]])
    size = (last - first, lowest - highest)
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    drawn = cv2.warpAffine(picture, to_sprite, size, flags=flags, borderMode=cv2.BORDER_REPLICATE)
    alpha = cv2.warpAffine(mask, to_sprite, size, flags=flags) * (seen / np.float32(255))
    alpha = alpha.astype(np.float32)
    if image.ndim == 3:
        alpha = alpha[..., np.newaxis]
    target = image[highest:lowest, first:last]
    front = np.minimum(drawn * np.float32(item.brightness), 255)
    target[...] = target + alpha * (front - target)


def _distance_to_ways(plan: FloorPlan, point: FloatArray) -> float:
    begin, end = plan.nodes[plan.edges[:, 0]], plan.nodes[plan.edges[:, 1]]
    way = end - begin
    fraction = np.sum((point - begin) * way, axis=1) / np.sum(way**2, axis=1)
    nearest = begin + np.clip(fraction, 0, 1)[:, np.newaxis] * way
    return float(np.min(np.hypot(*(nearest - point).T)))


def _sprite(canvas: Pixels, mask: Pixels, height: float, colour: bool) -> Sprite:
    picture = canvas if colour else cv2.cvtColor(canvas, cv2.COLOR_BGR2GRAY)
    pictures, masks = [picture], [mask]
    for _ in range(4):
        size = (masks[-1].shape[1] // 2, masks[-1].shape[0] // 2)
        pictures.append(cv2.resize(pictures[-1], size, interpolation=cv2.INTER_AREA))
        masks.append(cv2.resize(masks[-1], size, interpolation=cv2.INTER_AREA))
    return Sprite(tuple(pictures), tuple(masks), height * mask.shape[1] / ROWS, height)


def _line(
    canvas: Pixels, mask: Pixels, ends: tuple[int, int, int, int], thick: int, colour: Colour
) -> None:
    begin, end = ends[:2], ends[2:]
    # the colour goes on beyond the mask, so that no dark line shows
    cv2.line(canvas, begin, end, colour, thick + 4, cv2.LINE_AA)
    cv2.line(mask, begin, end, 255, thick, cv2.LINE_AA)


def _oval(
    canvas: Pixels, mask: Pixels, centre: tuple[int, int], radii: tuple[int, int], colour: Colour
) -> None:
    wide = (radii[0] + 2, radii[1] + 2)
    cv2.ellipse(canvas, centre, wide, 0, 0, 360, colour, -1, cv2.LINE_AA)
    cv2.ellipse(mask, centre, radii, 0, 0, 360, 255, -1, cv2.LINE_AA)


def _draw_person(
    canvas: Pixels, mask: Pixels, swing: float, colours: tuple[Colour, ...], stripes: int
) -> None:
    shirt, trousers, skin, hair = colours
    step = round(16 * swing)
    for side in (-1, 1):
        foot = 72 + 11 * side + side * step
        _line(canvas, mask, (72 + 9 * side, 150, foot, 274), 21, trousers)
        _line(canvas, mask, (foot - 4, 280, foot + 6, 280), 11, (25, 25, 25))
        hand = 72 + 33 * side - side * step // 2
        _line(canvas, mask, (72 + 27 * side, 68, hand, 148), 13, shirt)
        _oval(canvas, mask, (hand, 155), (7, 8), skin)
    _line(canvas, mask, (72, 74, 72, 140), 48, shirt)
    for row in range(64, 64 + 30 * stripes, 15):
        cv2.line(canvas, (50, row), (94, row), trousers, 5)
    _oval(canvas, mask, (72, 40), (8, 14), skin)
    _oval(canvas, mask, (72, 24), (15, 19), skin)
    cv2.ellipse(canvas, (72, 18), (17, 15), 0, 180, 360, hair, -1, cv2.LINE_AA)


def _draw_plant(canvas: Pixels, mask: Pixels, rng: np.random.Generator) -> None:
    _line(canvas, mask, (108, 240, 108, 262), 44, grey_or_tinted(rng, 60, 180, 0.3))
    leaf = grey_or_tinted(rng, 50, 110, 0.4)
    for _ in range(26):
        tip = (int(rng.integers(15, 200)), int(rng.integers(12, 190)))
        shade = float(rng.uniform(0.6, 1.4))
        colour = (leaf[0] * shade, leaf[1] * shade, leaf[2] * shade)
        _line(canvas, mask, (108, 220, *tip), int(rng.integers(3, 10)), colour)


def _draw_bin(canvas: Pixels, mask: Pixels, rng: np.random.Generator) -> None:
    colour = grey_or_tinted(rng, 50, 190, 0.3)
    _line(canvas, mask, (108, 70, 108, 230), 110, colour)
    cv2.ellipse(canvas, (108, 60), (56, 14), 0, 0, 360, (25, 25, 25), -1, cv2.LINE_AA)
    cv2.rectangle(canvas, (85, 130), (130, 175), (220, 220, 220), -1)


def _draw_chair(canvas: Pixels, mask: Pixels, rng: np.random.Generator) -> None:
    colour = grey_or_tinted(rng, 30, 160, 0.4)
    for x in (55, 160):
        _line(canvas, mask, (x, 170, x, 282), 9, (70, 70, 70))
    _line(canvas, mask, (60, 165, 155, 165), 24, colour)
    _line(canvas, mask, (75, 45, 140, 45), 70, colour)
    _line(canvas, mask, (108, 80, 108, 160), 12, (70, 70, 70))


def _draw_parcel(canvas: Pixels, mask: Pixels, rng: np.random.Generator) -> None:
    colour = grey_or_tinted(rng, 90, 170, 0.3)
    for picture, value in ((canvas, colour), (mask, 255)):
        cv2.rectangle(picture, (12, 20), (204, 287), value, -1)
    cv2.rectangle(canvas, (95, 20), (120, 287), (190, 200, 205), -1)
    cv2.rectangle(canvas, (25, 150), (80, 220), (230, 230, 230), -1)
    for row in range(160, 212, 12):
        cv2.line(canvas, (30, row), (30 + int(rng.integers(15, 45)), row), (40, 40, 40), 3)


_FURNITURE: list[tuple[Callable[[Pixels, Pixels, np.random.Generator], None], float]] = [
    (_draw_plant, 1.4), (_draw_bin, 0.6), (_draw_chair, 0.9), (_draw_parcel, 0.7),
]  # fmt: skip


@dataclass(frozen=True)
class Passerby:
    """
    A person on the way along `points` (k, 2), `metres` (k,) from its start, at `speed` m/s.

    `sprites`: the pictures of one stride.
    """

    sprites: tuple[Sprite, ...]
    points: FloatArray
    metres: FloatArray
    speed: float

    def at(self, seconds: float) -> tuple[Sprite, FloatArray]:
        """Picture and point (2,) after some time; at the end of the way the person stands."""
        walked = min(self.speed * seconds, float(self.metres[-1]))
        phase = int(walked / STRIDE_M * STRIDES) % STRIDES
        point = np.array([np.interp(walked, self.metres, line) for line in self.points.T])
        return self.sprites[phase], point


def crowd(
    plan: FloorPlan,
    characters: list[tuple[Sprite, ...]],
    count: int,
    seconds: float,
    rng: np.random.Generator,
) -> list[Passerby]:
    """Send `count` people through the building, each on a random way for the given time."""
    people = []
    for _ in range(count):
        speed = float(rng.uniform(0.7, 1.4))
        points, metres = path_of(plan, random_walk(plan, speed * seconds, rng), KEEP_RIGHT)
        sprites = characters[int(rng.integers(len(characters)))]
        people.append(Passerby(sprites, points, metres, speed))
    return people
