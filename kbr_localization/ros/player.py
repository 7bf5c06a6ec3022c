"""
Publish a recorded run as ROS topics with a clock, so that no rosbag2 is needed to replay it.

Anything that `datasets.open_dataset` reads can be played: a COLD run or a rosbag2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
import sys
import threading
import time
from typing import Any

from geometry_msgs.msg import PoseWithCovarianceStamped
from kbr_localization import configuration
from kbr_localization.configuration import parameter
from kbr_localization.datasets import Dataset, Frame, open_dataset
from kbr_localization.datasets.image_file import encoded_bytes
from kbr_localization.errors import ConfigurationError, DatasetError
from kbr_localization.progress import Progress, silent, terminal_progress
from kbr_localization.ros import conversions, parameters
from kbr_localization.ros.running import ros_context, run_node, WAKE_SECONDS
from kbr_localization.ros.schedule import Event, NANOSECONDS, PlayerOptions, schedule
from nav_msgs.msg import Odometry
import numpy as np
from rclpy.duration import Duration
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CompressedImage, Image

REFERENCE_COVARIANCE = 1e-6 * np.eye(3)
HINT_SECONDS = 2.0


@dataclass
class Played:
    """What was sent, by kind, and what was left out, by reason."""

    seconds: float = 0.0
    complete: bool = False
    sent: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """One line for people."""
        sent = ', '.join(f'{count} {kind}' for kind, count in self.sent.items())
        left_out = ', '.join(f'{count} {reason}' for reason, count in self.skipped.items())
        verb = 'published' if self.complete else 'stopped after'
        return f'{verb} {sent} in {self.seconds:.1f} s' + (
            f'; left out: {left_out}' if left_out else ''
        )


class RunPublisher:
    """Publishers for the messages of a run, on a node."""

    def __init__(self, node: Node, dataset: Dataset, options: PlayerOptions) -> None:
        configuration.validate(options)
        self.node, self.dataset, self.options = node, dataset, options
        self.sent = {'images': 0, 'odometry messages': 0, 'reference poses': 0}
        self.skipped = dict(dataset.skipped)
        reliability = ReliabilityPolicy[options.reliability.upper()]
        qos = QoSProfile(depth=100, reliability=reliability)
        self.odometry_publisher = node.create_publisher(Odometry, 'odom', qos)
        self.reference_publisher = node.create_publisher(
            PoseWithCovarianceStamped, 'reference_pose', qos
        )
        self.clock_publisher = self._create_clock_publisher()
        self.image_publisher = self._create_image_publisher(
            QoSProfile(depth=10, reliability=reliability)
        )

    def _create_clock_publisher(self) -> Publisher[Clock] | None:
        if self.options.stamps == 'now':
            return None
        qos = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE)
        return self.node.create_publisher(Clock, '/clock', qos)

    def _create_image_publisher(self, qos: QoSProfile) -> Publisher[Any]:
        if self.options.image_transport == 'compressed':
            return self.node.create_publisher(CompressedImage, 'image/compressed', qos)
        return self.node.create_publisher(Image, 'image', qos)

    def missing_subscribers(self) -> list[str]:
        """Topics that fewer nodes listen to than asked for."""
        return [
            publisher.topic_name
            for publisher in (self.image_publisher, self.odometry_publisher)
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
        try:
            message = self._image_message(frame, stamp_ns)
        except DatasetError as error:
            self.node.get_logger().warning(f'image left out: {error}')
            self.skipped['broken image'] = self.skipped.get('broken image', 0) + 1
            return
        if self.options.reference and frame.reference is not None:
            self.reference_publisher.publish(
                conversions.pose_with_covariance(
                    stamp_ns, self.options.global_frame_id, frame.reference, REFERENCE_COVARIANCE
                )
            )
            self.sent['reference poses'] += 1
        self.image_publisher.publish(message)
        self.sent['images'] += 1

    def _image_message(self, frame: Frame, stamp_ns: int) -> Image | CompressedImage:
        frame_id = self.options.camera_frame_id
        if self.options.image_transport == 'raw':
            return conversions.image_message(frame.load_image(), stamp_ns, frame_id)
        encoded = encoded_bytes(frame.image, frame.name, self.options.jpeg_quality)
        return conversions.compressed_image_message(encoded, stamp_ns, frame_id)

    def flush(self) -> None:
        """Wait until reliable subscribers have everything, as long as `linger` says."""
        end = time.monotonic() + self.options.linger
        if self.options.reliability == 'reliable':
            for publisher in (self.image_publisher, self.odometry_publisher):
                left = max(0.0, end - time.monotonic())
                publisher.wait_for_all_acked(Duration(seconds=left))


class Player:
    """Serve the messages of a run in time, spinning the node in between."""

    def __init__(
        self,
        node: Node,
        dataset: Dataset,
        options: PlayerOptions,
        progress: Progress,
        stop: threading.Event,
    ) -> None:
        self.options, self._progress, self._stop = options, progress, stop
        self._name = dataset.name
        self._node = node
        self._events = schedule(dataset, options.start, options.duration)
        self.publisher = RunPublisher(node, dataset, options)
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(node)

    def play(self) -> Played:
        """Publish the run, over and over if asked to, and say what was sent."""
        started = time.monotonic()
        played = Played(sent=self.publisher.sent, skipped=self.publisher.skipped)
        try:
            self._wait_for_subscribers()
            self._play_once()
            while self.options.loop and not self._stop.is_set():
                self._play_once()
            self.publisher.flush()
        finally:
            played.complete = not self._stop.is_set()
            played.seconds = time.monotonic() - started
            self._executor.remove_node(self._node)
            self._executor.shutdown()
        return played

    def _wait_for_subscribers(self) -> None:
        started = hinted = time.monotonic()
        while (missing := self.publisher.missing_subscribers()) and not self._stop.is_set():
            now = time.monotonic()
            if 0.0 < self.options.wait_timeout < now - started:
                self._node.get_logger().warning(f'no subscribers on {", ".join(missing)}: playing')
                return
            if now - hinted > HINT_SECONDS:
                self._node.get_logger().info(f'waiting for subscribers on {", ".join(missing)}')
                hinted = now
            self._spin_until(now + 0.05)

    def _play_once(self) -> None:
        self._clock_ns = self._events[0].stamp_ns
        self.publisher.publish_clock(self._clock_ns)
        self._spin_until(time.monotonic() + self.options.settle)
        started = time.monotonic()
        for done, event in enumerate(self._events, start=1):
            self._wait_for(event, started)
            if self._stop.is_set():
                return
            self.publisher.publish(event)
            self._progress(f'playing {self._name}', done, len(self._events))

    def _wait_for(self, event: Event, started: float) -> None:
        """Serve clock and node until an event is due; the clock is never behind what is sent."""
        first_ns, per_second = self._events[0].stamp_ns, self.options.rate * NANOSECONDS
        tick = 1.0 / self.options.clock_rate
        due = started + (event.stamp_ns - first_ns) / per_second
        while (now := time.monotonic()) < due and not self._stop.is_set():
            self._advance_clock(first_ns + round((now - started) * per_second))
            self._spin_until(min(due, now + tick))
        self._advance_clock(event.stamp_ns)

    def _advance_clock(self, stamp_ns: int) -> None:
        if stamp_ns > self._clock_ns:
            self._clock_ns = stamp_ns
            self.publisher.publish_clock(stamp_ns)

    def _spin_until(self, moment: float) -> None:
        while (left := moment - time.monotonic()) > 0.0 and not self._stop.is_set():
            self._executor.spin_once(timeout_sec=min(left, WAKE_SECONDS))


def play(
    dataset: Dataset,
    options: PlayerOptions | None = None,
    progress: Progress | None = None,
    ros_arguments: Sequence[str] = (),
) -> Played:
    """
    Publish a run from an ordinary program: makes a node, plays, cleans up.

    `ros_arguments`: as on a command line after `--ros-args`, e.g. remappings. Raises DatasetError
    and ConfigurationError before anything is sent.
    """
    with ros_context(['--ros-args', *ros_arguments] if ros_arguments else []) as stop:
        node = Node('player')
        try:
            player = Player(node, dataset, options or PlayerOptions(), progress or silent, stop)
            return player.play()
        finally:
            node.destroy_node()


@dataclass(frozen=True)
class PlayerParameters(PlayerOptions):
    """Parameters of the player node."""

    run: str = parameter('', 'COLD run folder or rosbag2 to play')


def main(args: list[str] | None = None) -> int:
    """Run the player node."""
    return run_node(_play_from_parameters, args)


def _play_from_parameters(stop: threading.Event) -> None:
    node = Node('player', automatically_declare_parameters_from_overrides=True)
    try:
        options = parameters.declare(node, PlayerParameters)
        parameters.refuse_unknown(node, parameters.fields(PlayerParameters))
        if not options.run:
            raise ConfigurationError("parameter 'run' is empty: give a COLD run folder or a bag")
        with terminal_progress() as progress:
            played = Player(node, open_dataset(options.run), options, progress, stop).play()
        node.get_logger().info(f'{options.run}: {played}')
    finally:
        node.destroy_node()


if __name__ == '__main__':
    sys.exit(main())
