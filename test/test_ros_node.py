"""The localization node: one process for all tests, led as by a lifecycle manager."""

import os
import signal

from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseArray, PoseWithCovarianceStamped
from helpers import wall_image
from kbr_localization.datasets import open_dataset
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.pipeline import localize
from kbr_localization.resources import profile_variable
from kbr_localization.ros import conversions
from kbr_localization.ros.conversions import optional_interface
from kbr_localization.ros.saved_pose import load_pose
from lifecycle_msgs.msg import State, Transition
from lifecycle_msgs.srv import GetState
import numpy as np
import pytest
from rclpy.qos import QoSProfile
from ros_helpers import BEST_EFFORT, call, FASTDDS_PROFILE, LATCHED, ros_world
from ros_node_helpers import (
    by_stamp,
    change_state,
    diagnostics,
    EVERY_IMAGE,
    get_parameter,
    is_localized,
    node_at_hand,
    off_by,
    set_parameter,
    start_player,
    wait_for_answer,
)
from ros_robot import Robot
from sensor_msgs.msg import CompressedImage
from std_srvs.srv import Empty, Trigger
from visualization_msgs.msg import MarkerArray

pytestmark = pytest.mark.ros
# asked before other tests build the messages of Nav2
CLOUD = optional_interface('nav2_msgs.msg', 'ParticleCloud') or PoseArray
UP = (Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE)
DOWN = (Transition.TRANSITION_DEACTIVATE, Transition.TRANSITION_CLEANUP)


class Running:
    """The node's process, a robot, and what the node says."""

    def __init__(self, ros, world):
        self.ros, self.world = ros, world
        self.pose_file = ros.folder / 'pose.json'
        KernelMap.load(world.map_file).subset(np.arange(25)).save(ros.folder / 'short.h5')
        self.process = ros.start_node(
            'node',
            autostart=False,
            initialize_globally=False,
            map_files=[f'long={world.map_file}', f'short={ros.folder}/short.h5'],
            pose_file=self.pose_file,
            grow_into=ros.folder / 'grown',
            save_pose_rate=20.0,
            no_data_timeout=2.0,
            **EVERY_IMAGE,
        )
        self.poses = ros.collect(PoseWithCovarianceStamped, 'amcl_pose')
        self.reports = ros.collect(DiagnosticArray, '/diagnostics')
        self.robot, self.is_up = Robot(ros), False

    def start_anew(self):
        """Configure and activate, with nothing left of the test before."""
        if self.is_up:
            self.change(*DOWN)
        self.pose_file.unlink(missing_ok=True)
        self.change(*UP)
        self.is_up = True
        self.robot.wait_for_listeners()
        self.poses.clear()
        self.reports.clear()

    def change(self, *transitions):
        for transition in transitions:
            assert change_state(self.ros, transition), self.process.output

    def start_globally(self):
        call(self.ros, Empty, 'reinitialize_global_localization', Empty.Request())

    def drive(self, start, end):
        """Drive, and return how far off the pose of the last image is."""
        self.robot.drive(start, end)
        pose = wait_for_answer(self.ros, self.poses, self.robot.stamp_ns(end))
        return off_by(pose, self.robot.pose(end))

    def says(self, part, text):
        """Wait until a part of the diagnostics says something."""
        self.ros.spin_until(lambda: text in diagnostics(self.reports, part)[0])


@pytest.fixture(scope='module')
def process(tmp_path_factory, tiny_world):
    os.environ[profile_variable()] = str(FASTDDS_PROFILE)
    with ros_world(tmp_path_factory.mktemp('node')) as ros:
        yield Running(ros, tiny_world)


@pytest.fixture
def node(process):
    process.start_anew()
    return process


def test_it_says_the_same_as_the_offline_pipeline_and_shows_it(node):
    ros, world = node.ros, node.world
    seen = {
        'particles': ros.collect(CLOUD, 'particle_cloud', BEST_EFFORT),
        'markers': ros.collect(MarkerArray, 'localization/map_poses', LATCHED),
        'match': ros.collect(CompressedImage, 'localization/best_match/compressed', BEST_EFFORT),
        'pose': ros.collect(PoseWithCovarianceStamped, 'localization/pose'),
    }
    node.start_globally()
    player = start_player(ros, world, rate=4.0)
    ros.spin_until(lambda: player.popen.poll() is not None and len(node.poses) >= 40)
    expected = localize(KernelMap.load(world.map_file), open_dataset(world.run))
    got = by_stamp(node.poses)
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
    values = {part: diagnostics(node.reports, part)[1] for part in ('input', 'load', 'map')}
    assert values['input']['images dropped'] == '0' and values['map']['images'] == '40'
    assert {'/odom [Hz]', '/image publishers', 'odometry: newest'} <= values['input'].keys()
    assert {'processing p95 [ms]', 'latency max [ms]'} <= values['load'].keys()


def test_without_a_belief_there_is_no_pose_and_the_topics_are_named(node):
    robot = node.robot
    robot.drive(0.0, 2.0)
    node.says('localization', 'publish one on /initialpose')
    assert diagnostics(node.reports, 'localization')[0].startswith('Not localized: no initial')
    assert not node.poses
    robot.send_initial_pose(2.0, robot.pose(2.0), frame_id='elsewhere')
    node.ros.spin_until(lambda: "expected frame 'map', got 'elsewhere'" in node.process.output)
    robot.send_initial_pose(2.0, robot.pose(2.0))
    node.ros.spin_until(lambda: 'initial pose x 1.00 m' in node.process.output)
    assert node.drive(2.05, 4.0) < 0.3


def test_images_that_cannot_be_used_end_what_is_localized(node):
    node.start_globally()
    assert node.drive(0.0, 6.0) < 0.3
    node.ros.spin_until(lambda: is_localized(node.reports))
    seconds = 6.05
    why = 'images could be used: image of 64x48 pixels: expected'
    while why not in diagnostics(node.reports, ': localization')[0]:
        node.robot.send_odometry(seconds)
        node.robot.send_image(seconds, np.zeros((48, 64), np.uint8))
        node.ros.spin(0.05)
        seconds += 0.05
        assert seconds < 100.0
    assert why in diagnostics(node.reports, ': input')[0]
    assert 'none of the last' not in node.process.output  # said once, by another line


def test_parameters_change_while_it_runs_and_bad_values_are_refused(node):
    node.start_globally()
    node.drive(0.0, 2.0)
    refused = set_parameter(node.ros, 'update_min_d', double_value=-1.0)
    assert not refused.successful and '0.0' in refused.reason and '-1.0' in refused.reason
    assert not set_parameter(node.ros, 'global_frame_id', string_value='world').successful
    assert not set_parameter(node.ros, 'update_min_dd', double_value=1.0).successful
    assert set_parameter(node.ros, 'update_min_d', double_value=1.0).successful
    assert node.drive(2.05, 4.0) < 0.3
    assert set_parameter(node.ros, 'update_min_d', double_value=0.2).successful


def load_map(node, name=''):
    service = f'/localization/load_map{"/" if name else ""}{name}'
    return call(node.ros, Trigger, service, Trigger.Request())


def test_another_map_is_loaded_by_name_and_a_bad_one_changes_nothing(node):
    node.start_globally()
    node.drive(0.0, 2.0)
    assert set_parameter(node.ros, 'map_file', string_value='/no/such/map.h5').successful
    bad = load_map(node)
    assert not bad.success and 'the map stays as it was' in bad.message
    assert get_parameter(node.ros, 'map_file').string_value == 'long'
    assert node.drive(2.05, 2.8) < 0.3
    good = load_map(node, 'short')
    assert good.success and '25 images' in good.message
    assert get_parameter(node.ros, 'map_file').string_value == 'short'
    node.start_globally()
    assert node.drive(2.85, 5.2) < 0.3
    assert load_map(node, 'long').success


def test_every_one_of_many_calls_is_answered_and_few_are_logged(node):
    # with fewer in its queues a client itself would lose answers
    qos, name = QoSProfile(depth=1000), '/localization/load_map'
    clients = [node.ros.node.create_client(Trigger, name, qos_profile=qos) for _ in range(3)]
    assert all(client.wait_for_service(60.0) for client in clients)
    logged = node.process.output.count('load_map: ')
    answers = [client.call_async(Trigger.Request()) for client in clients for _ in range(134)]
    node.ros.spin_until(lambda: all(answer.done() for answer in answers))
    told = [answer.result() for answer in answers]
    assert any(one.success for one in told)
    assert all(one.success or 'another map is being read' in one.message for one in told)
    assert node.process.output.count('load_map: ') - logged < 20
    for client in clients:
        node.ros.node.destroy_client(client)


def test_a_view_that_has_changed_joins_the_map(node):
    for name, value in (('grow_below', 0.9), ('grow_max_sd', 1.0)):
        assert set_parameter(node.ros, name, double_value=value).successful
    assert set_parameter(node.ros, 'grow_map', bool_value=True).successful
    node.start_globally()
    node.drive(0.0, 9.2)
    changed = wall_image(node.robot.pose(9.6)[0])
    changed[:, 40:90] = 0
    node.robot.drive(9.25, 9.55)
    node.robot.send_odometry(9.6)
    node.robot.send_image(9.6, changed)
    node.drive(9.65, 10.4)
    assert set_parameter(node.ros, 'grow_map', bool_value=False).successful
    node.change(Transition.TRANSITION_DEACTIVATE, Transition.TRANSITION_ACTIVATE)
    grown = node.ros.folder / 'grown' / 'long.h5'
    assert len(KernelMap.load(grown)) == 41
    grown.unlink()


def test_a_deactivated_node_is_silent_and_goes_on_from_its_belief(node):
    node.start_globally()
    node.drive(0.0, 6.0)
    node.change(Transition.TRANSITION_DEACTIVATE)
    saved = load_pose(node.pose_file)
    assert off_by(saved.pose, node.robot.pose(6.0)) < 0.3
    node.poses.clear()
    node.robot.drive(6.05, 7.0)
    assert not node.poses
    node.change(Transition.TRANSITION_ACTIVATE)
    assert node.drive(7.05, 8.0) < 0.3


def test_a_saved_pose_is_gone_on_from_after_a_restart(node):
    node.start_globally()
    node.drive(0.0, 6.0)
    node.change(*DOWN, *UP)
    node.robot.wait_for_listeners()
    assert node.drive(6.05, 8.0) < 0.3
    assert 'going on from the saved pose' in node.process.output


def test_a_kept_initial_pose_is_used_when_the_node_is_activated(node):
    node.change(Transition.TRANSITION_DEACTIVATE)
    node.robot.send_initial_pose(None, node.robot.pose(0.0))
    node.ros.spin_until(lambda: 'kept until the node is active' in node.process.output)
    node.change(Transition.TRANSITION_ACTIVATE)
    assert node.drive(0.0, 2.0) < 0.3


def test_at_the_end_it_sums_up_and_shuts_down(process):
    """As the last test of this process."""
    ros = process.ros
    process.start_anew()
    process.change(Transition.TRANSITION_DEACTIVATE, Transition.TRANSITION_CLEANUP)
    process.change(Transition.TRANSITION_UNCONFIGURED_SHUTDOWN)
    found = call(ros, GetState, '/localization/get_state', GetState.Request()).current_state
    assert found.id == State.PRIMARY_STATE_FINALIZED
    assert process.process.stop() == 0
    assert 'images answered: ' in process.process.output
    assert 'Traceback' not in process.process.output


def test_a_signal_ends_it_in_good_order(ros, tiny_world):
    values = {'map_file': tiny_world.map_file, 'pose_file': ros.folder / 'pose'}
    nodes = {how: ros.start_node('node', **values) for how in (signal.SIGTERM, signal.SIGHUP)}
    ros.spin_until(lambda: ros.node.count_publishers('/diagnostics') == len(nodes))
    for how, node in nodes.items():
        assert node.stop(how) == 0
        assert 'images answered' in node.output and 'Traceback' not in node.output


def test_a_node_that_cannot_start_says_why_and_exits_with_2(ros, tiny_world):
    wrong = (
        ({'map_file': '/no/such/map.h5'}, '/no/such/map.h5'),
        ({'map_file': ''}, 'the ROS arguments are not right'),
        ({'update_min_d': -1.0}, "parameter 'update_min_d': expected a value in [0.0, "),
        ({'mapfile': 'x'}, "unknown parameter 'mapfile' = 'x': did you mean 'map_file'?"),
        ({'qos_overrides./odom.subscription.depth': 'x'}, "got depth 'x'"),
    )
    usual = {'map_file': tiny_world.map_file}
    nodes = [(ros.start_node('node', **usual | values), says) for values, says in wrong]
    for node, says in nodes:
        assert node.wait() == 2
        assert says in node.output and 'Traceback' not in node.output


def test_an_update_on_request_while_the_robot_stands(ros, tiny_world):
    with node_at_hand(ros, map_file=tiny_world.map_file) as node:
        robot, session = Robot(ros), node.localization.session
        robot.wait_for_listeners()
        robot.drive(0.0, 2.0)

        def used_from(start):
            """Count the images used when ten more of one place are answered."""
            for tick in range(10):
                robot.stand(start + tick / 20, at=2.0)
            last_ns = robot.stamp_ns(start + 9 / 20)
            ros.spin_until(lambda: session.last and session.last.stamp_ns == last_ns)
            return session.used

        before = used_from(2.05)
        assert used_from(2.55) == before
        call(ros, Empty, 'request_nomotion_update', Empty.Request())
        assert used_from(3.05) == before + 1


def test_a_reset_overtakes_an_answer_that_is_not_sent_then(ros, tiny_world):
    with node_at_hand(ros, map_file=tiny_world.map_file) as node:
        robot, localization = Robot(ros), node.localization
        session = localization.session
        robot.wait_for_listeners()
        robot.drive(0.0, 3.2)
        ros.spin_until(lambda: session.last and session.last.stamp_ns == robot.stamp_ns(3.2))
        last, answered = session.last, session.answered
        session.reset('the clock jumped back')
        localization._publish(last)
        assert session.dropped['before a reset'] == 1 and session.answered == answered - 1
