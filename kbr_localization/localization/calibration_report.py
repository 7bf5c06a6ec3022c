"""The errors of an odometry in words, for `kbr map info` and the report."""

from __future__ import annotations

from typing import Any

from kbr_localization.localization.calibration import Calibration, NAMES

_PHRASES = {
    'offset_x': ('lie', 'm', 'ahead of the point of the poses', 'behind the point of the poses'),
    'offset_y': ('lie', 'm', 'to the left of the point of the poses', 'to the right of it'),
    'mounting': ('are', 'rad', 'turned to the left', 'turned to the right'),
    'forward_scale': ('count', '%', 'too many metres ahead', 'too few metres ahead'),
    'lateral_scale': ('count', '%', 'too many metres to the side', 'too few metres to the side'),
    'turn_scale': ('count', '%', 'too much of every turn', 'too little of every turn'),
    'drift': ('turn', 'rad', 'to the left with every metre', 'to the right with every metre'),
}
"""What the wheels do, unit, and what a positive and a negative value means."""


def described(calibration: Calibration, of_odometry: bool = False) -> dict[str, dict[str, Any]]:
    """
    Value, standard deviation, whether it is observable, and words for it, by name.

    `of_odometry`: of a map without another localizer, where it takes closures to tell anything.
    """
    found = {}
    rows = zip(calibration.values, calibration.deviations, calibration.observable(), strict=True)
    for name, (value, deviation, observable) in zip(NAMES, rows, strict=True):
        verb, unit, positive, negative = _PHRASES[name]
        factor, digits = (100.0, 2) if unit == '%' else (1.0, 4)
        size, spread = (f'{factor * abs(x):.{digits}f}' for x in (value, deviation))
        words = (
            f'the wheels {verb} {size} ± {spread} {unit} {positive if value >= 0 else negative}'
        )
        found[name] = {
            'value': float(value),
            'sd': float(deviation),
            'observable': bool(observable),
            'words': words if observable else f'not observable: {_reason(name, of_odometry)}',
        }
    if calibration.delay is not None:
        seconds, deviation = map(float, calibration.delay)
        found['delay'] = {
            'value': seconds,
            'sd': deviation,
            'observable': True,
            'words': f'the stamps of the odometry are {abs(seconds):.3f} ± {deviation:.3f} s '
            f'{"behind" if seconds >= 0.0 else "ahead of"} those of the poses',
        }
    return found


def _reason(name: str, of_odometry: bool) -> str:
    if name == 'lateral_scale':
        return 'the runs do not move sideways'
    if of_odometry:
        return 'the poses of the map are made of this odometry'
    if name in ('offset_x', 'offset_y', 'turn_scale'):
        return 'the runs hardly turn, or their odometry is too noisy'
    return 'the runs are too short, or their odometry is too noisy or does not fit'
