"""
The trajectories along which images were taken, by their odometry, and where it breaks.

The odometry misses it when a robot is carried, and is reset when its driver restarts: the run is
cut there, and what loop closures do not join is no part of the map.
"""

from __future__ import annotations

from dataclasses import dataclass
import functools
from typing import Any

from kbr_localization import se2
from kbr_localization.datasets import OdometryTrack
from kbr_localization.datasets.tracks import (
    LONG_PAUSE,
    PAUSE_PERIODS,
    plausible_steps,
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
        return len(self.odometry)

    @functools.cached_property
    def travel(self) -> FloatArray:
        """Metres (n,) driven and turned since the start of the segment."""
        metres, turns = se2.magnitude(se2.steps(self.odometry))
        # a radian of turning changes as much in the view as half a metre
        total = np.append(np.zeros(min(1, len(self))), np.cumsum(metres + 0.5 * turns))
        first = np.searchsorted(self.segment, self.segment)
        return np.asarray(total - total[first])

    @property
    def run(self) -> Indices:
        """Run (n,) of each image."""
        return np.asarray(self.run_of_segment[self.segment])

    @property
    def fixed_images(self) -> NDArray[np.bool_]:
        """Whether the pose of each image (n,) is known."""
        return np.asarray(self.fixed[self.segment])

    @property
    def body(self) -> Indices:
        """Segment (n,) of each image, where fixed ones count as one: they are a rigid body."""
        first = int(np.argmax(self.fixed)) if self.fixed.any() else 0
        return np.where(self.fixed_images, first, self.segment)

    @functools.cached_property
    def step(self) -> float:
        """Metres of travel between anchors: as far as images lie apart, or a little more."""
        steps = np.diff(self.travel)[np.diff(self.segment) == 0]
        moved = steps[steps > 1e-3]
        return max(_SMALLEST_STEP, float(np.median(moved))) if moved.size else _SMALLEST_STEP

    def span(self, segment: int) -> slice:
        """Return the images of a segment, which are consecutive."""
        return slice(*np.searchsorted(self.segment, [segment, segment + 1]).tolist())

    def images_at(self, segment: int, travel: FloatArray) -> Indices:
        """Images of a segment nearest to values of travel (q,); at its ends for those beyond."""
        span = self.span(segment)
        images = np.arange(span.start, span.stop)
        return np.rint(np.interp(travel, self.travel[span], images)).astype(np.intp)

    def subset(self, images: Indices) -> Trajectories:
        """Return the trajectories of all images (m,) of some of the segments."""
        segments, segment = np.unique(self.segment[images], return_inverse=True)
        rest = self.run_of_segment[segments], self.fixed[segments]
        return Trajectories(self.odometry[images], segment, *rest)

    def anchors(self, shift: float = 0.0) -> Indices:
        """Images (a,) nearest to each step of travel along segments, `shift` metres further."""
        found = []
        for number in range(len(self.run_of_segment)):
            end = float(self.travel[self.span(number)][-1])
            found.append(self.images_at(number, np.arange(0.0, end + 1e-9, self.step) + shift))
        return np.concatenate(found)


def odometry_breaks(
    track: OdometryTrack, stamps_ns: StampArray, first: int
) -> list[tuple[int, str]]:
    """
    Find images, numbered from `first`, before which the odometry is broken, and say why.

    It jumps (`plausible_steps`), or it pauses for long and continues elsewhere or after a reset.
    A robot that drove on unrecorded cannot be told from one that was pushed, or whose driver was
    started again: only images tell where it is then.
    """
    if len(track.poses) < 2:
        return []
    metres, turns = se2.magnitude(se2.steps(track.poses))
    seconds = np.diff(track.stamps_ns) * 1e-9
    leaping = ~plausible_steps(track)
    elsewhere = np.maximum(metres, turns) > SLACK
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
                found.append((first + image, reason))
    return found


def carried_images(
    describer: Describer, descriptors: np.ndarray, odometry: FloatArray, run: Indices
) -> list[tuple[int, str]]:
    """
    Find images before which the view changes while the odometry stands still.

    `descriptors`: (n, d), `odometry`: (n, 3) poses in metres and radians, `run`: (n,). The last
    images before and the first after have to be as unlike each other as images of different places
    are.
    """
    steps, n = se2.steps(odometry), len(run)
    still = np.append(False, np.all(np.abs(steps) < 0.05, axis=1) & (np.diff(run) == 0))
    stopped = np.maximum.accumulate(np.where(still, 0, np.arange(n)))  # where it began to stand
    # images of its run to be compared: one before it stood, two from the change on
    inside = still & (stopped > 0) & (run[stopped - 1] == run) & (np.append(run[1:], -1) == run)
    if not inside.any():
        return []
    # nine of ten pairs of images far apart are less alike
    chosen = np.random.default_rng(0).integers(n, size=(2, 20))
    values = describer.cross_gram(descriptors[chosen[0]], descriptors[chosen[1]])
    apart = np.abs(chosen[0][:, np.newaxis] - chosen[1]) > 0.1 * n
    limit = float(np.quantile(values[apart], 0.9)) if apart.any() else 0.0
    found = []
    for image in np.flatnonzero(inside).tolist():
        near = np.arange(max(image - _BESIDE, 0), min(image + _BESIDE, n))
        near = near[run[near] == run[image]]
        before, after = descriptors[near[near < image]], descriptors[near[near >= image]]
        values = describer.cross_gram(before, after)
        if values[-2:, :2].mean() < limit and values.mean() < limit:
            found.append((image, 'its view changes while the odometry stands still'))
    return found


def segment_numbers(run: np.ndarray, cuts: Any) -> tuple[Indices, Indices]:
    """Segments (n,) of images of runs (n,), cut before some, and the run (p,) of each segment."""
    begins = np.concatenate([[True], np.diff(run) != 0])
    begins[cuts] = True
    return np.cumsum(begins) - 1, run[begins].astype(np.intp)


def append_to_map(kernel_map: KernelMap, poses: FloatArray, others: Trajectories) -> Trajectories:
    """Return trajectories of a map's images at fixed poses (n, 3), and of others behind them."""
    apart = np.hypot(*np.diff(kernel_map.poses[:, :2], axis=0).T)
    breaks = (np.diff(kernel_map.run_index) != 0) | (apart > 3.0)
    breaks |= np.diff(kernel_map.stamps_ns) < 0
    segment, runs = segment_numbers(kernel_map.run_index, 1 + np.flatnonzero(breaks))
    return Trajectories(
        np.concatenate([poses, others.odometry]),
        np.concatenate([segment, others.segment + len(runs)]),
        np.concatenate([runs, others.run_of_segment + len(kernel_map.run_names)]),
        np.arange(len(runs) + len(others.run_of_segment)) < len(runs),
    )
