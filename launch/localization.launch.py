"""Localize a robot by its camera and odometry on a map; composable with nav2_bringup."""

from kbr_localization.ros import launching
from kbr_localization.ros.config import NodeConfig
from kbr_localization.ros.launch_values import robots

OVERRIDES = (
    'map_file',
    'map_files',
    'grow_map',
    'grow_into',
    'autostart',
    'method',
    'image_transport',
    'image_topics',
)


def generate_launch_description():
    """Describe the localization node and, if asked for, Nav2's map server and RViz."""
    arguments = launching.arguments(
        **dict.fromkeys(OVERRIDES, ''),
        params_file=launching.shared('config/localization.yaml'),
        namespace='',
        use_sim_time='',
        image_topic='image',
        odom_topic='odom',
        map='',
        use_respawn='false',
        log_level='info',
        rviz='false',
    )
    return launching.description(__file__, nodes, arguments)


def nodes(value):
    """Make the nodes of each robot from the arguments' values."""
    return [node for robot in robots(value) for node in robot_nodes(robot)]


def robot_nodes(value):
    """Make the nodes of one robot."""
    managed = {'autostart': False} if value('map') else {}
    overrides = [*OVERRIDES, 'use_sim_time']
    parameters = launching.parameter_file('localization', NodeConfig, value, overrides, **managed)
    respawn = launching.is_true(value, 'use_respawn')
    remappings = {'image': 'image_topic', 'odom': 'odom_topic'}
    node = launching.package_node(
        'localization', value, parameters, remappings, respawn=respawn, respawn_delay=1.0
    )
    others = launching.map_server_nodes(value) if value('map') else []
    if not respawn:
        others.append(launching.ends_with_failure(node))
    # what may be missing comes first: a node that has started would outlive the failed launch
    return [launching.rviz_node(value), *others, node]
