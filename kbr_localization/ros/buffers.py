"""Buffers of odometry and images, and the thread that processes them."""

import bisect
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
import enum
from operator import itemgetter
import threading
import time
import traceback
from typing import Any

from kbr_localization import se2
from kbr_localization.datasets import tracks
from kbr_localization.datasets.frame import Image
from kbr_localization.errors import KbrError
import numpy as np

SECOND = 1_000_000_000
WAKE_SECONDS = 0.2
"""Interval at which a node and its worker thread check whether they should stop."""
MAX_GAP_NS = 2 * SECOND
"""Samples that are further apart are not interpolated."""
MAX_AHEAD_NS = 2 * SECOND
"""A pose that is newer than the odometry by more comes from another clock."""

Log = Callable[[str, str], None]
"""Function that logs; called with a level ('info', 'warning' or 'error') and a text."""
StampedPose = tuple[int, se2.FloatArray]
"""A stamp in nanoseconds and a pose (3,)."""


class Outcome(enum.Enum):
    """What the buffer did with an odometry sample, with its name in the diagnostics."""

    APPENDED = 'newest'
    LATE = 'late or repeated'
    NOT_FINITE = 'not finite'
    OUTLIER = 'does not continue the track'
    TIME_GAP = 'time jumped ahead'
    TIME_JUMP = 'time jumped back'
    POSE_JUMP = 'pose jumped'
    OUTLIER_REMOVED = 'back on the track'


class Availability(enum.Enum):
    """Whether there is odometry at the stamp of an image."""

    READY = 'ready'
    PENDING = 'ahead of the odometry'
    TOO_OLD = 'older than the odometry buffer'
    IN_GAP = 'in an odometry gap'


class OdometryBuffer:
    """
    Odometry of the last `duration_ns`, interpolated to the stamps of images.

    Samples may be late, repeated, out of order or invalid, and a bag or a driver may restart. A
    sample that does not continue the track by `tracks.reachable` at `max_speed` in m/s is an
    outlier; `tracks.MIN_SEGMENT_POSES` outliers that continue each other replace the track.
    `resets`: how often the buffer was cleared.
    """

    def __init__(
        self, duration_ns: int = 20 * SECOND, max_speed: float = tracks.MAX_SPEED
    ) -> None:
        self._duration_ns, self._max_speed = duration_ns, max_speed
        self.resets = -1
        self.clear()

    def newest(self, count: int) -> list[StampedPose]:
        """Return up to `count` of the newest samples, oldest first."""
        return self._samples[-count:]

    def clear(self) -> None:
        self.resets += 1
        self._samples: list[StampedPose] = []
        self._outliers: list[StampedPose] = []
        self._correction = np.zeros(3)

    def add(self, stamp_ns: int, pose: se2.FloatArray, new_source: bool = False) -> Outcome:
        """Add a pose (3,); the first pose of a new source is a POSE_JUMP."""
        sample, samples = (stamp_ns, pose), self._samples
        if not np.isfinite(pose).all():
            return Outcome.NOT_FINITE
        if new_source and samples:
            return self._jump([sample])
        if not samples or self._continues(samples[-1], sample):
            self._outliers = []
            return self._append([sample], Outcome.APPENDED)
        # compare with the last but one, since the stamp of the last may be in the future
        if stamp_ns == samples[-1][0] or 0 <= samples[-2:][0][0] - stamp_ns <= SECOND:
            return Outcome.LATE
        if self._outliers and not self._continues(self._outliers[-1], sample):
            self._outliers = []
        self._outliers.append(sample)
        if len(self._outliers) < tracks.MIN_SEGMENT_POSES:
            return Outcome.OUTLIER
        track, self._outliers = self._outliers, []
        return self._replace_track(track)

    def availability(self, stamp_ns: int) -> Availability:
        if not self._samples or stamp_ns > self._samples[-1][0]:
            return Availability.PENDING
        if stamp_ns < self._samples[0][0]:
            return Availability.TOO_OLD
        around = self._around(stamp_ns)
        bridged = around[-1][0] == stamp_ns or around[-1][0] - around[0][0] <= MAX_GAP_NS
        return Availability.READY if bridged else Availability.IN_GAP

    def at(self, stamp_ns: int) -> se2.FloatArray:
        """Return the pose (3,) interpolated at a stamp that is READY."""
        stamps, poses = zip(*self._around(stamp_ns), strict=True)
        return se2.interpolate(np.array(stamps, dtype=np.int64), np.stack(poses), stamp_ns)

    def continuous(self, pose: se2.FloatArray) -> se2.FloatArray:
        """Return a pose (3,) of the odometry as if the robot had not moved at any POSE_JUMP."""
        return se2.compose(self._correction, pose)

    def _around(self, stamp_ns: int) -> list[StampedPose]:
        after = bisect.bisect_left(self._samples, stamp_ns, key=itemgetter(0))
        return self._samples[max(after - 1, 0) : after + 1]  # noqa: E203

    def _append(self, samples: list[StampedPose], outcome: Outcome) -> Outcome:
        self._samples += samples
        begin_ns = self._samples[-1][0] - self._duration_ns
        oldest = bisect.bisect_left(self._samples, begin_ns, key=itemgetter(0))
        if oldest > len(self._samples) // 4:  # deleting the head moves the whole list
            del self._samples[:oldest]
        return outcome

    def _continues(self, last: StampedPose, sample: StampedPose) -> bool:
        return sample[0] - last[0] <= 10 * SECOND and self._is_reachable(last, sample)

    def _is_reachable(self, last: StampedPose, sample: StampedPose) -> bool:
        """Whether a sample is later than the last, at a pose the robot can have reached."""
        recent = self._samples[-10:]
        period = 1e-9 * (recent[-1][0] - recent[0][0]) / max(len(recent) - 1, 1)
        pause = min(tracks.PAUSE, tracks.PAUSE_PERIODS * period or tracks.PAUSE)
        near = tracks.reachable(*last, *sample, self._max_speed, pause)
        return sample[0] > last[0] and bool(near)

    def _replace_track(self, track: list[StampedPose]) -> Outcome:
        samples = self._samples
        if track[0][0] >= samples[-1][0]:
            if self._is_reachable(samples[-1], track[0]):
                return self._append(track, Outcome.TIME_GAP)
            return self._jump(track)
        if len(samples) > 1 and self._continues(samples[-2], track[0]):
            del samples[-1]
            return self._append(track, Outcome.OUTLIER_REMOVED)
        self.clear()
        return self._append(track, Outcome.TIME_JUMP)

    def _jump(self, track: list[StampedPose]) -> Outcome:
        stopped_at = self.continuous(self._samples[-1][1])
        self.clear()
        self._correction = se2.compose(stopped_at, se2.inverse(track[0][1]))
        return self._append(track, Outcome.POSE_JUMP)


@dataclass(frozen=True)
class QueuedImage:
    """`load` decodes the image, `received` is the monotonic time of its arrival in seconds."""

    stamp_ns: int
    load: Callable[[], Image]
    received: float


class ImageQueue:
    """
    A bounded queue of images, sorted by stamp.

    `size`: images that may wait in all, most of them for odometry. `backlog`: images with
    odometry that may wait for the worker; if there are more, all but the newest are dropped, so
    that a slow machine loses images but the delay does not grow. `dropped` counts by reason.
    """

    def __init__(self, size: int = 16, backlog: int = 4) -> None:
        self._size, self._backlog = size, backlog
        self._images: list[QueuedImage] = []
        self._taken_ns: int | None = None
        self.dropped: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._images)

    def clear(self, reason: str) -> None:
        """Drop all images; later ones may have any stamp."""
        self.count_dropped(reason, len(self._images))
        self._images, self._taken_ns = [], None

    def put(self, image: QueuedImage) -> None:
        """Add an image, unless it is repeated or late; drop others if there are too many."""
        stamps = [waiting.stamp_ns for waiting in self._images]
        if image.stamp_ns in (*stamps, self._taken_ns):
            self.count_dropped('duplicate stamp')
            return
        if self._taken_ns is not None and image.stamp_ns < self._taken_ns:
            self.count_dropped('older than the last one used')
            return
        bisect.insort(self._images, image, key=lambda one: one.stamp_ns)
        # a stamp more than 10 s ahead of a later image comes from another clock
        kept = [one for one in self._images if one.stamp_ns <= image.stamp_ns + 10 * SECOND]
        self.count_dropped('stamps went back', len(self._images) - len(kept))
        # keep the oldest ones: late odometry would never reach images that are always replaced
        surplus = max(len(kept) - self._size, 0)
        self.count_dropped('too many wait for odometry', surplus)
        self._images = kept[: len(kept) - 1 - surplus] + kept[-1:]

    def take(self, availability: Callable[[int], Availability]) -> QueuedImage | None:
        """Return the next image that is READY, if any; drop a backlog and unusable images."""
        pairs = [(image, availability(image.stamp_ns)) for image in self._images]
        ready = [image for image, state in pairs if state is Availability.READY]
        pending = [image for image, state in pairs if state is Availability.PENDING]
        for _, state in pairs:
            if state in (Availability.TOO_OLD, Availability.IN_GAP):
                self.count_dropped(state.value)
        if len(ready) > self._backlog:
            self.count_dropped('a newer one was there', len(ready) - 1)
            ready = ready[-1:]
        self._images = ready[1:] + pending
        if not ready:
            return None
        self._taken_ns = ready[0].stamp_ns
        return ready[0]

    def count_dropped(self, reason: str, count: int = 1) -> None:
        if count:
            self.dropped[reason] += count


class Worker:
    """
    Odometry and images that callbacks add at any time, and a thread that processes them.

    Hold `condition` to use `buffer` or `queue`. `odometry_counts`: samples by outcome.
    """

    def __init__(self, buffer: OdometryBuffer, queue: ImageQueue, log: Log) -> None:
        self.buffer, self.queue, self._log = buffer, queue, log
        self.condition, self._stopping = threading.Condition(), threading.Event()
        self.odometry_counts = Counter[str]()

    @property
    def dropped(self) -> Counter[str]:
        """Images that were not used, by reason."""
        with self.condition:
            return self.queue.dropped.copy()

    def count_dropped(self, reason: str, count: int = 1) -> None:
        """Count images that were taken from the queue but not used."""
        with self.condition:
            self.queue.count_dropped(reason, count)

    def add_odometry(self, stamp_ns: int, pose: se2.FloatArray, new_source: bool = False) -> None:
        """Add a pose (3,) as `OdometryBuffer.add` does."""
        with self.condition:
            outcome = self.buffer.add(stamp_ns, pose, new_source)
            self.odometry_counts[outcome.value] += 1
            self._on_odometry(outcome, stamp_ns)
            if len(self.queue):
                self.condition.notify()

    def add_image(self, stamp_ns: int, load: Callable[[], Image]) -> None:
        """Add an image; `load` decodes it in the worker thread."""
        with self.condition:
            self.queue.put(QueuedImage(stamp_ns, load, time.monotonic()))
            self.condition.notify()

    def start(self, publish: Callable[[Any], None]) -> None:
        """Call `work` in a thread, and `publish` with each result."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, args=(publish,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after the image that it is processing."""
        self._stopping.set()
        self._thread.join()

    def work(self, timeout: float) -> Any:
        """Wait at most `timeout` seconds for an image and process it; return a result or None."""
        raise NotImplementedError

    def recover_from_error(self) -> None:
        """Count the image of an unexpected error; the thread continues with the next one."""
        self.count_dropped('internal error')

    def _on_odometry(self, outcome: Outcome, stamp_ns: int) -> None:
        """React to a sample; called with `condition` held."""
        raise NotImplementedError

    def _run(self, publish: Callable[[Any], None]) -> None:
        while not self._stopping.is_set():
            try:
                result = self.work(WAKE_SECONDS)
                if result is not None:
                    publish(result)
            except KbrError as error:
                self._log('error', str(error))
                self._stopping.wait(WAKE_SECONDS)
            except Exception:
                self._log('error', f'internal error, restarting:\n{traceback.format_exc()}')
                self.recover_from_error()
                self._stopping.wait(WAKE_SECONDS)
