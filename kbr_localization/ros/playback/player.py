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

from kbr_localization.configuration import parameter
from kbr_localization.datasets import Dataset, open_dataset
from kbr_localization.errors import ConfigurationError
from kbr_localization.files import expanded
from kbr_localization.progress import Progress, silent, terminal_progress
from kbr_localization.ros.common.running import ros_context, run_node, WAKE_SECONDS
from kbr_localization.ros.parameters import parameters
from kbr_localization.ros.playback.run_publisher import RunPublisher
from kbr_localization.ros.playback.schedule import Event, NANOSECONDS, PlayerOptions, schedule
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

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
    cameras: tuple[str, ...] = parameter(
        (), 'cameras to play, by folders of a COLD run or topics of a bag, if there are several'
    )


def main(args: list[str] | None = None) -> int:
    """Run the player node."""
    return run_node(_play_from_parameters, args)


def _play_from_parameters(stop: threading.Event) -> None:
    node = parameters.ParameterNode('player', automatically_declare_parameters_from_overrides=True)
    try:
        options = parameters.declare(node, PlayerParameters)
        parameters.refuse_unknown(node, parameters.fields(PlayerParameters))
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
