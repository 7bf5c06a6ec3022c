"""What the node says about itself on /diagnostics."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from kbr_localization.localization.localizer import PoseEstimate
from kbr_localization.ros.common.hints import InputWatch
import numpy as np
from rclpy.node import Node

LEVELS = {
    'localized': DiagnosticStatus.OK,
    'uncertain': DiagnosticStatus.WARN,
    'not localized': DiagnosticStatus.ERROR,
    'not on this map': DiagnosticStatus.ERROR,
}


class Latencies:
    """The last durations of one kind, in seconds."""

    def __init__(self, size: int = 300) -> None:
        self._values: deque[float] = deque(maxlen=size)

    def add(self, seconds: float) -> None:
        """Take in one."""
        self._values.append(seconds)

    def milliseconds(self) -> dict[str, float]:
        """Median, 95th percentile and largest, in milliseconds; empty without values."""
        if not self._values:
            return {}
        values = 1e3 * np.array(self._values)
        median, high = np.percentile(values, [50, 95])
        return {'p50': float(median), 'p95': float(high), 'max': float(values.max())}


def node_label(node: Node) -> str:
    """Name of a node with its namespace, which tells robots apart."""
    return node.get_fully_qualified_name().lstrip('/')


def localization_status(
    name: str, estimate: PoseEstimate | None, missing: str, age: float | None
) -> DiagnosticStatus:
    """
    Status of the pose: Localized, Uncertain, Not localized or Not on this map, and why.

    `missing`: what there is no pose without. `age`: of the pose in seconds, None if unknown.
    """
    if estimate is None:
        return status(
            name,
            DiagnosticStatus.ERROR,
            f'Not localized: {missing or "no image has said where"}',
            {},
        )
    text = estimate.status.capitalize()
    values: dict[str, Any] = {
        'confidence': estimate.confidence,
        **estimate.diagnostics,
        'sd x [m]': float(np.sqrt(estimate.covariance[0, 0])),
        'sd y [m]': float(np.sqrt(estimate.covariance[1, 1])),
        'sd heading [rad]': float(np.sqrt(estimate.covariance[2, 2])),
    }
    if age is not None:
        values['age of the pose [s]'] = age
    if missing:
        return status(name, DiagnosticStatus.STALE, f'{text}, but: {missing}', values)
    if estimate.status != 'localized':
        told = {key: value for key, value in estimate.diagnostics.items() if not _is_slow(key)}
        text += ': ' + ', '.join(f'{key} {value:.3g}' for key, value in told.items())
    return status(name, LEVELS[estimate.status], text, values)


def _is_slow(name: str) -> bool:
    """Whether a value says nothing of the moment."""
    return name.startswith('odometry_')


def input_status(
    name: str,
    watches: list[InputWatch],
    hints: list[str],
    dropped: Counter[str],
    odometry: Counter[str],
    images: Mapping[str, int] | None = None,
    poses: Mapping[str, int] | None = None,
) -> DiagnosticStatus:
    """
    Status of the inputs: rates, hints, and what was dropped, by reason.

    `images`: other counts of images by name. `poses`: pose messages that were not used, by reason.
    """
    values: dict[str, Any] = dict(images or {})
    for watch in watches:
        values[f'{watch.topic} [Hz]'] = watch.rate
        values[f'{watch.topic} messages'] = watch.count
        values[f'{watch.topic} lost'] = watch.lost
        values[f'{watch.topic} publishers'] = watch.publishers
    values |= {f'images dropped: {reason}': count for reason, count in dropped.items()}
    values |= {f'odometry: {reason}': count for reason, count in odometry.items()}
    values |= {f'poses dropped: {reason}': count for reason, count in (poses or {}).items()}
    values['images dropped'] = sum(dropped.values())
    rates = ', '.join(f'{watch.topic} {watch.rate:.1f} Hz' for watch in watches)
    level = DiagnosticStatus.WARN if hints else DiagnosticStatus.OK
    return status(name, level, '; '.join(hints) or rates, values)


def recording_status(
    name: str, text: str, trouble: str, stall: str, values: Mapping[str, Any]
) -> DiagnosticStatus:
    """
    Status of what is recorded.

    `trouble`: what keeps it from being written. `stall`: why nothing that comes in is recorded.
    """
    if trouble:
        return status(name, DiagnosticStatus.ERROR, trouble, values)
    if stall:
        return status(name, DiagnosticStatus.WARN, f'{text}, but: {stall}', values)
    return status(name, DiagnosticStatus.OK, text, values)


def load_status(name: str, durations: Mapping[str, Latencies], waiting: int) -> DiagnosticStatus:
    """Status of the work: how long it takes."""
    values: dict[str, Any] = {'images waiting': waiting}
    for kind, latencies in durations.items():
        values |= {f'{kind} {what} [ms]': v for what, v in latencies.milliseconds().items()}
    text = ', '.join(
        f'{kind} {latencies.milliseconds()["p95"]:.0f} ms'
        for kind, latencies in durations.items()
        if latencies.milliseconds()
    )
    return status(
        name, DiagnosticStatus.OK, f'95% within: {text}' if text else 'no work yet', values
    )


def map_status(name: str, facts: Mapping[str, Any], failure: str) -> DiagnosticStatus:
    """Status of the map: which one, how large, what was added to it."""
    text = f'{facts["map"]}: {facts["images"]} images'
    if failure:
        return status(name, DiagnosticStatus.WARN, f'{text}, but: {failure}', facts)
    return status(name, DiagnosticStatus.OK, text, facts)


def status(name: str, level: bytes, message: str, values: Mapping[str, Any]) -> DiagnosticStatus:
    """
    Make a diagnostic status; numbers are written with six digits.

    `name`: that of the node as `node_label` gives it, a colon, and the part of the node.
    """
    return DiagnosticStatus(
        level=level,
        name=name,
        message=message,
        hardware_id=name.partition(':')[0],
        values=[KeyValue(key=str(key), value=_text(value)) for key, value in values.items()],
    )


def _text(value: Any) -> str:
    return f'{value:.6g}' if isinstance(value, float) else str(value)
