"""
The recorder node: drive a robot that knows its pose, get a run for `kbr map build`.

It writes images, odometry and poses as they come, each by its stamp; the reader of the run places
the images. So poses that come seldom, as from AMCL, do as well as frequent ones of a motion
capture system.
"""

from collections import Counter
from collections.abc import Callable, Sequence
import math
import sys
import time
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from geometry_msgs.msg import PoseArray, PoseStamped, PoseWithCovarianceStamped
from kbr_localization import se2
from kbr_localization.configuration import fields_of
from kbr_localization.datasets.cold import (
    ColdRecording,
    format_odometry,
    ODOMETRY_FILE,
    POSES_FILE,
)
from kbr_localization.datasets.images import encoded_bytes
from kbr_localization.datasets.multi_camera import camera_names, LazyImages
from kbr_localization.datasets.tables import format_pose
from kbr_localization.datasets.tracks import MIN_SEGMENT_POSES
from kbr_localization.errors import ConfigurationError, DatasetError, KbrError, RosError
from kbr_localization.files import expanded
from kbr_localization.ros import conversions, diagnostics
from kbr_localization.ros.buffers import (
    Added,
    AHEAD_NS,
    Feed,
    ImageQueue,
    OdometryBuffer,
    QueuedImage,
    Stamped,
)
from kbr_localization.ros.config import RecorderConfig
from kbr_localization.ros.inputs import Inputs, subscribe, TransformListener
from kbr_localization.ros.outputs import LATCHED
from kbr_localization.ros.parameters import declare, ParameterNode, refuse_misspelt
from kbr_localization.ros.running import format_counts, program, spin
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

    `trouble`: what kept the session from writing last time. `poses_dropped` counts by reason.
    `pose`: the last one (3,) that came, or None.

    Stamps of odometry and of poses increase in the run: a reader would mix what goes back. The
    newest odometry sample is not written before one continues it: a stamp from the future is found
    out only by the samples after it, and would keep these out until that time has come.
    """

    def __init__(
        self,
        recording: ColdRecording,
        config: RecorderConfig,
        log: Callable[[str, str], None],
    ) -> None:
        # every image may be one too many, none is more urgent than another
        queue = ImageQueue(config.image_queue, config.image_queue)
        super().__init__(OdometryBuffer(), queue, log)
        self.config, self._recording = config, recording
        self._odometry_ns = self._pose_ns = recording.last_odometry_ns
        self._last: se2.FloatArray | None = None
        self.pose: se2.FloatArray | None = None
        self.poses_dropped, self.trouble = Counter[str](), ''
        self._placed = time.monotonic()

    def add_pose(self, stamp_ns: int, pose: se2.FloatArray, position_sd: float) -> None:
        """Take in a pose (3,) in the map frame with the deviation of its position in metres."""
        most, reason, why = self.config.max_position_sd, '', ''
        with self.news:
            newest = self.buffer.newest(1)
        if position_sd > most:
            reason = 'too uncertain'
            why = f'its standard deviation is {position_sd:.2f} m, expected at most '
            why += f'max_position_sd, {most:g} m'
        elif not newest:
            reason = 'before the odometry'
        elif not self._pose_ns <= stamp_ns <= newest[-1][0] + AHEAD_NS:
            reason = 'of another time'
            why = 'it is older than the last one, or ahead of the odometry: compare their clocks'
        if why:
            self._log('warning', f'pose not used: {why}')
        if reason:
            self.poses_dropped[reason] += 1
            return
        if stamp_ns > self._pose_ns:  # SLAM repeats a transform
            self._recording.add(POSES_FILE, format_pose(stamp_ns, pose))
        self.pose, self._pose_ns = pose, stamp_ns

    def stall(self, now: float, images_come: bool) -> str:
        """Say why no image has been recorded for long although they come in, or nothing."""
        self._placed = self._placed if images_come else now
        seconds = now - self._placed
        if seconds <= STALL_SECONDS:
            return ''
        why = format_counts(self.dropped)
        return f'images come in, but none was recorded for {seconds:.0f} s: {why}'

    def work(self, timeout: float) -> QueuedImage | None:
        """Record the next image if it is due, waiting at most `timeout` seconds for news."""
        with self.news:
            image = self.queue.take(self.buffer.coverage)
            if image is None:
                self.news.wait(timeout)
            else:
                place = self.buffer.at(image.stamp_ns)
        due = image is not None and self._is_due(image.stamp_ns, place)
        try:
            self._recording.write()
            if image is None or not due or not self._record(image):
                return None
        except DatasetError as error:
            self.count('could not be written', due)
            self.trouble = str(error)
            self._log('error', self.trouble)
            return None
        self._last, self._placed = place, time.monotonic()
        if self.trouble:
            self.trouble = ''
            self._log('info', 'recording goes on')
        return image

    def recover_from_error(self) -> None:
        """Count an unexpected error, in which an image was lost."""
        self.count('internal error')

    def close(self) -> None:
        """Record the images that have odometry, count the others, write what is left."""
        self._keep(self.buffer.newest(1))
        waiting = -1
        while waiting != len(self.queue):
            waiting = len(self.queue)
            self.work(0.0)
        self.queue.clear('still without odometry at the end')
        self._recording.close()

    def _odometry_came(self, outcome: Added, stamp_ns: int) -> None:
        if outcome in (Added.TIME_JUMP, Added.POSE_JUMP):
            self._log('warning', f'{outcome.value} in the odometry')
            self.queue.clear('before a jump')
            self._last = None
        self._keep(self.buffer.newest(MIN_SEGMENT_POSES + 1)[:-1])

    def _keep(self, samples: Sequence[Stamped]) -> None:
        """Let samples be written unless the run has newer ones."""
        for stamp_ns, pose in samples:
            if stamp_ns > self._odometry_ns:
                self._odometry_ns = stamp_ns
                self._recording.add(ODOMETRY_FILE, format_odometry(stamp_ns, pose))

    def _is_due(self, stamp_ns: int, place: se2.FloatArray) -> bool:
        """Whether an image is newer than the run, and by odometry (3,) far from its last one."""
        end_ns = self._recording.last_image_ns
        if stamp_ns // 1000 <= end_ns // 1000:
            self.count('not newer than the run')
            self._log(
                'warning',
                f'image of {stamp_ns * 1e-9:.3f} s is older than the run, which ends at '
                f'{end_ns * 1e-9:.3f} s: record into a new folder, or set the clock',
            )
            return False
        if self._last is None:
            return True
        distance, angle = se2.magnitude(se2.between(self._last, place))
        # a camera that sends just at the spacing must not lose every other image to rounding
        far = distance >= 0.99 * self.config.spacing_distance
        if far or angle >= 0.99 * self.config.spacing_angle:
            return True
        self._placed = time.monotonic()
        return False

    def _record(self, image: QueuedImage) -> bool:
        load, name = image.load, f'at {image.stamp_ns * 1e-9:.3f} s'
        sources: tuple[Any, ...] = load.sources if isinstance(load, LazyImages) else (load,)
        try:
            if None in sources:
                raise DatasetError('a camera has no image at that moment: expected one of each')
            encoded = [encoded_bytes(one, name, self.config.jpeg_quality) for one in sources]
        except DatasetError as error:
            self.count('broken image')
            self._log('warning', f'image not recorded: {error}')
            return False
        self._recording.append_image(image.stamp_ns, encoded, self.config.label)
        return True


class RecorderNode(ParameterNode):
    """Record images with poses into a run folder."""

    def __init__(self) -> None:
        super().__init__('recorder')
        self.config = declare(self, RecorderConfig)
        refuse_misspelt(self, fields_of(RecorderConfig))
        if not self.config.out:
            raise ConfigurationError("parameter 'out' is empty: give a run folder to write")
        topics = self.config.image_topics
        cameras = camera_names(topics) if len(topics) > 1 else ()
        self._recording = ColdRecording(expanded(self.config.out), *cameras)
        self.session = RecordingSession(self._recording, self.config, self.log)
        self._listener = TransformListener(self, self.config)
        self._inputs = Inputs(self, self.config, self.session, self._listener)
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
                f'{self.config.out}: {self._recording.count} images, dropped: '
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
            self.log('warning', f'pose not used: {error}')
            return
        self.session.add_pose(stamp_ns, pose, deviation)

    def _show(self, image: QueuedImage) -> None:
        if self.session.pose is None:
            return
        self._path.header.frame_id = self.config.global_frame_id
        self._path.header.stamp = conversions.ns_to_stamp(image.stamp_ns)
        self._path.poses.append(conversions.pose_to_message(self.session.pose))
        self._path_publisher.publish(self._path)

    def _report(self) -> list[DiagnosticStatus]:
        now, config, session = time.monotonic(), self.config, self.session
        self._inputs.measure(now)
        spaced = min(config.spacing_distance, config.spacing_angle) > 0.0
        awaits = 'the next image is recorded when it moves' if spaced else ''
        images_come = self._inputs.image.silence <= STALL_SECONDS
        hints, stall = diagnostics.diagnose(self._inputs, awaits), session.stall(now, images_come)
        for line in filter(None, [*hints, stall]):
            self.log('warning', line)
        text = f'{self._recording.count} images recorded'
        bad = diagnostics.ERROR if session.trouble else diagnostics.WARN
        level = bad if session.trouble or stall else diagnostics.OK
        told = session.trouble or (f'{text}, but: {stall}' if stall else text)
        values = {'images': self._recording.count, 'folder': config.out}
        poses = {f'poses dropped: {why}': n for why, n in session.poses_dropped.items()}
        return [
            diagnostics.status(self, 'recording', level, told, values),
            diagnostics.input_status(self, self._inputs, hints, poses),
        ]


@program
def main() -> None:
    """Run the recorder node."""
    node = RecorderNode()
    try:
        spin(node)
    finally:
        node.close()
        node.destroy_node()


if __name__ == '__main__':
    sys.exit(main())
