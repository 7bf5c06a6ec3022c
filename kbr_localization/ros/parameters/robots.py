"""What each of several robots gets of a launch file's arguments. Nothing of `launch` here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kbr_localization.errors import ConfigurationError
from kbr_localization.ros.common.defaults import own_folder

Value = Callable[[str], str]
"""Gives the value of an argument by its name."""


def robots(value: Value) -> list[Value]:
    """
    Give the arguments' values for each of the robots that `namespace` names.

    Each of several robots has its own folder in `grow_into`, by default one of the package: two
    nodes that write the same map would lose each other's images.

    Raises ConfigurationError when two have the same namespace, or one has none.
    """
    namespaces = _namespaces(value)
    if len(namespaces) == 1:
        return [value]
    if '' in namespaces or len(set(namespaces)) < len(namespaces):
        raise ConfigurationError(
            f'expected several namespaces that differ, got {value("namespace")!r}: '
            'name each robot once'
        )
    return [_values_of(namespace, value) for namespace in namespaces]


def one_robot(value: Value) -> Value:
    """Give the arguments' values; raises ConfigurationError for several namespaces."""
    if len(_namespaces(value)) > 1:
        raise ConfigurationError(
            f'expected the namespace of one robot, got {value("namespace")!r}: launch once for '
            'each, with a ROS_DOMAIN_ID of its own where there is a /clock'
        )
    return value


def _values_of(namespace: str, value: Value) -> Value:
    folder = Path(value('grow_into') or own_folder() / 'grown') / namespace
    own = {'namespace': namespace, 'grow_into': str(folder)}
    return lambda name: own[name] if name in own else value(name)


def _namespaces(value: Value) -> list[str]:
    return [name.strip().strip('/') for name in value('namespace').split(',')]
