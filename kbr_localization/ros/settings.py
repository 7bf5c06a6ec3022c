"""The parameters of the localization node: declared, checked, and followed while it runs."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any

from kbr_localization.errors import ConfigurationError
from kbr_localization.localization.config import FilterConfig
from kbr_localization.ros import parameters
from kbr_localization.ros.node_config import AMCL_ONLY, CHANGEABLE, InitialPose, NodeConfig
from rcl_interfaces.msg import SetParametersResult
from rclpy.node import Node
from rclpy.parameter import Parameter

INITIAL_POSE = 'initial_pose.'


def names() -> list[str]:
    """List every parameter of the node."""
    own = [*parameters.fields(NodeConfig), *parameters.fields(FilterConfig)]
    return own + [INITIAL_POSE + name for name in parameters.fields(InitialPose)]


class Settings:
    """
    Values of all parameters, kept up to date.

    `config`, `initial_pose`, `filter`: the values now. Filter parameters that nobody gave follow
    the map. `on_change`: called after every change, with the filter's parameters before it: rclpy
    calls what was registered last first, so others would still see the old values. Raises
    ConfigurationError for unknown names and values out of range.
    """

    def __init__(
        self, node: Node, on_change: Callable[[FilterConfig], None] = lambda before: None
    ) -> None:
        self._node, self._on_change = node, on_change
        given = set(node.list_parameters([], 0).names)
        self.ignored = parameters.refuse_unknown(node, names(), AMCL_ONLY)
        self._given = given & set(parameters.fields(FilterConfig))
        self.config = parameters.declare(node, NodeConfig, changeable=CHANGEABLE)
        self.initial_pose = parameters.declare(node, InitialPose, INITIAL_POSE)
        self.filter = parameters.declare(
            node, FilterConfig, changeable=parameters.fields(FilterConfig)
        )
        node.add_pre_set_parameters_callback(self._coerce)
        node.add_on_set_parameters_callback(self._check)
        node.add_post_set_parameters_callback(self._take)

    def filter_on(self, from_map: FilterConfig) -> FilterConfig:
        """Return the map's filter parameters, with those that were given in their place."""
        values: dict[str, Any] = {
            name: getattr(self.filter if name in self._given else from_map, name)
            for name in parameters.fields(FilterConfig)
        }
        return FilterConfig(**values)

    def follow_map(self, from_map: FilterConfig) -> None:
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
        return parameters.coerce_all(FilterConfig, parameters.coerce_all(NodeConfig, changes))

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
