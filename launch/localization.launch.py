"""Localize a robot by its camera and odometry on a map; composable with nav2_bringup."""

from kbr_localization.ros import launching
from kbr_localization.ros.robots import robots
from launch import LaunchDescription


def generate_launch_description():
    """Describe the localization node and, if asked for, RViz."""
    return LaunchDescription(
        [
            launching.argument('map_file', ''),
            launching.argument('map_files', ''),
            launching.argument('grow_map', ''),
            launching.argument('grow_into', ''),
            launching.argument('params_file', launching.shared('config/localization.yaml')),
            launching.argument('namespace', '', 'namespaces'),
            launching.argument('use_sim_time', 'false'),
            launching.argument('autostart', 'true'),
            launching.argument('method', ''),
            launching.argument('image_topic', 'image'),
            launching.argument('image_topics', ''),
            launching.argument('odom_topic', 'odom'),
            launching.argument('image_transport', ''),
            launching.argument('respawn', 'false'),
            launching.argument('log_level', 'info'),
            launching.argument('rviz', 'false'),
            *launching.dds_arguments(),
            launching.configured(nodes),
        ]
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
    return [node for robot in robots(value) for node in robot_nodes(robot)]


def robot_nodes(value):
    """Make the nodes of one robot."""
    node = launching.package_node(
        'localization_node',
        'localization',
        value,
        overrides=OVERRIDES,
        remappings={'image': 'image_topic', 'odom': 'odom_topic'},
        files=[value('params_file')],
        respawn=value('respawn').lower() == 'true',
        respawn_delay=1.0,
    )
    return [node, launching.rviz_node(value)]
