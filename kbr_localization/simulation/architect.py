"""Three kinds of buildings in which places look alike: an office, a row of rooms, a hall."""

from __future__ import annotations

from kbr_localization.simulation.floor_plan import CELL, FloorPlan, PlanBuilder
import numpy as np

CORRIDOR, DOOR, WALL = 2.0, 1.0, CELL
"""Metres: width of a corridor and of a doorway, thickness of a wall."""


def office(size: float, rng: np.random.Generator) -> FloorPlan:
    """
    Draw parallel corridors of the same looks, joined at both ends, with rooms between them.

    `size` is the length of a corridor in metres; two of three rooms stand open.
    """
    corridors, block = 3, 4.0
    pitch = CORRIDOR + block
    plan = PlanBuilder(size, CORRIDOR + (corridors - 1) * pitch)
    for index in range(corridors):
        plan.room(0, index * pitch, size, CORRIDOR, 'corridor')
    height = (corridors - 1) * pitch - CORRIDOR
    for x in (0.0, size - CORRIDOR):
        plan.room(x, CORRIDOR, CORRIDOR, height, 'crossing')
    stops: list[list[tuple[float, int]]] = []
    for index in range(corridors):
        y = index * pitch + CORRIDOR / 2
        ends = (CORRIDOR / 2, size - CORRIDOR / 2)
        stops.append([(x, plan.node(x, y)) for x in ends])
    for index in range(corridors - 1):
        _join_by_crossings(plan, stops[index], stops[index + 1])
        # rooms open alternately to the corridor below and above
        low = index * pitch + CORRIDOR
        _office_rooms(plan, (size, low, block), stops[slice(index, index + 2)], rng)
    for along in stops:
        # doors that face each other share a node
        plan.chain([node for _, node in sorted(set(along))])
    return plan.build()


def _join_by_crossings(
    plan: PlanBuilder, below: list[tuple[float, int]], above: list[tuple[float, int]]
) -> None:
    for (_, a), (_, b) in zip(below[:2], above[:2], strict=True):
        plan.edge(a, b)


def _office_rooms(
    plan: PlanBuilder,
    block: tuple[float, float, float],
    stops: list[list[tuple[float, int]]],
    rng: np.random.Generator,
) -> None:
    """Rooms of one block of (corridor length, lower y, height); open ones get a way in."""
    size, low, height = block
    count = max(1, int((size - 2 * CORRIDOR - WALL) // 4.0))
    width = np.floor((size - 2 * CORRIDOR - WALL) / count / CELL) * CELL
    for index in range(count):
        if rng.random() > 0.67:
            continue
        x = CORRIDOR + WALL + index * width
        plan.room(x, low + WALL, width - WALL, height - 2 * WALL, 'room', 2.5)
        side = int(rng.integers(2))
        door_x = x + CELL * int(rng.integers(1, int((width - WALL - DOOR) / CELL)))
        plan.doorway(door_x, low if side == 0 else low + height - WALL, DOOR, WALL)
        middle = door_x + DOOR / 2
        inside = plan.node(middle, low + height / 2)
        outside = plan.node(middle, low + (-CORRIDOR / 2 if side == 0 else height + CORRIDOR / 2))
        plan.edge(inside, outside)
        stops[side].append((middle, outside))


def rooms(size: float, rng: np.random.Generator) -> FloorPlan:
    """
    Draw a grid of equal rooms with doorways between neighbours, `size` metres wide.

    Every doorway of the bottom row and of the columns is there, others by chance.
    """
    columns, rows = max(2, int(size // 5.0)), 3
    width, height = 5.0, 4.5
    plan = PlanBuilder(columns * width - WALL, rows * height - WALL)
    centres: list[list[int]] = [[] for _ in range(rows)]
    for row, column in np.ndindex(rows, columns):
        x, y = column * width, row * height
        plan.room(x, y, width - WALL, height - WALL, 'room', 2.5)
        centres[row].append(plan.node(x + width / 2, y + height / 2))
    for row, column in np.ndindex(rows, columns):
        x, y = column * width, row * height
        if row + 1 < rows:
            plan.doorway(x + width / 2 - DOOR / 2, y + height - WALL, DOOR, WALL)
            plan.edge(centres[row][column], centres[row + 1][column])
        if column + 1 < columns and (row == 0 or rng.random() < 0.6):
            plan.doorway(x + width - WALL, y + height / 2 - DOOR / 2, WALL, DOOR)
            plan.edge(centres[row][column], centres[row][column + 1])
    return plan.build()


def hall(size: float, rng: np.random.Generator) -> FloorPlan:
    """
    Draw one wide space with equal rows of shelves, as in a store, and a pillar here and there.

    `size` is the length of the hall in metres; its aisles are 2.5 m wide.
    """
    shelves, depth, aisle = 4, 1.0, 2.5
    pitch = depth + aisle
    margin = 3.0
    height = shelves * pitch + aisle
    plan = PlanBuilder(size, height)
    plan.room(0, 0, size, height, 'hall', 4.0)
    length = np.floor((size - 3 * margin) / 2 / CELL) * CELL
    starts = (margin, size - margin - length)
    for index in range(shelves):
        for x in starts:
            plan.block(x, aisle + index * pitch, length, depth)
    xs = (margin / 2, size / 2, size - margin / 2)
    grid = np.array(
        [[plan.node(x, aisle / 2 + row * pitch) for x in xs] for row in range(shelves + 1)]
    )
    for line in [*grid, *grid.T]:
        plan.chain([int(node) for node in line])
    # a pillar beside the ways, where the aisles cross
    for row in range(shelves):
        if rng.random() < 0.5:
            plan.block(0.5, aisle + row * pitch + 0.25, 0.5, 0.5)
    return plan.build()


PLANS = {'office': office, 'rooms': rooms, 'hall': hall}
"""Kinds of buildings by name."""
