"""Configuration as frozen dataclasses that hold names, defaults, ranges and descriptions."""

from collections.abc import Mapping, Sequence
import dataclasses
import difflib
import math
from typing import Any, ClassVar, TypeVar

from kbr_localization.errors import ConfigurationError


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

    `low` and `high` are inclusive. `search`: the range that `kbr tune` searches on a logarithmic
    scale.
    """
    limits = {'low': low, 'high': high, 'search': search, 'choices': choices}
    return dataclasses.field(default=default, metadata={'description': description, **limits})


def fields_of(config: Any) -> dict[str, dataclasses.Field[Any]]:
    """Return the fields with a description, by name, of a configuration or its class."""
    found = dataclasses.fields(config)
    return {field.name: field for field in found if 'description' in field.metadata}


def allowed_values(field: dataclasses.Field[Any]) -> str:
    """Describe the allowed values as `[0, inf]` or `raw, compressed`; empty if unlimited."""
    low, high, choices = (field.metadata[key] for key in ('low', 'high', 'choices'))
    unbounded = (low, high) == (-math.inf, math.inf)
    return ', '.join(choices) if choices or unbounded else f'[{low}, {high}]'


@dataclasses.dataclass(frozen=True)
class Config:
    """Base of dataclasses with fields from `parameter`; messages put `prefix` before names."""

    prefix: ClassVar[str] = ''

    def __post_init__(self) -> None:
        for name, field in fields_of(self).items():
            value, expected = getattr(self, name), allowed_values(field)
            kind: Any = type(field.default)
            accepted = (int, float) if kind is float else (kind,)
            low, high, choices = (field.metadata[key] for key in ('low', 'high', 'choices'))
            if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
                expected = f'a list such as [{value}]' if kind is tuple else kind.__name__
                value = f'{value!r} ({type(value).__name__})'
            elif kind is float and not math.isfinite(value):
                expected = 'a finite number'
            elif choices and value not in choices:
                expected, value = f'one of {expected}', repr(value)
            elif kind in (int, float) and not low <= value <= high:
                expected = f'a value in {expected}'
            else:
                continue
            raise ConfigurationError(
                f'parameter {self.prefix + name!r}: expected {expected}, got {value}'
            )


ConfigT = TypeVar('ConfigT', bound=Config)


def from_mapping(config_class: type[ConfigT], values: Mapping[str, Any]) -> ConfigT:
    """Build a configuration from names and values; raises ConfigurationError."""
    known, prefix = fields_of(config_class), config_class.prefix
    for name in sorted(values.keys() - known):
        others = [prefix + other for other in known]
        raise ConfigurationError(unknown_parameter(prefix + name, others))
    return config_class(**values)


def unknown_parameter(name: str, known: Sequence[str]) -> str:
    """Return an error message that suggests the known parameter with the most similar name."""
    if not known:
        return f'unknown parameter {name!r}: there are no parameters to set'
    without_prefix = {other.rpartition('.')[2]: other for other in known}
    close = difflib.get_close_matches(name.rpartition('.')[2], without_prefix, n=1)
    meant = f'did you mean {without_prefix[close[0]]!r}? ' if close else ''
    return f'unknown parameter {name!r}: {meant}expected one of {", ".join(known)}'
