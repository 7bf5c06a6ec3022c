"""The saved pose: whole or not at all, and used only where it holds."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
import json
import os
import threading
from types import SimpleNamespace

from kbr_localization import se2
from kbr_localization.errors import RosError
from kbr_localization.localization.calibration import Calibration, SIZE
from kbr_localization.ros.saved_pose import (
    ClockName,
    default_pose_file,
    load_pose,
    PoseSaver,
    save_pose,
    SavedPose,
)
import numpy as np
import pytest

SECOND = 1_000_000_000
SAVED = SavedPose(
    stamp_ns=100 * SECOND,
    pose=np.array([1.0, 2.0, 0.5]),
    covariance=np.diag([0.1, 0.2, 0.3]),
    odometry=np.array([5.0, 5.0, 3.0]),
    map_id='abc',
    learnt=Calibration(np.linspace(-0.03, 0.2, SIZE), np.diag(np.linspace(1e-6, 1e-3, SIZE))),
)


def test_it_comes_back_as_it_was(tmp_path):
    path = tmp_path / 'deep' / 'pose.json'
    assert load_pose(path) is None
    save_pose(path, SAVED)
    back = load_pose(path)
    assert (back.stamp_ns, back.map_id) == (SAVED.stamp_ns, 'abc')
    for name in ('pose', 'covariance', 'odometry'):
        np.testing.assert_array_equal(getattr(back, name), getattr(SAVED, name))
    for name in ('values', 'covariance'):
        np.testing.assert_array_equal(getattr(back.learnt, name), getattr(SAVED.learnt, name))
    assert [file.name for file in path.parent.iterdir()] == ['pose.json']
    save_pose(path, replace(SAVED, learnt=None))
    assert load_pose(path).learnt is None


def test_a_power_cut_leaves_the_pose_before_or_after(tmp_path, monkeypatch):
    path, known = tmp_path / 'pose.json', []
    save_pose(path, SAVED)
    monkeypatch.setattr(os, 'fsync', lambda handle: known.append(load_pose(path).stamp_ns))
    save_pose(path, replace(SAVED, stamp_ns=200 * SECOND))
    assert known == [SAVED.stamp_ns]  # the new one is on the disk while the old one has its place
    assert load_pose(path).stamp_ns == 200 * SECOND


def test_it_is_carried_forward_by_the_odometry():
    step = np.array([0.4, 0.1, 0.2])
    resumed = SAVED.resumed(103 * SECOND, se2.compose(SAVED.odometry, step), max_age=60.0)
    np.testing.assert_allclose(resumed, se2.compose(SAVED.pose, step))


@pytest.mark.parametrize('age_s, x', [(1, 500.0), (30, 0.0)])
def test_an_odometry_that_was_reset_moves_nothing(age_s, x):
    resumed = SAVED.resumed((100 + age_s) * SECOND, np.array([x, 0.0, 0.0]), max_age=60.0)
    np.testing.assert_array_equal(resumed, SAVED.pose)


@pytest.mark.parametrize('stamp_s', [99, 161])
def test_it_is_not_used_before_its_time_or_when_it_is_old(stamp_s):
    assert SAVED.resumed(stamp_s * SECOND, SAVED.odometry, max_age=60.0) is None


@pytest.mark.parametrize(
    'changed',
    [
        {'pose': [1.0, 2.0]},
        {'pose': [1.0, 2.0, float('nan')]},
        {'pose': [10**400, 2.0, 3.0]},
        {'covariance': 'large'},
        {'covariance': [[1, 2, 3], [4, 5, 6], [7, 8, 9]]},
        {'format': 2},
        {'stamp_ns': None},
        {'stamp_ns': 10**30},
        {'map_id': [[]]},
        {'padding': 'x' * 100_000},
    ],
)
def test_a_damaged_value_is_named(tmp_path, changed):
    path = tmp_path / 'pose.json'
    save_pose(path, SAVED)
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(RosError, match=r'pose\.json.*delete the file'):
        load_pose(path)


@pytest.mark.parametrize('content', [b'', b'{"stamp_ns": 1}', b'[]', b'\xff\xfe', b'[' * 60_000])
def test_a_file_of_rubbish_is_named(tmp_path, content):
    path = tmp_path / 'pose.json'
    path.write_bytes(content)
    with pytest.raises(RosError, match='delete the file'):
        load_pose(path)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(RosError, match='pose_file'):
        save_pose(tmp_path / 'file' / 'pose.json', SAVED)


def test_nodes_of_two_robots_have_two_files(monkeypatch, tmp_path):
    monkeypatch.setenv('ROS_HOME', str(tmp_path))
    files = {default_pose_file(name) for name in ('/a/localization', '/b/localization')}
    assert len(files) == 2 and all(tmp_path in file.parents for file in files)


def test_an_older_pose_never_takes_the_place_of_the_last_one(tmp_path):
    path, waiting = tmp_path / 'pose.json', threading.Event()
    with ThreadPoolExecutor(1) as background:
        saver = PoseSaver(path, lambda: 1e9, background, lambda level, text: None)
        background.submit(waiting.wait, 60.0)
        saver.offer(lambda: SAVED)
        saver.save(replace(SAVED, stamp_ns=200 * SECOND))
        waiting.set()
    assert load_pose(path).stamp_ns == 200 * SECOND


def test_nothing_is_saved_at_a_rate_of_zero(tmp_path):
    saver = PoseSaver(tmp_path / 'pose.json', lambda: 0.0, None, lambda level, text: None)
    saver.offer(lambda: SAVED)
    saver.save(SAVED)
    assert not (tmp_path / 'pose.json').exists()


class ClockListener:
    """As much of a node as a clock's name asks."""

    def __init__(self, *publishers, sim=True):
        self.publishers, self.sim = publishers, sim

    def get_parameter(self, name):
        return SimpleNamespace(value=self.sim)

    def get_publishers_info_by_topic(self, topic):
        return [SimpleNamespace(endpoint_gid=gid) for gid in self.publishers]


def test_a_clock_is_named_by_who_publishes_it():
    node = ClockListener(b'one')
    clock = ClockName(node)
    first = clock()
    assert first == ClockName(ClockListener(b'one'))() != ClockName(ClockListener(b'two'))()
    node.publishers = ()
    assert clock() == first, 'a pose that is saved after the simulation has ended is still of it'
    assert ClockName(ClockListener(sim=False))() == ClockName(ClockListener(sim=False))()
    assert ClockName(ClockListener())() != ClockName(ClockListener())()
