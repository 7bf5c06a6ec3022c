"""Diagnostics once a second, and a warning every two seconds while something is missing."""

from __future__ import annotations

from collections.abc import Callable
import time

from diagnostic_msgs.msg import DiagnosticArray
from kbr_localization.ros.common import diagnostics
from kbr_localization.ros.common.hints import Lasting, STALE_SECONDS, stood_still, Useless
from kbr_localization.ros.common.node_logger import NodeLogger
from kbr_localization.ros.common.running import TimedExecutor
from kbr_localization.ros.inputs.inputs import Inputs
from kbr_localization.ros.maps.map_keeper import MapKeeper
from kbr_localization.ros.node.outputs import Outputs
from kbr_localization.ros.parameters.node_config import NodeConfig
from kbr_localization.ros.session.session import Session
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.node import Node

PERIOD = 1.0
MISSING_PERIOD = 1.9  # with reports once a second: every two seconds


class Reporter:
    """Watch the session, the inputs and the outputs of an active node."""

    def __init__(
        self,
        node: Node,
        config: Callable[[], NodeConfig],
        session: Session,
        inputs: Inputs,
        outputs: Outputs,
        keeper: MapKeeper,
        log: NodeLogger,
    ) -> None:
        self._node, self._config, self._session = node, config, session
        self._inputs, self._outputs, self._log = inputs, outputs, log
        self._keeper, self._namesakes = keeper, Lasting()
        self._useless = Useless()
        self._publisher = node.create_publisher(DiagnosticArray, '/diagnostics', 10)
        # steady time: a missing /clock must not silence what reports it
        self._timer = node.create_timer(
            PERIOD, self.report, clock=Clock(clock_type=ClockType.STEADY_TIME)
        )

    def destroy(self) -> None:
        """Stop reporting."""
        self._node.destroy_timer(self._timer)
        self._node.destroy_publisher(self._publisher)

    def report(self) -> None:
        """Publish diagnostics and warn of what is missing."""
        now = time.monotonic()
        self._inputs.look_around()
        for watch in self._inputs.watches:
            watch.measure(now)
        hints, missing = self._hints(now), self._missing(now)
        if missing:
            self._log('warning', f'no pose: {missing}', MISSING_PERIOD)
        for hint in hints:
            self._log('warning', hint)
        self._publish(hints, missing)

    def _hints(self, now: float) -> list[str]:
        clock_ns = self._node.get_clock().now().nanoseconds
        timeout = self._config().no_data_timeout
        hints = [watch.hint(now, timeout, clock_ns) for watch in self._inputs.watches]
        hints += self._inputs.hints(now)
        hints.append(self._useless_hint())
        hints.append(self._standstill_hint(now))
        hints.append(self._rival_hint())
        hints.append(self._namesake_hint(now))
        return [hint for hint in hints if hint]

    def _useless_hint(self) -> str:
        dropped = self._session.dropped
        unusable = dropped['broken image'] + dropped['unusable image']
        self._useless.look(self._session.used, unusable)
        why = self._session.tracking.tracker.last_error
        return self._useless.hint(self._inputs.image.topic, 'images', why)

    def _standstill_hint(self, now: float) -> str:
        last, inputs = self._session.last, self._inputs
        if last is None or last.estimate.localized:
            return ''
        return stood_still(inputs.image, inputs.odometry, inputs.standstill, now)

    def _rival_hint(self) -> str:
        config, rivals = self._config(), self._outputs.rivals
        if rivals is None or not config.tf_broadcast:
            return ''
        rivals.tick()
        if not rivals.found:
            return ''
        return (
            f'somebody else also sends the transform {config.global_frame_id} to '
            f'{config.odom_frame_id}: stop it (AMCL, SLAM, a static publisher), '
            'or set tf_broadcast to false here'
        )

    def _namesake_hint(self, now: float) -> str:
        name, namespace = self._node.get_name(), self._node.get_namespace()
        nodes = self._node.get_node_names_and_namespaces()
        if not self._namesakes.look(nodes.count((name, namespace)) > 1, now):
            return ''
        return (
            f'another node is called {self._node.get_fully_qualified_name()} too: '
            'end the one that was left running, or give each a namespace'
        )

    def _missing(self, now: float) -> str:
        """Say what keeps the node from giving a pose right now, or nothing."""
        image, odometry = self._inputs.image, self._inputs.odometry
        silent = [
            f'nothing on {watch.topic} for {watch.silence(now):.0f} s'
            for watch in (image, odometry)
            if watch.count == 0 or watch.silence(now) > STALE_SECONDS
        ]
        if self._node.get_clock().now().nanoseconds == 0:
            silent.append('use_sim_time is set but nothing comes on /clock')
        if silent:
            return ', '.join(silent)
        session, poses = self._session, self._session.initial_poses
        if not (session.tracking.has_belief or poses.sources.globally or poses.is_given):
            initialpose = self._node.resolve_topic_name('initialpose')
            service = self._node.resolve_service_name('reinitialize_global_localization')
            return f'no initial pose: publish one on {initialpose}, or call {service}'
        last = self._session.last
        if last is None:
            return f'{image.topic} and {odometry.topic} come in, but no image could be used yet'
        if now - last.image.received > STALE_SECONDS:
            age = now - last.image.received
            return f'no image on {image.topic} could be used for {age:.0f} s'
        return ''

    def _publish(self, hints: list[str], missing: str) -> None:
        name, session = diagnostics.node_label(self._node), self._session
        last = session.last
        clock = self._node.get_clock().now()
        estimate = None if last is None or not last.is_known else last.estimate
        age = None if last is None else (clock.nanoseconds - last.stamp_ns) * 1e-9
        message = DiagnosticArray()
        message.header.stamp = clock.to_msg()
        message.status = [
            diagnostics.localization_status(f'{name}: localization', estimate, missing, age),
            diagnostics.input_status(
                f'{name}: input',
                self._inputs.watches,
                hints,
                session.dropped + self._inputs.cameras.dropped,
                session.odometry_counts,
                {'images answered': session.answered, 'images used': session.used},
            ),
            diagnostics.load_status(f'{name}: load', self._durations(), len(session.feed.queue)),
            diagnostics.map_status(f'{name}: map', self._keeper.facts(), self._keeper.failure),
        ]
        self._publisher.publish(message)

    def _durations(self) -> dict[str, diagnostics.Latencies]:
        found = {'processing': self._outputs.processing, 'latency': self._outputs.latency}
        executor = self._node.executor
        if isinstance(executor, TimedExecutor):
            found['callbacks'] = executor.durations
        return found
