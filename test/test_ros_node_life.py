"""The node's life: transitions, parameters, signals, bad input, several robots, hints."""

import gc
import signal
import weakref

from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseWithCovarianceStamped
from kbr_localization.errors import LocalizationError
from kbr_localization.localization.map.grow import GrownFile
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.ros.common import conversions
from lifecycle_msgs.msg import State, Transition
from lifecycle_msgs.srv import GetState
import numpy as np
import pytest
from rcl_interfaces.msg import ParameterType
from rcl_interfaces.srv import DescribeParameters
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.qos import ReliabilityPolicy
from ros_helpers import BEST_EFFORT, call
from ros_node_helpers import (
    by_stamp,
    change_state,
    diagnostics,
    is_localized,
    node_at_hand,
    off_by,
    set_parameter,
    start_node,
    wait_for_answer,
)
from ros_robot import make_tiny_world, Robot
from std_srvs.srv import Empty, Trigger

pytestmark = pytest.mark.ros


def state(ros, node='/localization'):
    return call(ros, GetState, f'{node}/get_state', GetState.Request()).current_state.id


def test_a_lifecycle_manager_can_lead_it_through_all_states(ros, tiny_world):
    poses = ros.collect(PoseWithCovarianceStamped, 'amcl_pose')
    node = start_node(ros, tiny_world, autostart=False, initialize_globally=False)
    robot = Robot(ros)
    assert state(ros) == State.PRIMARY_STATE_UNCONFIGURED
    robot.send_initial_pose(None, robot.pose(0.0))  # kept until it can be used
    ros.spin_until(lambda: 'kept until the node is active' in node.output)
    assert change_state(ros, Transition.TRANSITION_CONFIGURE)
    assert change_state(ros, Transition.TRANSITION_ACTIVATE)
    robot.wait_for_listeners()
    robot.drive(0.0, 3.0)
    ros.spin_until(lambda: robot.stamp_ns(2.8) in by_stamp(poses))
    assert change_state(ros, Transition.TRANSITION_DEACTIVATE)
    ros.spin(0.3)
    poses.clear()
    robot.drive(3.05, 5.0)
    assert not poses
    assert change_state(ros, Transition.TRANSITION_ACTIVATE)
    robot.drive(5.05, 7.0)
    ros.spin_until(lambda: robot.stamp_ns(6.8) in by_stamp(poses))
    got = conversions.pose_from_message(by_stamp(poses)[robot.stamp_ns(6.8)].pose)
    assert off_by(got, robot.pose(6.8)) < 0.3
    for transition in (
        Transition.TRANSITION_DEACTIVATE,
        Transition.TRANSITION_CLEANUP,
        Transition.TRANSITION_CONFIGURE,
        Transition.TRANSITION_CLEANUP,
        Transition.TRANSITION_UNCONFIGURED_SHUTDOWN,
    ):
        assert change_state(ros, transition)
    assert state(ros) == State.PRIMARY_STATE_FINALIZED
    assert node.stop() == 0 and 'Traceback' not in node.output


def test_a_configuration_that_fails_leaves_it_unconfigured_with_the_reason(ros, tiny_world):
    node = start_node(ros, tiny_world, autostart=False, map_file='/no/such/map.h5')
    assert not change_state(ros, Transition.TRANSITION_CONFIGURE)
    assert state(ros) == State.PRIMARY_STATE_UNCONFIGURED
    assert '/no/such/map.h5' in node.output and 'Traceback' not in node.output


def test_a_configuration_that_fails_keeps_neither_map_nor_claim(ros, tiny_world_copy):
    map_file = tiny_world_copy.map_file
    KernelMap.load(map_file).subset(np.arange(1)).save(map_file)
    with node_at_hand(ros, map_file=map_file, method='fkbf', grow_map='true') as node:
        assert 'fkbf learns the motion' in str(node.failure)
        gc.collect()
        # a lifecycle manager may configure it again, and the file is free for others
        GrownFile(map_file.with_name('map_grown.h5')).claim()
        maps = (found for found in gc.get_objects() if isinstance(found, KernelMap))
        assert not any(len(found) == 1 for found in maps)


def test_a_configuration_that_fails_leaves_no_topics(ros, tiny_world):
    wrong = {'qos_overrides./odom.subscription.reliability': 'somewhat'}
    with node_at_hand(ros, map_file=tiny_world.map_file, **wrong) as node:
        assert "got reliability 'somewhat'" in str(node.failure)
        names = {end.topic_name for end in (*node.publishers, *node.subscriptions)}
        assert not names & {'/amcl_pose', '/tf', '/image'}


def test_a_request_that_fails_at_the_end_keeps_nothing_from_being_ended_and_saved(ros, tiny_world):
    def fails():
        raise LocalizationError('a system that is singular')

    with node_at_hand(ros, map_file=tiny_world.map_file) as node:
        robot = Robot(ros)
        robot.wait_for_listeners()
        robot.drive(0.0, 4.0)
        localization = node.configured()
        session, told, saved = localization.session, [], []
        ros.spin_until(lambda: session.last and session.last.stamp_ns == robot.stamp_ns(4.0))
        localization._log = lambda level, text, quiet: told.append(text)
        localization.keeper.save = lambda: saved.append('map')
        localization._worker.stop()
        for request in (fails, lambda: 1 / 0, lambda: saved.append('after the failures')):
            session.request(request)
        assert node.trigger_deactivate() == TransitionCallbackReturn.SUCCESS
        assert any('singular' in text for text in told)
        assert any('ZeroDivisionError' in text for text in told)
        assert (ros.folder / 'pose.json').is_file() and not localization.at_work
        assert saved == ['after the failures', 'map']
        ros.spin_until(lambda: not ros.node.count_publishers('/diagnostics'))
        assert node.trigger_activate() == TransitionCallbackReturn.SUCCESS


def test_a_request_for_an_update_is_told_when_no_image_will_follow(ros, tiny_world):
    with node_at_hand(ros, map_file=tiny_world.map_file) as node:
        told = []
        node.log = lambda level, text, quiet=None: told.append(text)
        for active in (True, False):
            call(ros, Empty, '/request_nomotion_update', Empty.Request())
            assert told == ([] if active else ['an update asked for, but the node is not active'])
            if active:
                node.trigger_deactivate()


def test_a_cleanup_lets_the_map_go(ros, tiny_world):
    with node_at_hand(ros, map_file=tiny_world.map_file) as node:
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                kept = weakref.ref(node.configured().keeper.in_use.kernel_map)
                assert kept() is not None
                assert node.trigger_deactivate() == TransitionCallbackReturn.SUCCESS
                assert node.trigger_cleanup() == TransitionCallbackReturn.SUCCESS
                assert kept() is None
                assert node.trigger_configure() == TransitionCallbackReturn.SUCCESS
                assert node.trigger_activate() == TransitionCallbackReturn.SUCCESS
        finally:
            gc.enable()


@pytest.mark.slow
def test_configuring_and_cleaning_up_again_and_again_grows_no_memory(ros, tiny_world):
    psutil = pytest.importorskip('psutil')

    def cycle(times):
        for _ in range(times):
            assert change_state(ros, Transition.TRANSITION_CONFIGURE)
            assert change_state(ros, Transition.TRANSITION_CLEANUP)
        return psutil.Process(node.popen.pid).memory_info().rss

    node = start_node(ros, tiny_world, autostart=False)
    before = cycle(5)
    assert cycle(25) - before < 20e6, 'a leak of a megabyte each time, or more'
    assert node.stop() == 0


def test_parameters_change_while_it_runs_and_bad_values_are_refused(ros, tiny_world):
    poses = ros.collect(PoseWithCovarianceStamped, 'amcl_pose')
    reports = ros.collect(DiagnosticArray, '/diagnostics')
    node = start_node(ros, tiny_world)
    robot = Robot(ros)
    robot.wait_for_listeners()
    robot.drive(0.0, 3.0)
    wait_for_answer(ros, poses, robot.stamp_ns(2.8))
    refused = set_parameter(ros, 'update_min_d', double_value=-1.0)
    assert not refused.successful and 'update_min_d' in refused.reason
    assert '0.0' in refused.reason and '-1.0' in refused.reason
    assert not set_parameter(ros, 'global_frame_id', string_value='world').successful
    misspelt = set_parameter(ros, 'update_min_dd', double_value=1.0)
    assert not misspelt.successful and "did you mean 'update_min_d'?" in misspelt.reason
    assert set_parameter(ros, 'update_min_d', integer_value=1).successful
    request = DescribeParameters.Request(names=['update_min_d'])
    described = call(ros, DescribeParameters, '/localization/describe_parameters', request)
    assert described.descriptors[0].type == ParameterType.PARAMETER_DOUBLE
    robot.drive(3.05, 5.0)
    assert off_by(wait_for_answer(ros, poses, robot.stamp_ns(4.8)), robot.pose(4.8)) < 0.3
    reports.clear()
    ros.spin_until(lambda: reports)
    # a metre of way: the first image after the change, and hardly another one
    assert float(diagnostics(reports, 'localization')[1]['updates']) <= 2
    assert 'Traceback' not in node.output


def test_another_map_is_loaded_on_request_and_a_bad_one_changes_nothing(ros, tiny_world):
    poses = ros.collect(PoseWithCovarianceStamped, 'amcl_pose')
    reports = ros.collect(DiagnosticArray, '/diagnostics')
    start_node(ros, tiny_world)
    robot = Robot(ros)
    robot.wait_for_listeners()
    robot.drive(0.0, 2.0)

    def load(path):
        assert set_parameter(ros, 'map_file', string_value=str(path)).successful
        return call(ros, Trigger, '/localization/load_map', Trigger.Request())

    bad = load('/no/such/map.h5')
    assert not bad.success and 'stays as it was' in bad.message
    (ros.folder / 'second').mkdir()
    second = make_tiny_world(ros.folder / 'second', frames=25)
    good = load(second.map_file)
    assert good.success and '25 images' in good.message
    robot.drive(2.05, 9.2)
    ros.spin_until(lambda: robot.stamp_ns(9.2) in by_stamp(poses))
    reports.clear()
    ros.spin_until(lambda: is_localized(reports))


def test_two_robots_in_two_namespaces_do_not_disturb_each_other(ros, tiny_world):
    robots = []
    for index, namespace in enumerate(('/one', '/two')):
        pose_file = ros.folder / f'pose{index}.json'
        remappings = [f'__ns:={namespace}']
        start_node(ros, tiny_world, pose_file=pose_file, remappings=remappings)
        poses = ros.collect(PoseWithCovarianceStamped, f'{namespace}/amcl_pose')
        robots.append((Robot(ros, namespace, x=2.0 * index), poses))
    reports = ros.collect(DiagnosticArray, '/diagnostics')
    for robot, _ in robots:
        robot.wait_for_listeners()
    for tick in range(81):
        for robot, _ in robots:
            robot.drive(tick / 20, tick / 20, pace=0.003)
    for robot, poses in robots:
        ros.spin_until(lambda r=robot, p=poses: r.stamp_ns(4.0) in by_stamp(p))
        got = conversions.pose_from_message(by_stamp(poses)[robot.stamp_ns(4.0)].pose)
        assert off_by(got, robot.pose(4.0)) < 0.3
    ros.spin_until(lambda: len({report.status[0].name for report in reports}) == 2)
    told = {(s.hardware_id, s.name) for report in reports for s in report.status}
    assert {hardware for hardware, _ in told} == {'one/localization', 'two/localization'}
    assert ('two/localization', 'two/localization: input') in told


@pytest.mark.parametrize('how', [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_in_good_order(ros, tiny_world, how):
    poses = ros.collect(PoseWithCovarianceStamped, 'amcl_pose')
    node = start_node(ros, tiny_world)
    robot = Robot(ros)
    robot.wait_for_listeners()
    robot.drive(0.0, 7.0)
    wait_for_answer(ros, poses, robot.stamp_ns(6.8))
    assert node.stop(how) == 0
    assert 'images answered' in node.output and 'Traceback' not in node.output
    assert (ros.folder / 'pose.json').is_file()


def test_a_publisher_with_the_wrong_qos_is_explained(ros, tiny_world):
    reports = ros.collect(DiagnosticArray, '/diagnostics')
    reliable = 'qos_overrides./image.subscription.reliability'
    start_node(ros, tiny_world, no_data_timeout=1.0, **{reliable: 'reliable'})
    Robot(ros, image_qos=BEST_EFFORT)
    ros.spin_until(lambda: 'QoS incompatible' in diagnostics(reports, 'input')[0])


@pytest.mark.parametrize(
    'values, says',
    [
        ({'map_file': '/no/such/map.h5'}, '/no/such/map.h5'),
        ({'map_file': '""'}, "parameter 'map_file' is empty"),
        ({'map_file': ''}, 'the ROS arguments are not right'),
        ({'map_file': __file__}, 'test_ros_node_life.py'),
        ({'update_min_d': -1.0}, "parameter 'update_min_d': expected a value in [0.0, 100.0]"),
        ({'mapfile': 'x'}, "unknown parameter 'mapfile' = 'x': did you mean 'map_file'?"),
    ],
)
def test_a_node_that_cannot_start_says_why_and_exits_with_2(ros, tiny_world, values, says):
    node = ros.start_node('node', **{'map_file': tiny_world.map_file, **values})
    assert node.wait() == 2
    assert says in node.output and 'Traceback' not in node.output
    ours = [line for line in node.output.splitlines() if '[rcl]' not in line and 'tf2' not in line]
    assert len(ours) == 1


def test_arguments_that_are_no_utf_8_are_refused(ros):
    """As of a file name in Latin 1, or in a container whose Python is told to know ASCII only."""
    ascii_only = {'LC_ALL': 'C', 'PYTHONUTF8': '0', 'PYTHONCOERCECLOCALE': '0'}
    node = ros.start_node('node', environment=ascii_only, map_file='/büro.h5')
    assert node.wait() == 2
    assert 'the ROS arguments are not right: expected UTF-8' in node.output
    assert 'Traceback' not in node.output


def test_an_initial_pose_off_the_map_is_not_used_and_said_to_be(ros, tiny_world):
    values = {'set_initial_pose': True, 'initial_pose.x': 1e4, 'initialize_globally': False}
    node = start_node(ros, tiny_world, **values)
    ros.spin_until(lambda: 'no initial pose' in node.output or 'nothing on' in node.output)
    assert 'parameter initial_pose not used: x 10000.00 m' in node.output
    assert 'm from the nearest image of the map' in node.output


def test_the_quality_of_service_stays_as_it_is_when_nothing_may_override_it(ros, tiny_world):
    start_node(
        ros,
        tiny_world,
        allow_parameter_qos_overrides=False,
        **{'qos_overrides./image.subscription.reliability': 'reliable'},
    )
    ros.spin_until(lambda: ros.node.get_subscriptions_info_by_topic('/image'))
    (info,) = ros.node.get_subscriptions_info_by_topic('/image')
    assert info.qos_profile.reliability == ReliabilityPolicy.BEST_EFFORT
