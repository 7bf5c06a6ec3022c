"""
Odometry and images on their way to the localizer, which wait for each other. No rclpy here.

`ImageQueue` is where images are dropped: each with a reason, which is counted.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
import enum

from kbr_localization import se2
from kbr_localization.datasets.frame import Image
from kbr_localization.datasets.tracks import (
    continues,
    FEWEST,
    MAX_SPEED,
    PAUSE,
    PAUSE_PERIODS,
)
from kbr_localization.errors import RosError
from kbr_localization.ros.config import NodeConfig
import numpy as np

SECOND = 1_000_000_000
MAX_GAP_NS = 2 * SECOND
"""No interpolation between samples that are further apart."""

Stamped = tuple[int, se2.FloatArray]
"""A stamp in nanoseconds and a pose (3,)."""


class Added(enum.Enum):
    """What became of an odometry sample."""

    NEWEST = 'newest'
    LATE = 'late or repeated'
    NOT_FINITE = 'not finite'
    SET_ASIDE = 'does not continue the track'
    TIME_GAP = 'time jumped ahead'
    TIME_JUMP = 'time jumped back'
    POSE_JUMP = 'pose jumped'
    RETURNED = 'back on the track'

    @property
    def leads(self) -> bool:
        """Whether the sample is now the newest of the track."""
        jumps = (Added.TIME_GAP, Added.TIME_JUMP, Added.POSE_JUMP)
        return self in (Added.NEWEST, Added.RETURNED, *jumps)


class Coverage(enum.Enum):
    """Whether the odometry, and a recorder's poses, cover an image's stamp."""

    READY = 'ready'
    EARLY = 'ahead of the odometry'
    LATE = 'older than the odometry buffer'
    GAP = 'in an odometry gap'
    UNPLACED = 'no pose near enough in time'


class OdometryBuffer:
    """
    The odometry of the last `duration_ns`, interpolated to the stamps of images.

    Messages may come late, twice, out of order, broken, or from another time altogether (a bag
    that starts over, a driver that restarts). A sample that does not continue the track by
    `tracks.continues` at `max_speed` in m/s is set aside; `FEWEST` in a row that continue
    each other replace it. `resets`: how often everything was forgotten.
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
        sample = (stamp_ns, pose)
        if not np.isfinite(pose).all():
            return Added.NOT_FINITE
        if not self._stamps:
            return self._append([sample], Added.NEWEST)
        if anew:
            return self._jump([sample])
        # but for a moment the newest one may be a stray stamp from the future
        if stamp_ns == self._stamps[-1] or 0 <= self._stamps[-2:][0] - stamp_ns <= SECOND:
            return Added.LATE
        if self._continues(self.newest(1)[0], sample):
            self._aside = []
            return self._append([sample], Added.NEWEST)
        if self._aside and not self._continues(self._aside[-1], sample):
            self._aside = []
        self._aside.append(sample)
        return self._adopt() if len(self._aside) >= FEWEST else Added.SET_ASIDE

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

    def _append(self, samples: list[Stamped], outcome: Added) -> Added:
        for stamp_ns, pose in samples:
            self._stamps.append(stamp_ns)
            self._poses.append(pose)
        oldest = bisect.bisect_left(self._stamps, self._stamps[-1] - self._duration_ns)
        if oldest > len(self._stamps) // 4:  # deleting the head moves the whole list
            del self._stamps[:oldest], self._poses[:oldest]
        return outcome

    def _continues(self, last: Stamped, sample: Stamped) -> bool:
        return sample[0] - last[0] <= 10 * SECOND and self._may_follow(last, sample)

    def _may_follow(self, last: Stamped, sample: Stamped) -> bool:
        """Whether a robot may have come from one sample to a later one, however much later."""
        recent = self._stamps[-10:]
        period = 1e-9 * (recent[-1] - recent[0]) / max(len(recent) - 1, 1)
        pause = min(PAUSE, PAUSE_PERIODS * period or PAUSE)
        near = continues(*last, *sample, self._max_speed, pause)
        return sample[0] > last[0] and bool(near)

    def _adopt(self) -> Added:
        """Go on with the samples that were set aside."""
        track, self._aside = self._aside, []
        if track[0][0] < self._stamps[-1]:
            if len(self) > 1 and self._continues(self.newest(2)[0], track[0]):
                del self._stamps[-1], self._poses[-1]
                return self._append(track, Added.RETURNED)
            self.clear()
            return self._append(track, Added.TIME_JUMP)
        if self._may_follow(self.newest(1)[0], track[0]):
            return self._append(track, Added.TIME_GAP)
        return self._jump(track)

    def _jump(self, track: list[Stamped]) -> Added:
        correction = se2.compose(self.continued(self._poses[-1]), se2.inverse(track[0][1]))
        self.clear()
        self._correction = correction
        return self._append(track, Added.POSE_JUMP)


@dataclass(frozen=True)
class QueuedImage:
    """`load` decodes the image, `received` is the monotonic time of its arrival in seconds."""

    stamp_ns: int
    load: Callable[[], Image]
    received: float


class ImageQueue:
    """
    Images sorted by stamp: few, the newest win.

    `size`: images that may wait in all, most of them for odometry that is still to come.
    `backlog`: images that may wait for the worker; with more, all but the newest are dropped, so
    that a rate beyond the machine costs images and never time. `dropped` counts by reason.
    """

    def __init__(self, size: int = 16, backlog: int = 4) -> None:
        self._size, self._backlog = size, backlog
        self.images: list[QueuedImage] = []
        self._taken_ns: int | None = None
        self.dropped: Counter[str] = Counter()

    def __len__(self) -> int:
        """Count the waiting images."""
        return len(self.images)

    def clear(self, reason: str) -> None:
        """Drop all images; stamps may start over."""
        self._drop(reason, len(self.images))
        self.images, self._taken_ns = [], None

    def put(self, image: QueuedImage) -> None:
        """Take in an image, or drop one that is older than the last one taken."""
        stamps = [waiting.stamp_ns for waiting in self.images]
        if image.stamp_ns in (*stamps, self._taken_ns):
            self._drop('duplicate stamp')
        elif self._taken_ns is not None and image.stamp_ns < self._taken_ns:
            self._drop('older than the last one used')
        else:
            self.images.insert(bisect.bisect_left(stamps, image.stamp_ns), image)
            self._bound(image.stamp_ns)

    def take(self, coverage: Callable[[int], Coverage]) -> QueuedImage | None:
        """
        Next image that the odometry covers; drop a backlog and what will never be covered.

        `coverage`: what the odometry has at a stamp in nanoseconds.
        """
        pairs = [(image, coverage(image.stamp_ns)) for image in self.images]
        ready = [image for image, state in pairs if state is Coverage.READY]
        early = [image for image, state in pairs if state is Coverage.EARLY]
        for _, state in pairs:
            self._drop(state.value, state not in (Coverage.READY, Coverage.EARLY))
        if len(ready) > self._backlog:
            self._drop('a newer one was there', len(ready) - 1)
            ready = ready[-1:]
        self.images = ready[1:] + early
        if not ready:
            return None
        self._taken_ns = ready[0].stamp_ns
        return ready[0]

    def _bound(self, now_ns: int) -> None:
        """Drop images of another clock, and above `size` all but the oldest and the newest."""
        # more than 10 s ahead of a later image: a stamp of another clock
        kept = [image for image in self.images if image.stamp_ns <= now_ns + 10 * SECOND]
        self._drop('stamps went back', len(self.images) - len(kept))
        surplus = max(len(kept) - self._size, 0)
        self._drop('too many wait for odometry', surplus)
        self.images = kept[: len(kept) - 1 - surplus] + kept[-1:]

    def _drop(self, reason: str, count: int = 1) -> None:
        if count:
            self.dropped[reason] += count


@dataclass(frozen=True)
class OdometryAt:
    """
    Odometry at a moment: the pose (3,) as it came, and as if no driver had been reset.

    `resets`: how often time or odometry had been reset by then.
    """

    raw: se2.FloatArray
    continued: se2.FloatArray
    resets: int


class Feed:
    """
    Images and the odometry that they wait for.

    An image waits until the odometry has reached its stamp, so that answers equal an offline
    run's. When the next image is there already, the odometry is extrapolated by at most
    `max_extrapolation`.
    """

    def __init__(self, config: NodeConfig) -> None:
        self.buffer = OdometryBuffer(round(config.odometry_buffer * SECOND), config.max_speed)
        self.queue = ImageQueue(config.image_queue, config.image_backlog)
        self._max_extrapolation_ns = round(config.max_extrapolation * SECOND)

    def take(self) -> QueuedImage | None:
        """Next image that can be used, or None."""
        return self.queue.take(self._coverage)

    def odometry_at(self, stamp_ns: int) -> OdometryAt | None:
        """Odometry at the stamp of an image that was taken; None after a jump."""
        state = self.buffer.coverage(stamp_ns)
        if state is Coverage.READY:
            return self._moment(self.buffer.at(stamp_ns))
        return self.guess(stamp_ns) if self._is_near(stamp_ns, state) else None

    def guess(self, stamp_ns: int) -> OdometryAt | None:
        """Extrapolated odometry at a stamp still to come; None without any."""
        return self._moment(self.buffer.extrapolated(stamp_ns)) if len(self.buffer) else None

    def _moment(self, raw: se2.FloatArray) -> OdometryAt:
        return OdometryAt(raw, self.buffer.continued(raw), self.buffer.resets)

    def _coverage(self, stamp_ns: int) -> Coverage:
        state = self.buffer.coverage(stamp_ns)
        hurried = self.queue.images[-1].stamp_ns > stamp_ns
        return Coverage.READY if hurried and self._is_near(stamp_ns, state) else state

    def _is_near(self, stamp_ns: int, state: Coverage) -> bool:
        ahead_ns = stamp_ns - (self.buffer.newest_ns or 0)
        return state is Coverage.EARLY and ahead_ns <= self._max_extrapolation_ns
