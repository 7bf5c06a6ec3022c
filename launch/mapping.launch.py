"""
Record a run for the map: while something knows the pose, or by odometry and camera alone.

With `pose_type:=none` nobody has to know the pose.
"""

from kbr_localization.ros import launching
from kbr_localization.ros.config import RecorderConfig
from kbr_localization.ros.launch_values import one_robot
from kbr_localization.ros.parameters import fields


def generate_launch_description():
    """Describe the recorder node; every parameter of it is an argument."""
    arguments = launching.arguments(
        RecorderConfig,
        **dict.fromkeys(fields(RecorderConfig), ''),
        params_file='',
        pose_topic='amcl_pose',
        image_topic='image',
        odom_topic='odom',
        namespace='',
        use_sim_time='',
        log_level='info',
    )
    return launching.description(__file__, nodes, arguments)


def nodes(value):
    """Make the node from the arguments' values."""
    value = one_robot(value)
    overrides = [*fields(RecorderConfig), 'use_sim_time']
    remappings = {'image': 'image_topic', 'odom': 'odom_topic', 'pose': 'pose_topic'}
    alone = {} if value('pose_topic') else {'pose_type': 'none'}
    if alone:
        del remappings['pose']
    file = launching.parameter_file('recorder', RecorderConfig, value, overrides, **alone)
    node = launching.package_node('recorder', value, file, remappings)
    return [launching.ends_with_failure(node), node]
