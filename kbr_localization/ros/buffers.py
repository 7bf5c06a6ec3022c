"""Odometry and images, which wait for each other and for a worker, and why they are dropped."""

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
"""How long a node or a worker may take to notice that it shall stop."""
MAX_GAP_NS = 2 * SECOND
"""No interpolation between samples that are further apart."""
AHEAD_NS = 2 * SECOND
"""By which a given pose may be newer than odometry of the same clock that is a little late."""

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


class Coverage(enum.Enum):
    """Whether the odometry covers an image's stamp."""

    READY = 'ready'
    EARLY = 'ahead of the odometry'
    LATE = 'older than the odometry buffer'
    GAP = 'in an odometry gap'


class OdometryBuffer:
    """
    The odometry of the last `duration_ns`, interpolated to the stamps of images.

    Messages may come late, twice, out of order, broken, or from another time altogether (a bag
    that starts over, a driver that restarts). A sample that does not continue the track by
    `tracks.reachable` at `max_speed` in m/s is set aside; `tracks.MIN_SEGMENT_POSES` in a row
    that continue each other replace it. `resets`: how often everything was forgotten.
    """

    def __init__(
        self, duration_ns: int = 20 * SECOND, max_speed: float = tracks.MAX_SPEED
    ) -> None:
        self._duration_ns, self._max_speed = duration_ns, max_speed
        self.resets = -1
        self.clear()

    def newest(self, count: int) -> list[Stamped]:
        """Return the newest samples in order."""
        return self._samples[-count:]

    def clear(self) -> None:
        """Forget everything."""
        self.resets += 1
        self._samples: list[Stamped] = []
        self._aside: list[Stamped] = []
        self._correction = np.zeros(3)

    def add(self, stamp_ns: int, pose: se2.FloatArray, anew: bool = False) -> Added:
        """Take in a sample (3,); `anew`: it is the first from another source, a POSE_JUMP."""
        sample, samples = (stamp_ns, pose), self._samples
        if not np.isfinite(pose).all():
            return Added.NOT_FINITE
        if anew and samples:
            return self._jump([sample])
        if not samples or self._continues(samples[-1], sample):
            self._aside = []
            return self._append([sample], Added.NEWEST)
        # but for a moment the newest one may be a stray stamp from the future
        if stamp_ns == samples[-1][0] or 0 <= samples[-2:][0][0] - stamp_ns <= SECOND:
            return Added.LATE
        if self._aside and not self._continues(self._aside[-1], sample):
            self._aside = []
        self._aside.append(sample)
        if len(self._aside) < tracks.MIN_SEGMENT_POSES:
            return Added.SET_ASIDE
        return self._replace(self._aside)

    def coverage(self, stamp_ns: int) -> Coverage:
        """Say whether a pose at a stamp can be had, will be, or never."""
        if not self._samples or stamp_ns > self._samples[-1][0]:
            return Coverage.EARLY
        if stamp_ns < self._samples[0][0]:
            return Coverage.LATE
        around = self._around(stamp_ns)
        bridged = around[-1][0] == stamp_ns or around[-1][0] - around[0][0] <= MAX_GAP_NS
        return Coverage.READY if bridged else Coverage.GAP

    def at(self, stamp_ns: int) -> se2.FloatArray:
        """Pose (3,) interpolated at a stamp that is covered."""
        stamps, poses = zip(*self._around(stamp_ns), strict=True)
        return se2.interpolate(np.array(stamps, dtype=np.int64), np.stack(poses), stamp_ns)

    def continued(self, pose: se2.FloatArray) -> se2.FloatArray:
        """Pose (3,) as if the robot had stood still at each POSE_JUMP: without large steps."""
        return se2.compose(self._correction, pose)

    def _around(self, stamp_ns: int) -> list[Stamped]:
        after = bisect.bisect_left(self._samples, stamp_ns, key=itemgetter(0))
        return self._samples[max(after - 1, 0) : after + 1]  # noqa: E203

    def _append(self, samples: list[Stamped], outcome: Added) -> Added:
        self._samples += samples
        begin_ns = self._samples[-1][0] - self._duration_ns
        oldest = bisect.bisect_left(self._samples, begin_ns, key=itemgetter(0))
        if oldest > len(self._samples) // 4:  # deleting the head moves the whole list
            del self._samples[:oldest]
        return outcome

    def _continues(self, last: Stamped, sample: Stamped) -> bool:
        return sample[0] - last[0] <= 10 * SECOND and self._may_follow(last, sample)

    def _may_follow(self, last: Stamped, sample: Stamped) -> bool:
        """Whether a robot may have come from one sample to a later one, however much later."""
        recent = self._samples[-10:]
        period = 1e-9 * (recent[-1][0] - recent[0][0]) / max(len(recent) - 1, 1)
        pause = min(tracks.PAUSE, tracks.PAUSE_PERIODS * period or tracks.PAUSE)
        near = tracks.reachable(*last, *sample, self._max_speed, pause)
        return sample[0] > last[0] and bool(near)

    def _replace(self, track: list[Stamped]) -> Added:
        """Go on with samples that were set aside."""
        samples, self._aside = self._samples, []
        if track[0][0] >= samples[-1][0]:
            if self._may_follow(samples[-1], track[0]):
                return self._append(track, Added.TIME_GAP)
            return self._jump(track)
        if len(samples) > 1 and self._continues(samples[-2], track[0]):
            del samples[-1]
            return self._append(track, Added.RETURNED)
        self.clear()
        return self._append(track, Added.TIME_JUMP)

    def _jump(self, track: list[Stamped]) -> Added:
        stopped_at = self.continued(self._samples[-1][1])
        self.clear()
        self._correction = se2.compose(stopped_at, se2.inverse(track[0][1]))
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
        self._images: list[QueuedImage] = []
        self._taken_ns: int | None = None
        self.dropped: Counter[str] = Counter()

    def __len__(self) -> int:
        """Count the waiting images."""
        return len(self._images)

    def clear(self, reason: str) -> None:
        """Drop all images; stamps may start over."""
        self._drop(reason, len(self._images))
        self._images, self._taken_ns = [], None

    def put(self, image: QueuedImage) -> None:
        """Take in an image, or drop it or others: older than the last one taken, too many."""
        stamps = [waiting.stamp_ns for waiting in self._images]
        if image.stamp_ns in (*stamps, self._taken_ns):
            self._drop('duplicate stamp')
            return
        if self._taken_ns is not None and image.stamp_ns < self._taken_ns:
            self._drop('older than the last one used')
            return
        bisect.insort(self._images, image, key=lambda one: one.stamp_ns)
        # more than 10 s ahead of a later image: a stamp of another clock
        kept = [one for one in self._images if one.stamp_ns <= image.stamp_ns + 10 * SECOND]
        self._drop('stamps went back', len(self._images) - len(kept))
        surplus = max(len(kept) - self._size, 0)
        self._drop('too many wait for odometry', surplus)
        self._images = kept[: len(kept) - 1 - surplus] + kept[-1:]

    def take(self, coverage: Callable[[int], Coverage]) -> QueuedImage | None:
        """Take the next image that is READY; drop a backlog and what will never be."""
        pairs = [(image, coverage(image.stamp_ns)) for image in self._images]
        ready = [image for image, state in pairs if state is Coverage.READY]
        early = [image for image, state in pairs if state is Coverage.EARLY]
        for _, state in pairs:
            self._drop(state.value, state not in (Coverage.READY, Coverage.EARLY))
        if len(ready) > self._backlog:
            self._drop('a newer one was there', len(ready) - 1)
            ready = ready[-1:]
        self._images = ready[1:] + early
        if not ready:
            return None
        self._taken_ns = ready[0].stamp_ns
        return ready[0]

    def _drop(self, reason: str, count: int = 1) -> None:
        if count:
            self.dropped[reason] += count


class Feed:
    """
    What callbacks hand in at any time, and the thread that works on it, between start and stop.

    `buffer`, `queue`: odometry and images, used with `news` held. `odometry_counts`: samples by
    what became of them. `log`: called with level and text.
    """

    def __init__(
        self, buffer: OdometryBuffer, queue: ImageQueue, log: Callable[[str, str], None]
    ) -> None:
        self.buffer, self.queue, self._log = buffer, queue, log
        self.news, self._ends = threading.Condition(), threading.Event()
        self.odometry_counts = Counter[str]()

    @property
    def dropped(self) -> Counter[str]:
        """Images that were not used, by reason."""
        with self.news:
            return +self.queue.dropped  # without reasons that are counted as 0

    def count(self, reason: str, count: int = 1) -> None:
        """Count images that were not used though the queue gave them."""
        with self.news:
            self.queue.dropped[reason] += count

    def add_odometry(self, stamp_ns: int, pose: se2.FloatArray, anew: bool = False) -> None:
        """Take in a raw odometry pose (3,); `anew`: it is the first from another source."""
        with self.news:
            outcome = self.buffer.add(stamp_ns, pose, anew)
            self.odometry_counts[outcome.value] += 1
            self._odometry_came(outcome, stamp_ns)
            if len(self.queue):
                self.news.notify()

    def add_image(self, stamp_ns: int, load: Callable[[], Image]) -> None:
        """Take in an image that `load` will decode in the worker."""
        with self.news:
            self.queue.put(QueuedImage(stamp_ns, load, time.monotonic()))
            self.news.notify()

    def start(self, publish: Callable[[Any], None]) -> None:
        """Call `work` in a thread, and `publish` with each result."""
        self._ends.clear()
        self._thread = threading.Thread(target=self._run, args=(publish,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let the thread finish what it is doing and end."""
        self._ends.set()
        self._thread.join()

    def work(self, timeout: float) -> Any:
        """Do what there is to do, waiting for it at most `timeout` seconds; None: no result."""
        raise NotImplementedError

    def recover_from_error(self) -> None:
        """Be able to work on after an unexpected error: a bug must not end a node."""
        raise NotImplementedError

    def _odometry_came(self, outcome: Added, stamp_ns: int) -> None:
        """React to a sample, with `news` held."""
        raise NotImplementedError

    def _run(self, publish: Callable[[Any], None]) -> None:
        while not self._ends.is_set():
            try:
                result = self.work(WAKE_SECONDS)
                if result is not None:
                    publish(result)
            except KbrError as error:
                self._log('error', str(error))
                self._ends.wait(WAKE_SECONDS)
            except Exception:
                self._log('error', f'internal error, restarting:\n{traceback.format_exc()}')
                self.recover_from_error()
                self._ends.wait(WAKE_SECONDS)
