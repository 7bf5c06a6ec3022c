"""Transforms on /tf: what others send, and map to odom. Nothing is sent or heard without tf2."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
import threading
import time
from typing import Any

from geometry_msgs.msg import Pose, TransformStamped
from kbr_localization import se2
from kbr_localization.errors import RosError
from kbr_localization.ros import conversions
from kbr_localization.ros.config import NodeConfig
from kbr_localization.ros.conversions import ns_to_stamp, optional_interface
from kbr_localization.ros.odometry_buffer import SECOND
from kbr_localization.ros.session import Answer
import numpy as np
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.serialization import deserialize_message

TF_QOS = QoSProfile(depth=100, reliability=ReliabilityPolicy.BEST_EFFORT)
STATIC_QOS = QoSProfile(depth=100, durability=DurabilityPolicy.TRANSIENT_LOCAL)


class TransformListener:
    """
    The newest planar transforms: of /tf_static, and of the map or odometry frame on /tf.

    `type`: of the messages, None without tf2_msgs. `links`: by frame its parent, the stamp in
    nanoseconds (0 of a static one) and the pose (3,). `callbacks` are called after each message.
    """

    def __init__(self, node: Node, config: Any, log: Callable[[str, str], None]) -> None:
        self._node, self._log = node, log
        # as a message has them
        self._frames = [f'{n}\0'.encode() for n in (config.global_frame_id, config.odom_frame_id)]
        self.type = optional_interface('tf2_msgs.msg', 'TFMessage')
        self.links: dict[str, tuple[str, int, se2.FloatArray]] = {}
        self.callbacks: list[Callable[[], None]] = []
        self.subscriptions: list[Any] = []
        if self.type is not None:
            self.subscriptions = [
                node.create_subscription(self.type, '/tf', self._take_raw, TF_QOS, raw=True),
                node.create_subscription(self.type, '/tf_static', self._take_static, STATIC_QOS),
            ]

    def destroy(self) -> None:
        """Stop listening."""
        for subscription in self.subscriptions:
            self._node.destroy_subscription(subscription)

    def pose(self, parent: str, frame: str) -> tuple[int, se2.FloatArray] | None:
        """Look up the newest stamp and place (3,) of a frame in one above it; None without."""
        newest_ns, pose = 0, np.zeros(3)
        for _ in self.links:  # a tree with a circle has no top
            if frame not in self.links:
                return None
            frame, stamp_ns, step = self.links[frame]
            newest_ns, pose = max(newest_ns, stamp_ns), se2.compose(step, pose)
            if frame == parent:
                return newest_ns, pose
        return None

    def _take_raw(self, data: bytes) -> None:
        # reading those of many joints would take a tenth of a core
        if any(frame in data for frame in self._frames):
            self._take(deserialize_message(data, self.type))

    def _take_static(self, message: Any) -> None:
        for transform in message.transforms:
            transform.header.stamp = ns_to_stamp(0)
        self._take(message)

    def _take(self, message: Any) -> None:
        for transform in message.transforms:
            move, pose = transform.transform.translation, Pose()
            pose.position.x, pose.position.y = move.x, move.y
            pose.orientation = transform.transform.rotation
            stamp_ns = conversions.stamp_to_ns(transform.header.stamp)
            parent, child = transform.header.frame_id, transform.child_frame_id
            try:
                link = (parent.lstrip('/'), stamp_ns, conversions.pose_from_message(pose))
            except RosError as error:
                self._log('warning', f'transform not used: {parent} to {child}: {error}')
                continue
            self.links[child.lstrip('/')] = link
        for callback in self.callbacks:
            callback()


class TransformBroadcaster:
    """Broadcast map to odometry, with stamps that never repeat or go back; hear other senders."""

    def __init__(self, node: Node, config: NodeConfig, listener: TransformListener) -> None:
        self._node, self._config, self._listener = node, config, listener
        self._lock = threading.Lock()
        self._odom_in_map: se2.FloatArray | None = None
        self._last_ns = 0
        self._sent_ns: deque[int] = deque(maxlen=1000)
        self._rival_ns, self._rival_at = -1, -np.inf
        listener.callbacks.append(self._look_for_rival)
        if listener.type is not None:
            self._publisher = node.create_publisher(listener.type, '/tf', QoSProfile(depth=100))

    def destroy(self) -> None:
        """Remove the publisher."""
        if self._listener.type is not None:
            self._node.destroy_publisher(self._publisher)

    def forget(self) -> None:
        """Send nothing until there is a belief again; earlier stamps are allowed."""
        with self._lock:
            self._odom_in_map, self._last_ns = None, 0

    def follow_config(self, config: NodeConfig) -> None:
        """Use changed parameters; stamps further ahead were sent with a longer tolerance."""
        with self._lock:
            if config.transform_tolerance < self._config.transform_tolerance:
                self._last_ns = 0
            self._config = config

    def take(self, answer: Answer, is_current: Callable[[], bool]) -> bool:
        """Send an answer's transform from now on, unless a reset has come before."""
        with self._lock:
            current = is_current()
            if current and answer.estimate.has_pose:
                self._odom_in_map = answer.odom_in_map
        return current

    def send(self, stamp_ns: int, restart: bool = False) -> None:
        """
        Send the transform, valid for `transform_tolerance` from a stamp on.

        One that is not later than the last is left out. `restart`: the last one was a stray.
        """
        with self._lock:
            self._last_ns = 0 if restart else self._last_ns
            until_ns = stamp_ns + round(self._config.transform_tolerance * SECOND)
            in_time = self._last_ns < until_ns < 2**31 * SECOND  # what a message can hold
            if self._odom_in_map is None or not (in_time and self._config.tf_broadcast):
                return
            if self._listener.type is None:
                return
            self._last_ns = until_ns
            self._sent_ns.append(until_ns)
            pose = conversions.pose_to_message(self._odom_in_map)
            message = TransformStamped(child_frame_id=self._config.odom_frame_id)
            message.header.stamp = ns_to_stamp(until_ns)
            message.header.frame_id = self._config.global_frame_id
            message.transform.translation.x = pose.position.x
            message.transform.translation.y = pose.position.y
            message.transform.rotation = pose.orientation
            self._publisher.publish(self._listener.type(transforms=[message]))

    @property
    def has_rival(self) -> bool:
        """Whether another node broadcasts the same transform."""
        return self._config.tf_broadcast and time.monotonic() - self._rival_at < 5.0

    def _look_for_rival(self) -> None:
        parent, stamp_ns, _ = self._listener.links.get(self._config.odom_frame_id, ('', 0, None))
        foreign = parent == self._config.global_frame_id and stamp_ns not in self._sent_ns
        if foreign and stamp_ns != self._rival_ns:
            self._rival_ns = stamp_ns
            self._rival_at = time.monotonic() if stamp_ns else np.inf  # a static one stays
