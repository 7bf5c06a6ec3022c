"""Transforms over real tf2_msgs: map to odometry, and odometry that is on TF."""

from contextlib import ExitStack
from itertools import count

from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseWithCovarianceStamped
from kbr_localization import se2
from kbr_localization.ros import conversions
import numpy as np
import pytest
from ros_helpers import BEST_EFFORT, LATCHED, RELIABLE
from ros_robot import diagnostics, node_at_hand, off_by, Robot, wait_for_answer

pytestmark = pytest.mark.ros


@pytest.fixture
def tf_world(ros, tf2, tiny_world):
    """Return a node that can send transforms, the robot, and the transforms heard."""
    from tf2_msgs.msg import TFMessage

    class World:
        robot = Robot(ros)
        messages = ros.collect(TFMessage, '/tf', RELIABLE)
        poses = ros.collect(PoseWithCovarianceStamped, 'amcl_pose')
        reports = ros.collect(DiagnosticArray, '/diagnostics')
        # of a rival, as micro-controllers send
        publisher = ros.node.create_publisher(TFMessage, '/tf', BEST_EFFORT)
        static = ros.node.create_publisher(TFMessage, '/tf_static', LATCHED)

        def start(self, **values):
            node = node_at_hand(ros, map_file=tiny_world.map_file, **values)
            self.node = nodes.enter_context(node)
            self.robot.wait_for_listeners()

        def send(self, publisher, parent, child, seconds, pose):
            """Send a transform of a pose (3,)."""
            stamp_ns = self.robot.stamp_ns(seconds)
            transform = conversions.transform_message(stamp_ns, parent, child, pose)
            publisher.publish(TFMessage(transforms=[transform]))

        def drive(self, seconds, wheels=None):
            """Drive with the odometry on TF, and wheels that count this part of the metres."""
            offset = np.array([-0.5, 0.0, 0.0])
            self.send(self.static, 'base_link', 'base_footprint', 0.0, offset)
            for tick in range(round(seconds * 20) + 1):
                now = tick / 20
                pose = self.robot.odometry_pose(now)
                base_link = se2.compose(pose, se2.inverse(offset))
                self.send(self.publisher, 'odom', 'base_link', now, base_link)
                if wheels:
                    self.robot.send_odometry(now, pose=self.robot.odometry_pose(wheels * now))
                if tick % 8 == 0:
                    self.robot.send_image(now)
                ros.spin(0.02)

        def heard(self):
            own = [m.transforms[0] for m in self.messages]
            return [t for t in own if t.header.frame_id == 'map']

        def until_heard(self, seconds):
            """Wait for the transform of a stamp, and return that."""
            stamp_ns = self.robot.stamp_ns(seconds)
            ros.spin_until(lambda: any(stamp(t) == stamp_ns for t in self.heard()))
            return self.heard()[-1]

        def base(self, seconds):
            """Return where the newest transform has the robot of a time."""
            odom_in_map = conversions.pose_from_transform(self.heard()[-1])
            return se2.compose(odom_in_map, self.robot.odometry_pose(seconds))

        def says(self):
            """Return what is wrong with the inputs, by the newest report."""
            return diagnostics(self.reports, ': input')[0]

    with ExitStack() as nodes:
        yield World()


def stamp(transform):
    return conversions.stamp_to_ns(transform.header.stamp)


def test_it_leads_from_the_map_to_the_odometry_and_comes_with_every_odometry(ros, tf_world):
    tf_world.start(transform_tolerance=0.5)
    robot = tf_world.robot
    robot.drive(0.0, 6.0)
    wait_for_answer(ros, tf_world.poses, robot.stamp_ns(6.0))
    robot.drive(6.05, 9.0)
    transform = tf_world.until_heard(9.5)
    stamps = np.array([stamp(t) for t in tf_world.heard()])
    assert np.all(np.diff(stamps) > 0) and np.count_nonzero(stamps > robot.stamp_ns(6.5)) > 55
    assert (transform.header.frame_id, transform.child_frame_id) == ('map', 'odom')
    assert off_by(tf_world.base(9.0), robot.pose(9.0)) < 0.3


def test_transforms_go_on_after_a_stray_stamp_but_not_after_a_reset(ros, tf_world):
    tf_world.start()
    robot = tf_world.robot
    robot.drive(0.0, 3.0)
    ros.spin_until(tf_world.heard)
    robot.send_odometry(12.0, pose=robot.odometry_pose(3.0))  # near enough to be believed
    tf_world.until_heard(13.0)
    robot.drive(3.05, 4.0)
    tf_world.until_heard(5.0)
    ros.spin(0.3)
    tf_world.messages.clear()
    for tick in range(1, 20):
        robot.send_odometry(4.0 + tick / 20, pose=np.array([0.025 * tick, 0.0, 0.0]))
        ros.spin(0.01)
    ros.spin(0.3)
    assert not tf_world.heard()


def test_nothing_is_sent_without_a_belief_and_the_old_transform_not_after_a_start_anew(
    ros, tf_world
):
    tf_world.start(always_reset_initial_pose=True, initialize_globally=False)
    robot = tf_world.robot
    robot.drive(0.0, 1.0)
    ros.spin(0.3)
    assert not tf_world.heard()
    robot.send_initial_pose(None, robot.pose(1.0))
    ros.spin(0.3)
    robot.drive(1.05, 3.0)
    ros.spin_until(tf_world.heard)
    tf_world.node.trigger_deactivate()
    tf_world.node.trigger_activate()
    ros.spin(0.3)
    tf_world.messages.clear()
    robot.drive(3.05, 4.0)
    ros.spin(0.3)
    assert not tf_world.heard()


@pytest.mark.parametrize('wheels', [None, 0.7])
def test_the_odometry_is_that_of_tf_where_tf_has_it(ros, tf_world, wheels):
    """Without a topic, or with the raw wheels on it while a filter sends TF."""
    tf_world.start()
    tf_world.drive(6.0, wheels)
    wait_for_answer(ros, tf_world.poses, tf_world.robot.stamp_ns(6.0))
    assert off_by(tf_world.base(6.0), tf_world.robot.pose(6.0)) < 0.3


@pytest.mark.parametrize('wheels', [0.7, 1.0])
def test_odometry_of_a_topic_that_is_off_tf_is_told(ros, tf_world, wheels):
    tf_world.start(odom_source='topic')
    says = 'off odom to base_footprint on TF: set odom_source to tf'
    tf_world.drive(6.0, wheels)
    if wheels < 1.0:
        ros.spin_until(lambda: says in tf_world.says())
    ros.spin(1.1)
    assert (says in str(tf_world.reports)) == (wheels < 1.0)


def test_another_sender_of_the_same_transform_is_told(ros, tf_world):
    tf_world.start(global_frame_id='/map', odom_frame_id='/odom')
    seconds = count()

    def told():
        tf_world.send(tf_world.publisher, 'map', 'odom', next(seconds), np.zeros(3))
        return 'also sends the transform map to odom' in tf_world.says()

    ros.spin_until(told)
