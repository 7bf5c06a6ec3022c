"""Record a run for a map, with poses of the robot or, by `pose_type:=none`, without."""

from functools import partial

from kbr_localization.configuration import fields_of
from kbr_localization.ros import launching
from kbr_localization.ros.config import RecorderConfig


def generate_launch_description():
    """Every parameter of the recorder is an argument."""
    return launching.describe(
        partial(launching.package_node, 'recorder', RecorderConfig),
        RecorderConfig,
        **dict.fromkeys(fields_of(RecorderConfig), ''),
        pose_topic='amcl_pose',
    )
