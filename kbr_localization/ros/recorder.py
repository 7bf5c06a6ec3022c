"""
The recorder node: drive a robot that knows its pose, get a run for `kbr map build`.

The pose may come from AMCL, SLAM or motion capture, as PoseWithCovarianceStamped, PoseStamped or
Odometry on the topic `pose`, or as a transform on /tf. Without it the odometry is enough: then
`kbr map build --poses odometry` makes the map.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from geometry_msgs.msg import PoseArray, PoseStamped, PoseWithCovarianceStamped
from kbr_localization import se2
from kbr_localization.configuration import fields_of
from kbr_localization.datasets.cold import ColdRecording
from kbr_localization.datasets.images import encoded_bytes
from kbr_localization.datasets.multi_camera import camera_names, LazyImages
from kbr_localization.errors import ConfigurationError, DatasetError, RosError
from kbr_localization.files import expanded
from kbr_localization.ros import conversions
from kbr_localization.ros.buffers import QueuedImage
from kbr_localization.ros.config import RecorderConfig
from kbr_localization.ros.diagnostics import (
    diagnose,
    ERROR,
    input_status,
    OK,
    status,
    StatusPublisher,
    Topic,
    WARN,
)
from kbr_localization.ros.inputs import (
    Inputs,
    look_at_publishers,
    subscribe,
    TransformListener,
)
from kbr_localization.ros.outputs import LATCHED
from kbr_localization.ros.parameters import declare, ParameterNode, refuse_misspelt
from kbr_localization.ros.recording import RecordingSession
from kbr_localization.ros.running import format_counts, NodeLogger, run_program, spin, Worker
from nav_msgs.msg import Odometry
import numpy as np
from rclpy.qos import QoSProfile, ReliabilityPolicy

POSE_MESSAGES = {
    'pose_with_covariance': PoseWithCovarianceStamped,
    'pose': PoseStamped,
    'odometry': Odometry,
}
POSE_QOS = QoSProfile(depth=50, reliability=ReliabilityPolicy.BEST_EFFORT)


class RecorderNode(ParameterNode):
    """
    Record images with poses into a run folder.

    Raises ConfigurationError for a parameter that is unknown or out of range, or without `out`.
    """

    def __init__(self) -> None:
        super().__init__('recorder', automatically_declare_parameters_from_overrides=True)
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
        self._path_publisher = self.create_publisher(PoseArray, '~/recorded_poses', LATCHED)
        self._path = PoseArray()
        self._reporter = StatusPublisher(self, self._report)
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
            self.get_logger().info(
                f'{self.config.out}: {self.session.recorded} images, dropped: '
                f'{format_counts(self.session.dropped + self._inputs.dropped)}; poses dropped: '
                f'{format_counts(self.session.poses_dropped)}'
            )

    def _subscribe_to_poses(self) -> Topic | None:
        config, listener = self.config, self._listener
        if config.pose_type == 'none':
            self._recording.set_poses(known=False)
            self.session.needs_poses = False
            return None
        self._recording.set_poses(known=True)
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
        stamp_ns, posed, deviation = (
            conversions.stamp_to_ns(message.header.stamp),
            message.pose,
            0.0,
        )
        self._poses.saw(stamp_ns, time.monotonic())
        try:
            if frame_id.lstrip('/') != expected:
                raise RosError(f'expected frame {expected!r}, got {frame_id!r}')
            if not isinstance(message, PoseStamped):
                covariance = conversions.covariance_from_message(posed.covariance)
                deviation = math.sqrt(max(covariance[0, 0], covariance[1, 1]))
                posed = posed.pose
            pose = conversions.pose_from_message(posed)
        except RosError as error:
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
        facts, topics = self._inputs.measure(now), list(self._inputs.topics)
        if self._poses is not None:
            look_at_publishers(self, self._poses, POSE_QOS)
            clock_ns = self.get_clock().now().nanoseconds
            self._poses.measure(now, config.no_data_timeout, clock_ns)
            topics.append(self._poses)
        if min(config.spacing_distance, config.spacing_angle) > 0.0:
            facts['awaits_motion'] = 'the next image is recorded when it moves'
        hints, stall = diagnose(facts, topics), session.stall(now)
        for line in filter(None, [*hints, stall]):
            self._log('warning', line)
        text = f'{session.recorded} images recorded'
        level = ERROR if session.trouble else WARN if stall else OK
        told = session.trouble or (f'{text}, but: {stall}' if stall else text)
        values = {'images': session.recorded, 'folder': config.out}
        poses = {f'poses dropped: {why}': n for why, n in session.poses_dropped.items()}
        dropped = session.dropped + self._inputs.dropped
        return [
            status(self, 'recording', level, told, values),
            input_status(self, topics, hints, dropped, session.odometry_counts, poses),
        ]


def main(args: list[str] | None = None) -> int:
    """Run the recorder node."""
    return run_program(_run, args)


def _run(stop: threading.Event) -> None:
    node = RecorderNode()
    try:
        spin(node, stop)
    finally:
        node.close()
        node.destroy_node()


if __name__ == '__main__':
    sys.exit(main())
