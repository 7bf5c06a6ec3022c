"""People who walk through the building while the robot drives."""

from __future__ import annotations

from dataclasses import dataclass

from kbr_localization.se2 import FloatArray
from kbr_localization.simulation.driving import path_of, random_walk
from kbr_localization.simulation.floor_plan import FloorPlan
from kbr_localization.simulation.sprites import Sprite, STRIDES
import numpy as np

STRIDE_M = 1.5
"""Metres of two steps."""
KEEP_RIGHT = 0.45
"""Metres by which people keep to the right of the middle of their way."""


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
