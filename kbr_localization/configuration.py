"""
Configuration as frozen dataclasses: the single source of names, defaults, ranges and descriptions.

The YAML file, the ROS parameters, the map file and the documentation are made from or checked
against these dataclasses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import difflib
import math
from typing import Any, TypeVar

from kbr_localization.errors import ConfigurationError

Config = TypeVar('Config')


def parameter(
    default: Any,
    description: str,
    low: float = -math.inf,
    high: float = math.inf,
    search: tuple[float, float] | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """
    Declare a dataclass field with its description and its allowed range or choices.

    `low` and `high` are inclusive. `search`: the range in which `kbr tune` looks for the best
    value, on a logarithmic scale.
    """
    metadata: dict[str, Any] = {'description': description, 'low': low, 'high': high}
    metadata |= {'choices': choices, 'search': search}
    return dataclasses.field(default=default, metadata=metadata)


def fields_of(config: Any) -> dict[str, dataclasses.Field[Any]]:
    """Fields of a configuration, or of its class, that have a description, by name."""
    found = dataclasses.fields(config)
    return {field.name: field for field in found if 'description' in field.metadata}


def allowed(field: dataclasses.Field[Any]) -> str:
    """Say which values a parameter may have, as `[0, inf]` or `raw, compressed`, if not any."""
    low, high, choices = (field.metadata[key] for key in ('low', 'high', 'choices'))
    unbounded = (low, high) == (-math.inf, math.inf)
    return ', '.join(choices) if choices or unbounded else f'[{low}, {high}]'


def validate(config: Any, prefix: str = '') -> None:
    """
    Refuse a value of the wrong type or outside of its range with a ConfigurationError.

    `prefix`: what stands before the names for a user.
    """
    for name, field in fields_of(config).items():
        value, expected = getattr(config, name), allowed(field)
        kind: Any = type(field.default)
        accepted = (int, float) if kind is float else (kind,)
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            expected = f'a list such as [{value}]' if kind is tuple else kind.__name__
            value = f'{value!r} ({type(value).__name__})'
        elif kind is float and not math.isfinite(value):
            expected = 'a finite number'
        elif field.metadata['choices'] and value not in field.metadata['choices']:
            expected, value = f'one of {expected}', repr(value)
        elif kind in (int, float) and not field.metadata['low'] <= value <= field.metadata['high']:
            expected = f'a value in {expected}'
        else:
            continue
        raise ConfigurationError(f'parameter {prefix + name!r}: expected {expected}, got {value}')


def from_mapping(
    config_class: type[Config], values: Mapping[str, Any], prefix: str = ''
) -> Config:
    """
    Build a configuration from names and values; unknown names are refused.

    `prefix`: what stands before the names for a user.
    """
    known = [field.name for field in dataclasses.fields(config_class)]  # type: ignore[arg-type]
    for name in sorted(set(values) - set(known)):
        raise ConfigurationError(
            unknown_parameter(prefix + name, [prefix + other for other in known])
        )
    return config_class(**values)


def unknown_parameter(name: str, known: Sequence[str]) -> str:
    """Say that there is no such parameter, and which one of those known is like it."""
    if not known:
        return f'unknown parameter {name!r}: there are none to be set'
    without_prefix = {other.rpartition('.')[2]: other for other in known}
    close = difflib.get_close_matches(name.rpartition('.')[2], without_prefix, n=1)
    meant = f'did you mean {without_prefix[close[0]]!r}? ' if close else ''
    return f'unknown parameter {name!r}: {meant}expected one of {", ".join(known)}'


def to_mapping(config: Any) -> dict[str, Any]:
    """Names and values of a configuration, the inverse of `from_mapping`."""
    return dataclasses.asdict(config)
