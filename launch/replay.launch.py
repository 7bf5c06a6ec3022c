"""Play a COLD run or a bag to the localization node."""

from kbr_localization.ros import launching
from kbr_localization.ros.launch_values import one_robot
from kbr_localization.ros.player import PlayerParameters
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
    arguments = launching.arguments(
        run=None,
        map_file=None,
        rate='1.0',
        loop='false',
        exit_at_end='true',
        image_topic='image',
        odom_topic='odom',
        image_transport='',
        cameras='',
        image_topics='',
        params_file=launching.shared('config/localization.yaml'),
        namespace='',
        method='',
        use_sim_time='true',
        rviz='false',
        log_level='info',
    )
    source = PythonLaunchDescriptionSource(launching.shared('launch/localization.launch.py'))
    passed_on = {name: LaunchConfiguration(name) for name in PASSED_ON}
    localization = IncludeLaunchDescription(source, launch_arguments=passed_on.items())
    described = launching.description(__file__, nodes, arguments)
    described.add_action(localization)
    return described


def nodes(value):
    """Make the player from the arguments' values."""
    value = one_robot(value)
    at_end = Shutdown() if launching.is_true(value, 'exit_at_end') else None
    overrides = ['run', 'rate', 'loop', 'image_transport', 'cameras']
    file = launching.parameter_file('player', PlayerParameters, value, overrides)
    remappings = {'image': 'image_topic', 'odom': 'odom_topic'}
    node = launching.package_node('player', value, file, remappings, on_exit=at_end)
    return [launching.ends_with_failure(node), node]
