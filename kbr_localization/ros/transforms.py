"""The transform from the map to the odometry frame; nothing without tf2_msgs."""

from __future__ import annotations

from typing import Any

from geometry_msgs.msg import TransformStamped
from kbr_localization import se2
from kbr_localization.ros import conversions
from rclpy.node import Node
from rclpy.qos import QoSProfile

try:
    from tf2_msgs.msg import TFMessage
except ImportError:  # not everywhere installed, as on PyPI
    TFMessage = None

TF_QOS = QoSProfile(depth=100)


def have_tf() -> bool:
    """Whether transforms can be sent here."""
    return TFMessage is not None


class TransformSender:
    """Send odometry frame in map frame, with stamps that never repeat or go back."""

    def __init__(self, node: Node, global_frame_id: str, odom_frame_id: str) -> None:
        self._frames = (global_frame_id, odom_frame_id)
        self.publisher: Any = node.create_publisher(TFMessage, '/tf', TF_QOS)
        self._last_ns = 0

    def send(self, odom_in_map: se2.FloatArray, stamp_ns: int) -> None:
        """Send the transform (3,), valid at a stamp; a stamp not later than the last is left."""
        if stamp_ns <= self._last_ns:
            return
        self._last_ns = stamp_ns
        self.publisher.publish(TFMessage(transforms=[self._message(odom_in_map, stamp_ns)]))

    def restart(self) -> None:
        """Allow earlier stamps, after time has jumped back."""
        self._last_ns = 0

    def _message(self, pose: se2.FloatArray, stamp_ns: int) -> TransformStamped:
        message = TransformStamped()
        message.header.stamp = conversions.ns_to_stamp(stamp_ns)
        message.header.frame_id, message.child_frame_id = self._frames
        in_plane = conversions.pose_to_message(pose)
        message.transform.translation.x = in_plane.position.x
        message.transform.translation.y = in_plane.position.y
        message.transform.rotation = in_plane.orientation
        return message
