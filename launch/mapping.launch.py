"""
Record a run for the map: while something knows the pose, or by odometry and camera alone.

With `pose_type:=none` nobody has to know the pose.
"""

from kbr_localization.ros.parameters import launching, parameters
from kbr_localization.ros.parameters.robots import one_robot
from kbr_localization.ros.recording.recorder import RecorderConfig


def generate_launch_description():
    """Describe the recorder node; every parameter of it is an argument."""
    return launching.description(
        __file__,
        [
            *launching.parameter_arguments(RecorderConfig),
            launching.argument('params_file', ''),
            launching.argument('pose_topic', 'amcl_pose'),
            launching.argument('image_topic', 'image'),
            launching.argument('odom_topic', 'odom'),
            launching.argument('namespace', ''),
            launching.argument('use_sim_time', ''),
            launching.argument('log_level', 'info'),
            *launching.dds_arguments(),
            launching.configured(nodes),
        ],
    )


def nodes(value):
    """Make the node from the arguments' values."""
    robot = one_robot(value)
    overrides = [*parameters.fields(RecorderConfig), 'use_sim_time']
    remappings = {'image': 'image_topic', 'odom': 'odom_topic', 'pose': 'pose_topic'}
    alone = {} if value('pose_topic') else {'pose_type': 'none'}
    if alone:
        del remappings['pose']
    file = launching.parameter_file('recorder', robot, overrides, **alone)
    node = launching.package_node('recorder_node', 'recorder', robot, file, remappings)
    return [launching.ends_with_failure(node), node]
