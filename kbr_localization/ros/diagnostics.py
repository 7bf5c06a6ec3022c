"""Diagnostics of the nodes, published once a second, and hints at problems of the inputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
import math
import time
from typing import Any, TYPE_CHECKING

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from kbr_localization.localization.localizer import contradiction
from kbr_localization.ros.parameters import ParameterNode
import numpy as np
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.node import Node

if TYPE_CHECKING:
    from kbr_localization.ros.inputs import Inputs
    from kbr_localization.ros.localization import Localization

STALE_SECONDS = 2.0
"""Time without a message after which an input is reported as missing."""
OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR
LEVELS = {'localized': OK, 'uncertain': WARN, 'not localized': ERROR, 'not on this map': ERROR}


@dataclass
class TopicMonitor:
    """
    The state of one input topic.

    `received`: monotonic time of the last message, or else of the subscription. `type_remedy`:
    what to do if the topic has another type. `exclusive`: whether only one node may publish.
    `wanted`: which messages count, on a topic that has others too. `lost`: messages that were sent
    but did not arrive. `publishers`: number with the expected type; `other_types`: other types.
    `other_transport`: topic of images for the other `image_transport`, if published. `repeated`:
    messages since the stamp last changed. `silence`: seconds since the last message. `hint`: the
    problem with its remedy, or ''.
    """

    name: str
    type_name: str
    received: float
    type_remedy: str = 'remap the topic'
    exclusive: bool = False
    wanted: str = ''
    subscription: Any = None
    count: int = 0
    lost: int = 0
    rate: float = 0.0
    publishers: int = 0
    other_types: str = ''
    other_transport: str = ''
    stamp_ns: int | None = None
    repeated: int = 0
    silence: float = 0.0
    hint: str = ''
    _last_single: float = -math.inf

    def __post_init__(self) -> None:
        self._history = deque([(self.received, 0, 0)], maxlen=11)

    def add_message(self, stamp_ns: int, now: float) -> None:
        self.count += 1
        self.received = now
        self.repeated = self.repeated + 1 if stamp_ns == self.stamp_ns else 0
        self.stamp_ns = stamp_ns

    def update(self, now: float, timeout: float, clock_ns: int) -> None:
        """
        Update `rate` (of the last ten seconds), `silence` and `hint`; call it once a second.

        `now`: monotonic time in seconds. `timeout`: seconds of silence before a hint. `clock_ns`:
        ROS time of this node, 0 without a clock.
        """
        then, count, lost = self._history[0]
        self._history.append((now, self.count, self.lost))
        recent = self.count - count
        sent = recent + self.lost - lost
        self.rate = recent / max(now - then, 1e-3)
        self.silence = now - self.received
        ahead = (self.stamp_ns - clock_ns) * 1e-9 if self.stamp_ns and clock_ns else 0.0
        if not self.exclusive or self.publishers < 2 or self._last_single < 0.0:
            self._last_single = now
        self.hint = ''
        # Fast DDS sometimes reports a loss of 2**31
        if 5 <= sent - recent <= 1_000_000 and recent <= 0.9 * sent:
            self.hint = (
                f'{self.name}: {recent} of {sent} messages arrive, the others are lost on the '
                'way: set the Fast DDS profile (config/fastdds.xml) for the sender too, or send '
                'compressed images'
            )
        elif self.silence >= timeout:
            self.hint = f'no data for {self.silence:.0f} s on {self.name}: {self._why_silent()}'
        elif self.repeated >= 5:
            self.hint = (
                f'{self.name}: the stamps do not advance: fill header.stamp, or restart the sender'
            )
        elif abs(ahead) >= 10.0:
            self.hint = (
                f'{self.name}: stamps minus the clock of this node: {ahead:+.0f} s: check '
                'use_sim_time here and at the sender'
            )
        elif now - self._last_single >= 30.0:  # DDS may list a killed process that long
            self.hint = (
                f'{self.name}: {self.publishers} publishers, of which only one may send: stop all '
                'but one, or remap the topic'
            )

    def _why_silent(self) -> str:
        if self.other_types:
            return (
                f'published as {self.other_types}, expected {self.type_name}: {self.type_remedy}'
            )
        if not self.publishers:
            if self.other_transport:
                return (
                    f'publisher count 0, but {self.other_transport} has one: set image_transport'
                )
            return 'publisher count 0: start the sender, or remap the topic'
        if self.wanted:
            return f'{self.publishers} publishers, none sends {self.wanted}'
        remedy = 'check the sender; for raw images also the DDS buffers (config/fastdds.xml)'
        return f'{self.publishers} publishers, none sends: {remedy}'


def diagnose(
    inputs: Inputs, awaits_motion: str = '', contradiction: str = '', rival: str = ''
) -> list[str]:
    """
    Return one line for each problem of a node's inputs, with its remedy.

    `awaits_motion`: why the robot must move, or ''. `contradiction`: how images contradict the
    odometry. `rival`: the node's transform, if another node broadcasts it too.
    """
    source, image, lead = inputs.odometry, inputs.image.name, inputs.lead
    odometry, frame = source.topic.name, inputs.config.odom_frame_id
    images_arrive = inputs.image.silence <= STALE_SECONDS
    rules: tuple[tuple[Any, str], ...] = (
        *((topic.hint, topic.hint) for topic in inputs.topics),
        (
            inputs.silent_cameras,
            f'no images of {inputs.silent_cameras}: using {inputs.other_cameras} alone',
        ),
        (
            source.unused >= 3,
            f'{odometry}: none of the last {source.unused} messages could be used: '
            f'{source.why_unused}',
        ),
        (
            source.parent != frame,
            f'{odometry} comes in frame {source.parent!r}, but odom_frame_id is {frame!r}: set '
            'one of them, or else the transform is disconnected',
        ),
        (
            awaits_motion and source.still >= 10.0 and images_arrive,
            f'{odometry}: the pose has stood still for {source.still:.0f} s, and {awaits_motion}: '
            'drive on, or check that the base driver reads the wheels and fills the pose, not '
            'only the twist',
        ),
        (contradiction, f'{odometry}: {contradiction}'),
        (
            # odometry is up to 0.1 s late, an image up to 0.7 s (exposure, readout, JPEG, network)
            not -0.8 <= lead <= 0.5,
            f'stamps of {image} minus those of {odometry} as both arrive: {lead:+.1f} s, expected '
            '-0.8 to 0.5 s: the clocks differ, or images arrive late. An image is paired with the '
            'odometry of its stamp: synchronise the clocks (chrony), or check the stamps of the '
            'drivers',
        ),
        (
            source.off_tf > 0.3,
            f'{odometry} is {source.off_tf:.1f} m or rad off {source.wanted} on TF: set '
            'odom_source to tf',
        ),
        (
            rival,
            f'another node also sends the transform {rival}: stop it (AMCL, SLAM, a static '
            'publisher), or set tf_broadcast to false here',
        ),
    )
    return [text for holds, text in rules if holds]


class StatusPublisher:
    """Publish what `report` returns once a second, by a steady clock: /clock may be missing."""

    def __init__(self, node: Node, report: Callable[[], list[DiagnosticStatus]]) -> None:
        self._node, self._report = node, report
        self._publisher = node.create_publisher(DiagnosticArray, '/diagnostics', 10)
        self._timer = node.create_timer(
            1.0, self._publish, clock=Clock(clock_type=ClockType.STEADY_TIME)
        )

    def destroy(self) -> None:
        self._node.destroy_timer(self._timer)
        self._node.destroy_publisher(self._publisher)

    def _publish(self) -> None:
        message = DiagnosticArray(status=self._report())
        message.header.stamp = self._node.get_clock().now().to_msg()
        self._publisher.publish(message)


def status(
    node: Node, part: str, level: bytes, message: str, values: Mapping[str, Any]
) -> DiagnosticStatus:
    """Return the status of a part of a node; floats are written with six digits."""
    label = node.get_fully_qualified_name().lstrip('/')
    texts = {k: f'{v:.6g}' if isinstance(v, float) else str(v) for k, v in values.items()}
    return DiagnosticStatus(
        level=level,
        name=f'{label}: {part}',
        message=message,
        hardware_id=label,
        values=[KeyValue(key=key, value=text) for key, text in texts.items()],
    )


def input_status(
    node: Node, inputs: Inputs, hints: list[str], counts: Mapping[str, int]
) -> DiagnosticStatus:
    """Return the status of the inputs: rates, hints, what was dropped by reason, more counts."""
    dropped, values = inputs.dropped, dict[str, Any]()
    for topic in inputs.topics:
        values[f'{topic.name} [Hz]'] = topic.rate
        values[f'{topic.name} messages'] = topic.count
        values[f'{topic.name} lost'] = topic.lost
        values[f'{topic.name} publishers'] = topic.publishers
    values |= {f'images dropped: {reason}': count for reason, count in dropped.items()}
    values |= {
        f'odometry: {reason}': count for reason, count in inputs.worker.odometry_counts.items()
    }
    values |= {'images dropped': sum(dropped.values()), **counts}
    rates = ', '.join(f'{topic.name} {topic.rate:.1f} Hz' for topic in inputs.topics)
    return status(node, 'input', WARN if hints else OK, '; '.join(hints) or rates, values)


class Reporter:
    """Publish and log the diagnostics of an active localization."""

    def __init__(self, node: ParameterNode, localization: Localization) -> None:
        self._node, self._localization = node, localization
        self._started = time.monotonic()
        self.destroy = StatusPublisher(node, self._report).destroy

    def _report(self) -> list[DiagnosticStatus]:
        now, parts = time.monotonic(), self._localization
        session, inputs, growing = parts.session, parts.inputs, parts.growing
        inputs.update(now)
        last = session.last
        lost = last is not None and not last.estimate.localized
        wrong = last is not None and last.estimate.diagnostics.get('odometry_wrong', 0.0) > 0.5
        hints = diagnose(
            inputs,
            'one view does not determine the pose' if lost else '',
            contradiction(stands=inputs.odometry.still > 1.0) if wrong else '',
            parts.transforms.rival,
        )
        missing = self._missing(now)
        # drivers that are started together with the node need time as well
        if missing and now - self._started >= parts.settings.config.no_data_timeout:
            self._node.log('warning', f'no pose: {missing}')
        for hint in hints:
            self._node.log('warning', hint)
        unusable, count = '', session.unused
        if count >= 3:
            why, name = session.tracker.last_error or 'see the log', inputs.image.name
            unusable = f'{name}: none of the last {count} images could be used: {why}'
            hints.append(unusable)  # not logged here, as the session logs each error
        used = {'images answered': session.answered, 'images used': session.used}
        values, failure = growing.status_values(), growing.failure
        text = f'{values["map"]}: {values["images"]} images'
        text += f', but: {failure}' if failure else ''
        return [
            self._localization_status(missing or unusable),
            input_status(self._node, inputs, hints, used),
            self._load_status(),
            status(self._node, 'map', WARN if failure else OK, text, values),
        ]

    def _missing(self, now: float) -> str:
        """Return why there is no current pose, or ''."""
        session, inputs = self._localization.session, self._localization.inputs
        image, odometry = inputs.image, inputs.odometry.topic
        last = session.last  # the worker may change it
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
        if last is None:
            return f'{image.name} and {odometry.name} come in, but no image could be used yet'
        age = now - last.image.received
        return f'no image on {image.name} could be used for {age:.0f} s' * (age > STALE_SECONDS)

    def _localization_status(self, missing: str) -> DiagnosticStatus:
        """Return the status of the pose; `missing`: why there is no current one."""
        last = self._localization.session.last
        if last is None or not last.is_known:
            text = f'Not localized: {missing or "no image has shown the place yet"}'
            return status(self._node, 'localization', ERROR, text, {})
        estimate = last.estimate
        sd = np.sqrt(np.diag(estimate.covariance)).tolist()
        values = {'confidence': estimate.confidence, **estimate.diagnostics}
        values |= dict(zip(('sd x [m]', 'sd y [m]', 'sd heading [rad]'), sd, strict=True))
        clock_ns = self._node.get_clock().now().nanoseconds
        values['age of the pose [s]'] = (clock_ns - last.stamp_ns) * 1e-9
        text, level = estimate.status.capitalize(), LEVELS[estimate.status]
        if missing:
            text, level = f'{text}, but: {missing}', DiagnosticStatus.STALE
        elif not estimate.localized:
            reasons = estimate.diagnostics.items()
            why = ', '.join(f'{k} {v:.3g}' for k, v in reasons if not k.startswith('odometry_'))
            text = f'{text}: {why}'
        return status(self._node, 'localization', level, text, values)

    def _load_status(self) -> DiagnosticStatus:
        outputs, queue = self._localization.outputs, self._localization.session.queue
        values: dict[str, Any] = {'images waiting': len(queue)}
        within = []
        for kind, seconds in (('processing', outputs.processing), ('latency', outputs.latency)):
            if seconds:
                p50, p95, most = 1e3 * np.percentile(seconds, [50, 95, 100])
                values |= {f'{kind} p50 [ms]': p50, f'{kind} p95 [ms]': p95}
                values[f'{kind} max [ms]'] = most
                within.append(f'{kind} {p95:.0f} ms')
        text = f'95% within: {", ".join(within)}' if within else 'no work yet'
        return status(self._node, 'load', OK, text, values)
