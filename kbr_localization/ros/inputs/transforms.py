"""The transform from the map to the odometry frame; nothing without tf2_msgs."""

from __future__ import annotations

from collections import deque
from typing import Any

from geometry_msgs.msg import TransformStamped
from kbr_localization import se2
from kbr_localization.ros.common import conversions
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy

try:
    from tf2_msgs.msg import TFMessage
except ImportError:  # not everywhere installed, as on PyPI
    TFMessage = None

TF_QOS = QoSProfile(depth=100)
# best effort, as micro-controllers send it, fits all senders
TF_LISTENER_QOS = QoSProfile(depth=100, reliability=ReliabilityPolicy.BEST_EFFORT)
END_NS = 2**31 * conversions.NANOSECONDS
"""Stamps from there on do not fit into a message."""
LISTEN_AFTER, LISTEN_FOR, LISTEN_EVERY = 3, 3, 60
"""Seconds after the start, for how long, and how often to listen for rivals."""


def have_tf() -> bool:
    """Whether transforms can be sent here."""
    return TFMessage is not None


class TransformSender:
    """Send odometry frame in map frame, with stamps that never repeat or go back."""

    def __init__(self, node: Node, global_frame_id: str, odom_frame_id: str) -> None:
        self._frames = (global_frame_id, odom_frame_id)
        self.publisher: Any = node.create_publisher(TFMessage, '/tf', TF_QOS)
        self._last_ns = 0
        self.recent: deque[int] = deque(maxlen=1000)

    def send(self, odom_in_map: se2.FloatArray, stamp_ns: int) -> None:
        """Send the transform (3,), valid at a stamp; one not later than the last is left out."""
        if not self._last_ns < stamp_ns < END_NS:
            return
        self._last_ns = stamp_ns
        self.recent.append(stamp_ns)
        self.publisher.publish(TFMessage(transforms=[self._message(odom_in_map, stamp_ns)]))

    def restart(self) -> None:
        """Allow earlier stamps, after time has jumped back or a stamp was a stray."""
        self._last_ns = 0

    def is_rival(self, transform: TransformStamped) -> bool:
        """Whether a transform says the same as those sent here, but is none of them."""
        frames = (transform.header.frame_id.lstrip('/'), transform.child_frame_id.lstrip('/'))
        stamp_ns = conversions.stamp_to_ns(transform.header.stamp)
        return frames == self._frames and stamp_ns not in self.recent

    def _message(self, pose: se2.FloatArray, stamp_ns: int) -> TransformStamped:
        message = TransformStamped()
        message.header.stamp = conversions.ns_to_stamp(stamp_ns)
        message.header.frame_id, message.child_frame_id = self._frames
        in_plane = conversions.pose_to_message(pose)
        message.transform.translation.x = in_plane.position.x
        message.transform.translation.y = in_plane.position.y
        message.transform.rotation = in_plane.orientation
        return message


class RivalWatch:
    """
    Listen on /tf now and then for somebody else who sends the same transform.

    Not all the time: on a robot with many joints that would be a large part of the work.
    """

    def __init__(self, node: Node, sender: TransformSender) -> None:
        self._node, self._sender = node, sender
        self._subscription: Any = None
        self._ticks = 0
        self._heard = 0
        self.found = False

    def tick(self) -> None:
        """Begin or end to listen; called once a second."""
        phase = self._ticks % LISTEN_EVERY
        self._ticks += 1
        if phase == LISTEN_AFTER:
            self._heard = 0
            self._subscription = self._node.create_subscription(
                TFMessage, '/tf', self._take, TF_LISTENER_QOS
            )
        elif phase == LISTEN_AFTER + LISTEN_FOR:
            self.found = self._heard > 0
            self.stop()

    def stop(self) -> None:
        """Listen no more."""
        if self._subscription is not None:
            self._node.destroy_subscription(self._subscription)
            self._subscription = None

    def _take(self, message: Any) -> None:
        for transform in message.transforms:
            if self._sender.is_rival(transform):
                self._heard += 1
                self.found = True
