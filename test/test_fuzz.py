"""
Random and damaged input at every door: only the package's own errors may come out.

`KBR_FUZZ_EXAMPLES=2000 pytest test/test_fuzz.py test/test_ros_fuzz.py --timeout 0` tries more.
"""

import json
from pathlib import Path
import shutil

from fuzzing import budget, damaged
from helpers import tiny_frames, write_tiny_cold_run
from hypothesis import given
from hypothesis import strategies as st
from kbr_localization.datasets import open_dataset
from kbr_localization.datasets.image_file import decode_image, encode_jpeg
from kbr_localization.errors import KbrError
from kbr_localization.ros.session.persistence import load_pose
import numpy as np
import pytest

JPEG = encode_jpeg(tiny_frames(1)[0].image, 'test')


@pytest.fixture(scope='module')
def run_folder(tmp_path_factory):
    return write_tiny_cold_run(tmp_path_factory.mktemp('cold') / 'run', frames=4)


def copy_of(folder, path):
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(folder, path)
    return path


def read_everything(path):
    """Open a run and read all of it; an image may be broken, but then it says so."""
    dataset = open_dataset(path)
    assert np.isfinite(dataset.odometry.poses).all()
    for frame in dataset:
        assert np.isfinite(frame.odometry).all()
        assert frame.load_image().dtype == np.uint8


@budget(60)
@given(
    file=st.sampled_from(['odom_scans/odom.tdf', 'localization/places.lst']),
    content=st.one_of(st.binary(max_size=500), st.text(max_size=200).map(str.encode)),
    keep=st.booleans(),
)
def test_runs_with_rubbish_in_their_lists(run_folder, tmp_path, file, content, keep):
    path = copy_of(run_folder, tmp_path / 'run') / file
    path.write_bytes((path.read_bytes() if keep else b'') + content)
    expect_only_own_errors(lambda: read_everything(tmp_path / 'run'))


@budget(60)
@given(data=st.data())
def test_runs_with_a_damaged_file(run_folder, tmp_path, data):
    run = copy_of(run_folder, tmp_path / 'run')
    files = sorted(path for path in run.rglob('*') if path.is_file())
    path = data.draw(st.sampled_from(files))
    if data.draw(st.booleans()):
        path.write_bytes(damaged(path.read_bytes(), data.draw))
    else:
        path.unlink()
    expect_only_own_errors(lambda: read_everything(run))


@budget(40)
@given(name=st.text(st.characters(exclude_characters='/\0'), min_size=1, max_size=40))
def test_runs_with_odd_image_names(run_folder, tmp_path, name):
    run = copy_of(run_folder, tmp_path / 'run')
    try:
        (run / 'std_cam' / f'{name}.jpeg').write_bytes(JPEG)
    except (OSError, UnicodeEncodeError):
        return  # no file can have that name
    assert len(open_dataset(run)) >= 4


@budget(300)
@given(data=st.data())
def test_damaged_images(data):
    content = damaged(JPEG, data.draw)
    image = expect_only_own_errors(lambda: decode_image(content, 'test'))
    assert image is None or (image.dtype == np.uint8 and image.ndim in (2, 3))


@budget(40)
@given(content=st.binary(max_size=300), suffix=st.sampled_from(['.mcap', '.db3']))
def test_bags_of_rubbish(tmp_path, content, suffix):
    pytest.importorskip('rosbags')
    path = tmp_path / f'bag{suffix}'
    path.write_bytes(content)
    with pytest.raises(KbrError):
        open_dataset(path)


@pytest.fixture(scope='module')
def bags(run_folder, tmp_path_factory):
    pytest.importorskip('rosbags')
    from kbr_localization.datasets.bag_writer import write_bag

    folder = tmp_path_factory.mktemp('bags')
    for storage in ('mcap', 'sqlite3'):
        write_bag(open_dataset(run_folder), folder / storage, storage)
    return folder


@budget(60)
@given(data=st.data(), storage=st.sampled_from(['mcap', 'sqlite3']))
def test_damaged_bags(bags, tmp_path, data, storage):
    bag = copy_of(bags / storage, tmp_path / 'bag')
    path = data.draw(st.sampled_from(sorted(bag.iterdir())))
    path.write_bytes(damaged(path.read_bytes(), data.draw))
    expect_only_own_errors(lambda: read_everything(bag))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
SAVED = {
    'format': 1,
    'stamp_ns': 10**18,
    'pose': [1.0, 2.0, 3.0],
    'covariance': np.eye(3).tolist(),
    'odometry': [0.0, 0.0, 0.0],
    'map_id': 'abc',
}


@budget(200)
@given(key=st.sampled_from(sorted(SAVED)), value=JSON)
def test_saved_poses_with_a_wrong_value(tmp_path, key, value):
    path = Path(tmp_path / 'pose.json')
    path.write_text(json.dumps({**SAVED, key: value}))
    saved = expect_only_own_errors(lambda: load_pose(path), 'delete the file')
    if saved is not None:
        assert np.isfinite(saved.pose).all() and np.isfinite(saved.covariance).all()
        assert saved.resumed(10**18 + 1, np.zeros(3), 60.0) is not None or key == 'stamp_ns'


@budget(100)
@given(content=st.binary(max_size=200) | st.data())
def test_saved_poses_of_rubbish(tmp_path, content):
    path = Path(tmp_path / 'pose.json')
    whole = json.dumps(SAVED).encode()
    path.write_bytes(content if isinstance(content, bytes) else damaged(whole, content.draw))
    expect_only_own_errors(lambda: load_pose(path), 'delete the file')


def expect_only_own_errors(action, says=''):
    """Return what an action gives, or None when it fails as it should: in one line."""
    try:
        return action()
    except KbrError as error:
        assert '\n' not in str(error) and says in str(error)
        return None
