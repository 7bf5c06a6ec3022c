"""Localize a robot by its camera and odometry on a map; composable with nav2_bringup."""

from kbr_localization.ros.parameters import launching
from kbr_localization.ros.parameters.robots import robots
from launch.actions import LogInfo


def generate_launch_description():
    """Describe the localization node and, if asked for, Nav2's map server and RViz."""
    return launching.description(
        __file__,
        [
            launching.argument('map_file', ''),
            launching.argument('map_files', ''),
            launching.argument('grow_map', ''),
            launching.argument('grow_into', ''),
            launching.argument('params_file', launching.shared('config/localization.yaml')),
            launching.argument('namespace', '', 'namespaces'),
            launching.argument('use_sim_time', ''),
            launching.argument('autostart', ''),
            launching.argument('method', ''),
            launching.argument('image_topic', 'image'),
            launching.argument('image_topics', ''),
            launching.argument('odom_topic', 'odom'),
            launching.argument('image_transport', ''),
            launching.argument('map', ''),
            launching.argument('use_respawn', ''),
            launching.argument('respawn', 'false'),
            launching.argument('use_composition', 'false'),
            launching.argument('container_name', ''),
            launching.argument('use_intra_process_comms', ''),
            launching.argument('log_level', 'info'),
            launching.argument('rviz', 'false'),
            *launching.dds_arguments(),
            launching.configured(nodes),
        ],
    )


OVERRIDES = (
    'map_file',
    'map_files',
    'grow_map',
    'grow_into',
    'use_sim_time',
    'autostart',
    'method',
    'image_transport',
    'image_topics',
)


def nodes(value):
    """Make the nodes of each robot from the arguments' values."""
    made = [node for robot in robots(value) for node in robot_nodes(robot)]
    if launching.is_true(value, 'use_composition'):
        made.append(LogInfo(msg='use_composition: a Python node stays a process of its own'))
    return made


def robot_nodes(value):
    """Make the nodes of one robot."""
    managed = {'autostart': False} if value('map') else {}
    parameters = launching.parameter_file('localization', value, OVERRIDES, **managed)
    respawn = launching.is_true(value, 'use_respawn' if value('use_respawn') else 'respawn')
    node = launching.package_node(
        'localization_node',
        'localization',
        value,
        parameters,
        remappings={'image': 'image_topic', 'odom': 'odom_topic'},
        respawn=respawn,
        respawn_delay=1.0,
    )
    others = launching.map_server_nodes(value, parameters) if value('map') else []
    if not respawn:
        others.append(launching.ends_with_failure(node))
    # what may be missing comes first: a node that has started would outlive the failed launch
    return [launching.rviz_node(value), *others, node]
