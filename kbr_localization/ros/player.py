"""Publish any run that `open_dataset` reads as ROS topics, with a clock."""

from collections import Counter
from functools import partial
import sys
import time
from typing import Any

from geometry_msgs.msg import PoseWithCovarianceStamped
from kbr_localization.configuration import fields_of
from kbr_localization.datasets import Dataset, Frame, open_dataset
from kbr_localization.datasets.images import encoded_bytes
from kbr_localization.datasets.multi_camera import sources_of
from kbr_localization.errors import ConfigurationError, DatasetError
from kbr_localization.files import expanded
from kbr_localization.progress import report, terminal_progress
from kbr_localization.ros import conversions
from kbr_localization.ros.buffers import SECOND
from kbr_localization.ros.config import PlayerConfig
from kbr_localization.ros.inputs import open_topic
from kbr_localization.ros.parameters import declare, ParameterNode, refuse_misspelt
from kbr_localization.ros.running import format_counts, program, ros_context, Stop, stop_at_signals
from nav_msgs.msg import Odometry
import numpy as np
from rclpy.duration import Duration
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CompressedImage, Image


def schedule(dataset: Dataset, start: float, duration: float) -> list[tuple[int, bool, int]]:
    """Return the events to play by time: stamp (ns), whether it is an image, index in the run."""
    events = [(int(ns), False, index) for index, ns in enumerate(dataset.odometry.stamps_ns)]
    events += [(dataset[index].stamp_ns, True, index) for index in range(len(dataset))]
    events.sort()
    first_ns = (events[0][0] if events else 0) + round(start * SECOND)
    length_ns = round(duration * SECOND) or sys.maxsize
    chosen = [event for event in events if 0 <= event[0] - first_ns <= length_ns]
    if not any(is_image for _, is_image, _ in chosen):
        length = (events[-1][0] - events[0][0]) / SECOND if events else 0.0
        raise DatasetError(
            f'no image of {dataset.name!r} to play from {start:g} s on for {duration:g} s (0: to '
            f'the end): the run has {length:.1f} s, choose another run, start or duration'
        )
    return chosen


class Player:
    """Publish the messages of a run at their times, and spin the node in between."""

    def __init__(self, node: Node, dataset: Dataset, config: PlayerConfig, stop: Stop) -> None:
        self._node, self._dataset, self._config, self._stop = node, dataset, config, stop
        self._events = schedule(dataset, config.start, config.duration)
        self._sent, self._left_out = Counter[str](), Counter[str](dataset.skipped)
        self._clock_ns = 0

        def create(kind: type[Any], topic: str, depth: int) -> Any:
            # reliable publishers serve best-effort subscribers too
            return open_topic(topic, partial(node.create_publisher, kind, topic, depth))

        self._odometry = create(Odometry, 'odom', 100)
        self._reference = create(PoseWithCovarianceStamped, 'reference_pose', 100)
        self._clock = create(Clock, '/clock', 1) if config.stamps == 'recorded' else None
        compressed = config.image_transport == 'compressed'
        kind, topic = (CompressedImage, 'image/compressed') if compressed else (Image, 'image')
        prefixes = [f'{camera}/' for camera in dataset.cameras] or ['']
        self._images = [create(kind, prefix + topic, 10) for prefix in prefixes]
        self._executor = SingleThreadedExecutor(context=node.context)
        self._executor.add_node(node)

    def play(self) -> str:
        """Publish the run, once or in a loop; return a line about what was sent."""
        started = time.monotonic()
        try:
            self._wait_for_subscribers()
            self._play_once()
            while self._config.loop and not self._stop.is_set:
                self._play_once()
            # reliable subscribers may still miss messages
            end = time.monotonic() + 3.5
            for publisher in (*self._images, self._odometry):
                left = max(0.0, end - time.monotonic())
                publisher.wait_for_all_acked(Duration(seconds=left))
        finally:
            self._executor.remove_node(self._node)
            self._executor.shutdown()
        verb = 'stopped after' if self._stop.is_set else 'published'
        seconds, left_out = time.monotonic() - started, format_counts(self._left_out)
        return f'{verb} {format_counts(self._sent)} in {seconds:.1f} s; left out: {left_out}'

    def _wait_for_subscribers(self) -> None:
        hinted, wanted = time.monotonic(), self._config.wait_for_subscribers
        while not self._stop.is_set:
            publishers = (*self._images, self._odometry)
            missing = [p.topic_name for p in publishers if p.get_subscription_count() < wanted]
            if not missing:
                return
            if time.monotonic() - hinted > 2.0:
                hinted = time.monotonic()
                self._node.get_logger().info(f'waiting for subscribers on {", ".join(missing)}')
            self._spin_until(time.monotonic() + 0.05)

    def _play_once(self) -> None:
        first_ns = self._events[0][0]
        self._set_clock(first_ns)
        self._spin_until(time.monotonic() + 0.5)  # until subscribers have received the clock
        started, per_second = time.monotonic(), self._config.rate * SECOND
        for done, (stamp_ns, is_image, index) in enumerate(self._events, start=1):
            due = started + (stamp_ns - first_ns) / per_second
            # publish the clock at 100 Hz, and never behind the stamp of a message
            while (now := time.monotonic()) < due and not self._stop.is_set:
                self._set_clock(
                    max(self._clock_ns, first_ns + round((now - started) * per_second))
                )
                self._spin_until(min(due, now + 0.01))
            if self._stop.is_set:
                return
            self._set_clock(max(self._clock_ns, stamp_ns))
            sent_ns = stamp_ns if self._clock else self._node.get_clock().now().nanoseconds
            if is_image:
                self._publish_frame(self._dataset[index], sent_ns)
            else:
                pose, config = self._dataset.odometry.poses[index], self._config
                frames = config.odom_frame_id, config.base_frame_id
                self._odometry.publish(conversions.odometry_message(sent_ns, pose, *frames))
                self._sent['odometry messages'] += 1
            report(f'playing {self._dataset.name}', done, len(self._events))

    def _set_clock(self, stamp_ns: int) -> None:
        self._clock_ns = stamp_ns
        if self._clock is not None:
            self._clock.publish(Clock(clock=conversions.ns_to_stamp(stamp_ns)))

    def _spin_until(self, moment: float) -> None:
        while (left := moment - time.monotonic()) > 0.0 and not self._stop.is_set:
            self._executor.spin_once(timeout_sec=left)

    def _publish_frame(self, frame: Frame, stamp_ns: int) -> None:
        """Publish the known pose of a frame, then its images; leave out broken ones."""
        messages = []
        names = self._dataset.cameras or (self._config.camera_frame_id,)
        for publisher, name, image in zip(self._images, names, sources_of(frame), strict=True):
            if image is None:
                continue
            try:
                if self._config.image_transport == 'compressed':
                    encoded = encoded_bytes(image, frame.name)
                    message: Any = conversions.compressed_image_message(encoded, stamp_ns, name)
                else:
                    pixels = image() if callable(image) else image
                    message = conversions.image_message(pixels, stamp_ns, name)
                messages.append((publisher, message))
            except DatasetError as error:
                self._node.get_logger().warning(f'image left out: {error}')
                self._left_out['broken image'] += 1
        if messages and frame.reference is not None:
            known = (self._config.global_frame_id, frame.reference, 1e-6 * np.eye(3))
            self._reference.publish(conversions.pose_with_covariance(stamp_ns, *known))
            self._sent['reference poses'] += 1
        for publisher, message in messages:
            publisher.publish(message)
            self._sent['images'] += 1


def play(dataset: Dataset, config: PlayerConfig) -> str:
    """Publish a run from a program that is not a node; return a line about what was sent."""
    with ros_context([]):
        node = Node('player')
        try:
            return Player(node, dataset, config, stop_at_signals()).play()
        finally:
            node.destroy_node()


@program
def main() -> None:
    node = ParameterNode('player')
    try:
        config = declare(node, PlayerConfig)
        refuse_misspelt(node, fields_of(PlayerConfig))
        if not config.run:
            raise ConfigurationError("parameter 'run' is empty: give a COLD run folder or a bag")
        dataset = open_dataset(expanded(config.run), config.cameras)
        with terminal_progress():
            played = Player(node, dataset, config, stop_at_signals()).play()
        node.get_logger().info(f'{config.run}: {played}')
    finally:
        node.destroy_node()


if __name__ == '__main__':
    sys.exit(main())
