"""The recorder node: from topics to a run, killed and started again."""

import signal

from kbr_localization import se2
from kbr_localization.datasets import open_dataset
from kbr_localization.datasets.cold import ColdRecording
from kbr_localization.errors import DatasetError
from kbr_localization.localization.map.build import build_map
from kbr_localization.ros import conversions
import numpy as np
import pytest
from ros_helpers import RELIABLE
from ros_robot import Recorded, Robot, VISION

pytestmark = pytest.mark.ros


def test_a_killed_recorder_loses_at_most_the_last_image_and_goes_on(ros):
    recorded = Recorded(ros, jpeg_quality=20)
    robot, first = recorded.robot, recorded.start()

    def bad_poses_are_told():
        for frame, variance in (('odom', 0.0), ('map', -1.0), ('map', 0.36)):
            known = (robot.stamp_ns(0.0), frame, np.ones(3), variance * np.eye(3))
            recorded.poses.publish(conversions.pose_with_covariance(*known))
        says = ("expected frame 'map', got 'odom'", 'not used: expected a finite covariance')
        return all(words in first.output for words in (*says, 'deviation is 0.60 m'))

    ros.spin_until(bad_poses_are_told)
    recorded.seconds = 0.4
    recorded.drive_on(8)
    robot.hears('images recorded', ': recording')
    with pytest.raises(DatasetError, match='is in use by another recorder: stop it'):
        ColdRecording(recorded.out)
    first.stop(signal.SIGKILL)
    before = len(open_dataset(recorded.out))
    assert before >= len(recorded.shown[-1].poses) - 1
    recorded.shown.clear()
    second = recorded.start('continuing')
    recorded.drive_on(6)
    assert second.stop(signal.SIGINT) == 0
    images = (recorded.out / 'std_cam').iterdir()
    assert max(image.stat().st_size for image in images) < 3000  # 95 makes twice as many bytes
    run = open_dataset(recorded.out)
    assert len(run) >= before + 6 and run.skipped.get('bad line in odom.tdf', 0) <= 1
    # DDS may bring images before it brings poses
    known = [frame for frame in run if frame.reference is not None]
    assert len(known) >= 8 + 6 - 1
    expected = [robot.pose((frame.stamp_ns - robot.start_ns) * 1e-9) for frame in known]
    np.testing.assert_allclose([frame.reference for frame in known], expected, atol=1e-3)
    assert len(build_map([run], VISION)) == len(known)


@pytest.mark.parametrize('child, ahead', [('base_footprint', 0.0), ('odom', 1.0)])
def test_poses_and_odometry_on_tf_are_recorded(ros, tf2, child, ahead):
    """The pose of the robot beside a topic with odometry, or of the odometry that is on TF too."""
    from tf2_msgs.msg import TFMessage

    # with slashes, as there were in ROS 1
    frames = {'global_frame_id': '/map', 'odom_frame_id': '/odom', 'no_data_timeout': 1.0}
    out = ros.folder / 'run'
    node = ros.start_node('recorder', out=out, pose_type='tf', spacing_distance=0.1, **frames)
    robot, sender = Robot(ros), ros.node.create_publisher(TFMessage, '/tf', RELIABLE)
    robot.wait_for_listeners()
    ros.spin_until(sender.get_subscription_count)
    ros.spin_until(lambda: 'none sends map to odom or to the frame' in node.output)
    as_transform = conversions.transform_message
    unset = as_transform(0, 'map', child, np.zeros(3))
    unset.transform.rotation.w = 0.0
    odom_in_map = se2.compose(robot.pose(0.0), se2.inverse(robot.odometry_pose(0.0)))
    for tick in range(60):
        seconds = tick / 10
        robot.send_image(seconds)
        pose = odom_in_map if child == 'odom' else robot.pose(seconds)
        transforms = [as_transform(robot.stamp_ns(seconds + ahead), 'map', child, pose), unset]
        if child == 'odom':
            odometry = ('odom', 'base_footprint', robot.odometry_pose(seconds))
            transforms.append(as_transform(robot.stamp_ns(seconds), *odometry))
        else:
            robot.send_odometry(seconds)
        sender.publish(TFMessage(transforms=transforms))
        ros.spin(0.01)
    ros.spin(1.0)
    assert node.stop() == 0 and 'transform not used' in node.output
    frames = list(open_dataset(out))
    assert len(frames) > 10, node.output
    for frame in frames:
        expected = robot.pose((frame.stamp_ns - robot.start_ns) * 1e-9)
        np.testing.assert_allclose(frame.reference, expected, atol=1e-3)
