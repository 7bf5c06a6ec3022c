"""Parameters given as `--set NAME=VALUE`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
import dataclasses
from typing import Any, TypeVar

from kbr_localization.configuration import (
    from_mapping,
    to_mapping,
    unknown_parameter,
    written_word,
)
from kbr_localization.errors import ConfigurationError

Config = TypeVar('Config')


def parse_settings(settings: Sequence[str] | None) -> dict[str, Any]:
    """Names and values of `NAME=VALUE` texts, the values read as YAML reads them."""
    if not settings:
        return {}
    from kbr_localization.datasets.tables import load_yaml  # noqa: PLC0415  (not for `--help`)

    values = {}
    for setting in settings:
        name, equals, text = setting.partition('=')
        if not (name and equals and text):
            raise ConfigurationError(f'--set {setting}: expected NAME=VALUE')
        try:
            values[name.strip()] = load_yaml(text)
        except ValueError as error:
            raise ConfigurationError(f'--set {setting}: expected NAME=VALUE') from error
    return values


def with_settings(config: Config, values: dict[str, Any], prefix: str = '') -> Config:
    """
    Replace parameters of a configuration; raises ConfigurationError for a wrong one.

    `prefix`: what stands before the names for a user.
    """
    fields = {field.name: field for field in dataclasses.fields(config)}  # type: ignore[arg-type]
    converted = {
        name: _converted(fields[name], value) if name in fields else value
        for name, value in values.items()
    }
    return from_mapping(type(config), to_mapping(config) | converted, prefix)


def _converted(field: dataclasses.Field[Any], value: Any) -> Any:
    if isinstance(field.default, float) and type(value) in (int, str):
        # YAML takes 1e-9 for a text, and digits may be too many for a float
        with suppress(ValueError):
            return float(str(value))
    return written_word(field, value)


def with_settings_of(kernel_map: Any, method: str, settings: Sequence[str] | None) -> Any:
    """Set parameters of a method on a map, by texts of `--set`; raises ConfigurationError."""
    from kbr_localization.localization.methods.registry import (  # noqa: PLC0415
        method_config,
        method_named,
        with_values,
    )
    from kbr_localization.vision.config import PREFIX  # noqa: PLC0415

    given = parse_settings(settings)
    for name in given:
        if name.startswith(PREFIX):
            raise ConfigurationError(
                f'parameter {name!r}: is fixed in the map, whose images were described with it: '
                'set it where a map is built'
            )
        if not dataclasses.fields(method_named(method).config):
            raise ConfigurationError(
                f'unknown parameter {name!r}: the method {method} has no parameters'
            )
    config = with_settings(method_config(method, kernel_map), given)
    return with_values(method, kernel_map, {name: getattr(config, name) for name in given})


def describe_parameters(config_class: type[Any]) -> dict[str, dict[str, Any]]:
    """List default, range and description of every parameter of a configuration, by name."""
    described = {}
    for field in dataclasses.fields(config_class):
        low, high, choices = (field.metadata[key] for key in ('low', 'high', 'choices'))
        ends = ['' if end is None else f'{end:g}' for end in (low, high)]
        described[field.name] = {
            'default': field.default,
            'range': ', '.join(choices) if choices else ' … '.join(ends) if any(ends) else '',
            'description': field.metadata['description'],
        }
    return described


def configurations(settings: Sequence[str] | None) -> tuple[Any, dict[str, Any]]:
    """
    Vision configuration, and values of the filter, of texts of `--set`.

    Parameters of the filter that are not set are fitted to the map.
    """
    from kbr_localization.localization.config import KbrConfig  # noqa: PLC0415
    from kbr_localization.vision.config import LEARNED, PREFIX, VisionConfig  # noqa: PLC0415

    given = parse_settings(settings)
    rest = {name: value for name, value in given.items() if not name.startswith(PREFIX)}
    inside = {name.removeprefix(PREFIX): given[name] for name in given.keys() - rest.keys()}
    known, known_of_vision = (list(to_mapping(config)) for config in (KbrConfig(), VisionConfig()))
    for name in rest.keys() - set(known):
        also = [PREFIX + other for other in known_of_vision]
        raise ConfigurationError(unknown_parameter(name, known, also))
    filter_config = with_settings(KbrConfig(), rest)
    vision = with_settings(VisionConfig(), inside, PREFIX)
    for part, other, wanted in (
        ('network_', 'descriptor', ('onnx', LEARNED)),
        ('mirror_', 'projection', ('omnidirectional',)),
    ):
        useless = [name for name in inside if name.startswith(part)]
        if useless and getattr(vision, other) not in wanted:
            raise ConfigurationError(
                f'parameter {PREFIX}{useless[0]}: has no effect with {PREFIX}{other}='
                f'{getattr(vision, other)}: set {PREFIX}{other}={" or ".join(wanted)} beside it'
            )
    return vision, {name: getattr(filter_config, name) for name in rest}
