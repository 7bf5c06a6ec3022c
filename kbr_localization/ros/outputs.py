"""Publishers of the localization node: answers, transforms, heartbeats for its manager."""

from collections import deque
from contextlib import suppress
import threading
import time
from typing import Any
import uuid

from geometry_msgs.msg import Point, PoseArray, PoseWithCovarianceStamped
from kbr_localization import se2
from kbr_localization.errors import KbrError
from kbr_localization.localization.localizer import Localizer
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.pipeline import Tracker
from kbr_localization.ros import conversions
from kbr_localization.ros.buffers import SECOND
from kbr_localization.ros.inputs import TransformListener
from kbr_localization.ros.parameters import Settings
from kbr_localization.ros.session import Answer
import numpy as np
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, qos_profile_sensor_data, QoSProfile
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import ColorRGBA, Header
from visualization_msgs.msg import Marker, MarkerArray

LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


class Outputs:
    """
    The node's publishers of topics.

    `publish` is for the worker thread only. `processing`, `latency`: the last times in seconds
    from the arrival of an image, and from its stamp, to its answer.
    """

    def __init__(self, node: Node, settings: Settings, kernel_map: KernelMap) -> None:
        self._node, self._settings = node, settings
        self.processing, self.latency = deque[float](maxlen=300), deque[float](maxlen=300)
        create = node.create_publisher
        names = ('amcl_pose', '~/pose')
        self._poses = [create(PoseWithCovarianceStamped, name, LATCHED) for name in names]
        self._particle_type = conversions.optional_interface('nav2_msgs.msg', 'Particle')
        cloud = conversions.optional_interface('nav2_msgs.msg', 'ParticleCloud') or PoseArray
        self._particles = create(cloud, 'particle_cloud', qos_profile_sensor_data)
        self._map_poses = create(MarkerArray, '~/map_poses', LATCHED)
        match = '~/best_match/compressed'  # RViz expects this ending
        self._best_match = create(CompressedImage, match, qos_profile_sensor_data)
        self.show_map(kernel_map)

    def show_map(self, kernel_map: KernelMap) -> None:
        """Publish the poses of a map as short lines along their headings, 5000 at most."""
        marker = Marker(ns='map_poses', type=Marker.LINE_LIST, action=Marker.ADD)
        marker.header.frame_id = self._settings.config.global_frame_id
        marker.header.stamp = self._node.get_clock().now().to_msg()
        marker.scale.x = 0.03
        marker.pose.orientation.w = 1.0
        marker.color = ColorRGBA(r=0.5, g=0.5, b=0.5, a=0.8)
        starts = kernel_map.poses[:: 1 + (len(kernel_map) - 1) // 5000]
        ends = se2.compose(starts, np.array([0.25, 0.0, 0.0]))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            marker.points += [Point(x=start[0], y=start[1]), Point(x=end[0], y=end[1])]
        self._map_poses.publish(MarkerArray(markers=[marker]))

    def publish(self, answer: Answer, tracker: Tracker) -> None:
        if not answer.is_known:
            return
        estimate, stamp_ns = answer.estimate, answer.stamp_ns
        known = (self._settings.config.global_frame_id, estimate.pose, estimate.covariance)
        message = conversions.pose_with_covariance(stamp_ns, *known)
        for publisher in self._poses:
            publisher.publish(message)
        now_ns = self._node.get_clock().now().nanoseconds
        self.processing.append(time.monotonic() - answer.image.received)
        self.latency.append((now_ns - stamp_ns) * 1e-9)
        if self._particles.get_subscription_count():
            self._publish_particles(message.header, tracker.localizer)
        wanted = self._best_match.get_subscription_count() and estimate.updated
        kernel_map = tracker.kernel_map
        if wanted and kernel_map.thumbnails:
            with suppress(KbrError):  # the tracker has counted a broken image already
                descriptor = kernel_map.describer.describe(answer.image.load())
                encoded = kernel_map.thumbnails[kernel_map.best_match(descriptor)[0]]
                message = conversions.compressed_image_message(encoded, stamp_ns, 'camera')
                self._best_match.publish(message)

    def _publish_particles(self, header: Header, localizer: Localizer) -> None:
        particles = localizer.particles(self._settings.config.particles)
        poses = [conversions.pose_to_message(pose) for pose in particles]
        cloud, kind = self._particles.msg_type(), self._particle_type
        cloud.header = header
        if kind is None:
            cloud.poses = poses
        else:
            cloud.particles = [kind(pose=pose, weight=1.0 / len(poses)) for pose in poses]
        self._particles.publish(cloud)


class TransformBroadcaster:
    """Broadcast map to odometry with increasing stamps; detect other senders. Thread-safe."""

    def __init__(self, node: Node, settings: Settings, listener: TransformListener) -> None:
        self._settings, self._listener = settings, listener
        self._lock = threading.Lock()
        self._odom_in_map: se2.FloatArray | None = None
        self._last_ns = 0
        self._sent_ns: deque[int] = deque(maxlen=1000)
        self._rival_ns, self._rival_at = -1, -np.inf
        listener.callbacks.append(self._look_for_rival)
        if listener.type is not None:
            self._publisher = node.create_publisher(listener.type, '/tf', QoSProfile(depth=100))

    def clear(self) -> None:
        """Send nothing before the next answer, which may have an earlier stamp."""
        with self._lock:
            self._odom_in_map, self._last_ns = None, 0

    def update(self, answer: Answer) -> None:
        """Send the transform of an answer, now and with later odometry."""
        if answer.estimate.has_pose:
            with self._lock:
                self._odom_in_map = answer.odom_in_map
            self.send(answer.stamp_ns)

    def send(self, stamp_ns: int, restart: bool = False) -> None:
        """Send the transform if the stamp is newer; `restart`: the last stamp was wrong."""
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
        """Return the transform, as 'map to odom', if another node broadcasts it too; else ''."""
        config = self._settings.config
        if not config.tf_broadcast or time.monotonic() - self._rival_at >= 5.0:
            return ''
        return f'{config.global_frame_id} to {config.odom_frame_id}'

    def _look_for_rival(self) -> None:
        config = self._settings.config
        received = self._listener.transforms.get(config.odom_frame_id)
        if received is None or received[0] != config.global_frame_id:
            return
        stamp_ns = received[1]
        if stamp_ns not in self._sent_ns and stamp_ns != self._rival_ns:
            self._rival_ns = stamp_ns
            self._rival_at = time.monotonic() if stamp_ns else np.inf  # static: for ever


class Bond:
    """Heartbeats for Nav2's lifecycle manager; none without the package bond or a `period`."""

    def __init__(self, node: Node, period: float) -> None:
        self._node, self._period = node, period
        self._type = conversions.optional_interface('bond.msg', 'Status')
        self._timer: Any = None

    def start(self) -> None:
        if self._type is None or self._period == 0.0:
            return
        self._instance = str(uuid.uuid4())  # a broken bond cannot be used again
        self._publisher = self._node.create_publisher(self._type, 'bond', 1)
        # simulated time may stop while the node runs
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._timer = self._node.create_timer(self._period, self._beat, clock=steady)

    def stop(self) -> None:
        """End the bond, so that the manager does not wait for the next heartbeat."""
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
        # the manager takes the node for dead after 4 s without a heartbeat
        message.heartbeat_timeout, message.heartbeat_period = 4.0, self._period
        self._publisher.publish(message)
