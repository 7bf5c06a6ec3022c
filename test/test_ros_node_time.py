"""Time: late and early messages, jumps, clocks, initial poses with old stamps."""

from itertools import pairwise
import os
import re
import time

from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseWithCovarianceStamped
from kbr_localization.ros.common import conversions
import numpy as np
import pytest
from ros_node_helpers import (
    by_stamp,
    diagnostics,
    is_localized,
    node_at_hand,
    off_by,
    start_node,
    start_player,
    wait_for_answer,
)
from ros_robot import Robot
from rosgraph_msgs.msg import Clock

pytestmark = pytest.mark.ros


@pytest.fixture
def poses(ros):
    return ros.collect(PoseWithCovarianceStamped, 'amcl_pose')


@pytest.fixture
def reports(ros):
    return ros.collect(DiagnosticArray, '/diagnostics')


@pytest.fixture
def robot(ros, tiny_world, request):
    """Start a robot whose node is up; parameters come from the test's marker `node`."""
    marker = request.node.get_closest_marker('node')
    start_node(ros, tiny_world, **(marker.kwargs if marker else {}))
    robot = Robot(ros)
    robot.wait_for_listeners()
    return robot


def all_images_were_dropped(reports):
    values = diagnostics(reports, 'input')[1]
    return bool(values) and values['images dropped'] == values['/image messages']


@pytest.mark.node(initialize_globally=False)
def test_an_initial_pose_with_an_old_stamp_is_carried_forward(ros, robot, poses, reports):
    robot.drive(0.0, 4.0)
    reports.clear()
    ros.spin_until(lambda: all_images_were_dropped(reports))
    robot.send_initial_pose(1.0, robot.pose(1.0), spread=0.05)
    ros.spin_until(lambda: 'initial pose x' in ros.processes[0].output)
    robot.drive(4.05, 4.45, image_every=0.4)
    ros.spin_until(lambda: poses)
    stamp_ns, pose = next(iter(by_stamp(poses).items()))
    expected = robot.pose((stamp_ns - robot.start_ns) * 1e-9)
    assert expected[0] > 1.9
    assert off_by(conversions.pose_from_message(pose.pose), expected) < 0.2


@pytest.mark.node(initialize_globally=False)
def test_an_initial_pose_in_a_wrong_frame_is_refused(ros, robot, poses):
    robot.drive(0.0, 1.0)
    robot.send_initial_pose(1.0, robot.pose(1.0), frame_id='odom')
    ros.spin_until(lambda: "expected frame 'map', got 'odom'" in ros.processes[0].output)
    robot.drive(1.05, 2.0)
    ros.spin(0.5)
    assert not poses


def test_a_stream_of_poses_that_are_refused_does_not_fill_the_log(ros, tiny_world):
    node = start_node(ros, tiny_world)
    robot, begun = Robot(ros), time.monotonic()
    for _ in range(100):
        robot.send_initial_pose(None, [1.0, 0.0, 0.0], frame_id='odom')
        ros.spin(0.01)
    ros.spin_until(lambda: 'initial pose refused' in node.output)
    assert node.stop() == 0
    assert node.output.count('initial pose refused') <= 2 + time.monotonic() - begun


@pytest.mark.parametrize(
    ('spread', 'taken'),
    [(0.0, [0.09, 0.09, 0.04]), (0.1, [0.01] * 3), (0.001, [0.0025] * 3)],
    ids=['nothing', 'as usual', 'too sure'],
)
def test_a_pose_without_a_covariance_has_the_one_of_the_parameters(ros, tiny_world, spread, taken):
    deviations = {'initial_pose.std_xy': 0.3, 'initial_pose.std_yaw': 0.2}
    with node_at_hand(ros, map_file=tiny_world.map_file, **deviations) as node:
        robot, poses = Robot(ros), node.configured().session.initial_poses
        robot.send_initial_pose(None, robot.pose(1.0), spread=spread)
        ros.spin_until(lambda: poses.given is not None)
        np.testing.assert_allclose(np.diag(poses.given.covariance), taken)


def test_a_late_image_is_counted_and_changes_nothing(ros, robot, poses, reports):
    robot.drive(0.0, 4.0)
    wait_for_answer(ros, poses, robot.stamp_ns(4.0))
    answered = len(poses)
    robot.send_image(3.5)
    robot.send_image(4.0)  # and one that comes twice

    def counts():
        return diagnostics(reports, 'input')[1]

    ros.spin_until(lambda: counts().get('images dropped: older than the last one used') == '1')
    ros.spin_until(lambda: counts().get('images dropped: duplicate stamp') == '1')
    assert len(poses) == answered
    robot.drive(4.05, 5.2)
    assert off_by(wait_for_answer(ros, poses, robot.stamp_ns(5.2)), robot.pose(5.2)) < 0.3


def test_an_image_ahead_of_the_odometry_waits_for_it(ros, robot, poses):
    robot.drive(0.0, 3.0)
    robot.send_image(3.6)
    ros.spin(0.5)
    assert robot.stamp_ns(3.6) not in by_stamp(poses)
    for tick in range(61, 75):
        robot.send_odometry(tick / 20)
    assert off_by(wait_for_answer(ros, poses, robot.stamp_ns(3.6)), robot.pose(3.6)) < 0.3


def test_time_that_jumps_back_resets_the_belief_with_one_warning(ros, tiny_world, poses):
    node = start_node(ros, tiny_world)
    robot = Robot(ros)
    robot.wait_for_listeners()
    robot.drive(0.0, 8.0, pace=0.005)
    wait_for_answer(ros, poses, robot.stamp_ns(8.0))
    poses.clear()
    robot.drive(0.0, 6.0, pace=0.005)
    pose = wait_for_answer(ros, poses, robot.stamp_ns(6.0))
    assert off_by(pose, robot.pose(6.0)) < 0.3
    assert node.output.count('jumped back in time') == 1


def test_a_bag_that_loops_under_sim_time_is_localized_in_every_round(ros, tiny_world, poses):
    node = start_node(ros, tiny_world, use_sim_time=True)
    start_player(ros, tiny_world, loop=True, rate=4)
    ros.spin_until(lambda: len(in_rounds(poses)) > 2)
    rounds = in_rounds(poses)
    for whole in rounds[:-1]:
        assert all(message.pose.covariance[0] < 1.0 for message in whole[-5:])
    forgotten = node.output.count('forgotten')
    assert 1 <= forgotten <= len(rounds) and 'Traceback' not in node.output
    assert 'as both arrive' not in node.output


def in_rounds(poses):
    """Poses between one jump of their stamps back in time and the next."""
    stamps = [conversions.stamp_to_ns(message.header.stamp) for message in poses]
    starts = [0, *np.flatnonzero(np.diff(stamps) < 0) + 1, len(poses)]
    return [poses[start:end] for start, end in pairwise(starts)]


def test_images_without_odometry_are_explained(ros, robot, poses):
    for tick in range(100):
        robot.send_image(tick * 0.05)
        ros.spin(0.03)
    assert 'nothing on /odom' in ros.processes[0].output and not poses


@pytest.mark.parametrize(
    'clock, says',
    [
        (1.0, ' s behind those of /odom as both arrive, expected at most 0.8 s'),
        (-1.0, ' s ahead of those of /odom as both arrive, expected at most 0.5 s'),
    ],
)
def test_an_odometry_of_another_clock_is_told(ros, robot, reports, clock, says):
    robot.drive_until(lambda: says in diagnostics(reports, ': input')[0], clock)
    told = diagnostics(reports, ': input')[0]
    seconds = float(re.search(r'stamps of /image are ([\d.]+) s', told)[1])
    assert seconds == pytest.approx(1.0, abs=0.3)
    assert says in ros.processes[0].output


class Simulation:
    """A clock that somebody publishes while a robot drives by it."""

    def __init__(self, ros):
        self.ros = ros
        self.publisher = ros.node.create_publisher(Clock, '/clock', 10)
        self.robot = Robot(ros, start_ns=10_000_000_000)

    def drive(self, start, end):
        for tick in range(round(start * 20), round(end * 20) + 1):
            now = conversions.ns_to_stamp(self.robot.stamp_ns(tick / 20))
            self.publisher.publish(Clock(clock=now))
            self.robot.drive(tick / 20, tick / 20)

    def end(self):
        for publisher in (self.publisher, self.robot.images, self.robot.odometry):
            self.ros.node.destroy_publisher(publisher)


def test_a_pose_of_an_earlier_simulation_is_not_taken_for_a_fresh_one(ros, tiny_world, poses):
    def starts(simulation):
        node = start_node(ros, tiny_world, use_sim_time=True, initialize_globally=False)
        simulation.robot.wait_for_listeners()
        return node

    first = Simulation(ros)
    node = starts(first)
    first.robot.send_initial_pose(None, first.robot.pose(0.0))
    ros.spin_until(lambda: 'initial pose x' in node.output)
    first.drive(0.0, 6.0)  # only a pose that images have confirmed is saved
    wait_for_answer(ros, poses, first.robot.stamp_ns(6.0))
    assert node.stop() == 0
    node = starts(first)
    first.drive(6.05, 7.0)
    ros.spin_until(lambda: 'going on from the saved pose' in node.output)
    assert node.stop() == 0
    first.end()
    second = Simulation(ros)
    node = starts(second)
    second.drive(7.05, 8.0)
    ros.spin_until(lambda: 'saved pose not used: it is of another run' in node.output)
    assert 'going on from' not in node.output


def test_a_pose_whose_file_is_old_is_not_used_whatever_its_stamp_says(ros, tiny_world, poses):
    file, robot = ros.folder / 'pose.json', Robot(ros)
    reports = ros.collect(DiagnosticArray, '/diagnostics')
    start_node(ros, tiny_world)
    robot.wait_for_listeners()
    robot.drive(0.0, 6.0)
    wait_for_answer(ros, poses, robot.stamp_ns(6.0))
    ros.spin_until(lambda: is_localized(reports))  # only such a pose is saved
    assert ros.processes[0].stop() == 0
    os.utime(file, (file.stat().st_atime, time.time() - 3600.0))
    kept = file.read_bytes(), file.stat()
    for anyway in (False, True):
        file.write_bytes(kept[0])
        os.utime(file, (kept[1].st_atime, kept[1].st_mtime))
        node = start_node(ros, tiny_world, initialize_at_saved_pose=anyway)
        robot.wait_for_listeners()
        poses.clear()
        robot.drive(6.05, 7.25)
        ros.spin_until(lambda: poses)
        assert ('going on from the saved pose' in node.output) == anyway
        assert ('saved pose not used: it is 360' in node.output) != anyway
        assert node.stop() == 0
