"""
What the localization node publishes.

About an answer: pose, transform, particles, pictures. For a lifecycle manager: heartbeats.
"""

from __future__ import annotations

import array
from collections import deque
from collections.abc import Callable
import threading
import time
from typing import Any
import uuid

import cv2
from geometry_msgs.msg import Point, PoseArray, PoseWithCovarianceStamped
from kbr_localization import se2
from kbr_localization.datasets.images import decode_image
from kbr_localization.datasets.multi_camera import one_picture
from kbr_localization.errors import KbrError
from kbr_localization.localization.localizer import Localizer
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.ros import conversions
from kbr_localization.ros.buffers import SECOND
from kbr_localization.ros.conversions import optional_interface, stamped_header
from kbr_localization.ros.inputs import TransformListener
from kbr_localization.ros.parameters import Settings
from kbr_localization.ros.running import Durations
from kbr_localization.ros.session import Answer
import numpy as np
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, qos_profile_sensor_data, QoSProfile
from scipy.spatial import cKDTree
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import ColorRGBA
from visualization_msgs.msg import Marker, MarkerArray

LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


class Outputs:
    """
    The node's publishers.

    `publish` belongs to the worker's thread, the others to callbacks. `map`: in use. `processing`,
    `latency`: seconds from an image's arrival and from its stamp.
    """

    def __init__(
        self, node: Node, settings: Settings, kernel_map: KernelMap, listener: TransformListener
    ) -> None:
        self._node, self._settings = node, settings
        self.processing, self.latency = Durations(), Durations()
        self._map_sent = 0.0
        self._publishers: list[Any] = []
        self._poses = [
            self._create(PoseWithCovarianceStamped, name, LATCHED)
            for name in ('amcl_pose', '~/pose')
        ]
        self._particle_type = optional_interface('nav2_msgs.msg', 'Particle')
        cloud = optional_interface('nav2_msgs.msg', 'ParticleCloud') or PoseArray
        self._particles = self._create(cloud, 'particle_cloud', qos_profile_sensor_data)
        self._map_poses = self._create(MarkerArray, '~/map_poses', LATCHED)
        # RViz looks for compressed images under the second name
        self._best_match = [
            self._create(CompressedImage, name, qos_profile_sensor_data)
            for name in ('~/best_match', '~/best_match/compressed')
        ]
        self.transforms = TransformBroadcaster(settings, listener, self._create)
        self.show_map(kernel_map)

    def _create(self, message_type: Any, name: str, qos: QoSProfile) -> Any:
        self._publishers.append(self._node.create_publisher(message_type, name, qos))
        return self._publishers[-1]

    def destroy(self) -> None:
        """Remove the publishers."""
        for publisher in self._publishers:
            self._node.destroy_publisher(publisher)

    def show_map(self, kernel_map: KernelMap) -> None:
        """Publish the poses of a new map."""
        self.map, now_ns = kernel_map, self._node.get_clock().now().nanoseconds
        self._map_poses.publish(map_markers(kernel_map.poses, self._header(now_ns)))

    def publish(
        self, answer: Answer, localizer: Localizer, is_current: Callable[[Answer], bool]
    ) -> bool:
        """Publish an answer unless a reset came before it; return whether it was current."""
        if not self.transforms.take(answer, is_current):
            return False
        if answer.is_known:
            self._publish_pose(answer)
            if self._particles.get_subscription_count():
                self._publish_particles(answer, localizer)
            if self._map_poses.get_subscription_count():
                self._publish_map(answer, localizer)
            wanted = [p for p in self._best_match if p.get_subscription_count()]
            if answer.estimate.updated and wanted and self.map.thumbnails:
                self._publish_best_match(answer, wanted)
        return True

    def _header(self, stamp_ns: int) -> Any:
        return stamped_header(stamp_ns, self._settings.config.global_frame_id)

    def _publish_pose(self, answer: Answer) -> None:
        estimate, frame_id = answer.estimate, self._settings.config.global_frame_id
        message = conversions.pose_with_covariance(
            answer.stamp_ns, frame_id, estimate.pose, estimate.covariance
        )
        for publisher in self._poses:
            publisher.publish(message)
        if estimate.has_pose:
            self.transforms.send(answer.stamp_ns)
        now_ns = self._node.get_clock().now().nanoseconds
        self.processing.add(time.monotonic() - answer.image.received)
        self.latency.add((now_ns - answer.stamp_ns) * 1e-9)

    def _publish_particles(self, answer: Answer, localizer: Localizer) -> None:
        particles = localizer.particles(self._settings.config.particles)
        poses = [conversions.pose_to_message(pose) for pose in particles]
        cloud = self._particles.msg_type(header=self._header(answer.stamp_ns))
        if self._particle_type is None:
            cloud.poses = poses
        else:
            weight = 1.0 / max(len(poses), 1)
            cloud.particles = [self._particle_type(pose=pose, weight=weight) for pose in poses]
        self._particles.publish(cloud)

    def _publish_map(self, answer: Answer, localizer: Localizer) -> None:
        """Publish the map's poses coloured by the belief, at most once a second."""
        now = time.monotonic()
        if now - self._map_sent < 1.0:
            return
        particles = localizer.particles(self._settings.config.particles)
        if not len(particles):
            return
        self._map_sent = now
        tree, positions = cKDTree(particles[:, :2]), self.map.poses[:, :2]
        near = tree.query_ball_point(positions, 0.5, return_length=True)
        heat = near / max(near.max(), 1)
        self._map_poses.publish(map_markers(self.map.poses, self._header(answer.stamp_ns), heat))

    def _publish_best_match(self, answer: Answer, publishers: list[Any]) -> None:
        try:
            image = answer.image.load()
            best, value = self.map.best_match(self.map.describer.describe(image))
        except KbrError:
            return  # counted where it was first seen
        x, y, heading = self.map.poses[best]
        caption = f'k = {value:.2f} at {x:.2f}, {y:.2f}, {heading:.2f}'
        message = side_by_side(one_picture(image), self.map.thumbnails[best], caption)
        message.header = stamped_header(answer.stamp_ns, 'camera')
        for publisher in publishers:
            publisher.publish(message)


class TransformBroadcaster:
    """Broadcast map to odometry, with stamps that never repeat or go back; hear other senders."""

    def __init__(
        self, settings: Settings, listener: TransformListener, create: Callable[..., Any]
    ) -> None:
        self._settings, self._listener = settings, listener
        self._lock = threading.Lock()
        self._odom_in_map: se2.FloatArray | None = None
        self._last_ns = 0
        self._sent_ns: deque[int] = deque(maxlen=1000)
        self._rival_ns, self._rival_at = -1, -np.inf
        listener.callbacks.append(self._look_for_rival)
        if listener.type is not None:
            self._publisher = create(listener.type, '/tf', QoSProfile(depth=100))

    def forget(self) -> None:
        """Send nothing until there is a belief again; earlier stamps are allowed."""
        with self._lock:
            self._odom_in_map, self._last_ns = None, 0

    def take(self, answer: Answer, is_current: Callable[[Answer], bool]) -> bool:
        """Send an answer's transform from now on, unless a reset has come before."""
        with self._lock:
            current = is_current(answer)
            if current and answer.estimate.has_pose:
                self._odom_in_map = answer.odom_in_map
        return current

    def send(self, stamp_ns: int, restart: bool = False) -> None:
        """
        Send the transform, valid for `transform_tolerance` from a stamp on.

        One that is not later than the last is left out. `restart`: the last one was a stray.
        """
        config = self._settings.config
        until_ns = stamp_ns + round(config.transform_tolerance * SECOND)
        with self._lock:
            self._last_ns = 0 if restart else self._last_ns
            in_time = self._last_ns < stamp_ns and until_ns < 2**31 * SECOND
            if self._odom_in_map is None or not (in_time and config.tf_broadcast):
                return
            if self._listener.type is not None:
                self._last_ns = stamp_ns
                self._sent_ns.append(until_ns)
                frames = (config.global_frame_id, config.odom_frame_id)
                message = conversions.transform_message(until_ns, *frames, self._odom_in_map)
                self._publisher.publish(self._listener.type(transforms=[message]))

    @property
    def rival(self) -> str:
        """Name the transform if another node broadcasts it as well, else nothing."""
        config = self._settings.config
        if not config.tf_broadcast or time.monotonic() - self._rival_at >= 5.0:
            return ''
        return f'{config.global_frame_id} to {config.odom_frame_id}'

    def _look_for_rival(self) -> None:
        config = self._settings.config
        parent, stamp_ns, _ = self._listener.links.get(config.odom_frame_id, ('', 0, None))
        foreign = parent == config.global_frame_id and stamp_ns not in self._sent_ns
        if foreign and stamp_ns != self._rival_ns:
            self._rival_ns = stamp_ns
            self._rival_at = time.monotonic() if stamp_ns else np.inf  # a static one stays


class Bond:
    """
    Heartbeats on `bond`, by which Nav2's lifecycle manager sees that the node is alive.

    There are none without the package bond, and with a `period` of 0 seconds.
    """

    def __init__(self, node: Node, period: float) -> None:
        self._node, self._period = node, period
        self._type = optional_interface('bond.msg', 'Status')
        self._timer: Any = None

    def start(self) -> None:
        """Send heartbeats from now on."""
        if self._type is None or self._period == 0.0:
            return
        self._instance = str(uuid.uuid4())  # a bond that was broken is not formed again
        self._publisher = self._node.create_publisher(self._type, 'bond', 1)
        # simulated time may stand still while the node lives
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._timer = self._node.create_timer(self._period, self._beat, clock=steady)

    def stop(self) -> None:
        """Say goodbye, so that the manager does not wait for the next heartbeat."""
        if self._timer is None:
            return
        self._node.destroy_timer(self._timer)
        self._timer = None
        self._beat(active=False)
        self._publisher.wait_for_all_acked(Duration(seconds=0.5))
        self._node.destroy_publisher(self._publisher)

    def _beat(self, active: bool = True) -> None:
        message = self._type(id=self._node.get_name(), instance_id=self._instance, active=active)
        message.header.stamp = self._node.get_clock().now().to_msg()
        # without heartbeats for 4 s the other side is dead
        message.heartbeat_timeout, message.heartbeat_period = 4.0, self._period
        self._publisher.publish(message)


def map_markers(
    poses: se2.FloatArray, header: Any, weights: se2.FloatArray | None = None
) -> MarkerArray:
    """
    Map poses (n, 3) as short lines in their headings, grey to red by weight (n,) in [0, 1].

    Of a large map only every k-th pose is shown, so that viewers stay quick.
    """
    step = 1 + (len(poses) - 1) // 5000
    marker = Marker(header=header, ns='map_poses', type=Marker.LINE_LIST, action=Marker.ADD)
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
    """Join an image (h, w) or (h, w, 3) and a map image (JPEG bytes), with a caption."""
    halves, height = [], 240
    for half in (image, decode_image(match, 'of the map')):
        colour = half if half.ndim == 3 else cv2.cvtColor(half, cv2.COLOR_GRAY2BGR)
        width = max(1, round(half.shape[1] * height / half.shape[0]))
        halves.append(cv2.resize(colour, (width, height)))
    canvas = np.concatenate(halves, axis=1)
    cv2.putText(canvas, caption, (6, 16), cv2.FONT_HERSHEY_SIMPLEX, 0.45, (0, 255, 255), 1)
    data = array.array('B', cv2.imencode('.jpg', canvas)[1].tobytes())
    return CompressedImage(format='jpeg', data=data)
