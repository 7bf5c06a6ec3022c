"""What the nodes say on /diagnostics once a second, and what is wrong with their inputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
import math
import time
from typing import Any, TYPE_CHECKING

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from kbr_localization.localization.localizer import contradiction, PoseEstimate
from kbr_localization.ros.parameters import ParameterNode
import numpy as np
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.node import Node

if TYPE_CHECKING:
    from kbr_localization.ros.inputs import Inputs
    from kbr_localization.ros.localization import Localization

STALE_SECONDS = 2.0
"""Without a message, after which an input is said to be missing."""
OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR
LEVELS = {'localized': OK, 'uncertain': WARN, 'not localized': ERROR, 'not on this map': ERROR}


@dataclass
class Topic:
    """
    Facts about one input topic, which is listened to since `last`.

    `remedy`: for messages of another type. `exclusive`: only one may publish. `sought`: which of
    all messages count. `lost`: messages that were sent but did not arrive. `publishers`,
    `other_types`: publishers of the expected type, and other types. `sibling`: topic on which
    images of the other `image_transport` come. `hint`: what is wrong, and the remedy, or nothing.
    """

    name: str
    type_name: str
    last: float
    remedy: str = 'remap the topic'
    exclusive: bool = False
    sought: str = ''
    subscription: Any = None
    count: int = 0
    lost: int = 0
    rate: float = 0.0
    publishers: int = 0
    other_types: str = ''
    sibling: str = ''
    stamp_ns: int | None = None
    repeated: int = 0
    silence: float = 0.0
    hint: str = ''
    _alone: float = -math.inf

    def __post_init__(self) -> None:
        self._history = deque([(self.last, 0, 0)], maxlen=11)

    def saw(self, stamp_ns: int, now: float) -> None:
        """Count a message."""
        self.count += 1
        self.last = now
        self.repeated = self.repeated + 1 if stamp_ns == self.stamp_ns else 0
        self.stamp_ns = stamp_ns

    def measure(self, now: float, timeout: float, clock_ns: int) -> None:
        """Update what holds of the last ten seconds and of now; once a second."""
        then, count, lost = self._history[0]
        self._history.append((now, self.count, self.lost))
        recent = self.count - count
        sent = recent + self.lost - lost
        self.rate = recent / max(now - then, 1e-3)
        self.silence = now - self.last
        ahead = (self.stamp_ns - clock_ns) * 1e-9 if self.stamp_ns and clock_ns else 0.0
        if not self.exclusive or self.publishers < 2 or self._alone < 0.0:
            self._alone = now
        self.hint = ''
        # Fast DDS may count to the end of its numbers
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
        elif now - self._alone >= 30.0:  # DDS may show a killed process that long
            self.hint = (
                f'{self.name}: {self.publishers} publishers, of which only one may send: stop all '
                'but one, or remap the topic'
            )

    def _why_silent(self) -> str:
        if self.other_types:
            return f'published as {self.other_types}, expected {self.type_name}: {self.remedy}'
        if not self.publishers:
            other = f', but {self.sibling} has one: set image_transport' if self.sibling else ''
            return 'publisher count 0' + (other or ': start the sender, or remap the topic')
        remedy = ': check the sender; for raw images also the DDS buffers (config/fastdds.xml)'
        sought = f' {self.sought}' if self.sought else remedy
        return f'{self.publishers} publishers, none sends{sought}'


def diagnose(
    inputs: Inputs, awaits_motion: str = '', contradiction: str = '', rival: str = ''
) -> list[str]:
    """
    Return one line, with the remedy, for each thing that is wrong with the inputs of a node.

    `awaits_motion`: what waits for the robot to move. `contradiction`: of images and odometry.
    `rival`: a transform that another node broadcasts too.
    """
    source, image, lead = inputs.odometry, inputs.image.name, inputs.lead
    odometry, frame = source.topic.name, inputs.config.odom_frame_id
    looks = inputs.image.silence <= STALE_SECONDS
    rules: tuple[tuple[Any, str], ...] = (
        *((topic.hint, topic.hint) for topic in inputs.topics),
        (
            inputs.silent_cameras,
            f'no images of {inputs.silent_cameras}: going on with {inputs.other_cameras} alone',
        ),
        (
            inputs.unmatched,
            f'no images of {inputs.other_cameras} at one time: synchronise the cameras, or raise '
            'sync_tolerance',
        ),
        (
            source.unused >= 3,
            f'{odometry}: none of the last {source.unused} messages could be used: '
            f'{source.why_unused}',
        ),
        (
            source.parent != frame,
            f'{odometry} comes in frame {source.parent!r}, but odom_frame_id is {frame!r}: set '
            'one of them, or the transform leads nowhere',
        ),
        (
            awaits_motion and source.still >= 10.0 and looks,
            f'{odometry}: the pose has stood still for {source.still:.0f} s, and {awaits_motion}: '
            'drive on, or see whether the base driver reads the wheels and fills the pose, not '
            'only the twist',
        ),
        (contradiction, f'{odometry}: {contradiction}'),
        (
            # odometry takes up to 0.1 s; exposure, readout, buffers, JPEG, network up to 0.7 s
            not -0.8 <= lead <= 0.5,
            f'stamps of {image} minus those of {odometry} as both arrive: {lead:+.1f} s, expected '
            '-0.8 to 0.5 s: their clocks differ, or images come that late: an image is paired '
            'with the odometry of its stamp, so set the clocks by each other (chrony), or see how '
            'the drivers stamp',
        ),
        (
            source.off_tf > 0.3,
            f'{odometry} is {source.off_tf:.1f} m or rad off {source.sought} on TF: set '
            'odom_source to tf',
        ),
        (
            rival,
            f'somebody else also sends the transform {rival}: stop it (AMCL, SLAM, a static '
            'publisher), or set tf_broadcast to false here',
        ),
    )
    return [text for holds, text in rules if holds]


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


def input_status(
    node: Node, inputs: Inputs, hints: list[str], others: Mapping[str, int]
) -> DiagnosticStatus:
    """Status of the inputs: rates, what is wrong, and counts of what was dropped, by reason."""
    dropped, values = inputs.dropped, dict[str, Any]()
    for topic in inputs.topics:
        values[f'{topic.name} [Hz]'] = topic.rate
        values[f'{topic.name} messages'] = topic.count
        values[f'{topic.name} lost'] = topic.lost
        values[f'{topic.name} publishers'] = topic.publishers
    values |= {f'images dropped: {reason}': count for reason, count in dropped.items()}
    values |= {
        f'odometry: {reason}': count for reason, count in inputs.session.odometry_counts.items()
    }
    values |= {'images dropped': sum(dropped.values()), **others}
    rates = ', '.join(f'{topic.name} {topic.rate:.1f} Hz' for topic in inputs.topics)
    return status(node, 'input', WARN if hints else OK, '; '.join(hints) or rates, values)


class Reporter:
    """Diagnostics of an active localization; the log says when there is no pose."""

    def __init__(self, node: ParameterNode, localization: Localization) -> None:
        self._node, self._localization = node, localization
        self._started = time.monotonic()
        self.destroy = StatusPublisher(node, self._report).destroy

    def _report(self) -> list[DiagnosticStatus]:
        now, parts = time.monotonic(), self._localization
        session, inputs, growing = parts.session, parts.inputs, parts.growing
        inputs.measure(now)
        last = session.last
        lost = last is not None and not last.estimate.localized
        wrong = last is not None and last.estimate.diagnostics.get('odometry_wrong', 0.0) > 0.5
        hints = diagnose(
            inputs,
            'one view does not tell where' if lost else '',
            contradiction(stands=inputs.odometry.still > 1.0) if wrong else '',
            parts.transforms.rival,
        )
        missing = self._missing(now)
        # whoever is started together with the node takes as long as it does
        if missing and now - self._started >= parts.settings.config.no_data_timeout:
            self._node.log('warning', f'no pose: {missing}')
        for hint in hints:
            self._node.log('warning', hint)
        unusable, count = '', session.unused
        if count >= 3:
            why, name = session.tracker.last_error or 'see the log', inputs.image.name
            unusable = f'{name}: none of the last {count} images could be used: {why}'
            hints.append(unusable)  # each kind of image is in the log already
        used = {'images answered': session.answered, 'images used': session.used}
        held, failure = growing.facts(), growing.failure
        text = f'{held["map"]}: {held["images"]} images' + (f', but: {failure}' if failure else '')
        return [
            self._localization_status(missing or unusable),
            input_status(self._node, inputs, hints, used),
            self._load_status(),
            status(self._node, 'map', WARN if failure else OK, text, held),
        ]

    def _missing(self, now: float) -> str:
        """Say what keeps the node from giving a pose right now, or nothing."""
        session, inputs = self._localization.session, self._localization.inputs
        image, odometry = inputs.image, inputs.odometry.topic
        last = session.last  # the worker may take it away
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
        """Status of the pose; `missing`: what there is no current pose without."""
        last = self._localization.session.last
        if last is None or not last.is_known:
            text = f'Not localized: {missing or "no image has said where"}'
            return status(self._node, 'localization', ERROR, text, {})
        estimate: PoseEstimate = last.estimate
        sd = np.sqrt(np.diag(estimate.covariance)).tolist()
        values = {'confidence': estimate.confidence, **estimate.diagnostics}
        values |= dict(zip(('sd x [m]', 'sd y [m]', 'sd heading [rad]'), sd, strict=True))
        clock_ns = self._node.get_clock().now().nanoseconds
        values['age of the pose [s]'] = (clock_ns - last.stamp_ns) * 1e-9
        text, level = estimate.status.capitalize(), LEVELS[estimate.status]
        if missing:
            text, level = f'{text}, but: {missing}', DiagnosticStatus.STALE
        elif not estimate.localized:
            told = estimate.diagnostics.items()
            why = ', '.join(f'{k} {v:.3g}' for k, v in told if not k.startswith('odometry_'))
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
