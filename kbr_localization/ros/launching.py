"""What the launch files share; only `ros2 launch` imports it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import difflib
import os
import sys
import tempfile
from typing import Any

from kbr_localization.errors import ConfigurationError, RosError
from kbr_localization.files import expanded
from kbr_localization.resources import PACKAGE, profile_variable, PROFILE_VARIABLES, shared_file
from kbr_localization.ros.bond import have_bonds
from kbr_localization.ros.config import NodeConfig
from kbr_localization.ros.launch_values import (
    node_parameters,
    read_parameters,
    Text,
    unknown_arguments,
    Value,
)
from kbr_localization.ros.parameters import fields, sections
from kbr_localization.ros.player import PlayerParameters
from launch import LaunchContext, LaunchDescription
from launch.actions import (
    DeclareLaunchArgument,
    OpaqueFunction,
    RegisterEventHandler,
    SetEnvironmentVariable,
)
from launch.conditions import IfCondition
from launch.event_handlers import OnProcessExit
from launch.events.process import ProcessExited
import launch.logging
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterFile
import yaml

# a robot with a namespace keeps its transforms to itself, as in nav2_bringup
TF_REMAPPINGS = [('/tf', 'tf'), ('/tf_static', 'tf_static')]
ARGUMENTS = {
    'params_file': (
        'parameters of the node, as of a Nav2 file; arguments that are given here override them; '
        'a section without a namespace is meant for the one given here'
    ),
    'namespace': 'namespace of the robot; in localization.launch.py, with commas, of several',
    'use_sim_time': 'take the time from /clock; empty: as the parameters say',
    'map': (
        'occupancy grid (YAML) for the costmap: also start nav2_map_server and '
        'lifecycle_manager_localization, which then leads both nodes'
    ),
    'use_respawn': 'start the node again when it dies',
    'image_topic': 'topic of the camera; compressed images come on <topic>/compressed',
    'odom_topic': 'topic of the odometry',
    'log_level': 'debug, info, warn or error',
    'rviz': 'also open RViz with the package view',
    'dds_profile': 'Fast DDS profile for raw images; none: leave DDS as it is',
    'exit_at_end': 'end everything when the run is over',
    'pose_topic': (
        'topic of the pose in the map, from AMCL, SLAM or motion capture; where nobody knows it '
        'give pose_type:=none, and `kbr map build --poses odometry` makes the map'
    ),
    'folder': 'where the building, its runs and the map are kept',
}
"""Descriptions of arguments that are no parameters of a node."""


def arguments(config_class: Any = NodeConfig, **defaults: str | None) -> list[Any]:
    """
    Declare launch arguments by name and default; without a default (None) one must be given.

    Parameters have the description of `config_class`; an empty argument leaves the default.
    """
    known = fields(PlayerParameters) | fields(config_class)
    texts = {name: field.metadata['description'] for name, field in known.items()} | ARGUMENTS
    return [
        DeclareLaunchArgument(name, default_value=default, description=texts[name])
        for name, default in defaults.items()
    ]


def shared(relative: str) -> str:
    """Path of an installed file; raises FileNotFoundError."""
    path = shared_file(relative)
    if path is None:
        raise FileNotFoundError(f'{relative} of {PACKAGE} is not installed: build it again')
    return str(path)


def description(
    path: str, build: Callable[[Value], Sequence[Any]], entities: Sequence[Any]
) -> LaunchDescription:
    """
    Describe the launch file of a path: arguments, the DDS profile, and what `build` makes of them.

    Arguments on the command line that nothing in it knows are named and removed, as they would
    reach what is included later on.
    """

    def run(context: LaunchContext) -> Sequence[Any]:
        known = [known.name for known in described.get_launch_arguments()]
        for name in unknown_arguments(path, known, sys.argv):
            context.launch_configurations.pop(name, None)
            close = difflib.get_close_matches(name, known, n=1)
            remedy = f'did you mean {close[0]!r}?' if close else 'see --show-args'
            launch.logging.get_logger('launch.user').warning(
                f'launch argument {name!r} is not known and has no effect: {remedy}'
            )

        def value(name: str) -> str:
            return str(LaunchConfiguration(name).perform(context))

        return [*_dds_profile(value('dds_profile')), *build(value)]

    default = shared('config/fastdds.xml')
    described = LaunchDescription(
        [*entities, *arguments(dds_profile=default), OpaqueFunction(function=run)]
    )
    return described


def _dds_profile(profile: str) -> list[Any]:
    """Set the Fast DDS profile; the default has no effect where one is set already."""
    is_set = any(name in os.environ for name in PROFILE_VARIABLES)
    # `ros2 launch` takes no empty argument
    if profile in ('', 'none') or (is_set and profile == shared('config/fastdds.xml')):
        return []
    if not expanded(profile).is_file():
        raise ConfigurationError(
            f'dds_profile: expected the XML file of a Fast DDS profile, got {profile!r}, '
            'which is no file: give the path of one, or none'
        )
    return [SetEnvironmentVariable(profile_variable(), str(expanded(profile)))]


def parameter_file(
    node: str, config_class: Any, value: Value, overrides: Sequence[str], **fixed: Any
) -> ParameterFile:
    """
    Write the parameters of a node: `params_file` and the arguments that are not empty.

    `overrides`: arguments that become parameters of the same name; `fixed`: values that nothing
    overrides.
    """
    known, given = fields(config_class), dict[str, Any]()
    for name in overrides:
        if not value(name):
            continue
        default = known[name].default if name in known else False
        if isinstance(default, tuple):
            given[name] = [Text(part.strip()) for part in value(name).split(',')]
        elif isinstance(default, str):
            given[name] = Text(value(name))  # a file name that looks like a number stays a name
        elif name == 'use_sim_time':
            given[name] = is_true(value, name)
        else:
            given[name] = yaml.safe_load(value(name))
    path = value('params_file')
    text = node_parameters(path, value('namespace'), node, given | fixed)
    if node == 'localization' and path:
        names = {section.rpartition('/')[2] for section, _ in sections(read_parameters(path))}
        if 'amcl' in names and not names & {node, '*', '**'}:
            launch.logging.get_logger('launch.user').warning(
                f"params_file: {path} has no section for the node {node!r}: rename that of 'amcl'"
            )
    with tempfile.NamedTemporaryFile(
        'w',
        dir=launch.logging.launch_config.log_dir,
        prefix=f'{node}_',
        suffix='.yaml',
        delete=False,
    ) as file:
        file.write(text)
    return ParameterFile(file.name, allow_substs=True)


def package_node(
    name: str,
    value: Value,
    parameters: ParameterFile,
    remappings: Mapping[str, str],
    **options: Any,
) -> Node:
    """Node of this package; `remappings`: its topics to the arguments that name others."""
    renamed = [(topic, value(argument)) for topic, argument in remappings.items()]
    images = [
        (f'{topic}/compressed', f'{other.removesuffix("/compressed")}/compressed')
        for topic, other in renamed
        if topic == 'image'
    ]
    return Node(
        package=PACKAGE,
        executable=f'{name}_node',
        name=name,
        namespace=value('namespace'),
        parameters=[parameters],
        remappings=[*TF_REMAPPINGS, *renamed, *images],
        arguments=['--ros-args', '--log-level', value('log_level')],
        output='screen',
        **options,
    )


def ends_with_failure(node: Node) -> RegisterEventHandler:
    """End `ros2 launch` with exit code 1 when a node fails."""

    def on_exit(event: ProcessExited, context: LaunchContext) -> None:
        if event.returncode != 0 and not context.is_shutdown:
            raise RosError(f'{event.process_name} ended with exit code {event.returncode}')

    return RegisterEventHandler(OnProcessExit(target_action=node, on_exit=on_exit))


def map_server_nodes(value: Value) -> list[Node]:
    """
    Make nav2_map_server and the lifecycle manager that leads it and the localization.

    Raises ConfigurationError when `map` is not the file of an occupancy grid.
    """
    grid = expanded(value('map'))
    if grid.suffix not in ('.yaml', '.yml') or not grid.is_file():
        raise ConfigurationError(
            f'map: expected the YAML file of an occupancy grid, got {value("map")!r}: '
            'give the map of images as map_file'
        )
    timed = {'use_sim_time': is_true(value, 'use_sim_time')} if value('use_sim_time') else {}
    autostart = not value('autostart') or is_true(value, 'autostart')
    managed: dict[str, Any] = {
        'autostart': autostart,
        'node_names': ['map_server', 'localization'],
        **({} if have_bonds() else {'bond_timeout': 0.0}),
    }
    common: dict[str, Any] = {'namespace': value('namespace'), 'output': 'screen'}
    server = Node(
        package='nav2_map_server',
        executable='map_server',
        name='map_server',
        parameters=[
            parameter_file('map_server', NodeConfig, value, ['use_sim_time']),
            {'yaml_filename': str(grid)},
        ],
        remappings=TF_REMAPPINGS,
        **common,
    )
    manager = Node(
        package='nav2_lifecycle_manager',
        executable='lifecycle_manager',
        name='lifecycle_manager_localization',
        parameters=[timed, managed],
        **common,
    )
    return [server, manager]


def is_true(value: Value, name: str) -> bool:
    """Parse an argument; empty is false. Raises ConfigurationError for other words."""
    text = value(name).lower()
    if text not in ('true', '1', 'yes', 'on', '', 'false', '0', 'no', 'off'):
        raise ConfigurationError(f'{name}: expected true or false, got {value(name)!r}')
    return text in ('true', '1', 'yes', 'on')


def rviz_node(value: Value) -> Node:
    """Make RViz with the package's view, if the argument `rviz` is true."""
    return Node(
        package='rviz2',
        executable='rviz2',
        arguments=['-d', shared('config/kbr_localization.rviz')],
        parameters=[{'use_sim_time': is_true(value, 'use_sim_time')}],
        remappings=[*TF_REMAPPINGS, ('odom', value('odom_topic'))],
        namespace=value('namespace'),
        condition=IfCondition(str(is_true(value, 'rviz'))),
    )
