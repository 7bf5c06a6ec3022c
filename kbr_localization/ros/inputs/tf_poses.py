"""Poses in the map that somebody sends as transforms alone, as SLAM does: for the recorder."""

from __future__ import annotations

from collections.abc import Callable
import time
from typing import Any

from geometry_msgs.msg import Pose, Transform, TransformStamped
from kbr_localization import se2
from kbr_localization.errors import RosError
from kbr_localization.ros.common import conversions
from kbr_localization.ros.common.hints import InputWatch
from kbr_localization.ros.common.node_logger import NodeLogger
from kbr_localization.ros.common.optional import interface
from kbr_localization.ros.inputs.transforms import TF_LISTENER_QOS
from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy

ODOMETRY_QOS = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)
TYPE_NAME = 'tf2_msgs/msg/TFMessage'


class TransformPoses:
    """
    Poses of the robot from the transform of `map_frame` to the odometry's frame, or to the robot.

    `take(stamp, pose, deviation)` gets a pose (3,) for each transform. A localizer stamps what it
    sends ahead of time, so map to odometry holds for the newest odometry; a transform to the frame
    that the odometry moves has the stamp of its own measurement.

    Raises RosError without tf2_msgs.
    """

    def __init__(
        self,
        node: Node,
        map_frame: str,
        odometry_frame: str,
        take: Callable[[int, se2.FloatArray, float], None],
        log: NodeLogger,
    ) -> None:
        message_type = interface('tf2_msgs.msg', 'TFMessage')
        if message_type is None:
            raise RosError("pose_type 'tf' needs tf2_msgs: install it, or record from a topic")
        self._map_frame, self._odometry_frame = map_frame, odometry_frame
        self._take, self._log = take, log
        self._odometry: Odometry | None = None
        node.create_subscription(Odometry, 'odom', self._take_odometry, ODOMETRY_QOS)
        subscription = node.create_subscription(
            message_type, '/tf', self._take_message, TF_LISTENER_QOS
        )
        self.watch = InputWatch(
            subscription.topic_name,
            TYPE_NAME,
            time.monotonic(),
            sought=(
                f'{map_frame} to {odometry_frame} or to the frame of the robot that the '
                'odometry names: see what they send, and set global_frame_id, odom_frame_id'
            ),
        )

    def _take_odometry(self, message: Odometry) -> None:
        self._odometry = message

    def _take_message(self, message: Any) -> None:
        for transform in message.transforms:
            if transform.header.frame_id.lstrip('/') == self._map_frame:
                try:
                    self._take_transform(transform)
                except RosError as error:
                    self._log('warning', f'transform not used: {error}')

    def _take_transform(self, transform: TransformStamped) -> None:
        odometry, child = self._odometry, transform.child_frame_id.lstrip('/')
        if odometry is None:
            return
        if child == self._odometry_frame:
            moved = conversions.pose_from_message(odometry.pose.pose)
            pose = se2.compose(_pose(transform.transform), moved)
            self._hand_on(odometry.header.stamp, pose)
        elif child == odometry.child_frame_id.lstrip('/'):
            self._hand_on(transform.header.stamp, _pose(transform.transform))

    def _hand_on(self, stamp: Any, pose: se2.FloatArray) -> None:
        stamp_ns = conversions.stamp_to_ns(stamp)
        self.watch.saw(stamp_ns, time.monotonic())
        self.watch.frozen = 0  # SLAM repeats a transform faster than the odometry comes
        self._take(stamp_ns, pose, 0.0)


def _pose(transform: Transform) -> se2.FloatArray:
    message = Pose(orientation=transform.rotation)
    message.position.x, message.position.y = transform.translation.x, transform.translation.y
    return conversions.pose_from_message(message)
