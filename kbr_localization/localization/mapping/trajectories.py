"""
The trajectories of the images by odometry, cut into segments where the odometry breaks.

Odometry does not notice that a robot is carried, and is reset when its driver restarts. Runs are
cut there; segments that loop closures do not join are left out of the map.
"""

from __future__ import annotations

from dataclasses import dataclass
import functools
from typing import Any

from kbr_localization import se2
from kbr_localization.datasets import OdometryTrack, tracks
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.se2 import FloatArray, StampArray
from kbr_localization.vision import Describer
import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]
_MIN_STEP = 0.6  # metres of travel between anchors; nearer images are redundant
_COMPARED = 4  # images before and after a place where the robot may have been carried


@dataclass(frozen=True)
class Trajectories:
    """
    Poses of images in order of time, run after run.

    `odometry`: (n, 3) poses in the odometry frame of each run. `segment`: (n,) numbers 0, 1, … of
    the segments with unbroken odometry; `run_of_segment`: (p,). `fixed`: mask (p,) of the segments
    with known poses instead of odometry, all in one frame.
    """

    odometry: FloatArray
    segment: Indices
    run_of_segment: Indices
    fixed: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.odometry)

    @functools.cached_property
    def travel(self) -> FloatArray:
        """Metres (n,) of travel since the start of the segment; turns count as well."""
        metres, turns = se2.magnitude(se2.steps(self.odometry))
        # a radian of turning changes the view as much as half a metre
        total = np.append(np.zeros(min(1, len(self))), np.cumsum(metres + 0.5 * turns))
        first = np.searchsorted(self.segment, self.segment)
        return np.asarray(total - total[first])

    @property
    def run(self) -> Indices:
        """Run (n,) of each image."""
        return np.asarray(self.run_of_segment[self.segment])

    @property
    def fixed_images(self) -> NDArray[np.bool_]:
        """Mask (n,) of the images with known poses."""
        return np.asarray(self.fixed[self.segment])

    @property
    def body(self) -> Indices:
        """Segment (n,) of each image; all fixed segments are one rigid body."""
        first = int(np.argmax(self.fixed)) if self.fixed.any() else 0
        return np.where(self.fixed_images, first, self.segment)

    @functools.cached_property
    def step(self) -> float:
        """Metres of travel between anchors: the median between images, at least `_MIN_STEP`."""
        steps = np.diff(self.travel)[np.diff(self.segment) == 0]
        moved = steps[steps > 1e-3]
        return max(_MIN_STEP, float(np.median(moved))) if moved.size else _MIN_STEP

    def span(self, segment: int) -> slice:
        """Return the images of a segment as a slice."""
        return slice(*np.searchsorted(self.segment, [segment, segment + 1]).tolist())

    def images_at(self, segment: int, travel: FloatArray) -> Indices:
        """Return the images of a segment nearest to values of travel (q,), clipped to its ends."""
        span = self.span(segment)
        images = np.arange(span.start, span.stop)
        return np.rint(np.interp(travel, self.travel[span], images)).astype(np.intp)

    def subset(self, images: Indices) -> Trajectories:
        """Return the trajectories of `images` (m,), which are whole segments."""
        segments, segment = np.unique(self.segment[images], return_inverse=True)
        rest = self.run_of_segment[segments], self.fixed[segments]
        return Trajectories(self.odometry[images], segment, *rest)

    def anchors(self, shift: float = 0.0) -> Indices:
        """Return an image (a,) for each step of travel along the segments, shifted by metres."""
        found = []
        for number in range(len(self.run_of_segment)):
            end = float(self.travel[self.span(number)][-1])
            found.append(self.images_at(number, np.arange(0.0, end + 1e-9, self.step) + shift))
        return np.concatenate(found)


def odometry_breaks(
    track: OdometryTrack, stamps_ns: StampArray, first: int
) -> list[tuple[int, str]]:
    """
    Find images, numbered from `first`, before which the odometry breaks, with the reasons.

    It breaks if it jumps (`plausible_steps`), or pauses for long and then continues elsewhere or
    after a reset. Odometry cannot distinguish a robot that drove unrecorded from one that was
    pushed or whose driver restarted: only images show where it is.
    """
    if len(track.poses) < 2:
        return []
    metres, turns = se2.magnitude(se2.steps(track.poses))
    seconds = np.diff(track.stamps_ns) * 1e-9
    jumping = ~tracks.plausible_steps(track)
    elsewhere = np.maximum(metres, turns) > tracks.SLACK
    elsewhere |= np.isin(track.stamps_ns[1:], track.resets_ns)
    # relative to the usual period of the odometry
    pausing = seconds > max(tracks.LONG_PAUSE, tracks.PAUSE_PERIODS * float(np.median(seconds)))
    found = []
    for at in np.flatnonzero(jumping | (pausing & elsewhere)):
        why = f'its odometry jumps by {metres[at]:.1f} m'
        if pausing[at]:
            why = f'its odometry pauses for {seconds[at]:.0f} s and does not continue where it was'
        # images during the break belong to neither side: their interpolated poses are wrong
        begin = int(np.searchsorted(stamps_ns, track.stamps_ns[at], 'right'))
        end = int(np.searchsorted(stamps_ns, track.stamps_ns[at + 1]))
        for image, reason in ((begin, why), (end, 'its odometry continues'))[: 1 + (end > begin)]:
            if 0 < image < len(stamps_ns):
                found.append((first + image, reason))
    return found


def carried_images(
    describer: Describer, descriptors: np.ndarray, odometry: FloatArray, run: Indices
) -> list[tuple[int, str]]:
    """
    Find images before which the view changes while the odometry stands still.

    `descriptors`: (n, d), `odometry`: (n, 3) poses, `run`: (n,). The images before and after have
    to be as dissimilar as images of different places. Return images and reasons.
    """
    steps, n = se2.steps(odometry), len(run)
    still = np.append(False, np.all(np.abs(steps) < 0.05, axis=1) & (np.diff(run) == 0))
    stopped = np.maximum.accumulate(np.where(still, 0, np.arange(n)))  # start of the standstill
    # compare images of one run: at least one before the standstill, two from the change on
    inside = still & (stopped > 0) & (run[stopped - 1] == run) & (np.append(run[1:], -1) == run)
    if not inside.any():
        return []
    # 90% of pairs of images far apart are less similar than the limit
    chosen = np.random.default_rng(0).integers(n, size=(2, 20))
    values = describer.cross_gram(descriptors[chosen[0]], descriptors[chosen[1]])
    apart = np.abs(chosen[0][:, np.newaxis] - chosen[1]) > 0.1 * n
    limit = float(np.quantile(values[apart], 0.9)) if apart.any() else 0.0
    found = []
    for image in np.flatnonzero(inside).tolist():
        near = np.arange(max(image - _COMPARED, 0), min(image + _COMPARED, n))
        near = near[run[near] == run[image]]
        before, after = descriptors[near[near < image]], descriptors[near[near >= image]]
        values = describer.cross_gram(before, after)
        if values[-2:, :2].mean() < limit and values.mean() < limit:
            found.append((image, 'its view changes while the odometry stands still'))
    return found


def segment_numbers(run: np.ndarray, cuts: Any) -> tuple[Indices, Indices]:
    """Return segments (n,) of images of runs (n,), cut before `cuts`, and their runs (p,)."""
    begins = np.concatenate([[True], np.diff(run) != 0])
    begins[cuts] = True
    return np.cumsum(begins) - 1, run[begins].astype(np.intp)


def append_to_map(kernel_map: KernelMap, poses: FloatArray, others: Trajectories) -> Trajectories:
    """Append trajectories to those of a map's images, which have fixed `poses` (n, 3)."""
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
