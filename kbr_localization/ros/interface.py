"""
The ROS interface as text, made from the code: config/localization.yaml and docs/ros_interface.md.

`python -m kbr_localization.ros.interface` in the source tree writes both files.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
from pathlib import Path
import textwrap
from typing import Any

from kbr_localization.localization.config import KbrConfig
from kbr_localization.ros import parameters
from kbr_localization.ros.config import InitialPose, NodeConfig, PlayerConfig, RecorderConfig
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

PAGE_HEAD = """\
# ROS interface

Names are relative and can be remapped. Made by `python -m kbr_localization.ros.interface`, checked
by a test. An empty list is `['']` to ROS tools; `[]` is taken as well. Parameters of the images
(`vision.words` and others) belong to the map, not to the nodes: `kbr parameters` lists them.

"""
LOCALIZATION_TOPICS = """\
| name | type | |
|---|---|---|
| `image` | sensor_msgs/Image | `image_transport: raw`; the frame of the camera is not needed |
| `image/compressed` | sensor_msgs/CompressedImage | camera, `image_transport: compressed` |
| those of `image_topics` | as `image` | several cameras; `<topic>/compressed` likewise |
| `odom` | nav_msgs/Odometry | wheel odometry, where `odom_source` takes it |
| `/tf`, `/tf_static` | tf2_msgs/TFMessage | odometry, where `odom_source` takes it |
| `initialpose` | geometry_msgs/PoseWithCovarianceStamped | RViz's "2D Pose Estimate" |
| `amcl_pose`, `~/pose` | geometry_msgs/PoseWithCovarianceStamped | the answer |
| `particle_cloud` | nav2_msgs/ParticleCloud | samples of the belief; without nav2_msgs a \
geometry_msgs/PoseArray |
| `~/map_poses` | visualization_msgs/MarkerArray | the map, coloured by the belief |
| `~/best_match` | sensor_msgs/CompressedImage | image beside its match, when subscribed |
| `/diagnostics` | diagnostic_msgs/DiagnosticArray | status, reasons and counts, at 1 Hz; see \
[troubleshooting](troubleshooting.md#images-that-are-dropped) for why images are dropped |
| `/tf` | tf2_msgs/TFMessage | map to odom, where tf2_msgs is installed |
| `bond` | bond/Status | heartbeats for a lifecycle manager, where bond is installed |
| `set_initial_pose` | nav2_msgs/SetInitialPose | service: as `initialpose`, with nav2_msgs |
| `reinitialize_global_localization` | std_srvs/Empty | service: forget the pose |
| `request_nomotion_update` | std_srvs/Empty | service: use the next image in any case |
| `~/load_map` | std_srvs/Trigger | service: load the map that `map_file` names |
| `~/load_map/<name>` | std_srvs/Trigger | service: load a map of `map_files` |
| `~/add_current` | std_srvs/Trigger | service: add the last image to the map, and write it |

"""
RECORDER_TOPICS = """\
Images and odometry as `localization_node`; besides:

| name | type | |
|---|---|---|
| `pose` | as `pose_type` says | the pose in the map, from whoever knows it |
| `~/recorded_poses` | geometry_msgs/PoseArray | where images were recorded |
| `/diagnostics` | diagnostic_msgs/DiagnosticArray | what is recorded and dropped, at 1 Hz |

"""
PLAYER_TOPICS = """\
| name | type | |
|---|---|---|
| `image` | sensor_msgs/Image | images, `image_transport: raw` |
| `image/compressed` | sensor_msgs/CompressedImage | images, `image_transport: compressed` |
| `<camera>/image` | as `image` | several cameras; `<camera>/image/compressed` likewise |
| `odom` | nav_msgs/Odometry | wheel odometry |
| `reference_pose` | geometry_msgs/PoseWithCovarianceStamped | the known pose of each image |
| `/clock` | rosgraph_msgs/Clock | time of the recording, with `stamps: recorded` |

"""
NODES: tuple[tuple[str, str, tuple[tuple[str, str, Any], ...]], ...] = (
    (
        'localization_node',
        LOCALIZATION_TOPICS,
        (
            ('Parameters', '', NodeConfig),
            ('Initial pose', 'initial_pose.', InitialPose),
            ("Parameters of the filter (the map's, unless overridden)", '', KbrConfig),
        ),
    ),
    ('recorder_node', RECORDER_TOPICS, (('Parameters', '', RecorderConfig),)),
    ('player_node', PLAYER_TOPICS, (('Parameters', '', PlayerConfig),)),
)
"""Each node with its topics, and its parameters by title and prefix."""
TABLE_HEAD = '| name | default | |\n|---|---|---|\n'


def parameter_file() -> str:
    """Contents of config/localization.yaml."""
    lines = [YAML_HEAD]
    lines += [f'{line}\n' for line in _settings(NodeConfig, '    ')]
    lines += ['    initial_pose:\n']
    lines += [f'{line}\n' for line in _settings(InitialPose, '      ')]
    lines += [FILTER_HEAD]
    lines += [f'{line}\n' for line in _settings(KbrConfig, '    # ')]
    return ''.join(lines)


def interface_page() -> str:
    """Contents of docs/ros_interface.md."""
    lines, above = [PAGE_HEAD], set[str]()
    for node, topics, sections in NODES:
        lines += [f'## `{node}`\n\n### Topics and services\n\n', topics]
        for title, prefix, config_class in sections:
            rows = dict.fromkeys(_rows(prefix, config_class))
            lines += [f'### {title}\n\n', TABLE_HEAD, *(row for row in rows if row not in above)]
            if again := [row.split(' | ')[0].lstrip('| ') for row in rows if row in above]:
                lines += [f'\nAs `{NODES[0][0]}`: {", ".join(again)}.\n']
            lines += ['\n']
            above |= rows.keys()
    return ''.join(lines).removesuffix('\n')


def main() -> None:
    """Write both files."""
    root = Path(__file__).resolve().parents[2]
    (root / 'config' / 'localization.yaml').write_text(parameter_file())
    (root / 'docs' / 'ros_interface.md').write_text(interface_page())


def _rows(prefix: str, config_class: Any) -> Iterator[str]:
    for name, field in parameters.fields(config_class).items():
        text = f'{field.metadata["description"]}{_range(field)}'.replace('|', '\\|')
        yield f'| `{prefix}{name}` | `{_value(field.default)}` | {text} |\n'


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


if __name__ == '__main__':
    main()
