"""Images that wait for their odometry or for the worker: few, in order, the newest win."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
import math
import time

from kbr_localization import se2
from kbr_localization.datasets.frame import Image
from kbr_localization.ros.odometry_buffer import Coverage, OdometryBuffer, SECOND


@dataclass(frozen=True)
class QueuedImage:
    """`load` decodes the image, `received` is the monotonic time of its arrival in seconds."""

    stamp_ns: int
    load: Callable[[], Image]
    received: float


class ImageQueue:
    """
    A bounded queue sorted by stamp.

    `size`: images that may wait in all, most of them for odometry that is still to come.
    `backlog`: images that may wait for the worker; with more, all but the newest are dropped, so
    that a rate beyond the machine costs images and never time. `dropped` counts by reason.
    `period_ns`: time between the last two images.
    """

    def __init__(self, size: int = 16, backlog: int = 4) -> None:
        self._size, self._backlog = size, backlog
        self._images: list[QueuedImage] = []
        self._taken_ns: int | None = None
        self._arrived_ns = 0
        self.period_ns = 0
        self.dropped: Counter[str] = Counter()

    def __len__(self) -> int:
        """Count the waiting images."""
        return len(self._images)

    @property
    def newest_ns(self) -> int | None:
        """Stamp of the newest waiting image."""
        return self._images[-1].stamp_ns if self._images else None

    def peek(self) -> QueuedImage | None:
        """Return the oldest waiting image, which stays."""
        return self._images[0] if self._images else None

    def clear(self, reason: str) -> None:
        """Drop all images; stamps may start over."""
        self._drop(reason, len(self._images))
        self._images, self._taken_ns = [], None

    def put(self, image: QueuedImage) -> None:
        """Take in an image, or drop one that is older than the last one taken."""
        self.period_ns = image.stamp_ns - self._arrived_ns
        self._arrived_ns = image.stamp_ns
        stamps = [waiting.stamp_ns for waiting in self._images]
        if image.stamp_ns in stamps or image.stamp_ns == self._taken_ns:
            self._drop('duplicate stamp')
        elif self._taken_ns is not None and image.stamp_ns < self._taken_ns:
            self._drop('older than the last one used')
        else:
            self._images.insert(bisect.bisect_left(stamps, image.stamp_ns), image)
            self._bound(image.stamp_ns)

    def take(self, coverage: Callable[[int], Coverage]) -> QueuedImage | None:
        """
        Next image that the odometry covers; drop a backlog and what will never be covered.

        `coverage`: what the odometry has at a stamp in nanoseconds.
        """
        pairs = [(image, coverage(image.stamp_ns)) for image in self._images]
        for _, state in pairs:
            if state in (Coverage.LATE, Coverage.GAP, Coverage.UNPLACED):
                self._drop(state.value)
        ready = [image for image, state in pairs if state is Coverage.READY]
        if len(ready) > self._backlog:
            self._drop('a newer one was there', len(ready) - 1)
            ready = ready[-1:]
        self._images = ready[1:] + [i for i, state in pairs if state is Coverage.EARLY]
        if not ready:
            return None
        self._taken_ns = ready[0].stamp_ns
        return ready[0]

    def _bound(self, now_ns: int) -> None:
        """Drop images of another clock, and above `size` all but the oldest and the newest."""
        # more than 10 s ahead of a later image: a stamp of another clock
        kept = [image for image in self._images if image.stamp_ns <= now_ns + 10 * SECOND]
        self._drop('stamps went back', len(self._images) - len(kept))
        surplus = max(len(kept) - self._size, 0)
        self._drop('too many wait for odometry', surplus)
        self._images = kept[: len(kept) - 1 - surplus] + kept[-1:]

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
    run's. When the next image is there already, or when images come more often than
    `max_extrapolation_ns` and half the time to the next one is over, the odometry is extrapolated
    by at most that much. `prepared`: the waiting image that is described already.
    """

    def __init__(
        self,
        buffer: OdometryBuffer | None = None,
        queue: ImageQueue | None = None,
        max_extrapolation_ns: int = 100_000_000,
    ) -> None:
        # not `or`: an empty one is false
        self.buffer = OdometryBuffer() if buffer is None else buffer
        self.queue = ImageQueue() if queue is None else queue
        self._max_extrapolation_ns = max_extrapolation_ns
        self.prepared: QueuedImage | None = None

    def take(self) -> QueuedImage | None:
        """Next image that can be used, or None."""
        return self.queue.take(self._coverage)

    def unprepared(self) -> QueuedImage | None:
        """Oldest waiting image if it is not described yet."""
        waiting = self.queue.peek()
        return None if waiting is self.prepared else waiting

    def patience(self) -> float:
        """Seconds for which the oldest waiting image may still wait for odometry."""
        image = self.queue.peek()
        if image is None or not 0 < self.queue.period_ns < self._max_extrapolation_ns:
            return math.inf
        return image.received + 0.5e-9 * self.queue.period_ns - time.monotonic()

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
        newest_ns = self.queue.newest_ns
        hurried = newest_ns is not None and (newest_ns > stamp_ns or self.patience() <= 0.0)
        return Coverage.READY if hurried and self._is_near(stamp_ns, state) else state

    def _is_near(self, stamp_ns: int, state: Coverage) -> bool:
        newest_ns = self.buffer.newest_ns
        return (
            state is Coverage.EARLY
            and newest_ns is not None
            and stamp_ns - newest_ns <= self._max_extrapolation_ns
        )
