"""
Where the odometry of a run breaks.

The odometry misses it when a robot is carried, and is reset when its driver restarts: the run is
cut there, and what loop closures do not join is no part of the map.
"""

from __future__ import annotations

from dataclasses import dataclass

from kbr_localization import se2
from kbr_localization.datasets import OdometryTrack
from kbr_localization.datasets.tracks import (
    continued,
    LONG_PAUSE,
    PAUSE_PERIODS,
    SLACK,
)
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.mapping.trajectories import Indices
from kbr_localization.se2 import FloatArray, StampArray
from kbr_localization.vision import Describer
import numpy as np

_BESIDE = 4  # images before and after a place where the robot may have been carried


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


def segment_numbers(run: Indices, cuts: list[Cut]) -> tuple[Indices, Indices]:
    """Segments (n,) of images of runs (n,), cut at some, and the run (p,) of each segment."""
    begins = np.concatenate([[True], np.diff(run) != 0])
    begins[[cut.image for cut in cuts]] = True
    return np.cumsum(begins) - 1, np.asarray(run[begins])


def map_segments(kernel_map: KernelMap) -> tuple[Indices, Indices]:
    """Segments (n,) of the images of a map, driven without a break, and the run (p,) of each."""
    apart = np.hypot(*np.diff(kernel_map.poses[:, :2], axis=0).T)
    breaks = (np.diff(kernel_map.run_index) != 0) | (apart > 3.0)
    breaks |= np.diff(kernel_map.stamps_ns) < 0
    segment = np.concatenate([[0], np.cumsum(breaks)]).astype(np.intp)
    first = np.searchsorted(segment, np.arange(segment[-1] + 1))
    return segment, kernel_map.run_index[first].astype(np.intp)
