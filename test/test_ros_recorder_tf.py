"""The recorder, where the pose is known on /tf alone."""

from importlib.util import find_spec

from geometry_msgs.msg import TransformStamped
from kbr_localization import se2
from kbr_localization.datasets import open_dataset
from kbr_localization.ros.common import conversions
import numpy as np
import pytest
from ros_helpers import BEST_EFFORT, RELIABLE
from ros_robot import Robot

pytestmark = pytest.mark.ros
INSTALLED = find_spec('tf2_msgs') is not None
"""Asked before the tests build their own."""


def as_transform(pose, stamp_ns, child):
    message, posed = TransformStamped(), conversions.pose_to_message(pose)
    message.header.frame_id, message.child_frame_id = 'map', child
    message.header.stamp = conversions.ns_to_stamp(stamp_ns)
    message.transform.translation.x = posed.position.x
    message.transform.translation.y = posed.position.y
    message.transform.rotation = posed.orientation
    return message


@pytest.mark.parametrize('child, qos', [('odom', RELIABLE), ('base_footprint', BEST_EFFORT)])
def test_poses_that_are_known_on_tf_alone_are_recorded(ros, tf2, child, qos):
    from tf2_msgs.msg import TFMessage

    out = ros.folder / 'run'
    # with slashes, as there were in ROS 1
    frames = {'global_frame_id': '/map', 'odom_frame_id': '/odom'}
    values = {'out': out, 'pose_type': 'tf', 'spacing_distance': 0.1, **frames}
    node = ros.start_node('recorder', environment=tf2, **values)
    robot, sender = Robot(ros), ros.node.create_publisher(TFMessage, '/tf', qos)
    robot.wait_for_listeners()
    ros.spin_until(sender.get_subscription_count)
    odom_in_map = se2.compose(robot.pose(0.0), se2.inverse(robot.odometry_pose(0.0)))
    for tick in range(60):
        seconds = tick / 10
        robot.drive(seconds, seconds, image_every=0.1)
        # a localizer's transform is valid ahead of time, a measured one when it was measured
        ahead = {'odom': 1.0, 'base_footprint': 0.0}[child]
        pose = odom_in_map if child == 'odom' else robot.pose(seconds)
        stamp_ns = robot.stamp_ns(seconds + ahead)
        sender.publish(TFMessage(transforms=[as_transform(pose, stamp_ns, child)]))
        ros.spin(0.01)
    ros.spin(1.0)
    assert node.stop() == 0 and 'Traceback' not in node.output
    frames = list(open_dataset(out))
    assert len(frames) > 10, node.output
    for frame in frames:
        expected = robot.pose((frame.stamp_ns - robot.start_ns) * 1e-9)
        np.testing.assert_allclose(frame.reference, expected, atol=1e-3)


def test_transforms_that_are_no_poses_are_left_out_with_a_word(ros, tf2):
    """A transform that was never filled in has a quaternion of zeros."""
    from tf2_msgs.msg import TFMessage

    out = ros.folder / 'run'
    node = ros.start_node('recorder', environment=tf2, out=out, pose_type='tf')
    robot, sender = Robot(ros), ros.node.create_publisher(TFMessage, '/tf', RELIABLE)
    robot.wait_for_listeners()
    ros.spin_until(sender.get_subscription_count)
    robot.drive(0.0, 0.5)
    for child in ('odom', 'base_footprint', 'shelf'):
        unset = TransformStamped()
        unset.header.frame_id, unset.child_frame_id = 'map', child
        unset.transform.rotation.w = 0.0
        sender.publish(TFMessage(transforms=[unset]))
        nowhere = as_transform(robot.pose(0.0), robot.stamp_ns(0.5), child)
        nowhere.transform.translation.x = float('nan')
        sender.publish(TFMessage(transforms=[nowhere]))
    ros.spin_until(lambda: node.output.count('transform not used') >= 2)
    robot.send_odometry(0.55, pose=np.full(3, np.nan))
    good = as_transform(robot.pose(0.0), robot.stamp_ns(0.5), 'odom')
    for _ in range(5):
        sender.publish(TFMessage(transforms=[good]))
        ros.spin(0.1)
    assert node.popen.poll() is None
    assert node.stop() == 0 and 'Traceback' not in node.output


def test_transforms_of_which_none_tells_the_pose_are_told_with_the_frames(ros, tf2):
    """A robot has many other transforms, and frames may have a prefix."""
    from tf2_msgs.msg import TFMessage

    values = {'out': ros.folder / 'run', 'pose_type': 'tf', 'no_data_timeout': 1.0}
    node = ros.start_node('recorder', environment=tf2, **values)
    sender = ros.node.create_publisher(TFMessage, '/tf', RELIABLE)
    ros.spin_until(sender.get_subscription_count)
    other = TFMessage(transforms=[as_transform(np.zeros(3), 1, 'robot1/odom')])

    def told():
        sender.publish(other)
        return 's on /tf: 1 publishers, none sends map to odom or to the frame' in node.output

    ros.spin_until(told)
    assert node.stop() == 0


@pytest.mark.skipif(INSTALLED, reason='tf2_msgs is installed')
def test_without_tf2_msgs_the_remedy_is_told(ros):
    node = ros.start_node('recorder', out=ros.folder / 'run', pose_type='tf')
    assert node.wait() == 2 and "pose_type 'tf' needs tf2_msgs: install it" in node.output
