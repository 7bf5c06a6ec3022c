"""Maps while the node runs: they grow, and others take their place."""

from dataclasses import replace
import threading

from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseWithCovarianceStamped
from kbr_localization.localization.map.grow import grown
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.ros.common import conversions
from kbr_localization.ros.session.persistence import save_pose, SavedPose
import numpy as np
import pytest
from ros_helpers import call, PATIENCE
from ros_node_helpers import (
    by_stamp,
    diagnostics,
    drive_until_added,
    get_parameter,
    is_localized,
    node_at_hand,
    set_parameter,
    start_node,
)
from ros_robot import make_tiny_world, Robot
from std_srvs.srv import Empty, Trigger

pytestmark = pytest.mark.ros

GROWING = {'grow_map': True, 'update_min_d': 0.15, 'grow_below': 0.9}
GAP = slice(40, 47)
"""Images that are taken out of a map of 80, from 8.0 m to 9.2 m."""


def trigger(ros, name):
    return call(ros, Trigger, f'/localization/{name}', Trigger.Request())


def localized_robot(ros, poses, reports, end=6.0, last=None):
    """Return a robot that has driven, and whose image of the time `last` is answered."""
    robot = Robot(ros)
    robot.wait_for_listeners()
    robot.drive(0.0, end)
    ros.spin_until(lambda: robot.stamp_ns(last or end) in by_stamp(poses))
    reports.clear()
    ros.spin_until(lambda: is_localized(reports))
    return robot


def facts(reports):
    return diagnostics(reports, ': map')[1]


def off_by(message, expected):
    pose = conversions.pose_from_message(message.pose)
    return float(np.hypot(*(pose - expected)[:2]))


def test_the_current_image_joins_the_map_on_request_and_is_there_after_a_restart(
    ros, tiny_world_copy
):
    reports = ros.collect(DiagnosticArray, '/diagnostics')
    poses = ros.collect(PoseWithCovarianceStamped, 'amcl_pose')
    node = start_node(ros, tiny_world_copy)
    nothing = trigger(ros, 'add_current')
    assert not nothing.success and 'no image has been used' in nothing.message
    robot = localized_robot(ros, poses, reports)
    added = drive_until_added(ros, robot, poses, 6.0)
    beside = tiny_world_copy.map_file.with_name('map_grown.h5')
    assert f'written to {beside}' in node.output
    assert len(KernelMap.load(beside)) == 41
    assert len(KernelMap.load(tiny_world_copy.map_file)) == 40
    end = added + 2.0
    robot.drive(added + 0.05, end)
    ros.spin_until(lambda: robot.stamp_ns(end) in by_stamp(poses))
    assert off_by(by_stamp(poses)[robot.stamp_ns(end)], robot.pose(end)) < 0.3
    ros.spin_until(lambda: facts(reports).get('images added on request') == '1')
    assert facts(reports)['images'] == '41'
    assert node.stop() == 0
    again = start_node(ros, tiny_world_copy)
    assert '41 images' in again.output
    robot.wait_for_listeners()
    robot.drive(end + 0.05, end + 2.0)
    # growth must not make it worthless
    ros.spin_until(lambda: 'going on from the saved pose' in again.output)
    assert 'Traceback' not in node.output + again.output


def test_a_map_grows_by_itself_where_it_has_a_gap_and_is_read_again(ros):
    """The way to the gap is what proves the map, and what says how well views match as a rule."""
    world = make_tiny_world(ros.folder, frames=80)
    whole = KernelMap.load(world.map_file)
    whole.subset(np.delete(np.arange(80), GAP)).save(world.map_file)
    poses = ros.collect(PoseWithCovarianceStamped, 'amcl_pose')
    reports = ros.collect(DiagnosticArray, '/diagnostics')
    before = world.map_file.read_bytes()
    into = ros.folder / 'grown'
    node = start_node(ros, world, grow_into=into, **GROWING)
    robot = localized_robot(ros, poses, reports, 21.0, last=20.8)
    assert node.stop() == 0
    grown_map = KernelMap.load(into / 'map.h5')
    added = grown_map.poses[grown(grown_map)]
    assert 1 <= len(added) <= 4, 'an image every half metre of the gap, where the pose is sure'
    assert added[:, 0].min() > 7.8 and added[:, 0].max() < 9.5
    assert world.map_file.read_bytes() == before
    again = start_node(ros, world, grow_into=into)
    assert f'{73 + len(added)} images' in again.output
    robot.wait_for_listeners()
    assert 'Traceback' not in node.output + again.output


def test_an_image_that_cannot_be_written_yet_is_said_to_be_added(ros, tiny_world_copy):
    """Or who asked would ask again, and the map would have it twice."""
    (ros.folder / 'taken').write_text('a file, no folder')
    poses = ros.collect(PoseWithCovarianceStamped, 'amcl_pose')
    reports = ros.collect(DiagnosticArray, '/diagnostics')
    start_node(ros, tiny_world_copy, grow_into=ros.folder / 'taken')
    robot = localized_robot(ros, poses, reports, 6.0)
    drive_until_added(ros, robot, poses, 6.0, says='to be written later')
    ros.spin_until(lambda: facts(reports).get('images') == '41')
    assert facts(reports)['images added and not yet written'] == '1'


def test_an_inactive_node_adds_nothing(ros, tiny_world):
    start_node(ros, tiny_world, autostart=False)
    assert 'configure it first' in trigger(ros, 'add_current').message


@pytest.fixture
def two_floors(ros, tiny_world):
    """Give the entries of two maps, the second of the first half of the wall, and a broken one."""
    kernel_map = KernelMap.load(tiny_world.map_file)
    kernel_map.subset(np.arange(25)).save(ros.folder / 'upper.h5')
    (ros.folder / 'broken.h5').write_bytes(b'no map')
    names = {'ground': tiny_world.map_file, 'upper': ros.folder / 'upper.h5'}
    names['broken'] = ros.folder / 'broken.h5'
    return [f'{name}={path}' for name, path in names.items()]


def test_each_of_several_maps_has_a_service(ros, tiny_world, two_floors):
    reports = ros.collect(DiagnosticArray, '/diagnostics')
    poses = ros.collect(PoseWithCovarianceStamped, 'amcl_pose')
    node = start_node(ros, tiny_world, map_file='""', map_files=two_floors)
    robot = localized_robot(ros, poses, reports)
    assert facts(reports)['map'] == 'ground'
    broken = trigger(ros, 'load_map/broken')
    assert not broken.success and 'the map stays as it was' in broken.message
    assert 'broken.h5' in broken.message
    upper = trigger(ros, 'load_map/upper')
    assert upper.success and upper.message == 'upper: 25 images'
    poses.clear()
    robot.drive(6.05, 8.4)
    ros.spin_until(lambda: robot.stamp_ns(8.0) in by_stamp(poses))
    assert off_by(by_stamp(poses)[robot.stamp_ns(8.0)], robot.pose(8.0)) < 0.3
    ros.spin_until(lambda: facts(reports)['map'] == 'upper')
    assert set_parameter(ros, 'map_file', string_value='ground').successful
    assert trigger(ros, 'load_map').message == 'ground: 40 images'
    assert set_parameter(ros, 'map_file', string_value='attic').successful
    unknown = trigger(ros, 'load_map')
    assert not unknown.success and 'names out of map_files: ground, upper' in unknown.message
    assert 'Traceback' not in node.output


def test_on_another_map_a_pose_is_awaited_where_global_starts_are_not_wanted(
    ros, tiny_world, two_floors
):
    reports = ros.collect(DiagnosticArray, '/diagnostics')
    poses = ros.collect(PoseWithCovarianceStamped, 'amcl_pose')
    node = start_node(
        ros, tiny_world, map_file='ground', map_files=two_floors, initialize_globally=False
    )
    robot = Robot(ros)
    robot.wait_for_listeners()
    robot.send_initial_pose(None, robot.pose(0.0))
    # without a stamp it counts from when it comes
    ros.spin_until(lambda: 'initial pose x' in node.output)
    robot.drive(0.0, 2.0)
    ros.spin_until(lambda: robot.stamp_ns(2.0) in by_stamp(poses))
    assert off_by(by_stamp(poses)[robot.stamp_ns(2.0)], robot.pose(2.0)) < 0.3
    assert trigger(ros, 'load_map/upper').success
    poses.clear()
    robot.drive(2.05, 3.0)
    ros.spin_until(lambda: 'no initial pose' in diagnostics(reports, ': localization')[0])
    assert not poses
    robot.send_initial_pose(3.0, robot.pose(3.0))
    robot.drive(3.05, 5.0)
    ros.spin_until(lambda: robot.stamp_ns(4.8) in by_stamp(poses))
    assert off_by(by_stamp(poses)[robot.stamp_ns(4.8)], robot.pose(4.8)) < 0.3
    assert 'Traceback' not in node.output


def test_a_node_restarted_on_another_floor_goes_on_there(ros, tiny_world, two_floors):
    reports = ros.collect(DiagnosticArray, '/diagnostics')
    poses = ros.collect(PoseWithCovarianceStamped, 'amcl_pose')
    node = start_node(ros, tiny_world, map_file='ground', map_files=two_floors)
    robot = Robot(ros)
    robot.wait_for_listeners()
    robot.drive(0.0, 2.0)
    ros.spin_until(lambda: robot.stamp_ns(2.0) in by_stamp(poses))
    assert trigger(ros, 'load_map/upper').success
    robot.drive(2.05, 9.2)  # the map of the upper floor ends at 4.8 m
    ros.spin_until(lambda: robot.stamp_ns(8.8) in by_stamp(poses))
    reports.clear()
    ros.spin_until(lambda: is_localized(reports))
    assert node.stop() == 0
    again = start_node(ros, tiny_world, map_file='ground', map_files=two_floors)
    robot.wait_for_listeners()
    robot.drive(9.25, 10.0)
    ros.spin_until(lambda: 'going on from the saved pose' in again.output)
    assert 'going on with map upper' in again.output


def test_a_node_restarted_on_a_floor_whose_map_is_broken_starts_on_that_of_the_parameters(
    ros, tiny_world, two_floors
):
    x = np.zeros(3)
    save_pose(ros.folder / 'pose.json', SavedPose(0, x, np.eye(3), x, 'an id', 'broken'))
    with node_at_hand(ros, map_file='ground', map_files=as_yaml(two_floors)) as node:
        assert node.configured().keeper.in_use.name == 'ground'


def test_the_node_takes_the_filter_parameters_of_its_map(ros, tiny_world_copy):
    kernel_map = KernelMap.load(tiny_world_copy.map_file)
    tuned = replace(kernel_map.filter_config, update_min_d=0.77)
    replace(kernel_map, filter_config=tuned).save(tiny_world_copy.map_file)
    start_node(ros, tiny_world_copy)
    assert get_parameter(ros, 'update_min_d').double_value == 0.77


def as_yaml(entries):
    return '[' + ', '.join(f"'{entry}'" for entry in entries) + ']'


def load_with_slow_disk(ros, node, name='upper'):
    """Begin to load a map, and return the answer to come and what sets the disk going."""
    localization, disk = node.configured(), threading.Event()
    read_map = localization.read_map
    localization.read_map = lambda name: disk.wait(PATIENCE) and read_map(name)
    client = ros.node.create_client(Trigger, f'/localization/load_map/{name}')
    assert client.wait_for_service(PATIENCE)
    answer = client.call_async(Trigger.Request())
    ros.spin_until(lambda: node.maps.loading)
    return answer, disk


def test_a_pose_that_comes_while_a_map_is_read_is_meant_for_that_map(ros, two_floors):
    values = {'map_file': 'ground', 'map_files': as_yaml(two_floors)}
    with node_at_hand(ros, initialize_globally='false', **values) as node:
        robot = Robot(ros)
        robot.wait_for_listeners()
        localization = node.configured()
        answer, disk = load_with_slow_disk(ros, node)
        robot.send_initial_pose(None, robot.pose(0.0))
        ros.spin_until(lambda: node.maps.kept is not None)
        assert not answer.done() and localization.keeper.in_use.name == 'ground'
        disk.set()
        ros.spin_until(answer.done)
        assert answer.result().success
        robot.drive(0.0, 3.0)
        ros.spin_until(lambda: localization.session.last is not None)
        last = localization.session.last
        assert localization.keeper.in_use.name == 'upper' and last.estimate.has_pose
        expected = robot.pose((last.stamp_ns - robot.start_ns) * 1e-9)
        assert np.hypot(*(last.estimate.pose - expected)[:2]) < 0.3


def test_a_map_that_an_inactive_node_loads_is_that_of_poses_that_come_then(ros, tiny_world):
    kernel_map = KernelMap.load(tiny_world.map_file)
    far_away = np.array([300.0, 0.0, 0.0])
    replace(kernel_map, poses=kernel_map.poses + far_away).save(ros.folder / 'annexe.h5')
    values = {'map_files': f'[house={tiny_world.map_file},annexe={ros.folder}/annexe.h5]'}
    with node_at_hand(ros, initialize_globally='false', **values) as node:
        node.trigger_deactivate()
        assert trigger(ros, 'load_map/annexe').success
        assert node.configured().keeper.in_use.name == 'annexe'
        robot = Robot(ros)
        robot.send_initial_pose(None, robot.pose(0.0) + far_away)
        told = []
        node.log = lambda level, text, quiet: told.append(text)
        ros.spin_until(lambda: told)
        assert 'kept until the node is active' in told[0]


def test_a_global_start_asked_for_while_a_map_is_read_counts_more_than_a_pose_before_it(
    ros, two_floors
):
    with node_at_hand(ros, map_file='ground', map_files=as_yaml(two_floors)) as node:
        robot = Robot(ros)
        robot.wait_for_listeners()
        answer, disk = load_with_slow_disk(ros, node)
        robot.send_initial_pose(None, robot.pose(0.0))
        ros.spin_until(lambda: node.maps.kept is not None)
        call(ros, Empty, '/reinitialize_global_localization', Empty.Request())
        disk.set()
        ros.spin_until(answer.done)
        assert answer.result().success
        assert node.maps.kept is None and node.configured().session.initial_poses.given is None


def test_a_global_start_asked_for_while_a_map_is_read_is_one_on_that_map(ros, two_floors):
    values = {'map_file': 'ground', 'map_files': as_yaml(two_floors)}
    with node_at_hand(ros, initialize_globally='false', **values) as node:
        robot = Robot(ros)
        robot.wait_for_listeners()
        answer, disk = load_with_slow_disk(ros, node)
        call(ros, Empty, '/reinitialize_global_localization', Empty.Request())
        disk.set()
        ros.spin_until(answer.done)
        robot.drive(0.0, 2.0)
        session = node.configured().session
        ros.spin_until(lambda: session.answered or session.dropped['no belief yet'])
        assert not session.dropped['no belief yet']


def test_no_image_is_added_to_the_map_that_is_just_being_read(ros, two_floors):
    """It would be in the file and not in the map, and the file count as that of somebody else."""
    with node_at_hand(ros, map_file='ground', map_files=as_yaml(two_floors)) as node:
        answer, disk = load_with_slow_disk(ros, node, 'ground')
        added = trigger(ros, 'add_current')
        assert not added.success and 'another map is being read' in added.message
        disk.set()
        ros.spin_until(answer.done)
        assert 'no image has been used' in trigger(ros, 'add_current').message


def test_a_pose_that_is_meant_for_a_map_that_cannot_be_read_is_dropped(ros, two_floors):
    with node_at_hand(ros, map_file='ground', map_files=as_yaml(two_floors)) as node:
        robot = Robot(ros)
        robot.wait_for_listeners()
        robot.drive(0.0, 4.0)
        session = node.configured().session
        ros.spin_until(lambda: session.last and session.last.stamp_ns == robot.stamp_ns(4.0))
        answer, disk = load_with_slow_disk(ros, node, 'broken')
        robot.send_initial_pose(None, np.array([7.0, 3.0, 1.0]))
        ros.spin_until(lambda: node.maps.kept is not None)
        disk.set()
        ros.spin_until(answer.done)
        assert not answer.result().success
        robot.drive(4.05, 4.8)
        ros.spin_until(lambda: session.last.stamp_ns == robot.stamp_ns(4.8))
        assert np.hypot(*(session.last.estimate.pose - robot.pose(4.8))[:2]) < 0.3


def test_while_a_map_is_read_the_robot_is_heard_and_no_other_map_is_loaded(ros, two_floors):
    poses = ros.collect(PoseWithCovarianceStamped, 'amcl_pose')
    with node_at_hand(ros, map_file='ground', map_files=as_yaml(two_floors)) as node:
        robot = Robot(ros)
        robot.wait_for_listeners()
        answer, disk = load_with_slow_disk(ros, node, 'upper')
        second = trigger(ros, 'load_map/ground')
        assert not second.success and 'another map is being read' in second.message
        robot.drive(0.0, 3.0)
        ros.spin_until(lambda: robot.stamp_ns(2.8) in by_stamp(poses))
        assert not answer.done() and node.maps.loading
        disk.set()
        ros.spin_until(answer.done)
        assert answer.result().success and not node.maps.loading


def test_when_a_map_is_said_to_be_loaded_no_pose_on_the_old_one_follows(ros, two_floors):
    with node_at_hand(ros, map_file='ground', map_files=as_yaml(two_floors)) as node:
        robot = Robot(ros)
        robot.wait_for_listeners()
        robot.drive(0.0, 2.0)
        localization = node.configured()
        session = localization.session
        tracker, process = session.tracking.tracker, session.tracking.tracker.process
        ros.spin_until(lambda: session.last and session.last.stamp_ns == robot.stamp_ns(2.0))
        at_work, go_on, published = threading.Event(), threading.Event(), []

        def process_slowly(*arguments):
            at_work.set()
            go_on.wait(2.0)
            return process(*arguments)

        tracker.process = process_slowly
        localization.outputs.publish = lambda answer, current: published.append(answer.stamp_ns)
        robot.drive(2.05, 2.4)
        ros.spin_until(at_work.is_set)
        assert trigger(ros, 'load_map/upper').success
        before = len(published)
        assert localization.keeper.in_use.name == 'upper'
        go_on.set()
        ros.spin(0.5)
        assert len(published) == before


@pytest.mark.parametrize('configured_again', [True, False])
def test_a_map_that_is_read_when_the_node_is_cleaned_up_is_not_said_to_be_used(
    ros, two_floors, configured_again
):
    upper = ros.folder / 'upper.h5'
    kernel_map = KernelMap.load(upper)
    tuned = replace(kernel_map.filter_config, update_min_d=0.77)
    replace(kernel_map, filter_config=tuned).save(upper)
    with node_at_hand(ros, map_file='ground', map_files=as_yaml(two_floors)) as node:
        answer, disk = load_with_slow_disk(ros, node)
        node.trigger_deactivate()
        disk.set()
        node.trigger_cleanup()
        if configured_again:
            node.trigger_configure()
        ros.spin_until(answer.done)
        assert not answer.result().success
        assert 'the map stays as it was' in answer.result().message
        assert node.settings.filter.update_min_d != 0.77


def test_a_node_that_is_cleaned_up_while_an_image_is_added_lives_on(ros, tiny_world_copy):
    with node_at_hand(ros, map_file=tiny_world_copy.map_file) as node:
        robot = Robot(ros)
        robot.wait_for_listeners()
        robot.drive(0.0, 3.0)
        ros.spin_until(lambda: node.configured().session.last is not None)
        client = ros.node.create_client(Trigger, '/localization/add_current')
        assert client.wait_for_service(PATIENCE)
        localization, asked = node.configured(), threading.Event()
        localization.add_current = lambda: 'an image, whether its pose is sure or not'
        request = localization.session.request
        localization.session.request = lambda action: (request(action), asked.set())
        answer = client.call_async(Trigger.Request())
        ros.spin_until(asked.is_set)
        node.trigger_deactivate()
        node.trigger_cleanup()
        ros.spin_until(answer.done)
        assert not answer.result().success and 'configure it first' in answer.result().message
