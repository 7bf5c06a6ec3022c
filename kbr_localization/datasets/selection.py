"""Which images of a run can be used, given its odometry, and where its true pose is known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kbr_localization.datasets.frame import Dataset, OdometryTrack
from kbr_localization.se2 import FloatArray, StampArray
import numpy as np
from numpy.typing import NDArray

LONGEST_GAP_NS = 10**9
FARTHEST_GAP_M = 0.3
"""Between reference poses further apart than both of these, nothing is interpolated."""


SAME_CLOCK_NS = 60 * 10**9
"""Times of recording farther from all stamps are of another clock than these."""


def of_another_clock(stamps_ns: Sequence[int], unstamped_ns: Iterable[int]) -> set[int]:
    """
    Return those of the times of recording that cannot stand for stamps that were not set.

    `stamps_ns`: of the messages of a kind that have one. `unstamped_ns`: times of recording of
    those that have none. In a simulation stamps begin at zero, and what is sent before its clock
    comes has none, while the recorder goes by the clock of the computer.
    """
    if not stamps_ns:
        return set()
    first, last = min(stamps_ns) - SAME_CLOCK_NS, max(stamps_ns) + SAME_CLOCK_NS
    return {time_ns for time_ns in unstamped_ns if not first <= time_ns <= last}


def make_track(stamps_ns: Sequence[int], poses: Sequence[FloatArray]) -> tuple[OdometryTrack, int]:
    """Sort stamped poses by time; of equal stamps the first counts. Also counts the others."""
    stamps, first = np.unique(np.array(stamps_ns, dtype=np.int64), return_index=True)
    track = np.array(poses, dtype=np.float64).reshape(-1, 3)[first]
    return OdometryTrack(stamps, track), len(stamps_ns) - stamps.size


def select_frames(
    stamps_ns: StampArray, odometry: OdometryTrack
) -> tuple[NDArray[np.int64], dict[str, int]]:
    """
    Keep one image per stamp within the span of the odometry.

    `stamps_ns`: (n,) sorted. Returns the indices kept and, by reason, how many were left out.
    """
    first = np.ones(stamps_ns.size, dtype=bool)
    first[1:] = np.diff(stamps_ns) > 0
    start, end = odometry.stamps_ns[[0, -1]]
    covered = (stamps_ns >= start) & (stamps_ns <= end)
    counts = {
        'repeated stamp': int(np.sum(~first)),
        'no odometry': int(np.sum(first & ~covered)),
    }
    return np.flatnonzero(first & covered), {reason: n for reason, n in counts.items() if n}


def not_covered(
    images: str, stamps_ns: StampArray, track: OdometryTrack, poses: str = 'odometry'
) -> str:
    """Say that no image lies within a track, with both spans; `poses`: what its poses are."""
    (first, last), (start, end) = stamps_ns[[0, -1]] * 1e-9, track.stamps_ns[[0, -1]] * 1e-9
    return (
        f'no image of {images} lies within its {poses}: images at [{first:.3f}, {last:.3f}] s, '
        f'{poses} at [{start:.3f}, {end:.3f}] s: are their stamps of one clock?'
    )


def outside_fixes(dataset: Dataset) -> str:
    """
    Say why no image has a known pose although there are some; else nothing.

    All images lie before or after them, with both spans, or between two that are far apart.
    """
    fixes, frames = dataset.fixes, tuple(dataset)
    stamps = np.array([frame.stamp_ns for frame in frames], dtype=np.int64)
    if fixes is None or not stamps.size:
        return ''
    if not select_frames(stamps, fixes)[0].size:
        return not_covered(dataset.name, stamps, fixes, 'reference poses')
    if any(frame.reference is not None for frame in frames):
        return ''
    seconds = float(np.median(np.diff(fixes.stamps_ns))) * 1e-9
    metres = float(np.median(np.hypot(*np.diff(fixes.poses[:, :2], axis=0).T)))
    return (
        f'no image of {dataset.name} has a known pose: reference poses come every {seconds:.1f} s '
        f'and {metres:.1f} m, and between two that are more than {LONGEST_GAP_NS * 1e-9:g} s and '
        f'{FARTHEST_GAP_M:g} m apart nothing is interpolated: record them more often'
    )


@dataclass(frozen=True)
class ReferenceTrack:
    """Stamped true poses of a run."""

    track: OdometryTrack

    def at(self, stamp_ns: int) -> FloatArray | None:
        """Pose (3,) at a stamp, None outside of the track and in its gaps."""
        stamps, poses = self.track.stamps_ns, self.track.poses
        if not stamps[0] <= stamp_ns <= stamps[-1]:
            return None
        after = int(np.searchsorted(stamps, stamp_ns))
        if stamps[after] != stamp_ns:
            gap_ns = stamps[after] - stamps[after - 1]
            gap_m = np.hypot(*(poses[after] - poses[after - 1])[:2])
            if gap_ns > LONGEST_GAP_NS and gap_m > FARTHEST_GAP_M:
                return None
        return self.track.at(stamp_ns)
