"""The localization node: in the process of the test, and as a program."""

from contextlib import ExitStack
import signal

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from geometry_msgs.msg import PoseArray, PoseWithCovarianceStamped
from helpers import wall_image
from kbr_localization.datasets import open_dataset
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.pipeline import localize
from kbr_localization.ros import conversions
from kbr_localization.ros.conversions import optional_interface
from kbr_localization.ros.saved_pose import load_pose
from kbr_localization.workers import one_thread
import numpy as np
import pytest
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.parameter import Parameter
from ros_helpers import BEST_EFFORT, call, LATCHED
from ros_robot import (
    by_stamp,
    diagnostics,
    node_at_hand,
    off_by,
    Robot,
    start_node,
)
from sensor_msgs.msg import CompressedImage
from std_srvs.srv import Empty, Trigger
from visualization_msgs.msg import MarkerArray

pytestmark = pytest.mark.ros
# asked before other tests build the messages of Nav2
CLOUD = optional_interface('nav2_msgs.msg', 'ParticleCloud') or PoseArray


class Running:
    """An active node, a robot, and what the node says."""

    def __init__(self, ros, node, capfd):
        self.ros, self.node, self._capfd, self._log = ros, node, capfd, ''
        self.robot = Robot(ros)
        self.robot.wait_for_listeners()

    @property
    def log(self):
        self._log += self._capfd.readouterr().err
        return self._log

    def set(self, name, value):  # noqa: A003
        """Set a parameter; return whether that was accepted."""
        return self.node.set_parameters([Parameter(name, value=value)])[0].successful

    def load_map(self, name=''):
        service = f'/localization/load_map{"/" if name else ""}{name}'
        return call(self.ros, Trigger, service, Trigger.Request())


@pytest.fixture
def start(ros, tiny_world, capfd):
    """Return what starts a node."""
    with ExitStack() as nodes:

        def run(**values):
            values = {'map_file': tiny_world.map_file, 'no_data_timeout': 2.0, **values}
            return Running(ros, nodes.enter_context(node_at_hand(ros, **values)), capfd)

        yield run


def test_it_says_the_same_as_the_offline_pipeline_and_shows_it(ros, tiny_world):
    poses = ros.collect(PoseWithCovarianceStamped, 'amcl_pose')
    reports = ros.collect(DiagnosticArray, '/diagnostics')
    seen = {
        'particles': ros.collect(CLOUD, 'particle_cloud', BEST_EFFORT),
        'markers': ros.collect(MarkerArray, 'localization/map_poses', LATCHED),
        'match': ros.collect(CompressedImage, 'localization/best_match/compressed', BEST_EFFORT),
        'pose': ros.collect(PoseWithCovarianceStamped, 'localization/pose'),
    }
    node = start_node(ros, tiny_world)
    player = ros.start_node('player', run=tiny_world.run, rate=4.0)
    ros.spin_until(lambda: player.poll() is not None and len(poses) >= 40)
    with one_thread():  # as the node has: others add in another order
        expected = localize(KernelMap.load(tiny_world.map_file), open_dataset(tiny_world.run))
    got = by_stamp(poses)
    assert sorted(got) == expected.stamps_ns.tolist()
    for stamp_ns, pose, covariance in zip(
        expected.stamps_ns.tolist(), expected.poses, expected.covariances, strict=True
    ):
        np.testing.assert_allclose(conversions.pose_from_message(got[stamp_ns].pose), pose)
        received = conversions.covariance_from_message(got[stamp_ns].covariance)
        np.testing.assert_allclose(received, covariance, atol=1e-12)
    assert all(seen.values())
    cloud = seen['particles'][-1]
    assert len(cloud.poses if CLOUD is PoseArray else cloud.particles) == 300
    markers = seen['markers'][-1].markers[0]
    assert len(markers.points) == 80
    assert bytes(seen['match'][0].data).startswith(b'\xff\xd8')
    values = {part: diagnostics(reports, part)[1] for part in ('input', 'load', 'map')}
    assert values['input']['images dropped'] == '0' and values['map']['images'] == '40'
    assert {'/odom [Hz]', '/image publishers', 'odometry: newest'} <= values['input'].keys()
    assert {'processing p95 [ms]', 'latency max [ms]'} <= values['load'].keys()
    assert node.stop(signal.SIGTERM) == 0
    assert 'images answered: 40, ' in node.output and 'Traceback' not in node.output


def test_without_a_belief_there_is_no_pose_until_one_is_given(start):
    node = start(initialize_globally=False)
    robot = node.robot
    robot.drive(0.0, 2.0)
    robot.hears('Not localized: no initial pose: publish one on /initialpose', ': localization')
    topics = {'/image publishers': '1', '/odom publishers': '1'}.items()
    node.ros.spin_until(lambda: topics <= diagnostics(robot.reports, ': input')[1].items())
    assert not robot.poses
    for topic in ('image', 'odom'):  # cameras and base drivers may send best effort
        (listener,) = node.ros.node.get_subscriptions_info_by_topic(f'/{topic}')
        assert listener.qos_profile.reliability == BEST_EFFORT.reliability
    node.node.trigger_deactivate()
    robot.send_initial_pose(robot.pose(2.0), frame_id='elsewhere')
    node.ros.spin_until(lambda: "expected frame 'map', got 'elsewhere'" in node.log)
    robot.send_initial_pose(robot.pose(2.0))
    node.ros.spin_until(lambda: 'initial pose x 1.00 m' in node.log)
    assert 'kept until the node is active' in node.log
    node.node.trigger_activate()
    assert node.robot.arrive(2.05, 4.0) < 0.3


def test_images_that_cannot_be_used_end_what_is_localized(start):
    node = start()
    robot = node.robot
    assert robot.arrive(0.0, 6.0) < 0.3
    robot.hears('Localized', ': localization')
    told = [status for report in robot.reports for status in report.status]
    levels = {status.level for status in told if status.message == 'Localized'}
    assert levels == {DiagnosticStatus.OK}
    seconds, why = 6.05, 'images could be used: image of 64x48 pixels: expected'
    while why not in diagnostics(robot.reports, ': localization')[0]:
        robot.send_odometry(seconds)
        robot.send_image(seconds, np.zeros((48, 64), np.uint8))
        node.ros.spin(0.05)
        seconds += 0.05
        assert seconds < 15.0
    robot.hears(why)
    assert 'none of the last' not in node.log  # said once, by another line


def test_while_the_robot_stands_images_are_used_on_request_or_by_a_parameter(start):
    node = start()
    node.robot.drive(0.0, 2.0)

    def used_from(start):
        """Count the images used when ten more of one place are answered."""
        for tick in range(10):
            node.robot.send_odometry(start + tick / 20, node.robot.odometry_pose(2.0))
            node.robot.send_image(start + tick / 20, wall_image(node.robot.pose(2.0)[0]))
        node.robot.answer(start + 9 / 20)
        return node.node.localization.session.used

    before = used_from(2.05)
    assert used_from(2.55) == before
    call(node.ros, Empty, 'request_nomotion_update', Empty.Request())
    assert used_from(3.05) == before + 1
    assert node.set('update_min_d', 0.0)
    assert used_from(3.55) >= before + 4


def test_another_map_is_loaded_by_name_and_a_bad_one_changes_nothing(start, tiny_world, tmp_path):
    KernelMap.load(tiny_world.map_file).subset(np.arange(25)).save(tmp_path / 'short.h5')
    files = [f'long={tiny_world.map_file}', f'short={tmp_path}/short.h5']
    node = start(map_file='long', map_files=files, initialize_globally=False)
    call(node.ros, Empty, 'reinitialize_global_localization', Empty.Request())
    node.robot.arrive(0.0, 2.0)
    assert node.set('map_file', '/no/such/map.h5')
    bad = node.load_map()
    assert not bad.success and 'the map stays as it was' in bad.message
    assert node.node.get_parameter('map_file').value == 'long'
    assert node.robot.arrive(2.05, 2.8) < 0.3
    good = node.load_map('short')
    assert good.success and '25 images' in good.message
    assert node.node.get_parameter('map_file').value == 'short'
    node.robot.drive(2.85, 3.2)
    assert node.node.localization.session.needs_initial_pose
    call(node.ros, Empty, 'reinitialize_global_localization', Empty.Request())
    assert node.robot.arrive(3.25, 8.0) < 0.3
    node.node.trigger_deactivate()
    assert 'starting on map short, where' in start(map_file='long', map_files=files).log
    assert 'saved pose not used: it belongs to another map' in start().log


def test_a_view_that_has_changed_joins_the_map_and_the_belief_stays(start, tmp_path):
    node = start(grow_into=tmp_path, grow_below=0.9, grow_max_sd=1.0)
    assert node.set('grow_map', True)
    node.robot.arrive(0.0, 9.2)
    tracker = node.node.localization.session.tracker
    localizer, changed = tracker.localizer, wall_image(node.robot.pose(9.6)[0])
    changed[:, 40:90] = 0
    node.robot.drive(9.25, 9.55)
    node.robot.send_odometry(9.6)
    node.robot.send_image(9.6, changed)
    assert node.robot.arrive(9.65, 10.4) < 0.3
    assert tracker.localizer is localizer and len(tracker.kernel_map) == 41
    node.node.trigger_deactivate()
    assert len(KernelMap.load(tmp_path / 'map.h5')) == 41


def test_a_deactivated_node_is_silent_and_goes_on_from_its_belief_or_the_saved_pose(start):
    node = start(save_pose_rate=100.0)
    node.robot.arrive(0.0, 6.0)
    node.ros.spin_until((node.ros.folder / 'pose.json').is_file)
    lifecycle = node.node
    lifecycle.trigger_deactivate()
    saved = load_pose(node.ros.folder / 'pose.json')
    assert off_by(saved.pose, node.robot.pose(6.0)) < 0.3
    node.robot.poses.clear()
    node.robot.drive(6.05, 7.0)
    assert not node.robot.poses
    lifecycle.trigger_activate()
    assert node.robot.arrive(7.05, 8.0) < 0.3
    up = (lifecycle.trigger_configure, lifecycle.trigger_activate)
    for change in (lifecycle.trigger_deactivate, lifecycle.trigger_cleanup, *up):
        assert change() == TransitionCallbackReturn.SUCCESS
    node.robot.wait_for_listeners()
    assert node.robot.arrive(8.05, 10.0) < 0.3
    assert 'starting from the saved pose' in node.log
    assert lifecycle.trigger_shutdown() == TransitionCallbackReturn.SUCCESS
    count = node.ros.node.count_subscribers
    node.ros.spin_until(lambda: not (count('image') or count('odom')))
