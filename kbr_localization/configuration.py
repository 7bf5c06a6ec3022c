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

_TRUTH_WORDS = {True: ('on', 'yes', 'true'), False: ('off', 'no', 'false')}


def parameter(
    default: Any,
    description: str,
    low: float | None = None,
    high: float | None = None,
    search: tuple[float, float] | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """
    Declare a dataclass field with its description and its allowed range or choices.

    `low` and `high` are inclusive; None leaves a side open. `search`: the range in which
    `kbr tune` looks for the best value, on a logarithmic scale.
    """
    metadata: dict[str, Any] = {'description': description, 'low': low, 'high': high}
    metadata |= {'choices': choices, 'search': search}
    return dataclasses.field(default=default, metadata=metadata)


def with_default(config: Any, name: str, default: Any) -> Any:
    """Declare the parameter `name` of another configuration again, with another default."""
    field = next(field for field in dataclasses.fields(config) if field.name == name)
    return dataclasses.field(default=default, metadata=field.metadata)


def validate(config: Any, prefix: str = '') -> None:
    """
    Refuse a value of the wrong type or outside of its range with a ConfigurationError.

    `prefix`: what stands before the names for a user.
    """
    for field in dataclasses.fields(config):
        if 'description' in field.metadata:
            _validate_field(field, prefix + field.name, getattr(config, field.name))


def written_word(field: dataclasses.Field[Any], value: Any) -> Any:
    """
    Return the word that YAML took for a truth value or a number, where the choices contain it.

    YAML reads off, no and false as one value, on, yes and true as another. Any other value comes
    back as it is, for `validate` to judge.
    """
    choices = field.metadata.get('choices') or ()
    if isinstance(value, str) or not isinstance(field.default, str):
        return value
    words = _TRUTH_WORDS[value] if isinstance(value, bool) else (str(value),)
    return next((word for word in words if word in choices), value)


def from_mapping(
    config_class: type[Config], values: Mapping[str, Any], prefix: str = ''
) -> Config:
    """
    Build a configuration from names and values; unknown names are refused.

    `prefix`: what stands before the names for a user.
    """
    known = [field.name for field in dataclasses.fields(config_class)]  # type: ignore[arg-type]
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise ConfigurationError(
            unknown_parameter(prefix + unknown[0], [prefix + name for name in known])
        )
    return config_class(**values)


def unknown_parameter(name: str, known: Sequence[str], also: Sequence[str] = ()) -> str:
    """Say that there is no such parameter, which one of those known, or `also`, is like it."""
    if not known:
        return f'unknown parameter {name!r}: there are none to be set'
    without_prefix = {other.rpartition('.')[2]: other for other in (*also, *known)}
    close = difflib.get_close_matches(name.rpartition('.')[2], without_prefix, n=1)
    meant = f'did you mean {without_prefix[close[0]]!r}? ' if close else ''
    return f'unknown parameter {name!r}: {meant}expected one of {", ".join(known)}'


def to_mapping(config: Any) -> dict[str, Any]:
    """Names and values of a configuration, the inverse of `from_mapping`."""
    return dataclasses.asdict(config)


def _validate_field(field: dataclasses.Field[Any], name: str, value: Any) -> None:
    expected: Any = type(field.default)
    accepted = (int, float) if expected is float else (expected,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and expected is not bool):
        raise ConfigurationError(
            f'parameter {name!r}: expected {_described(expected, value)}, '
            f'got {value!r} ({type(value).__name__})'
        )
    if expected is float and not math.isfinite(float(value)):
        raise ConfigurationError(f'parameter {name!r}: expected a finite number, got {value}')
    _validate_range(field, name, value)


def _described(expected: Any, value: Any) -> str:
    """Say what is expected in place of a value; a list as it might have been meant."""
    if expected is not tuple:
        return str(expected.__name__)
    parts = [part.strip() for part in str(value).split(',')]
    return f'a list such as [{", ".join(parts)}]'


def _validate_range(field: dataclasses.Field[Any], name: str, value: Any) -> None:
    low, high, choices = (field.metadata[key] for key in ('low', 'high', 'choices'))
    if choices is not None and value not in choices:
        raise ConfigurationError(
            f'parameter {name!r}: expected one of {", ".join(choices)}, got {value!r}'
        )
    if (low is not None and value < low) or (high is not None and value > high):
        raise ConfigurationError(
            f'parameter {name!r}: expected a value in '
            f'[{"-inf" if low is None else low}, {"inf" if high is None else high}], got {value}'
        )
