"""Which images of a run can be used, given its odometry, and where its true pose is known."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from kbr_localization import se2
from kbr_localization.datasets.frame import Dataset, OdometryTrack, Skipped
from kbr_localization.errors import DatasetError
from kbr_localization.se2 import FloatArray, StampArray
import numpy as np
from numpy.typing import NDArray

Item = TypeVar('Item')

LONGEST_GAP_NS = 10**9
FARTHEST_GAP_M = 0.3
"""Between reference poses further apart than both of these, nothing is interpolated."""
SAME_CLOCK_NS = 60 * 10**9
"""Times of recording farther than this from all stamps are of another clock."""


class StampedRows:
    """
    Stamped rows of numbers of the messages of a topic, of which a bag may have millions.

    A message without a stamp has its time of recording.
    """

    def __init__(self, kind: str = 'd') -> None:
        self._stamps, self._unstamped = array('q'), array('b')
        self._rows: array[Any] = array(kind)

    def add(self, stamp_ns: int, recorded_ns: int, row: Iterable[Any]) -> None:
        """Take in a row, of which all have the same length."""
        self._stamps.append(stamp_ns or recorded_ns)
        self._unstamped.append(not stamp_ns)
        self._rows.extend(row)

    def of_one_clock(self) -> tuple[list[tuple[int, NDArray[Any]]], int]:
        """
        Return stamps with rows in the order of recording, and how many were left out.

        These have times of recording of another clock: in a simulation stamps begin at zero, and
        messages sent before the first clock message have none, while the recorder uses the clock
        of the computer.
        """
        if not self._stamps:
            return [], 0
        stamps, unstamped = np.array(self._stamps), np.array(self._unstamped, dtype=bool)
        rows = np.reshape(self._rows, (len(stamps), -1))
        known = stamps if unstamped.all() else stamps[~unstamped]
        near = (stamps >= known.min() - SAME_CLOCK_NS) & (stamps <= known.max() + SAME_CLOCK_NS)
        kept = list(zip(stamps[near].tolist(), rows[near], strict=True))
        return kept, len(stamps) - len(kept)


def make_track(
    samples: Iterable[tuple[int, FloatArray] | None], skipped: Skipped, where: str
) -> OdometryTrack:
    """
    Sort samples (stamp, pose (3,)) by time; of equal stamps the first counts.

    None is passed over. The others of equal stamps are counted as repeated `where` they stand.
    """
    stamps, poses = zip(*(sample for sample in samples if sample is not None), strict=True)
    unique, first = np.unique(np.array(stamps, dtype=np.int64), return_index=True)
    skipped.add(f'repeated stamp {where}', number=len(stamps) - unique.size)
    return OdometryTrack(unique, np.array(poses, dtype=np.float64)[first])


class Selected(NamedTuple, Generic[Item]):
    """Images that can be used, in order of time, with their stamps (n,) and odometry (n, 3)."""

    items: list[Item]
    stamps_ns: StampArray
    odometry: FloatArray


def select_images(
    run: str,
    images: Iterable[tuple[int, Item]],
    odometry: OdometryTrack,
    skipped: Skipped,
    lacking: str = 'odometry',
) -> Selected[Item]:
    """
    Keep one image (stamp, item) per stamp within the span of the odometry; count the others.

    `lacking`: what images outside of it have none of. Raises DatasetError when none is left.
    """
    ordered = sorted(images, key=lambda image: image[0])
    stamps = np.array([stamp for stamp, _ in ordered], dtype=np.int64)
    first = np.diff(stamps, prepend=-1) > 0
    covered = (stamps >= odometry.stamps_ns[0]) & (stamps <= odometry.stamps_ns[-1])
    skipped.add('repeated stamp', number=int(np.sum(~first)))
    skipped.add(f'no {lacking}', number=int(np.sum(first & ~covered)))
    kept = np.flatnonzero(first & covered)
    if not kept.size:
        raise DatasetError(not_covered(run, stamps, odometry, lacking))
    poses = se2.interpolate(odometry.stamps_ns, odometry.poses, stamps[kept])
    return Selected([ordered[index][1] for index in kept], stamps[kept], poses)


def not_covered(run: str, stamps_ns: StampArray, track: OdometryTrack, poses: str) -> str:
    """Say that no image lies within a track of `poses`, with both spans."""
    (first, last), (start, end) = stamps_ns[[0, -1]] * 1e-9, track.stamps_ns[[0, -1]] * 1e-9
    return (
        f'no image of {run} lies within its {poses}: images at [{first:.3f}, {last:.3f}] s, '
        f'{poses} at [{start:.3f}, {end:.3f}] s: are their stamps of one clock?'
    )


def outside_fixes(dataset: Dataset) -> str:
    """
    Say why no image has a known pose although the run has some; else return an empty string.

    Either all images lie before or after the poses, or between two that are far apart.
    """
    fixes, frames = dataset.fixes, tuple(dataset)
    stamps = np.array([frame.stamp_ns for frame in frames], dtype=np.int64)
    if fixes is None or not stamps.size:
        return ''
    if not np.any((stamps >= fixes.stamps_ns[0]) & (stamps <= fixes.stamps_ns[-1])):
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
