"""
From a robot that drives to a run for the map: which images are kept, with which poses. No rclpy.

The pose of an image is the odometry at its stamp, moved by the transform from the odometry frame
to the map that the nearest pose message says. So poses that come seldom, as from AMCL, do as well
as those of a motion capture system.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Sequence
import math
import threading
import time

from kbr_localization import se2
from kbr_localization.datasets.cold_recording import ColdRecording
from kbr_localization.datasets.frame import Image
from kbr_localization.datasets.odometry_jumps import FEWEST, SLACK
from kbr_localization.errors import DatasetError
from kbr_localization.ros.config import RecorderConfig
from kbr_localization.ros.image_queue import ImageQueue, QueuedImage
from kbr_localization.ros.odometry_buffer import Added, Coverage, OdometryBuffer, SECOND, Stamped
from kbr_localization.ros.running import format_counts
import numpy as np

NEARLY = 0.99
"""A camera that sends just at the spacing must not lose every other image to rounding."""
STALL_SECONDS = 5.0
"""While images come in and none is recorded, after which that is told."""


class PoseAnchors:
    """Transforms from the odometry frame to the map at the stamps of pose messages."""

    def __init__(self, max_age_ns: int) -> None:
        self._max_age_ns = max_age_ns
        self.clear()

    def clear(self) -> None:
        """Forget everything, as after a jump of the odometry."""
        self._waiting: list[Stamped] = []
        self._anchors: list[Stamped] = []

    def add(self, stamp_ns: int, pose: se2.FloatArray) -> None:
        """Take in a pose (3,) in the map, to wait for the odometry at its stamp."""
        self._waiting = [*self._waiting[-200:], (stamp_ns, pose)]

    def settle(self, odometry: SettledOdometry) -> None:
        """Turn each pose that the odometry has reached into a transform."""
        early = []
        for stamp_ns, pose in self._waiting:
            state = odometry.coverage(stamp_ns)
            if state is Coverage.EARLY:
                early.append((stamp_ns, pose))
            elif state is Coverage.READY:
                odom_in_map = se2.compose(pose, se2.inverse(odometry.buffer.at(stamp_ns)))
                bisect.insort(self._anchors, (stamp_ns, odom_in_map), key=lambda one: one[0])
        self._waiting = early
        del self._anchors[:-500]

    def nearest(self, stamp_ns: int) -> se2.FloatArray | None:
        """Odometry frame in the map (3,) at the nearest pose message, None if none is near."""
        at = bisect.bisect_left(self._anchors, stamp_ns, key=lambda one: one[0])
        around = self._anchors[max(at - 1, 0) : at + 1]  # noqa: E203
        nearest = min(around, key=lambda one: abs(one[0] - stamp_ns), default=None)
        if nearest is None or abs(nearest[0] - stamp_ns) > self._max_age_ns:
            return None
        return nearest[1]


class SettledOdometry:
    """
    The odometry without its newest sample, which waits for one that continues it.

    A stamp from the future is found out only by the samples after it: on the disk it would keep
    them out until that time has come, and images would be placed by it. `until_ns`: stamp of the
    newest settled sample.
    """

    def __init__(self) -> None:
        self.buffer = OdometryBuffer()
        self._held: list[Stamped] = []
        self.until_ns = -1

    def add(
        self, stamp_ns: int, pose: se2.FloatArray, anew: bool = False
    ) -> tuple[Added, list[Stamped]]:
        """Take in a sample (3,); return what became of it, and the samples that are settled."""
        outcome = self.buffer.add(stamp_ns, pose, anew)
        if outcome is Added.INSERTED:  # behind the newest one
            self.until_ns = max(self.until_ns, stamp_ns)
            return outcome, [(stamp_ns, pose)]
        if not outcome.leads:
            return outcome, []
        track = self.buffer.newest(1 if outcome is Added.NEWEST else FEWEST)
        # a held sample that is not older than what the track goes on with was a stray
        settled = [held for held in self._held if held[0] < track[0][0]] + track[:-1]
        self._held = track[-1:]
        return outcome, self._settle(settled)

    def end(self) -> list[Stamped]:
        """Return the sample that is held back: no other one follows."""
        held, self._held = self._held, []
        return self._settle(held)

    def _settle(self, samples: list[Stamped]) -> list[Stamped]:
        self.until_ns = samples[-1][0] if samples else self.until_ns
        return samples

    def coverage(self, stamp_ns: int) -> Coverage:
        """Say whether the settled odometry covers a stamp, will, or never."""
        state = self.buffer.coverage(stamp_ns)
        early = state is not Coverage.LATE and stamp_ns > self.until_ns
        return Coverage.EARLY if early else state


class RecordingSession:
    """
    Images, odometry and poses on their way to a run. Thread-safe except `work`.

    `encode` gives the JPEG or PNG files of an image. `needs_poses`: images wait for a pose, else
    they are recorded by the odometry alone. `trouble`: what keeps the session from writing; it is
    tried again. `dropped`, `poses_dropped`, `odometry_counts` count by reason.
    """

    def __init__(
        self,
        recording: ColdRecording,
        config: RecorderConfig,
        log: Callable[[str, str], None],
        encode: Callable[[QueuedImage], bytes | Sequence[bytes]],
    ) -> None:
        self.config, self._recording = config, recording
        self._log, self._encode = log, encode
        self._news = threading.Condition()
        self._odometry = SettledOdometry()
        # every image may be one too many, none is more urgent than another
        self._queue = ImageQueue(config.image_queue, backlog=config.image_queue)
        self._anchors = PoseAnchors(round(config.max_pose_age * SECOND))
        self._unwritten: list[Stamped] = []
        last = recording.last_odometry
        self._written_ns = last.stamp_ns if last else 0
        self._held: tuple[QueuedImage, se2.FloatArray] | None = None
        self._retry_at = 0.0
        self.needs_poses = True
        self.trouble = ''
        self._failures = Counter[str]()
        self.poses_dropped = Counter[str]()
        self.odometry_counts = Counter[str]()
        self._came = self._placed = -math.inf
        self._lost_before = Counter[str]()

    @property
    def dropped(self) -> Counter[str]:
        """Images that were not recorded, by reason."""
        with self._news:
            return self._queue.dropped + self._failures

    @property
    def recorded(self) -> int:
        """Images in the run."""
        return self._recording.count

    def add_odometry(self, stamp_ns: int, pose: se2.FloatArray, anew: bool = False) -> Added:
        """Take in a raw odometry pose (3,); `anew`: the first from another source."""
        with self._news:
            outcome, settled = self._odometry.add(stamp_ns, pose, anew)
            self.odometry_counts[outcome.value] += 1
            if outcome in (Added.TIME_JUMP, Added.POSE_JUMP):
                self._log('warning', f'{outcome.value} in the odometry: poses are awaited anew')
                self._queue.clear('before a jump')
                self._anchors.clear()
            self._unwritten += settled
            self._news.notify()
            return outcome

    def add_pose(self, stamp_ns: int, pose: se2.FloatArray, position_sd: float) -> None:
        """Take in a pose (3,) in the map frame with the deviation of its position in metres."""
        most = self.config.max_position_sd
        with self._news:
            if position_sd <= most:
                self._anchors.add(stamp_ns, pose)
                self._news.notify()
                return
            self.poses_dropped['too uncertain'] += 1
        self._log(
            'warning',
            f'pose not used: its standard deviation is {position_sd:.2f} m, expected at most '
            f'max_position_sd, {most:g} m: wait until whoever knows the pose is sure of it, or '
            'raise max_position_sd',
        )

    def add_image(self, stamp_ns: int, load: Callable[[], Image]) -> None:
        """Take in an image."""
        now = time.monotonic()
        with self._news:
            if now - self._came > STALL_SECONDS:
                self._note_progress(now)
            self._came = now
            self._queue.put(QueuedImage(stamp_ns, load, now))
            self._news.notify()

    def stall(self, now: float) -> str:
        """Say why none of the images that come in has been recorded for long, or nothing."""
        with self._news:
            silent = now - self._came > STALL_SECONDS
            if silent or now - self._placed <= STALL_SECONDS:
                return ''
            lost = self._lost() - self._lost_before
        why = format_counts(lost) if lost else 'they wait for odometry or pose'
        return f'images come in, but none could be recorded for {now - self._placed:.0f} s: {why}'

    def work(self, timeout: float) -> QueuedImage | None:
        """
        Record the next image that is due, waiting at most `timeout` seconds for news.

        What cannot be written is kept, as far as there is room, and tried again in a moment.
        """
        with self._news:
            self._anchors.settle(self._odometry)
            if time.monotonic() < self._retry_at:
                self._news.wait(timeout)
                return None
            self._held = self._held or self._next_due()
            unwritten, self._unwritten = self._unwritten, []
            if self._held is None and not unwritten:
                self._news.wait(timeout)
                return None
        try:
            self._write_odometry(unwritten)
            recorded = None if self._held is None else self._record(*self._held)
        except DatasetError as error:
            with self._news:
                # of an hour, at most
                self._unwritten = [*unwritten, *self._unwritten][-100_000:]
            self.trouble, self._retry_at = str(error), time.monotonic() + 1.0
            self._log('error', f'{error}; it is tried again')
            return None
        self._held = None
        if self.trouble:
            self.trouble = ''
            self._log('info', 'recording goes on')
        return recorded

    def recover_from_error(self) -> None:
        """Count an unexpected error, and leave out the image that it may lie in."""
        self._held = None
        self.count('internal error')

    def count(self, reason: str) -> None:
        """Count an image that is not recorded."""
        with self._news:
            self._failures[reason] += 1

    def close(self) -> None:
        """
        Record the images that have all they need, count the others, write what is left.

        Raises DatasetError when that cannot be written.
        """
        with self._news:
            self._unwritten += self._odometry.end()
        self._retry_at, waiting = 0.0, -1
        while waiting != len(self._queue):
            waiting = len(self._queue)
            self.work(0.0)
        if self._held is not None:
            self.count('could not be written')
            self._queue.clear('could not be written')
        self._queue.clear('still without odometry or pose at the end')
        try:
            self._write_odometry(self._unwritten)
            if self._held is not None:
                raise DatasetError(self.trouble)
        finally:
            self._recording.close()

    def _next_due(self) -> tuple[QueuedImage, se2.FloatArray] | None:
        image = self._queue.take(self._coverage)
        if image is None:
            return None
        pose = self._odometry.buffer.at(image.stamp_ns)
        if self.needs_poses:
            odom_in_map = self._anchors.nearest(image.stamp_ns)
            if odom_in_map is None:
                return None
            pose = se2.compose(odom_in_map, pose)
        return (image, pose) if self._is_due(image, pose) else None

    def _coverage(self, stamp_ns: int) -> Coverage:
        state = self._odometry.coverage(stamp_ns)
        known = not self.needs_poses or self._anchors.nearest(stamp_ns) is not None
        if state is not Coverage.READY or known:
            return state
        waited_ns = self._odometry.until_ns - stamp_ns
        late = waited_ns > self.config.max_pose_age * SECOND
        return Coverage.UNPLACED if late else Coverage.EARLY

    def _is_due(self, image: QueuedImage, pose: se2.FloatArray) -> bool:
        last = self._recording.last_image
        if last is None or last.reference is None:
            return True
        if image.stamp_ns // 1000 <= last.stamp_ns // 1000:
            self.count('not newer than the run')
            self._log(
                'warning',
                f'image of {image.stamp_ns * 1e-9:.3f} s not recorded: expected one after the '
                f'last of the run, {last.stamp_ns * 1e-9:.3f} s: record into a new folder, or see '
                'why the clock is behind',
            )
            return False
        distance, angle = _step(last.reference, pose)
        due = (
            distance >= NEARLY * self.config.spacing_distance
            or angle >= NEARLY * self.config.spacing_angle
        )
        if not due:
            self._note_progress(time.monotonic())
        return due

    def _record(self, image: QueuedImage, pose: se2.FloatArray) -> QueuedImage | None:
        try:
            encoded = self._encode(image)
        except DatasetError as error:
            self.count('broken image')
            self._log('warning', f'image not recorded: {error}')
            return None
        self._recording.append_image(image.stamp_ns, pose, encoded, self.config.label)
        with self._news:
            self._note_progress(time.monotonic())
        return image

    def _write_odometry(self, samples: Sequence[Stamped]) -> None:
        """Write the samples that are due at `odometry_rate`, and those about a jump."""
        last_ns, chosen = self._written_ns, []
        period_ns = SECOND / self.config.odometry_rate
        for before, (stamp_ns, pose) in zip([None, *samples], samples, strict=False):
            # further apart the samples about a jump would be plausible
            jumps = before is not None and max(_step(before[1], pose)) > SLACK
            if before is not None and jumps and before[0] > last_ns:
                chosen.append(before)
                last_ns = before[0]
            # a little early is on time, or 20 Hz with jitter would become 10 Hz
            if stamp_ns - last_ns >= (1 if jumps else 0.9 * period_ns):
                chosen.append((stamp_ns, pose))
                last_ns = stamp_ns
        if chosen:
            self._recording.append_odometry(chosen)
            self._written_ns = last_ns

    def _lost(self) -> Counter[str]:
        poses = Counter({f'poses {why}': count for why, count in self.poses_dropped.items()})
        return self.dropped + poses

    def _note_progress(self, now: float) -> None:
        """Note that an image was recorded, or is not wanted so near to the last one."""
        self._placed, self._lost_before = now, self._lost()


def _step(start: se2.FloatArray, end: se2.FloatArray) -> tuple[float, float]:
    step = np.abs(se2.between(start, end))
    return math.hypot(step[0], step[1]), float(step[2])
