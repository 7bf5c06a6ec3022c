"""
The ROS interface as text, made from the code: config/localization.yaml and docs/ros_interface.md.

`python -m kbr_localization.ros.interface` in the source tree writes both files anew.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import textwrap
from typing import Any

from kbr_localization.localization.config import FilterConfig
from kbr_localization.ros import parameters
from kbr_localization.ros.node_config import InitialPose, NodeConfig
import yaml

YAML_HEAD = """\
# Parameters of the localization node with their defaults; docs/ros_interface.md explains them.
# Made by `python -m kbr_localization.ros.interface`, checked by a test: copy it, then edit.
/**/localization:
  ros__parameters:
"""
FILTER_HEAD = """\
    # Parameters of the filter. They come from the map, which was built or tuned with them:
    # uncomment one only to override the map's value.
"""


def parameter_file() -> str:
    """Contents of config/localization.yaml."""
    lines = [YAML_HEAD]
    lines += [f'{line}\n' for line in _settings(NodeConfig, '    ')]
    lines += ['    initial_pose:\n']
    lines += [f'{line}\n' for line in _settings(InitialPose, '      ')]
    lines += [FILTER_HEAD]
    lines += [f'{line}\n' for line in _settings(FilterConfig, '    # ')]
    return ''.join(lines)


def _settings(config_class: Any, indent: str) -> Iterator[str]:
    for name, field in parameters.fields(config_class).items():
        comment = indent if indent.rstrip().endswith('#') else f'{indent}# '
        text = f'{field.metadata["description"]}{_range(field)}'
        yield from textwrap.wrap(
            text,
            99,
            initial_indent=comment,
            subsequent_indent=comment,
            break_on_hyphens=False,
        )
        yield f'{indent}{name}: {_value(field.default)}'


def _range(field: dataclasses.Field[Any]) -> str:
    low, high, choices = (field.metadata[key] for key in ('low', 'high', 'choices'))
    if choices:
        return f' ({", ".join(choices)})'
    if low is None and high is None:
        return ''
    return f' [{"..." if low is None else low}, {"..." if high is None else high}]'


def _value(default: Any) -> str:
    value = (list(default) or ['']) if isinstance(default, tuple) else default
    return str(yaml.safe_dump(value, default_flow_style=True)).removesuffix('...\n').strip()
