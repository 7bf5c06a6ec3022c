"""The saved pose: whole or not at all, and used only where it holds."""

import json

from kbr_localization import se2
from kbr_localization.errors import RosError
from kbr_localization.ros.persistence import (
    default_pose_file,
    load_pose,
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


@pytest.mark.parametrize('content', [b'', b'{"format": 1', b'[]', b'\x00\xff\xfe', b'null'])
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
