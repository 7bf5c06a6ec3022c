"""
The recorder node: drive a robot that knows its pose, get a run for `kbr map build`.

The pose may come from AMCL, SLAM or motion capture, as PoseWithCovarianceStamped, PoseStamped or
Odometry on the topic `pose`, or as a transform on /tf. Where nothing knows it, the odometry is
enough: the map is then made by `kbr map build --poses odometry`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
import math
import sys
import threading
import time
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from geometry_msgs.msg import PoseArray, PoseStamped, PoseWithCovarianceStamped
from kbr_localization.configuration import parameter
from kbr_localization.datasets.cold_recording import ColdRecording
from kbr_localization.datasets.multi_camera import camera_names
from kbr_localization.errors import ConfigurationError, RosError
from kbr_localization.files import expanded
from kbr_localization.ros.common import conversions, diagnostics
from kbr_localization.ros.common.hints import InputWatch, nothing_on_the_way, only_known_poses
from kbr_localization.ros.common.node_logger import listed, NodeLogger
from kbr_localization.ros.common.running import run_node, spin
from kbr_localization.ros.common.standstill import KnownMotion
from kbr_localization.ros.common.worker import Worker
from kbr_localization.ros.inputs.cameras import as_files
from kbr_localization.ros.inputs.inputs import InputConfig, Inputs, listen, look_at_publishers
from kbr_localization.ros.inputs.tf_poses import TransformPoses
from kbr_localization.ros.parameters import parameters
from kbr_localization.ros.parameters.node_config import check_frames, take_slashes
from kbr_localization.ros.recording.image_sizes import ImageSizes
from kbr_localization.ros.recording.recording import RecordingConfig, RecordingSession
from kbr_localization.ros.session.image_queue import QueuedImage
from kbr_localization.se2 import FloatArray
from nav_msgs.msg import Odometry
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

POSE_TYPES = {
    'pose_with_covariance': PoseWithCovarianceStamped,
    'pose': PoseStamped,
    'odometry': Odometry,
    'tf': None,
    'none': None,
}
POSE_QOS = QoSProfile(depth=50, reliability=ReliabilityPolicy.BEST_EFFORT)
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
PERIOD = 1.0
STANDING_QUIET = 30.0
"""Seconds until the log says again that the robot stands: before a drive it may."""


@dataclass(frozen=True)
class RecorderConfig(RecordingConfig):
    """Parameters of the recorder node."""

    image_transport: str = parameter(
        'raw',
        'raw: Image on image; compressed: CompressedImage on image/compressed',
        choices=('raw', 'compressed'),
    )
    image_topics: tuple[str, ...] = parameter(
        (), 'topics of several cameras, as in front/image and rear/image; empty: one on image'
    )
    sync_tolerance: float = parameter(
        0.05, 'seconds by which images of several cameras that belong together differ', 0.0, 1.0
    )
    pose_type: str = parameter(
        'pose_with_covariance',
        'type of the messages on pose; tf: global_frame_id to odom_frame_id or the robot, on /tf; '
        'none: nothing knows the pose, and `kbr map build --poses odometry` finds it',
        choices=tuple(POSE_TYPES),
    )
    global_frame_id: str = parameter('map', 'frame that the poses must have')
    odom_frame_id: str = parameter('odom', 'frame of the odometry')
    no_data_timeout: float = parameter(
        5.0, 'seconds without a message after which a hint is given', 0.5
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        take_slashes(self, 'global_frame_id', 'odom_frame_id')
        if self.pose_type == 'tf':
            check_frames(self.global_frame_id, self.odom_frame_id)


class RecorderNode(parameters.ParameterNode):
    """
    Record images with poses into a run folder.

    Raises ConfigurationError for a parameter that is unknown or out of range, or without `out`.
    """

    def __init__(self) -> None:
        super().__init__('recorder', automatically_declare_parameters_from_overrides=True)
        self.config = parameters.declare(self, RecorderConfig)
        parameters.refuse_unknown(self, parameters.fields(RecorderConfig))
        if not self.config.out:
            raise ConfigurationError("parameter 'out' is empty: give a run folder to write")
        self._log = NodeLogger(self.get_logger())
        topics = self.config.image_topics
        cameras = camera_names(topics) if len(topics) > 1 else ()
        self._recording = ColdRecording(expanded(self.config.out), *cameras)
        self.session = RecordingSession(self._recording, self.config, self._log, self._encode)
        wanted = InputConfig(
            self.config.image_transport,
            topics,
            self.config.sync_tolerance,
            self.config.odom_frame_id,
        )
        self._inputs = Inputs(self, wanted, self.session, self._log, lambda *_: None)
        self._sizes = ImageSizes(
            [image.topic for image in self._inputs.cameras.watches],
            self._recording.last_files(),
            partial(self._log.once, 'warning'),
        )
        self._known_motion = KnownMotion()
        self._poses = self._subscribe_to_poses()
        self._drawn = self.create_publisher(PoseArray, '~/recorded_poses', LATCHED)
        self._shown = PoseArray()
        self._reports = self.create_publisher(DiagnosticArray, '/diagnostics', 10)
        self.create_timer(PERIOD, self._report, clock=Clock(clock_type=ClockType.STEADY_TIME))
        self._worker = Worker(self.session, self._show, self._log)
        self._inputs.active = True
        self._worker.start()
        verb = 'going on with' if self._recording.count else 'recording into'
        self.get_logger().info(f'{verb} {self.config.out}: {self._recording.count} images so far')

    def close(self) -> None:
        """Stop recording and complete the run."""
        self._inputs.active = False
        self._worker.stop()
        try:
            self.session.close()
        finally:
            dropped = self.session.dropped + self._inputs.cameras.dropped
            images = f'{self.session.recorded} images, dropped: {listed(dropped)}'
            poses = f'poses dropped: {listed(self.session.tally.poses)}'
            self.get_logger().info(f'{self.config.out}: {images}; {poses}')

    def _subscribe_to_poses(self) -> InputWatch | None:
        if self.config.pose_type == 'none':
            self._recording.without_poses()
            self.session.needs_poses = False
            return None
        self._recording.with_poses()
        message_type: Any = POSE_TYPES[self.config.pose_type]
        if message_type is None:
            frames = (self.config.global_frame_id, self.config.odom_frame_id)
            return TransformPoses(self, *frames, self._add_pose, self._log).watch
        create = partial(self.create_subscription, message_type, 'pose', self._take_pose, POSE_QOS)
        subscription = listen(self, 'pose', create)
        name, now = conversions.type_name(message_type), time.monotonic()
        return InputWatch(subscription.topic_name, name, now, type_remedy='set pose_type')

    def _take_pose(self, message: Any) -> None:
        stamp_ns = conversions.stamp_to_ns(message.header.stamp)
        if self._poses is not None:
            self._poses.saw(stamp_ns, time.monotonic())
        expected, frame_id = self.config.global_frame_id, message.header.frame_id
        if frame_id.lstrip('/') != expected:
            self.session.tally.poses['in another frame'] += 1
            self._log('warning', f'pose in frame {frame_id!r} not used: expected {expected!r}')
            return
        try:
            self._add_pose(stamp_ns, *_pose_and_deviation(message))
        except RosError as error:
            self.session.tally.poses['not usable'] += 1
            self._log('warning', f'pose not used: {error}')

    def _add_pose(self, stamp_ns: int, pose: FloatArray, deviation: float) -> None:
        if deviation <= self.config.max_position_sd:
            self._known_motion.look(pose, self._inputs.standstill.since_ns)
        self.session.add_pose(stamp_ns, pose, deviation)

    def _encode(self, image: QueuedImage) -> list[bytes]:
        files = as_files(image.load, self.config.jpeg_quality)
        self._sizes.look(files)
        return files

    def _show(self, image: QueuedImage) -> None:
        last = self._recording.last_image
        if last is None or last.reference is None:
            return
        self._shown.header.frame_id = self.config.global_frame_id
        self._shown.header.stamp = conversions.ns_to_stamp(image.stamp_ns)
        self._shown.poses.append(conversions.pose_to_message(last.reference))
        self._drawn.publish(self._shown)

    def _report(self) -> None:
        now, clock = time.monotonic(), self.get_clock().now()
        watches = list(self._inputs.watches)
        self._inputs.look_around()
        if self._poses is not None:
            watches.append(self._poses)
            look_at_publishers(self, self._poses, POSE_QOS)
        hints = self._inputs.hints(now)
        for watch in watches:
            watch.measure(now)
            hint = watch.hint(now, self.config.no_data_timeout, clock.nanoseconds)
            hints += [hint] if hint else []
        for hint in hints:
            self._log('warning', hint)
        standing = self._standing_hint(now)
        if standing:
            hints.append(standing)
            self._log('warning', standing, STANDING_QUIET)
        hints += self._sizes.changes.values()  # in the log once, as they stay
        stall = self.session.stall(now)
        if stall:
            self._log('warning', stall)
        message = DiagnosticArray(status=self._status(watches, hints, stall))
        message.header.stamp = clock.to_msg()
        self._reports.publish(message)

    def _standing_hint(self, now: float) -> str:
        inputs, known = self._inputs, self._known_motion
        standstill, odometry = inputs.standstill, inputs.odometry
        if self._poses is not None:
            contrary = only_known_poses(self._poses, odometry, standstill, known)
            if contrary:
                return contrary
        if min(self.config.spacing_distance, self.config.spacing_angle) == 0.0:
            return ''  # then images are recorded where the robot stands, too
        return nothing_on_the_way(inputs.image, odometry, standstill, now)

    def _status(
        self, watches: list[InputWatch], hints: list[str], stall: str
    ) -> list[DiagnosticStatus]:
        name = diagnostics.node_label(self)
        recorded = {'images': self.session.recorded, 'folder': self.config.out}
        trouble = self.session.trouble
        text = f'{self.session.recorded} images recorded'
        return [
            diagnostics.recording_status(f'{name}: recording', text, trouble, stall, recorded),
            diagnostics.input_status(
                f'{name}: input',
                watches,
                hints,
                self.session.dropped + self._inputs.cameras.dropped,
                self.session.odometry_counts,
                poses=self.session.tally.poses,
            ),
        ]


def _pose_and_deviation(message: Any) -> tuple[Any, float]:
    """Pose (3,) of a message and the standard deviation of its position in metres."""
    if isinstance(message, PoseStamped):
        return conversions.pose_from_message(message.pose), 0.0
    covariance = conversions.covariance_from_message(message.pose.covariance)
    deviation = math.sqrt(max(covariance[0, 0], covariance[1, 1]))
    return conversions.pose_from_message(message.pose.pose), deviation


def main(args: list[str] | None = None) -> int:
    """Run the recorder node."""
    return run_node(_run, args)


def _run(stop: threading.Event) -> None:
    node = RecorderNode()
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    try:
        spin(executor, stop)
    finally:
        node.close()
        executor.shutdown()
        node.destroy_node()


if __name__ == '__main__':
    sys.exit(main())
