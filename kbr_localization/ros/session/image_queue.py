"""
Images that wait for their odometry or for the worker: few, in order, the newest win.

It knows nothing of rclpy.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from kbr_localization.datasets.frame import Image
from kbr_localization.ros.session.odometry_buffer import Coverage

FAR_AHEAD_NS = 10_000_000_000
"""An image that far ahead of one that comes later has a stamp of another clock."""


@dataclass(frozen=True)
class QueuedImage:
    """An image as it came: `load` decodes it, `received` is the monotonic time in seconds."""

    stamp_ns: int
    load: Callable[[], Image]
    received: float


class ImageQueue:
    """
    A bounded queue sorted by stamp.

    `size`: images that may wait in all, most of them for odometry that is still to come.
    `backlog`: images that may wait for the worker; with more, all but the newest are dropped, so
    that a rate beyond the machine costs images and never time. Images far ahead of one that comes
    later are from another time. `dropped` counts by reason the images that were let go, ever since
    the start. `period_ns`: time between the last two images that came.
    """

    def __init__(self, size: int, backlog: int = 4) -> None:
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
        """Let all images go; stamps may start over."""
        self._drop(reason, len(self._images))
        self._images, self._taken_ns = [], None

    def put(self, image: QueuedImage) -> None:
        """Take in an image, or drop it if its time is over."""
        self.period_ns = image.stamp_ns - self._arrived_ns
        self._arrived_ns = image.stamp_ns
        stamps = [waiting.stamp_ns for waiting in self._images]
        at = bisect.bisect_left(stamps, image.stamp_ns)
        taken_ns = self._taken_ns
        if image.stamp_ns in stamps[slice(at, at + 1)] or image.stamp_ns == taken_ns:
            self._drop('duplicate stamp')
        elif taken_ns is not None and image.stamp_ns < taken_ns:
            self._drop('older than the last one used')
        else:
            self._images.insert(at, image)
            self._forget_future(image.stamp_ns)
            self._make_room()

    def take(self, coverage: Callable[[int], Coverage]) -> QueuedImage | None:
        """
        Next image that the odometry covers; hopeless ones and a backlog are dropped.

        `coverage`: what the odometry has at a stamp in nanoseconds.
        """
        states = [coverage(image.stamp_ns) for image in self._images]
        for state in (Coverage.LATE, Coverage.GAP, Coverage.UNPLACED):
            self._drop(state.value, states.count(state))
        pairs = list(zip(self._images, states, strict=True))
        ready = [image for image, state in pairs if state is Coverage.READY]
        if len(ready) > self._backlog:
            self._drop('a newer one was there', len(ready) - 1)
            ready = ready[-1:]
        self._images = ready[1:] + [i for i, state in pairs if state is Coverage.EARLY]
        if not ready:
            return None
        self._taken_ns = ready[0].stamp_ns
        return ready[0]

    def _forget_future(self, now_ns: int) -> None:
        """Let images go that would fill the queue until a time that is not coming soon."""
        kept = [image for image in self._images if image.stamp_ns <= now_ns + FAR_AHEAD_NS]
        self._drop('stamps went back', len(self._images) - len(kept))
        self._images = kept

    def _make_room(self) -> None:
        """Keep those that wait longest, whose odometry comes first, and the newest one."""
        surplus = len(self._images) - self._size
        if surplus > 0:
            self._drop('too many wait for odometry', surplus)
            del self._images[slice(-1 - surplus, -1)]

    def _drop(self, reason: str, count: int = 1) -> None:
        if count:
            self.dropped[reason] += count
