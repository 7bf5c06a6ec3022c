"""What a node listens to: images, and odometry from a topic or from TF."""

from collections import Counter, deque
from collections.abc import Callable, Collection
from functools import partial
import time
from typing import Any

from kbr_localization import se2
from kbr_localization.datasets.images import MessageImage
from kbr_localization.datasets.multi_camera import camera_names, LazyImages, Synchronizer
from kbr_localization.errors import ConfigurationError, DatasetError, RosError
from kbr_localization.ros import conversions
from kbr_localization.ros.buffers import Coverage, Feed, OdometryBuffer, SECOND, Stamped
from kbr_localization.ros.config import InputConfig
from kbr_localization.ros.conversions import optional_interface, stamp_to_ns, type_name
from kbr_localization.ros.diagnostics import Topic
from kbr_localization.ros.parameters import ParameterNode
from nav_msgs.msg import Odometry
import numpy as np
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, qos_profile_sensor_data, QoSProfile, ReliabilityPolicy
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import CompressedImage, Image

try:
    from rclpy.event_handler import SubscriptionEventCallbacks, UnsupportedEventTypeError
except ImportError:  # Humble
    from rclpy.qos_event import SubscriptionEventCallbacks, UnsupportedEventTypeError

COMPRESSED = '/compressed'
TF_QOS = QoSProfile(depth=100, reliability=ReliabilityPolicy.BEST_EFFORT)
STATIC_QOS = QoSProfile(depth=100, durability=DurabilityPolicy.TRANSIENT_LOCAL)
ODOMETRY_QOS = QoSProfile(depth=200, reliability=ReliabilityPolicy.BEST_EFFORT)


def listen(topic: str, create: Callable[[], Any]) -> Any:
    """Return what `create` makes of a topic; raises ConfigurationError where there can be none."""
    try:
        return create()
    except UnsupportedEventTypeError:
        raise
    except Exception as error:  # rclpy has no common class for them
        why = str(error).partition('\n')[0].rstrip(':')
        raise ConfigurationError(
            f'cannot use topic {topic!r}: {why}: expected a name such as front/image, and one '
            'type of message on it'
        ) from error


def subscribe(
    node: Node, message_type: Any, name: str, take: Callable[[Any], None], qos: QoSProfile
) -> Topic:
    """Subscribe, and return what is known of the topic; raises ConfigurationError as `listen`."""
    topic = Topic(name, type_name(message_type), time.monotonic())

    def count_lost(event: Any) -> None:
        topic.lost = event.total_count

    create = partial(node.create_subscription, message_type, name, take, qos)
    try:
        events = SubscriptionEventCallbacks(message_lost=count_lost)
        topic.subscription = listen(name, partial(create, event_callbacks=events))
    except UnsupportedEventTypeError:
        topic.subscription = listen(name, create)  # a DDS that does not count them
    topic.name = topic.subscription.topic_name
    return topic


class TransformListener:
    """
    The newest planar transforms: of /tf_static, and of the map or odometry frame on /tf.

    `type`: of the messages, None without tf2_msgs. `links`: by frame its parent, the stamp in
    nanoseconds (0 of a static one) and the pose (3,). `callbacks` are called after each message.
    """

    def __init__(self, node: ParameterNode, config: InputConfig) -> None:
        self._log = node.log
        # as a message has them
        self._frames = [f'{n}\0'.encode() for n in (config.global_frame_id, config.odom_frame_id)]
        self.type = optional_interface('tf2_msgs.msg', 'TFMessage')
        self.links: dict[str, tuple[str, int, se2.FloatArray]] = {}
        self.callbacks: list[Callable[[], None]] = []
        if self.type is not None:
            listen_to = partial(node.create_subscription, self.type)
            self._topic = listen_to('/tf', self._take_raw, TF_QOS, raw=True).topic_name
            listen_to('/tf_static', partial(self._take, static=True), STATIC_QOS)

    def topic(self, sought: str) -> Topic:
        """Facts about /tf for who seeks a transform there; raises RosError without tf2_msgs."""
        if self.type is None:
            raise RosError(f'{sought} on /tf needs tf2_msgs: install it, or listen to a topic')
        return Topic(self._topic, type_name(self.type), time.monotonic(), sought=sought)

    def pose(self, parent: str, frame: str) -> Stamped | None:
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
        # reading the transforms of many joints would take a tenth of a core
        if any(frame in data for frame in self._frames):
            self._take(deserialize_message(data, self.type))

    def _take(self, message: Any, static: bool = False) -> None:
        for transform in message.transforms:
            parent, child = transform.header.frame_id, transform.child_frame_id
            stamp_ns = 0 if static else stamp_to_ns(transform.header.stamp)
            try:
                link = (parent.lstrip('/'), stamp_ns, conversions.pose_from_transform(transform))
                self.links[child.lstrip('/')] = link
            except DatasetError as error:
                self._log('warning', f'transform not used: {parent} to {child}: {error}')
        for callback in self.callbacks:
            callback()


class OdometrySource:
    """
    The odometry of a robot, from the topic `odom` or from TF, as `odom_source` says.

    With 'auto' the topic is used until TF has odometry; with 'topic' the two are compared.
    `topic`: facts about where it comes from. `sought`: the transform with it. `frame`: the one
    that it moves. `newest`: its last stamp and pose (3,), `resting`: the first one of that place.
    `unused`: messages that could not be used since the last that could, `why_unused` not.
    `off_tf`: metres or radians by which TF differs.
    """

    def __init__(
        self, node: ParameterNode, config: InputConfig, session: Feed, listener: TransformListener
    ) -> None:
        self._node, self._config, self._session, self._listener = node, config, session, listener
        self.newest: Stamped | None = None
        self.resting: Stamped | None = None
        self._compared: Stamped | None = None
        self._on_tf = OdometryBuffer(5 * SECOND)
        self.frame, self.parent, self._of_tf = '', config.odom_frame_id, False
        self.unused, self.why_unused, self.off_tf = 0, '', 0.0
        self.sought = f'{config.odom_frame_id} to {config.base_frame_id}'
        if config.odom_source == 'tf':
            self.topic = listener.topic(self.sought)
        else:
            self.topic = subscribe(node, Odometry, 'odom', self._take_message, ODOMETRY_QOS)
            self.topic.exclusive = True
        listener.callbacks.append(self._take_transforms)

    def _take_message(self, message: Odometry) -> None:
        stamp_ns = stamp_to_ns(message.header.stamp)
        self.topic.saw(stamp_ns, time.monotonic())
        self.parent = message.header.frame_id.lstrip('/')
        try:
            pose = conversions.pose_from_message(message.pose.pose)
        except DatasetError as error:
            self._session.odometry_counts['not usable'] += 1
            self.unused, self.why_unused = self.unused + 1, str(error)
            self._node.log('warning', f'odometry not used: {error}')
            return
        self.unused, self.frame = 0, message.child_frame_id.lstrip('/')
        self._add(stamp_ns, pose)

    def _take_transforms(self) -> None:
        """Take the odometry from TF if it has a newer one, and from then on, or compare it."""
        odom = self._config.odom_frame_id
        for frame in filter(None, (self._config.base_frame_id, self.frame)):
            found = self._listener.pose(odom, frame)
            if found is not None and found[0]:  # static ones alone tell no motion
                break
        else:
            return
        if self._config.odom_source == 'topic':
            self._on_tf.add(*found)
            return
        changes = not self._of_tf or frame != self.frame
        if not changes and self.newest is not None and found[0] == self.newest[0]:
            return
        anew = changes and self.newest is not None
        if changes:
            self._node.log('info', f'the odometry is that of TF, {odom} to {frame}', 0.0)
            if self.topic.subscription is not None:
                self._node.destroy_subscription(self.topic.subscription)
            self.topic, self.frame = self._listener.topic(self.sought), frame
            self.parent, self._of_tf = odom, True
        self.topic.saw(found[0], time.monotonic())
        self._add(*found, anew)

    def _add(self, stamp_ns: int, pose: se2.FloatArray, anew: bool = False) -> None:
        self.newest = (stamp_ns, pose)
        since_ns, place = self.resting or self.newest
        if stamp_ns <= since_ns or np.abs(se2.between(place, pose)).max() > 0.01:
            self.resting = self.newest
        self._session.add_odometry(stamp_ns, pose, anew)

    @property
    def still(self) -> float:
        """Seconds for which the pose has not moved."""
        return (self.newest[0] - self.resting[0]) * 1e-9 if self.newest and self.resting else 0.0

    def compare(self) -> None:
        """Compare the pose of a second ago with TF; once a second."""
        self.off_tf, compared, self._compared = 0.0, self._compared, self.newest
        if compared and self._on_tf.coverage(compared[0]) is Coverage.READY:
            step = se2.between(self._on_tf.at(compared[0]), compared[1])
            self.off_tf = float(max(se2.magnitude(step)))


class Inputs:
    """
    Images and odometry that feed a session, and facts about them.

    Images of several cameras are handed on together. `active`: whether images are handed on.
    `others`: topics that are watched too, whoever takes their messages. `silent_cameras`: those
    that are left out, `other_cameras`: those that are not. `unmatched`: these all send, but never
    together.
    """

    def __init__(
        self, node: ParameterNode, config: InputConfig, session: Feed, listener: TransformListener
    ) -> None:
        self._node, self.config, self.session, self.active = node, config, session, False
        self.cameras = camera_names(config.image_topics) if len(config.image_topics) > 1 else ()
        self._synchronizer = Synchronizer[MessageImage](self.cameras, config.sync_tolerance)
        self._matched, self.unmatched = time.monotonic(), False
        self.silent_cameras = self.other_cameras = ''
        self.others: list[Topic] = []
        self._leads: deque[float] = deque(maxlen=100)
        compressed = config.image_transport == 'compressed'
        message_type: Any = CompressedImage if compressed else Image
        self._images: list[Topic] = []
        for index, topic in enumerate(config.image_topics or ['image']):
            name = topic + COMPRESSED * (compressed and not topic.endswith(COMPRESSED))
            take, qos = partial(self._take_image, index), qos_profile_sensor_data
            self._images.append(subscribe(node, message_type, name, take, qos))
            self._images[-1].remedy = 'set image_transport'
        self.odometry = OdometrySource(node, config, session, listener)

    def stop(self) -> None:
        """Hand on no more images, nor those that wait for other cameras."""
        self.active = False
        self._synchronizer.clear('waited for other cameras at the end')

    @property
    def topics(self) -> list[Topic]:
        """Return the topics that are watched."""
        return [*self._images, self.odometry.topic, *self.others]

    @property
    def dropped(self) -> Counter[str]:
        """Images that were not used, also for want of those of other cameras, by reason."""
        return self.session.dropped + self._synchronizer.dropped

    def _take_image(self, camera: int, message: Any) -> None:
        stamp_ns, now = stamp_to_ns(message.header.stamp), time.monotonic()
        self._images[camera].saw(stamp_ns, now)
        if stamp_ns and self.odometry.topic.stamp_ns:
            self._leads.append((stamp_ns - self.odometry.topic.stamp_ns) * 1e-9)
        image = MessageImage(message, f'at {stamp_ns * 1e-9:.3f} s')
        if not self.active:
            self._matched = now
        elif not self.cameras:
            self.session.add_image(stamp_ns, image)
        else:
            for moment_ns, images in self._synchronizer.add(camera, stamp_ns, image):
                self._matched = now
                self.session.add_image(moment_ns, LazyImages(images))

    @property
    def image(self) -> Topic:
        """Topic of the newest image."""
        return max(self._images, key=lambda topic: topic.last)

    @property
    def lead(self) -> float:
        """Seconds by which stamps of images lead the odometry that arrives with them."""
        return typical_lead(self._leads)

    def measure(self, now: float) -> None:
        """Look at the topics; once a second."""
        clock_ns = self._node.get_clock().now().nanoseconds
        for topic in self.topics:
            found = self._node.get_publishers_info_by_topic(topic.name)
            types = Counter(publisher.topic_type for publisher in found)
            topic.publishers = types.pop(topic.type_name, 0)
            topic.other_types = ', '.join(sorted(types))
            raw = topic.name.removesuffix(COMPRESSED)
            other = raw + COMPRESSED * (raw == topic.name)
            topic.sibling = other if self._node.count_publishers(other) else ''
            topic.measure(now, self.config.no_data_timeout, clock_ns)
        silent = self._synchronizer.silent if self.cameras else []
        lively = [topic.silence < 3.0 for topic in self._images]
        self.silent_cameras = ', '.join(silent) if any(lively) else ''
        self.other_cameras = ', '.join(name for name in self.cameras if name not in silent)
        late = self.active and now - self._matched > 3.0
        self.unmatched = bool(self.cameras) and not silent and late and all(lively)
        self.odometry.compare()


def typical_lead(leads: Collection[float]) -> float:
    """Seconds by which all stamps of images lead the odometry, whatever single ones do."""
    if len(leads) < 20:  # a start stutters
        return 0.0
    # nearest to zero, and zero where they have both signs
    return max(min(leads), 0.0) + min(max(leads), 0.0)
