"""Play a COLD run or a bag to the localization node."""

from kbr_localization.ros.parameters import launching
from kbr_localization.ros.parameters.robots import one_robot
from launch.actions import IncludeLaunchDescription, Shutdown
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration

PASSED_ON = (
    'map_file',
    'params_file',
    'namespace',
    'method',
    'image_topic',
    'odom_topic',
    'image_transport',
    'image_topics',
    'use_sim_time',
    'rviz',
    'log_level',
)


def generate_launch_description():
    """Describe the player and the localization that listens to it."""
    source = PythonLaunchDescriptionSource(launching.shared('launch/localization.launch.py'))
    arguments = {name: LaunchConfiguration(name) for name in PASSED_ON}
    return launching.description(
        __file__,
        [
            launching.argument('run'),
            launching.argument('map_file'),
            launching.argument('rate', '1.0'),
            launching.argument('loop', 'false'),
            launching.argument('exit_at_end', 'true'),
            launching.argument('image_topic', 'image'),
            launching.argument('odom_topic', 'odom'),
            launching.argument('image_transport', ''),
            launching.argument('cameras', ''),
            launching.argument('image_topics', ''),
            launching.argument('params_file', launching.shared('config/localization.yaml')),
            launching.argument('namespace', ''),
            launching.argument('method', ''),
            launching.argument('use_sim_time', 'true'),
            launching.argument('rviz', 'false'),
            launching.argument('log_level', 'info'),
            *launching.dds_arguments(),
            launching.configured(nodes),
            IncludeLaunchDescription(source, launch_arguments=arguments.items()),
        ],
    )


def nodes(value):
    """Make the player from the arguments' values."""
    robot = one_robot(value)
    at_end = Shutdown() if launching.is_true(value, 'exit_at_end') else None
    overrides = ['run', 'rate', 'loop', 'image_transport', 'cameras']
    file = launching.parameter_file('player', robot, overrides)
    remappings = {'image': 'image_topic', 'odom': 'odom_topic'}
    node = launching.package_node('player_node', 'player', robot, file, remappings, on_exit=at_end)
    return [launching.ends_with_failure(node), node]
