"""Damaged files of public datasets: only the package's own errors may come out."""

import shutil

from fuzzing import budget, damaged, read_everything
from hypothesis import given
from hypothesis import strategies as st
from public_datasets import (
    write_euroc,
    write_image_folder,
    write_kitti,
    write_seven_scenes,
    write_traverse,
    write_tum_rgbd,
)
import pytest

FILES = {
    'tum': ('rgb.txt', 'groundtruth.txt'),
    'euroc': (
        'mav0/cam0/data.csv',
        'mav0/cam0/sensor.yaml',
        'mav0/state_groundtruth_estimate0/data.csv',
    ),
    'kitti/sequences/07': ('times.txt', '../../poses/07.txt'),
    'scene/seq-01': ('frame-000002.pose.txt', 'frame-000001.color.png'),
    'folder': ('trajectory.tum', 'odometry.tum'),
    'traverse': ('traverse.yaml',),
}
WORDS = st.sampled_from(
    ['nan', 'inf', '-1', '1e400', '9' * 30, '0', '\u0663', '#', ',', 'T_BS:', '{', '1403636579.2']
)
CONTENT = st.one_of(
    st.binary(max_size=300),
    st.lists(WORDS, max_size=60).map(lambda words: ' '.join(words).encode()),
)


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp('public')
    write_tum_rgbd(folder / 'tum')
    write_euroc(folder / 'euroc')
    write_kitti(folder / 'kitti')
    write_seven_scenes(folder / 'scene')
    write_image_folder(folder / 'folder', odometry=True)
    (write_traverse(folder / 'traverse') / 'traverse.yaml').write_text('spacing: 0.5\n')
    return folder


@budget(150)
@given(data=st.data())
def test_runs_with_rubbish_in_a_file(runs, tmp_path, data):
    name = data.draw(st.sampled_from(sorted(FILES)))
    file = data.draw(st.sampled_from(FILES[name]))
    copy = tmp_path / 'copy'
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(runs / name.split('/')[0], copy)
    inner = copy.joinpath(*name.split('/')[1:])
    path = inner / file
    whole = path.read_bytes()
    kind = data.draw(st.sampled_from(['damaged', 'replaced', 'appended']))
    if kind == 'damaged':
        path.write_bytes(damaged(whole, data.draw))
    else:
        path.write_bytes((whole if kind == 'appended' else b'') + data.draw(CONTENT))
    read_everything(inner)
