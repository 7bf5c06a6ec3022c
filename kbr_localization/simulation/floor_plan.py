"""Floor plans on a grid: free space, the walls around it, and a graph of ways through it."""

from __future__ import annotations

from dataclasses import dataclass
import itertools

from kbr_localization.errors import DatasetError
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray

CELL = 0.25
"""Metres of a grid cell; every length of a plan is a multiple of it."""
MAX_WALL = 8.0
"""Metres; longer walls are cut, so that each fits on a page of the texture atlas."""
SOLID = -1

RegionGrid = NDArray[np.int32]


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
    region: NDArray[np.int64]

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

    region: RegionGrid
    kinds: tuple[str, ...]
    walls: Walls
    nodes: FloatArray
    edges: NDArray[np.int64]
    lamps: FloatArray

    @property
    def size(self) -> FloatArray:
        """Width and height (2,) in metres."""
        return np.array(self.region.shape[::-1]) * CELL

    @property
    def outside(self) -> NDArray[np.bool_]:
        """Whether each wall (n,) has the world outside of the building behind it."""
        middle = self.walls.start + 0.5 * self.walls.length[:, np.newaxis] * self.walls.right
        behind = middle - 1.5 * CELL * self.walls.normal
        outside: NDArray[np.bool_] = np.any((behind < 0) | (behind > self.size), axis=1)
        return outside

    def cells(self, points: FloatArray) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows and columns of the cells that hold points (..., 2), clipped to the grid."""
        index = np.floor(np.asarray(points) / CELL).astype(np.int64)
        rows = np.clip(index[..., 1], 0, self.region.shape[0] - 1)
        return rows, np.clip(index[..., 0], 0, self.region.shape[1] - 1)

    def is_free(self, points: FloatArray) -> NDArray[np.bool_]:
        """Whether points (..., 2) lie in free space."""
        free: NDArray[np.bool_] = self.region[self.cells(points)] != SOLID
        return free


class PlanBuilder:
    """Draw a floor plan: rectangles of free space on solid ground, then nodes and edges."""

    def __init__(self, width: float, height: float) -> None:
        shape = (_cells(height) + 2, _cells(width) + 2)
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
        self._lamps.extend(_lamp_grid(x, y, width, height, lamp_spacing))

    def doorway(self, x: float, y: float, width: float, height: float) -> None:
        """Free a passage, which belongs to the region around its middle or to a new one."""
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
        for a, b in itertools.pairwise(nodes):
            self.edge(a, b)

    def build(self) -> FloorPlan:
        """Finish the plan; raises DatasetError when a way leads through a wall."""
        plan = FloorPlan(
            region=self._region,
            kinds=tuple(self._kinds),
            walls=_walls_of(self._region),
            nodes=np.array(self._nodes, dtype=np.float64),
            edges=np.array(self._edges, dtype=np.int64),
            lamps=np.array(self._lamps, dtype=np.float64) + CELL,
        )
        _check_ways(plan)
        return plan

    def _fill(self, x: float, y: float, width: float, height: float, value: int) -> None:
        left, low = _cells(x) + 1, _cells(y) + 1
        self._region[slice(low, low + _cells(height)), slice(left, left + _cells(width))] = value


def _cells(length: float) -> int:
    return round(length / CELL)


def _lamp_grid(
    x: float, y: float, width: float, height: float, spacing: float
) -> list[tuple[float, float]]:
    columns, rows = (max(1, round(extent / spacing)) for extent in (width, height))
    xs = x + (np.arange(columns) + 0.5) * width / columns
    ys = y + (np.arange(rows) + 0.5) * height / rows
    return [(float(a), float(b)) for a in xs for b in ys]


def _walls_of(region: RegionGrid) -> Walls:
    """Trace the boundary between free and solid cells, seen from each of the four sides."""
    pieces: list[tuple[float, float, float, float, float, int]] = []
    for quarter_turns in range(4):
        # turn the grid so that the solid cell is always the next row up
        turned = np.rot90(region, quarter_turns)
        for row in range(turned.shape[0] - 1):
            front = np.where(turned[row + 1] == SOLID, turned[row], SOLID)
            pieces.extend(_runs(front, row + 1, quarter_turns, region.shape))
    table = np.array(pieces, dtype=np.float64)
    return Walls(table[:, 0:2], table[:, 2:4], table[:, 4], table[:, 5].astype(np.int64))


def _runs(
    front: NDArray[np.int32], line: int, quarter_turns: int, shape: tuple[int, ...]
) -> list[tuple[float, float, float, float, float, int]]:
    """Find runs of equal regions along one grid line of the turned grid, as walls of the plan."""
    changes = np.flatnonzero(np.diff(front)) + 1
    borders = np.concatenate([[0], changes, [front.size]])
    result = []
    for begin, end in itertools.pairwise(borders):
        if front[begin] == SOLID:
            continue
        pieces = int(np.ceil((end - begin) * CELL / MAX_WALL))
        cuts = np.round(np.linspace(begin, end, pieces + 1)).astype(int)
        for left, right in itertools.pairwise(cuts):
            start, stop = (
                _turn_back(point, line, quarter_turns, shape) for point in (left, right)
            )
            length = float(np.hypot(*(stop - start)))
            result.append((*start, *((stop - start) / length), length, int(front[begin])))
    return result


def _turn_back(
    column: int, row: int, quarter_turns: int, shape: tuple[int, ...]
) -> NDArray[np.float64]:
    """Metres in the plan of a corner (column, row) of the grid turned by np.rot90."""
    rows, columns = shape
    x, y = float(column), float(row)
    if quarter_turns == 1:
        x, y = columns - y, x
    elif quarter_turns == 2:
        x, y = columns - x, rows - y
    elif quarter_turns == 3:
        x, y = y, rows - x
    return np.array([x, y]) * CELL


def _check_ways(plan: FloorPlan) -> None:
    fractions = np.linspace(0, 1, 200)[:, np.newaxis]
    for a, b in plan.edges:
        way = plan.nodes[a] + fractions * (plan.nodes[b] - plan.nodes[a])
        if not np.all(plan.is_free(way)):
            raise DatasetError(
                f'floor plan: the way from {plan.nodes[a]} to {plan.nodes[b]} leads through a wall'
            )
