"""Functions for the launch files; only `ros2 launch` imports this module."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kbr_localization.configuration import Config, fields_of
from kbr_localization.errors import ConfigurationError, RosError
from kbr_localization.files import expanded
from kbr_localization.resources import fast_dds_profile, PACKAGE, shared_file
from launch import actions, LaunchContext, LaunchDescription
from launch.event_handlers import OnProcessExit
from launch.events.process import ProcessExited
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterFile, ParameterValue

Values = Mapping[str, str]
"""Values of launch arguments by name; an empty one keeps the default of the parameter."""
# a robot with a namespace has its own transforms, as in nav2_bringup
TF_REMAPPINGS = [('/tf', 'tf'), ('/tf_static', 'tf_static')]
ARGUMENTS = {
    'params_file': 'parameters of the nodes; launch arguments override them',
    'namespace': 'namespace of the robot',
    'use_sim_time': 'take the time from /clock; empty: as the parameters say',
    'map': (
        'occupancy grid (YAML) for the costmap: also start nav2_map_server and its '
        'lifecycle_manager_localization'
    ),
    'use_respawn': 'start the node again when it dies, but not for bad input',
    'image_topic': 'topic of the camera; compressed images come on <topic>/compressed',
    'odom_topic': 'topic of the odometry',
    'pose_topic': 'topic of the pose in the map, from AMCL, SLAM or motion capture',
    'log_level': 'debug, info, warn or error',
    'rviz': 'also open RViz with the package view',
    'exit_at_end': 'end everything when the run is over',
}
"""Descriptions of arguments that are not parameters of a node."""
COMMON = {
    'params_file': '', 'namespace': '', 'use_sim_time': '', 'image_topic': 'image',
    'odom_topic': 'odom', 'log_level': 'info',
}  # fmt: skip
"""Arguments that every launch file has, with their defaults."""


def describe(
    build: Callable[[Values], Iterable[Any]], config_class: Any, **defaults: str | None
) -> LaunchDescription:
    """
    Describe launch arguments and what `build` makes of their values.

    `defaults`: by name, in addition to `COMMON` or instead; None: must be given. Fast DDS uses the
    profile for raw images unless the environment names one.
    """
    fields, defaults = fields_of(config_class).items(), {**COMMON, **defaults}
    texts = ARGUMENTS | {name: field.metadata['description'] for name, field in fields}

    def run(context: LaunchContext) -> list[Any]:
        return list(build({name: LaunchConfiguration(name).perform(context) for name in defaults}))

    described: list[Any] = [
        actions.DeclareLaunchArgument(name, default_value=default, description=texts[name])
        for name, default in defaults.items()
    ]
    shared('config/fastdds.xml')  # fail if it is missing: without it raw images are lost
    described += [actions.SetEnvironmentVariable(*each) for each in fast_dds_profile().items()]
    return LaunchDescription([*described, actions.OpaqueFunction(function=run)])


def shared(relative: str) -> str:
    """Return the path of an installed file; raises FileNotFoundError."""
    path = shared_file(relative)
    if path is None:
        raise FileNotFoundError(f'{relative} of {PACKAGE} is not installed: build it again')
    return str(path)


def package_node(name: str, config_class: Any, values: Values, **options: Any) -> list[Any]:
    """
    Describe a node of this package; `ros2 launch` ends with exit code 1 when the node fails.

    Arguments <topic>_topic remap topics. With `use_respawn` only bad input (exit code 2) is a
    failure.
    """
    suffix, respawn = '_topic', values.get('use_respawn', '').lower() == 'true'
    renamed = [(n.removesuffix(suffix), to) for n, to in values.items() if n.endswith(suffix)]
    image = values['image_topic'].removesuffix('/compressed')
    node = Node(
        package=PACKAGE,
        executable=f'{name}_node',
        name=name,
        namespace=values['namespace'],
        parameters=parameters(values, config_class),
        remappings=[*TF_REMAPPINGS, *renamed, ('image/compressed', f'{image}/compressed')],
        arguments=['--ros-args', '--log-level', values['log_level']],
        output='screen',
        respawn=respawn,
        respawn_delay=0.2,
        **options,
    )

    def on_exit(event: ProcessExited, context: LaunchContext) -> None:
        failed = event.returncode == 2 if respawn else event.returncode != 0
        if failed and not context.is_shutdown:
            raise RosError(f'{event.process_name} ended with exit code {event.returncode}')

    return [actions.RegisterEventHandler(OnProcessExit(target_action=node, on_exit=on_exit)), node]


def parameters(values: Values, config_class: Any = Config, **fixed: Any) -> list[Any]:
    """
    Return the parameters of a node: of `params_file`, then of arguments, then `fixed` ones.

    Arguments that are not empty set `use_sim_time` and the fields of the class.
    """
    defaults = {name: field.default for name, field in fields_of(config_class).items()}
    given: dict[str, Any] = {}
    for name, default in {'use_sim_time': False, **defaults}.items():
        text = values.get(name)
        if text and isinstance(default, tuple):
            given[name] = ParameterValue(text.split(','), value_type=list[str])
        elif text:
            given[name] = ParameterValue(LaunchConfiguration(name), value_type=type(default))
    path = values['params_file']
    if path and not expanded(path).is_file():
        raise ConfigurationError(f'params_file: expected a YAML file, got {path!r}')
    file = [ParameterFile(expanded(path), allow_substs=True)] if path else []
    return [*file, *([given | fixed] if given or fixed else [])]
