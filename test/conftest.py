"""What must be set before any test imports rclpy."""

import os

import pytest

os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'


@pytest.fixture
def ros(tmp_path):
    from ros_helpers import FASTDDS_PROFILE, ros_world

    os.environ['FASTDDS_DEFAULT_PROFILES_FILE'] = str(FASTDDS_PROFILE)
    with ros_world(tmp_path) as world:
        yield world
