"""What a node listens to: images and odometry. Callbacks only convert and hand on."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import partial
import math
import time
from typing import Any

from kbr_localization import se2
from kbr_localization.datasets.images import (
    check_compressed_format,
    decode_image,
    decode_raw_image,
    encode_jpeg,
)
from kbr_localization.datasets.multi_camera import camera_names, LazyImages, Synchronizer
from kbr_localization.errors import ConfigurationError, RosError
from kbr_localization.ros.conversions import pose_from_message, stamp_to_ns, type_name
from kbr_localization.ros.odometry_buffer import (
    Added,
    Coverage,
    OdometryBuffer,
    SECOND,
    Stamped,
)
from kbr_localization.ros.rules import Facts, StampLead, Standstill, Topic, Unused
from kbr_localization.ros.running import NodeLogger
from kbr_localization.ros.transforms import TF_QOS, TransformListener
from nav_msgs.msg import Odometry
import numpy as np
from rclpy.exceptions import InvalidTopicNameException
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

try:
    from rclpy.event_handler import SubscriptionEventCallbacks, UnsupportedEventTypeError
except ImportError:  # Humble
    from rclpy.qos_event import SubscriptionEventCallbacks, UnsupportedEventTypeError

COMPRESSED = '/compressed'
UNMATCHED_SECONDS = 3.0
"""Without images of all cameras at one time, after which something must be wrong."""


@dataclass(frozen=True)
class MessageImage:
    """An image in a raw or compressed message, decoded when called."""

    message: Any

    def __call__(self) -> np.ndarray:
        """Decode the image; raises DatasetError."""
        message = self.message
        if isinstance(message, CompressedImage):
            check_compressed_format(message.format, self.name)
            return decode_image(bytes(message.data), self.name)
        return decode_raw_image(
            message.encoding,
            message.height,
            message.width,
            message.step,
            message.data,
            self.name,
            bool(message.is_bigendian),
        )

    @property
    def name(self) -> str:
        """Name of the image in messages."""
        return f'at {stamp_to_ns(self.message.header.stamp) * 1e-9:.3f} s'

    def as_file(self, quality: int) -> bytes:
        """Bytes of a JPEG or PNG file, checked to be whole; raises DatasetError."""
        image = self()
        if isinstance(self.message, CompressedImage):
            return bytes(self.message.data)
        return encode_jpeg(image, self.name, quality)


def listen(node: Node, topic: str, create: Callable[[], Any]) -> Any:
    """
    Return the subscription or publisher that `create` makes of a topic.

    Raises ConfigurationError for a name that ROS does not allow, for a wrong QoS parameter, and
    where the node has messages of another type on the same topic.
    """
    try:
        return create()
    except UnsupportedEventTypeError:
        raise
    except InvalidTopicNameException as error:
        reason = str(error).partition('\n')[0].rstrip(':')
        raise ConfigurationError(
            f'cannot use topic {topic!r}: {reason}: correct its name, as in front/image'
        ) from error
    # rclpy raises anything for a wrong QoS
    except Exception as error:
        name = node.resolve_topic_name(topic)
        if 'incompatible type' in str(error):
            raise ConfigurationError(
                f'cannot use {topic!r} on {name}: the node has messages of another type there: '
                'remap one of them to a topic of its own'
            ) from error
        prefix = f'qos_overrides.{name}.subscription'
        given = node.get_parameters_by_prefix(prefix)
        if not given:
            raise
        values = ', '.join(f'{key} {item.value!r}' for key, item in given.items())
        raise ConfigurationError(
            f'cannot listen to {name}: expected parameters {prefix} such as reliability '
            f"'reliable' or 'best_effort' and depth 10, got {values}: correct or remove them"
        ) from error


def look_at_publishers(node: Node, topic: Topic, qos: QoSProfile) -> None:
    """Note how many publishers a topic has, of which types, with which QoS."""
    found = node.get_publishers_info_by_topic(topic.name)
    same = [info for info in found if info.topic_type == topic.type_name]
    topic.publishers = len(same)
    topic.incompatible = sum(
        qos_check_compatible(info.qos_profile, qos)[0] == QoSCompatibility.ERROR for info in same
    )
    others = {info.topic_type for info in found} - {topic.type_name}
    topic.other_types = ', '.join(sorted(others))


class Inputs:
    """
    Subscriptions of images and odometry that feed a session, and facts about them.

    `config`: a NodeConfig or RecorderConfig. `session` has `add_image`, `add_odometry` and
    `odometry_counts`. Images of several cameras are handed on together. `active`: whether images
    are handed on. `on_odometry` gets the stamp of each newest odometry, and whether the last one
    was a stray. `newest`: its stamp and pose (3,). `base`: the frame whose odometry is taken from
    `listener`, empty while the topic is used.
    """

    def __init__(
        self,
        node: Node,
        config: Any,
        session: Any,
        log: NodeLogger,
        listener: TransformListener,
        on_odometry: Callable[[int, bool], None] = lambda stamp_ns, after_stray: None,
    ) -> None:
        self._node, self._config, self._session, self._log = node, config, session, log
        self._listener, self._on_odometry, self._active = listener, on_odometry, False
        self.cameras = camera_names(config.image_topics) if len(config.image_topics) > 1 else ()
        self._synchronizer: Synchronizer[MessageImage] = Synchronizer(
            self.cameras, config.sync_tolerance
        )
        self._matched = time.monotonic()
        self._subscriptions: dict[str, Any] = {}
        compressed = config.image_transport == 'compressed'
        image_type: Any = CompressedImage if compressed else Image
        self._images = []
        for index, topic in enumerate(config.image_topics or ['image']):
            ending = COMPRESSED if compressed and not topic.endswith(COMPRESSED) else ''
            take = partial(self._take_image, index)
            self._images.append(
                self._subscribe(image_type, topic + ending, take, qos_profile_sensor_data)
            )
            self._images[-1].type_remedy = 'set image_transport'
        self.newest: Stamped | None = None
        self.base = self._child_frame = ''
        self._other_source = False
        self._checked: Stamped | None = None
        self._tf_track = OdometryBuffer(5 * SECOND)
        if config.odom_source == 'tf':
            self.odometry = self._topic_of_transforms()
        else:
            qos = QoSProfile(depth=200, reliability=ReliabilityPolicy.BEST_EFFORT)
            self.odometry = self._subscribe(Odometry, 'odom', self._take_odometry, qos)
            self.odometry.exclusive = True
        listener.callbacks.append(self._take_transforms)
        self._refused, self._why_refused = 0, ''
        self._unused = Unused()
        self._lead, self.standstill = StampLead(), Standstill()

    @property
    def active(self) -> bool:
        """Whether images are handed on; those that wait for other cameras at the end are not."""
        return self._active

    @active.setter
    def active(self, active: bool) -> None:
        self._active = active
        if not active:
            self._synchronizer.clear('waited for other cameras at the end')

    @property
    def image(self) -> Topic:
        """Return the image topic that sent last."""
        return max(self._images, key=lambda topic: topic.last or 0.0)

    @property
    def topics(self) -> list[Topic]:
        """Return the topics that are listened to."""
        return [*self._images, self.odometry]

    @property
    def frame(self) -> str:
        """Return the frame that the odometry moves."""
        return self.base or self._child_frame

    @property
    def dropped(self) -> Any:
        """Count images that found none of the other cameras to go with, by reason."""
        return self._synchronizer.dropped

    def destroy(self) -> None:
        """Stop listening."""
        for subscription in self._subscriptions.values():
            self._node.destroy_subscription(subscription)

    def facts(self, now: float) -> Facts:
        """Measure the topics and return what is known of the inputs; once a second."""
        clock_ns = self._node.get_clock().now().nanoseconds
        for topic in self.topics:
            subscription = self._subscriptions.get(topic.name)
            look_at_publishers(
                self._node, topic, subscription.qos_profile if subscription else TF_QOS
            )
            topic.measure(now, self._config.no_data_timeout, clock_ns)
        for topic in self._images:
            topic.sibling = '' if topic.publishers else self._sibling(topic.name)
        stamped = self.image.repeated < 5 and self.odometry.repeated < 5
        self._lead.measure(now, 1.0 / max(self.odometry.rate, 1.0))
        silent = self._synchronizer.silent if self.cameras else []
        lively = [topic.silent_for(now) < UNMATCHED_SECONDS for topic in self._images]
        unmatched = self.active and now - self._matched > UNMATCHED_SECONDS
        return Facts(
            self.image,
            self.odometry,
            self.standstill,
            self._lead if stamped else StampLead(),
            unused_odometry=self._unused(self.odometry.count - self._refused, self._refused),
            why_odometry=self._why_refused,
            silent_cameras=', '.join(silent) if any(lively) else '',
            cameras=', '.join(name for name in self.cameras if name not in silent),
            unmatched=bool(self.cameras) and not silent and all(lively) and unmatched,
            sync_tolerance=self._config.sync_tolerance,
            off_tf=self._off_tf(),
            frames=(
                self._config.global_frame_id,
                self._config.odom_frame_id,
                self._config.base_frame_id,
            ),
            node=self._node.get_fully_qualified_name(),
        )

    def _sibling(self, topic: str) -> str:
        """Name of the topic with the images of the other transport, if somebody sends them."""
        raw = topic.endswith(COMPRESSED)
        other = topic.removesuffix(COMPRESSED) if raw else topic + COMPRESSED
        found = self._node.get_publishers_info_by_topic(other)
        name = type_name(Image if raw else CompressedImage)
        return other if name in {info.topic_type for info in found} else ''

    def _subscribe(
        self, message_type: Any, name: str, take: Callable[[Any], None], qos: QoSProfile
    ) -> Topic:
        create = partial(
            self._node.create_subscription,
            message_type,
            name,
            take,
            copy(qos),  # parameters change it for this topic only
            qos_overriding_options=QoSOverridingOptions.with_default_policies(),
        )
        topic = Topic(name, type_name(message_type), time.monotonic())

        def count_lost(event: Any) -> None:
            topic.lost = event.total_count

        try:
            events = SubscriptionEventCallbacks(message_lost=count_lost)
            subscription = listen(self._node, name, partial(create, event_callbacks=events))
        except UnsupportedEventTypeError:
            subscription = listen(self._node, name, create)  # a DDS that does not count them
        topic.name = subscription.topic_name
        self._subscriptions[topic.name] = subscription
        return topic

    def _take_image(self, camera: int, message: Any) -> None:
        stamp_ns, now = stamp_to_ns(message.header.stamp), time.monotonic()
        self._images[camera].saw(stamp_ns, now)
        self._lead.add(now, stamp_ns, self.odometry.stamp_ns)
        if not self._active:
            self._matched = now
        elif not self.cameras:
            self._session.add_image(stamp_ns, MessageImage(message))
        else:
            for moment_ns, images in self._synchronizer.add(
                camera, stamp_ns, MessageImage(message)
            ):
                self._matched = now
                self._session.add_image(moment_ns, LazyImages(images))

    def _take_odometry(self, message: Odometry) -> None:
        stamp_ns = stamp_to_ns(message.header.stamp)
        self.odometry.saw(stamp_ns, time.monotonic())
        self._check_frames(message.header.frame_id, message.child_frame_id)
        try:
            pose = pose_from_message(message.pose.pose)
        except RosError as error:
            self._session.odometry_counts['not usable'] += 1
            self._refused, self._why_refused = self._refused + 1, str(error)
            self._log('warning', f'odometry not used: {error}')
            return
        self._child_frame = message.child_frame_id.lstrip('/')
        twist = message.twist.twist
        speed = math.hypot(twist.linear.x, twist.linear.y)
        self._add_odometry(stamp_ns, pose, speed, twist.angular.z)

    def _take_transforms(self) -> None:
        """Take the odometry from TF if it has a newer one, and from then on."""
        config = self._config
        for frame in filter(None, (config.base_frame_id, self._child_frame)):
            found = self._listener.pose(config.odom_frame_id, frame)
            if found is not None and found[0]:  # static ones alone tell no motion
                break
        else:
            return
        if config.odom_source == 'topic':
            self._tf_track.add(*found)
        elif frame != self.base or self.newest is None or found[0] != self.newest[0]:
            if frame != self.base:
                self._use_transforms(frame)
            self.odometry.saw(found[0], time.monotonic())
            self._add_odometry(*found)
            self._other_source = False

    def _use_transforms(self, frame: str) -> None:
        """Take the odometry of a frame from TF and stop listening to the topic."""
        text = f'the odometry is that of TF, {self._config.odom_frame_id} to {frame}'
        self._log('info', text, 0.0)
        self._other_source, self.base = self.newest is not None, frame
        subscription = self._subscriptions.pop(self.odometry.name, None)
        if subscription is not None:
            self._node.destroy_subscription(subscription)
        self.odometry = self._topic_of_transforms()

    def _topic_of_transforms(self) -> Topic:
        if self._listener.type is None:
            raise RosError("odom_source 'tf' needs tf2_msgs: install it, or set 'topic'")
        name, kind = self._listener.subscriptions[0].topic_name, type_name(self._listener.type)
        sought = f'{self._config.odom_frame_id} to {self._config.base_frame_id}'
        return Topic(name, kind, time.monotonic(), sought=sought)

    def _off_tf(self) -> float:
        """Metres or radians between the topic's pose of a second ago and TF's."""
        checked, self._checked = self._checked, self.newest
        if checked is None or self._tf_track.coverage(checked[0]) is not Coverage.READY:
            return 0.0
        step = se2.between(self._tf_track.at(checked[0]), checked[1])
        return max(math.hypot(step[0], step[1]), abs(float(step[2])))

    def _add_odometry(
        self, stamp_ns: int, pose: se2.FloatArray, speed: float = 0.0, turn_rate: float = 0.0
    ) -> None:
        self.newest = (stamp_ns, pose)
        self.standstill.add(stamp_ns, pose, speed, turn_rate)
        outcome = self._session.add_odometry(stamp_ns, pose, self._other_source)
        # a stray stamp from the future on /tf would make listeners refuse all that follows
        if outcome.leads and self._active:
            self._on_odometry(stamp_ns, outcome is Added.RETURNED)

    def _check_frames(self, frame_id: str, child_frame_id: str) -> None:
        expected = self._config.odom_frame_id
        if frame_id.lstrip('/') != expected:
            self._log.once(
                'warning',
                f'odometry comes in frame {frame_id!r}, but odom_frame_id is {expected!r}: '
                'the transform would hang in the air; set one of them',
            )
        base = self._config.base_frame_id
        if base and child_frame_id and child_frame_id.lstrip('/') != base:
            self._log.once(
                'info',
                f'odometry is of frame {child_frame_id!r}, base_frame_id is {base!r}: both are '
                'taken to be at the same place in the plane',
            )
