"""The messages of a run on their topics."""

from __future__ import annotations

import time
from typing import Any

from geometry_msgs.msg import PoseWithCovarianceStamped
from kbr_localization import configuration
from kbr_localization.datasets import Dataset, Frame
from kbr_localization.datasets.images import encoded_bytes
from kbr_localization.datasets.multi_camera import Source, sources_of
from kbr_localization.errors import DatasetError
from kbr_localization.ros.common import conversions
from kbr_localization.ros.common.topics import refuse_another_type, why_not_allowed
from kbr_localization.ros.playback.schedule import Event, PlayerOptions
from nav_msgs.msg import Odometry
import numpy as np
from rclpy.duration import Duration
from rclpy.exceptions import InvalidTopicNameException
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CompressedImage, Image

REFERENCE_COVARIANCE = 1e-6 * np.eye(3)


class RunPublisher:
    """
    Publishers for the messages of a run, on a node.

    Raises ConfigurationError where two of them were remapped to one topic.
    """

    def __init__(self, node: Node, dataset: Dataset, options: PlayerOptions) -> None:
        configuration.validate(options)
        self.node, self.dataset, self.options = node, dataset, options
        self.sent = {'images': 0, 'odometry messages': 0, 'reference poses': 0}
        self.skipped = dict(dataset.skipped)
        reliability = ReliabilityPolicy[options.reliability.upper()]
        qos = QoSProfile(depth=100, reliability=reliability)
        self.odometry_publisher = self._create_publisher(Odometry, 'odom', qos)
        self.reference_publisher = self._create_publisher(
            PoseWithCovarianceStamped, 'reference_pose', qos
        )
        self.clock_publisher = self._create_clock_publisher()
        image_qos = QoSProfile(depth=10, reliability=reliability)
        self._cameras = dataset.cameras
        self.image_publishers = [
            self._create_image_publisher(f'{camera}/' if camera else '', image_qos)
            for camera in self._cameras or ('',)
        ]

    def _create_clock_publisher(self) -> Publisher[Clock] | None:
        if self.options.stamps == 'now':
            return None
        qos = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE)
        return self._create_publisher(Clock, '/clock', qos)

    def _create_image_publisher(self, camera: str, qos: QoSProfile) -> Publisher[Any]:
        compressed = self.options.image_transport == 'compressed'
        kind, ending = (CompressedImage, '/compressed') if compressed else (Image, '')
        try:
            return self._create_publisher(kind, f'{camera}image{ending}', qos)
        except InvalidTopicNameException as error:
            raise DatasetError(
                f'{self.dataset.name!r}: images of camera {camera.rstrip("/")!r} have no topic: '
                f'{why_not_allowed(error)}: rename the folder of the camera'
            ) from error

    def _create_publisher(self, kind: type[Any], topic: str, qos: QoSProfile) -> Publisher[Any]:
        try:
            return self.node.create_publisher(kind, topic, qos)
        except RuntimeError as error:
            refuse_another_type(self.node, 'send', topic, error)
            raise

    def missing_subscribers(self) -> list[str]:
        """Topics that fewer nodes listen to than asked for."""
        return [
            publisher.topic_name
            for publisher in (*self.image_publishers, self.odometry_publisher)
            if publisher.get_subscription_count() < self.options.wait_for_subscribers
        ]

    def publish_clock(self, stamp_ns: int) -> None:
        """Send the time of the recording."""
        if self.clock_publisher is not None:
            self.clock_publisher.publish(Clock(clock=conversions.ns_to_stamp(stamp_ns)))

    def publish(self, event: Event) -> None:
        """Send the message of an event; a broken image is left out and counted."""
        stamp_ns = event.stamp_ns
        if self.options.stamps == 'now':
            stamp_ns = self.node.get_clock().now().nanoseconds
        if event.kind == 'image':
            self._publish_frame(self.dataset[event.index], stamp_ns)
        else:
            self._publish_odometry(event.index, stamp_ns)

    def _publish_odometry(self, index: int, stamp_ns: int) -> None:
        pose = self.dataset.odometry.poses[index]
        frames = (self.options.odom_frame_id, self.options.base_frame_id)
        self.odometry_publisher.publish(conversions.odometry_message(stamp_ns, pose, *frames))
        self.sent['odometry messages'] += 1

    def _publish_frame(self, frame: Frame, stamp_ns: int) -> None:
        messages = self._image_messages(frame, stamp_ns)
        if not messages:
            return
        if self.options.reference and frame.reference is not None:
            self.reference_publisher.publish(
                conversions.pose_with_covariance(
                    stamp_ns, self.options.global_frame_id, frame.reference, REFERENCE_COVARIANCE
                )
            )
            self.sent['reference poses'] += 1
        for publisher, message in messages:
            publisher.publish(message)
            self.sent['images'] += 1

    def _image_messages(self, frame: Frame, stamp_ns: int) -> list[tuple[Publisher[Any], Any]]:
        """Messages of a frame with their publishers: one for each camera that has an image."""
        messages = []
        frames = self._cameras or (self.options.camera_frame_id,)
        parts = zip(self.image_publishers, frames, sources_of(frame), strict=True)
        for publisher, frame_id, image in parts:
            if image is None:
                continue
            try:
                message = self._image_message(image, frame.name, stamp_ns, frame_id)
                messages.append((publisher, message))
            except DatasetError as error:
                self.node.get_logger().warning(f'image left out: {error}')
                self.skipped['broken image'] = self.skipped.get('broken image', 0) + 1
        return messages

    def _image_message(
        self, image: Source, name: str, stamp_ns: int, frame_id: str
    ) -> Image | CompressedImage:
        if self.options.image_transport == 'raw':
            pixels = image() if callable(image) else image
            return conversions.image_message(pixels, stamp_ns, frame_id)
        encoded = encoded_bytes(image, name, self.options.jpeg_quality)
        return conversions.compressed_image_message(encoded, stamp_ns, frame_id)

    def flush(self) -> None:
        """Wait until reliable subscribers have everything, as long as `linger` says."""
        end = time.monotonic() + self.options.linger
        if self.options.reliability == 'reliable':
            for publisher in (*self.image_publishers, self.odometry_publisher):
                left = max(0.0, end - time.monotonic())
                publisher.wait_for_all_acked(Duration(seconds=left))
