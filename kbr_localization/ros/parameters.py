"""ROS parameters with the names, defaults and descriptions of configuration dataclasses."""

from collections.abc import Callable, Iterable
import dataclasses
import difflib
import sys
from typing import Any

from kbr_localization.configuration import ConfigT, fields_of, from_mapping
from kbr_localization.errors import ConfigurationError
from kbr_localization.localization.config import KbrConfig
from kbr_localization.ros.config import ChangeableConfig, InitialPose, NodeConfig
from kbr_localization.ros.running import NodeLogger
from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    SetParametersResult,
)
from rclpy.node import Node
from rclpy.parameter import Parameter


class ParameterNode(Node):
    """A node in which given parameters exist before `declare`; `log` takes level and text."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, automatically_declare_parameters_from_overrides=True, **options)
        self.log = NodeLogger(self.get_logger())

    def declare_parameters(self, namespace: str, parameters: Any, *rest: Any, **named: Any) -> Any:
        """Allow parameters without a value, whose type `set_descriptor` sets later."""
        untyped = ParameterDescriptor(dynamic_typing=True)
        typed = [
            (name, None, untyped) if given[:1] == [None] else (name, *given)
            for name, *given in parameters
        ]
        return super().declare_parameters(namespace, typed, *rest, **named)


def declare(node: Node, config_class: type[ConfigT], changeable: Iterable[str] = ()) -> ConfigT:
    """
    Declare the fields as parameters, read-only unless `changeable`; return their values.

    Raises ConfigurationError for a value of a wrong type or out of its range.
    """
    use_sim_time = node.get_parameter('use_sim_time').value
    if not isinstance(use_sim_time, bool):  # rclpy only logs an error
        raise ConfigurationError(f"parameter 'use_sim_time': expected bool, got {use_sim_time!r}")
    values, prefix = {}, config_class.prefix
    for name, field in fields_of(config_class).items():
        if not node.has_parameter(prefix + name):
            node.declare_parameter(prefix + name, to_ros(field.default))
        values[name] = _coerced(field, node.get_parameter(prefix + name).value)
    config = from_mapping(config_class, values)
    for name, field in fields_of(config_class).items():
        value = Parameter(prefix + name, value=to_ros(values[name]))
        descriptor = _descriptor(field, value.type_.value, name not in changeable)
        node.set_descriptor(prefix + name, descriptor, value.get_parameter_value())
    return config


def _descriptor(
    field: dataclasses.Field[Any], type_number: int, read_only: bool
) -> ParameterDescriptor:
    low, high, choices = (field.metadata[key] for key in ('low', 'high', 'choices'))
    result = ParameterDescriptor(
        name=field.name,
        type=type_number,
        description=field.metadata['description'],
        additional_constraints=f'one of: {", ".join(choices)}' if choices else '',
        read_only=read_only,
    )
    if isinstance(field.default, float):
        ends = (max(float(low), -sys.float_info.max), min(float(high), sys.float_info.max))
        result.floating_point_range = [FloatingPointRange(from_value=ends[0], to_value=ends[1])]
    elif type(field.default) is int:
        limits = (int(max(low, -(2**63))), int(min(high, 2**63 - 1)))
        result.integer_range = [IntegerRange(from_value=limits[0], to_value=limits[1])]
    return result


def _coerced(field: dataclasses.Field[Any], value: Any) -> Any:
    """Convert a value that YAML reads as another type: 1 for 1.0, False for off, None for []."""
    value = [] if value is None else value
    if isinstance(field.default, float) and type(value) is int:
        return float(value)
    if isinstance(field.default, tuple) and not isinstance(value, (str, bool, int, float, bytes)):
        items = list(value)
        if not all(isinstance(item, str) for item in items):
            raise ConfigurationError(
                f'parameter {field.name!r}: expected a list of texts, got {items}: put each in '
                'quotes, or give [] for none'
            )
        return tuple(item for item in items if item)
    if isinstance(value, bool) and field.metadata['choices']:
        words = ('on', 'yes', 'true') if value else ('off', 'no', 'false')
        return next((word for word in words if word in field.metadata['choices']), value)
    return value


def to_ros(value: Any) -> Any:
    """Return a value for ROS: an empty list has no type there, so it becomes ['']."""
    return (list(value) or ['']) if isinstance(value, tuple) else value


def refuse_misspelt(node: Node, known: Iterable[str]) -> None:
    """Log given parameters that have no effect; raise ConfigurationError for a misspelt one."""
    built_in = ('use_sim_time', 'start_type_description_service')
    given = node.get_parameters_by_prefix('')  # Humble has no list_parameters
    unknown = sorted(n for n in given.keys() - set(known) if not n.startswith(built_in))
    for name in unknown:
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        if close and name not in ('min_particles', 'max_particles'):  # of nav2_amcl
            raise ConfigurationError(
                f'unknown parameter {name!r} = {given[name].value!r}: did you mean {close[0]!r}?'
            )
    if unknown:
        ignored = ', '.join(unknown)
        node.get_logger().info(f'parameters without a meaning here are ignored: {ignored}')


class Settings:
    """
    The present parameters of the localization node: `config`, `initial_pose` and `filter`.

    Filter parameters that are not given by a user come from the map. `on_change` is called after
    every change, with the previous filter parameters.
    """

    def __init__(
        self, node: Node, on_change: Callable[[KbrConfig], None] = lambda before: None
    ) -> None:
        self._node, self._on_change = node, on_change
        configs = (NodeConfig, KbrConfig, InitialPose)
        names = [config.prefix + name for config in configs for name in fields_of(config)]
        refuse_misspelt(node, names)
        self._given = {name for name in fields_of(KbrConfig) if node.has_parameter(name)}
        self.config = declare(node, NodeConfig, changeable=fields_of(ChangeableConfig))
        self.initial_pose = declare(node, InitialPose)
        self.filter = declare(node, KbrConfig, changeable=fields_of(KbrConfig))
        node.add_on_set_parameters_callback(self._follow)

    def filter_on(self, from_map: KbrConfig) -> KbrConfig:
        """Return the filter parameters for a map with the parameters `from_map`."""
        given = {name: getattr(self.filter, name) for name in self._given}
        return dataclasses.replace(from_map, **given)

    def follow_map(self, from_map: KbrConfig) -> None:
        """Use the filter parameters of a map where none were given."""
        given = set(self._given)
        self.filter = self.filter_on(from_map)
        changes = [
            Parameter(name, value=getattr(self.filter, name))
            for name in fields_of(KbrConfig)
            if self._node.get_parameter(name).value != getattr(self.filter, name)
        ]
        if changes:
            self._node.set_parameters_atomically(changes)
        self._given = given

    def _follow(self, changes: list[Parameter[Any]]) -> SetParametersResult:
        try:
            config, filter_config = _changed(self.config, changes), _changed(self.filter, changes)
        except ConfigurationError as error:
            return SetParametersResult(successful=False, reason=str(error))
        before, self.config, self.filter = self.filter, config, filter_config
        self._given |= {item.name for item in changes} & fields_of(KbrConfig).keys()
        self._on_change(before)
        return SetParametersResult(successful=True)


def _changed(config: ConfigT, changes: Iterable[Parameter[Any]]) -> ConfigT:
    values = {item.name: item.value for item in changes if item.name in fields_of(config)}
    return dataclasses.replace(config, **values)
