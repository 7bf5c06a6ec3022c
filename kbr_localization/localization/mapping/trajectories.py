"""
The trajectories along which images were taken, by their odometry, and where it breaks.

The odometry misses it when a robot is carried, and is reset when its driver restarts: the run is
cut there, and what loop closures do not join is no part of the map.
"""

from __future__ import annotations

from dataclasses import dataclass
import functools

from kbr_localization import se2
from kbr_localization.datasets import OdometryTrack
from kbr_localization.datasets.tracks import (
    continued,
    LONG_PAUSE,
    PAUSE_PERIODS,
    SLACK,
)
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.se2 import FloatArray, StampArray
from kbr_localization.vision import Describer
import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]
_SMALLEST_STEP = 0.6  # metres of travel between anchors; images nearer than that say the same
_BESIDE = 4  # images before and after a place where the robot may have been carried


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
        # a radian of turning changes as much in the view as half a metre
        lengths = np.hypot(steps[:, 0], steps[:, 1]) + 0.5 * np.abs(steps[:, 2])
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


@dataclass(frozen=True)
class Cut:
    """A break before an image (its number of all) and what it looks like."""

    image: int
    why: str


def odometry_leaps(track: OdometryTrack, stamps_ns: StampArray, first: int) -> list[Cut]:
    """
    Find images (of stamps (n,), numbered from `first`) before which the odometry is broken.

    It leaps (`continued`); or it pauses for long and does not continue where it was, or was reset.
    A robot that drove on unrecorded cannot be told from one that was pushed, or whose driver was
    started again: only images tell where it is then.
    """
    if len(track.poses) < 2:
        return []
    steps = se2.between(track.poses[:-1], track.poses[1:])
    seconds = np.diff(track.stamps_ns) * 1e-9
    metres = np.hypot(steps[:, 0], steps[:, 1])
    leaping = ~continued(track)
    elsewhere = np.maximum(metres, np.abs(steps[:, 2])) > SLACK
    elsewhere |= np.isin(track.stamps_ns[1:], track.resets_ns)
    # a pause is none where the odometry never comes more often
    pausing = seconds > max(LONG_PAUSE, PAUSE_PERIODS * float(np.median(seconds)))
    found = []
    for at in np.flatnonzero(leaping | (pausing & elsewhere)):
        why = f'its odometry leaps by {metres[at]:.1f} m'
        if pausing[at]:
            why = f'its odometry pauses for {seconds[at]:.0f} s and does not go on where it was'
        # images in between are of neither side: the line from one to the other was not driven
        begin = int(np.searchsorted(stamps_ns, track.stamps_ns[at], 'right'))
        end = int(np.searchsorted(stamps_ns, track.stamps_ns[at + 1]))
        for image, reason in ((begin, why), (end, 'its odometry goes on'))[: 1 + (end > begin)]:
            if 0 < image < len(stamps_ns):
                found.append(Cut(first + image, reason))
    return found


def carried_places(
    describer: Describer, descriptors: np.ndarray, odometry: FloatArray, run: Indices
) -> list[Cut]:
    """
    Find images before which the view changes while the odometry stands still.

    `descriptors`: (n, d), `odometry`: (n, 3) poses in metres and radians, `run`: (n,). The last
    images before and the first after have to be as unlike each other as images of different places
    are.
    """
    steps = se2.between(odometry[:-1], odometry[1:])
    still = np.all(np.abs(steps) < 0.05, axis=1) & (np.diff(run) == 0)
    before_it, after_it = np.append(-1, run[:-1]), np.append(run[1:], -1)
    candidates = [
        image
        for start, end in _spans(still)
        for image in range(start + 1, end + 1)
        # there are images of its run to be compared: one before it stood, two from the change on
        if before_it[start] == run[start] == after_it[image]
    ]
    if not candidates:
        return []
    limit = _unrelated(describer, descriptors)
    found = []
    for image in candidates:
        near = np.arange(max(image - _BESIDE, 0), min(image + _BESIDE, len(run)))
        near = near[run[near] == run[image]]
        before, after = descriptors[near[near < image]], descriptors[near[near >= image]]
        values = describer.cross_gram(before, after)
        if values[-2:, :2].mean() < limit and values.mean() < limit:
            found.append(Cut(image, 'its view changes while the odometry stands still'))
    return found


def _spans(still: np.ndarray) -> list[tuple[int, int]]:
    """First and last image of each stretch in which the robot stands."""
    padded = np.concatenate([[False], still, [False]]).astype(np.int8)
    change = np.diff(padded)
    return list(zip(np.flatnonzero(change == 1), np.flatnonzero(change == -1), strict=True))


def _unrelated(describer: Describer, descriptors: np.ndarray) -> float:
    """Kernel value that nine of ten pairs of images far apart are below."""
    chosen = np.random.default_rng(0).integers(len(descriptors), size=(2, 20))
    values = describer.cross_gram(descriptors[chosen[0]], descriptors[chosen[1]])
    apart = np.abs(chosen[0][:, np.newaxis] - chosen[1]) > 0.1 * len(descriptors)
    return float(np.quantile(values[apart], 0.9)) if apart.any() else 0.0


def segment_numbers(run: Indices, cuts: list[int]) -> tuple[Indices, Indices]:
    """Segments (n,) of images of runs (n,), cut before some, and the run (p,) of each segment."""
    begins = np.concatenate([[True], np.diff(run) != 0])
    begins[cuts] = True
    return np.cumsum(begins) - 1, np.asarray(run[begins])


def map_segments(kernel_map: KernelMap) -> tuple[Indices, Indices]:
    """Segments (n,) of the images of a map, driven without a break, and the run (p,) of each."""
    apart = np.hypot(*np.diff(kernel_map.poses[:, :2], axis=0).T)
    breaks = (np.diff(kernel_map.run_index) != 0) | (apart > 3.0)
    breaks |= np.diff(kernel_map.stamps_ns) < 0
    segment = np.concatenate([[0], np.cumsum(breaks)]).astype(np.intp)
    first = np.searchsorted(segment, np.arange(segment[-1] + 1))
    return segment, kernel_map.run_index[first].astype(np.intp)


def beside_map(
    kernel_map: KernelMap, poses: FloatArray, odometry: FloatArray, segment: Indices, run: Indices
) -> Trajectories:
    """
    Return trajectories of a map's images at fixed poses (n, 3), and of others behind them.

    `odometry`: (m, 3) of the others, `segment`: (m,) and `run`: (p,), numbered from 0.
    """
    fixed, runs = map_segments(kernel_map)
    return Trajectories(
        np.concatenate([poses, odometry]),
        np.concatenate([fixed, segment + len(runs)]),
        np.concatenate([runs, run + len(kernel_map.run_names)]),
        np.arange(len(runs) + len(run)) < len(runs),
    )
