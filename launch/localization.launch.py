"""Localize a robot by its camera and odometry on a map; composable with nav2_bringup."""

from kbr_localization.errors import ConfigurationError
from kbr_localization.files import expanded
from kbr_localization.ros import launching
from kbr_localization.ros.config import NodeConfig
from launch.conditions import IfCondition
from launch_ros.actions import Node

OVERRIDES = (
    'map_file', 'map_files', 'grow_map', 'grow_into', 'autostart', 'method',
    'image_transport', 'image_topics',
)  # fmt: skip


def generate_launch_description():
    return launching.describe(
        nodes,
        NodeConfig,
        **dict.fromkeys(OVERRIDES, ''),
        params_file=launching.shared('config/localization.yaml'),
        map='',
        use_respawn='false',
        rviz='false',
    )


def nodes(values):
    if values['map']:
        yield from map_server_nodes(values)
    yield Node(
        package='rviz2',
        executable='rviz2',
        arguments=['-d', launching.shared('config/kbr_localization.rviz')],
        parameters=launching.parameters({**values, 'params_file': ''}),
        remappings=[*launching.TF_REMAPPINGS, ('odom', values['odom_topic'])],
        namespace=values['namespace'],
        condition=IfCondition(values['rviz']),
    )
    # last, since a node that has started would survive a launch that fails because of the others
    yield from launching.package_node('localization', NodeConfig, values)


def map_server_nodes(values):
    """Describe nav2_map_server and its lifecycle manager."""
    grid = expanded(values['map'])
    if grid.suffix not in ('.yaml', '.yml') or not grid.is_file():
        raise ConfigurationError(
            f'map: expected the YAML file of an occupancy grid, got {values["map"]!r}: '
            'give the map of images as map_file'
        )
    common = {'namespace': values['namespace'], 'output': 'screen'}
    without_file = {**values, 'params_file': ''}
    yield Node(
        package='nav2_map_server',
        executable='map_server',
        name='map_server',
        parameters=launching.parameters(values, yaml_filename=str(grid)),
        remappings=launching.TF_REMAPPINGS,
        **common,
    )
    yield Node(
        package='nav2_lifecycle_manager',
        executable='lifecycle_manager',
        name='lifecycle_manager_localization',
        parameters=launching.parameters(without_file, autostart=True, node_names=['map_server']),
        **common,
    )
