"""Transforms over real tf2_msgs: map to odometry, and odometry that is on TF."""

from contextlib import ExitStack
from itertools import count

from kbr_localization import se2
from kbr_localization.ros import conversions
import numpy as np
import pytest
from ros_helpers import BEST_EFFORT, LATCHED
from ros_robot import diagnostics, node_at_hand, off_by, Robot

pytestmark = pytest.mark.ros


@pytest.fixture
def tf_world(ros, tf2, tiny_world):
    """Return a node that can send transforms, the robot, and the transforms heard."""
    from tf2_msgs.msg import TFMessage

    class World:
        robot = Robot(ros)
        messages = ros.collect(TFMessage, '/tf')
        # of a rival, as micro-controllers send
        publisher = ros.node.create_publisher(TFMessage, '/tf', BEST_EFFORT)
        static = ros.node.create_publisher(TFMessage, '/tf_static', LATCHED)

        def start(self, **values):
            node = nodes.enter_context(node_at_hand(ros, map_file=tiny_world.map_file, **values))
            self.robot.wait_for_listeners()
            return node

        def send(self, publisher, parent, child, seconds, pose):
            """Send a transform of a pose (3,)."""
            stamp_ns = self.robot.stamp_ns(seconds)
            transform = conversions.transform_message(stamp_ns, parent, child, pose)
            publisher.publish(TFMessage(transforms=[transform]))

        def drive(self, wheels=None):
            """Drive for 6 s with odometry on TF, and wheels that count this part of the metres."""
            offset = np.array([-0.5, 0.0, 0.0])
            self.send(self.static, 'base_link', 'base_footprint', 0.0, offset)
            for tick in range(121):
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

        def stamps(self):
            return [conversions.stamp_to_ns(t.header.stamp) for t in self.heard()]

        def until_heard(self, seconds):
            """Wait for the transform of a stamp."""
            stamp_ns = self.robot.stamp_ns(seconds)
            ros.spin_until(lambda: stamp_ns in self.stamps())

        def base(self, seconds):
            """Return where the newest transform has the robot of a time."""
            odom_in_map = conversions.pose_from_transform(self.heard()[-1])
            return se2.compose(odom_in_map, self.robot.odometry_pose(seconds))

    with ExitStack() as nodes:
        yield World()


def test_it_leads_from_the_map_to_every_odometry_while_there_is_a_belief(ros, tf_world):
    never = {'initialize_globally': False, 'always_reset_initial_pose': True}
    node = tf_world.start(transform_tolerance=0.5, **never)
    robot = tf_world.robot
    robot.drive(0.0, 1.0)
    ros.spin(0.3)
    assert not tf_world.heard()
    robot.send_initial_pose(robot.pose(1.0))
    assert robot.arrive(1.05, 6.0) < 0.3
    robot.drive(6.05, 9.0)
    tf_world.until_heard(9.5)
    transform = tf_world.heard()[-1]
    stamps = np.array(tf_world.stamps())
    assert np.all(np.diff(stamps) > 0) and np.count_nonzero(stamps > robot.stamp_ns(6.5)) > 55
    assert (transform.header.frame_id, transform.child_frame_id) == ('map', 'odom')
    assert off_by(tf_world.base(9.0), robot.pose(9.0)) < 0.3
    robot.send_odometry(18.0, pose=robot.odometry_pose(9.0))  # near enough to be believed
    tf_world.until_heard(18.5)
    robot.drive(9.05, 10.0)
    tf_world.until_heard(10.5)
    node.trigger_deactivate()
    node.trigger_activate()
    ros.spin(0.3)
    tf_world.messages.clear()
    robot.drive(10.05, 11.0)
    ros.spin(0.3)
    assert not tf_world.heard(), 'of a belief that was forgotten'
    robot.send_initial_pose(robot.pose(11.0))
    robot.arrive(11.05, 12.0)
    tf_world.until_heard(12.5)
    ros.spin(0.3)
    tf_world.messages.clear()
    for tick in range(1, 20):
        robot.send_odometry(12.0 + tick / 20, pose=np.array([0.025 * tick, 0.0, 0.0]))
        ros.spin(0.01)
    ros.spin(0.3)
    assert not tf_world.heard(), 'to an odometry that begins anew'


@pytest.mark.parametrize('wheels', [None, 0.7])
def test_the_odometry_is_that_of_tf_where_tf_has_it(ros, tf_world, wheels):
    """Without a topic, or with the raw wheels on it while a filter sends TF."""
    tf_world.start()
    tf_world.drive(wheels)
    tf_world.robot.answer(6.0)
    assert off_by(tf_world.base(6.0), tf_world.robot.pose(6.0)) < 0.3


def test_odometry_of_a_topic_that_is_off_tf_and_another_sender_of_the_transform_are_told(
    ros, tf_world
):
    tf_world.start(odom_source='topic', global_frame_id='/map', odom_frame_id='/odom')
    tf_world.drive(wheels=1.0)
    ros.spin(1.1)
    assert 'set odom_source to tf' not in str(tf_world.robot.reports)
    tf_world.drive(wheels=0.7)
    tf_world.robot.hears('off odom to base_footprint on TF: set odom_source to tf')
    seconds = count()

    def told():
        tf_world.send(tf_world.publisher, 'map', 'odom', next(seconds), np.zeros(3))
        heard = diagnostics(tf_world.robot.reports, ': input')[0]
        return 'also sends the transform map to odom' in heard

    ros.spin_until(told)
