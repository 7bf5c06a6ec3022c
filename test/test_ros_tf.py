"""The transform from the map to the odometry frame, over real tf2_msgs."""

from geometry_msgs.msg import PoseWithCovarianceStamped
from kbr_localization import se2
from kbr_localization.ros import conversions
from lifecycle_msgs.msg import Transition
import numpy as np
import pytest
from ros_helpers import BEST_EFFORT, RELIABLE
from ros_node_helpers import by_stamp, change_state, EVERY_IMAGE
from ros_robot import Robot

pytestmark = pytest.mark.ros


@pytest.fixture
def tf_world(ros, tf2, tiny_world):
    """Return a node that can send transforms, the robot, and the transforms heard."""
    from tf2_msgs.msg import TFMessage

    class World:
        robot = Robot(ros)
        messages = ros.collect(TFMessage, '/tf', RELIABLE)
        poses = ros.collect(PoseWithCovarianceStamped, 'amcl_pose')
        # of a rival, as micro-controllers send
        publisher = ros.node.create_publisher(TFMessage, '/tf', BEST_EFFORT)

        def start(self, **values):
            values = {'pose_file': ros.folder / 'pose.json', **EVERY_IMAGE, **values}
            node = ros.start_node('node', map_file=tiny_world.map_file, environment=tf2, **values)
            self.robot.wait_for_listeners()
            return node

        def heard(self):
            own = [m.transforms[0] for m in self.messages]
            return [t for t in own if t.header.frame_id == 'map']

    return World()


def as_pose(transform):
    move, turn = transform.transform.translation, transform.transform.rotation
    return np.array([move.x, move.y, 2 * np.arctan2(turn.z, turn.w)])


def test_it_leads_from_the_map_to_the_odometry(ros, tf_world):
    tf_world.start(transform_tolerance=0.5)
    robot = tf_world.robot
    robot.drive(0.0, 6.0)
    ros.spin_until(lambda: robot.stamp_ns(6.0) in by_stamp(tf_world.poses))
    robot.send_odometry(6.05)
    last_ns = robot.stamp_ns(6.05) + 500_000_000
    ros.spin_until(lambda: any(stamp(t) == last_ns for t in tf_world.heard()))
    transform = tf_world.heard()[-1]
    assert (transform.header.frame_id, transform.child_frame_id) == ('map', 'odom')
    base = se2.compose(as_pose(transform), robot.odometry_pose(6.0))
    assert np.hypot(*(base - robot.pose(6.0))[:2]) < 0.3


def stamp(transform):
    return conversions.stamp_to_ns(transform.header.stamp)


def test_it_is_sent_with_every_odometry_message_and_never_twice_for_one_stamp(ros, tf_world):
    tf_world.start()
    robot = tf_world.robot
    robot.drive(0.0, 4.0)
    ros.spin_until(lambda: robot.stamp_ns(4.0) in by_stamp(tf_world.poses))
    tf_world.messages.clear()
    robot.drive(4.05, 8.0)
    ros.spin_until(lambda: len(tf_world.heard()) > 60)
    stamps = [stamp(t) for t in tf_world.heard()]
    assert np.all(np.diff(stamps) > 0)


def test_after_a_stray_stamp_that_is_near_enough_to_be_believed_transforms_go_on(ros, tf_world):
    tf_world.start()
    robot = tf_world.robot
    robot.drive(0.0, 3.0)
    ros.spin_until(tf_world.heard)
    robot.send_odometry(12.0, pose=robot.odometry_pose(3.0))
    stray_ns = robot.stamp_ns(12.0) + 1_000_000_000
    ros.spin_until(lambda: any(stamp(t) == stray_ns for t in tf_world.heard()))
    robot.drive(3.05, 4.0)
    last_ns = robot.stamp_ns(4.0) + 1_000_000_000
    ros.spin_until(lambda: any(stamp(t) == last_ns for t in tf_world.heard()))


def test_after_a_reset_of_the_odometry_the_old_transform_is_not_sent_again(ros, tf_world):
    tf_world.start()
    robot = tf_world.robot
    robot.drive(0.0, 4.0)
    ros.spin_until(lambda: any(stamp(t) > robot.stamp_ns(4.9) for t in tf_world.heard()))
    ros.spin(0.5)
    tf_world.messages.clear()
    for tick in range(1, 20):
        robot.send_odometry(4.0 + tick / 20, pose=np.array([0.025 * tick, 0.0, 0.0]))
        ros.spin(0.01)
    ros.spin(0.5)
    assert not tf_world.heard()


def assert_nothing_more_is_sent(ros, tf_world):
    ros.spin(0.3)
    tf_world.messages.clear()
    tf_world.robot.drive(3.05, 4.0)
    ros.spin(0.5)
    assert not tf_world.heard()


def test_nothing_is_sent_without_a_belief_and_the_old_transform_not_after_a_start_anew(
    ros, tf_world
):
    tf_world.start(always_reset_initial_pose=True, initialize_globally=False)
    robot = tf_world.robot
    robot.drive(0.0, 1.0)
    ros.spin(0.5)
    assert not tf_world.heard()
    robot.send_initial_pose(None, robot.pose(1.0))
    ros.spin(0.3)
    robot.drive(1.05, 3.0)
    ros.spin_until(tf_world.heard)
    for wanted in (Transition.TRANSITION_DEACTIVATE, Transition.TRANSITION_ACTIVATE):
        assert change_state(ros, wanted)
    assert_nothing_more_is_sent(ros, tf_world)


def test_another_sender_of_the_same_transform_is_told(ros, tf_world):
    from geometry_msgs.msg import TransformStamped
    from tf2_msgs.msg import TFMessage

    node = tf_world.start(global_frame_id='/map', odom_frame_id='/odom')
    other = TransformStamped()
    other.header.frame_id, other.child_frame_id = 'map', 'odom'

    def told():
        other.header.stamp = ros.node.get_clock().now().to_msg()
        tf_world.publisher.publish(TFMessage(transforms=[other]))
        return 'also sends the transform map to odom' in node.output

    ros.spin_until(told)
