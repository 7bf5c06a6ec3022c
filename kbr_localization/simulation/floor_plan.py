"""Floor plans with look-alike places: free cells, walls, and a graph of drivable paths."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
import itertools

from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray

CELL = 0.25
"""Metres of a grid cell; every length of a plan is a multiple of it."""
MAX_WALL = 8.0  # metres; longer walls are cut so that each fits on a page of the atlas
SOLID = -1
CORRIDOR, DOOR, WALL = 2.0, 1.0, CELL  # metres: width of corridors and doorways, wall thickness
Rows = NDArray[np.int64]
Point = tuple[float, float]
Rectangle = tuple[float, float, float, float]
"""x and y of the lower left corner, width, height: metres, multiples of `CELL`."""
Room = tuple[float, float, float, float, str, float]
"""A rectangle, the kind that selects its textures, and metres between lamps (0: no lamps)."""


@dataclass(frozen=True)
class Walls:
    """
    Flat wall segments, left and right as seen from free space.

    `start`: (n, 2) left end, metres. `right`: (n, 2) unit vectors from the left to the right end.
    `length`: (n,) metres. `region`: (n,) index of the region in front of the wall.
    """

    start: FloatArray
    right: FloatArray
    length: FloatArray
    region: Rows

    @property
    def normal(self) -> FloatArray:
        """Return unit vectors (n, 2) from the walls into free space."""
        return np.stack([self.right[:, 1], -self.right[:, 0]], axis=-1)


@dataclass(frozen=True)
class FloorPlan:
    """
    The plan of one floor.

    `region`: (rows, columns) index of the region of each cell, -1 where it is solid; cell (i, j)
    spans x in [j, j + 1) CELL and y in [i, i + 1) CELL. `kinds`: kind of each region.
    `nodes`: (k, 2) points to drive between, metres. `edges`: (e, 2) indices of two nodes with a
    free straight line between them. `lamps`: (l, 2) ceiling lamps, metres.
    """

    region: NDArray[np.int32]
    kinds: tuple[str, ...]
    walls: Walls
    nodes: FloatArray
    edges: Rows
    lamps: FloatArray

    def cells(self, points: FloatArray) -> tuple[Rows, Rows]:
        """Return rows and columns of the cells at points (..., 2), clipped to the grid."""
        index = np.floor(np.asarray(points) / CELL).astype(np.int64)
        rows = np.clip(index[..., 1], 0, self.region.shape[0] - 1)
        return rows, np.clip(index[..., 0], 0, self.region.shape[1] - 1)

    def is_free(self, points: FloatArray) -> NDArray[np.bool_]:
        """Return whether points (..., 2) lie in free space."""
        return np.asarray(self.region[self.cells(points)] != SOLID)

    @cached_property
    def neighbours(self) -> list[list[int]]:
        neighbours: list[list[int]] = [[] for _ in self.nodes]
        for a, b in self.edges.tolist():
            neighbours[a].append(b)
            neighbours[b].append(a)
        return neighbours

    def random_walk(self, length: float, rng: np.random.Generator) -> list[int]:
        """Return nodes of a path of at least `length` metres that turns back only at dead ends."""
        nodes, covered = [int(rng.integers(len(self.nodes)))], 0.0
        while covered < length:
            near = self.neighbours[nodes[-1]]
            nodes.append(int(rng.choice([n for n in near if n not in nodes[-2:-1]] or near)))
            covered += float(np.hypot(*(self.nodes[nodes[-1]] - self.nodes[nodes[-2]])))
        return nodes

    def tour(self, rng: np.random.Generator) -> list[int]:
        """Return nodes of a closed path with each edge once in each direction (Hierholzer)."""
        untaken = [rng.permutation(near).tolist() for near in self.neighbours]
        trail, path = [int(rng.integers(len(self.nodes)))], []
        while trail:
            onward = untaken[trail[-1]]
            if not onward:
                path.append(trail.pop())
                continue
            chosen = next((node for node in onward if node not in trail[-2:-1]), onward[0])
            onward.remove(chosen)
            trail.append(chosen)
        return path[::-1]

    def path(self, nodes: list[int], offset: float = 0.0) -> tuple[FloatArray, FloatArray]:
        """Return corners (k, 2) of a path `offset` metres right of nodes, and distances (k,)."""
        corners = self.nodes[nodes]
        steps = np.diff(corners, axis=0)
        right = np.stack([steps[:, 1], -steps[:, 0]], axis=1) / np.hypot(*steps.T)[:, np.newaxis]
        ends = [corners[:-1] + offset * right, corners[1:] + offset * right]
        points = np.stack(ends, axis=1).reshape(-1, 2)
        metres = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(points, axis=0).T))])
        return points, metres


def draw_plan(
    width: float,
    height: float,
    rooms: Sequence[Room],
    edges: Sequence[tuple[Point, Point]],
    nodes: Sequence[Point] = (),
    blocks: Sequence[Rectangle] = (),
) -> FloorPlan:
    """Draw rooms in metres on solid ground, then solid `blocks`; `nodes` get the first indices."""
    region = np.full((round(height / CELL) + 2, round(width / CELL) + 2), SOLID, dtype=np.int32)
    lamps = []
    for index, (*rectangle, _, lamp_spacing) in enumerate(rooms):
        _fill(region, rectangle, index)
        x, y, wide, high = rectangle
        if lamp_spacing:
            columns, rows = (max(1, round(extent / lamp_spacing)) for extent in (wide, high))
            xs = x + (np.arange(columns) + 0.5) * wide / columns
            ys = y + (np.arange(rows) + 0.5) * high / rows
            lamps += [(a, b) for a in xs for b in ys]
    for block in blocks:
        _fill(region, block, SOLID)
    points = list(dict.fromkeys([*nodes, *itertools.chain(*edges)]))
    return FloorPlan(
        region=region,
        kinds=tuple(kind for *_, kind, _ in rooms),
        walls=_trace_walls(region),
        nodes=np.array(points) + CELL,
        edges=np.array([[points.index(end) for end in edge] for edge in edges]),
        lamps=np.array(lamps) + CELL,
    )


def _fill(region: NDArray[np.int32], rectangle: Sequence[float], value: int) -> None:
    left, low, columns, rows = (round(length / CELL) for length in rectangle)
    region[low + 1 : low + 1 + rows, left + 1 : left + 1 + columns] = value  # noqa: E203


def _trace_walls(region: NDArray[np.int32]) -> Walls:
    """Return the boundary between free and solid cells, traced from each of the four sides."""
    walls = []
    rows, columns = region.shape
    # rotate the grid so that the solid cell is always one row up, and rotate the ends, complex
    # numbers column + row i, back
    for turns, origin in enumerate((0, columns, complex(columns, rows), complex(0, rows))):
        turned = np.rot90(region, turns)
        for row in range(1, len(turned)):
            front = np.where(turned[row] == SOLID, turned[row - 1], SOLID)
            for ends in _segments(front):
                start, stop = (origin + 1j**turns * complex(column, row) for column in ends)
                length = abs(stop - start)
                right = (stop - start) / length
                where = (start.real * CELL, start.imag * CELL, right.real, right.imag)
                walls.append((*where, length * CELL, int(front[ends[0]])))
    table = np.array(walls, dtype=np.float64)
    return Walls(table[:, 0:2], table[:, 2:4], table[:, 4], table[:, 5].astype(np.int64))


def _segments(front: NDArray[np.int32]) -> list[tuple[int, int]]:
    """Return begin and end of parts of a grid line with one region, up to `MAX_WALL` long."""
    result: list[tuple[int, int]] = []
    borders = [0, *(np.flatnonzero(np.diff(front)) + 1).tolist(), front.size]
    for begin, end in itertools.pairwise(borders):
        if front[begin] != SOLID:
            pieces = int(np.ceil((end - begin) * CELL / MAX_WALL))
            cuts = np.round(np.linspace(begin, end, pieces + 1)).astype(int).tolist()
            result += itertools.pairwise(cuts)
    return result


def office(size: float, rng: np.random.Generator) -> FloorPlan:
    """Draw three equal corridors of `size` metres, joined at both ends, with rooms between."""
    corridors, depth = 3, 4.0
    pitch = CORRIDOR + depth
    lows = [index * pitch for index in range(corridors)]
    rooms: list[Room] = [(0, low, size, CORRIDOR, 'corridor', 3.0) for low in lows]
    stops = [
        [(x, low + CORRIDOR / 2) for x in (CORRIDOR / 2, size - CORRIDOR / 2)] for low in lows
    ]
    corners = [*itertools.chain(*stops)]
    for x in (0.0, size - CORRIDOR):
        rooms.append((x, CORRIDOR, CORRIDOR, lows[-1] - CORRIDOR, 'crossing', 3.0))
    count = max(1, int((size - 2 * CORRIDOR - WALL) // 4.0))
    width = np.floor((size - 2 * CORRIDOR - WALL) / count / CELL) * CELL
    edges: list[tuple[Point, Point]] = []
    for index, sides in enumerate(itertools.pairwise(stops)):
        low = lows[index] + CORRIDOR
        edges += zip(sides[0][:2], sides[1][:2], strict=True)
        for column in range(count):
            if rng.random() > 0.67:
                continue
            x = CORRIDOR + WALL + column * width
            rooms.append((x, low + WALL, width - WALL, depth - 2 * WALL, 'room', 2.5))
            side = int(rng.integers(2))
            door_x = x + CELL * int(rng.integers(1, int((width - WALL - DOOR) / CELL)))
            rooms.append((door_x, (low, low + depth - WALL)[side], DOOR, WALL, 'doorway', 0.0))
            middle, beyond = door_x + DOOR / 2, (-CORRIDOR / 2, depth + CORRIDOR / 2)[side]
            outside = (middle, low + beyond)
            edges.append(((middle, low + depth / 2), outside))
            sides[side].append(outside)
    for along in stops:
        # doors that face each other share a node
        edges += itertools.pairwise(sorted(set(along)))
    return draw_plan(size, lows[-1] + CORRIDOR, rooms, edges, corners)
