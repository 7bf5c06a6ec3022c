"""Record a run for the map while the robot knows its pose from AMCL, SLAM or motion capture."""

from kbr_localization.ros import launching
from kbr_localization.ros.robots import one_robot
from launch import LaunchDescription


def generate_launch_description():
    """Describe the recorder node."""
    return LaunchDescription(
        [
            launching.argument('out'),
            launching.argument('pose_topic', 'amcl_pose'),
            launching.argument('pose_type', 'pose_with_covariance'),
            launching.argument('image_topic', 'image'),
            launching.argument('image_topics', ''),
            launching.argument('odom_topic', 'odom'),
            launching.argument('image_transport', 'raw'),
            launching.argument('spacing_distance', '0.2'),
            launching.argument('spacing_angle', '0.2'),
            launching.argument('namespace', ''),
            launching.argument('use_sim_time', 'false'),
            launching.argument('log_level', 'info'),
            *launching.dds_arguments(),
            launching.configured(nodes),
        ]
    )


def nodes(value):
    """Make the node from the arguments' values."""
    overrides = ['out', 'pose_type', 'image_transport', 'image_topics', 'use_sim_time']
    overrides += ['spacing_distance', 'spacing_angle']
    remappings = {'image': 'image_topic', 'odom': 'odom_topic', 'pose': 'pose_topic'}
    robot = one_robot(value)
    return [launching.package_node('recorder_node', 'recorder', robot, overrides, remappings)]
