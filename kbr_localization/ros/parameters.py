"""
ROS parameters made from configuration dataclasses: same names, defaults, ranges, descriptions.

Nodes are created with `automatically_declare_parameters_from_overrides`, so that values from files
and command lines can be seen before they are given their types: an integer where a float is meant
is converted, an unknown name is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
import dataclasses
import difflib
from itertools import pairwise
from pathlib import Path
import re
import sys
from typing import Any, TypeVar

from kbr_localization import configuration
from kbr_localization.errors import ConfigurationError
from kbr_localization.localization.config import KbrConfig
from kbr_localization.ros.config import CHANGEABLE, InitialPose, NodeConfig
from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    SetParametersResult,
)
from rclpy.node import Node
from rclpy.parameter import Parameter
import yaml

Config = TypeVar('Config')
Field = dataclasses.Field[Any]

AMCL_PARAMETER = re.compile(
    'alpha[1-5]|autostart_node|beam_skip_.*|bond_disable_.*|do_beamskip|first_map_only'
    '|freespace_.*|(service_)?introspection_mode|lambda_short|laser_.*|likelihood_max_dist'
    '|map_topic|max_beams|(max|min)_particles|pf_(err|z)|recovery_alpha_.*|resample_interval'
    '|robot_model_type|scan_topic|sigma_hit|use_realtime_priority|z_(hit|max|rand|short)'
)
"""Parameters of nav2_amcl and of every Nav2 node that have no meaning here; they are ignored."""


class ParameterNode(Node):
    """A node that takes empty lists as parameters, which have no type and rclpy refuses."""

    def declare_parameters(self, namespace: str, parameters: Any, *rest: Any, **named: Any) -> Any:
        """Declare parameters; one without a value gets its type with its description."""
        untyped = ParameterDescriptor(dynamic_typing=True)
        typed = [
            (name, None, untyped) if given[:1] == [None] else (name, *given)
            for name, *given in parameters
        ]
        return super().declare_parameters(namespace, typed, *rest, **named)


def fields(config_class: Any) -> dict[str, Field]:
    """Fields of a configuration that have a description, by name."""
    found = dataclasses.fields(config_class)
    return {field.name: field for field in found if 'description' in field.metadata}


def declare(
    node: Node, config_class: type[Config], prefix: str = '', changeable: Iterable[str] = ()
) -> Config:
    """
    Declare a configuration's fields as parameters `prefix + name` and return their values.

    Fields not in `changeable` are read-only. Raises ConfigurationError with name, value and
    allowed range for a given value that does not fit.
    """
    use_sim_time = node.get_parameter('use_sim_time').value
    if not isinstance(use_sim_time, bool):  # rclpy only logs it
        raise ConfigurationError(f"parameter 'use_sim_time': expected bool, got {use_sim_time!r}")
    values = {}
    for name, field in fields(config_class).items():
        if not node.has_parameter(prefix + name):
            node.declare_parameter(prefix + name, _to_ros(field.default))
        values[name] = _coerced(field, node.get_parameter(prefix + name).value)
    config = configuration.from_mapping(config_class, values)
    configuration.validate(config)
    for name, field in fields(config_class).items():
        value = Parameter(prefix + name, value=_to_ros(values[name])).get_parameter_value()
        node.set_descriptor(prefix + name, _descriptor(field, name not in changeable), value)
    return config


def _descriptor(field: Field, read_only: bool) -> ParameterDescriptor:
    low, high, choices = (field.metadata[key] for key in ('low', 'high', 'choices'))
    result = ParameterDescriptor(
        name=field.name,
        type=Parameter.Type.from_parameter_value(_to_ros(field.default)).value,
        description=field.metadata['description'],
        additional_constraints=f'one of: {", ".join(choices)}' if choices else '',
        read_only=read_only,
    )
    if (low, high) == (None, None):
        return result
    if isinstance(field.default, float):
        most = sys.float_info.max
        span = (float(-most if low is None else low), float(most if high is None else high))
        result.floating_point_range = [FloatingPointRange(from_value=span[0], to_value=span[1])]
    else:
        limits = (-(2**63) if low is None else low, 2**63 - 1 if high is None else high)
        result.integer_range = [IntegerRange(from_value=limits[0], to_value=limits[1])]
    return result


def _coerced(field: Field, value: Any) -> Any:
    """Convert what YAML makes of a number, a word or a list (None: an empty one)."""
    value = [] if value is None else value
    if isinstance(field.default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(field.default, tuple) and not isinstance(value, (str, bool, int, float, bytes)):
        items = list(value)
        if not all(isinstance(item, str) for item in items):
            raise ConfigurationError(
                f'parameter {field.name!r}: expected a list of texts, got {items}: put each in '
                'quotes, or give [] for none'
            )
        return tuple(item for item in items if item)
    return configuration.written_word(field, value)


def _to_ros(value: Any) -> Any:
    # ROS has no typed empty list: one empty string stands for it
    return (list(value) or ['']) if isinstance(value, tuple) else value


def _changed(config: Config, given: Iterable[Parameter[Any]]) -> Config:
    """Replace some values of a configuration; raises ConfigurationError."""
    known = fields(config)
    values = {
        item.name: _coerced(known[item.name], item.value) for item in given if item.name in known
    }
    return dataclasses.replace(config, **values)  # type: ignore[type-var]


def given_names(node: Node) -> set[str]:
    """Names of the parameters given by files or the command line, without rclpy's own."""
    built_in = ('use_sim_time', 'start_type_description_service', 'qos_overrides.')
    names = node.get_parameters_by_prefix('')  # Humble has no list_parameters
    return {name for name in names if not name.startswith(built_in)}


def refuse_unknown(node: Node, known: Iterable[str], passed: Iterable[str] = ()) -> list[str]:
    """
    Raise ConfigurationError for given parameters that the node does not have.

    Returns given names that are in `passed`, or in a section for all nodes of a parameter file,
    which may hold parameters of other nodes.
    """
    others = sorted(given_names(node) - set(known))
    allowed = {*passed, *shared_names(sys.argv, node.get_name())}
    for name in others:
        if name not in allowed:
            value = node.get_parameter(name).value
            raise ConfigurationError(
                f'unknown parameter {name!r} = {value!r}: {hint(name, known)}'
            )
    return others


def hint(name: str, known: Iterable[str]) -> str:
    """Say which parameter may have been meant."""
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f'did you mean {close[0]!r}?' if close else 'see docs/ros_interface.md'


def shared_names(arguments: Iterable[str], node: str) -> set[str]:
    """
    Names in sections for all nodes, as `/**`, of the files of `--params-file`, and in no other.

    A file that cannot be read is left out: rcl says what is wrong with it.
    """
    shared, own = set[str](), set[str]()
    for option, path in pairwise(arguments):
        if option != '--params-file':
            continue
        try:
            tree = yaml.safe_load(Path(path).read_text(encoding='utf-8'))
        except (OSError, ValueError, yaml.YAMLError):
            continue
        for section, values in sections(tree):
            last = section.rsplit('/', 1)[-1]
            names = set(_flat_names(values))
            shared |= names if last in ('*', '**') else set()
            own |= names if last == node else set()
    return shared - own


def sections(tree: Any, path: str = '') -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Give the path of each section of a parameter file, as /robot/node, and its parameters."""
    for key, value in tree.items() if isinstance(tree, Mapping) else ():
        if key == 'ros__parameters':
            yield path, value or {}
        else:
            yield from sections(value, f'{path}/{str(key).strip("/")}')


def _flat_names(values: Mapping[str, Any], prefix: str = '') -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat_names(value, f'{prefix}{key}.')
        else:
            yield f'{prefix}{key}'


class Settings:
    """
    Values of all parameters of the localization node, kept up to date.

    `config`, `initial_pose`, `filter`: the values now. Filter parameters that nobody gave follow
    the map. `on_change`: called after every change, with the filter's parameters before it.
    `ignored`, `foreign`: given parameters of nav2_amcl, or of other nodes. Raises
    ConfigurationError for unknown names and values out of range.
    """

    def __init__(
        self,
        node: Node,
        on_change: Callable[[KbrConfig], None] = lambda before: None,
        shared: Iterable[str] = (),
    ) -> None:
        self._node, self._on_change = node, on_change
        self.names = [
            *fields(NodeConfig),
            *fields(KbrConfig),
            *(f'initial_pose.{name}' for name in fields(InitialPose)),
        ]
        self.ignored = sorted(filter(AMCL_PARAMETER.fullmatch, given_names(node)))
        passed = refuse_unknown(node, self.names, {*self.ignored, *shared})
        self.foreign = [name for name in passed if name not in self.ignored]
        self._given = given_names(node) & set(fields(KbrConfig))
        self.config = declare(node, NodeConfig, changeable=CHANGEABLE)
        self.initial_pose = declare(node, InitialPose, 'initial_pose.')
        self.filter = declare(node, KbrConfig, changeable=fields(KbrConfig))
        node.add_on_set_parameters_callback(self._check)

    def change(
        self,
        changes: list[Parameter[Any]],
        set_them: Callable[[list[Parameter[Any]]], SetParametersResult],
    ) -> SetParametersResult:
        """Set parameters by `set_them`, converted to their types, and follow them."""
        try:
            converted = [self._converted(item) for item in changes]
        except ConfigurationError as error:
            return SetParametersResult(successful=False, reason=str(error))
        result = set_them(converted)
        if result.successful:
            before = self.filter
            self.config = _changed(self.config, converted)
            self.filter = _changed(self.filter, converted)
            self._given |= {item.name for item in converted} & set(fields(KbrConfig))
            self._on_change(before)
        return result

    def _converted(self, item: Parameter[Any]) -> Parameter[Any]:
        if not self._node.has_parameter(item.name):
            remedy = hint(item.name, self.names)
            raise ConfigurationError(f'unknown parameter {item.name!r}: {remedy}')
        field = (fields(NodeConfig) | fields(KbrConfig)).get(item.name)
        if field is None or item.value is None:
            return item
        return Parameter(item.name, value=_to_ros(_coerced(field, item.value)))

    def filter_on(self, from_map: KbrConfig) -> KbrConfig:
        """Return the map's filter parameters, with those that were given in their place."""
        given = {name: getattr(self.filter, name) for name in self._given}
        return dataclasses.replace(from_map, **given)

    def follow_map(self, from_map: KbrConfig) -> None:
        """Take the map's filter parameters where none were given."""
        given = set(self._given)
        self.filter = self.filter_on(from_map)
        changes = [
            Parameter(name, value=getattr(self.filter, name))
            for name in fields(KbrConfig)
            if self._node.get_parameter(name).value != getattr(self.filter, name)
        ]
        if changes:
            self._node.set_parameters_atomically(changes)
        self._given = given

    def _check(self, changes: list[Parameter[Any]]) -> SetParametersResult:
        try:
            _changed(self.config, changes)
            _changed(self.filter, changes)
        except ConfigurationError as error:
            return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)


class SettableNode(ParameterNode):
    """A node whose parameters change by way of its `settings`: Humble has no other hook."""

    settings: Settings

    def set_parameters(self, parameter_list: list[Parameter[Any]]) -> list[SetParametersResult]:
        """Set parameters one after the other."""
        return [self.set_parameters_atomically([item]) for item in parameter_list]

    def set_parameters_atomically(
        self, parameter_list: list[Parameter[Any]]
    ) -> SetParametersResult:
        """Set all parameters or none."""
        return self.settings.change(parameter_list, super().set_parameters_atomically)
