"""People and furniture: flat pictures in the building that always face the camera."""

from collections.abc import Callable, Sequence
from functools import partial

import cv2
from kbr_localization.se2 import FloatArray
from kbr_localization.simulation.floor_plan import FloorPlan
from kbr_localization.simulation.light import Pixels
from kbr_localization.simulation.renderer import axes, RayHits
from kbr_localization.simulation.textures import Colour, grey_or_tinted
import numpy as np

ROWS = 288  # pixels of the height of a sprite at full size
CLOSEST = 0.6  # metres; closer sprites are not drawn
STRIDES = 4  # pictures of a person in one stride
STRIDE_M = 1.5  # metres of a stride, two steps
KEEP_RIGHT = 0.45  # metres by which people walk to the right of the middle of a path
DARK = (25, 25, 25)


class Sprite:
    """A picture and its mask at full size and, once finished, at halved sizes; size in metres."""

    def __init__(self, columns: int, height: float) -> None:
        self.width, self.height = height * columns / ROWS, height
        self.pictures: list[Pixels] = [np.zeros((ROWS, columns, 3), np.uint8)]
        self.masks: list[Pixels] = [np.zeros((ROWS, columns), np.uint8)]

    def line(self, ends: tuple[int, int, int, int], thick: int, colour: Colour) -> None:
        """Draw a line between `ends` (x, y, x, y)."""
        begin, end = ends[:2], ends[2:]
        # draw the picture wider than the mask, so that no dark border shows
        cv2.line(self.pictures[0], begin, end, colour, thick + 4, cv2.LINE_AA)
        cv2.line(self.masks[0], begin, end, 255, thick, cv2.LINE_AA)

    def oval(self, x: int, y: int, radii: tuple[int, int], colour: Colour) -> None:
        wide = (radii[0] + 2, radii[1] + 2)
        cv2.ellipse(self.pictures[0], (x, y), wide, 0, 0, 360, colour, -1, cv2.LINE_AA)
        cv2.ellipse(self.masks[0], (x, y), radii, 0, 0, 360, 255, -1, cv2.LINE_AA)

    def finished(self) -> 'Sprite':
        """Convert the picture to grey, add the smaller sizes, and return the sprite."""
        self.pictures[0] = cv2.cvtColor(self.pictures[0], cv2.COLOR_BGR2GRAY)
        for images in (self.pictures, self.masks):
            for _ in range(4):
                size = (images[-1].shape[1] // 2, images[-1].shape[0] // 2)
                images.append(cv2.resize(images[-1], size, interpolation=cv2.INTER_AREA))
        return self


Item = tuple[Sprite, FloatArray]
"""A sprite and the floor point (2,) that it stands on, metres."""
Passerby = Callable[[float], Item]
"""A function that returns the picture and the point of a walking person after some seconds."""


def draw_person(rng: np.random.Generator) -> list[Sprite]:
    """Draw the pictures of a person in one stride."""
    shirt, trousers = (grey_or_tinted(rng, low, high, 0.5) for low, high in ((30, 200), (20, 110)))
    tone = float(rng.uniform(110, 215))
    skin, hair = (0.7 * tone, 0.85 * tone, 1.1 * tone), grey_or_tinted(rng, 20, 110, 0.2)
    height, stripes = float(rng.uniform(1.6, 1.9)), int(rng.integers(3))
    stride = []
    for phase in np.arange(STRIDES) * 2 * np.pi / STRIDES:
        sprite, step = Sprite(ROWS // 2, height), round(16 * float(np.sin(phase)))
        for side in (-1, 1):
            foot, hand = 72 + 11 * side + side * step, 72 + 33 * side - side * step // 2
            sprite.line((72 + 9 * side, 150, foot, 274), 21, trousers)
            sprite.line((foot - 4, 280, foot + 6, 280), 11, DARK)
            sprite.line((72 + 27 * side, 68, hand, 148), 13, shirt)
            sprite.oval(hand, 155, (7, 8), skin)
        sprite.line((72, 74, 72, 140), 48, shirt)
        picture = sprite.pictures[0]
        for row in range(64, 64 + 30 * stripes, 15):
            cv2.line(picture, (50, row), (94, row), trousers, 5)
        sprite.oval(72, 40, (8, 14), skin)
        sprite.oval(72, 24, (15, 19), skin)
        cv2.ellipse(picture, (72, 18), (17, 15), 0, 180, 360, hair, -1, cv2.LINE_AA)
        stride.append(sprite.finished())
    return stride


def draw_furniture(rng: np.random.Generator) -> Sprite:
    """Draw a plant, a bin, a chair or a parcel."""
    kinds = ((_draw_plant, 1.4), (_draw_bin, 0.6), (_draw_chair, 0.9), (_draw_parcel, 0.7))
    draw, height = kinds[int(rng.integers(len(kinds)))]
    sprite = Sprite(int(ROWS * 0.75), height)
    draw(sprite, rng)
    return sprite.finished()


def _draw_plant(sprite: Sprite, rng: np.random.Generator) -> None:
    sprite.line((108, 240, 108, 262), 44, grey_or_tinted(rng, 60, 180, 0.3))
    b, g, r = grey_or_tinted(rng, 50, 110, 0.4)
    for _ in range(26):
        x, y = int(rng.integers(15, 200)), int(rng.integers(12, 190))
        shade = float(rng.uniform(0.6, 1.4))
        leaf = (b * shade, g * shade, r * shade)
        sprite.line((108, 220, x, y), int(rng.integers(3, 10)), leaf)


def _draw_bin(sprite: Sprite, rng: np.random.Generator) -> None:
    sprite.line((108, 70, 108, 230), 110, grey_or_tinted(rng, 50, 190, 0.3))
    cv2.ellipse(sprite.pictures[0], (108, 60), (56, 14), 0, 0, 360, DARK, -1, cv2.LINE_AA)
    cv2.rectangle(sprite.pictures[0], (85, 130), (130, 175), (220, 220, 220), -1)


def _draw_chair(sprite: Sprite, rng: np.random.Generator) -> None:
    colour, metal = grey_or_tinted(rng, 30, 160, 0.4), (70, 70, 70)
    for x in (55, 160):
        sprite.line((x, 170, x, 282), 9, metal)
    sprite.line((60, 165, 155, 165), 24, colour)
    sprite.line((75, 45, 140, 45), 70, colour)
    sprite.line((108, 80, 108, 160), 12, metal)


def _draw_parcel(sprite: Sprite, rng: np.random.Generator) -> None:
    picture = sprite.pictures[0]
    cv2.rectangle(picture, (12, 20), (204, 287), grey_or_tinted(rng, 90, 170, 0.3), -1)
    cv2.rectangle(sprite.masks[0], (12, 20), (204, 287), 255, -1)
    cv2.rectangle(picture, (95, 20), (120, 287), (190, 200, 205), -1)
    cv2.rectangle(picture, (25, 150), (80, 220), (230, 230, 230), -1)
    for row in range(160, 212, 12):
        cv2.line(picture, (30, row), (30 + int(rng.integers(15, 45)), row), (40, 40, 40), 3)


def furnish(
    plan: FloorPlan, sprites: Sequence[Sprite], density: float, rng: np.random.Generator
) -> list[Item]:
    """Place furniture along walls, `density` pieces a metre, clear of the robot's paths."""
    begin, end = plan.nodes[plan.edges[:, 0]], plan.nodes[plan.edges[:, 1]]
    edge, walls, placed = end - begin, plan.walls, []
    for start, right, normal, length in zip(
        walls.start, walls.right, walls.normal, walls.length, strict=True
    ):
        for _ in range(int(rng.poisson(density * length))):
            point = start + right * rng.uniform(0, length) + 0.3 * normal
            sprite = sprites[int(rng.integers(len(sprites)))]
            fraction = np.sum((point - begin) * edge, axis=1) / np.sum(edge**2, axis=1)
            nearest = begin + np.clip(fraction, 0, 1)[:, np.newaxis] * edge
            if np.min(np.hypot(*(nearest - point).T)) > 0.6:
                placed.append((sprite, point))
    return placed


def crowd(
    plan: FloorPlan,
    characters: Sequence[list[Sprite]],
    count: int,
    seconds: float,
    rng: np.random.Generator,
) -> list[Passerby]:
    """Send `count` people through the building, each on a random path for `seconds`."""
    people: list[Passerby] = []
    for _ in range(count):
        speed = float(rng.uniform(0.7, 1.4))
        path = plan.path(plan.random_walk(speed * seconds, rng), KEEP_RIGHT)
        people.append(partial(_walk, characters[int(rng.integers(len(characters)))], path, speed))
    return people


def _walk(
    stride: list[Sprite], path: tuple[FloatArray, FloatArray], speed: float, seconds: float
) -> Item:
    """Return picture and point of a person after `seconds`; it stops at the end of its path."""
    points, metres = path
    walked = min(speed * seconds, float(metres[-1]))
    phase = int(walked / STRIDE_M * STRIDES) % STRIDES
    return stride[phase], np.array([np.interp(walked, metres, line) for line in points.T])


def draw_items(
    image: Pixels, hits: RayHits, items: Sequence[Item], brightness: FloatArray
) -> None:
    """Draw the visible items, of brightness (k,), into an image, the farthest first."""
    camera, (ahead, right) = hits.camera, axes(hits.pose)
    offsets = np.array([point for _, point in items]).reshape(-1, 2) - hits.pose[:2]
    depths, sides = offsets @ ahead, offsets @ right
    in_view = (depths > CLOSEST) & (np.abs(sides) < depths * camera.width / camera.focal)
    farthest_first = np.argsort(-depths)
    for index in farthest_first[in_view[farthest_first]].tolist():
        sprite, depth, side = items[index][0], float(depths[index]), float(sides[index])
        metre = camera.focal / depth
        width, height = sprite.width * metre, sprite.height * metre
        left = (camera.width - 1) / 2 + side * metre - width / 2
        top = camera.horizon + camera.mount * metre - height
        first, last = (min(max(0, round(end)), camera.width) for end in (left, left + width))
        highest, lowest = (min(max(0, round(end)), camera.height) for end in (top, top + height))
        seen = hits.depth[first:last] > depth
        if highest >= lowest or not np.any(seen):
            continue
        level = int(np.clip(np.log2(ROWS / max(height, 1.0)), 0, len(sprite.masks) - 1))
        picture, mask = sprite.pictures[level], sprite.masks[level]
        scale = mask.shape[0] / height
        shift = [(first - left) * scale, (highest - top) * scale]
        to_sprite = np.column_stack([scale * np.eye(2), shift])
        size, flags = (last - first, lowest - highest), cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        edge = cv2.BORDER_REPLICATE
        drawn = cv2.warpAffine(picture, to_sprite, size, flags=flags, borderMode=edge)
        alpha = cv2.warpAffine(mask, to_sprite, size, flags=flags) * (seen / np.float32(255))
        target = image[highest:lowest, first:last]
        front = np.minimum(drawn * np.float32(brightness[index]), 255)
        target[...] = target + alpha.astype(np.float32) * (front - target)
