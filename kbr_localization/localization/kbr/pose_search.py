"""Which map poses points can reach, by place and by heading."""

from __future__ import annotations

import functools

from kbr_localization.localization.kbr.pose_grid import PoseGrid
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]
SECTORS = 72
"""Of the circle, in which headings are told apart."""


class PoseSearch:
    """
    Map poses (n, 3) within `metres` and a `chord` of the unit circle of headings.

    A few more are found: those whose cell or sector reaches into the distance. `grid`: the places
    alone; `sectors` (n,): the headings.
    """

    def __init__(self, poses: FloatArray, metres: float, chord: float) -> None:
        self._poses = poses
        self.grid = PoseGrid(poses, metres)
        self.sectors = sector(poses[:, 2]).astype(np.uint8)
        self._seen = _sectors_within(chord)

    def near(self, points: FloatArray) -> Indices:
        """Find the poses (their increasing indices) in reach of any of the points (m, 3)."""
        near = self.grid.near(points)
        return near[self._seen_from(points)[self.sectors[near]]]

    def about(self, points: FloatArray) -> Indices:
        """
        Find the poses in reach of the rectangle about all points (m, 3).

        On a small map that is faster than to ask which of them are in reach of any point.
        """
        inside = self._seen_from(points)[self.sectors]
        for places, at in zip(self._places, points[:, :2].T, strict=True):
            inside &= places >= at.min() - self.grid.reach
            inside &= places <= at.max() + self.grid.reach
        return np.flatnonzero(inside)

    def facing(self, points: FloatArray) -> Indices:
        """Find the poses, wherever they are, whose headings are in reach of any of the points."""
        return np.flatnonzero(self._seen_from(points)[self.sectors])

    @functools.cached_property
    def _places(self) -> FloatArray:
        """Return the positions (2, n), one coordinate after the other."""
        return np.ascontiguousarray(self._poses[:, :2].T)

    def _seen_from(self, points: FloatArray) -> NDArray[np.bool_]:
        """Which sectors the headings of any of the points (m, 3) reach."""
        facing = np.bincount(sector(points[:, 2]), minlength=SECTORS) > 0
        return np.asarray(self._seen[facing].any(axis=0))


def to_nearest(pose: FloatArray, others: FloatArray) -> float:
    """Metres from a pose (3,) to the nearest of others (n, 3) elsewhere; infinite without one."""
    distances = np.hypot(*(others - pose)[:, :2].T)
    return float(distances.min(where=distances > 0.0, initial=np.inf))


def thinned(active: Indices, size: int) -> Indices:
    """At most `size` of the poses, indices (m,), evenly in the order of the map."""
    if len(active) <= size:
        return active
    return active[np.linspace(0, len(active) - 1, size).astype(np.intp)]


def sector(headings: FloatArray) -> Indices:
    """Return the numbers of the sectors of headings in radians, of any shape."""
    return np.floor(headings * (SECTORS / (2.0 * np.pi))).astype(np.intp) % SECTORS


def _sectors_within(chord: float) -> NDArray[np.bool_]:
    """Which sectors lie within a chord of the unit circle from each: (sectors, sectors)."""
    width = 2.0 * np.arcsin(min(1.0, 0.5 * chord)) * SECTORS / (2.0 * np.pi)
    apart = np.abs(np.subtract.outer(np.arange(SECTORS), np.arange(SECTORS)))
    return np.asarray(np.minimum(apart, SECTORS - apart) <= width + 1)
