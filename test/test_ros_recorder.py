"""The recorder node: from topics to a run, killed and started again."""

import signal

from kbr_localization import se2
from kbr_localization.datasets import open_dataset
from kbr_localization.localization.map.build import build_map
from kbr_localization.ros import conversions
import numpy as np
import pytest
from ros_helpers import RELIABLE
from ros_robot import Recorded, Robot, VISION

pytestmark = pytest.mark.ros


def test_a_killed_recorder_loses_at_most_the_last_image_and_goes_on(ros):
    recorded = Recorded(ros)
    first = recorded.start()
    recorded.drive_until(lambda: recorded.count() >= 8)
    second = ros.start_node('recorder', out=recorded.out)
    assert second.wait() == 2
    assert 'is being recorded into: stop the other recorder' in second.output
    first.stop(signal.SIGKILL)
    before = len(open_dataset(recorded.out))
    assert before >= recorded.count() - 1
    recorded.shown.clear()
    third = recorded.start('going on with')
    recorded.drive_until(lambda: recorded.count() >= 6)
    assert third.stop(signal.SIGINT) == 0
    run, robot = open_dataset(recorded.out), recorded.robot
    assert len(run) >= before + 6 and run.skipped.get('bad line in odom.tdf', 0) <= 1
    references = np.array([frame.reference for frame in run])
    expected = np.array([robot.pose((frame.stamp_ns - robot.start_ns) * 1e-9) for frame in run])
    np.testing.assert_allclose(references, expected, atol=1e-3)
    assert len(build_map([run], VISION)) == len(run)


def test_poses_of_another_frame_or_without_a_covariance_are_not_used(ros):
    recorded = Recorded(ros)
    node = recorded.start()
    sent = [
        conversions.pose_with_covariance(10**9, frame, np.zeros(3), variance * np.eye(3))
        for frame, variance in (('odom', 0.0), ('map', -1.0))
    ]
    says = ("expected frame 'map', got 'odom'", 'not used: expected a finite covariance')

    def told():
        for message in sent:
            recorded.poses.publish(message)
        return all(words in node.output for words in says)

    ros.spin_until(told)


@pytest.mark.parametrize(
    'values, says',
    [({}, "parameter 'out' is empty"), ({'out': '/proc/run'}, 'cannot record into /proc/run')],
)
def test_a_recorder_that_cannot_start_says_why(ros, values, says):
    node = ros.start_node('recorder', **values)
    assert node.wait() == 2
    assert says in node.output and 'Traceback' not in node.output


def as_transform(pose, stamp_ns, child, parent='map'):
    return conversions.transform_message(stamp_ns, parent, child, pose)


@pytest.mark.parametrize(
    'child, ahead, topic',
    [('odom', 1.0, True), ('base_footprint', 0.0, True), ('odom', 1.0, False)],
)
def test_poses_and_odometry_on_tf_are_recorded(ros, tf2, child, ahead, topic):
    from tf2_msgs.msg import TFMessage

    # with slashes, as there were in ROS 1
    frames = {'global_frame_id': '/map', 'odom_frame_id': '/odom', 'no_data_timeout': 1.0}
    out = ros.folder / 'run'
    values = {'out': out, 'pose_type': 'tf', 'spacing_distance': 0.1, **frames}
    node = ros.start_node('recorder', environment=tf2, **values)
    robot, sender = Robot(ros), ros.node.create_publisher(TFMessage, '/tf', RELIABLE)
    robot.wait_for_listeners()
    ros.spin_until(sender.get_subscription_count)
    ros.spin_until(lambda: 'none sends map to odom or to the frame' in node.output)
    unset = as_transform(np.zeros(3), 0, child)
    unset.transform.rotation.w = 0.0
    odom_in_map = se2.compose(robot.pose(0.0), se2.inverse(robot.odometry_pose(0.0)))
    for tick in range(60):
        seconds = tick / 10
        robot.send_image(seconds)
        pose = odom_in_map if child == 'odom' else robot.pose(seconds)
        transforms = [as_transform(pose, robot.stamp_ns(seconds + ahead), child), unset]
        if topic:
            robot.send_odometry(seconds)
        else:
            odometry = robot.odometry_pose(seconds), robot.stamp_ns(seconds)
            transforms.append(as_transform(*odometry, 'base_footprint', 'odom'))
        sender.publish(TFMessage(transforms=transforms))
        ros.spin(0.01)
    ros.spin(1.0)
    assert node.stop() == 0 and 'transform not used' in node.output
    frames = list(open_dataset(out))
    assert len(frames) > 10, node.output
    for frame in frames:
        expected = robot.pose((frame.stamp_ns - robot.start_ns) * 1e-9)
        np.testing.assert_allclose(frame.reference, expected, atol=1e-3)
