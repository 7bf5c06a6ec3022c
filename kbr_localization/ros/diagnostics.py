"""What the nodes say about themselves on /diagnostics once a second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
import time
from typing import Any, TYPE_CHECKING

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from kbr_localization.localization.localizer import PoseEstimate
from kbr_localization.ros.rules import Debounce, diagnose, Facts, STALE_SECONDS, Topic, Unused
from kbr_localization.ros.running import Durations, NodeLogger
import numpy as np
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.node import Node

if TYPE_CHECKING:
    from kbr_localization.ros.localization import Localization

OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR
LEVELS = {
    'localized': OK,
    'uncertain': WARN,
    'not localized': ERROR,
    'not on this map': ERROR,
}


class StatusPublisher:
    """Call `report` once a second of steady time, which a missing /clock does not stop."""

    def __init__(self, node: Node, report: Callable[[], list[DiagnosticStatus]]) -> None:
        self._node, self._report = node, report
        self._publisher = node.create_publisher(DiagnosticArray, '/diagnostics', 10)
        self._timer = node.create_timer(
            1.0, self._publish, clock=Clock(clock_type=ClockType.STEADY_TIME)
        )

    def destroy(self) -> None:
        """Stop reporting."""
        self._node.destroy_timer(self._timer)
        self._node.destroy_publisher(self._publisher)

    def _publish(self) -> None:
        message = DiagnosticArray(status=self._report())
        message.header.stamp = self._node.get_clock().now().to_msg()
        self._publisher.publish(message)


def status(
    node: Node, part: str, level: bytes, message: str, values: Mapping[str, Any]
) -> DiagnosticStatus:
    """Make a status of a part of a node; numbers are written with six digits."""
    label = node.get_fully_qualified_name().lstrip('/')
    texts = {k: f'{v:.6g}' if isinstance(v, float) else str(v) for k, v in values.items()}
    return DiagnosticStatus(
        level=level,
        name=f'{label}: {part}',
        message=message,
        hardware_id=label,
        values=[KeyValue(key=key, value=text) for key, text in texts.items()],
    )


def localization_status(
    node: Node, estimate: PoseEstimate | None, missing: str, age: float | None
) -> DiagnosticStatus:
    """
    Status of the pose: Localized, Uncertain, Not localized or Not on this map, and why.

    `missing`: what there is no current pose without. `age`: of the pose in seconds.
    """
    if estimate is None:
        text = f'Not localized: {missing or "no image has said where"}'
        return status(node, 'localization', ERROR, text, {})
    sd = np.sqrt(np.diag(estimate.covariance)).tolist()
    values = {'confidence': estimate.confidence, **estimate.diagnostics}
    values |= dict(zip(('sd x [m]', 'sd y [m]', 'sd heading [rad]'), sd, strict=True))
    if age is not None:
        values['age of the pose [s]'] = age
    text = estimate.status.capitalize()
    if missing:
        return status(
            node, 'localization', DiagnosticStatus.STALE, f'{text}, but: {missing}', values
        )
    if estimate.status != 'localized':
        told = estimate.diagnostics.items()
        text += ': ' + ', '.join(f'{k} {v:.3g}' for k, v in told if not k.startswith('odometry_'))
    return status(node, 'localization', LEVELS[estimate.status], text, values)


def input_status(
    node: Node,
    topics: list[Topic],
    hints: list[str],
    dropped: Counter[str],
    odometry: Counter[str],
    others: Mapping[str, int],
) -> DiagnosticStatus:
    """Status of the inputs: rates, what is wrong, and counts of what was dropped, by reason."""
    values: dict[str, Any] = {}
    for topic in topics:
        values[f'{topic.name} [Hz]'] = topic.rate
        values[f'{topic.name} messages'] = topic.count
        values[f'{topic.name} lost'] = topic.lost
        values[f'{topic.name} publishers'] = topic.publishers
    values |= {f'images dropped: {reason}': count for reason, count in dropped.items()}
    values |= {f'odometry: {reason}': count for reason, count in odometry.items()}
    values |= {'images dropped': sum(dropped.values()), **others}
    rates = ', '.join(f'{topic.name} {topic.rate:.1f} Hz' for topic in topics)
    return status(node, 'input', WARN if hints else OK, '; '.join(hints) or rates, values)


class Reporter:
    """Diagnostics of an active localization; without a pose a warning every two seconds."""

    def __init__(self, node: Node, localization: Localization, log: NodeLogger) -> None:
        self._node, self._localization, self._log = node, localization, log
        self._unused, self._namesake = Unused(), Debounce()
        self._started = time.monotonic()
        self._publisher = StatusPublisher(node, self._report)
        self.destroy = self._publisher.destroy

    def _report(self) -> list[DiagnosticStatus]:
        now, parts = time.monotonic(), self._localization
        session, inputs = parts.session, parts.inputs
        facts = self._facts(now)
        hints, missing = diagnose(facts, inputs.topics), self._missing(now, facts)
        unusable = self._unusable(facts.image.name)
        # whoever is started together with the node takes as long as it does
        if missing and now - self._started >= parts.settings.config.no_data_timeout:
            self._log('warning', f'no pose: {missing}', 1.9)
        for hint in hints:
            self._log('warning', hint)
        # each kind of unusable image is in the log already
        hints += [unusable] if unusable else []
        last, map_facts = session.last, parts.growing.facts()
        estimate = None if last is None or not last.is_known else last.estimate
        clock_ns = self._node.get_clock().now().nanoseconds
        age = None if last is None else (clock_ns - last.stamp_ns) * 1e-9
        failure, text = parts.growing.failure, '{map}: {images} images'.format(**map_facts)
        return [
            localization_status(self._node, estimate, missing or unusable, age),
            input_status(
                self._node,
                inputs.topics,
                hints,
                session.dropped + inputs.dropped,
                session.odometry_counts,
                {'images answered': session.answered, 'images used': session.used},
            ),
            self._load_status(),
            status(
                self._node,
                'map',
                WARN if failure else OK,
                f'{text}, but: {failure}' if failure else text,
                map_facts,
            ),
        ]

    def _facts(self, now: float) -> Facts:
        parts, session = self._localization, self._localization.session
        facts = parts.inputs.facts(now)
        facts.not_localized = session.last is not None and not session.last.estimate.localized
        facts.rival = parts.outputs.transforms.has_rival
        here = (self._node.get_name(), self._node.get_namespace())
        count = self._node.get_node_names_and_namespaces().count(here)
        facts.namesake = self._namesake(count > 1, now)
        return facts

    def _missing(self, now: float, facts: Facts) -> str:
        """Say what keeps the node from giving a pose right now, or nothing."""
        image, odometry, session = facts.image, facts.odometry, self._localization.session
        missing = [
            f'nothing on {topic.name} for {topic.silence:.0f} s'
            for topic in (image, odometry)
            if topic.count == 0 or topic.silence > STALE_SECONDS
        ]
        if self._node.get_clock().now().nanoseconds == 0:
            missing.append('use_sim_time is set but nothing comes on /clock')
        if missing:
            return ', '.join(missing)
        if session.needs_initial_pose:
            topic = self._node.resolve_topic_name('initialpose')
            service = self._node.resolve_service_name('reinitialize_global_localization')
            return f'no initial pose: publish one on {topic}, or call {service}'
        if session.last is None:
            return f'{image.name} and {odometry.name} come in, but no image could be used yet'
        age = now - session.last.image.received
        if age > STALE_SECONDS:
            return f'no image on {image.name} could be used for {age:.0f} s'
        return ''

    def _unusable(self, topic: str) -> str:
        """Return why none of the last images could be used; empty if one could."""
        session = self._localization.session
        refused = session.dropped['broken image'] + session.dropped['unusable image']
        count = self._unused(session.used, refused)
        why = session.tracker.last_error or 'see the log'
        return f'{topic}: none of the last {count} images could be used: {why}' if count else ''

    def _load_status(self) -> DiagnosticStatus:
        outputs = self._localization.outputs
        durations: dict[str, Durations] = {
            'processing': outputs.processing,
            'latency': outputs.latency,
            'callbacks': self._localization.callback_durations,
        }
        found = {kind: values.milliseconds() for kind, values in durations.items()}
        values: dict[str, Any] = {'images waiting': len(self._localization.session.feed.queue)}
        for kind, times in found.items():
            values |= {f'{kind} {what} [ms]': value for what, value in times.items()}
        text = ', '.join(f'{kind} {times["p95"]:.0f} ms' for kind, times in found.items() if times)
        text = f'95% within: {text}' if text else 'no work yet'
        return status(self._node, 'load', OK, text, values)
