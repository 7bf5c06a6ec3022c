"""What the localization node publishes about an answer: pose, transform, particles, pictures."""

from __future__ import annotations

import array
from collections.abc import Callable
import time
from typing import Any

import cv2
from geometry_msgs.msg import Point, PoseArray, PoseWithCovarianceStamped
from kbr_localization import se2
from kbr_localization.datasets.images import decode_image
from kbr_localization.datasets.multi_camera import one_picture
from kbr_localization.errors import KbrError
from kbr_localization.localization.localizer import Localizer
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.ros import conversions
from kbr_localization.ros.config import NodeConfig
from kbr_localization.ros.conversions import ns_to_stamp, optional_interface
from kbr_localization.ros.running import Durations
from kbr_localization.ros.session import Answer
from kbr_localization.ros.transforms import TransformBroadcaster, TransformListener
import numpy as np
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

    `publish` belongs to the worker's thread, the others to callbacks. `map`: in use. `localizer`:
    whose particles are shown. `processing`, `latency`: seconds from an image's arrival and from
    its stamp.
    """

    def __init__(
        self, node: Node, config: NodeConfig, kernel_map: KernelMap, listener: TransformListener
    ) -> None:
        self._node, self.config, self.map = node, config, kernel_map
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
        self.transforms = TransformBroadcaster(node, config, listener)
        self.show_map(kernel_map)

    def destroy(self) -> None:
        """Remove the publishers."""
        self.transforms.destroy()
        for publisher in (*self._poses, self._particles, self._map_poses, *self._best_match):
            self._node.destroy_publisher(publisher)

    def show_map(self, kernel_map: KernelMap) -> None:
        """Publish the poses of a new map."""
        self.map = kernel_map
        now_ns, frame_id = self._node.get_clock().now().nanoseconds, self.config.global_frame_id
        self._map_poses.publish(map_markers(kernel_map.poses, now_ns, frame_id))

    def follow_config(self, config: NodeConfig) -> None:
        """Use changed parameters."""
        self.config = config
        self.transforms.follow_config(config)

    def publish(self, answer: Answer, is_current: Callable[[], bool] = lambda: True) -> bool:
        """Publish an answer unless a reset came before it; return whether it was current."""
        if not self.transforms.take(answer, is_current):
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
            self.transforms.send(answer.stamp_ns)
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
            self.map.poses[:, :2], 0.5, return_length=True
        )
        frame_id = self.config.global_frame_id
        self._map_poses.publish(
            map_markers(self.map.poses, answer.stamp_ns, frame_id, near / max(near.max(), 1))
        )

    def _publish_best_match(self, answer: Answer, publishers: list[Any]) -> None:
        if not self.map.thumbnails:
            return
        try:
            image = answer.image.load()
            best, value = self.map.best_match(self.map.describer.describe(image))
        except KbrError:
            return  # counted where it was first seen
        x, y, heading = self.map.poses[best]
        message = side_by_side(
            one_picture(image),
            self.map.thumbnails[best],
            f'k = {value:.2f} at {x:.2f}, {y:.2f}, {heading:.2f}',
        )
        message.header.stamp = ns_to_stamp(answer.stamp_ns)
        message.header.frame_id = 'camera'
        for publisher in publishers:
            publisher.publish(message)


def map_markers(
    poses: se2.FloatArray, stamp_ns: int, frame_id: str, weights: se2.FloatArray | None = None
) -> MarkerArray:
    """
    Map poses (n, 3) as short lines in their headings, grey to red by weight (n,) in [0, 1].

    Of a large map only every k-th pose is shown, so that viewers stay quick.
    """
    step = 1 + (len(poses) - 1) // 5000
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
