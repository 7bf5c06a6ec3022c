"""
Damaged runs of every format: what is read is finite, or refused in one line.

`KBR_FUZZ_EXAMPLES=200 pytest test/test_datasets_fuzz.py --timeout 0` tries more.
"""

from helpers import damage, EXAMPLES, write_tiny_cold_run
from kbr_localization.datasets import open_dataset
from kbr_localization.datasets.bag_writer import write_bag
from kbr_localization.errors import KbrError
import numpy as np
from public_datasets import (
    write_euroc,
    write_image_folder,
    write_kitti,
    write_seven_scenes,
    write_traverse,
    write_tum_rgbd,
)
import pytest

RUNS = (
    *('cold', 'mcap', 'sqlite3', 'tum', 'euroc', 'kitti/sequences/07', 'scene/seq-01'),
    *('folder', 'traverse'),
)
WORDS = ['nan', 'inf', '-1', '1e400', '9' * 30, '0', '\u0663', '#', ',', 'T_BS:', '{', '\n', '\0']


def read_everything(path):
    """Open a run and read all of it; an error of the package is as good."""
    try:
        run = open_dataset(path)
        assert np.isfinite(run.odometry.poses).all()
        for frame in run:
            assert np.isfinite(frame.odometry).all()
            assert frame.reference is None or np.isfinite(frame.reference).all()
            assert frame.load_image().dtype == np.uint8
    except KbrError as error:
        assert '\n' not in str(error)


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp('runs')
    write_tiny_cold_run(folder / 'cold', frames=4)
    for storage in ('mcap', 'sqlite3'):
        write_bag(open_dataset(folder / 'cold'), folder / storage, storage)
    write_tum_rgbd(folder / 'tum')
    write_euroc(folder / 'euroc')
    write_kitti(folder / 'kitti')
    write_seven_scenes(folder / 'scene')
    write_image_folder(folder / 'folder', odometry=True)
    (write_traverse(folder / 'traverse') / 'traverse.yaml').write_text('spacing: 0.5\n')
    return folder


@pytest.mark.parametrize('name', RUNS)
def test_runs_with_a_damaged_file(runs, name):
    files = sorted(p for p in (runs / name.partition('/')[0]).rglob('*') if p.is_file())
    images = [path for path in files if path.suffix in ('.png', '.jpg', '.jpeg')]
    for path in files:
        if path not in images[1:]:
            read_damaged(runs / name, path)


def read_damaged(run, path):
    rng = np.random.default_rng(EXAMPLES)
    whole = path.read_bytes()
    for number in range(EXAMPLES or 4):
        words = ' '.join(rng.choice(WORDS, 30)).encode()
        cut = whole[: len(whole) * number // (EXAMPLES or 4)]
        path.write_bytes([damage(whole, rng), cut, words, whole + words][number % 4])
        read_everything(run)
    path.write_bytes(whole)
