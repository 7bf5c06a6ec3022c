"""What the node listens to: images and odometry. Callbacks only convert and hand on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
import time
from typing import Any, Protocol

from kbr_localization import se2
from kbr_localization.datasets.image_file import decode_image, encode_jpeg
from kbr_localization.datasets.image_message import decode_raw_image
from kbr_localization.errors import RosError
from kbr_localization.ros import conversions
from kbr_localization.ros.hints import InputWatch
from kbr_localization.ros.odometry_buffer import Added
from kbr_localization.ros.telling import Teller
from nav_msgs.msg import Odometry
import numpy as np
from rclpy.node import Node
from rclpy.qos import (
    qos_check_compatible,
    qos_profile_sensor_data,
    QoSCompatibility,
    QoSProfile,
    ReliabilityPolicy,
)
from rclpy.qos_overriding_options import QoSOverridingOptions
from sensor_msgs.msg import CompressedImage, Image

ODOMETRY_QOS = QoSProfile(depth=200, reliability=ReliabilityPolicy.BEST_EFFORT)
IMAGE_TOPICS = {'raw': ('image', Image), 'compressed': ('image/compressed', CompressedImage)}


class InputConfig(Protocol):
    """What inputs need to know."""

    @property
    def image_transport(self) -> str:
        """Say 'raw' or 'compressed'."""
        ...

    @property
    def odom_frame_id(self) -> str:
        """Name the frame that the odometry should have."""
        ...


class InputSession(Protocol):
    """What inputs feed."""

    odometry_counts: Counter[str]

    def add_odometry(self, stamp_ns: int, pose: se2.FloatArray) -> Added:
        """Take in an odometry pose (3,)."""
        ...

    def add_image(self, stamp_ns: int, load: Callable[[], Any]) -> None:
        """Take in an image."""
        ...


class Inputs:
    """Subscriptions of images and odometry that feed a session."""

    def __init__(
        self,
        node: Node,
        config: InputConfig,
        session: InputSession,
        tell: Teller,
        on_odometry: Callable[[int], None],
    ) -> None:
        self._node, self._config, self._session = node, config, session
        self._tell, self._on_odometry = tell, on_odometry
        self.active = False
        topic, message_type = IMAGE_TOPICS[config.image_transport]
        self._subscriptions = [
            self._subscribe(message_type, topic, self._take_image, qos_profile_sensor_data),
            self._subscribe(Odometry, 'odom', self._take_odometry, ODOMETRY_QOS),
        ]
        self.image, self.odometry = (
            InputWatch(
                subscription.topic_name, _type_name(subscription.msg_type), time.monotonic()
            )
            for subscription in self._subscriptions
        )

    def _subscribe(
        self, message_type: Any, topic: str, callback: Callable[[Any], None], qos: QoSProfile
    ) -> Any:
        return self._node.create_subscription(
            message_type,
            topic,
            callback,
            qos,
            qos_overriding_options=QoSOverridingOptions.with_default_policies(),
        )

    @property
    def watches(self) -> list[InputWatch]:
        """Collect what is known of each input."""
        return [self.image, self.odometry]

    def destroy(self) -> None:
        """Stop listening."""
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)

    def look_around(self) -> None:
        """Look at the publishers of the inputs: how many, of which type, with which QoS."""
        for watch, subscription in zip(self.watches, self._subscriptions, strict=True):
            found = self._node.get_publishers_info_by_topic(watch.topic)
            same = [info for info in found if info.topic_type == watch.type_name]
            watch.publishers = len(same)
            watch.incompatible = sum(
                qos_check_compatible(info.qos_profile, subscription.qos_profile)[0]
                == QoSCompatibility.ERROR
                for info in same
            )
            watch.other_types = tuple(
                sorted({info.topic_type for info in found} - {watch.type_name})
            )

    def _take_image(self, message: Any) -> None:
        stamp_ns = conversions.stamp_to_ns(message.header.stamp)
        self.image.saw(stamp_ns, time.monotonic())
        if self.active:
            self._session.add_image(stamp_ns, MessageImage(message))

    def _take_odometry(self, message: Odometry) -> None:
        stamp_ns = conversions.stamp_to_ns(message.header.stamp)
        self.odometry.saw(stamp_ns, time.monotonic())
        self._check_frame(message.header.frame_id)
        try:
            pose = conversions.pose_from_message(message.pose.pose)
        except RosError as error:
            self._session.odometry_counts['not usable'] += 1
            self._tell('warning', f'odometry not used: {error}')
            return
        self._session.add_odometry(stamp_ns, pose)
        self._on_odometry(stamp_ns)

    def _check_frame(self, frame_id: str) -> None:
        expected = self._config.odom_frame_id
        if frame_id.lstrip('/') != expected.lstrip('/'):
            self._tell.once(
                'warning',
                f'odometry comes in frame {frame_id!r}, but odom_frame_id is {expected!r}: '
                'the transform would hang in the air; set one of them',
            )


@dataclass(frozen=True)
class MessageImage:
    """A lazy image in a message, raw or compressed."""

    message: Any

    def __call__(self) -> np.ndarray:
        """Decode the image; raises DatasetError."""
        message = self.message
        if isinstance(message, CompressedImage):
            return decode_image(bytes(message.data), self.name)
        return decode_raw_image(
            message.encoding, message.height, message.width, message.step, message.data, self.name
        )

    @property
    def name(self) -> str:
        """Return what messages call the image."""
        return f'at {conversions.stamp_to_ns(self.message.header.stamp) * 1e-9:.3f} s'

    def as_file(self, quality: int) -> bytes:
        """Bytes of a JPEG or PNG file, checked to be whole; raises DatasetError."""
        image = self()
        if isinstance(self.message, CompressedImage):
            return bytes(self.message.data)
        return encode_jpeg(image, self.name, quality)


def _type_name(message_type: Any) -> str:
    package = message_type.__module__.split('.')[0]
    return f'{package}/msg/{message_type.__name__}'
