"""
The recorder node: record a run for `kbr map build`.

It writes images, odometry and poses independently, each with its stamp; the reader of the run
interpolates the poses. So rare poses, as from AMCL, are as good as frequent ones.
"""

from collections import Counter
from collections.abc import Sequence
import math
import sys
import time
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from geometry_msgs.msg import PoseArray, PoseStamped, PoseWithCovarianceStamped
from kbr_localization import se2
from kbr_localization.configuration import fields_of
from kbr_localization.datasets import cold
from kbr_localization.datasets.images import encoded_bytes
from kbr_localization.datasets.multi_camera import LazyImages
from kbr_localization.datasets.tables import format_pose
from kbr_localization.datasets.tracks import MIN_SEGMENT_POSES
from kbr_localization.errors import ConfigurationError, DatasetError, KbrError, RosError
from kbr_localization.files import expanded
from kbr_localization.ros import buffers, conversions, diagnostics
from kbr_localization.ros.buffers import Outcome, QueuedImage, StampedPose
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
"""Time without a recorded image, while images arrive, before a warning."""


class RecordingSession(buffers.Worker):
    """
    Select images, odometry and poses and write them to a run. Thread-safe except `work`.

    `write_error`: why the last attempt to write failed, or ''. `poses_dropped` counts by reason.
    `pose`: the last pose (3,) that was used, or None.

    In the run the stamps of odometry and of poses increase, since a reader sorts them. The newest
    odometry sample is held back until another continues it: only later samples show that its stamp
    is in the future, and if written it would keep them out of the run.
    """

    def __init__(
        self, recording: cold.ColdRecording, config: RecorderConfig, log: buffers.Log
    ) -> None:
        # no backlog is dropped: old images are worth as much as new ones
        queue = buffers.ImageQueue(config.image_queue, config.image_queue)
        super().__init__(buffers.OdometryBuffer(), queue, log)
        self.config, self._recording = config, recording
        self._odometry_ns = self._pose_ns = recording.last_odometry_ns
        self._recorded_at: se2.FloatArray | None = None
        self.pose: se2.FloatArray | None = None
        self.poses_dropped, self.write_error = Counter[str](), ''
        self._last_progress = time.monotonic()

    def add_pose(self, stamp_ns: int, pose: se2.FloatArray, position_sd: float) -> None:
        """Add a pose (3,) in the map frame; `position_sd`: standard deviation in metres."""
        most = self.config.max_position_sd
        reason = why = ''
        with self.condition:
            newest = self.buffer.newest(1)
        if position_sd > most:
            reason = 'too uncertain'
            why = f'its standard deviation is {position_sd:.2f} m, expected at most '
            why += f'max_position_sd, {most:g} m'
        elif not newest:
            reason = 'before the odometry'
        elif not self._pose_ns <= stamp_ns <= newest[-1][0] + buffers.MAX_AHEAD_NS:
            reason = 'of another time'
            why = 'it is older than the last one, or ahead of the odometry: compare their clocks'
        if why:
            self._log('warning', f'pose not used: {why}')
        if reason:
            self.poses_dropped[reason] += 1
            return
        if stamp_ns > self._pose_ns:  # SLAM repeats a transform
            self._recording.add(cold.POSES_FILE, format_pose(stamp_ns, pose))
        self.pose, self._pose_ns = pose, stamp_ns

    def stall(self, now: float, images_arrive: bool) -> str:
        """Return why no image has been recorded for long although images arrive, or ''."""
        self._last_progress = self._last_progress if images_arrive else now
        seconds = now - self._last_progress
        if seconds <= STALL_SECONDS:
            return ''
        why = format_counts(self.dropped)
        return f'images arrive, but none was recorded for {seconds:.0f} s: {why}'

    def work(self, timeout: float) -> QueuedImage | None:
        """Write what waits, and the next image if it is due; return the image if written."""
        with self.condition:
            image = self.queue.take(self.buffer.availability)
            if image is None:
                self.condition.wait(timeout)
            else:
                odometry = self.buffer.at(image.stamp_ns)
        due = image is not None and self._is_due(image.stamp_ns, odometry)
        try:
            self._recording.write()
            if image is None or not due or not self._record(image):
                return None
        except DatasetError as error:
            self.count_dropped('could not be written', due)
            self.write_error = str(error)
            self._log('error', self.write_error)
            return None
        self._recorded_at, self._last_progress = odometry, time.monotonic()
        if self.write_error:
            self.write_error = ''
            self._log('info', 'recording again')
        return image

    def close(self) -> None:
        """Record the images that have odometry, count the others, and close the run."""
        self._write_odometry(self.buffer.newest(1))
        waiting = -1
        while waiting != len(self.queue):
            waiting = len(self.queue)
            self.work(0.0)
        self.queue.clear('still without odometry at the end')
        self._recording.close()

    def _on_odometry(self, outcome: Outcome, stamp_ns: int) -> None:
        if outcome in (Outcome.TIME_JUMP, Outcome.POSE_JUMP):
            self._log('warning', f'{outcome.value} in the odometry')
            self.queue.clear('before a jump')
            self._recorded_at = None
        # `MIN_SEGMENT_POSES` outliers may have joined the track at once
        self._write_odometry(self.buffer.newest(MIN_SEGMENT_POSES + 1)[:-1])

    def _write_odometry(self, samples: Sequence[StampedPose]) -> None:
        """Add samples to the run unless it has newer ones."""
        for stamp_ns, pose in samples:
            if stamp_ns > self._odometry_ns:
                self._odometry_ns = stamp_ns
                self._recording.add(cold.ODOMETRY_FILE, cold.format_odometry(stamp_ns, pose))

    def _is_due(self, stamp_ns: int, odometry: se2.FloatArray) -> bool:
        """Whether an image is newer than the run, and far enough from the last recorded one."""
        end_ns = self._recording.last_image_ns
        if stamp_ns // 1000 <= end_ns // 1000:
            self.count_dropped('not newer than the run')
            self._log(
                'warning',
                f'image of {stamp_ns * 1e-9:.3f} s is older than the run, which ends at '
                f'{end_ns * 1e-9:.3f} s: record into a new folder, or set the clock',
            )
            return False
        if self._recorded_at is None:
            return True
        distance, angle = se2.magnitude(se2.between(self._recorded_at, odometry))
        # if images come exactly at the spacing, rounding must not drop every other one
        far = distance >= 0.99 * self.config.spacing_distance
        due = bool(far or angle >= 0.99 * self.config.spacing_angle)
        if not due:
            self._last_progress = time.monotonic()
        return due

    def _record(self, image: QueuedImage) -> bool:
        load, name = image.load, f'at {image.stamp_ns * 1e-9:.3f} s'
        sources: tuple[Any, ...] = load.sources if isinstance(load, LazyImages) else (load,)
        try:
            if None in sources:
                raise DatasetError('a camera has no image at that moment: expected one of each')
            encoded = [encoded_bytes(one, name, self.config.jpeg_quality) for one in sources]
        except DatasetError as error:
            self.count_dropped('broken image')
            self._log('warning', f'image not recorded: {error}')
            return False
        self._recording.append_image(image.stamp_ns, encoded, self.config.label)
        return True


class RecorderNode(ParameterNode):
    """Record images, odometry and poses into the folder `out`."""

    def __init__(self) -> None:
        super().__init__('recorder')
        self.config = declare(self, RecorderConfig)
        refuse_misspelt(self, fields_of(RecorderConfig))
        if not self.config.out:
            raise ConfigurationError("parameter 'out' is empty: give a run folder to write")
        self._recording = cold.ColdRecording(expanded(self.config.out), *self.config.camera_names)
        self.session = RecordingSession(self._recording, self.config, self.log)
        self._listener = TransformListener(self, self.config)
        self._inputs = Inputs(self, self.config, self.session, self._listener)
        self._used_stamps: dict[str, int] = {}
        self._poses: Any = self._subscribe_to_poses()
        self._inputs.other_topics = [self._poses] if self._poses else []
        self._path_publisher = self.create_publisher(PoseArray, '~/recorded_poses', LATCHED)
        self._path = PoseArray()
        self._reporter = diagnostics.StatusPublisher(self, self._report)
        self._inputs.active = True
        self.session.start(self._publish_path)
        verb = 'continuing' if self._recording.count else 'recording into'
        self.get_logger().info(f'{verb} {self.config.out}: {self._recording.count} images so far')

    def close(self) -> None:
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

    def _subscribe_to_poses(self) -> diagnostics.TopicMonitor | None:
        config, listener = self.config, self._listener
        if config.pose_type == 'none':
            return None
        if config.pose_type != 'tf':
            kind: Any = POSE_MESSAGES[config.pose_type]
            topic = subscribe(self, kind, 'pose', self._on_pose, POSE_QOS)
            topic.type_remedy = 'set pose_type'
            return topic
        listener.callbacks.append(self._on_transforms)
        return listener.monitor(
            f'{config.global_frame_id} to {config.odom_frame_id} or to the frame of the robot '
            'that the odometry names: check the frames on /tf, and set global_frame_id, '
            'odom_frame_id'
        )

    def _on_transforms(self) -> None:
        """
        Take poses from transforms of the map frame to the odometry frame, or to the robot.

        Localizers stamp map to odometry ahead of time, so it is applied to the newest odometry; a
        transform to the child frame of the odometry is a pose at its stamp.
        """
        newest = self._inputs.odometry.newest
        for frame in (self.config.odom_frame_id, self._inputs.odometry.frame):
            parent, stamp_ns, pose = self._listener.transforms.get(frame, ('', 0, np.zeros(3)))
            is_new = stamp_ns != self._used_stamps.get(frame)
            if newest is None or parent != self.config.global_frame_id or not is_new:
                continue
            self._used_stamps[frame] = stamp_ns
            if frame == self.config.odom_frame_id:
                stamp_ns, pose = newest[0], se2.compose(pose, newest[1])
            self._poses.add_message(stamp_ns, time.monotonic())
            self._poses.repeated = 0  # SLAM repeats a transform faster than the odometry comes
            self.session.add_pose(stamp_ns, pose, 0.0)

    def _on_pose(self, message: Any) -> None:
        expected, frame_id = self.config.global_frame_id, message.header.frame_id
        stamp_ns = conversions.stamp_to_ns(message.header.stamp)
        posed, deviation = message.pose, 0.0
        self._poses.add_message(stamp_ns, time.monotonic())
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

    def _publish_path(self, image: QueuedImage) -> None:
        if self.session.pose is None:
            return
        self._path.header.frame_id = self.config.global_frame_id
        self._path.header.stamp = conversions.ns_to_stamp(image.stamp_ns)
        self._path.poses.append(conversions.pose_to_message(self.session.pose))
        self._path_publisher.publish(self._path)

    def _report(self) -> list[DiagnosticStatus]:
        now, config, session = time.monotonic(), self.config, self.session
        self._inputs.update(now)
        spaced = min(config.spacing_distance, config.spacing_angle) > 0.0
        awaits = 'the next image is recorded when it moves' if spaced else ''
        images_arrive = self._inputs.image.silence <= STALL_SECONDS
        hints = diagnostics.diagnose(self._inputs, awaits)
        stall = session.stall(now, images_arrive)
        for line in filter(None, [*hints, stall]):
            self.log('warning', line)
        text, level = f'{self._recording.count} images recorded', diagnostics.OK
        if session.write_error:
            text, level = session.write_error, diagnostics.ERROR
        elif stall:
            text, level = f'{text}, but: {stall}', diagnostics.WARN
        values = {'images': self._recording.count, 'folder': config.out}
        poses = {f'poses dropped: {why}': n for why, n in session.poses_dropped.items()}
        return [
            diagnostics.status(self, 'recording', level, text, values),
            diagnostics.input_status(self, self._inputs, hints, poses),
        ]


@program
def main() -> None:
    node = RecorderNode()
    try:
        spin(node)
    finally:
        node.close()
        node.destroy_node()


if __name__ == '__main__':
    sys.exit(main())
