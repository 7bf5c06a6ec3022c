"""Where a recorded run was: pose messages that anchor the odometry, and the odometry. No rclpy."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
import math

from kbr_localization import se2
from kbr_localization.datasets.cold_recording import ColdRecording
from kbr_localization.datasets.odometry_jumps import FEWEST, SLACK
from kbr_localization.ros.session.odometry_buffer import Added, Coverage, OdometryBuffer, Stamped
import numpy as np

SECOND = 1_000_000_000
MOST_WAITING, MOST_ANCHORS = 200, 500
"""Pose messages that wait for odometry, and those that are remembered with it."""


class PoseAnchors:
    """
    The transform from the odometry frame to the map at the stamps of pose messages.

    `max_age_ns`: between an image and the nearest pose message, at most.
    """

    def __init__(self, max_age_ns: int) -> None:
        self._max_age_ns = max_age_ns
        self.clear()

    def clear(self) -> None:
        """Forget everything, as after a jump of the odometry."""
        self._waiting: list[Stamped] = []
        self._stamps: list[int] = []
        self._odom_in_map: list[se2.FloatArray] = []

    def add(self, stamp_ns: int, pose: se2.FloatArray) -> None:
        """Take in a pose (3,) in the map, to wait for the odometry at its stamp."""
        self._waiting = [*self._waiting[-MOST_WAITING:], (stamp_ns, pose)]

    def settle(self, sure: SureOdometry) -> None:
        """Find where each pose that the odometry has reached puts the odometry frame."""
        early = []
        for stamp_ns, pose in self._waiting:
            state = sure.coverage(stamp_ns)
            if state is Coverage.EARLY:
                early.append((stamp_ns, pose))
            elif state is Coverage.READY:
                at = bisect.bisect_left(self._stamps, stamp_ns)
                self._stamps.insert(at, stamp_ns)
                odometry = sure.buffer.at(stamp_ns)
                self._odom_in_map.insert(at, se2.compose(pose, se2.inverse(odometry)))
        self._waiting = early
        del self._stamps[:-MOST_ANCHORS], self._odom_in_map[:-MOST_ANCHORS]

    def nearest(self, stamp_ns: int) -> int | None:
        """Index of the pose message nearest in time, None where none is near enough."""
        at = bisect.bisect_left(self._stamps, stamp_ns)
        around = range(max(at - 1, 0), min(at + 1, len(self._stamps)))
        nearest = min(around, key=lambda i: abs(self._stamps[i] - stamp_ns), default=None)
        if nearest is None or abs(self._stamps[nearest] - stamp_ns) > self._max_age_ns:
            return None
        return nearest

    def carried(self, stamp_ns: int, odometry: se2.FloatArray) -> se2.FloatArray | None:
        """Pose (3,) in the map at a stamp with that odometry (3,); None without an anchor."""
        nearest = self.nearest(stamp_ns)
        return None if nearest is None else se2.compose(self._odom_in_map[nearest], odometry)


class SureOdometry:
    """
    The odometry without its newest sample, which waits for the one that continues it.

    A sample with a stamp in the future is found out only by those that come after it: on the disk
    it would keep them out until that time has come, and images would be placed by it.
    """

    def __init__(self) -> None:
        self.buffer = OdometryBuffer()
        self._held: list[Stamped] = []
        self.until_ns = -1
        """Stamp up to which the odometry is sure."""

    def follow(self, outcome: Added, stamp_ns: int, pose: se2.FloatArray) -> list[Stamped]:
        """Return the samples that are sure now that the buffer has taken in another (3,)."""
        if outcome is Added.INSERTED:  # behind the newest one, which it says nothing of
            self.until_ns = max(self.until_ns, stamp_ns)
            return [(stamp_ns, pose)]
        if not outcome.leads:
            return []
        track = self.buffer.newest(1 if outcome is Added.NEWEST else FEWEST)
        # one that is not older than what the track goes on with was a stray
        sure = [held for held in self._held if held[0] < track[0][0]] + track[:-1]
        self._held = track[-1:]
        self.until_ns = sure[-1][0] if sure else self.until_ns
        return sure

    def end(self) -> list[Stamped]:
        """Return the sample that is held back: no other one follows."""
        sure, self._held = self._held, []
        self.until_ns = sure[-1][0] if sure else self.until_ns
        return sure

    def coverage(self, stamp_ns: int) -> Coverage:
        """Say whether a pose at a stamp can be had of what is sure, will be, or never."""
        state = self.buffer.coverage(stamp_ns)
        unsure = state is not Coverage.LATE and stamp_ns > self.until_ns
        return Coverage.EARLY if unsure else state


class OdometryRecord:
    """
    The odometry of a run, written at most `rate` times a second as its driver sends it.

    Where it begins again is seen by whoever reads the run, who can say so; a pose that was made
    to go on here would hide it.
    """

    def __init__(self, recording: ColdRecording, rate: float) -> None:
        self._recording, self._period_ns = recording, SECOND / rate
        self._written_ns = recording.last_odometry.stamp_ns if recording.last_odometry else 0

    def write(self, samples: Sequence[Stamped]) -> None:
        """Write the samples that are due; raises DatasetError."""
        last_ns, chosen = self._written_ns, []
        for before, (stamp_ns, pose) in zip([None, *samples], samples, strict=False):
            # the samples about a jump would be plausible if they were further apart
            jumps = before is not None and _is_jump(before[1], pose)
            if before is not None and jumps and before[0] > last_ns:
                chosen.append(before)
                last_ns = before[0]
            # a little early is on time, or 20 Hz with jitter would become 10 Hz
            if stamp_ns - last_ns >= (1 if jumps else 0.9 * self._period_ns):
                chosen.append((stamp_ns, pose))
                last_ns = stamp_ns
        if chosen:
            self._recording.append_odometry(chosen)
            self._written_ns = last_ns


def _is_jump(before: se2.FloatArray, pose: se2.FloatArray) -> bool:
    step = np.abs(se2.between(before, pose))
    return max(math.hypot(step[0], step[1]), float(step[2])) > SLACK
