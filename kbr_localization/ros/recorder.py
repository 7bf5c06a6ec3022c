"""
The recorder node: drive a robot that knows its pose, get a run for `kbr map build`.

The pose of an image is the odometry at its stamp, moved by the transform from the odometry frame
to the map that the nearest pose message says. So poses that come seldom, as from AMCL, do as well
as frequent ones of a motion capture system.
"""

import bisect
from collections import Counter
from collections.abc import Callable, Sequence
import math
from operator import itemgetter
import sys
import time
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from geometry_msgs.msg import PoseArray, PoseStamped, PoseWithCovarianceStamped
from kbr_localization import se2
from kbr_localization.configuration import fields_of
from kbr_localization.datasets.cold import ColdRecording
from kbr_localization.datasets.images import encoded_bytes
from kbr_localization.datasets.multi_camera import camera_names, LazyImages
from kbr_localization.datasets.tracks import FEWEST
from kbr_localization.errors import ConfigurationError, DatasetError, KbrError, RosError
from kbr_localization.files import expanded
from kbr_localization.ros import conversions, diagnostics
from kbr_localization.ros.buffers import (
    Added,
    Coverage,
    Feed,
    ImageQueue,
    OdometryBuffer,
    QueuedImage,
    SECOND,
    Stamped,
)
from kbr_localization.ros.config import RecorderConfig
from kbr_localization.ros.inputs import Inputs, subscribe, TransformListener
from kbr_localization.ros.outputs import LATCHED
from kbr_localization.ros.parameters import declare, ParameterNode, refuse_misspelt
from kbr_localization.ros.running import format_counts, NodeLogger, run_program, spin
from nav_msgs.msg import Odometry
import numpy as np
from rclpy.qos import QoSProfile, ReliabilityPolicy

POSE_MESSAGES = {
    'pose_with_covariance': PoseWithCovarianceStamped,
    'pose': PoseStamped,
    'odometry': Odometry,
}
POSE_QOS = QoSProfile(depth=50, reliability=ReliabilityPolicy.BEST_EFFORT)

STALL_SECONDS = 5.0
"""Time without a recorded image, while images come in, before a warning."""


class RecordingSession(Feed):
    """
    Images, odometry and poses on their way to a run. Thread-safe except `work`.

    `encode` gives the JPEG or PNG files of an image. `trouble`: what kept the session from writing
    last time. `poses_dropped` counts by reason. With `pose_type` none images are recorded by the
    odometry alone; raises DatasetError for a run of the other kind.

    The newest odometry sample is not used before one continues it: a stamp from the future is
    found out only by the samples after it. On the disk it would keep these out until that time
    has come, and images would be placed by it.
    """

    def __init__(
        self,
        recording: ColdRecording,
        config: RecorderConfig,
        log: Callable[[str, str], None],
        encode: Callable[[QueuedImage], bytes | Sequence[bytes]],
    ) -> None:
        self._longest_ns = round(config.max_pose_age * SECOND)
        # every image may be one too many, none is more urgent than another
        queue = ImageQueue(config.image_queue, config.image_queue)
        super().__init__(OdometryBuffer(20 * SECOND + 2 * self._longest_ns), queue, log)
        self.config, self._recording, self._encode = config, recording, encode
        self._needs_poses = config.pose_type != 'none'
        recording.set_poses(known=self._needs_poses)
        self._written_ns = recording.last_odometry.stamp_ns if recording.last_odometry else 0
        self._unwritten, self._poses, self._at_end = list[Stamped](), list[Stamped](), False
        self.poses_dropped, self.trouble = Counter[str](), ''
        self._placed = time.monotonic()

    @property
    def recorded(self) -> int:
        """Images in the run."""
        return self._recording.count

    def add_pose(self, stamp_ns: int, pose: se2.FloatArray, position_sd: float) -> None:
        """Take in a pose (3,) in the map frame with the deviation of its position in metres."""
        most = self.config.max_position_sd
        if position_sd <= most:
            with self.news:
                bisect.insort(self._poses, (stamp_ns, pose), key=itemgetter(0))
                del self._poses[:-500]
                self.news.notify()
            return
        self.poses_dropped['too uncertain'] += 1
        self._log(
            'warning',
            f'pose not used: its standard deviation is {position_sd:.2f} m, expected at most '
            f'max_position_sd, {most:g} m',
        )

    def stall(self, now: float, images_come: bool) -> str:
        """Say why no image has been recorded for long although they come in, or nothing."""
        self._placed = self._placed if images_come else now
        seconds = now - self._placed
        if seconds <= STALL_SECONDS:
            return ''
        why = self.dropped + Counter({f'poses {k}': n for k, n in self.poses_dropped.items()})
        return f'images come in, but none was recorded for {seconds:.0f} s: {format_counts(why)}'

    def work(self, timeout: float) -> QueuedImage | None:
        """Record the next image that is due, waiting at most `timeout` seconds for news."""
        with self.news:
            due, unwritten = self._next_due(), self._unwritten
            if due is None and not unwritten:
                self.news.wait(timeout)
                return None
            self._unwritten = []
        try:
            if unwritten:
                self._recording.append_odometry(unwritten)
                unwritten = []
            recorded = None if due is None else self._record(*due)
        except DatasetError as error:
            with self.news:
                # of an hour, at most
                self._unwritten = [*unwritten, *self._unwritten][-100_000:]
            if due is not None:
                self.count('could not be written')
            self.trouble = str(error)
            self._log('error', self.trouble)
            return None
        if self.trouble and recorded is not None:
            self.trouble = ''
            self._log('info', 'recording goes on')
        return recorded

    def recover_from_error(self) -> None:
        """Count an unexpected error, in which an image was lost."""
        self.count('internal error')

    def close(self) -> None:
        """Record the images that have all they need, count the others, write what is left."""
        with self.news:
            self._keep(self.buffer.newest(1))
        self._at_end, waiting = True, -1
        while waiting != len(self.queue):
            waiting = len(self.queue)
            self.work(0.0)
        self.queue.clear('still without odometry or pose at the end')
        try:
            self._recording.append_odometry(self._unwritten)
        finally:
            self._recording.close()

    def _odometry_came(self, outcome: Added, stamp_ns: int) -> None:
        if outcome in (Added.TIME_JUMP, Added.POSE_JUMP):
            self._log('warning', f'{outcome.value} in the odometry: waiting for new poses')
            self.queue.clear('before a jump')
            self._poses = []
        self._keep(self.buffer.newest(FEWEST + 1)[:-1])

    def _keep(self, samples: Sequence[Stamped]) -> None:
        """Let samples be written unless the run has newer ones."""
        for sample in samples:
            if sample[0] > self._written_ns:
                self._written_ns = sample[0]
                self._unwritten.append(sample)

    @property
    def _settled_ns(self) -> int:
        """Stamp up to which odometry may be used."""
        newest = self.buffer.newest(2)
        settled = newest if self._at_end else newest[:-1]
        return settled[-1][0] if settled else -1

    def _odometry(self, stamp_ns: int) -> Coverage:
        """Say whether the settled odometry covers a stamp, will, or never."""
        state = self.buffer.coverage(stamp_ns)
        early = state is not Coverage.LATE and stamp_ns > self._settled_ns
        return Coverage.EARLY if early else state

    def _nearest_pose(self, stamp_ns: int) -> Stamped | None:
        """Find the nearest pose message that settled odometry covers; None without one near."""
        after = bisect.bisect_left(self._poses, stamp_ns, key=itemgetter(0))
        around = self._poses[max(after - 1, 0) : after + 1]  # noqa: E203
        usable = [one for one in around if self._odometry(one[0]) is Coverage.READY]
        nearest = min(usable, key=lambda one: abs(one[0] - stamp_ns), default=None)
        if nearest is None or abs(nearest[0] - stamp_ns) > self._longest_ns:
            return None
        return nearest

    def _coverage(self, stamp_ns: int) -> Coverage:
        """Say whether odometry and poses cover a stamp; cheap, as all waiting images ask."""
        state = self._odometry(stamp_ns)
        if state is not Coverage.READY or not self._needs_poses or self._nearest_pose(stamp_ns):
            return state
        late = self._settled_ns - stamp_ns > self._longest_ns
        return Coverage.UNPLACED if late else Coverage.EARLY

    def _next_due(self) -> tuple[QueuedImage, se2.FloatArray] | None:
        """Take the next image, with its pose (3,), that is far enough from the last one."""
        image, last = self.queue.take(self._coverage), self._recording.last_image
        if image is None:
            return None
        pose, nearest = self.buffer.at(image.stamp_ns), self._nearest_pose(image.stamp_ns)
        if nearest is not None:  # else it is recorded by the odometry alone
            pose = se2.compose(nearest[1], se2.between(self.buffer.at(nearest[0]), pose))
        if last is None or last.pose is None:
            return image, pose
        if image.stamp_ns // 1000 <= last.stamp_ns // 1000:
            self.count('not newer than the run')
            self._log(
                'warning',
                f'image of {image.stamp_ns * 1e-9:.3f} s is older than the run, which ends at '
                f'{last.stamp_ns * 1e-9:.3f} s: record into a new folder, or set the clock',
            )
            return None
        distance, angle = se2.magnitude(se2.between(last.pose, pose))
        # a camera that sends just at the spacing must not lose every other image to rounding
        far = distance >= 0.99 * self.config.spacing_distance
        if far or angle >= 0.99 * self.config.spacing_angle:
            return image, pose
        self._placed = time.monotonic()
        return None

    def _record(self, image: QueuedImage, pose: se2.FloatArray) -> QueuedImage | None:
        try:
            encoded = self._encode(image)
        except DatasetError as error:
            self.count('broken image')
            self._log('warning', f'image not recorded: {error}')
            return None
        self._recording.append_image(image.stamp_ns, pose, encoded, self.config.label)
        self._placed = time.monotonic()
        return image


class RecorderNode(ParameterNode):
    """Record images with poses into a run folder."""

    def __init__(self) -> None:
        super().__init__('recorder')
        self.config = declare(self, RecorderConfig)
        refuse_misspelt(self, fields_of(RecorderConfig))
        if not self.config.out:
            raise ConfigurationError("parameter 'out' is empty: give a run folder to write")
        self._log = NodeLogger(self.get_logger())
        topics = self.config.image_topics
        cameras = camera_names(topics) if len(topics) > 1 else ()
        self._recording = ColdRecording(expanded(self.config.out), *cameras)
        self.session = RecordingSession(self._recording, self.config, self._log, self._encode)
        self._listener = TransformListener(self, self.config, self._log)
        self._inputs = Inputs(self, self.config, self.session, self._log, self._listener)
        self._used_links: dict[str, int] = {}
        self._poses: Any = self._subscribe_to_poses()
        self._inputs.others = [self._poses] if self._poses else []
        self._path_publisher = self.create_publisher(PoseArray, '~/recorded_poses', LATCHED)
        self._path = PoseArray()
        self._reporter = diagnostics.StatusPublisher(self, self._report)
        self._inputs.active = True
        self.session.start(self._show)
        verb = 'going on with' if self._recording.count else 'recording into'
        self.get_logger().info(f'{verb} {self.config.out}: {self._recording.count} images so far')

    def close(self) -> None:
        """Stop recording and complete the run."""
        self._inputs.stop()
        self.session.stop()
        try:
            self.session.close()
        finally:
            self.get_logger().info(
                f'{self.config.out}: {self.session.recorded} images, dropped: '
                f'{format_counts(self._inputs.dropped)}; poses dropped: '
                f'{format_counts(self.session.poses_dropped)}'
            )

    def _subscribe_to_poses(self) -> diagnostics.Topic | None:
        config, listener = self.config, self._listener
        if config.pose_type == 'none':
            return None
        if config.pose_type != 'tf':
            kind: Any = POSE_MESSAGES[config.pose_type]
            topic = subscribe(self, kind, 'pose', self._take_pose, POSE_QOS)
            topic.remedy = 'set pose_type'
            return topic
        listener.callbacks.append(self._take_transforms)
        sought = (
            f'{config.global_frame_id} to {config.odom_frame_id} or to the frame of the robot '
            'that the odometry names: see what they send, and set global_frame_id, odom_frame_id'
        )
        return listener.topic(sought)

    def _take_transforms(self) -> None:
        """
        Take poses from transforms of the map frame to the odometry's frame, or to the robot.

        A localizer stamps what it sends ahead of time, so map to odometry holds for the newest
        odometry; a transform to the frame that the odometry moves has its own stamp.
        """
        newest = self._inputs.odometry.newest
        for frame in (self.config.odom_frame_id, self._inputs.odometry.frame):
            parent, stamp_ns, pose = self._listener.links.get(frame, ('', 0, np.zeros(3)))
            is_new = stamp_ns != self._used_links.get(frame)
            if newest is None or parent != self.config.global_frame_id or not is_new:
                continue
            self._used_links[frame] = stamp_ns
            if frame == self.config.odom_frame_id:
                stamp_ns, pose = newest[0], se2.compose(pose, newest[1])
            self._poses.saw(stamp_ns, time.monotonic())
            self._poses.repeated = 0  # SLAM repeats a transform faster than the odometry comes
            self.session.add_pose(stamp_ns, pose, 0.0)

    def _take_pose(self, message: Any) -> None:
        expected, frame_id = self.config.global_frame_id, message.header.frame_id
        stamp_ns = conversions.stamp_to_ns(message.header.stamp)
        posed, deviation = message.pose, 0.0
        self._poses.saw(stamp_ns, time.monotonic())
        try:
            if frame_id.lstrip('/') != expected:
                raise RosError(f'expected frame {expected!r}, got {frame_id!r}')
            if not isinstance(message, PoseStamped):
                covariance = conversions.covariance_from_message(posed.covariance)
                deviation = math.sqrt(max(covariance[0, 0], covariance[1, 1]))
                posed = posed.pose
            pose = conversions.pose_from_message(posed)
        except KbrError as error:
            self.session.poses_dropped['not usable'] += 1
            self._log('warning', f'pose not used: {error}')
            return
        self.session.add_pose(stamp_ns, pose, deviation)

    def _encode(self, image: QueuedImage) -> list[bytes]:
        """JPEG or PNG files, one for each camera; raises DatasetError where one has no image."""
        load = image.load
        sources: tuple[Any, ...] = load.sources if isinstance(load, LazyImages) else (load,)
        if None in sources:
            raise DatasetError('a camera has no image at that moment: expected one of each')
        quality = self.config.jpeg_quality
        return [encoded_bytes(source, source.name, quality) for source in sources]

    def _show(self, image: QueuedImage) -> None:
        last = self._recording.last_image
        if last is None or last.pose is None:
            return
        self._path.header.frame_id = self.config.global_frame_id
        self._path.header.stamp = conversions.ns_to_stamp(image.stamp_ns)
        self._path.poses.append(conversions.pose_to_message(last.pose))
        self._path_publisher.publish(self._path)

    def _report(self) -> list[DiagnosticStatus]:
        now, config, session = time.monotonic(), self.config, self.session
        self._inputs.measure(now)
        spaced = min(config.spacing_distance, config.spacing_angle) > 0.0
        awaits = 'the next image is recorded when it moves' if spaced else ''
        images_come = self._inputs.image.silence <= STALL_SECONDS
        hints, stall = diagnostics.diagnose(self._inputs, awaits), session.stall(now, images_come)
        for line in filter(None, [*hints, stall]):
            self._log('warning', line)
        text = f'{session.recorded} images recorded'
        bad = diagnostics.ERROR if session.trouble else diagnostics.WARN
        level = bad if session.trouble or stall else diagnostics.OK
        told = session.trouble or (f'{text}, but: {stall}' if stall else text)
        values = {'images': session.recorded, 'folder': config.out}
        poses = {f'poses dropped: {why}': n for why, n in session.poses_dropped.items()}
        return [
            diagnostics.status(self, 'recording', level, told, values),
            diagnostics.input_status(self, self._inputs, hints, poses),
        ]


def main() -> int:
    """Run the recorder node."""
    return run_program(_run)


def _run() -> None:
    node = RecorderNode()
    try:
        spin(node)
    finally:
        node.close()
        node.destroy_node()


if __name__ == '__main__':
    sys.exit(main())
