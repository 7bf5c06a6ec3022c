"""
Floor plans of three kinds of buildings with look-alike places.

A plan is a grid of free space, the walls around it, and a graph of ways through it.
"""

from __future__ import annotations

from dataclasses import dataclass
import itertools

from kbr_localization.errors import DatasetError
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray

CELL = 0.25
"""Metres of a grid cell; every length of a plan is a multiple of it."""
MAX_WALL = 8.0  # metres; longer walls are cut, so that each fits on a page of the atlas
SOLID = -1
CORRIDOR, DOOR, WALL = 2.0, 1.0, CELL  # metres: widths of corridors and doorways, thickness
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Walls:
    """
    Flat pieces of wall, as seen from the free side.

    `start`: (n, 2) the end on the left hand, metres. `right`: (n, 2) unit vectors along the wall
    to the right hand. `length`: (n,) metres. `region`: (n,) index of the region in front.
    """

    start: FloatArray
    right: FloatArray
    length: FloatArray
    region: Rows

    @property
    def normal(self) -> FloatArray:
        """Return the unit vectors (n, 2) from the wall into the free space."""
        return np.stack([self.right[:, 1], -self.right[:, 0]], axis=-1)


@dataclass(frozen=True)
class FloorPlan:
    """
    A building's ground floor.

    `region`: (rows, columns) index of the region that each cell belongs to, -1 where it is solid;
    cell (i, j) spans x in [j, j + 1) CELL and y in [i, i + 1) CELL. `kinds`: name of each
    region's kind. `nodes`: (k, 2) points that a robot may drive between. `edges`: (e, 2) pairs of
    nodes with free space between them. `lamps`: (l, 2) ceiling lamps.
    """

    region: NDArray[np.int32]
    kinds: tuple[str, ...]
    walls: Walls
    nodes: FloatArray
    edges: Rows
    lamps: FloatArray

    @property
    def outside(self) -> NDArray[np.bool_]:
        """Whether each wall (n,) has the world outside of the building behind it."""
        size = np.array(self.region.shape[::-1]) * CELL
        middle = self.walls.start + 0.5 * self.walls.length[:, np.newaxis] * self.walls.right
        behind = middle - 1.5 * CELL * self.walls.normal
        return np.asarray(np.any((behind < 0) | (behind > size), axis=1))

    def cells(self, points: FloatArray) -> tuple[Rows, Rows]:
        """Rows and columns of the cells that hold points (..., 2), clipped to the grid."""
        index = np.floor(np.asarray(points) / CELL).astype(np.int64)
        rows = np.clip(index[..., 1], 0, self.region.shape[0] - 1)
        return rows, np.clip(index[..., 0], 0, self.region.shape[1] - 1)

    def is_free(self, points: FloatArray) -> NDArray[np.bool_]:
        """Whether points (..., 2) lie in free space."""
        return np.asarray(self.region[self.cells(points)] != SOLID)


class PlanBuilder:
    """Draw a floor plan: rectangles of free space on solid ground, then nodes and edges."""

    def __init__(self, width: float, height: float) -> None:
        shape = (round(height / CELL) + 2, round(width / CELL) + 2)
        self._region = np.full(shape, SOLID, dtype=np.int32)
        self._kinds: list[str] = []
        self._lamps: list[tuple[float, float]] = []
        self._nodes: list[tuple[float, float]] = []
        self._edges: list[tuple[int, int]] = []

    def room(
        self, x: float, y: float, width: float, height: float, kind: str, lamp_spacing: float = 3.0
    ) -> None:
        """Free a rectangle with its lower left corner at (x, y); `kind` decides its looks."""
        self._fill(x, y, width, height, len(self._kinds))
        self._kinds.append(kind)
        columns, rows = (max(1, round(extent / lamp_spacing)) for extent in (width, height))
        xs = x + (np.arange(columns) + 0.5) * width / columns
        ys = y + (np.arange(rows) + 0.5) * height / rows
        self._lamps += [(float(a), float(b)) for a in xs for b in ys]

    def doorway(self, x: float, y: float, width: float, height: float) -> None:
        """Free a passage."""
        self._fill(x, y, width, height, len(self._kinds))
        self._kinds.append('doorway')

    def block(self, x: float, y: float, width: float, height: float) -> None:
        """Fill a rectangle again: a pillar, a shelf; lamps and furniture must not be there."""
        self._fill(x, y, width, height, SOLID)

    def node(self, x: float, y: float) -> int:
        """Add a point that a robot may drive through, once for every place; returns its index."""
        point = (x + CELL, y + CELL)
        if point not in self._nodes:
            self._nodes.append(point)
        return self._nodes.index(point)

    def edge(self, a: int, b: int) -> None:
        """Connect two nodes by a straight way."""
        self._edges.append((a, b))

    def chain(self, nodes: list[int]) -> None:
        """Connect each node with the next."""
        self._edges += itertools.pairwise(nodes)

    def build(self) -> FloorPlan:
        """Finish the plan; raises DatasetError when a way leads through a wall."""
        plan = FloorPlan(
            region=self._region,
            kinds=tuple(self._kinds),
            walls=_trace_walls(self._region),
            nodes=np.array(self._nodes, dtype=np.float64),
            edges=np.array(self._edges, dtype=np.int64),
            lamps=np.array(self._lamps, dtype=np.float64) + CELL,
        )
        fractions = np.linspace(0, 1, 200)[:, np.newaxis]
        for a, b in plan.edges:
            begin, end = plan.nodes[a], plan.nodes[b]
            if not np.all(plan.is_free(begin + fractions * (end - begin))):
                raise DatasetError(
                    f'floor plan: the way from {begin} to {end} leads through a wall'
                )
        return plan

    def _fill(self, x: float, y: float, width: float, height: float, value: int) -> None:
        left, low, columns, rows = (round(length / CELL) for length in (x, y, width, height))
        self._region[low + 1 : low + 1 + rows, left + 1 : left + 1 + columns] = value  # noqa: E203


def _trace_walls(region: NDArray[np.int32]) -> Walls:
    """Trace the boundary between free and solid cells, seen from each of the four sides."""
    pieces = []
    rows, columns = region.shape
    # corner (column, row) of the grid turned by quarter turns, back in the grid
    back = (
        lambda x, y: (x, y),
        lambda x, y: (columns - y, x),
        lambda x, y: (columns - x, rows - y),
        lambda x, y: (y, rows - x),
    )
    for quarter_turns in range(4):
        # turn the grid so that the solid cell is always the next row up
        turned = np.rot90(region, quarter_turns)
        for row in range(1, turned.shape[0]):
            front = np.where(turned[row] == SOLID, turned[row - 1], SOLID)
            for left, right in _runs(front):
                start, stop = (
                    np.array(back[quarter_turns](float(column), float(row))) * CELL
                    for column in (left, right)
                )
                length = float(np.hypot(*(stop - start)))
                pieces.append((*start, *((stop - start) / length), length, int(front[left])))
    table = np.array(pieces, dtype=np.float64)
    return Walls(table[:, 0:2], table[:, 2:4], table[:, 4], table[:, 5].astype(np.int64))


def _runs(front: NDArray[np.int32]) -> list[tuple[int, int]]:
    """Begin and end of runs of equal regions along a grid line, cut to `MAX_WALL`."""
    result: list[tuple[int, int]] = []
    borders = [0, *(np.flatnonzero(np.diff(front)) + 1).tolist(), front.size]
    for begin, end in itertools.pairwise(borders):
        if front[begin] != SOLID:
            pieces = int(np.ceil((end - begin) * CELL / MAX_WALL))
            cuts = np.round(np.linspace(begin, end, pieces + 1)).astype(int).tolist()
            result += itertools.pairwise(cuts)
    return result


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
        below, above = stops[index], stops[index + 1]
        for end in range(2):
            plan.edge(below[end][1], above[end][1])
        _office_rooms(plan, size, index * pitch + CORRIDOR, block, (below, above), rng)
    for along in stops:
        # doors that face each other share a node
        plan.chain([node for _, node in sorted(set(along))])
    return plan.build()


def _office_rooms(
    plan: PlanBuilder,
    size: float,
    low: float,
    height: float,
    stops: tuple[list[tuple[float, int]], list[tuple[float, int]]],
    rng: np.random.Generator,
) -> None:
    """Rooms between the corridors below and above; open ones get a way in from one of them."""
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
    # pillars next to the ways, where the aisles cross
    for row in range(shelves):
        if rng.random() < 0.5:
            plan.block(0.5, aisle + row * pitch + 0.25, 0.5, 0.5)
    return plan.build()


PLANS = {'office': office, 'rooms': rooms, 'hall': hall}
"""Kinds of buildings by name."""
