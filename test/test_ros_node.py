"""The localization node as a process, with the player or a robot of the test's own."""

import itertools
import signal
import time

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from geometry_msgs.msg import PoseArray, PoseWithCovarianceStamped
from kbr_localization.datasets import open_dataset
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.pipeline import localize
from kbr_localization.ros.common import conversions
from kbr_localization.ros.common.optional import interface
from kbr_localization.ros.session.persistence import load_pose
import numpy as np
import psutil
import pytest
from ros_helpers import BEST_EFFORT, LATCHED, PATIENCE
from ros_node_helpers import (
    by_stamp,
    diagnostics,
    EVERY_IMAGE,
    is_localized,
    node_at_hand,
    start_node,
    start_player,
)
from ros_robot import Robot
from sensor_msgs.msg import CompressedImage
from std_srvs.srv import Empty
from visualization_msgs.msg import MarkerArray

pytestmark = pytest.mark.ros
# asked before other tests build the messages of Nav2
CLOUD = interface('nav2_msgs.msg', 'ParticleCloud') or PoseArray


@pytest.mark.parametrize('transport', ['raw', 'compressed'])
def test_it_says_the_same_as_the_offline_pipeline(ros, tiny_world, transport):
    poses = ros.collect(PoseWithCovarianceStamped, 'amcl_pose')
    node = start_node(ros, tiny_world, use_sim_time=True, image_transport=transport)
    player = start_player(ros, tiny_world, image_transport=transport)
    ros.spin_until(lambda: player.popen.poll() is not None and len(poses) >= 40)
    expected = localize(KernelMap.load(tiny_world.map_file), open_dataset(tiny_world.run))
    got = by_stamp(poses)
    assert sorted(got) == expected.stamps_ns.tolist()
    for stamp_ns, pose, covariance in zip(
        expected.stamps_ns.tolist(), expected.poses, expected.covariances, strict=True
    ):
        np.testing.assert_allclose(conversions.pose_from_message(got[stamp_ns].pose), pose)
        received = conversions.covariance_from_message(got[stamp_ns].covariance)
        np.testing.assert_allclose(received, covariance, atol=1e-12)
    assert node.stop() == 0


def test_everything_to_look_at_is_published(ros, tiny_world):
    pose = ros.collect(PoseWithCovarianceStamped, 'localization/pose')
    particles = ros.collect(CLOUD, 'particle_cloud', BEST_EFFORT)
    markers = ros.collect(MarkerArray, 'localization/map_poses', LATCHED)
    match = ros.collect(CompressedImage, 'localization/best_match', BEST_EFFORT)
    reports = ros.collect(DiagnosticArray, '/diagnostics')
    start_node(ros, tiny_world, use_sim_time=True, particles=50)
    start_player(ros, tiny_world)
    ros.spin_until(lambda: match and pose and len(particles) > 3 and len(markers) > 1)
    poses = particles[-1].poses if CLOUD is PoseArray else particles[-1].particles
    assert len(poses) == 50 and particles[-1].header.frame_id == 'map'
    first = markers[0].markers[0]
    assert len(first.points) == 80 and not first.colors
    assert len(markers[-1].markers[0].colors) == 80
    assert bytes(match[0].data).startswith(b'\xff\xd8')
    ros.spin_until(lambda: is_localized(reports))
    for figure in ('latency p95 [ms]', 'callbacks max [ms]'):
        ros.spin_until(lambda name=figure: float(diagnostics(reports, 'load')[1].get(name, 0)) > 0)
    assert diagnostics(reports, 'input')[1]['images dropped'] == '0'
    rates = (float(diagnostics([report], 'input')[1]['/odom [Hz]']) for report in reports)
    assert max(rates) > 10


def test_a_looking_subscriber_does_not_change_the_answer(ros, tiny_world):
    poses = ros.collect(PoseWithCovarianceStamped, 'amcl_pose')
    ros.collect(CLOUD, 'particle_cloud', BEST_EFFORT)
    start_node(ros, tiny_world, use_sim_time=True)
    start_player(ros, tiny_world)
    ros.spin_until(lambda: len(poses) >= 40)
    expected = localize(KernelMap.load(tiny_world.map_file), open_dataset(tiny_world.run))
    last = conversions.pose_from_message(poses[-1].pose.pose)
    np.testing.assert_allclose(last, expected.poses[-1])


def test_no_pose_before_there_is_a_belief_and_a_warning_names_the_topics(ros, tiny_world):
    poses = ros.collect(PoseWithCovarianceStamped, 'amcl_pose')
    reports = ros.collect(DiagnosticArray, '/diagnostics')
    node = start_node(ros, tiny_world, initialize_globally=False)
    robot = Robot(ros)
    robot.wait_for_listeners()
    robot.drive(0.0, 4.0)
    ros.spin_until(lambda: 'publish one on /initialpose' in node.output)
    ros.spin_until(lambda: diagnostics(reports, 'localization')[0].startswith('Not localized'))
    assert not poses
    robot.send_initial_pose(4.0, robot.pose(4.0))
    ros.spin_until(lambda: 'initial pose x 2.00' in node.output)
    robot.drive(4.05, 5.0)
    ros.spin_until(lambda: robot.stamp_ns(4.8) in by_stamp(poses))
    got = conversions.pose_from_message(by_stamp(poses)[robot.stamp_ns(4.8)].pose)
    assert np.hypot(*(got - robot.pose(4.8))[:2]) < 0.3


def test_an_initial_pose_that_waits_for_an_image_is_not_asked_for(ros, tiny_world):
    reports = ros.collect(DiagnosticArray, '/diagnostics')
    robot, sent = Robot(ros), itertools.count()

    def says(text):
        seconds = 0.1 * next(sent)
        robot.send_odometry(seconds)
        robot.send_image(seconds - 100.0)
        ros.spin(0.05)
        return text in diagnostics(reports, ': localization')[0]

    given = {'initialize_globally': 'false', 'set_initial_pose': 'true'}
    with node_at_hand(ros, map_file=tiny_world.map_file, **given):
        robot.wait_for_listeners()
        ros.spin_until(lambda: says('no image could be used yet'), timeout=20.0)


def test_images_and_odometry_of_which_none_is_usable_are_told_on_diagnostics(ros, tiny_world):
    reports = ros.collect(DiagnosticArray, '/diagnostics')
    robot = Robot(ros)
    small, sent = np.zeros((48, 64), np.uint8), itertools.count()

    def says(*texts):
        seconds = 0.1 * next(sent)
        robot.send_odometry(seconds, pose=robot.pose(seconds) * says.factor)
        robot.send_image(seconds, small)
        ros.spin(0.05)
        status = [s for r in reports[-1:] for s in r.status if s.name.endswith(': input')]
        return (
            status
            and status[0].level == DiagnosticStatus.WARN
            and all(text in status[0].message for text in texts)
        )

    with node_at_hand(ros, map_file=tiny_world.map_file):
        robot.wait_for_listeners()
        says.factor = 1.0
        ros.spin_until(lambda: says('/image: none of the last', 'image of 64x48 pixels: expected'))
        assert diagnostics(reports, ': input')[1]['images answered'] == '0'
        says.factor = np.nan
        ros.spin_until(lambda: says('/odom: none of the last', 'expected a finite'))


def test_global_localization_on_request(ros, tiny_world):
    poses = ros.collect(PoseWithCovarianceStamped, 'amcl_pose')
    start_node(ros, tiny_world, initialize_globally=False)
    robot = Robot(ros)
    robot.wait_for_listeners()
    robot.drive(0.0, 1.0)
    client = ros.node.create_client(Empty, 'reinitialize_global_localization')
    assert client.wait_for_service(PATIENCE)
    answer = client.call_async(Empty.Request())
    ros.spin_until(answer.done)
    robot.drive(1.0, 6.0)
    ros.spin_until(lambda: poses and by_stamp(poses).get(robot.stamp_ns(6.0)))
    got = conversions.pose_from_message(poses[-1].pose.pose)
    assert np.hypot(*(got - robot.pose(6.0))[:2]) < 0.3


def test_an_update_on_request_while_the_robot_stands(ros, tiny_world):
    reports = ros.collect(DiagnosticArray, '/diagnostics')
    start_node(ros, tiny_world)
    robot = Robot(ros)
    robot.wait_for_listeners()
    robot.drive(0.0, 2.0)
    seconds = iter(np.arange(2.05, 100.0, 0.05))

    def updates_after(stop):
        """Stand still, sending images, until a fresh report meets a condition."""
        seen = len(reports)
        while len(reports) < seen + 2 or not stop():
            robot.stand(next(seconds), at=2.0)
            ros.spin(0.05)
        return int(diagnostics(reports, 'localization')[1]['updates'])

    before = updates_after(lambda: 'updates' in diagnostics(reports, 'localization')[1])
    assert updates_after(lambda: True) == before
    client = ros.node.create_client(Empty, 'request_nomotion_update')
    assert client.wait_for_service(PATIENCE)
    answer = client.call_async(Empty.Request())
    assert updates_after(answer.done) == before + 1


def wait_for_first_pose(ros, robot, poses, node, seconds, at):
    """Stand still until there is a pose; give wall time, processor time and stamp until then."""
    process, started = psutil.Process(node.popen.pid), time.monotonic()
    while not poses:
        assert time.monotonic() - started < PATIENCE, node.output
        robot.stand(seconds, at)
        ros.spin(0.1)
        seconds += 0.1
    return time.monotonic() - started, sum(process.cpu_times()[:2]), seconds


@pytest.mark.slow
def test_a_node_killed_in_mid_run_and_started_again_goes_on_as_soon_as_it_is_there(
    ros, tiny_world
):
    poses = ros.collect(PoseWithCovarianceStamped, 'amcl_pose')
    settings = {'map_file': tiny_world.map_file, 'pose_file': ros.folder / 'pose.json'}
    settings |= {'save_pose_rate': 20, **EVERY_IMAGE}
    node, robot = ros.start_node('node', **settings), Robot(ros)
    first_took, first_used, seconds = wait_for_first_pose(ros, robot, poses, node, 0.0, at=0.0)
    robot.start_ns = robot.stamp_ns(seconds)
    robot.drive(0.0, 6.0)
    ros.spin_until(lambda: by_stamp(poses).get(robot.stamp_ns(6.0)))
    ros.spin_until(lambda: saved_stamp_ns(ros) >= robot.stamp_ns(4.0))
    node.popen.send_signal(signal.SIGKILL)
    node.wait()
    poses.clear()
    again = ros.start_node('node', initialize_globally=False, **settings)
    took, used, _ = wait_for_first_pose(ros, robot, poses, again, 8.0, at=8.0)
    print(f'first pose after {took:.2f} s, {used:.2f} s of the processor: before that', end=' ')
    print(f'{first_took:.2f} s, {first_used:.2f} s')
    # as soon as a node that starts from nothing, on whatever machine; it must not sit and wait
    assert used < 2.0 * first_used, (used, first_used)
    assert took < PATIENCE / 4, (took, first_took)
    assert 'going on from the saved pose' in again.output
    first = min(by_stamp(poses))
    got = conversions.pose_from_message(by_stamp(poses)[first].pose)
    assert np.hypot(*(got - robot.pose(8.0))[:2]) < 0.3


def saved_stamp_ns(ros):
    """Stamp of the pose on disk."""
    saved = load_pose(ros.folder / 'pose.json')
    return 0 if saved is None else saved.stamp_ns
