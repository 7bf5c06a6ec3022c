"""The saved pose: whole or not at all, and used only where it holds."""

from dataclasses import asdict, replace
import json
import os

from kbr_localization import se2
from kbr_localization.errors import RosError
from kbr_localization.localization.calibration import Calibration, SIZE
from kbr_localization.ros.config import NodeConfig
from kbr_localization.ros.saved_pose import (
    load_pose,
    pose_file,
    recent_pose,
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
    save_pose(path, SAVED, print)
    np.testing.assert_equal(asdict(load_pose(path)), asdict(SAVED))
    assert [file.name for file in path.parent.iterdir()] == ['pose.json']
    save_pose(path, replace(SAVED, learnt=None), print)
    assert load_pose(path).learnt is None


def test_a_power_cut_leaves_the_pose_before_or_after_and_a_bad_place_is_named(
    tmp_path, monkeypatch
):
    path, known = tmp_path / 'pose.json', []
    save_pose(path, SAVED, print)
    monkeypatch.setattr(os, 'fsync', lambda handle: known.append(load_pose(path).stamp_ns))
    save_pose(path, replace(SAVED, stamp_ns=200 * SECOND), print)
    assert known == [SAVED.stamp_ns]  # the new one is on the disk while the old one has its place
    assert load_pose(path).stamp_ns == 200 * SECOND
    save_pose(path / 'pose.json', SAVED, lambda *line: known.append(line))
    assert known[1][0] == 'warning' and 'set pose_file' in known[1][1]


def test_it_is_carried_forward_by_the_odometry_unless_that_was_reset():
    moved = se2.compose(SAVED.odometry, np.array([0.4, 0.1, 0.2]))
    resumed = SAVED.resumed(103 * SECOND, moved, NodeConfig())
    np.testing.assert_allclose(resumed, se2.compose(SAVED.pose, np.array([0.4, 0.1, 0.2])))
    for age_s, x in ((1, 500.0), (30, 0.0)):
        reset = SAVED.resumed((100 + age_s) * SECOND, np.array([x, 0.0, 0.0]), NodeConfig())
        np.testing.assert_array_equal(reset, SAVED.pose)


@pytest.mark.parametrize('stamp_s', [99, 161])
def test_before_its_time_or_when_it_is_old_it_is_used_only_if_asked_for(stamp_s):
    with pytest.raises(RosError, match='s old, expected 0 to 60 s: raise saved_pose_max_age'):
        SAVED.resumed(stamp_s * SECOND, SAVED.odometry, NodeConfig())
    anyway = NodeConfig(initialize_at_saved_pose=True)
    np.testing.assert_array_equal(SAVED.resumed(stamp_s * SECOND, np.ones(3), anyway), SAVED.pose)


def test_an_old_file_is_used_only_if_asked_for_whatever_its_stamp(tmp_path):
    path, told = tmp_path / 'pose.json', []
    save_pose(path, SAVED, print)

    def found(**values):
        return recent_pose(path, NodeConfig(**values), lambda *line: told.append(line))

    assert found() is not None and not told
    os.utime(path, (1e9, 1e9))
    assert found() is None and told[0][0] == 'info' and 'saved pose not used' in told[0][1]
    assert found(initialize_at_saved_pose=True) is not None
    path.write_text('{')
    assert found() is None and told[1][0] == 'warning' and 'delete the file' in told[1][1]


@pytest.mark.parametrize(
    'changed',
    [
        {'pose': [1.0, 2.0, float('nan')]},
        {'covariance': [[1, 2, 3], [4, 5, 6], [7, 8, 9]]},
        {'format': 2},
        {'stamp_ns': 10**30},
        {'padding': 'x' * 100_000},
    ],
)
def test_a_damaged_value_is_named(tmp_path, changed):
    path = tmp_path / 'pose.json'
    save_pose(path, SAVED, print)
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    for rubbish in (path.read_bytes(), b'{"stamp_ns": 1}', b'\xff\xfe', b'[' * 60_000):
        path.write_bytes(rubbish)
        with pytest.raises(RosError, match=r'pose\.json.*delete the file'):
            load_pose(path)


def test_each_node_has_a_file_and_nav2s_name_for_it_is_known(monkeypatch, tmp_path):
    monkeypatch.setenv('ROS_HOME', str(tmp_path))
    files = {pose_file(NodeConfig(), name) for name in ('/a/localization', '/b/localization')}
    assert len(files) == 2 and all(tmp_path in file.parents for file in files)
    nav2 = NodeConfig(saved_pose_filepath=f'{tmp_path}/pose.json')
    assert pose_file(nav2, '/a') == tmp_path / 'pose.json.json'
    assert pose_file(replace(nav2, pose_file=f'{tmp_path}/p'), '/a') == tmp_path / 'p'
