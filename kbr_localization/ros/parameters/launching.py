"""What the launch files share; only `ros2 launch` imports it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import difflib
import os
from pathlib import Path
import sys
import tempfile
from typing import Any

from kbr_localization.errors import ConfigurationError, RosError
from kbr_localization.files import expanded
from kbr_localization.resources import PACKAGE, profile_variable, PROFILE_VARIABLES, shared_file
from kbr_localization.ros.common.bond import have_bonds
from kbr_localization.ros.parameters import parameters
from kbr_localization.ros.parameters.launch_texts import TEXTS
from kbr_localization.ros.parameters.parameter_files import (
    launch_file_parameters,
    Text,
    unrenamed_section,
)
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

# a namespaced robot keeps its transforms to itself, as in nav2_bringup
TF_REMAPPINGS = [('/tf', 'tf'), ('/tf_static', 'tf_static')]
# a file name that looks like a number stays a name
TEXT_PARAMETERS = (
    'map_file',
    'grow_into',
    'out',
    'run',
    'method',
    'image_transport',
    'pose_type',
    'label',
    'global_frame_id',
    'odom_frame_id',
)
TRUE, FALSE = ('true', '1', 'yes', 'on'), ('', 'false', '0', 'no', 'off')
# lists are written with commas
LIST_PARAMETERS = ('map_files', 'image_topics', 'cameras')


def argument(name: str, default: str | None = None, text: str = '') -> DeclareLaunchArgument:
    """Declare an argument with its text, or another one; without a default it must be given."""
    return DeclareLaunchArgument(name, default_value=default, description=TEXTS[text or name])


def shared(relative: str) -> str:
    """Path of an installed file; raises FileNotFoundError."""
    path = shared_file(relative)
    if path is None:
        raise FileNotFoundError(f'{relative} of {PACKAGE} is not installed: build it again')
    return str(path)


def dds_arguments() -> list[Any]:
    """
    Argument `dds_profile`, and its effect; the default has none where a profile is set already.

    Raises FileNotFoundError where the package's profile is not installed; `rviz_node` likewise.
    """
    default = shared('config/fastdds.xml')

    def set_profile(context: LaunchContext) -> list[Any]:
        profile = LaunchConfiguration('dds_profile').perform(context)
        is_set = any(name in os.environ for name in PROFILE_VARIABLES)
        # `ros2 launch` takes no empty argument
        if profile in ('', 'none') or (is_set and profile == default):
            return []
        path = expanded(profile)
        if not path.is_file():
            raise ConfigurationError(
                f'dds_profile: expected the XML file of a Fast DDS profile, got {profile!r}, '
                'which is no file: give the path of one, or none'
            )
        return [SetEnvironmentVariable(profile_variable(), str(path))]

    return [argument('dds_profile', default), OpaqueFunction(function=set_profile)]


def configured(build: Callable[[Callable[[str], str]], Sequence[Any]]) -> OpaqueFunction:
    """Run `build` with a function that gives the arguments' values, when they are known."""

    def function(context: LaunchContext) -> Sequence[Any]:
        return build(lambda name: str(LaunchConfiguration(name).perform(context)))

    return OpaqueFunction(function=function)


def description(path: str, entities: Sequence[Any]) -> LaunchDescription:
    """
    Describe the launch file of a path; given arguments that nothing in it knows are named.

    They are taken away, as they would reach what is included later on.
    """

    def check(context: LaunchContext) -> None:
        known = [known.name for known in described.get_launch_arguments()]
        for name in unknown_arguments(path, known, sys.argv):
            context.launch_configurations.pop(name, None)
            close = difflib.get_close_matches(name, known, n=1)
            remedy = f'did you mean {close[0]!r}?' if close else 'see --show-args'
            launch.logging.get_logger('launch.user').warning(
                f'launch argument {name!r} is not known and has no effect: {remedy}'
            )

    described = LaunchDescription([OpaqueFunction(function=check), *entities])
    return described


def unknown_arguments(path: str, known: Sequence[str], command: Sequence[str]) -> list[str]:
    """Names given to the launch file of a path on the command line, but not known to it."""
    if Path(path).name not in [Path(part).name for part in command]:
        return []  # included by another one, whose arguments they are
    given = [part.partition(':=')[0] for part in command if ':=' in part]
    return [name for name in given if name not in known]


def parameter_arguments(config_class: Any) -> list[DeclareLaunchArgument]:
    """Declare an argument for each parameter of a configuration; empty leaves it as it is."""
    return [
        DeclareLaunchArgument(
            name,
            default_value='',
            description=f'{field.metadata["description"]} (parameter, default {field.default})',
        )
        for name, field in parameters.fields(config_class).items()
    ]


def parameter_file(
    name: str, value: Callable[[str], str], overrides: Sequence[str], **fixed: Any
) -> ParameterFile:
    """
    Write the parameters of a node: those of `params_file` and the arguments that are not empty.

    `overrides`: arguments that become parameters of the same name; `fixed`: values that nothing
    overrides. Raises ConfigurationError when the file is missing or none of parameters.
    """
    path = value('params_file')
    given = {key: _typed(key, value(key)) for key in overrides if value(key)} | fixed
    if 'use_sim_time' in given:
        given['use_sim_time'] = is_true(value, 'use_sim_time')
    text = launch_file_parameters(path, value('namespace'), name, given)
    if name == 'localization' and path and (forgotten := unrenamed_section(path, name)):
        launch.logging.get_logger('launch.user').warning(forgotten)
    folder = launch.logging.launch_config.log_dir
    with tempfile.NamedTemporaryFile(
        'w', dir=folder, prefix=f'{name}_', suffix='.yaml', delete=False
    ) as file:
        file.write(text)
    return ParameterFile(file.name, allow_substs=True)


def package_node(
    executable: str,
    name: str,
    value: Callable[[str], str],
    parameter_file: ParameterFile,
    remappings: Mapping[str, str],
    **options: Any,
) -> Node:
    """Node of this package; `remappings`: its topics to the arguments that name others."""
    renamed = [(topic, value(name)) for topic, name in remappings.items()]
    return Node(
        package=PACKAGE,
        executable=executable,
        name=name,
        namespace=value('namespace'),
        parameters=[parameter_file],
        remappings=[*TF_REMAPPINGS, *renamed, *_compressed(renamed)],
        arguments=['--ros-args', '--log-level', value('log_level')],
        output='screen',
        **options,
    )


def ends_with_failure(node: Node) -> RegisterEventHandler:
    """
    End everything, and `ros2 launch` with exit code 1, when a node fails by itself.

    What the launch service then gets from the handler is a RosError.
    """

    def on_exit(event: ProcessExited, context: LaunchContext) -> None:
        if event.returncode != 0 and not context.is_shutdown:
            raise RosError(f'{event.process_name} ended with exit code {event.returncode}')

    return RegisterEventHandler(OnProcessExit(target_action=node, on_exit=on_exit))


def map_server_nodes(value: Callable[[str], str], parameter_file: ParameterFile) -> list[Node]:
    """
    Make nav2_map_server and the lifecycle manager that leads it and the localization.

    Raises ConfigurationError when `map` is not the file of an occupancy grid.
    """
    grid = expanded(value('map'))
    if grid.suffix not in ('.yaml', '.yml') or not grid.is_file():
        missing = '' if grid.exists() else ', which does not exist'
        raise ConfigurationError(
            f'map: expected the YAML file of an occupancy grid, got {value("map")!r}{missing}: '
            'give the map of images as map_file'
        )
    timed: dict[str, Any] = {}
    if value('use_sim_time'):
        timed['use_sim_time'] = is_true(value, 'use_sim_time')
    managed: dict[str, Any] = {'autostart': not value('autostart') or is_true(value, 'autostart')}
    managed |= {} if have_bonds() else {'bond_timeout': 0.0}
    common: dict[str, Any] = {'namespace': value('namespace'), 'output': 'screen'}
    server = Node(
        package='nav2_map_server',
        executable='map_server',
        name='map_server',
        parameters=[parameter_file, {'yaml_filename': str(grid)}, timed],
        remappings=TF_REMAPPINGS,
        **common,
    )
    manager = Node(
        package='nav2_lifecycle_manager',
        executable='lifecycle_manager',
        name='lifecycle_manager_localization',
        parameters=[timed, managed, {'node_names': ['map_server', 'localization']}],
        **common,
    )
    return [server, manager]


def is_true(value: Callable[[str], str], name: str) -> bool:
    """Whether an argument says so; empty does not. Raises ConfigurationError for other words."""
    text = value(name).lower()
    if text not in (*TRUE, *FALSE):
        raise ConfigurationError(f'{name}: expected true or false, got {value(name)!r}')
    return text in TRUE


def rviz_node(value: Callable[[str], str]) -> Node:
    """Make RViz with the package's view, if the argument `rviz` says so."""
    return Node(
        package='rviz2',
        executable='rviz2',
        arguments=['-d', shared('config/kbr_localization.rviz')],
        parameters=[{'use_sim_time': is_true(value, 'use_sim_time')}],
        remappings=[*TF_REMAPPINGS, ('odom', value('odom_topic'))],
        namespace=value('namespace'),
        condition=IfCondition(str(is_true(value, 'rviz'))),
    )


def _typed(name: str, text: str) -> Any:
    if name in LIST_PARAMETERS:
        return [Text(part.strip()) for part in text.split(',')]
    return Text(text) if name in TEXT_PARAMETERS else yaml.safe_load(text)


def _compressed(remappings: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [
        (f'{topic}/compressed', f'{other.removesuffix("/compressed")}/compressed')
        for topic, other in remappings
        if topic == 'image'
    ]
