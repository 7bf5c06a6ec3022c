"""
Publish a recorded run as ROS topics with a clock, so that no rosbag2 is needed to replay it.

Anything that `datasets.open_dataset` reads can be played.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
import sys
import threading
import time
from typing import Any

from geometry_msgs.msg import PoseWithCovarianceStamped
from kbr_localization import configuration
from kbr_localization.configuration import parameter
from kbr_localization.datasets import Dataset, Frame, open_dataset
from kbr_localization.datasets.images import encoded_bytes
from kbr_localization.datasets.multi_camera import Source, sources_of
from kbr_localization.errors import ConfigurationError, DatasetError
from kbr_localization.files import expanded
from kbr_localization.progress import Progress, silent, terminal_progress
from kbr_localization.ros import conversions
from kbr_localization.ros.conversions import ns_to_stamp
from kbr_localization.ros.inputs import listen
from kbr_localization.ros.odometry_buffer import SECOND
from kbr_localization.ros.parameters import declare, fields, ParameterNode, refuse_unknown
from kbr_localization.ros.running import ros_context, run_program, WAKE_SECONDS
from nav_msgs.msg import Odometry
import numpy as np
from rclpy.duration import Duration
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CompressedImage, Image

LONGEST_S = 1e9
"""Seconds, thirty years."""


@dataclass(frozen=True)
class PlayerOptions:
    """How a run is played."""

    rate: float = parameter(1.0, 'speed relative to the recording', 0.01, 1000.0)
    loop: bool = parameter(
        False,
        'start over at the end; stamps and clock jump back, or with stamps: now go on, as if the '
        'robot were carried to the start',
    )
    start: float = parameter(0.0, 'seconds to leave out at the beginning', 0.0, LONGEST_S)
    duration: float = parameter(
        0.0, 'seconds of the recording to play; 0 plays all', 0.0, LONGEST_S
    )
    image_transport: str = parameter(
        'raw',
        'raw: Image on image; compressed: JPEG on image/compressed',
        choices=('raw', 'compressed'),
    )
    jpeg_quality: int = parameter(95, 'quality of compressed images', 1, 100)
    reliability: str = parameter(
        'reliable',
        'of the published topics; reliable serves best-effort subscribers too',
        choices=('reliable', 'best_effort'),
    )
    stamps: str = parameter(
        'recorded',
        'recorded: as in the run, with /clock; now: the time of sending, without /clock',
        choices=('recorded', 'now'),
    )
    clock_rate: float = parameter(100.0, 'messages on /clock per second of wall time', 1.0, 1000.0)
    reference: bool = parameter(True, 'publish the known poses on reference_pose')
    wait_for_subscribers: int = parameter(
        1, 'subscribers on image and odom to wait for before the start', 0
    )
    wait_timeout: float = parameter(0.0, 'seconds to wait for them at most; 0 waits on', 0.0)
    settle: float = parameter(0.5, 'seconds between the first clock message and the run', 0.0)
    linger: float = parameter(
        3.5, 'seconds to wait at the end until reliable subscribers have everything', 0.0
    )
    global_frame_id: str = parameter('map', 'frame of the reference poses')
    odom_frame_id: str = parameter('odom', 'frame of the odometry')
    base_frame_id: str = parameter('base_footprint', 'frame of the robot')
    camera_frame_id: str = parameter('camera', 'frame of the images')


@dataclass(frozen=True)
class PlayerParameters(PlayerOptions):
    """Parameters of the player node."""

    run: str = parameter('', 'COLD run folder or rosbag2 to play')
    cameras: tuple[str, ...] = parameter(
        (), 'cameras to play, by folders of a COLD run or topics of a bag, if there are several'
    )


@dataclass(frozen=True)
class Event:
    """One message to send: `kind` is 'odometry' or 'image', `index` its place in the run."""

    stamp_ns: int
    kind: str
    index: int


def schedule(dataset: Dataset, start: float = 0.0, duration: float = 0.0) -> list[Event]:
    """
    Odometry and images of a run in the order of their stamps, odometry first at equal stamps.

    `start` and `duration` in seconds cut a piece out of the run; a duration of 0 goes to its end.
    Raises DatasetError when no image is left.
    """
    stamps = dataset.odometry.stamps_ns
    odometry = [Event(int(stamp), 'odometry', index) for index, stamp in enumerate(stamps)]
    images = [Event(dataset[index].stamp_ns, 'image', index) for index in range(len(dataset))]
    events = sorted([*odometry, *images], key=lambda event: event.stamp_ns)
    first_ns = (events[0].stamp_ns if events else 0) + round(start * SECOND)
    last_ns = first_ns + round((duration or LONGEST_S) * SECOND)
    chosen = [event for event in events if first_ns <= event.stamp_ns <= last_ns]
    if not any(event.kind == 'image' for event in chosen):
        piece = f'from {start:g} s ' + (f'for {duration:g} s' if duration > 0 else 'on')
        length = (events[-1].stamp_ns - events[0].stamp_ns) / SECOND if events else 0.0
        raise DatasetError(
            f'no image to play in {dataset.name!r} {piece}: the run has {length:.1f} s, choose '
            'another run, start or duration'
        )
    return chosen


@dataclass
class Played:
    """What was sent, by kind, and what was left out, by reason."""

    sent: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    complete: bool = False

    def __str__(self) -> str:
        """Summary in one line."""
        sent = ', '.join(f'{count} {kind}' for kind, count in sorted(self.sent.items()))
        left_out = ', '.join(f'{count} {reason}' for reason, count in self.skipped.items())
        verb = 'published' if self.complete else 'stopped after'
        return f'{verb} {sent} in {self.seconds:.1f} s' + (
            f'; left out: {left_out}' if left_out else ''
        )


class Player:
    """
    Publish the messages of a run in time, spinning the node in between.

    Raises ConfigurationError where two topics were remapped to one.
    """

    def __init__(
        self,
        node: Node,
        dataset: Dataset,
        options: PlayerOptions,
        progress: Progress,
        stop: threading.Event,
    ) -> None:
        configuration.validate(options)
        self._node, self._dataset, self._options = node, dataset, options
        self._progress, self._stop = progress, stop
        self._events = schedule(dataset, options.start, options.duration)
        self.played = Played(skipped=Counter(dataset.skipped))
        self._clock_ns = 0
        self._create_publishers()
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(node)

    def _create_publishers(self) -> None:
        options = self._options
        reliability = ReliabilityPolicy[options.reliability.upper()]

        def create(kind: type[Any], topic: str, depth: int) -> Any:
            qos = QoSProfile(depth=depth, reliability=reliability)
            make = partial(self._node.create_publisher, kind, topic, qos)
            return listen(self._node, topic, make)

        self._odometry = create(Odometry, 'odom', 100)
        self._reference = create(PoseWithCovarianceStamped, 'reference_pose', 100)
        self._clock = create(Clock, '/clock', 1) if options.stamps == 'recorded' else None
        compressed = options.image_transport == 'compressed'
        kind, topic = (CompressedImage, 'image/compressed') if compressed else (Image, 'image')
        prefixes = [f'{camera}/' for camera in self._dataset.cameras] or ['']
        self._images = [create(kind, prefix + topic, 10) for prefix in prefixes]

    def play(self) -> Played:
        """Publish the run, over and over if asked to, and return what was sent."""
        started = time.monotonic()
        try:
            self._wait_for_subscribers()
            self._play_once()
            while self._options.loop and not self._stop.is_set():
                self._play_once()
            self._flush()
        finally:
            self.played.complete = not self._stop.is_set()
            self.played.seconds = time.monotonic() - started
            self._executor.remove_node(self._node)
            self._executor.shutdown()
        return self.played

    def _wait_for_subscribers(self) -> None:
        started = hinted = time.monotonic()
        wanted, timeout = self._options.wait_for_subscribers, self._options.wait_timeout
        publishers = (*self._images, self._odometry)
        while not self._stop.is_set():
            missing = [p.topic_name for p in publishers if p.get_subscription_count() < wanted]
            now, topics = time.monotonic(), ', '.join(missing)
            if not missing:
                return
            if 0.0 < timeout < now - started:
                self._node.get_logger().warning(f'no subscribers on {topics}: playing')
                return
            if now - hinted > 2.0:
                self._node.get_logger().info(f'waiting for subscribers on {topics}')
                hinted = now
            self._spin_until(now + 0.05)

    def _play_once(self) -> None:
        first_ns = self._events[0].stamp_ns
        self._publish_clock(first_ns)
        self._spin_until(time.monotonic() + self._options.settle)
        started, per_second = time.monotonic(), self._options.rate * SECOND
        for done, event in enumerate(self._events, start=1):
            due = started + (event.stamp_ns - first_ns) / per_second
            # the clock is never behind what is sent
            while (now := time.monotonic()) < due and not self._stop.is_set():
                self._advance_clock(first_ns + round((now - started) * per_second))
                self._spin_until(min(due, now + 1.0 / self._options.clock_rate))
            if self._stop.is_set():
                return
            self._advance_clock(event.stamp_ns)
            self._publish(event)
            self._progress(f'playing {self._dataset.name}', done, len(self._events))

    def _advance_clock(self, stamp_ns: int) -> None:
        if stamp_ns > self._clock_ns:
            self._publish_clock(stamp_ns)

    def _publish_clock(self, stamp_ns: int) -> None:
        self._clock_ns = stamp_ns
        if self._clock is not None:
            self._clock.publish(Clock(clock=ns_to_stamp(stamp_ns)))

    def _spin_until(self, moment: float) -> None:
        while (left := moment - time.monotonic()) > 0.0 and not self._stop.is_set():
            self._executor.spin_once(timeout_sec=min(left, WAKE_SECONDS))

    def _publish(self, event: Event) -> None:
        stamp_ns = event.stamp_ns
        if self._options.stamps == 'now':
            stamp_ns = self._node.get_clock().now().nanoseconds
        if event.kind == 'image':
            self._publish_frame(self._dataset[event.index], stamp_ns)
            return
        pose = self._dataset.odometry.poses[event.index]
        frames = (self._options.odom_frame_id, self._options.base_frame_id)
        self._odometry.publish(conversions.odometry_message(stamp_ns, pose, *frames))
        self.played.sent['odometry messages'] += 1

    def _publish_frame(self, frame: Frame, stamp_ns: int) -> None:
        """Publish the images of a frame after its known pose; a broken image is left out."""
        messages = []
        names = self._dataset.cameras or (self._options.camera_frame_id,)
        for publisher, name, image in zip(self._images, names, sources_of(frame), strict=True):
            if image is None:
                continue
            try:
                message = self._image_message(image, frame.name, stamp_ns, name)
                messages.append((publisher, message))
            except DatasetError as error:
                self._node.get_logger().warning(f'image left out: {error}')
                self.played.skipped['broken image'] += 1
        if messages and self._options.reference and frame.reference is not None:
            self._reference.publish(
                conversions.pose_with_covariance(
                    stamp_ns, self._options.global_frame_id, frame.reference, 1e-6 * np.eye(3)
                )
            )
            self.played.sent['reference poses'] += 1
        for publisher, message in messages:
            publisher.publish(message)
            self.played.sent['images'] += 1

    def _image_message(self, image: Source, name: str, stamp_ns: int, frame_id: str) -> Any:
        if self._options.image_transport == 'raw':
            pixels = image() if callable(image) else image
            return conversions.image_message(pixels, stamp_ns, frame_id)
        encoded = encoded_bytes(image, name, self._options.jpeg_quality)
        return conversions.compressed_image_message(encoded, stamp_ns, frame_id)

    def _flush(self) -> None:
        """Wait until reliable subscribers have everything, as long as `linger` says."""
        end = time.monotonic() + self._options.linger
        if self._options.reliability == 'reliable':
            for publisher in (*self._images, self._odometry):
                left = max(0.0, end - time.monotonic())
                publisher.wait_for_all_acked(Duration(seconds=left))


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


def main(args: list[str] | None = None) -> int:
    """Run the player node."""
    return run_program(_run, args)


def _run(stop: threading.Event) -> None:
    node = ParameterNode('player', automatically_declare_parameters_from_overrides=True)
    try:
        options = declare(node, PlayerParameters)
        refuse_unknown(node, fields(PlayerParameters))
        if not options.run:
            raise ConfigurationError("parameter 'run' is empty: give a COLD run folder or a bag")
        dataset = open_dataset(expanded(options.run), options.cameras)
        with terminal_progress() as progress:
            played = Player(node, dataset, options, progress, stop).play()
        node.get_logger().info(f'{options.run}: {played}')
    finally:
        node.destroy_node()


if __name__ == '__main__':
    sys.exit(main())
