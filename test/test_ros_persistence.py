"""The saved pose: whole or not at all, and used only where it holds."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
import json
import os
from pathlib import Path
import threading
from types import SimpleNamespace

from kbr_localization import se2
from kbr_localization.errors import RosError
from kbr_localization.localization.calibration import Calibration, SIZE
from kbr_localization.localization.localizer import PoseEstimate
from kbr_localization.localization.map.grow import GrownFile
from kbr_localization.ros.common.clock_source import ClockSource
from kbr_localization.ros.common.node_logger import NodeLogger
from kbr_localization.ros.maps.pose_keeper import PoseKeeper
from kbr_localization.ros.parameters.node_config import NodeConfig
from kbr_localization.ros.session import initial_pose_sources, persistence
from kbr_localization.ros.session.answer import Answer
from kbr_localization.ros.session.image_queue import QueuedImage
from kbr_localization.ros.session.persistence import (
    default_pose_file,
    load_pose,
    save_pose,
    SavedPose,
)
from kbr_localization.ros.session.registry import MapInUse
import numpy as np
import pytest
from ros_helpers import PATIENCE

SECOND = 1_000_000_000
SAVED = SavedPose(
    stamp_ns=100 * SECOND,
    pose=np.array([1.0, 2.0, 0.5]),
    covariance=np.diag([0.1, 0.2, 0.3]),
    odometry=np.array([5.0, 5.0, 3.0]),
    map_id='abc',
)


def test_it_comes_back_as_it_was(tmp_path):
    path = tmp_path / 'deep' / 'pose.json'
    assert load_pose(path) is None
    save_pose(path, SAVED)
    back = load_pose(path)
    assert (back.stamp_ns, back.map_id) == (SAVED.stamp_ns, 'abc')
    for name in ('pose', 'covariance', 'odometry'):
        np.testing.assert_array_equal(getattr(back, name), getattr(SAVED, name))
    assert [file.name for file in path.parent.iterdir()] == ['pose.json']


def test_a_power_cut_leaves_the_pose_before_or_after(tmp_path, monkeypatch):
    path, known = tmp_path / 'pose.json', []
    save_pose(path, SAVED)
    monkeypatch.setattr(os, 'fsync', lambda handle: known.append(load_pose(path).stamp_ns))
    save_pose(path, replace(SAVED, stamp_ns=200 * SECOND))
    assert known == [SAVED.stamp_ns]  # the new one is on the disk while the old one has its place
    assert load_pose(path).stamp_ns == 200 * SECOND


def test_one_that_is_far_off_the_map_or_of_another_is_not_used_and_told():
    told = []
    settings = SimpleNamespace(config=NodeConfig(), initial_pose=None)

    def log(level, text, *rest):
        told.append(text)

    def kept(metres, map_id='abc'):
        in_use = SimpleNamespace(map_id=map_id, distance=lambda pose: metres)
        return initial_pose_sources.gather(settings, SAVED, in_use, str, log).saved

    assert kept(0.5) is SAVED and not told
    assert kept(500.0) is None and 'saved pose not used: x 1.00 m, y 2.00 m is 500 m' in told[0]
    assert kept(0.5, 'def') is None and told[1:] == ['saved pose not used: it is of another map']


def test_it_is_carried_forward_by_the_odometry():
    step = np.array([0.4, 0.1, 0.2])
    resumed = SAVED.resumed(103 * SECOND, se2.compose(SAVED.odometry, step), max_age=60.0)
    np.testing.assert_allclose(resumed, se2.compose(SAVED.pose, step))


@pytest.mark.parametrize('age_s, x', [(1, 500.0), (30, 0.0), (30, 0.05)])
def test_an_odometry_that_was_reset_moves_nothing(age_s, x):
    resumed = SAVED.resumed((100 + age_s) * SECOND, np.array([x, 0.0, 0.0]), max_age=60.0)
    np.testing.assert_array_equal(resumed, SAVED.pose)


@pytest.mark.parametrize('stamp_s', [99, 161])
def test_it_is_not_used_before_its_time_or_when_it_is_old(stamp_s):
    assert SAVED.resumed(stamp_s * SECOND, SAVED.odometry, max_age=60.0) is None


@pytest.mark.parametrize(
    'damage',
    [
        lambda values: values.pop('pose'),
        lambda values: values.update(pose=[1.0, 2.0]),
        lambda values: values.update(pose=[1.0, 2.0, float('nan')]),
        lambda values: values.update(covariance='large'),
        lambda values: values.update(format=2),
        lambda values: values.update(stamp_ns=None),
        lambda values: values.update(stamp_ns=float('inf')),
        lambda values: values.update(stamp_ns=10**30),
        lambda values: values.update(stamp_ns=-1),
        lambda values: values.update(pose=[1e300, 2.0, 3.0]),
        lambda values: values.update(pose=[10**400, 2.0, 3.0]),
        lambda values: values.update(odometry=[1.0, -1e9, 3.0]),
        lambda values: values.update(covariance=(-np.eye(3)).tolist()),
        lambda values: values.update(covariance=(1e300 * np.eye(3)).tolist()),
        lambda values: values.update(covariance=[[1, 2, 3], [4, 5, 6], [7, 8, 9]]),
        lambda values: values.update(map_id=[[]]),
        lambda values: values.update(padding='x' * 100_000),
    ],
)
def test_a_damaged_file_is_named(tmp_path, damage):
    path = tmp_path / 'pose.json'
    save_pose(path, SAVED)
    values = json.loads(path.read_text())
    damage(values)
    path.write_text(json.dumps(values))
    with pytest.raises(RosError, match=r'pose\.json.*delete the file'):
        load_pose(path)


@pytest.mark.parametrize(
    'content, says',
    [
        ('null', 'expected an object of names and values, got None'),
        ('[1]', r'expected an object of names and values, got \[1\]'),
        ('{"stamp_ns": 1}', 'expected values of stamp_ns, pose, .*, got none of pose'),
        ({'stamp_ns': None}, 'expected a stamp in nanoseconds, got None'),
        ({'pose': 'here'}, r'expected \(3,\) numbers of up to 1e\+\d+, got here'),
        ({'covariance': [[1], [1, 2]]}, r'expected \(3, 3\) numbers'),
        ({'map_id': None}, 'expected a text, got None'),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_words(tmp_path, content, says):
    path = tmp_path / 'pose.json'
    if isinstance(content, str):
        path.write_text(content)
    else:
        save_pose(path, SAVED)
        path.write_text(json.dumps(json.loads(path.read_text()) | content))
    with pytest.raises(RosError, match=rf'cannot use the saved pose in .*\({says}.*delete the'):
        load_pose(path)


RUBBISH = [b'', b'{"format": 1', b'[]', b'\x00\xff\xfe', b'null', b'[' * 60_000]
RUBBISH += [b'{"pose":' * 7000, b'{"stamp_ns": ' + b'9' * 50_000 + b'}']


@pytest.mark.parametrize('content', RUBBISH, ids=range(len(RUBBISH)))
def test_a_file_of_rubbish_is_named(tmp_path, content):
    path = tmp_path / 'pose.json'
    path.write_bytes(content)
    with pytest.raises(RosError, match='delete the file'):
        load_pose(path)


def test_a_pipe_in_its_place_is_named(tmp_path):
    os.mkfifo(tmp_path / 'pose.json')
    with pytest.raises(RosError, match=r'is a device or a pipe.*delete the file'):
        load_pose(tmp_path / 'pose.json')


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(RosError, match='pose_file'):
        save_pose(tmp_path / 'file' / 'pose.json', SAVED)


def test_nodes_of_two_robots_have_two_files(monkeypatch, tmp_path):
    monkeypatch.setenv('ROS_HOME', str(tmp_path))
    files = {default_pose_file(name) for name in ('/a/localization', '/b/localization')}
    assert len(files) == 2 and all(tmp_path in file.parents for file in files)


def answer(stamp_ns, status='localized'):
    estimate = PoseEstimate(np.zeros(3), np.eye(3), 1.0, status, {}, updated=True)
    image = QueuedImage(stamp_ns, lambda: None, 0.0)
    return Answer(stamp_ns, estimate, np.zeros(3), image, 0.01)


ON_MAP = MapInUse('ground', GrownFile(Path('ground.h5')), None, 'abc')


@pytest.fixture
def keeping(tmp_path):
    """Return a keeper of a pose that writes as often as it can, and its background."""
    background = ThreadPoolExecutor(1)
    config = NodeConfig(save_pose_rate=100.0)
    keeper = PoseKeeper(tmp_path / 'pose.json', lambda: config, background, NodeLogger(None))
    keeper._looked -= 1.0
    return keeper, background


def test_an_older_pose_never_takes_the_place_of_the_last_one(tmp_path, keeping):
    keeper, background = keeping
    waiting = threading.Event()
    background.submit(waiting.wait, PATIENCE)
    keeper.look(answer(1), ON_MAP)
    keeper.save(answer(2), ON_MAP)
    waiting.set()
    background.shutdown()
    assert load_pose(tmp_path / 'pose.json').stamp_ns == 2


def test_of_two_threads_that_write_the_last_pose_wins(tmp_path, keeping, monkeypatch):
    keeper, background = keeping
    begun, go_on = threading.Event(), threading.Event()

    def save_slowly(path, saved):
        if saved.stamp_ns == 1:
            begun.set()
            go_on.wait(0.5)
        save_pose(path, saved)

    monkeypatch.setattr(persistence, 'save_pose', save_slowly)
    keeper.look(answer(1), ON_MAP)
    assert begun.wait(PATIENCE)
    keeper.save(answer(2), ON_MAP)
    go_on.set()
    background.shutdown()
    assert load_pose(tmp_path / 'pose.json').stamp_ns == 2


def test_only_a_pose_that_is_known_is_saved(tmp_path, keeping):
    keeper, background = keeping
    keeper.save(answer(1, 'uncertain'), ON_MAP)
    assert not (tmp_path / 'pose.json').exists()
    background.shutdown()


LEARNT = Calibration(np.linspace(-0.03, 0.2, SIZE), np.diag(np.linspace(1e-6, 1e-3, SIZE)))


def test_it_keeps_what_was_learnt_of_the_odometry(tmp_path):
    path = tmp_path / 'pose.json'
    save_pose(path, replace(SAVED, learnt=LEARNT))
    back = load_pose(path).learnt
    np.testing.assert_array_equal(back.values, LEARNT.values)
    np.testing.assert_array_equal(back.covariance, LEARNT.covariance)
    save_pose(path, SAVED)
    assert load_pose(path).learnt is None


def test_errors_that_a_package_of_another_age_learnt_are_left_out(tmp_path):
    path = tmp_path / 'pose.json'
    save_pose(path, replace(SAVED, learnt=LEARNT))
    values = json.loads(path.read_text())
    values['learnt']['names'][0] = 'something else'
    path.write_text(json.dumps(values))
    assert load_pose(path).learnt is None
    del values['learnt']
    path.write_text(json.dumps(values))
    assert load_pose(path).learnt is None


@pytest.mark.parametrize(
    'change', [{'values': [0.0] * 6}, {'covariance': [[-1.0] * SIZE] * SIZE}, {'values': ['x']}]
)
def test_damaged_errors_of_the_odometry_are_refused(tmp_path, change):
    path = tmp_path / 'pose.json'
    save_pose(path, replace(SAVED, learnt=LEARNT))
    values = json.loads(path.read_text())
    values['learnt'] |= change
    path.write_text(json.dumps(values))
    with pytest.raises(RosError, match='delete the file'):
        load_pose(path)


class ClockListener:
    """As much of a node as a clock source asks."""

    def __init__(self, *publishers, sim=True):
        self.publishers, self.sim = publishers, sim

    def get_parameter(self, name):
        return SimpleNamespace(value=self.sim)

    def get_publishers_info_by_topic(self, topic):
        return [SimpleNamespace(endpoint_gid=gid) for gid in self.publishers]


def test_a_clock_is_named_by_who_publishes_it():
    node = ClockListener(b'one')
    clock = ClockSource(node)
    first = clock()
    assert first == ClockSource(ClockListener(b'one'))() != ClockSource(ClockListener(b'two'))()
    node.publishers = ()
    assert clock() == first, 'a pose that is saved after the simulation has ended is still of it'
    node.publishers = (b'two',)
    assert clock() != first
    assert ClockSource(ClockListener(sim=False))() == ClockSource(ClockListener(sim=False))()


def test_a_clock_that_nobody_has_published_yet_is_no_other_clock():
    assert ClockSource(ClockListener())() != ClockSource(ClockListener())()
