"""An odometry that stands still: for how long, and what speaks against it."""

import itertools

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from geometry_msgs.msg import PoseWithCovarianceStamped
from kbr_localization.ros.common import conversions
from kbr_localization.ros.common.hints import (
    InputWatch,
    nothing_on_the_way,
    only_known_poses,
    only_twist,
    stood_still,
)
from kbr_localization.ros.common.standstill import KnownMotion, Standstill
import numpy as np
import pytest
from ros_helpers import RELIABLE
from ros_node_helpers import diagnostics, start_node
from ros_robot import Robot

SECOND = 1_000_000_000
NOW = 1_600_000_000 * SECOND
ORIGIN = np.array([2.0, -1.0, 3.0])


def watch(topic):
    return InputWatch(topic, 'a type', since=0.0)


def stood(seconds, rate=20, **velocity):
    """Odometry that says for so many seconds that it is at one place."""
    standstill = Standstill()
    for tick in range(round(seconds * rate) + 1):
        standstill.look(NOW + tick * SECOND // rate, ORIGIN, **velocity)
    return standstill


def test_how_long_the_odometry_has_stood_still_is_known():
    standstill, known = Standstill(), []
    for tick in range(80):
        standstill.look(NOW + tick * SECOND * 2 // 5, ORIGIN + 0.1 * (tick >= 70))
        known.append(standstill.seconds)
    assert known[69] == pytest.approx(69 * 0.4) and known[70] == 0.0
    assert known[79] == pytest.approx(9 * 0.4)


def test_time_that_jumps_back_begins_a_standstill_anew():
    standstill = Standstill()
    for second in (20, 35, 1, 4):
        standstill.look(second * SECOND, ORIGIN)
    assert standstill.seconds == 3.0


@pytest.mark.parametrize('hint', [stood_still, nothing_on_the_way])
def test_it_is_told_while_images_come_in(hint):
    image, odometry = watch('/image'), watch('/odom')
    image.saw(NOW, now=30.0)
    assert hint(image, odometry, stood(9.0), now=30.5) == ''
    assert 'stood' in hint(image, odometry, stood(12.0), now=30.5)
    assert hint(image, odometry, stood(12.0), now=33.0) == '', 'nothing is known since'
    assert hint(image, odometry, stood(12.0, speed=0.8), now=30.5) == '', 'another hint says more'


@pytest.mark.parametrize(
    'velocity, says',
    [
        ({'speed': 0.8, 'turn_rate': 0.1}, 'twist says 0.8 m/s and 0.1 rad/s: this driver fills'),
        ({'turn_rate': -0.5}, 'twist says 0 m/s and -0.5 rad/s'),
        ({'speed': 0.02, 'turn_rate': 0.03}, ''),
        ({'speed': float('nan')}, ''),
    ],
)
def test_a_twist_that_moves_while_the_pose_stands_is_told(velocity, says):
    odometry = watch('/odom')
    assert only_twist(odometry, stood(4.0, **velocity)) == ''
    told = only_twist(odometry, stood(8.0, **velocity))
    assert says in told and bool(told) == bool(says)


def test_a_pause_between_two_messages_is_no_drive():
    standstill = Standstill()
    for second in (0.0, 20.0, 21.0):
        standstill.look(NOW + round(second * SECOND), ORIGIN, speed=0.8)
    assert standstill.driven == 2.0


def test_a_robot_whose_pose_moves_has_driven_nothing_that_it_does_not_show():
    standstill = Standstill()
    for tick in range(400):
        pose = ORIGIN + np.array([0.04 * tick, 0.0, 0.0])
        standstill.look(NOW + tick * SECOND // 20, pose, speed=0.8)
    assert standstill.driven == standstill.seconds == 0.0


def along(metres, jitter=0.0):
    generator = np.random.default_rng(2)
    return [np.array([x, 0.0, 0.0]) + jitter * generator.normal(size=3) for x in metres]


@pytest.mark.parametrize(
    'poses, metres',
    [
        (along(np.arange(0.0, 3.0, 0.05)), 2.9),
        (along(np.zeros(1000), 0.15), 0.0),
        (along([0.0] * 9 + [4.0] * 9), 0.0),
        (along(np.arange(0.0, 0.8, 0.05)), 0.0),
    ],
    ids=['a way', 'jitter', 'a jump', 'a short way'],
)
def test_known_poses_that_go_a_way_while_the_odometry_stands_are_told(poses, metres):
    known, standstill = KnownMotion(), stood(8.0)
    for pose in poses:
        known.look(pose, standstill.since_ns)
    assert known.metres == pytest.approx(metres, abs=0.1)
    told = only_known_poses(watch('/pose'), watch('/odom'), standstill, known)
    assert ('stood still for 8 s while /pose went' in told) == (metres > 0.0)
    known.look(poses[-1], standstill.since_ns + SECOND)
    assert known.metres == 0.0, 'the odometry has moved'


class StuckRobot:
    """A robot that drives along, while the pose of its odometry stays at one place."""

    def __init__(self, ros, speed=0.0, knows_pose=False):
        self.robot, self.speed, self.ticks = Robot(ros), speed, itertools.count()
        self.poses = None
        if knows_pose:
            self.poses = ros.node.create_publisher(PoseWithCovarianceStamped, 'pose', RELIABLE)
        self.robot.wait_for_listeners()

    def drive(self):
        for tick in itertools.islice(self.ticks, 8):
            self.move(tick)

    def move(self, tick):
        robot, seconds = self.robot, tick / 20
        robot.send_odometry(seconds, pose=robot.odometry_pose(0.0), speed=self.speed)
        if self.poses is not None:
            stamp_ns, pose = robot.stamp_ns(seconds), robot.pose(seconds)
            variance = 0.01 * np.eye(3)
            self.poses.publish(conversions.pose_with_covariance(stamp_ns, 'map', pose, variance))
        if tick % 8 == 0:
            robot.send_image(seconds)
        robot.ros.spin(0.01)


def drive_until_warned(ros, robot, reports, says):
    """Drive until a warning is on /diagnostics; returns it."""

    def is_warned():
        robot.drive()
        states = [s for r in reports[-1:] for s in r.status if s.name.endswith(': input')]
        return states and states[0].level == DiagnosticStatus.WARN and says in states[0].message

    ros.spin_until(is_warned)
    return diagnostics(reports, ': input')[0]


@pytest.mark.ros
@pytest.mark.parametrize(
    'robot, values, says, not_told',
    [
        ({'speed': 0.8}, {'pose_type': 'none'}, 'its twist says 0.8 m/s', 'the robot has stood'),
        ({'speed': 0.8, 'knows_pose': True}, {}, 'its twist says 0.8 m/s', 'while /pose went'),
        ({'knows_pose': True}, {}, 'while /pose went', 'twist'),
        ({}, {'pose_type': 'none'}, 'by /odom the robot has stood for 1', 'while'),
    ],
)
def test_the_recorder_tells_of_an_odometry_that_stands(
    ros, tmp_path, robot, values, says, not_told
):
    reports = ros.collect(DiagnosticArray, '/diagnostics')
    node = ros.start_node('recorder', out=tmp_path / 'run', **values)
    told = drive_until_warned(ros, StuckRobot(ros, **robot), reports, says)
    assert not_told not in told and says in node.output
    assert diagnostics(reports, ': recording')[1]['images'] == '1' or 'knows_pose' in robot


@pytest.mark.ros
def test_a_recorder_of_a_robot_that_drives_says_nothing_of_it(ros, tmp_path):
    reports = ros.collect(DiagnosticArray, '/diagnostics')
    node = ros.start_node('recorder', out=tmp_path / 'run', pose_type='none')
    robot = Robot(ros)
    robot.wait_for_listeners()
    robot.drive(0.0, 25.0)
    ros.spin_until(lambda: diagnostics(reports, ': recording')[1]['images'] > '10')
    assert 'stood' not in node.output


@pytest.mark.ros
def test_the_node_tells_of_a_driver_that_fills_the_twist_only(ros, tiny_world):
    reports = ros.collect(DiagnosticArray, '/diagnostics')
    node = start_node(ros, tiny_world)
    says = 'its twist says 0.8 m/s and 0 rad/s: this driver fills the twist only'
    told = drive_until_warned(ros, StuckRobot(ros, speed=0.8), reports, says)
    assert 'one view does not tell' not in told and says in node.output
