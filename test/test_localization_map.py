from dataclasses import replace
import os
import re
import subprocess
import sys

import cv2
import h5py
from helpers import textured_image, write_tiny_cold_run
from kbr_localization import se2
from kbr_localization.datasets import OdometryTrack, open_dataset
from kbr_localization.errors import MapError
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.map.build import build_map, cover
from kbr_localization.localization.map.kernel_map import KernelMap
from map_helpers import assert_equal_maps, tiny_map, TINY_VISION, TinyRun
import numpy as np
import pytest


@pytest.fixture(scope='module')
def kernel_map():
    return tiny_map(filter_config=KbrConfig(image_bandwidth=0.05, points=77))


@pytest.fixture
def saved(kernel_map, tmp_path):
    path = tmp_path / 'map.h5'
    kernel_map.save(path)
    return path


def test_a_map_survives_its_file(kernel_map, saved):
    loaded = KernelMap.load(saved)
    for name in ('poses', 'descriptors', 'stamps_ns', 'run_index', 'controls', 'next_poses'):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(kernel_map, name))
    assert loaded.run_names == ('tiny',)
    assert loaded.filter_config == kernel_map.filter_config
    assert loaded.thumbnails == kernel_map.thumbnails
    assert loaded.image_shape == (96, 128)
    np.testing.assert_array_equal(loaded.motion_noise.step, kernel_map.motion_noise.step)
    query = kernel_map.descriptors[3]
    np.testing.assert_allclose(loaded.similarities(query), kernel_map.similarities(query))


def test_controls_lead_from_each_image_to_the_next_of_its_run(kernel_map):
    assert np.isnan(kernel_map.controls[-1]).all()
    np.testing.assert_allclose(
        se2.compose(kernel_map.poses[:-1], kernel_map.controls[:-1])[:, :2],
        kernel_map.next_poses[:-1, :2],
        atol=1e-6,
    )


def test_the_same_seed_gives_the_same_map():
    first, second = (tiny_map(max_images=9, seed=5) for _ in range(2))
    np.testing.assert_array_equal(first.descriptors, second.descriptors)
    np.testing.assert_array_equal(first.poses, second.poses)


def test_fewer_images_are_chosen_to_cover_the_run():
    chosen = tiny_map(max_images=5).poses[:, 0]
    everything = tiny_map().poses[:, 0]
    gaps = np.abs(everything[:, np.newaxis] - chosen).min(axis=1)
    assert gaps.max() <= (everything.max() - everything.min()) / 4


def test_covering_takes_all_when_there_are_few():
    np.testing.assert_array_equal(cover(np.zeros((3, 3)), 5, np.random.default_rng(0)), [0, 1, 2])


def test_a_broken_image_is_left_out_and_counted(tmp_path):
    run = write_tiny_cold_run(tmp_path / 'run', frames=12)
    sorted((run / 'std_cam').iterdir())[4].write_bytes(b'not a jpeg')
    dataset = open_dataset(run)
    kernel_map = build_map([dataset], vision=TINY_VISION)
    assert len(kernel_map) == 11
    assert sum(dataset.skipped.values()) == 1


@pytest.mark.parametrize('place', [0, 5])
def test_an_image_of_another_size_is_left_out_counted_and_named(tmp_path, caplog, place):
    run = write_tiny_cold_run(tmp_path / 'run', frames=12)
    file = sorted((run / 'std_cam').iterdir())[place]
    cv2.imwrite(str(file), textured_image(1, (60, 80)))
    dataset = open_dataset(run)
    kernel_map = build_map([dataset], vision=TINY_VISION)
    assert len(kernel_map) == 11
    assert dataset.skipped == {'unusable image': 1}
    assert file.name in caplog.text and 'image of 80x60 pixels' in caplog.text


def test_no_map_is_made_where_as_many_images_do_not_fit_as_do(tmp_path):
    one, other = tmp_path / 'one', tmp_path / 'other'
    write_tiny_cold_run(one, frames=6)
    write_tiny_cold_run(other, frames=6, shape=(60, 80))
    with pytest.raises(MapError, match=r'only 6 of 12 images .* t16\d+.* image of 80x60 pixels'):
        build_map([open_dataset(one), open_dataset(other)], vision=TINY_VISION)


def test_frames_without_a_reference_pose_are_counted():
    class Sparse(TinyRun):
        """A run whose pose is known at every third frame."""

        def __iter__(self):
            for number, frame in enumerate(super().__iter__()):
                yield frame if number % 3 == 0 else replace(frame, reference=None)

    run = Sparse(12)
    assert len(build_map([run], vision=TINY_VISION)) == 4
    assert run.skipped == {'no reference pose': 8}


def test_progress_ends_with_all_images_described():
    calls = []
    tiny = TinyRun(6)
    build_map([tiny], vision=TINY_VISION, progress=lambda *call: calls.append(call))
    assert calls[-1] == ('describing images', 6, 6)


def test_no_reference_poses_make_no_map():
    class Unlabelled(TinyRun):
        """A run whose poses nobody knows."""

        def __iter__(self):
            return (replace(frame, reference=None) for frame in super().__iter__())

    with pytest.raises(MapError, match='no image with a reference pose in tiny'):
        build_map([Unlabelled()])


@pytest.mark.parametrize(
    ('frames', 'told'),
    [(('map', 'world', 'map'), '(map: a, c; world: b)'), (('map', '', 'map'), '')],
)
def test_reference_poses_in_frames_of_several_names_are_told(caplog, frames, told):
    runs = [TinyRun(10, name) for name in 'abc']
    for run, frame in zip(runs, frames, strict=True):
        run.reference_frame = frame
    assert len(build_map(runs, vision=TINY_VISION)) == 30
    assert told in caplog.text if told else not caplog.text


def test_reference_poses_of_another_clock_are_told_with_both_spans(caplog):
    class OnAnotherClock(TinyRun):
        """A run whose known poses begin a thousand seconds late."""

        def __getitem__(self, index):
            return replace(super().__getitem__(index), reference=None)

        @property
        def fixes(self):
            return OdometryTrack(self.odometry.stamps_ns + 10**12, self.odometry.poses)

    run = OnAnotherClock(10, 'late')
    says = (
        r'no image of late lies within its reference poses: images at \[1600000000.000, '
        r'1600000003.600\] s, reference poses at \[1600000999.500, 1600001004.100\] s'
    )
    with pytest.raises(MapError, match=says):
        build_map([run], vision=TINY_VISION)
    # beside a run that can be used it is told too
    assert len(build_map([TinyRun(10), run], vision=TINY_VISION)) == 10
    assert re.search(says, caplog.text)


def test_max_images_below_one_is_refused():
    with pytest.raises(MapError, match='expected at least 1, got 0'):
        tiny_map(max_images=0)


def test_a_missing_map_says_how_to_build_one(tmp_path):
    with pytest.raises(MapError, match=r'does not exist: build it with `kbr map build'):
        KernelMap.load(tmp_path / 'nowhere.h5')
    with pytest.raises(MapError, match=r'is a folder: expected a file made by `kbr map build`'):
        KernelMap.load(tmp_path)


@pytest.mark.parametrize('share', [0.0, 0.1, 0.5, 0.95])
def test_a_truncated_map_is_named(saved, share):
    data = saved.read_bytes()
    saved.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(MapError, match=r'map\.h5 is truncated, damaged or not a map'):
        KernelMap.load(saved)


def test_damaged_numbers_are_found_by_their_checksum(saved):
    with h5py.File(saved) as file:
        offset = file['poses'].id.get_chunk_info(0).byte_offset
    with saved.open('r+b') as file:
        file.seek(offset + 11)
        byte = file.read(1)
        file.seek(offset + 11)
        file.write(bytes([byte[0] ^ 0xFF]))
    with pytest.raises(MapError, match='damaged'):
        KernelMap.load(saved)


def test_a_foreign_file_is_not_a_map(tmp_path):
    path = tmp_path / 'other.h5'
    with h5py.File(path, 'w') as file:
        file['numbers'] = [1, 2, 3]
    with pytest.raises(MapError, match='not a map of kbr_localization'):
        KernelMap.load(path)


def test_a_newer_map_asks_for_a_newer_package(saved):
    with h5py.File(saved, 'r+') as file:
        file.attrs['format_version'] = 99
        file.attrs['package_version'] = '9.9.9'
    with pytest.raises(MapError, match=r'format 99 \(package 9\.9\.9\).*update'):
        KernelMap.load(saved)


def test_a_map_of_one_camera_is_read_by_the_first_package_and_a_format_of_none_is_refused(saved):
    with h5py.File(saved, 'r+') as file:
        assert file.attrs['format_version'] == 1
        file.attrs['format_version'] = 0
    with pytest.raises(MapError, match=r'format_version is .*0.*: expected an integer from 1 on'):
        KernelMap.load(saved)


def test_a_map_without_its_poses_is_damaged(saved):
    with h5py.File(saved, 'r+') as file:
        del file['poses']
    with pytest.raises(MapError, match='build it again'):
        KernelMap.load(saved)


@pytest.mark.skipif(os.geteuid() == 0, reason='root may write everywhere')
def test_an_unwritable_folder_is_named(kernel_map, tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(MapError, match='cannot write the map'):
        kernel_map.save(tmp_path / 'map.h5')


def test_a_failed_write_leaves_the_old_map(kernel_map, saved, monkeypatch):
    before = saved.read_bytes()
    monkeypatch.setattr('os.fsync', lambda _: (_ for _ in ()).throw(OSError(28, 'disk full')))
    with pytest.raises(MapError, match='disk full'):
        kernel_map.save(saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == ['map.h5']


FULL_DISK = """
import resource, sys
from pathlib import Path
from kbr_localization.localization.map.kernel_map import KernelMap

kernel_map, path = KernelMap.load(sys.argv[1]), Path(sys.argv[2])
for limit in range(0, Path(sys.argv[1]).stat().st_size, 4999):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, -1))
    try:
        kernel_map.save(path)
    except Exception as error:
        print(type(error).__name__, error)
    assert list(path.parent.iterdir()) == [], limit
resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
kernel_map.save(path)
"""


def test_a_disk_that_is_full_at_any_moment_is_an_error_and_no_crash(kernel_map, saved, tmp_path):
    (tmp_path / 'new').mkdir()
    path = tmp_path / 'new' / 'map.h5'
    command = [sys.executable, '-c', FULL_DISK, saved, path]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, '')
    lines = result.stdout.splitlines()
    assert len(lines) > 5
    assert set(lines) == {f'MapError cannot write the map {path}: File too large'}
    assert_equal_maps(kernel_map, KernelMap.load(path))


INTERRUPTED = """
import signal, sys
from pathlib import Path
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.deferred_error_file import DeferredErrorFile

# whoever runs the tests in the background may have them ignore it
signal.signal(signal.SIGINT, signal.default_int_handler)
kernel_map, path = KernelMap.load(sys.argv[1]), Path(sys.argv[2])
write, calls = DeferredErrorFile.write, []

def interrupted(file, data):
    calls.append(0)
    if len(calls) == moment:
        signal.raise_signal(signal.SIGINT)
    return write(file, data)

DeferredErrorFile.write = interrupted
for moment in (1, 2, 10, 40, 60):
    calls.clear()
    try:
        kernel_map.save(path)
    except KeyboardInterrupt:
        print('interrupted')
    assert list(path.parent.iterdir()) == [], moment
"""


def test_an_interrupt_while_a_map_is_saved_is_no_crash(saved, tmp_path):
    (tmp_path / 'new').mkdir()
    command = [sys.executable, '-c', INTERRUPTED, saved, tmp_path / 'new' / 'map.h5']
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, '')
    assert result.stdout.splitlines() == ['interrupted'] * 5


def test_maps_can_be_cut_down(kernel_map):
    part = kernel_map.subset(np.array([2, 5]))
    assert len(part) == 2
    np.testing.assert_array_equal(part.poses, kernel_map.poses[[2, 5]])
    assert part.thumbnails == (kernel_map.thumbnails[2], kernel_map.thumbnails[5])


def test_rows_that_do_not_belong_together_are_refused(kernel_map):
    with pytest.raises(MapError, match='descriptors has 3 rows for 30 poses'):
        replace(kernel_map, descriptors=kernel_map.descriptors[:3])


def test_single_values_are_put_into_the_configuration_that_suits_the_map():
    suited = tiny_map().filter_config
    changed = tiny_map(filter_config={'points': 77}).filter_config
    assert changed == replace(suited, points=77)
    whole = replace(suited, position_bandwidth=3.0)
    assert tiny_map(filter_config=whole).filter_config == whole


def test_a_map_keeps_the_errors_of_the_odometry(kernel_map, saved):
    loaded = KernelMap.load(saved)
    for name in ('values', 'covariance'):
        kept, built = (getattr(m.calibration, name) for m in (loaded, kernel_map))
        np.testing.assert_array_equal(kept, built)
    half = kernel_map.subset(np.arange(10))
    assert half.calibration is kernel_map.calibration


@pytest.mark.parametrize(
    ('name', 'values'),
    [
        ('values', np.full(7, np.nan)),
        ('values', np.zeros(6)),
        ('covariance', -np.eye(7)),
        ('covariance', np.full((7, 7), 1e9)),
    ],
)
def test_errors_of_the_odometry_that_cannot_be_are_refused(saved, name, values):
    with h5py.File(saved, 'r+') as file:
        del file['calibration'][name]
        file['calibration'][name] = values
    with pytest.raises(MapError, match=f'calibration/{name}'):
        KernelMap.load(saved)


def test_the_noise_of_sideways_motion_survives_the_file(kernel_map, tmp_path):
    noise = replace(kernel_map.motion_noise, per_metre_aside=np.array([1e-4, 3e-4, 1e-4]))
    replace(kernel_map, motion_noise=noise).save(tmp_path / 'aside.h5')
    loaded = KernelMap.load(tmp_path / 'aside.h5').motion_noise
    np.testing.assert_array_equal(loaded.per_metre_aside, noise.per_metre_aside)
