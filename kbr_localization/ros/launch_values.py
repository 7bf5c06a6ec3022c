"""Launch arguments and parameter files as values; nothing of `launch` here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kbr_localization.errors import ConfigurationError
from kbr_localization.files import expanded, read_text
from kbr_localization.ros.parameters import sections
from kbr_localization.ros.saved_pose import own_folder
import yaml

Value = Callable[[str], str]
"""Gives the value of a launch argument by its name."""


class Text(str):
    """A value that is written in quotes, without which 1e5, y and nan are no text to rcl."""


yaml.SafeDumper.add_representer(
    Text,
    lambda dumper, text: dumper.represent_scalar('tag:yaml.org,2002:str', str(text), style="'"),
)


def unknown_arguments(path: str, known: Sequence[str], command: Sequence[str]) -> list[str]:
    """Names given to the launch file of a path on the command line, but not known to it."""
    if Path(path).name not in [Path(part).name for part in command]:
        return []  # included by another one, whose arguments they are
    given = [part.partition(':=')[0] for part in command if ':=' in part]
    return [name for name in given if name not in known]


def robots(value: Value) -> list[Value]:
    """
    Give the arguments' values for each of the robots that `namespace` names.

    Each of several robots has its own folder in `grow_into`, by default one of the package: two
    nodes that write the same map would lose each other's images. Raises ConfigurationError when
    two have the same namespace, or one of several has none.
    """
    names = [name.strip().strip('/') for name in value('namespace').split(',')]
    if len(names) == 1:
        return [value]
    if '' in names or len(set(names)) < len(names):
        raise ConfigurationError(
            f'expected several namespaces that differ, got {value("namespace")!r}: '
            'name each robot once'
        )
    folder = Path(value('grow_into') or own_folder() / 'grown')
    own = [{'namespace': name, 'grow_into': str(folder / name)} for name in names]
    return [partial(_own_value, one, value) for one in own]


def _own_value(own: Mapping[str, str], value: Value, name: str) -> str:
    return own[name] if name in own else value(name)


def one_robot(value: Value) -> Value:
    """Give the arguments' values; raises ConfigurationError for several namespaces."""
    if ',' in value('namespace'):
        raise ConfigurationError(
            f'expected the namespace of one robot, got {value("namespace")!r}: launch once for '
            'each, with a ROS_DOMAIN_ID of its own where there is a /clock'
        )
    return value


def node_parameters(path: str, namespace: str, node: str, given: Mapping[str, Any]) -> str:
    """
    Text of a parameter file for one node, with values of launch arguments.

    Takes the sections for the node, without a namespace or with that one, and those for all nodes.
    A given value takes the place of the file's. Substitutions such as $(env NAME) in the file are
    left for launch, given values stay as they are. Raises ConfigurationError for a file that
    cannot be read.
    """
    shared_values: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for section, values in sections(read_parameters(path) if path else {}):
        where, _, name = section.rpartition('/')
        here = where.strip('/') in ('', '**', '*', namespace.strip('/'))
        if here and name in ('*', '**'):
            shared_values |= values
        elif here and name == node:
            own |= values
    own |= {name: _escaped(value) for name, value in given.items()}
    tree = {'/**': shared_values, f'/**/{node}': own}
    told = {key: {'ros__parameters': values} for key, values in tree.items() if values}
    # launch takes backslashes for its own: none to write a letter, none to break a line
    return str(yaml.safe_dump(told, allow_unicode=True, width=1 << 30))


def read_parameters(path: str) -> Any:
    """Read a YAML file of ROS parameters; raises ConfigurationError."""
    try:
        tree = yaml.safe_load(read_text(expanded(path)))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = ' '.join(str(error).split())
        raise ConfigurationError(
            f'params_file: expected a YAML file of ROS parameters, got {path!r} ({reason}): '
            'give the path of one, or leave the argument out'
        ) from error
    if tree is not None and not isinstance(tree, Mapping):
        raise ConfigurationError(
            f'params_file: expected sections with ros__parameters, got none in {path!r}: '
            'see config/localization.yaml'
        )
    return tree


def _escaped(value: Any) -> Any:
    """Return a value of which launch makes what it was."""
    if isinstance(value, list):
        return [_escaped(part) for part in value]
    if isinstance(value, str):
        return type(value)(value.replace('\\', '\\\\').replace('$(', '\\$('))
    return value
