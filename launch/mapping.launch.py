"""
Record a run for the map: while something knows the pose, or by odometry and camera alone.

With `pose_type:=none` nobody has to know the pose.
"""

from functools import partial

from kbr_localization.configuration import fields_of
from kbr_localization.ros import launching
from kbr_localization.ros.config import RecorderConfig


def generate_launch_description():
    """Describe the recorder node; every parameter of it is an argument."""
    return launching.describe(
        partial(launching.package_node, 'recorder', RecorderConfig),
        RecorderConfig,
        **dict.fromkeys(fields_of(RecorderConfig), ''),
        pose_topic='amcl_pose',
    )
