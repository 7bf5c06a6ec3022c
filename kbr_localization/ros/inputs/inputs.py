"""What the node listens to: images and odometry. Callbacks only convert and hand on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import partial
import math
import time
from typing import Any, Protocol

from kbr_localization import se2
from kbr_localization.errors import ConfigurationError, RosError
from kbr_localization.ros.common import conversions
from kbr_localization.ros.common.hints import InputWatch, mixed_clocks, only_twist, Useless
from kbr_localization.ros.common.node_logger import NodeLogger
from kbr_localization.ros.common.standstill import Standstill
from kbr_localization.ros.common.topics import refuse_another_type, why_not_allowed
from kbr_localization.ros.inputs.cameras import Cameras, sibling
from kbr_localization.ros.session.odometry_buffer import Added
from nav_msgs.msg import Odometry
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

try:
    from rclpy.event_handler import SubscriptionEventCallbacks, UnsupportedEventTypeError
except ImportError:  # Humble
    from rclpy.qos_event import SubscriptionEventCallbacks, UnsupportedEventTypeError

ODOMETRY_QOS = QoSProfile(depth=200, reliability=ReliabilityPolicy.BEST_EFFORT)


@dataclass(frozen=True)
class InputConfig:
    """
    What inputs need to know.

    `image_transport`: raw or compressed. `image_topics`: of several cameras; none means `image`.
    `sync_tolerance`: seconds by which images of several cameras may differ. `odom_frame_id`,
    `base_frame_id`: frames that the odometry should have and be of, the latter empty for any.
    `qos_overrides`: whether parameters may change the QoS.
    """

    image_transport: str
    image_topics: tuple[str, ...]
    sync_tolerance: float
    odom_frame_id: str
    base_frame_id: str = ''
    qos_overrides: bool = True


class InputSession(Protocol):
    """What inputs feed."""

    odometry_counts: Counter[str]

    def add_odometry(self, stamp_ns: int, pose: se2.FloatArray) -> Added:
        """Take in an odometry pose (3,)."""
        ...

    def add_image(self, stamp_ns: int, load: Callable[[], Any]) -> None:
        """Take in an image."""
        ...


def listen(node: Node, topic: str, create: Callable[[], Any]) -> Any:
    """
    Return the subscription that `create` makes of a topic.

    Raises ConfigurationError for a topic that ROS does not allow, for a QoS that there is not, and
    where another input of the node, with messages of another type, has the same topic.
    """
    try:
        return create()
    except UnsupportedEventTypeError:
        raise
    except InvalidTopicNameException as error:
        raise ConfigurationError(
            f'cannot listen to {topic!r}: {why_not_allowed(error)}: correct image_topics, as in '
            'front/image and rear/image'
        ) from error
    # for a wrong QoS rclpy raises whatever it stumbles over
    except Exception as error:
        refuse_another_type(node, 'listen to', topic, error)
        name = node.resolve_topic_name(topic)
        prefix = f'qos_overrides.{name}.subscription'
        given = node.get_parameters_by_prefix(prefix)
        if not given:
            raise
        values = ', '.join(f'{key} {item.value!r}' for key, item in given.items())
        raise ConfigurationError(
            f'cannot listen to {name}: expected parameters {prefix} such as reliability '
            f"'reliable' or 'best_effort' and depth 10, got {values}: correct or remove them"
        ) from error


def look_at_publishers(node: Node, watch: InputWatch, qos: QoSProfile) -> None:
    """Look at the publishers of a topic: how many, of which type, with which QoS."""
    found = node.get_publishers_info_by_topic(watch.topic)
    same = [info for info in found if info.topic_type == watch.type_name]
    watch.publishers = len(same)
    watch.incompatible = sum(
        qos_check_compatible(info.qos_profile, qos)[0] == QoSCompatibility.ERROR for info in same
    )
    watch.other_types = tuple(sorted({info.topic_type for info in found} - {watch.type_name}))


class Inputs:
    """
    Subscriptions of images and odometry that feed a session.

    `standstill`: for how long the odometry has stood still.
    """

    def __init__(
        self,
        node: Node,
        config: InputConfig,
        session: InputSession,
        log: NodeLogger,
        on_odometry: Callable[[int, Added], None],
    ) -> None:
        self._node, self._config, self._session = node, config, session
        self._log, self._on_odometry = log, on_odometry
        self._lost: dict[str, list[int]] = {}
        self._useless, self._refused, self._refused_why = Useless(), 0, ''
        self.standstill = Standstill()
        self.cameras = Cameras(
            config.image_topics,
            config.image_transport,
            config.sync_tolerance,
            partial(self._subscribe, qos_profile_sensor_data),
            session.add_image,
        )
        odometry = self._subscribe(ODOMETRY_QOS, Odometry, 'odom', self._take_odometry)
        self.odometry = InputWatch(
            odometry.topic_name, 'nav_msgs/msg/Odometry', time.monotonic(), alone=True
        )
        self._subscriptions = [*self.cameras.subscriptions, odometry]

    @property
    def active(self) -> bool:
        """Whether images are handed on."""
        return self.cameras.active

    @active.setter
    def active(self, active: bool) -> None:
        self.cameras.active = active

    @property
    def image(self) -> InputWatch:
        """Return what is known of the images: of the topic that sent last."""
        return self.cameras.liveliest

    def _subscribe(
        self, qos: QoSProfile, message_type: Any, topic: str, callback: Callable[[Any], None]
    ) -> Any:
        overridable = self._config.qos_overrides
        options = QoSOverridingOptions.with_default_policies() if overridable else None
        create = partial(
            self._node.create_subscription,
            message_type,
            topic,
            callback,
            copy(qos),  # what parameters change is of this topic alone
            qos_overriding_options=options,
        )
        lost = [0]

        def take_lost(event: Any) -> None:
            lost[0] = event.total_count

        try:
            callbacks = SubscriptionEventCallbacks(message_lost=take_lost)
            subscription = listen(self._node, topic, partial(create, event_callbacks=callbacks))
        except UnsupportedEventTypeError:
            subscription = listen(self._node, topic, create)  # a DDS that does not count them
        self._lost[subscription.topic_name] = lost
        return subscription

    @property
    def watches(self) -> list[InputWatch]:
        """Collect what is known of each input."""
        return [*self.cameras.watches, self.odometry]

    def destroy(self) -> None:
        """Stop listening."""
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)

    def look_around(self) -> None:
        """Look at the publishers of the inputs, and at what was lost of them."""
        for watch, subscription in zip(self.watches, self._subscriptions, strict=True):
            look_at_publishers(self._node, watch, subscription.qos_profile)
            watch.lost = self._lost[watch.topic][0]
        for watch in self.cameras.watches:
            topic, type_name = sibling(watch.topic)
            found = [] if watch.publishers else self._node.get_publishers_info_by_topic(topic)
            watch.sibling = topic if type_name in {info.topic_type for info in found} else ''
        self._useless.look(self.odometry.count - self._refused, self._refused)

    def hints(self, now: float) -> list[str]:
        """Say what is wrong with several cameras, with clocks, or with all of the odometry."""
        useless = self._useless.hint(self.odometry.topic, 'messages', self._refused_why)
        clocks = [mixed_clocks(image, self.odometry, now) for image in self.cameras.watches]
        twist = only_twist(self.odometry, self.standstill)
        return [*self.cameras.hints(now), *filter(None, [useless, twist, *clocks])]

    def _take_odometry(self, message: Odometry) -> None:
        stamp_ns = conversions.stamp_to_ns(message.header.stamp)
        self.odometry.saw(stamp_ns, time.monotonic())
        self._check_frames(message.header.frame_id, message.child_frame_id)
        try:
            pose = conversions.pose_from_message(message.pose.pose)
        except RosError as error:
            self._session.odometry_counts['not usable'] += 1
            self._refused, self._refused_why = self._refused + 1, str(error)
            self._log('warning', f'odometry not used: {error}')
            return
        moves = message.twist.twist
        speed = math.hypot(moves.linear.x, moves.linear.y)
        self.standstill.look(stamp_ns, pose, speed, moves.angular.z)
        # a stray stamp from the future on /tf would make everybody refuse all that comes after it
        outcome = self._session.add_odometry(stamp_ns, pose)
        if outcome.leads and self.active:
            self._on_odometry(stamp_ns, outcome)

    def _check_frames(self, frame_id: str, child_frame_id: str) -> None:
        expected = self._config.odom_frame_id
        if frame_id.lstrip('/') != expected.lstrip('/'):
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
