"""The trajectories along which images were taken, by their odometry."""

from __future__ import annotations

from dataclasses import dataclass
import functools

from kbr_localization import se2
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]
TURN_M = 0.5
"""Metres of travel that a radian of turning counts for: so much changes in the view."""
_SMALLEST_STEP = 0.6  # metres of travel between anchors; images nearer than that say the same


@dataclass(frozen=True)
class Trajectories:
    """
    Images in order of time, run after run.

    `odometry`: (n, 3) poses in the odometry frame of each run. `segment`: (n,) numbers 0, 1, … of
    the segments over which the odometry is unbroken; `run_of_segment`: (p,). `fixed`: (p,)
    segments whose poses are not odometry but known, all in one frame.
    """

    odometry: FloatArray
    segment: Indices
    run_of_segment: Indices
    fixed: NDArray[np.bool_]

    def __len__(self) -> int:
        """Count the images."""
        return len(self.odometry)

    @functools.cached_property
    def travel(self) -> FloatArray:
        """Metres (n,) driven and turned since the start of the segment."""
        steps = se2.between(self.odometry[:-1], self.odometry[1:])
        lengths = np.hypot(steps[:, 0], steps[:, 1]) + TURN_M * np.abs(steps[:, 2])
        total = np.concatenate([np.zeros(min(1, len(self))), np.cumsum(lengths)])
        first = np.searchsorted(self.segment, self.segment)
        return np.asarray(total - total[first])

    @property
    def run(self) -> Indices:
        """Run (n,) of each image."""
        return np.asarray(self.run_of_segment[self.segment])

    @property
    def known(self) -> NDArray[np.bool_]:
        """Whether the pose of each image (n,) is known."""
        return np.asarray(self.fixed[self.segment])

    @property
    def body(self) -> Indices:
        """Segment (n,) of each image, where fixed ones count as one: they are a rigid body."""
        first = int(np.argmax(self.fixed)) if self.fixed.any() else 0
        return np.where(self.known, first, self.segment)

    @functools.cached_property
    def step(self) -> float:
        """Metres of travel between anchors: as far as images lie apart, or a little more."""
        steps = np.diff(self.travel)[np.diff(self.segment) == 0]
        moved = steps[steps > 1e-3]
        return max(_SMALLEST_STEP, float(np.median(moved))) if moved.size else _SMALLEST_STEP

    def span(self, segment: int) -> slice:
        """Return the images of a segment, which are consecutive."""
        return slice(*np.searchsorted(self.segment, [segment, segment + 1]).tolist())

    def at_travel(self, segment: int, travel: FloatArray) -> Indices:
        """Images of a segment nearest to values of travel (q,); -1 beyond its ends."""
        span = self.span(segment)
        known = self.travel[span]
        nearest = _nearest(known, travel)
        room = 0.5 * self.step
        inside = (travel >= known[0] - room) & (travel <= known[-1] + room)
        return np.where(inside, span.start + nearest, -1)

    def shifted(self, metres: float) -> Indices:
        """Image (n,) so much travel further along the segment of each one; -1 beyond its ends."""
        spans = [(number, self.span(number)) for number in range(len(self.run_of_segment))]
        return np.concatenate([self.at_travel(n, self.travel[s] + metres) for n, s in spans])

    def node_of(self, anchors: Indices, images: Indices) -> Indices:
        """Position in `anchors` of the one nearest to each image (q,) along its segment."""
        key = self.travel + 2.0 * (self.travel.max() + 1.0) * self.segment
        return _nearest(key[anchors], key[images])

    def nearest_of(self, anchors: Indices, images: Indices) -> Indices:
        """Return the same, but -1 where that is too far and for images that are -1."""
        node = self.node_of(anchors, np.maximum(images, 0))
        near = self.segment[anchors[node]] == self.segment[images]
        near &= np.abs(self.travel[anchors[node]] - self.travel[images]) < 0.75 * self.step
        return np.where((images >= 0) & near, node, -1)

    def anchors(self) -> Indices:
        """Images (a,) about a step of travel apart, of all segments that are not fixed."""
        found = [np.zeros(0, dtype=np.intp)]
        for number in np.flatnonzero(~self.fixed).tolist():
            end = float(self.travel[self.span(number)].max(initial=0.0))
            found.append(self.at_travel(number, np.arange(0.0, end + 1e-9, self.step)))
        return np.unique(np.concatenate(found))


def _nearest(known: FloatArray, wanted: FloatArray) -> Indices:
    """Positions (q,) of the nearest of increasing values (n,)."""
    after = np.clip(np.searchsorted(known, wanted), min(1, len(known) - 1), len(known) - 1)
    before = np.maximum(after - 1, 0)
    return np.where(wanted - known[before] <= known[after] - wanted, before, after)
