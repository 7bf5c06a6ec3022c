"""
Publish a recorded run as ROS topics with a clock, so that no rosbag2 is needed to replay it.

Anything that `datasets.open_dataset` reads can be played.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
import sys
import threading
import time
from typing import Any, NamedTuple

from geometry_msgs.msg import PoseWithCovarianceStamped
from kbr_localization import configuration
from kbr_localization.datasets import Dataset, Frame, open_dataset
from kbr_localization.datasets.images import encoded_bytes
from kbr_localization.datasets.multi_camera import Source, sources_of
from kbr_localization.errors import ConfigurationError, DatasetError
from kbr_localization.files import expanded
from kbr_localization.progress import Progress, silent, terminal_progress
from kbr_localization.ros import conversions
from kbr_localization.ros.buffers import SECOND
from kbr_localization.ros.config import PlayerConfig
from kbr_localization.ros.inputs import listen
from kbr_localization.ros.parameters import declare, fields, ParameterNode, refuse_misspelt
from kbr_localization.ros.running import ros_context, run_program, WAKE_SECONDS
from nav_msgs.msg import Odometry
import numpy as np
from rclpy.duration import Duration
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CompressedImage, Image


class Event(NamedTuple):
    """A message to send: an image, or else odometry, by its place in the run."""

    stamp_ns: int
    is_image: bool
    place: int


def schedule(dataset: Dataset, start: float = 0.0, duration: float = 0.0) -> list[Event]:
    """
    Odometry and images of a run in the order of their stamps, odometry first at equal stamps.

    `start` and `duration` in seconds cut a piece out of the run; a duration of 0 goes to its end.
    Raises DatasetError when no image is left.
    """
    stamps = enumerate(dataset.odometry.stamps_ns)
    events = [Event(int(stamp), False, index) for index, stamp in stamps]
    events += [Event(dataset[index].stamp_ns, True, index) for index in range(len(dataset))]
    events.sort()
    first_ns = (events[0].stamp_ns if events else 0) + round(start * SECOND)
    length_ns = round(duration * SECOND) or sys.maxsize
    chosen = [event for event in events if 0 <= event.stamp_ns - first_ns <= length_ns]
    if not any(event.is_image for event in chosen):
        piece = f'from {start:g} s ' + (f'for {duration:g} s' if duration > 0 else 'on')
        length = (events[-1].stamp_ns - events[0].stamp_ns) / SECOND if events else 0.0
        raise DatasetError(
            f'no image to play in {dataset.name!r} {piece}: the run has {length:.1f} s, choose '
            'another run, start or duration'
        )
    return chosen


class Player:
    """
    Publish the messages of a run in time, spinning the node in between.

    Raises ConfigurationError where two topics were remapped to one.
    """

    def __init__(
        self,
        node: Node,
        dataset: Dataset,
        options: PlayerConfig,
        progress: Progress,
        stop: threading.Event,
    ) -> None:
        configuration.validate(options)
        self._node, self._dataset, self._options = node, dataset, options
        self._progress, self._stop = progress, stop
        self._events = schedule(dataset, options.start, options.duration)
        self._sent, self._left_out = Counter[str](), Counter[str](dataset.skipped)
        self._clock_ns = 0

        def create(kind: type[Any], topic: str, depth: int) -> Any:
            # reliable publishers serve best-effort subscribers too
            return listen(node, topic, partial(node.create_publisher, kind, topic, depth))

        self._odometry = create(Odometry, 'odom', 100)
        self._reference = create(PoseWithCovarianceStamped, 'reference_pose', 100)
        self._clock = create(Clock, '/clock', 1) if options.stamps == 'recorded' else None
        compressed = options.image_transport == 'compressed'
        kind, topic = (CompressedImage, 'image/compressed') if compressed else (Image, 'image')
        prefixes = [f'{camera}/' for camera in dataset.cameras] or ['']
        self._images = [create(kind, prefix + topic, 10) for prefix in prefixes]
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(node)

    def play(self) -> str:
        """Publish the run, over and over if asked to; say in one line what was sent."""
        started = time.monotonic()
        try:
            self._wait_for_subscribers()
            self._play_once()
            while self._options.loop and not self._stop.is_set():
                self._play_once()
            # reliable subscribers may still lack something
            end = time.monotonic() + 3.5
            for publisher in (*self._images, self._odometry):
                left = max(0.0, end - time.monotonic())
                publisher.wait_for_all_acked(Duration(seconds=left))
        finally:
            self._executor.remove_node(self._node)
            self._executor.shutdown()
        verb = 'stopped after' if self._stop.is_set() else 'published'
        sent = ', '.join(f'{count} {kind}' for kind, count in sorted(self._sent.items()))
        text = f'{verb} {sent} in {time.monotonic() - started:.1f} s'
        left_out = ', '.join(f'{count} {reason}' for reason, count in self._left_out.items())
        return f'{text}; left out: {left_out}' if left_out else text

    def _wait_for_subscribers(self) -> None:
        hinted = time.monotonic()
        while not self._stop.is_set():
            wanted = self._options.wait_for_subscribers
            publishers = (*self._images, self._odometry)
            missing = [p.topic_name for p in publishers if p.get_subscription_count() < wanted]
            if not missing:
                return
            if time.monotonic() - hinted > 2.0:
                hinted = time.monotonic()
                topics = ', '.join(missing)
                self._node.get_logger().info(f'waiting for subscribers on {topics}')
            self._spin_until(time.monotonic() + 0.05)

    def _play_once(self) -> None:
        first_ns = self._events[0].stamp_ns
        self._set_clock(first_ns)
        self._spin_until(time.monotonic() + 0.5)  # subscribers take their time from the clock
        started, per_second = time.monotonic(), self._options.rate * SECOND
        for done, event in enumerate(self._events, start=1):
            due = started + (event.stamp_ns - first_ns) / per_second
            # the clock is never behind what is sent, and goes on at 100 Hz
            while (now := time.monotonic()) < due and not self._stop.is_set():
                passed_ns = first_ns + round((now - started) * per_second)
                self._set_clock(max(self._clock_ns, passed_ns))
                self._spin_until(min(due, now + 0.01))
            if self._stop.is_set():
                return
            self._set_clock(max(self._clock_ns, event.stamp_ns))
            self._publish(event)
            self._progress(f'playing {self._dataset.name}', done, len(self._events))

    def _set_clock(self, stamp_ns: int) -> None:
        self._clock_ns = stamp_ns
        if self._clock is not None:
            self._clock.publish(Clock(clock=conversions.ns_to_stamp(stamp_ns)))

    def _spin_until(self, moment: float) -> None:
        while (left := moment - time.monotonic()) > 0.0 and not self._stop.is_set():
            self._executor.spin_once(timeout_sec=min(left, WAKE_SECONDS))

    def _publish(self, event: Event) -> None:
        stamp_ns = event.stamp_ns
        if self._options.stamps == 'now':
            stamp_ns = self._node.get_clock().now().nanoseconds
        if event.is_image:
            self._publish_frame(self._dataset[event.place], stamp_ns)
            return
        pose = self._dataset.odometry.poses[event.place]
        frames = (self._options.odom_frame_id, self._options.base_frame_id)
        self._odometry.publish(conversions.odometry_message(stamp_ns, pose, *frames))
        self._sent['odometry messages'] += 1

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
                self._left_out['broken image'] += 1
        if messages and frame.reference is not None:
            known = (stamp_ns, self._options.global_frame_id, frame.reference, 1e-6 * np.eye(3))
            self._reference.publish(conversions.pose_with_covariance(*known))
            self._sent['reference poses'] += 1
        for publisher, message in messages:
            publisher.publish(message)
            self._sent['images'] += 1

    def _image_message(self, image: Source, name: str, stamp_ns: int, frame_id: str) -> Any:
        if self._options.image_transport == 'raw':
            pixels = image() if callable(image) else image
            return conversions.image_message(pixels, stamp_ns, frame_id)
        return conversions.compressed_image_message(encoded_bytes(image, name), stamp_ns, frame_id)


def play(
    dataset: Dataset,
    options: PlayerConfig,
    progress: Progress = silent,
    ros_arguments: Sequence[str] = (),
) -> str:
    """
    Publish a run from an ordinary program; say in one line what was sent.

    `ros_arguments`: as on a command line after `--ros-args`, e.g. remappings. Raises DatasetError
    and ConfigurationError before anything is sent.
    """
    with ros_context(['--ros-args', *ros_arguments]) as stop:
        node = Node('player')
        try:
            return Player(node, dataset, options, progress, stop).play()
        finally:
            node.destroy_node()


def main(args: list[str] | None = None) -> int:
    """Run the player node."""
    return run_program(_run, args)


def _run(stop: threading.Event) -> None:
    node = ParameterNode('player', automatically_declare_parameters_from_overrides=True)
    try:
        options = declare(node, PlayerConfig)
        refuse_misspelt(node, fields(PlayerConfig))
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
