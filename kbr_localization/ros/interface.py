"""Write the parameters into config/localization.yaml and docs/ros_interface.md."""

from collections.abc import Iterator
from pathlib import Path
import re
import textwrap
from typing import Any

from kbr_localization.configuration import allowed_values, fields_of
from kbr_localization.localization.config import KbrConfig
from kbr_localization.ros.config import InitialPose, NodeConfig, PlayerConfig, RecorderConfig
from kbr_localization.ros.parameters import to_ros
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
CONFIGS: tuple[Any, ...] = (NodeConfig, InitialPose, KbrConfig, RecorderConfig, PlayerConfig)


def parameter_file() -> str:
    """Return the content of config/localization.yaml: descriptions and defaults."""
    text = YAML_HEAD
    for head, config_class, indent in (
        ('', NodeConfig, '    '),
        ('    initial_pose:\n', InitialPose, '      '),
        (FILTER_HEAD, KbrConfig, '    # '),
    ):
        text += head
        comment = f'{indent.removesuffix("# ")}# '
        for name, default, description in _parameters(config_class):
            wrapped = textwrap.wrap(description, 99 - len(comment), break_on_hyphens=False)
            text += ''.join(f'{comment}{line}\n' for line in wrapped)
            text += f'{indent}{name}: {default}\n'
    return text


def interface_page(page: str) -> str:
    """Replace the tables of parameters, each after a comment with the name of its class."""
    for config_class in CONFIGS:
        table = '| name | default | |\n|---|---|---|\n'
        for name, default, text in _parameters(config_class):
            table += f'| `{config_class.prefix}{name}` | `{default}` | {text} |\n'
        head, mark, rest = page.partition(f'<!-- {config_class.__name__} -->\n')
        page = head + mark + table + re.sub(r'\A(\|.*\n)*', '', rest)
    return page


def main() -> None:
    root = Path(__file__).resolve().parents[2]
    (root / 'config' / 'localization.yaml').write_text(parameter_file())
    page = root / 'docs' / 'ros_interface.md'
    page.write_text(interface_page(page.read_text()))


def _parameters(config_class: Any) -> Iterator[tuple[str, str, str]]:
    """Yield names, defaults in YAML, and descriptions with the allowed values."""
    for name, field in fields_of(config_class).items():
        text = str(yaml.safe_dump(to_ros(field.default), default_flow_style=True))
        description, values = field.metadata['description'], allowed_values(field)
        if values:
            description += f' ({values})' if field.metadata['choices'] else f' {values}'
        yield name, text.removesuffix('...\n').strip(), description


if __name__ == '__main__':
    main()
