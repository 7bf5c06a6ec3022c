"""What the launch files share; only `ros2 launch` imports it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import os
from typing import Any

from kbr_localization.errors import RosError
from kbr_localization.resources import PACKAGE, shared_file
from launch import LaunchContext
from launch.actions import (
    DeclareLaunchArgument,
    OpaqueFunction,
    RegisterEventHandler,
    SetEnvironmentVariable,
)
from launch.conditions import IfCondition
from launch.event_handlers import OnProcessExit
from launch.events.process import ProcessExited
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
import yaml

PROFILE_VARIABLES = ('FASTDDS_DEFAULT_PROFILES_FILE', 'FASTRTPS_DEFAULT_PROFILES_FILE')
# from Jazzy on the second name only earns a warning
OLD_NAME_DISTRIBUTIONS = ('foxy', 'galactic', 'humble', 'iron')
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
)
# lists are written with commas
LIST_PARAMETERS = ('map_files', 'image_topics', 'cameras')

TEXTS = {
    'map_file': 'map made by `kbr map build`, or a name out of map_files',
    'map_files': 'several maps: name=path,name=path; each gets a service ~/load_map/<name>',
    'grow_map': 'add images to the map where the pose is sure but no map image looks alike',
    'grow_into': (
        'folder for maps with added images; empty: the map file itself is replaced; of several '
        'robots each has its own folder in it, by default in ~/.ros/kbr_localization/grown'
    ),
    'run': 'COLD run folder or rosbag2 to play',
    'params_file': 'parameters of the node; arguments given here override them',
    'namespace': 'namespace of the robot',
    'namespaces': 'namespace of the robot; with commas, of several robots on the same maps',
    'use_sim_time': 'take the time from /clock',
    'autostart': 'configure and activate the node at once; false for a lifecycle manager',
    'method': 'localization method, see `kbr methods`; empty: as the parameters say',
    'image_topic': 'topic of the camera; compressed images come on <topic>/compressed',
    'image_topics': 'topics of several cameras: front/image,rear/image; empty: image_topic alone',
    'cameras': 'cameras of the run to play, if it has several: front,rear',
    'odom_topic': 'topic of the odometry',
    'image_transport': 'raw or compressed; empty: as the parameters say',
    'log_level': 'debug, info, warn or error',
    'respawn': 'start the node again when it dies',
    'rviz': 'also open RViz with the package view',
    'dds_profile': 'Fast DDS profile for raw images; empty: leave DDS as it is',
    'rate': 'speed relative to the recording',
    'loop': 'start over at the end',
    'exit_at_end': 'end everything when the run is over',
    'out': 'run folder to write; an existing run is continued',
    'pose_topic': 'topic of the pose in the map, from AMCL, SLAM or motion capture',
    'pose_type': 'pose_with_covariance, pose or odometry',
    'spacing_distance': 'metres of way after which an image is recorded',
    'spacing_angle': 'radians of turning after which an image is recorded',
    'folder': 'where the building, its runs and the map are kept',
}


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
    """Argument `dds_profile`, and its effect where no other profile is set already."""

    def set_profile(context: LaunchContext) -> list[Any]:
        profile = LaunchConfiguration('dds_profile').perform(context)
        if not profile or any(name in os.environ for name in PROFILE_VARIABLES):
            return []
        old = os.environ.get('ROS_DISTRO') in OLD_NAME_DISTRIBUTIONS
        return [SetEnvironmentVariable(PROFILE_VARIABLES[1 if old else 0], profile)]

    default = shared('config/fastdds.xml')
    return [argument('dds_profile', default), OpaqueFunction(function=set_profile)]


def configured(build: Callable[[Callable[[str], str]], Sequence[Any]]) -> OpaqueFunction:
    """Run `build` with a function that gives the arguments' values, when they are known."""

    def function(context: LaunchContext) -> Sequence[Any]:
        return build(lambda name: str(LaunchConfiguration(name).perform(context)))

    return OpaqueFunction(function=function)


def package_node(
    executable: str,
    name: str,
    value: Callable[[str], str],
    overrides: Sequence[str],
    remappings: Mapping[str, str],
    files: Sequence[str] = (),
    **options: Any,
) -> Node:
    """
    Node of this package.

    `overrides`: arguments that become parameters of the same name where they are not empty.
    `remappings`: topics of the node to the arguments that name others.
    """
    given = {key: value(key) for key in overrides if value(key)}
    typed = {key: _typed(key, text) for key, text in given.items()}
    renamed = [(topic, value(name)) for topic, name in remappings.items()]
    return Node(
        package=PACKAGE,
        executable=executable,
        name=name,
        namespace=value('namespace'),
        parameters=[*files, typed],
        remappings=[*TF_REMAPPINGS, *renamed, *_compressed(renamed)],
        arguments=['--ros-args', '--log-level', value('log_level')],
        output='screen',
        **options,
    )


def ends_with_failure() -> RegisterEventHandler:
    """End everything, and `ros2 launch` with exit code 1, when a process fails by itself."""

    def on_exit(event: ProcessExited, context: LaunchContext) -> None:
        respawn = context.launch_configurations.get('respawn', 'false').lower() == 'true'
        if event.returncode != 0 and not context.is_shutdown and not respawn:
            raise RosError(f'{event.process_name} ended with exit code {event.returncode}')

    return RegisterEventHandler(OnProcessExit(on_exit=on_exit))


def rviz_node(value: Callable[[str], str]) -> Node:
    """Make RViz with the package's view, if the argument `rviz` says so."""
    return Node(
        package='rviz2',
        executable='rviz2',
        arguments=['-d', shared('config/kbr_localization.rviz')],
        parameters=[{'use_sim_time': value('use_sim_time').lower() == 'true'}],
        remappings=TF_REMAPPINGS,
        namespace=value('namespace'),
        condition=IfCondition(value('rviz')),
    )


def _typed(name: str, text: str) -> Any:
    if name in LIST_PARAMETERS:
        return [part.strip() for part in text.split(',')]
    return text if name in TEXT_PARAMETERS else yaml.safe_load(text)


def _compressed(remappings: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [
        (f'{topic}/compressed', f'{other}/compressed')
        for topic, other in remappings
        if topic == 'image'
    ]
