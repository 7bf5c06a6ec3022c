"""Subscriptions of a node: images, and odometry from a topic or from TF."""

from collections import Counter, deque
from collections.abc import Callable, Collection
from functools import partial
import time
from typing import Any

from kbr_localization import se2
from kbr_localization.datasets.images import MessageImage
from kbr_localization.datasets.multi_camera import LazyImages, Synchronizer
from kbr_localization.errors import ConfigurationError, DatasetError, RosError
from kbr_localization.ros import conversions
from kbr_localization.ros.buffers import Availability, OdometryBuffer, SECOND, StampedPose, Worker
from kbr_localization.ros.config import InputConfig
from kbr_localization.ros.diagnostics import TopicMonitor
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

COMPRESSED_SUFFIX = '/compressed'
TF_QOS = QoSProfile(depth=100, reliability=ReliabilityPolicy.BEST_EFFORT)
STATIC_QOS = QoSProfile(depth=100, durability=DurabilityPolicy.TRANSIENT_LOCAL)
ODOMETRY_QOS = QoSProfile(depth=200, reliability=ReliabilityPolicy.BEST_EFFORT)


def open_topic(topic: str, create: Callable[[], Any]) -> Any:
    """Return the publisher or subscription that `create` makes; raises ConfigurationError."""
    try:
        return create()
    except Exception as error:  # rclpy has no common class for them
        why = str(error).partition('\n')[0].rstrip(':')
        raise ConfigurationError(
            f'cannot use topic {topic!r}: {why}: expected a name such as front/image, and one '
            'type of message on it'
        ) from error


def subscribe(
    node: Node, message_type: Any, name: str, callback: Callable[[Any], None], qos: QoSProfile
) -> TopicMonitor:
    """Subscribe, and return a monitor of the topic; raises ConfigurationError as `open_topic`."""
    topic = TopicMonitor(name, conversions.type_name(message_type), time.monotonic())

    def count_lost(event: Any) -> None:
        topic.lost = event.total_count

    def create() -> Any:
        subscription = partial(node.create_subscription, message_type, name, callback, qos)
        try:
            events = SubscriptionEventCallbacks(message_lost=count_lost)
            return subscription(event_callbacks=events)
        except UnsupportedEventTypeError:  # the DDS does not count lost messages
            return subscription()

    topic.subscription = open_topic(name, create)
    topic.name = topic.subscription.topic_name
    return topic


class TransformListener:
    """
    The newest planar transforms: of /tf_static, and of the map or odometry frame on /tf.

    `type`: type of the messages, None without tf2_msgs. `transforms`: for each child frame its
    parent, the stamp in nanoseconds (0 for a static transform) and the pose (3,). `callbacks` are
    called after each message.
    """

    def __init__(self, node: ParameterNode, config: InputConfig) -> None:
        self._log = node.log
        # the names as they appear in a serialized message
        self._frames = [f'{n}\0'.encode() for n in (config.global_frame_id, config.odom_frame_id)]
        self.type = conversions.optional_interface('tf2_msgs.msg', 'TFMessage')
        self.transforms: dict[str, tuple[str, int, se2.FloatArray]] = {}
        self.callbacks: list[Callable[[], None]] = []
        if self.type is not None:
            create = partial(node.create_subscription, self.type)
            self._topic = create('/tf', self._on_raw_message, TF_QOS, raw=True).topic_name
            create('/tf_static', partial(self._on_message, static=True), STATIC_QOS)

    def monitor(self, wanted: str) -> TopicMonitor:
        """Return a monitor of /tf for a wanted transform; raises RosError without tf2_msgs."""
        if self.type is None:
            raise RosError(f'{wanted} on /tf needs tf2_msgs: install it, or listen to a topic')
        kind = conversions.type_name(self.type)
        return TopicMonitor(self._topic, kind, time.monotonic(), wanted=wanted)

    def pose(self, ancestor: str, frame: str) -> StampedPose | None:
        """Return the newest stamp and the (3,) pose of a frame in an ancestor, None if unknown."""
        newest_ns, pose = 0, np.zeros(3)
        for _ in self.transforms:  # wrong transforms may form a cycle
            if frame not in self.transforms:
                return None
            frame, stamp_ns, step = self.transforms[frame]
            newest_ns, pose = max(newest_ns, stamp_ns), se2.compose(step, pose)
            if frame == ancestor:
                return newest_ns, pose
        return None

    def _on_raw_message(self, data: bytes) -> None:
        # deserializing the transforms of many joints would take a tenth of a core
        if any(frame in data for frame in self._frames):
            self._on_message(deserialize_message(data, self.type))

    def _on_message(self, message: Any, static: bool = False) -> None:
        for transform in message.transforms:
            parent, child = transform.header.frame_id, transform.child_frame_id
            stamp_ns = 0 if static else conversions.stamp_to_ns(transform.header.stamp)
            try:
                pose = conversions.pose_from_transform(transform)
                self.transforms[child.lstrip('/')] = parent.lstrip('/'), stamp_ns, pose
            except DatasetError as error:
                self._log('warning', f'transform not used: {parent} to {child}: {error}')
        for callback in self.callbacks:
            callback()


class OdometrySource:
    """
    The odometry of a robot, from the topic `odom` or from TF, by the parameter `odom_source`.

    With 'auto' the topic is used until TF has odometry; with 'topic' the two are compared.
    `topic`: monitor of the source. `wanted`: the transform on TF. `parent`, `frame`: parent and
    child frame. `newest`: the last stamp and pose (3,). `still`: seconds without motion. `unused`:
    messages that could not be used since the last usable one; `why_unused`: the reason. `off_tf`:
    difference from TF, in metres or radians.
    """

    def __init__(
        self, node: ParameterNode, config: InputConfig, worker: Worker, listener: TransformListener
    ) -> None:
        self._node, self._config, self._worker, self._listener = node, config, worker, listener
        self.newest: StampedPose | None = None
        self._rest_start: StampedPose | None = None
        self._compared: StampedPose | None = None
        self._tf_odometry = OdometryBuffer(5 * SECOND)
        self.frame, self.parent, self._uses_tf = '', config.odom_frame_id, False
        self.unused, self.why_unused = 0, ''
        self.still = self.off_tf = 0.0
        self.wanted = f'{config.odom_frame_id} to {config.base_frame_id}'
        if config.odom_source == 'tf':
            self.topic = listener.monitor(self.wanted)
        else:
            self.topic = subscribe(node, Odometry, 'odom', self._on_message, ODOMETRY_QOS)
            self.topic.exclusive = True
        listener.callbacks.append(self._on_transforms)

    def _on_message(self, message: Odometry) -> None:
        stamp_ns = conversions.stamp_to_ns(message.header.stamp)
        self.topic.add_message(stamp_ns, time.monotonic())
        self.parent = message.header.frame_id.lstrip('/')
        try:
            pose = conversions.pose_from_message(message.pose.pose)
        except DatasetError as error:
            self._worker.odometry_counts['not usable'] += 1
            self.unused, self.why_unused = self.unused + 1, str(error)
            self._node.log('warning', f'odometry not used: {error}')
            return
        self.unused, self.frame = 0, message.child_frame_id.lstrip('/')
        self._add(stamp_ns, pose)

    def _on_transforms(self) -> None:
        """Use new odometry of TF from now on; with `odom_source` 'topic' only for `compare`."""
        odom = self._config.odom_frame_id
        for frame in filter(None, (self._config.base_frame_id, self.frame)):
            found = self._listener.pose(odom, frame)
            if found is not None and found[0]:  # not from static transforms only
                break
        else:
            return
        if self._config.odom_source == 'topic':
            self._tf_odometry.add(*found)
            return
        changes = not self._uses_tf or frame != self.frame
        if not changes and self.newest is not None and found[0] == self.newest[0]:
            return
        new_source = changes and self.newest is not None
        if changes:
            self._node.log('info', f'odometry is now taken from TF, {odom} to {frame}', 0.0)
            if self.topic.subscription is not None:
                self._node.destroy_subscription(self.topic.subscription)
            self.topic, self.frame = self._listener.monitor(self.wanted), frame
            self.parent, self._uses_tf = odom, True
        self.topic.add_message(found[0], time.monotonic())
        self._add(*found, new_source)

    def _add(self, stamp_ns: int, pose: se2.FloatArray, new_source: bool = False) -> None:
        self.newest = (stamp_ns, pose)
        start_ns, start = self._rest_start or self.newest
        if stamp_ns <= start_ns or np.abs(se2.between(start, pose)).max() > 0.01:
            start_ns, start = self.newest
        self._rest_start, self.still = (start_ns, start), (stamp_ns - start_ns) * 1e-9
        self._worker.add_odometry(stamp_ns, pose, new_source)

    def compare(self) -> None:
        """Compare the pose of the last call with TF, which may be late; call it once a second."""
        self.off_tf, compared, self._compared = 0.0, self._compared, self.newest
        if compared and self._tf_odometry.availability(compared[0]) is Availability.READY:
            step = se2.between(self._tf_odometry.at(compared[0]), compared[1])
            self.off_tf = float(max(se2.magnitude(step)))


class Inputs:
    """
    Subscriptions that add images and odometry to a worker, and monitors of their topics.

    Images of several cameras are added as sets. `active`: whether images are added.
    `other_topics`: monitors of more topics. `silent_cameras`: cameras that are left out of the
    sets; `other_cameras`: the others.
    """

    def __init__(
        self, node: ParameterNode, config: InputConfig, worker: Worker, listener: TransformListener
    ) -> None:
        self._node, self.config, self.worker, self.active = node, config, worker, False
        self.cameras = config.camera_names
        self._synchronizer = Synchronizer[MessageImage](self.cameras, config.sync_tolerance)
        self.silent_cameras = self.other_cameras = ''
        self.other_topics: list[TopicMonitor] = []
        self._leads: deque[float] = deque(maxlen=100)
        compressed = config.image_transport == 'compressed'
        suffix = COMPRESSED_SUFFIX if compressed else ''
        message_type: Any = CompressedImage if compressed else Image
        self._images: list[TopicMonitor] = []
        for index, topic in enumerate(config.image_topics or ['image']):
            name = topic.removesuffix(suffix) + suffix
            callback, qos = partial(self._on_image, index), qos_profile_sensor_data
            self._images.append(subscribe(node, message_type, name, callback, qos))
            self._images[-1].type_remedy = 'set image_transport'
        self.odometry = OdometrySource(node, config, worker, listener)

    def stop(self) -> None:
        """Add no more images, nor those that wait for other cameras."""
        self.active = False
        self._synchronizer.clear('waited for other cameras at the end')

    @property
    def topics(self) -> list[TopicMonitor]:
        return [*self._images, self.odometry.topic, *self.other_topics]

    @property
    def dropped(self) -> Counter[str]:
        """Images that were not used, by reason."""
        return self.worker.dropped + self._synchronizer.dropped

    def _on_image(self, camera: int, message: Any) -> None:
        stamp_ns = conversions.stamp_to_ns(message.header.stamp)
        self._images[camera].add_message(stamp_ns, time.monotonic())
        if stamp_ns and self.odometry.topic.stamp_ns:
            self._leads.append((stamp_ns - self.odometry.topic.stamp_ns) * 1e-9)
        image = MessageImage(message, f'at {stamp_ns * 1e-9:.3f} s')
        if self.active and not self.cameras:
            self.worker.add_image(stamp_ns, image)
        elif self.active:
            for set_ns, images in self._synchronizer.add(camera, stamp_ns, image):
                self.worker.add_image(set_ns, LazyImages(images))

    @property
    def image(self) -> TopicMonitor:
        """Monitor of the topic with the newest image."""
        return max(self._images, key=lambda topic: topic.received)

    @property
    def lead(self) -> float:
        """Seconds by which stamps of arriving images are ahead of the newest odometry."""
        return typical_lead(self._leads)

    def update(self, now: float) -> None:
        """Update all monitors; call it once a second."""
        clock_ns = self._node.get_clock().now().nanoseconds
        for topic in self.topics:
            found = self._node.get_publishers_info_by_topic(topic.name)
            types = Counter(publisher.topic_type for publisher in found)
            topic.publishers = types.pop(topic.type_name, 0)
            topic.other_types = ', '.join(sorted(types))
            raw = topic.name.removesuffix(COMPRESSED_SUFFIX)
            other = raw + COMPRESSED_SUFFIX if raw == topic.name else raw
            topic.other_transport = other if self._node.count_publishers(other) else ''
            topic.update(now, self.config.no_data_timeout, clock_ns)
        silent = self._synchronizer.silent if self.cameras else []
        sending = any(topic.silence < 3.0 for topic in self._images)
        self.silent_cameras = ', '.join(silent) if sending else ''
        self.other_cameras = ', '.join(name for name in self.cameras if name not in silent)
        self.odometry.compare()


def typical_lead(leads: Collection[float]) -> float:
    """Return the lead that is nearest to zero, or 0 if they have both signs."""
    if len(leads) < 20:  # the first images may be late
        return 0.0
    return max(min(leads), 0.0) + min(max(leads), 0.0)
