"""What the node publishes about an answer."""

from __future__ import annotations

from collections.abc import Callable
import threading
import time
from typing import Any

from geometry_msgs.msg import PoseArray, PoseWithCovarianceStamped
from kbr_localization import se2
from kbr_localization.datasets.multi_camera import one_picture
from kbr_localization.errors import KbrError
from kbr_localization.localization.localizer import Localizer
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.ros.common import conversions
from kbr_localization.ros.common.diagnostics import Latencies
from kbr_localization.ros.common.optional import interface
from kbr_localization.ros.inputs.transforms import have_tf, RivalWatch, TransformSender
from kbr_localization.ros.node import pictures
from kbr_localization.ros.parameters.node_config import NodeConfig
from kbr_localization.ros.session.answer import Answer
from kbr_localization.ros.session.odometry_buffer import Added
import numpy as np
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, qos_profile_sensor_data, QoSProfile
from sensor_msgs.msg import CompressedImage
from visualization_msgs.msg import MarkerArray

LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
MAP_SECONDS = 1.0
"""Seconds between two pictures of the map's poses."""


class Outputs:
    """
    The node's publishers.

    `publish` belongs to the worker's thread, `follow_odometry` to the odometry's callback.
    """

    def __init__(self, node: Node, config: NodeConfig, kernel_map: KernelMap) -> None:
        self._node, self.config, self._map = node, config, kernel_map
        self.localizer: Localizer | None = None
        self.processing, self.latency = Latencies(), Latencies()
        self._lock = threading.Lock()
        self._odom_in_map: se2.FloatArray | None = None
        self._map_sent = 0.0
        create = node.create_publisher
        self._poses = [
            create(PoseWithCovarianceStamped, name, LATCHED) for name in ('amcl_pose', '~/pose')
        ]
        cloud_type = interface('nav2_msgs.msg', 'ParticleCloud') or PoseArray
        self._particles = create(cloud_type, 'particle_cloud', qos_profile_sensor_data)
        self._map_poses = create(MarkerArray, '~/map_poses', LATCHED)
        # RViz looks for compressed images under this ending
        self._best_match = [
            create(CompressedImage, name, qos_profile_sensor_data)
            for name in ('~/best_match', '~/best_match/compressed')
        ]
        self._transforms: TransformSender | None = None
        self.rivals: RivalWatch | None = None
        if have_tf():
            frames = (config.global_frame_id, config.odom_frame_id)
            self._transforms = TransformSender(node, *frames)
            self.rivals = RivalWatch(node, self._transforms)
        self.show_map(kernel_map)

    @property
    def has_nav2(self) -> bool:
        """Whether the particles are of Nav2's own message type."""
        return self._particles.msg_type is not PoseArray

    def destroy(self) -> None:
        """Take the publishers away."""
        publishers: list[Any] = [
            *self._poses,
            self._particles,
            self._map_poses,
            *self._best_match,
        ]
        if self._transforms is not None and self.rivals is not None:
            self.rivals.stop()
            publishers.append(self._transforms.publisher)
        for publisher in publishers:
            self._node.destroy_publisher(publisher)

    def follow_map(self, kernel_map: KernelMap) -> None:
        """Show a map that has grown from now on; whoever looks sees it within a second."""
        self._map = kernel_map

    def show_map(self, kernel_map: KernelMap) -> None:
        """Publish the poses of a new map."""
        self._map = kernel_map
        now_ns = self._node.get_clock().now().nanoseconds
        self._map_poses.publish(
            pictures.map_markers(kernel_map.poses, now_ns, self.config.global_frame_id)
        )

    def forget(self) -> None:
        """Stop sending a transform until there is a belief again; time may start over."""
        with self._lock:
            self._odom_in_map = None
            if self._transforms is not None:
                self._transforms.restart()

    def follow_config(self, config: NodeConfig) -> None:
        """Use changed parameters from now on."""
        with self._lock:
            shorter = config.transform_tolerance < self.config.transform_tolerance
            if shorter and self._transforms is not None:
                # else the stamps already sent would silence it for the difference
                self._transforms.restart()
            self.config = config

    def publish(self, answer: Answer, is_current: Callable[[], bool] = lambda: True) -> bool:
        """
        Publish an answer, and whatever somebody wants to see of it, unless a reset came before.

        Returns whether it was current.
        """
        if not self._take(answer, is_current):
            return False
        if answer.is_known:
            self._publish_current(answer)
        return True

    def _publish_current(self, answer: Answer) -> None:
        self._publish_pose(answer)
        if answer.estimate.has_pose:
            self._send_transform(answer.stamp_ns)
        self._measure(answer)
        if self._particles.get_subscription_count():
            self._publish_particles(answer)
        if self._map_poses.get_subscription_count():
            self._publish_map(answer)
        wanted = [p for p in self._best_match if p.get_subscription_count()]
        if answer.estimate.updated and wanted:
            self._publish_best_match(answer, wanted)

    def _take(self, answer: Answer, is_current: Callable[[], bool]) -> bool:
        """Send an answer's transform from now on, unless a reset has come before."""
        with self._lock:
            current = is_current()
            if current and answer.estimate.has_pose:
                self._odom_in_map = answer.odom_in_map
        return current

    def follow_odometry(self, stamp_ns: int, outcome: Added) -> None:
        """Send the last transform again, valid from a stamp on for `transform_tolerance`."""
        # else the stamp of a stray from the future would silence it until then
        self._send_transform(stamp_ns, anew=outcome is Added.RETURNED)

    def _send_transform(self, stamp_ns: int, anew: bool = False) -> None:
        with self._lock:
            if self._transforms is None:
                return
            if anew:
                self._transforms.restart()
            if self._odom_in_map is not None and self.config.tf_broadcast:
                ahead_ns = round(self.config.transform_tolerance * conversions.NANOSECONDS)
                self._transforms.send(self._odom_in_map, stamp_ns + ahead_ns)

    def _publish_pose(self, answer: Answer) -> None:
        estimate = answer.estimate
        message = conversions.pose_with_covariance(
            answer.stamp_ns, self.config.global_frame_id, estimate.pose, estimate.covariance
        )
        for publisher in self._poses:
            publisher.publish(message)

    def _measure(self, answer: Answer) -> None:
        now_ns = self._node.get_clock().now().nanoseconds
        self.processing.add(time.monotonic() - answer.image.received)
        self.latency.add((now_ns - answer.stamp_ns) * 1e-9)

    def _sample(self) -> se2.FloatArray:
        if self.localizer is None:
            return np.zeros((0, 3))
        return self.localizer.particles(self.config.particles)

    def _publish_particles(self, answer: Answer) -> None:
        cloud = particle_cloud if self.has_nav2 else pictures.pose_array
        frame_id = self.config.global_frame_id
        self._particles.publish(cloud(self._sample(), answer.stamp_ns, frame_id))

    def _publish_map(self, answer: Answer) -> None:
        now = time.monotonic()
        if now - self._map_sent < MAP_SECONDS:
            return
        self._map_sent = now
        weights = pictures.weights_near(self._map.poses, self._sample())
        frame_id = self.config.global_frame_id
        self._map_poses.publish(
            pictures.map_markers(self._map.poses, answer.stamp_ns, frame_id, weights)
        )

    def _publish_best_match(self, answer: Answer, publishers: list[Any]) -> None:
        if not self._map.thumbnails:
            return
        try:
            image = answer.image.load()
            best, value = self._map.best_match(self._map.describer.describe(image))
        except KbrError:
            return  # counted where it was first seen
        x, y, heading = self._map.poses[best]
        caption = f'k = {value:.2f} at {x:.2f}, {y:.2f}, {heading:.2f}'
        message = pictures.side_by_side(
            one_picture(image), self._map.thumbnails[best], caption, answer.stamp_ns, 'camera'
        )
        for publisher in publishers:
            publisher.publish(message)


def particle_cloud(poses: se2.FloatArray, stamp_ns: int, frame_id: str) -> Any:
    """Make a cloud of equally weighted poses (n, 3), as Nav2's view of RViz shows it."""
    message, particle = (interface('nav2_msgs.msg', n) for n in ('ParticleCloud', 'Particle'))
    cloud = message()
    cloud.header = pictures.pose_array(poses[:0], stamp_ns, frame_id).header
    cloud.particles = [
        particle(pose=conversions.pose_to_message(pose), weight=1.0 / len(poses)) for pose in poses
    ]
    return cloud
