"""The parameters of the localization node: declared, checked, and followed while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
import dataclasses
from typing import Any

from kbr_localization.errors import ConfigurationError
from kbr_localization.localization.config import KbrConfig
from kbr_localization.ros.parameters import parameters
from kbr_localization.ros.parameters.amcl import AMCL_PARAMETERS
from kbr_localization.ros.parameters.node_config import CHANGEABLE, InitialPose, NodeConfig
from rcl_interfaces.msg import SetParametersResult
from rclpy.node import Node
from rclpy.parameter import Parameter

INITIAL_POSE = 'initial_pose.'


def names() -> list[str]:
    """List every parameter of the node."""
    own = [*parameters.fields(NodeConfig), *parameters.fields(KbrConfig)]
    return own + [INITIAL_POSE + name for name in parameters.fields(InitialPose)]


class SettableNode(parameters.ParameterNode):
    """
    A node whose parameters are changed by way of its `settings`.

    The callbacks before and after a change would do, but Humble's rclpy has none.
    """

    settings: Settings

    def set_parameters(self, parameter_list: list[Parameter[Any]]) -> list[SetParametersResult]:
        """Set parameters one after the other."""
        return [self.set_parameters_atomically([item]) for item in parameter_list]

    def set_parameters_atomically(
        self, parameter_list: list[Parameter[Any]]
    ) -> SetParametersResult:
        """Set all parameters or none."""
        return self.settings.change(parameter_list, super().set_parameters_atomically)


class Settings:
    """
    Values of all parameters, kept up to date.

    `config`, `initial_pose`, `filter`: the values now. Filter parameters that nobody gave follow
    the map. `on_change`: called after every change, with the filter's parameters before it: rclpy
    calls what was registered last first, so others would still see the old values. `shared`:
    more parameters that may be of other nodes; `ignored`, `foreign`: those
    given that are nav2_amcl's or of other nodes. Raises ConfigurationError for unknown names and
    values out of range.
    """

    def __init__(
        self,
        node: Node,
        on_change: Callable[[KbrConfig], None] = lambda before: None,
        shared: Iterable[str] = (),
    ) -> None:
        self._node, self._on_change = node, on_change
        passed = parameters.refuse_unknown(node, names(), {*AMCL_PARAMETERS, *shared})
        self.ignored = [name for name in passed if name in AMCL_PARAMETERS]
        self.foreign = [name for name in passed if name not in AMCL_PARAMETERS]
        self._given = parameters.given_names(node) & set(parameters.fields(KbrConfig))
        self.config = parameters.declare(node, NodeConfig, changeable=CHANGEABLE)
        self.initial_pose = parameters.declare(node, InitialPose, INITIAL_POSE)
        self.filter = parameters.declare(node, KbrConfig, changeable=parameters.fields(KbrConfig))
        node.add_on_set_parameters_callback(self._check)

    def change(
        self,
        changes: list[Parameter[Any]],
        set_them: Callable[[list[Parameter[Any]]], SetParametersResult],
    ) -> SetParametersResult:
        """Set parameters by `set_them`, converted to their types, and follow them."""
        for item in changes:
            if not self._node.has_parameter(item.name):
                remedy = parameters.hint(item.name, names())
                return parameters.refused(f'unknown parameter {item.name!r}: {remedy}')
        try:
            changes = self._coerce(changes)
        except ConfigurationError as error:
            return parameters.refused(error)
        result = set_them(changes)
        if result.successful:
            self._take(changes)
        return result

    def filter_on(self, from_map: KbrConfig) -> KbrConfig:
        """Return the map's filter parameters, with those that were given in their place."""
        values: dict[str, Any] = {
            name: getattr(self.filter if name in self._given else from_map, name)
            for name in parameters.fields(KbrConfig)
        }
        return KbrConfig(**values)

    def follow_map(self, from_map: KbrConfig) -> None:
        """Take the map's filter parameters where none were given."""
        self.filter = self.filter_on(from_map)
        given, values = set(self._given), dataclasses.asdict(self.filter)
        # at once and no more than needed: it keeps the executor
        changes = [
            Parameter(name, value=value)
            for name, value in values.items()
            if self._node.get_parameter(name).value != value
        ]
        if changes:
            self._node.set_parameters_atomically(changes)
        self._given = given

    def _coerce(self, changes: list[Parameter[Any]]) -> list[Parameter[Any]]:
        return parameters.coerce_all(KbrConfig, parameters.coerce_all(NodeConfig, changes))

    def _check(self, changes: list[Parameter[Any]]) -> SetParametersResult:
        try:
            parameters.changed(self.config, changes)
            parameters.changed(self.filter, changes)
        except ConfigurationError as error:
            return parameters.refused(error)
        return parameters.accepted()

    def _take(self, changes: list[Parameter[Any]]) -> None:
        before = self.filter
        self.config = parameters.changed(self.config, changes)
        self.filter = parameters.changed(self.filter, changes)
        self._given |= {change.name for change in changes} & set(dataclasses.asdict(self.filter))
        self._on_change(before)
