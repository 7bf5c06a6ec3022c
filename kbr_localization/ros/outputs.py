"""What the localization node publishes about an answer: pose, transform, particles, pictures."""

from __future__ import annotations

import array
from collections import deque
from collections.abc import Callable
import threading
import time
from typing import Any

import cv2
from geometry_msgs.msg import Point, PoseArray, PoseWithCovarianceStamped, TransformStamped
from kbr_localization import se2
from kbr_localization.datasets.images import decode_image
from kbr_localization.datasets.multi_camera import one_picture
from kbr_localization.errors import KbrError
from kbr_localization.localization.localizer import Localizer
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.ros import conversions
from kbr_localization.ros.config import NodeConfig
from kbr_localization.ros.conversions import NANOSECONDS, ns_to_stamp, optional_interface
from kbr_localization.ros.odometry_buffer import Added
from kbr_localization.ros.running import Durations
from kbr_localization.ros.session import Answer
import numpy as np
from rclpy.node import Node
from rclpy.qos import (
    DurabilityPolicy,
    qos_profile_sensor_data,
    QoSProfile,
    ReliabilityPolicy,
)
from scipy.spatial import cKDTree
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import ColorRGBA
from visualization_msgs.msg import Marker, MarkerArray

LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
TF_LISTENER_QOS = QoSProfile(depth=100, reliability=ReliabilityPolicy.BEST_EFFORT)
MAX_ARROWS = 5000
PICTURE_HEIGHT = 240


class Outputs:
    """
    The node's publishers.

    `publish` belongs to the worker's thread, the others to callbacks. `localizer`: whose particles
    are shown. `processing`, `latency`: seconds from an image's arrival and from its stamp.
    """

    def __init__(self, node: Node, config: NodeConfig, kernel_map: KernelMap) -> None:
        self._node, self.config, self._map = node, config, kernel_map
        self.localizer: Localizer | None = None
        self.processing, self.latency = Durations(), Durations()
        self._map_sent = 0.0
        create = node.create_publisher
        self._poses = [
            create(PoseWithCovarianceStamped, name, LATCHED) for name in ('amcl_pose', '~/pose')
        ]
        cloud = optional_interface('nav2_msgs.msg', 'ParticleCloud') or PoseArray
        self.has_nav2 = cloud is not PoseArray
        self._particles = create(cloud, 'particle_cloud', qos_profile_sensor_data)
        self._map_poses = create(MarkerArray, '~/map_poses', LATCHED)
        # RViz looks for compressed images under the second name
        self._best_match = [
            create(CompressedImage, name, qos_profile_sensor_data)
            for name in ('~/best_match', '~/best_match/compressed')
        ]
        self._transforms = TransformBroadcaster(node, config)
        self.show_map(kernel_map)

    def destroy(self) -> None:
        """Remove the publishers."""
        self._transforms.destroy()
        for publisher in (*self._poses, self._particles, self._map_poses, *self._best_match):
            self._node.destroy_publisher(publisher)

    def follow_map(self, kernel_map: KernelMap) -> None:
        """Use a map that has grown."""
        self._map = kernel_map

    def show_map(self, kernel_map: KernelMap) -> None:
        """Publish the poses of a new map."""
        self._map = kernel_map
        now_ns, frame_id = self._node.get_clock().now().nanoseconds, self.config.global_frame_id
        self._map_poses.publish(map_markers(kernel_map.poses, now_ns, frame_id))

    def forget(self) -> None:
        """Send no transform until there is a belief again; time may start over."""
        self._transforms.forget()

    def follow_config(self, config: NodeConfig) -> None:
        """Use changed parameters."""
        self.config = config
        self._transforms.follow_config(config)

    def rival(self) -> bool:
        """Whether another node broadcasts the same transform; call once a second."""
        return self._transforms.rival()

    def follow_odometry(self, stamp_ns: int, outcome: Added) -> None:
        """Send the last transform again, valid from a stamp on for `transform_tolerance`."""
        self._transforms.send(stamp_ns, restart=outcome is Added.RETURNED)

    def publish(self, answer: Answer, is_current: Callable[[], bool] = lambda: True) -> bool:
        """Publish an answer unless a reset came before it; return whether it was current."""
        if not self._transforms.take(answer, is_current):
            return False
        if answer.is_known:
            self._publish_pose(answer)
            if self._particles.get_subscription_count():
                self._publish_particles(answer)
            if self._map_poses.get_subscription_count():
                self._publish_map(answer)
            wanted = [p for p in self._best_match if p.get_subscription_count()]
            if answer.estimate.updated and wanted:
                self._publish_best_match(answer, wanted)
        return True

    def _publish_pose(self, answer: Answer) -> None:
        estimate = answer.estimate
        message = conversions.pose_with_covariance(
            answer.stamp_ns, self.config.global_frame_id, estimate.pose, estimate.covariance
        )
        for publisher in self._poses:
            publisher.publish(message)
        if estimate.has_pose:
            self._transforms.send(answer.stamp_ns)
        now_ns = self._node.get_clock().now().nanoseconds
        self.processing.add(time.monotonic() - answer.image.received)
        self.latency.add((now_ns - answer.stamp_ns) * 1e-9)

    def _sample(self) -> se2.FloatArray:
        if self.localizer is None:
            return np.zeros((0, 3))
        return self.localizer.particles(self.config.particles)

    def _publish_particles(self, answer: Answer) -> None:
        poses = self._sample()
        cloud: Any = conversions.pose_array(poses, answer.stamp_ns, self.config.global_frame_id)
        if self.has_nav2:
            particle = optional_interface('nav2_msgs.msg', 'Particle')
            weighted = [particle(pose=pose, weight=1.0 / len(poses)) for pose in cloud.poses]
            cloud = self._particles.msg_type(header=cloud.header, particles=weighted)
        self._particles.publish(cloud)

    def _publish_map(self, answer: Answer) -> None:
        """Publish the map's poses coloured by the belief, at most once a second."""
        now, particles = time.monotonic(), self._sample()
        if now - self._map_sent < 1.0 or not len(particles):
            return
        self._map_sent = now
        near = cKDTree(particles[:, :2]).query_ball_point(
            self._map.poses[:, :2], 0.5, return_length=True
        )
        frame_id = self.config.global_frame_id
        self._map_poses.publish(
            map_markers(self._map.poses, answer.stamp_ns, frame_id, near / max(near.max(), 1))
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
        message = side_by_side(
            one_picture(image),
            self._map.thumbnails[best],
            f'k = {value:.2f} at {x:.2f}, {y:.2f}, {heading:.2f}',
        )
        message.header.stamp = ns_to_stamp(answer.stamp_ns)
        message.header.frame_id = 'camera'
        for publisher in publishers:
            publisher.publish(message)


class TransformBroadcaster:
    """
    Broadcast map to odometry, with stamps that never repeat or go back; nothing without tf2_msgs.

    Listen on /tf now and then for a rival: all the time would be much work on a robot with many
    joints.
    """

    def __init__(self, node: Node, config: NodeConfig) -> None:
        self._node, self._config = node, config
        self._lock = threading.Lock()
        self._odom_in_map: se2.FloatArray | None = None
        self._last_ns = 0
        self._sent_ns: deque[int] = deque(maxlen=1000)
        self._seconds, self._heard, self._rival = -1, False, False
        self._subscription: Any = None
        self._type = optional_interface('tf2_msgs.msg', 'TFMessage')
        if self._type is not None:
            self._publisher = node.create_publisher(self._type, '/tf', QoSProfile(depth=100))

    def destroy(self) -> None:
        """Remove publisher and subscription."""
        self._end_listening()
        if self._type is not None:
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
            until_ns = stamp_ns + round(self._config.transform_tolerance * NANOSECONDS)
            in_time = self._last_ns < until_ns < 2**31 * NANOSECONDS  # what a message can hold
            if self._odom_in_map is None or not (in_time and self._config.tf_broadcast):
                return
            if self._type is None:
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
            self._publisher.publish(self._type(transforms=[message]))

    def rival(self) -> bool:
        """Whether another node broadcasts the same transform; call once a second."""
        if self._type is None or not self._config.tf_broadcast:
            return False
        self._seconds = (self._seconds + 1) % 60
        if self._seconds == 3:
            self._heard = False
            self._subscription = self._node.create_subscription(
                self._type, '/tf', self._listen, TF_LISTENER_QOS
            )
        elif self._seconds == 6:
            self._rival = self._heard
            self._end_listening()
        return self._rival or self._heard

    def _end_listening(self) -> None:
        if self._subscription is not None:
            self._node.destroy_subscription(self._subscription)
            self._subscription = None

    def _listen(self, message: Any) -> None:
        frames = (self._config.global_frame_id, self._config.odom_frame_id)
        for transform in message.transforms:
            found = (transform.header.frame_id.lstrip('/'), transform.child_frame_id.lstrip('/'))
            if found == frames:
                stamp_ns = conversions.stamp_to_ns(transform.header.stamp)
                self._heard = self._heard or stamp_ns not in self._sent_ns


def map_markers(
    poses: se2.FloatArray, stamp_ns: int, frame_id: str, weights: se2.FloatArray | None = None
) -> MarkerArray:
    """
    Map poses (n, 3) as short lines in their headings, grey to red by weight (n,) in [0, 1].

    Of a large map only every k-th pose is shown, so that viewers stay quick.
    """
    step = 1 + (len(poses) - 1) // MAX_ARROWS
    marker = Marker(ns='map_poses', type=Marker.LINE_LIST, action=Marker.ADD)
    marker.header.stamp = ns_to_stamp(stamp_ns)
    marker.header.frame_id = frame_id
    marker.scale.x = 0.03
    marker.pose.orientation.w = 1.0
    marker.color = ColorRGBA(r=0.5, g=0.5, b=0.5, a=0.8)
    starts = poses[::step]
    ends = se2.compose(starts, np.array([0.25, 0.0, 0.0]))
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        marker.points += [Point(x=start[0], y=start[1]), Point(x=end[0], y=end[1])]
    for heat in () if weights is None else weights[::step].tolist():
        cold = 0.5 - 0.4 * heat
        marker.colors += [ColorRGBA(r=0.5 + 0.5 * heat, g=cold, b=cold, a=0.8)] * 2
    return MarkerArray(markers=[marker])


def side_by_side(image: np.ndarray, match: bytes, caption: str) -> CompressedImage:
    """Image (h, w) or (h, w, 3) beside a map image (JPEG bytes), with a caption."""
    halves = []
    for half in (image, decode_image(match, 'of the map')):
        colour = half if half.ndim == 3 else cv2.cvtColor(half, cv2.COLOR_GRAY2BGR)
        width = max(1, round(half.shape[1] * PICTURE_HEIGHT / half.shape[0]))
        halves.append(cv2.resize(colour, (width, PICTURE_HEIGHT)))
    canvas = np.concatenate(halves, axis=1)
    cv2.putText(canvas, caption, (6, 16), cv2.FONT_HERSHEY_SIMPLEX, 0.45, (0, 255, 255), 1)
    data = array.array('B', cv2.imencode('.jpg', canvas)[1].tobytes())
    return CompressedImage(format='jpeg', data=data)
