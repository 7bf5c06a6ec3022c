"""Map files from strangers: whole, plain, of a size that fits, or refused in words."""

from dataclasses import replace
import json
import os
import pickle
import tracemalloc

from command import assert_one_line, invoke
import h5py
from helpers import write_tiny_cold_run
from kbr_localization.errors import MapError
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.map import storage, verified
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.map_statistics import MapStatistics
from kbr_localization.localization.map.storage import CHECKSUMS, write_array
from kbr_localization.localization.map.verified import BLOCK_BYTES, checksums_of, VerifiedArray
from kbr_localization.localization.map.verify import check_map
from map_helpers import assert_equal_maps, TINY_VISION, TinyRun
import numpy as np
import pytest


@pytest.fixture
def large(shared_map, tmp_path, monkeypatch):
    """Give a map file whose arrays lie in one piece, as those of large maps do."""
    monkeypatch.setattr(storage, 'MAPPED_BYTES', 1 << 16)
    many = shared_map.subset(np.arange(3000) % len(shared_map))
    rows = np.random.default_rng(0).integers(0, 9, many.descriptors.shape, dtype=np.uint8)
    replace(many, descriptors=rows).save(tmp_path / 'large.h5')
    return tmp_path / 'large.h5'


def flip(path, at):
    with path.open('r+b') as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 4]))


def test_a_large_map_has_checksums_of_all_that_is_mapped(large):
    with h5py.File(large) as file:
        names = []
        file[CHECKSUMS].visititems(
            lambda n, item: names.append(n) if isinstance(item, h5py.Dataset) else None
        )
        assert {'descriptors', 'thumbnails/jpeg', 'index/codes'} <= set(names)
    assert check_map(large).unverified == ()
    loaded = KernelMap.load(large)
    assert loaded.thumbnails[2:5] == tuple(loaded.thumbnails)[2:5]
    loaded.save(large.with_name('again.h5'))
    np.testing.assert_array_equal(
        KernelMap.load(large.with_name('again.h5')).descriptors, np.asarray(loaded.descriptors)
    )


def test_every_flipped_bit_of_a_large_map_is_found(large):
    rng = np.random.default_rng(1)
    for at in rng.integers(large.stat().st_size, size=60).tolist():
        flip(large, at)
        # between its parts HDF5 leaves bytes that nobody reads
        try:
            check_map(large)
        except MapError as error:
            assert 'large.h5' in str(error) and '\n' not in str(error)
        else:
            with h5py.File(large) as file:
                assert not lies_in_an_array(file, at)
        flip(large, at)
    check_map(large)


def lies_in_an_array(file, at):
    found = []

    def look(_, item):
        if isinstance(item, h5py.Dataset) and item.chunks is None:
            start = item.id.get_offset()
            found.append(start <= at < start + item.nbytes)

    file.visititems(look)
    return any(found)


def test_a_damaged_row_is_refused_when_it_is_used_and_no_other(large, monkeypatch):
    monkeypatch.setattr(verified, '_LOOKED_AT', 1)
    with h5py.File(large) as file:
        descriptors = file['descriptors']
        width = descriptors.shape[1]
        flip(large, descriptors.id.get_offset() + 2 * BLOCK_BYTES + 17)
    loaded = KernelMap.load(large)
    row = 2 * BLOCK_BYTES // width + 1
    before, after, far = row - 1, row + 1, row + 3 * BLOCK_BYTES // width
    assert loaded.descriptors[row + BLOCK_BYTES // width + 1].shape == (width,)
    assert loaded.descriptors[:2].shape == (2, width)
    for use in (
        lambda: loaded.descriptors[row],
        lambda: loaded.descriptors[[1, row]],
        lambda: loaded.descriptors[row - len(loaded)],
        lambda: loaded.descriptors[before:after],
        lambda: loaded.descriptors[far:before:-1],
        lambda: np.asarray(loaded.descriptors),
        lambda: loaded.descriptors + 1,
        lambda: np.sum(loaded.descriptors),
    ):
        with pytest.raises(MapError, match=r'descriptors of .*large\.h5 is damaged at bytes'):
            use()
    assert_one_line(invoke('map', 'check', large), 'descriptors', 'damaged')


def test_a_map_whose_second_half_is_zeros_does_not_open(large):
    data = large.read_bytes()
    half = len(data) // 2
    large.write_bytes(data[:half] + bytes(len(data) - half))
    with pytest.raises(MapError, match=r'large\.h5'):
        KernelMap.load(large)


def test_numbers_that_are_not_finite_are_refused_where_they_are_used(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, 'MAPPED_BYTES', 1 << 10)
    rows = np.zeros((200_000, 3), dtype=np.float32)
    rows[123_456, 1] = np.nan
    with h5py.File(tmp_path / 'a.h5', 'w') as file:
        write_array(file, 'rows', rows)
    with h5py.File(tmp_path / 'a.h5') as file:
        read = storage.read_array(file['rows'], finite=True)
    assert read[5].tolist() == [0, 0, 0]
    with pytest.raises(MapError, match='not finite'):
        read[np.array([5, 123_456])]


@pytest.mark.parametrize('dtype', [np.uint8, np.float64])
@pytest.mark.parametrize('shape', [(1_100,), (48, 100), (3, 1_100)])
def test_a_verified_array_is_used_like_any_other(monkeypatch, shape, dtype):
    monkeypatch.setattr(verified, 'BLOCK_BYTES', 1 << 10)
    rng = np.random.default_rng(0)
    plain = rng.integers(0, 200, shape).astype(dtype)

    def fresh():
        return VerifiedArray(plain, checksums_of(plain), 'it')

    rows = rng.integers(-len(plain), len(plain), 7)
    chosen = rng.random(len(plain)) < 0.1
    keys = (0, -1, slice(1, 3), slice(None, None, -2), slice(5, 2), rows, rows.tolist(), chosen)
    for key in (*keys, (slice(None), 0)[: plain.ndim], ..., np.int64(2), np.empty(0, int)):
        np.testing.assert_array_equal(fresh()[key], plain[key])
    for use in (np.asarray, np.sqrt, np.sum, len, lambda a: 2 * a + a, lambda a: a.astype(int)):
        np.testing.assert_array_equal(use(fresh()), use(plain))
    np.testing.assert_array_equal(np.concatenate([fresh(), plain]), np.concatenate([plain] * 2))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fresh())), plain)
    np.testing.assert_array_equal([row.sum() for row in fresh()], [row.sum() for row in plain])
    assert (fresh().shape, fresh().dtype, fresh().nbytes) == (shape, dtype, plain.nbytes)
    with pytest.raises(IndexError):
        fresh()[len(plain)]
    damaged = checksums_of(plain)
    damaged[-1] ^= 1
    with pytest.raises(MapError, match='it is damaged'):
        VerifiedArray(plain, damaged, 'it')


def test_a_map_that_is_overwritten_in_place_while_it_is_in_use_is_told(large):
    """Without a look at the file the process would be ended by SIGBUS."""
    loaded, whole = KernelMap.load(large), large.read_bytes()
    rows = np.asarray(loaded.descriptors[:5])
    image = rows[3].copy()
    os.truncate(large, 5000)  # as cp does before it writes
    for use in (lambda: loaded.descriptors[2000:2005], lambda: loaded.similarities(image)):
        with pytest.raises(MapError, match='was cut off to 5000 bytes while it is in use'):
            use()
    with large.open('r+b') as file:
        file.write(whole)
    np.testing.assert_array_equal(loaded.descriptors[:5], rows)
    with large.open('r+b') as file:
        file.write(bytes(len(whole)))
    with pytest.raises(MapError, match='is damaged at bytes'):
        loaded.similarities(image)


def test_a_map_in_whose_place_another_one_is_moved_is_used_on(large, tmp_path):
    loaded = KernelMap.load(large)
    image = np.asarray(loaded.descriptors[3])
    expected = loaded.similarities(image)
    (tmp_path / 'other.h5').write_bytes(b'no map')
    (tmp_path / 'other.h5').rename(large)
    np.testing.assert_array_equal(loaded.similarities(image), expected)


def test_a_run_whose_folder_has_a_name_that_is_no_text_is_mapped(shared_map, tmp_path):
    name = os.fsdecode(b'r\xf6n')
    replace(shared_map, run_names=(name,)).save(tmp_path / name)
    assert KernelMap.load(tmp_path / name).run_names == ('r\ufffdn',)
    result = invoke('map', 'info', tmp_path / name, '--json')
    assert result.returncode == 0 and json.loads(result.stdout)['images'] == len(shared_map)


def test_maps_of_before_the_checksums_still_load(large, shared_map):
    with h5py.File(large, 'r+') as file:
        del file[CHECKSUMS]
    loaded = KernelMap.load(large)
    assert loaded.similarities(np.asarray(loaded.descriptors[3])).argmax() == 3
    assert 'descriptors' in check_map(large).unverified
    result = invoke('map', 'check', large)
    assert result.returncode == 0 and 'descriptors, ' in result.stderr


def test_a_whole_map_is_said_to_be_whole(saved):
    result = invoke('map', 'check', saved)
    assert result.returncode == 0 and 'whole: 30 images' in result.stderr
    facts = json.loads(invoke('map', 'check', saved, '--json').stdout)
    assert facts['images'] == 30 and facts['unverified'] == []


def test_no_byte_of_a_small_map_is_without_a_checksum(saved):
    """Where a flipped bit is not found, it is not read either."""
    # the pictures of more images would be most of the file
    KernelMap.load(saved).subset(np.arange(4)).save(saved)
    before = KernelMap.load(saved)
    for at in range(0, saved.stat().st_size, 211):
        flip(saved, at)
        try:
            assert_equal_maps(before, KernelMap.load(saved))
        except MapError as error:
            assert 'map.h5' in str(error)
        flip(saved, at)


def external(file, target):
    file.create_dataset('poses', (30, 3), 'f8', external=[(str(target), 0, h5py.h5f.UNLIMITED)])


def virtual(file, target):
    layout = h5py.VirtualLayout((30, 3), 'f8')
    layout[:] = h5py.VirtualSource(str(target), 'poses', (30, 3))
    file.create_virtual_dataset('poses', layout)


def linked(file, target):
    file['poses'] = h5py.ExternalLink(str(target), '/poses')


def soft(file, target):
    file['poses'] = h5py.SoftLink('/next_poses')


def twice(file, target):
    file['poses'] = file['next_poses']


@pytest.mark.parametrize('trick', [external, virtual, linked, soft, twice])
def test_a_map_reads_nothing_but_itself(shared_map, saved, tmp_path, trick):
    other = tmp_path / 'secret'
    shared_map.save(other)
    with h5py.File(saved, 'r+') as file:
        del file['poses']
        trick(file, other)
    with pytest.raises(MapError, match=r'map\.h5 .*poses.*(another|two) (file|place)'):
        KernelMap.load(saved)
    for command in ('info', 'check'):
        assert_one_line(invoke('map', command, saved, '--json'), 'map.h5')


def test_a_group_of_another_file_and_a_circle_of_groups_are_refused(saved, tmp_path):
    with h5py.File(saved, 'r+') as file:
        file['describer/again'] = file['describer']
    with pytest.raises(MapError, match='stands at two places'):
        KernelMap.load(saved)


@pytest.mark.parametrize(
    'options',
    [
        {'chunks': (1 << 12, 3)},
        {'chunks': (1 << 12, 3), 'compression': 'gzip'},
        {'chunks': (1 << 29, 1), 'compression': 'gzip'},
        {},
    ],
)
def test_an_array_that_declares_terabytes_is_refused_before_it_is_made(saved, options):
    with h5py.File(saved, 'r+') as file:
        del file['poses']
        file.create_dataset('poses', (1 << 40, 3), 'f8', **options)
    tracemalloc.start()
    with pytest.raises(MapError, match=r'poses says it has \d+ bytes, of which the file holds'):
        KernelMap.load(saved)
    assert tracemalloc.get_traced_memory()[1] < 1e7
    tracemalloc.stop()


@pytest.mark.parametrize(
    'name, change, says',
    [
        ('descriptors', lambda a: a.astype(np.int64), 'descriptors is int64 .* unsigned'),
        ('descriptors', lambda a: a.astype(np.float32), 'descriptors is float32 .* unsigned'),
        ('poses', lambda a: a.astype(np.float16), 'poses is float16 .* numbers of 64 bits'),
        ('poses', lambda a: a.astype('>f8'), 'poses is >f8'),
        ('poses', lambda a: a.astype('S8'), 'poses is bytes64'),
        ('stamps_ns', lambda a: a.astype(np.float64), 'stamps_ns is float64 .* integers'),
        ('run_index', lambda a: a == 0, 'run_index is bool'),
        ('thumbnails/jpeg', lambda a: a.astype(np.int16), 'thumbnails are int16'),
    ],
)
def test_numbers_of_the_wrong_type_are_refused_in_words(saved, name, change, says):
    with h5py.File(saved, 'r+') as file:
        array = file[name][...]
        del file[name]
        file[name] = change(array)
    with pytest.raises(MapError, match=says):
        KernelMap.load(saved)


def test_an_index_of_the_wrong_type_is_refused_in_words(large):
    with h5py.File(large, 'r+') as file:
        starts = file['index/starts'][...]
        del file['index/starts']
        file['index/starts'] = starts.astype(np.float64)
    with pytest.raises(MapError, match='index/starts is float64'):
        KernelMap.load(large)


def test_a_camera_of_a_million_columns_is_refused(saved):
    with h5py.File(saved, 'r+') as file:
        file['describer'].attrs['image_width'] = 1 << 30
    with pytest.raises(MapError, match='1073741824x96 pixels, expected at most'):
        KernelMap.load(saved)


def test_a_pipe_in_the_place_of_a_map_is_refused(tmp_path):
    os.mkfifo(tmp_path / 'map.h5')
    for path in (tmp_path / 'map.h5', '/dev/zero'):
        with pytest.raises(MapError, match='is a device or a pipe: expected a file'):
            KernelMap.load(path)


@pytest.mark.parametrize('count', [1, 2])
def test_a_map_of_one_or_two_images_works_everywhere(tmp_path, count):
    run = write_tiny_cold_run(tmp_path / 'run', frames=count)
    test = write_tiny_cold_run(tmp_path / 'test', frames=12)
    out = tmp_path / 'map.h5'
    settings = ('--set', 'vision.words=20', '--set', 'vision.vocabulary_samples=500')
    for command in (
        ('map', 'build', run, '--out', out, *settings),
        ('map', 'info', out),
        ('map', 'check', out),
        ('map', 'prune', out, '--max-images', 1, '--out', tmp_path / 'less.h5'),
        ('report', out, test, '--out', tmp_path / 'report.html'),
    ):
        result = invoke(*command)
        assert result.returncode == 0, result.stderr
    for method in ('kbr', 'algorithm1', 'fkbf', 'knn-particle', 'nearest', 'dead-reckoning'):
        options = ('--out', tmp_path / 'a.tum', '--method', method)
        result = invoke('localize', out, test, *options)
        assert result.returncode == 0 or 'fkbf learns the motion' in result.stderr, result.stderr


def test_a_map_of_poses_that_jump_as_far_as_they_may_is_read_again(tmp_path):
    """As of a localizer that says zero until it knows where in a country it is."""
    run = TinyRun(12)
    far = np.array([4e5, 5e6, 0.0])
    run.frames = [
        replace(frame, reference=frame.reference + far * (number > 2))
        for number, frame in enumerate(run.frames)
    ]
    build_map([run], vision=TINY_VISION).save(tmp_path / 'map.h5')
    assert len(KernelMap.load(tmp_path / 'map.h5')) == 12


def test_a_map_that_could_not_be_read_again_is_not_written(shared_map, tmp_path):
    shared_map.save(tmp_path / 'map.h5')
    known = ('--at=0,0,0', '--at=4,200,1', '--at=8,400,0')
    out = tmp_path / 'moved.h5'
    moved = invoke('map', 'align', tmp_path / 'map.h5', *known, '--scale', '--out', out)
    assert_one_line(moved, 'cannot write the map', 'values beyond 100', 'in metres?')
    assert not out.exists()


def test_a_run_of_a_map_may_have_no_images(shared_map, tmp_path):
    names = ('none', *shared_map.run_names)
    replace(shared_map, run_names=names, run_index=shared_map.run_index + 1).save(
        tmp_path / 'map.h5'
    )
    facts = json.loads(invoke('map', 'info', tmp_path / 'map.h5', '--json').stdout)
    assert facts['runs']['none'] == {'images': 0, 'metres': 0}


def test_statistics_of_a_map_of_the_version_before_are_measured_again(shared_map, tmp_path):
    """They are of an image kernel that was not centred."""
    known = MapStatistics(0.05, 0.01, 0.6, 0.2)
    replace(shared_map, statistics=known).save(tmp_path / 'map.h5')
    assert KernelMap.load(tmp_path / 'map.h5').statistics == known
    with h5py.File(tmp_path / 'map.h5', 'r+') as file:
        del file['statistics'].attrs['image_kernel']
    assert KernelMap.load(tmp_path / 'map.h5').statistics is None


def test_thumbnails_that_end_before_their_bytes_do_are_refused(saved):
    with h5py.File(saved, 'r+') as file:
        file['thumbnails/sizes'][0] -= 1
    with pytest.raises(MapError, match=r'thumbnails are not those of \d+ images'):
        KernelMap.load(saved)


def test_parameters_that_meant_something_else_to_an_earlier_filter_take_their_defaults(saved):
    with h5py.File(saved, 'r+') as file:
        file['filter'].attrs['off_map'] = 0.1  # which only that one had
        file['filter'].attrs['delta'] = 7.0
        file['filter'].attrs['points'] = 123
    config = KernelMap.load(saved).filter_config
    assert (config.delta, config.points) == (KbrConfig().delta, 123)
