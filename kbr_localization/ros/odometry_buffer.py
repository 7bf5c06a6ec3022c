"""
The last seconds of odometry, interpolated to the stamps of images. No rclpy here.

Messages may come late, twice, out of order, broken, or from another time altogether (a bag that
starts over, a driver that restarts). A single sample that does not continue the track is set
aside; several in a row that continue each other replace it.
"""

from __future__ import annotations

import bisect
import enum
import math

from kbr_localization import se2
from kbr_localization.datasets.tracks import (
    begins_anew,
    FEWEST,
    MAX_SPEED,
    MAX_TURN_RATE,
    PAUSE,
    PAUSE_PERIODS,
    SLACK,
)
from kbr_localization.errors import RosError
import numpy as np

SECOND = 1_000_000_000
MAX_SAMPLES = 20_000
MAX_GAP_NS = 2 * SECOND
"""No interpolation between samples that are further apart."""

Stamped = tuple[int, se2.FloatArray]
"""A stamp in nanoseconds and a pose (3,)."""


class Added(enum.Enum):
    """What became of an odometry sample."""

    NEWEST = 'newest'
    INSERTED = 'out of order'
    DUPLICATE = 'duplicate'
    TOO_OLD = 'too old'
    NOT_FINITE = 'not finite'
    SET_ASIDE = 'does not continue the track'
    TIME_GAP = 'time jumped ahead'
    TIME_JUMP = 'time jumped back'
    POSE_JUMP = 'pose jumped'
    RETURNED = 'back on the track'

    @property
    def leads(self) -> bool:
        """Whether the sample is now the newest of the track."""
        return self in (
            Added.NEWEST,
            Added.TIME_GAP,
            Added.TIME_JUMP,
            Added.POSE_JUMP,
            Added.RETURNED,
        )


class Coverage(enum.Enum):
    """Whether the odometry, and a recorder's poses, cover an image's stamp."""

    READY = 'ready'
    EARLY = 'ahead of the odometry'
    LATE = 'older than the odometry buffer'
    GAP = 'in an odometry gap'
    UNPLACED = 'no pose near enough in time'


class OdometryBuffer:
    """
    A bounded, sorted list of stamped poses (3,).

    `duration_ns`: samples that far behind the newest are forgotten. `max_speed` in m/s: a step
    beyond it (and `SLACK`) does not continue a track, nor does one back to the origin after a
    pause, which is a driver that was restarted. `resets`: how often everything was forgotten.
    """

    def __init__(self, duration_ns: int = 20 * SECOND, max_speed: float = MAX_SPEED) -> None:
        self._duration_ns, self._max_speed = duration_ns, max_speed
        self.resets = -1
        self.clear()

    def __len__(self) -> int:
        """Count the samples."""
        return len(self._stamps)

    @property
    def newest_ns(self) -> int | None:
        """Stamp of the newest sample."""
        return self._stamps[-1] if self._stamps else None

    def newest(self, count: int) -> list[Stamped]:
        """Return the newest samples in order."""
        return list(zip(self._stamps[-count:], self._poses[-count:], strict=True))

    def clear(self) -> None:
        """Forget everything."""
        self.resets += 1
        self._stamps: list[int] = []
        self._poses: list[se2.FloatArray] = []
        self._aside: list[Stamped] = []
        self._correction = np.zeros(3)

    def add(self, stamp_ns: int, pose: se2.FloatArray, anew: bool = False) -> Added:
        """
        Take in a sample (3,) and say what became of it.

        After TIME_JUMP and POSE_JUMP the buffer holds only the samples since the jump. `anew`: the
        sample is the first from another source, a POSE_JUMP.
        """
        if not np.all(np.isfinite(pose)):
            return Added.NOT_FINITE
        if not self._stamps:
            return self._append(stamp_ns, pose)
        if anew:
            return self._jump([(stamp_ns, pose)])
        if 0 <= self._stamps[-1] - stamp_ns <= SECOND:
            return self._insert(stamp_ns, pose)
        newest = (self._stamps[-1], self._poses[-1])
        if self._continues(newest, stamp_ns, pose) and not self._is_nearer_aside(stamp_ns, pose):
            self._aside.clear()
            return self._append(stamp_ns, pose)
        if self._aside and not self._continues(self._aside[-1], stamp_ns, pose):
            self._aside.clear()
        self._aside.append((stamp_ns, pose))
        return self._adopt(self._aside) if len(self._aside) >= FEWEST else Added.SET_ASIDE

    def coverage(self, stamp_ns: int) -> Coverage:
        """Say whether a pose at a stamp can be had, will be, or never."""
        if not self._stamps or stamp_ns > self._stamps[-1]:
            return Coverage.EARLY
        if stamp_ns < self._stamps[0]:
            return Coverage.LATE
        after = bisect.bisect_left(self._stamps, stamp_ns)
        span = self._stamps[after] - self._stamps[max(after - 1, 0)]
        exact = self._stamps[after] == stamp_ns
        return Coverage.GAP if span > MAX_GAP_NS and not exact else Coverage.READY

    def at(self, stamp_ns: int) -> se2.FloatArray:
        """Pose (3,) interpolated at a stamp; raises RosError where there is none."""
        coverage = self.coverage(stamp_ns)
        if coverage is not Coverage.READY:
            raise RosError(f'no odometry for stamp {stamp_ns * 1e-9:.3f} s: {coverage.value}')
        after = bisect.bisect_left(self._stamps, stamp_ns)
        around = slice(max(after - 1, 0), after + 1)
        stamps = np.asarray(self._stamps[around], dtype=np.int64)
        return se2.interpolate(stamps, np.stack(self._poses[around]), stamp_ns)

    def extrapolated(self, stamp_ns: int) -> se2.FloatArray:
        """Pose (3,) at a stamp ahead of the newest sample, at the velocity of the last two."""
        newest = self._poses[-1]
        if len(self._stamps) < 2 or self._stamps[-1] - self._stamps[-2] > MAX_GAP_NS:
            return newest
        steps = (stamp_ns - self._stamps[-1]) / (self._stamps[-1] - self._stamps[-2])
        return se2.compose(newest, steps * se2.between(self._poses[-2], newest))

    def continued(self, pose: se2.FloatArray) -> se2.FloatArray:
        """
        Pose (3,) as if the odometry had never been reset.

        At each POSE_JUMP the robot is taken to have stood still, so increments stay small.
        """
        return se2.compose(self._correction, pose)

    def _append(self, stamp_ns: int, pose: se2.FloatArray) -> Added:
        self._stamps.append(stamp_ns)
        self._poses.append(pose)
        self._trim()
        return Added.NEWEST

    def _insert(self, stamp_ns: int, pose: se2.FloatArray) -> Added:
        at = bisect.bisect_left(self._stamps, stamp_ns)
        if self._stamps[at] == stamp_ns:
            return Added.DUPLICATE
        if at == 0:
            return Added.TOO_OLD
        if not self._may_follow((self._stamps[at - 1], self._poses[at - 1]), stamp_ns, pose):
            return Added.SET_ASIDE
        self._stamps.insert(at, stamp_ns)
        self._poses.insert(at, pose)
        self._trim()
        return Added.INSERTED

    def _continues(self, last: Stamped, stamp_ns: int, pose: se2.FloatArray) -> bool:
        return stamp_ns - last[0] <= 10 * SECOND and self._may_follow(last, stamp_ns, pose)

    def _may_follow(self, last: Stamped, stamp_ns: int, pose: se2.FloatArray) -> bool:
        """Whether a robot may have come from one sample to a later one, however much later."""
        ahead_ns = stamp_ns - last[0]
        distance, turn = _step(last[1], pose)
        restarted = ahead_ns > self._pause_ns() and begins_anew(last[1], pose)
        return (
            ahead_ns > 0
            and not restarted
            and distance <= self._max_speed * ahead_ns * 1e-9 + SLACK
            and turn <= MAX_TURN_RATE * ahead_ns * 1e-9 + SLACK
        )

    def _pause_ns(self) -> float:
        """Time without a sample that is more than a few lost messages."""
        if len(self) < 2:
            return PAUSE * SECOND
        usual = float(np.median(np.diff(self._stamps[-10:])))
        return min(PAUSE * SECOND, PAUSE_PERIODS * usual)

    def _is_nearer_aside(self, stamp_ns: int, pose: se2.FloatArray) -> bool:
        """Whether a sample continues the ones set aside rather than the track."""
        if not self._aside or not self._continues(self._aside[-1], stamp_ns, pose):
            return False
        return sum(_step(self._aside[-1][1], pose)) < sum(_step(self._poses[-1], pose))

    def _adopt(self, track: list[Stamped]) -> Added:
        """Go on with the samples that were set aside."""
        first_ns, first = track[0]
        if self._newest_is_stray(first_ns, first):
            del self._stamps[-1], self._poses[-1]
            self._aside = []
            outcome = Added.RETURNED
        elif first_ns < self._stamps[-1]:
            self.clear()
            outcome = Added.TIME_JUMP
        elif self._may_follow((self._stamps[-1], self._poses[-1]), first_ns, first):
            self._aside = []
            outcome = Added.TIME_GAP
        else:
            return self._jump(track)
        for stamp_ns, pose in track:
            self._append(stamp_ns, pose)
        return outcome

    def _jump(self, track: list[Stamped]) -> Added:
        correction = se2.compose(self.continued(self._poses[-1]), se2.inverse(track[0][1]))
        self.clear()
        self._correction = correction
        for stamp_ns, pose in track:
            self._append(stamp_ns, pose)
        return Added.POSE_JUMP

    def _newest_is_stray(self, stamp_ns: int, pose: se2.FloatArray) -> bool:
        if len(self._stamps) < 2 or stamp_ns >= self._stamps[-1]:
            return False
        return self._continues((self._stamps[-2], self._poses[-2]), stamp_ns, pose)

    def _trim(self) -> None:
        oldest = bisect.bisect_left(self._stamps, self._stamps[-1] - self._duration_ns)
        surplus = max(oldest, len(self._stamps) - MAX_SAMPLES)
        # deleting the head moves the whole list, so delete in blocks
        if surplus > len(self._stamps) // 4 or len(self._stamps) > MAX_SAMPLES:
            del self._stamps[:surplus], self._poses[:surplus]


def _step(start: se2.FloatArray, end: se2.FloatArray) -> tuple[float, float]:
    step = se2.between(start, end)
    return math.hypot(step[0], step[1]), abs(float(step[2]))
