"""The ways that a robot drove while images were taken, as its odometry has them."""

from __future__ import annotations

from dataclasses import dataclass
import functools

from kbr_localization import se2
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]
TURN_M = 0.5
"""Metres of way that a radian of turning counts for: so much changes in the view."""
_SMALLEST_STEP = 0.6  # metres of way between anchors; images nearer than that say the same


@dataclass(frozen=True)
class Trajectories:
    """
    Images in order of time, run after run.

    `odometry`: (n, 3) poses in the odometry frame of each run. `piece`: (n,) numbers of the
    pieces over which the odometry is unbroken, 0, 1, … in order; `run_of_piece`: (p,) the run
    that each belongs to. `way`: (n,) metres driven and turned since the start of the piece.
    `fixed`: (p,) pieces whose poses are not odometry but known, all in one frame.
    """

    odometry: FloatArray
    piece: Indices
    run_of_piece: Indices
    way: FloatArray
    fixed: NDArray[np.bool_]

    @staticmethod
    def of(
        odometry: FloatArray,
        piece: Indices,
        run_of_piece: Indices,
        fixed: NDArray[np.bool_] | None = None,
    ) -> Trajectories:
        """Make them of odometry poses (n, 3) in pieces (n,), some of which (p,) may be fixed."""
        way = np.zeros(len(odometry))
        for number in range(len(run_of_piece)):
            members = piece == number
            way[members] = progress(odometry[members])
        known = np.zeros(len(run_of_piece), dtype=bool) if fixed is None else fixed
        return Trajectories(odometry, piece, run_of_piece, way, known)

    def __len__(self) -> int:
        """Count the images."""
        return len(self.odometry)

    @functools.cached_property
    def run(self) -> Indices:
        """Return the runs (n,) that the images are of."""
        return np.asarray(self.run_of_piece[self.piece])

    @property
    def body(self) -> Indices:
        """Return the pieces (n,), those that are fixed as the one rigid body that they are."""
        first = int(np.argmax(self.fixed)) if self.fixed.any() else 0
        return np.where(self.fixed[self.piece], first, self.piece)

    @functools.cached_property
    def step(self) -> float:
        """Metres of way between anchors: as far as images lie apart, or a little more."""
        steps = np.diff(self.way)[np.diff(self.piece) == 0]
        moved = steps[steps > 1e-3]
        return max(_SMALLEST_STEP, float(np.median(moved))) if moved.size else _SMALLEST_STEP

    def members(self, piece: int) -> Indices:
        """Images (k,) of a piece, which are consecutive."""
        return self._members[piece]

    def span(self, piece: int) -> slice:
        """Return the images of a piece."""
        first = self._members[piece][0]
        return slice(int(first), int(first) + len(self._members[piece]))

    @functools.cached_property
    def _members(self) -> list[Indices]:
        return [np.flatnonzero(self.piece == piece) for piece in range(len(self.run_of_piece))]

    def at_way(self, piece: int, way: FloatArray) -> Indices:
        """Images of a piece nearest to lengths of way (q,); -1 beyond its ends."""
        members = self.members(piece)
        known = self.way[members]
        before, after = _around(known, way)
        nearer = np.where(way - known[before] < known[after] - way, before, after)
        room = 0.5 * self.step
        inside = (way >= known[0] - room) & (way <= known[-1] + room)
        return np.where(inside, members[nearer], -1)

    def shifted(self, metres: float) -> Indices:
        """Image (n,) so much way further along the piece of each one; -1 beyond its ends."""
        found = np.full(len(self), -1)
        for number in range(len(self.run_of_piece)):
            members = self.members(number)
            found[members] = self.at_way(number, self.way[members] + metres)
        return found

    def nearest_of(self, anchors: Indices, images: Indices) -> Indices:
        """Position in `anchors` of the one nearest to each image (q,) along its piece, or -1."""
        key = self.way + 2.0 * (self.way.max(initial=0.0) + self.step) * self.piece
        known, wanted = key[anchors], key[np.maximum(images, 0)]
        before, after = _around(known, wanted)
        nearer = np.where(wanted - known[before] < known[after] - wanted, before, after)
        near = np.abs(known[nearer] - wanted) < 0.75 * self.step
        return np.where((images >= 0) & near, nearer, -1)

    def node_of(self, anchors: Indices, images: Indices) -> Indices:
        """Find the number of the anchor nearest to each image (q,), along its piece."""
        key = self.way + 2.0 * (self.way.max() + 1.0) * self.piece
        known, wanted = key[anchors], key[images]
        before, after = _around(known, wanted)
        first = np.abs(wanted - known[before]) <= np.abs(known[after] - wanted)
        return np.asarray(np.where(first, before, after))

    def anchors(self) -> Indices:
        """Images (a,) about a step apart along the way, of all pieces, increasing."""
        found = []
        for number in range(len(self.run_of_piece)):
            end = float(self.way[self.members(number)].max(initial=0.0))
            found.append(self.at_way(number, np.arange(0.0, end + 1e-9, self.step)))
        return np.unique(np.concatenate(found))


def _around(known: FloatArray, wanted: FloatArray) -> tuple[Indices, Indices]:
    """Positions (q,) of the neighbours before and after in increasing values (n,)."""
    after = np.clip(np.searchsorted(known, wanted), min(1, len(known) - 1), len(known) - 1)
    return np.maximum(after - 1, 0), after


def progress(odometry: FloatArray) -> FloatArray:
    """Metres of way, with turns counted by `TURN_M`. Shapes: (n, 3) -> (n,)."""
    steps = se2.between(odometry[:-1], odometry[1:])
    lengths = np.hypot(steps[:, 0], steps[:, 1]) + TURN_M * np.abs(steps[:, 2])
    return np.concatenate([np.zeros(min(1, len(odometry))), np.cumsum(lengths)])
