"""
ROS parameters made from configuration dataclasses: same names, defaults, ranges, descriptions.

A node that uses `declare` is created with `automatically_declare_parameters_from_overrides`, so
that values from files and command lines can be seen before they are given their types: an integer
where a float is meant is converted, a name that nobody knows is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
import dataclasses
import difflib
import sys
from typing import Any, TypeVar

from kbr_localization import configuration
from kbr_localization.errors import ConfigurationError
from kbr_localization.ros.parameters.parameter_files import shared_names
from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    SetParametersResult,
)
from rclpy.node import Node
from rclpy.parameter import Parameter

Config = TypeVar('Config')

BUILT_IN = ('use_sim_time', 'start_type_description_service', 'qos_overrides.')
"""Parameters that rclpy itself or a node's publishers own."""


class ParameterNode(Node):
    """A node that empty lists may be given to, which have no type: rclpy declares none of them."""

    def declare_parameters(self, namespace: str, parameters: Any, *rest: Any, **named: Any) -> Any:
        """Declare parameters; one without a value gets its type with its description."""
        untyped = ParameterDescriptor(dynamic_typing=True)
        typed = [
            (name, None, untyped) if given[:1] == [None] else (name, *given)
            for name, *given in parameters
        ]
        return super().declare_parameters(namespace, typed, *rest, **named)


def fields(config_class: Any) -> dict[str, dataclasses.Field[Any]]:
    """Fields of a configuration that carry a description, by name."""
    return {
        field.name: field
        for field in dataclasses.fields(config_class)
        if 'description' in field.metadata
    }


def descriptor(field: dataclasses.Field[Any], read_only: bool = False) -> ParameterDescriptor:
    """Describe a configuration field as ROS tools show it."""
    low, high, choices = (field.metadata[key] for key in ('low', 'high', 'choices'))
    result = ParameterDescriptor(
        name=field.name,
        type=Parameter.Type.from_parameter_value(_to_ros(field.default)).value,
        description=field.metadata['description'],
        read_only=read_only,
    )
    if choices:
        result.additional_constraints = f'one of: {", ".join(choices)}'
    if (low, high) != (None, None) and isinstance(field.default, float):
        biggest = sys.float_info.max
        span = (-biggest if low is None else low, biggest if high is None else high)
        result.floating_point_range = [
            FloatingPointRange(from_value=float(span[0]), to_value=float(span[1]), step=0.0)
        ]
    elif (low, high) != (None, None):
        span = (-(2**63) if low is None else low, 2**63 - 1 if high is None else high)
        result.integer_range = [IntegerRange(from_value=int(span[0]), to_value=int(span[1]))]
    return result


def declare(
    node: Node,
    config_class: type[Config],
    prefix: str = '',
    changeable: Iterable[str] = (),
) -> Config:
    """
    Declare a configuration's fields as parameters `prefix + name` and return their values.

    Fields not named in `changeable` are read-only. Raises ConfigurationError with the
    parameter's name, value and allowed range when a given value does not fit.
    """
    _check_clock(node)
    values = {}
    for name, field in fields(config_class).items():
        full_name = prefix + name
        if not node.has_parameter(full_name):
            node.declare_parameter(full_name, _to_ros(field.default))
        values[name] = coerce(field, node.get_parameter(full_name).value)
    config = configuration.from_mapping(config_class, values)
    configuration.validate(config)
    for name, field in fields(config_class).items():
        node.set_descriptor(
            prefix + name,
            descriptor(field, read_only=name not in set(changeable)),
            _parameter_value(prefix + name, values[name]),
        )
    return config


def _check_clock(node: Node) -> None:
    """Refuse what rclpy only logs: the node would run by another clock than was meant."""
    given = node.get_parameter('use_sim_time').value
    if not isinstance(given, bool):
        raise ConfigurationError(
            f"parameter 'use_sim_time': expected bool, got {given!r} ({type(given).__name__})"
        )


def coerce(field: dataclasses.Field[Any], value: Any) -> Any:
    """
    Convert what YAML makes of a number, a word or a list, if nothing is lost.

    None is an empty list. Raises ConfigurationError for a list of anything but texts.
    """
    value = [] if value is None else value
    if isinstance(field.default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    one = isinstance(value, (str, bool, int, float, bytes))
    if isinstance(field.default, tuple) and not one:
        return _texts(field.name, list(value))
    return configuration.written_word(field, value)


def _texts(name: str, items: list[Any]) -> tuple[str, ...]:
    if not all(isinstance(item, str) for item in items):
        raise ConfigurationError(
            f'parameter {name!r}: expected a list of texts, got {items}: put each in quotes, '
            'or give [] for none'
        )
    return tuple(item for item in items if item)


def coerce_all(config_class: Any, given: list[Parameter[Any]]) -> list[Parameter[Any]]:
    """Apply `coerce` to what is about to be set; one that is to be deleted has no value."""
    known = fields(config_class)
    return [
        Parameter(item.name, value=_to_ros(coerce(known[item.name], item.value)))
        if item.name in known and item.value is not None
        else item
        for item in given
    ]


def changed(config: Config, given: list[Parameter[Any]]) -> Config:
    """Replace some values of a configuration; raises ConfigurationError."""
    known = fields(config)
    values = {
        item.name: coerce(known[item.name], item.value) for item in given if item.name in known
    }
    result = dataclasses.replace(config, **values)  # type: ignore[type-var]
    configuration.validate(result)
    return result


def accepted() -> SetParametersResult:
    """Answer to a parameter change that is taken."""
    return SetParametersResult(successful=True)


def refused(error: Exception | str) -> SetParametersResult:
    """Answer to a parameter change that is not taken, with the reason."""
    return SetParametersResult(successful=False, reason=str(error))


def given_names(node: Node) -> set[str]:
    """Names of the parameters that a file or a command line gave, but for those of rclpy."""
    # Humble's rclpy has no list_parameters
    names = node.get_parameters_by_prefix('')
    return {name for name in names if not name.startswith(BUILT_IN)}


def refuse_unknown(node: Node, known: Iterable[str], passed: Iterable[str] = ()) -> list[str]:
    """
    Raise ConfigurationError for given parameters that the node does not have.

    Returns the given names that are not the node's, but in `passed`, or given to all nodes by a
    file: parameters of other nodes which may stay in a file that is used for both.
    """
    others = sorted(given_names(node) - set(known))
    allowed = {*passed, *shared_names(sys.argv, node.get_name())}
    for name in others:
        if name not in allowed:
            value = node.get_parameter(name).value
            remedy = hint(name, known)
            raise ConfigurationError(f'unknown parameter {name!r} = {value!r}: {remedy}')
    return others


def hint(name: str, known: Iterable[str]) -> str:
    """Say which parameter may have been meant."""
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f'did you mean {close[0]!r}?' if close else 'see docs/ros_interface.md'


def _to_ros(value: Any) -> Any:
    # ROS has no typed empty list: one empty string stands for it
    return (list(value) or ['']) if isinstance(value, tuple) else value


def _parameter_value(name: str, value: Any) -> Any:
    return Parameter(name, value=_to_ros(value)).get_parameter_value()
