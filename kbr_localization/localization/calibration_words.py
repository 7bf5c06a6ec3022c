"""The errors of an odometry in words, for who reads what a map or a report says of them."""

from __future__ import annotations

from typing import Any

from kbr_localization.localization.calibration import Calibration, NAMES

_SIDES = {
    'offset_x': ('m', 'ahead of the point of the poses', 'behind the point of the poses'),
    'offset_y': ('m', 'to the left of the point of the poses', 'to the right of it'),
    'mounting': ('rad', 'turned to the left', 'turned to the right'),
    'forward_scale': ('%', 'too many metres ahead', 'too few metres ahead'),
    'lateral_scale': ('%', 'too many metres to the side', 'too few metres to the side'),
    'turn_scale': ('%', 'too much of every turn', 'too little of every turn'),
    'drift': ('rad', 'to the left with every metre', 'to the right with every metre'),
}
"""Unit, and what a positive and a negative value means."""
_VERBS = {
    'offset_x': 'the wheels lie',
    'offset_y': 'the wheels lie',
    'mounting': 'the wheels are',
    'forward_scale': 'the wheels count',
    'lateral_scale': 'the wheels count',
    'turn_scale': 'the wheels count',
    'drift': 'the wheels turn',
}
_TURNS = 'not observable: the runs hardly turn, or their odometry is too noisy'
_REASONS = {
    'offset_x': _TURNS,
    'offset_y': _TURNS,
    'turn_scale': _TURNS,
    'lateral_scale': 'not observable: the runs do not move sideways at will',
}
_SHORT = 'not observable: the runs are too short, or their odometry is too noisy'
_OF_ODOMETRY = 'not observable: the poses of the map are made of this odometry'


def described(calibration: Calibration, of_odometry: bool = False) -> dict[str, dict[str, Any]]:
    """
    Value, standard deviation, whether it is observable, and words for it, by name.

    `of_odometry`: of a map without another localizer, where it takes closures to tell anything.
    """
    rows = zip(
        NAMES, calibration.values, calibration.deviations, calibration.observable(), strict=True
    )
    found = {
        name: {
            'value': float(value),
            'sd': float(deviation),
            'observable': bool(observable),
            'words': _words(name, float(value), float(deviation))
            if observable
            else _reason(name, of_odometry),
        }
        for name, value, deviation, observable in rows
    }
    return found if calibration.delay is None else found | {'delay': _delay(*calibration.delay)}


def _delay(seconds: float, deviation: float) -> dict[str, Any]:
    side = 'behind' if seconds >= 0.0 else 'ahead of'
    return {
        'value': float(seconds),
        'sd': float(deviation),
        'observable': True,
        'words': f'the stamps of the odometry are {abs(seconds):.3f} ± {deviation:.3f} s {side} '
        'those of the poses',
    }


def _reason(name: str, of_odometry: bool) -> str:
    """Why an error of the odometry is not known."""
    if of_odometry and name != 'lateral_scale':
        return _OF_ODOMETRY
    return _REASONS.get(name, _SHORT)


def _words(name: str, value: float, deviation: float) -> str:
    unit, positive, negative = _SIDES[name]
    factor, digits = (100.0, 2) if unit == '%' else (1.0, 4)
    size, spread = factor * abs(value), factor * deviation
    side = positive if value >= 0.0 else negative
    return f'{_VERBS[name]} {size:.{digits}f} ± {spread:.{digits}f} {unit} {side}'
