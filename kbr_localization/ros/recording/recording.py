"""
From a robot that drives to a run for the map: which images are kept, with which poses. No rclpy.

The pose of an image is the odometry at its stamp, moved by the transform from the odometry frame
to the map that the pose messages around it say. So poses that come seldom, as from AMCL, do as
well as those of a motion capture system.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
import math
import threading
import time

from kbr_localization import se2
from kbr_localization.configuration import parameter, validate
from kbr_localization.datasets.cold_recording import ColdRecording
from kbr_localization.datasets.frame import Image
from kbr_localization.errors import DatasetError
from kbr_localization.ros.recording.poses import (
    OdometryRecord,
    PoseAnchors,
    SureOdometry,
)
from kbr_localization.ros.recording.tally import Tally
from kbr_localization.ros.session.image_queue import ImageQueue, QueuedImage
from kbr_localization.ros.session.odometry_buffer import Added, Coverage, Stamped

SECOND = 1_000_000_000
NEARLY = 0.99
"""A camera that sends just at the spacing must not lose every other image to rounding."""
MOST_UNWRITTEN = 100_000
"""Odometry poses that wait for room on the disk: an hour of them."""
RETRY_SECONDS = 1.0


@dataclass(frozen=True)
class RecordingConfig:
    """Which images are recorded, and where."""

    out: str = parameter('', 'run folder to write; an existing run is continued')
    spacing_distance: float = parameter(
        0.2, 'metres of way after which an image is recorded', 0.0, 100.0
    )
    spacing_angle: float = parameter(
        0.2, 'radians of turning after which an image is recorded', 0.0, 7.0
    )
    max_pose_age: float = parameter(
        2.0, 'seconds between an image and the nearest pose message at most', 0.01
    )
    max_position_sd: float = parameter(
        0.5, 'poses with a larger standard deviation of x or y are not used, metres', 0.0
    )
    odometry_rate: float = parameter(20.0, 'odometry poses recorded per second', 1.0, 1000.0)
    label: str = parameter('unknown', "the place's name, written beside every image")
    jpeg_quality: int = parameter(95, 'quality of images that come raw', 1, 100)
    image_queue: int = parameter(60, 'images that may wait for odometry and pose', 1, 200)

    def __post_init__(self) -> None:
        validate(self)


class RecordingSession:
    """Thread-safe but for `work`, which belongs to one thread."""

    def __init__(
        self,
        recording: ColdRecording,
        config: RecordingConfig,
        log: Callable[[str, str], None],
        encode: Callable[[QueuedImage], bytes | Sequence[bytes]],
    ) -> None:
        self.config, self._recording = config, recording
        self._log, self._encode = log, encode
        self._news = threading.Condition()
        self._sure = SureOdometry()
        # every image may be one too many, none is more urgent than another
        self._queue = ImageQueue(config.image_queue, backlog=config.image_queue)
        self._anchors = PoseAnchors(round(config.max_pose_age * SECOND))
        self._unwritten: list[Stamped] = []
        self._odometry = OdometryRecord(recording, config.odometry_rate)
        self._held: tuple[QueuedImage, se2.FloatArray] | None = None
        self._retry_at = 0.0
        self.needs_poses = True
        """Whether images wait for a pose; else they are recorded by the odometry alone."""
        self.trouble = ''
        """What keeps the session from writing; it is tried again and again."""
        self.tally = Tally(self._queue.dropped)
        self.odometry_counts: Counter[str] = Counter()

    @property
    def dropped(self) -> Counter[str]:
        """Images that were not recorded, by reason."""
        with self._news:
            return self.tally.dropped

    @property
    def recorded(self) -> int:
        """Images in the run."""
        return self._recording.count

    def add_odometry(self, stamp_ns: int, pose: se2.FloatArray) -> Added:
        """Take in a raw odometry pose (3,)."""
        with self._news:
            outcome = self._sure.buffer.add(stamp_ns, pose)
            self.odometry_counts[outcome.value] += 1
            if outcome in (Added.TIME_JUMP, Added.POSE_JUMP):
                self._log('warning', f'{outcome.value} in the odometry: poses are awaited anew')
                self._queue.clear('before a jump')
                self._anchors.clear()
            self._unwritten += self._sure.follow(outcome, stamp_ns, pose)
            self._news.notify()
            return outcome

    def add_pose(self, stamp_ns: int, pose: se2.FloatArray, position_sd: float) -> None:
        """Take in a pose (3,) in the map frame with the deviation of its position in metres."""
        with self._news:
            most = self.config.max_position_sd
            if not position_sd <= most:
                self.tally.poses['too uncertain'] += 1
                self._log(
                    'warning',
                    f'pose not used: its standard deviation is {position_sd:.2f} m, expected at '
                    f'most max_position_sd, {most:g} m: wait until whoever knows the pose is sure '
                    'of it, or raise max_position_sd',
                )
                return
            self._anchors.add(stamp_ns, pose)
            self._news.notify()

    def add_image(self, stamp_ns: int, load: Callable[[], Image]) -> None:
        """Take in an image."""
        now = time.monotonic()
        with self._news:
            self.tally.came(now)
            self._queue.put(QueuedImage(stamp_ns, load, now))
            self._news.notify()

    def stall(self, now: float) -> str:
        """Say why none of the images that come in has been recorded for long, or nothing."""
        with self._news:
            return self.tally.stall(now)

    def work(self, timeout: float) -> QueuedImage | None:
        """
        Record the next image that is due, waiting at most `timeout` seconds for news.

        What cannot be written is kept, as far as there is room, and tried again in a moment.
        """
        with self._news:
            self._anchors.settle(self._sure)
            if time.monotonic() < self._retry_at:
                self._news.wait(timeout)
                return None
            self._held = self._held or self._next_due()
            unwritten, self._unwritten = self._unwritten, []
            if self._held is None and not unwritten:
                self._news.wait(timeout)
                return None
        try:
            self._odometry.write(unwritten)
            recorded = None if self._held is None else self._record(*self._held)
        except DatasetError as error:
            self._keep(unwritten, str(error))
            return None
        self._held = None
        self._log_recovery()
        return recorded

    def _next_due(self) -> tuple[QueuedImage, se2.FloatArray] | None:
        image = self._queue.take(self._coverage)
        pose = None if image is None else self._pose_at(image.stamp_ns)
        if image is None or pose is None or not self._is_due(image, pose):
            return None
        return image, pose

    def _keep(self, unwritten: list[Stamped], trouble: str) -> None:
        with self._news:
            self._unwritten = [*unwritten, *self._unwritten]
            del self._unwritten[:-MOST_UNWRITTEN]
            self.trouble, self._retry_at = trouble, time.monotonic() + RETRY_SECONDS
        self._log('error', f'{trouble}; it is tried again')

    def _log_recovery(self) -> None:
        if self.trouble:
            self.trouble = ''
            self._log('info', 'recording goes on')

    def recover_from_error(self) -> None:
        """Count an unexpected error, and leave out the image that it may lie in."""
        self._held = None
        self._count('internal error')

    def _count(self, reason: str) -> None:
        with self._news:
            self.tally.images[reason] += 1

    def close(self) -> None:
        """
        Record the images that have all they need, count the others, write what is left.

        Raises DatasetError when that cannot be written.
        """
        with self._news:
            self._unwritten += self._sure.end()
        self._retry_at = 0.0
        waiting = -1
        while waiting != len(self._queue):
            waiting = len(self._queue)
            self.work(0.0)
        with self._news:
            if self._held is not None:
                self._count('could not be written')
                self._queue.clear('could not be written')
            self._queue.clear('still without odometry or pose at the end')
            unwritten, self._unwritten = self._unwritten, []
        try:
            self._odometry.write(unwritten)
            if self._held is not None:
                raise DatasetError(self.trouble)
        finally:
            self._recording.close()

    def _coverage(self, stamp_ns: int) -> Coverage:
        state = self._sure.coverage(stamp_ns)
        known = not self.needs_poses or self._anchors.nearest(stamp_ns) is not None
        if state is not Coverage.READY or known:
            return state
        waited_ns = self._sure.until_ns - stamp_ns
        late = waited_ns > self.config.max_pose_age * SECOND
        return Coverage.UNPLACED if late else Coverage.EARLY

    def _pose_at(self, stamp_ns: int) -> se2.FloatArray | None:
        """Pose (3,) in the map at an image's stamp, or by the odometry where that is enough."""
        odometry = self._sure.buffer.at(stamp_ns)
        return self._anchors.carried(stamp_ns, odometry) if self.needs_poses else odometry

    def _is_due(self, image: QueuedImage, pose: se2.FloatArray) -> bool:
        last = self._recording.last_image
        if last is None or last.reference is None:
            return True
        if image.stamp_ns // 1000 <= last.stamp_ns // 1000:
            self._count('not newer than the run')
            self._log(
                'warning',
                f'image of {image.stamp_ns * 1e-9:.3f} s not recorded: expected one after the '
                f'last of the run, {last.stamp_ns * 1e-9:.3f} s: record into a new folder, or see '
                'why the clock is behind',
            )
            return False
        step = se2.between(last.reference, pose)
        distance, angle = math.hypot(step[0], step[1]), abs(float(step[2]))
        is_due = (
            distance >= NEARLY * self.config.spacing_distance
            or angle >= NEARLY * self.config.spacing_angle
        )
        if not is_due:
            self.tally.placed(time.monotonic())
        return is_due

    def _record(self, image: QueuedImage, pose: se2.FloatArray) -> QueuedImage | None:
        try:
            encoded = self._encode(image)
        except DatasetError as error:
            self._count('broken image')
            self._log('warning', f'image not recorded: {error}')
            return None
        self._recording.append_image(image.stamp_ns, pose, encoded, self.config.label)
        with self._news:
            self.tally.placed(time.monotonic())
        return image
