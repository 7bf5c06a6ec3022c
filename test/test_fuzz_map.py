"""Damaged map files: they are refused with the file's name, or they work."""

import io

from fuzzing import budget, damaged
import h5py
from helpers import tiny_frames, write_tiny_cold_run
from hypothesis import given
from hypothesis import strategies as st
from kbr_localization.datasets import open_dataset
from kbr_localization.errors import KbrError, MapError
from kbr_localization.localization.kbr.leave_out import with_statistics
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.registry import make_localizer, METHODS
from kbr_localization.localization.pipeline import Tracker
from kbr_localization.vision import VisionConfig
import numpy as np
import pytest

FRAMES = tiny_frames(3)
METHOD = st.sampled_from(sorted(METHODS))


@pytest.fixture(scope='module')
def map_bytes(tmp_path_factory):
    folder = tmp_path_factory.mktemp('map')
    run = open_dataset(write_tiny_cold_run(folder / 'run', frames=6))
    built = build_map([run], VisionConfig(words=20, vocabulary_samples=500))
    with_statistics(built).save(folder / 'map.h5')
    return (folder / 'map.h5').read_bytes()


@budget(150)
@given(data=st.data(), method=METHOD)
def test_damaged_maps(map_bytes, tmp_path, data, method):
    path = tmp_path / 'map.h5'
    path.write_bytes(damaged(map_bytes, data.draw))
    load_and_use(path, method)


@budget(40)
@given(content=st.binary(max_size=2000))
def test_maps_of_rubbish(tmp_path, content):
    path = tmp_path / 'map.h5'
    path.write_bytes(content)
    with pytest.raises(MapError, match=r'map\.h5'):
        KernelMap.load(path)


ARRAYS = st.one_of(
    st.sampled_from([np.nan, np.inf, -1.0, 1e300, 0, -7, 2**62, 'text', b'\xff', True]),
    st.sampled_from(
        [
            np.zeros(0),
            np.zeros((6, 0)),
            np.full((6, 3), np.nan),
            np.full((6, 3), 1e308),
            np.full(6, -1),
            np.full(6, 2**62),
            np.zeros((2, 3)),
            np.zeros((6, 3, 2)),
            np.zeros((6, 500), np.uint16),
            np.array([b'a', b'b']),
            h5py.Empty('f'),
        ]
    ),
)


@budget(250)
@given(data=st.data(), method=METHOD)
def test_maps_with_a_wrong_or_missing_part(map_bytes, tmp_path, data, method):
    buffer = io.BytesIO(map_bytes)
    with h5py.File(buffer, 'r+') as file:
        change(file, data.draw)
    path = tmp_path / 'map.h5'
    path.write_bytes(buffer.getvalue())
    load_and_use(path, method)


def test_a_radius_beyond_any_map_is_refused(map_bytes, tmp_path):
    path = tmp_path / 'map.h5'
    path.write_bytes(map_bytes)
    with h5py.File(path, 'r+') as file:
        file['filter'].attrs['localized_radius'] = 1e300
    with pytest.raises(MapError, match='localized_radius'):
        KernelMap.load(path)


def change(file, draw):
    """Delete or replace a group, dataset or attribute."""
    parts = []
    file.visit(parts.append)
    attributes = [(part, name) for part in ['/', *parts] for name in file[part].attrs]
    part, name = draw(st.sampled_from([*((p, None) for p in parts), *attributes]))
    value = draw(st.none() | ARRAYS)
    if name is not None:
        del file[part].attrs[name]
        if value is not None:
            file[part].attrs[name] = value
        return
    del file[part]
    if value is not None:
        file[part] = value


def load_and_use(path, method):
    """Load a map and localize three frames on it."""
    try:
        kernel_map = KernelMap.load(path)
    except KbrError as error:
        assert 'map.h5' in str(error) and '\n' not in str(error)
        return
    try:
        tracker = Tracker(kernel_map, make_localizer(method, kernel_map, seed=0))
        tracker.initialize_globally()
        for frame in FRAMES:
            estimate = tracker.process(frame.stamp_ns, frame.image, frame.odometry)
            assert np.isfinite(estimate.pose).all() and np.isfinite(estimate.covariance).all()
        kernel_map.similarities(kernel_map.descriptors[0])
    except KbrError as error:
        assert '\n' not in str(error)
