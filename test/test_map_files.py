"""Map files: what is written is read, and what is damaged or crafted is refused in one line."""

from dataclasses import replace
import os
import subprocess
import sys
import time

from command import assert_one_line, done, invoke
import h5py
from helpers import damage, EXAMPLES, write_tiny_cold_run
from kbr_localization.errors import KbrError, MapError
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.map import file as map_file
from kbr_localization.localization.map.file import check_map, Thumbnails
from kbr_localization.localization.map.index import SketchIndex
from kbr_localization.localization.map.kernel_map import KernelMap, MappingRecord, MapStatistics
from kbr_localization.localization.pipeline import localize
from map_helpers import assert_equal_maps, position_errors, tiny_map, TINY_VISION, TinyRun
import numpy as np
import pytest


@pytest.fixture(scope='module')
def kernel_map():
    tiny = tiny_map(filter_values=vars(KbrConfig(image_bandwidth=0.05, points=77)))
    record = MappingRecord(
        tiny.poses, np.zeros((30, 3, 3)), np.arange(7.0)[np.newaxis], aligned=False
    )
    noise = replace(tiny.motion_noise, per_metre_aside=np.array([1e-4, 3e-4, 1e-4]))
    baselines, statistics = {'algorithm1': {'delta': 0.5}}, MapStatistics()
    assert tiny.decay is not None
    return replace(
        tiny, mapping=record, motion_noise=noise, baselines=baselines, statistics=statistics
    )


@pytest.fixture
def saved(kernel_map, tmp_path):
    kernel_map.save(tmp_path / 'map.h5')
    return tmp_path / 'map.h5'


@pytest.fixture(scope='module')
def large_bytes(kernel_map, tmp_path_factory):
    path = tmp_path_factory.mktemp('large') / 'large.h5'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(map_file, 'MAPPED_BYTES', 1 << 14)
        kernel_map.subset(np.arange(2100) % 30).save(path)
    return path.read_bytes()


@pytest.fixture
def large(large_bytes, tmp_path, monkeypatch):
    """Give a map file whose arrays are mapped, as those of large maps are."""
    monkeypatch.setattr(map_file, 'MAPPED_BYTES', 1 << 14)
    (tmp_path / 'large.h5').write_bytes(large_bytes)
    return tmp_path / 'large.h5'


def test_a_map_survives_its_file(kernel_map, saved):
    loaded = KernelMap.load(saved)
    assert_equal_maps(kernel_map, loaded)
    assert loaded.run_names == ('tiny',) and loaded.image_shape == (96, 128)
    for name in ('filter_config', 'baselines', 'decay', 'statistics'):
        assert getattr(loaded, name) == getattr(kernel_map, name)
    for name in ('motion_noise', 'calibration', 'mapping'):
        np.testing.assert_equal(vars(getattr(loaded, name)), vars(getattr(kernel_map, name)))
    query = kernel_map.descriptors[3]
    np.testing.assert_allclose(loaded.similarities(query), kernel_map.similarities(query))


def test_a_map_of_the_papers_pyramid_localizes_from_its_file(tmp_path):
    papers, run = tiny_map(vision=replace(TINY_VISION, pyramid='papers')), TinyRun(30)
    papers.save(tmp_path / 'papers.h5')
    loaded = KernelMap.load(tmp_path / 'papers.h5')
    assert_equal_maps(papers, loaded)
    assert loaded.descriptors.shape == (30, 21 * 20) and loaded.descriptors.dtype == np.uint16
    assert len(SketchIndex.fit(loaded.descriptors, np.random.default_rng(0))) == 30
    assert np.median(position_errors(localize(loaded, run), run)[10:]) < 0.3


def test_what_another_version_has_is_left_out_and_what_it_lacks_is_the_default(saved, kernel_map):
    with h5py.File(saved, 'r+') as file:
        file['statistics'].attrs['of_another_version'] = 1.0
        file['filter'].attrs['of_another_version'] = 1.0
        del file['filter'].attrs['points'], file['mapping/score']
        del file['describer'].attrs['pyramid']
    loaded = KernelMap.load(saved)
    expected = replace(kernel_map.filter_config, points=KbrConfig().points)
    assert loaded.statistics is None and loaded.filter_config == expected
    assert loaded.describer.config == TINY_VISION


def test_a_large_map_stays_in_its_file(large, kernel_map):
    loaded = KernelMap.load(large)
    assert not loaded.descriptors.flags.owndata and not loaded.descriptors.flags.writeable
    assert tuple(loaded.thumbnails) == tuple(kernel_map.thumbnails[i % 30] for i in range(2100))
    assert isinstance(loaded.thumbnails, Thumbnails) and loaded.search_index is loaded.index
    row = loaded.descriptors[100].copy()
    replace(loaded, run_names=('one',)).save(large)  # over the file that is in use
    np.testing.assert_array_equal(loaded.descriptors[100], row)
    again = KernelMap.load(large)
    assert_equal_maps(loaded, again)
    assert again.run_names == ('one',)


@pytest.mark.parametrize('name', ['saved', 'large'])
def test_damage_is_found_or_read_by_nobody(name, request):
    path = request.getfixturevalue(name)
    content, rng = path.read_bytes(), np.random.default_rng(EXAMPLES)
    before = KernelMap.load(path)
    before = before.subset(np.arange(len(before)))  # in memory
    for _ in range(EXAMPLES or 60):
        path.write_bytes(damage(content, rng))
        try:
            check_map(path)
            assert_equal_maps(before, KernelMap.load(path))
        except MapError as error:
            assert path.name in str(error) and '\n' not in str(error)


def test_damage_of_a_mapped_array_is_told_in_the_background(large, caplog):
    with h5py.File(large) as file:
        at = file['descriptors'].id.get_offset() + 50_017
    content = bytearray(large.read_bytes())
    content[at] ^= 4
    large.write_bytes(content)
    KernelMap.load(large)
    limit = time.monotonic() + 30.0
    while not caplog.records and time.monotonic() < limit:
        time.sleep(0.01)
    assert 'descriptors is damaged' in caplog.text and 'large.h5' in caplog.text
    assert_one_line(invoke('map', 'check', large), 'large.h5', 'descriptors is damaged')


VALUES = (
    None, np.nan, -1.0, 1e300, -7, 2**62, 'text', True, np.zeros(0), np.full((30, 3), np.nan),
    np.full((30, 3), 1e308), np.full(30, -1), np.full(30, 2**62), np.zeros((2, 3)),
    np.zeros((30, 500), np.uint16), np.array([b'a', b'b']), h5py.Empty('f'),
)  # fmt: skip


def test_a_map_with_a_wrong_or_missing_part_is_refused_or_can_be_used(saved):
    """Every group, array and attribute is deleted, and replaced by a value, in turn."""
    content, parts = saved.read_bytes(), []
    with h5py.File(saved) as file:
        file.visit(parts.append)
        names = [(part, name) for part in ['/', *parts] for name in file[part].attrs]
    values = np.random.default_rng(0).permutation(len(VALUES) * 20) % len(VALUES)
    refused = 0
    for (part, name), number in zip([*((p, None) for p in parts), *names], values, strict=False):
        saved.write_bytes(content)
        with h5py.File(saved, 'r+') as file:
            holder, key = (file, part) if name is None else (file[part].attrs, name)
            del holder[key]
            if VALUES[number] is not None:
                holder[key] = VALUES[number]
        try:
            loaded = KernelMap.load(saved)
            assert loaded.similarities(loaded.descriptors[0]).argmax() == 0
        except KbrError as error:
            assert 'map.h5' in str(error) and '\n' not in str(error)
            refused += 1
    assert refused > 40


def external(file, target):
    file.create_dataset('poses', (30, 3), 'f8', external=[(str(target), 0, h5py.h5f.UNLIMITED)])


def linked(file, target):
    file['poses'] = h5py.ExternalLink(str(target), '/poses')


def huge(file, _):
    file.create_dataset('poses', (1 << 40, 3), 'f8', chunks=(1 << 12, 3), compression='gzip')


def circle(file, _):
    file['poses'] = file['describer']
    file['describer/again'] = file['describer']


@pytest.mark.parametrize('trick', [external, linked, huge, circle])
def test_a_map_reads_nothing_but_itself_and_nothing_without_end(
    kernel_map, saved, tmp_path, trick
):
    kernel_map.save(tmp_path / 'secret')
    with h5py.File(saved, 'r+') as file:
        del file['poses']
        trick(file, tmp_path / 'secret')
    says = {huge: 'not a map', circle: 'nested more than 16 deep'}
    says = says.get(trick, 'poses.* another (file|place)')
    with pytest.raises(MapError, match=rf'map\.h5 .*{says}'):
        KernelMap.load(saved)
    assert_one_line(invoke('map', 'check', saved), 'map.h5')


@pytest.mark.parametrize(
    ('name', 'change', 'says'),
    [
        ('descriptors', lambda a: a.astype(np.float32), 'descriptors is float32, not uint8'),
        ('descriptors', lambda a: a[:, 1:], r'descriptors is uint8 of shape \(30, 79\): expect'),
        ('poses', lambda a: 1e8 + a, r'poses has values .* not in \[-1e\+07, 1e\+07\]'),
        ('run_index', lambda a: a + 1, 'run_index has values beyond the 1 run names'),
        ('thumbnails/sizes', lambda a: a + 1, 'thumbnails have'),
        ('calibration/covariance', lambda a: -a, 'calibration/covariance: expected a covar'),
        ('mapping/covariances', lambda a: a - 1.0, 'mapping/covariances has negative variances'),
        ('@image_shape', (1 << 40, 1 << 40), r'image_shape has values .* not in \[1, 100000'),
        ('@format_version', 0, 'expected an integer from 1 on'),
        ('@format_version', 99, r'format 99 \(package .*update kbr_localization'),
        ('@format', 'other', 'not a map of kbr_localization'),
        ('filter@localized_radius', 1e300, 'localized_radius'),
    ],
)
def test_arrays_and_attributes_of_the_wrong_kind_are_refused_in_words(saved, name, change, says):
    group, of_attribute, attribute = name.partition('@')
    with h5py.File(saved, 'r+') as file:
        if of_attribute:
            file[group or '/'].attrs[attribute] = change
        else:
            array = file[name][...]
            del file[name]
            file[name] = change(array)
    with pytest.raises(MapError, match=rf'map\.h5 .*{says}'):
        KernelMap.load(saved)


def test_a_path_that_is_no_map_says_what_was_expected(tmp_path):
    os.mkfifo(tmp_path / 'map.h5')
    for path in (tmp_path, tmp_path / 'map.h5'):
        with pytest.raises(MapError, match='is a folder or a device: expected the file of a map'):
            KernelMap.load(path)


def test_a_folder_may_have_a_name_that_is_no_text_and_poses_are_in_metres(kernel_map, tmp_path):
    name = os.fsdecode(b'r\xf6n')
    replace(kernel_map, run_names=(name,)).save(tmp_path / name)
    assert KernelMap.load(tmp_path / name).run_names == ('r\ufffdn',)
    with pytest.raises(MapError, match=r'cannot write the map .* in metres'):
        replace(kernel_map, poses=kernel_map.poses * 1e9).save(tmp_path / 'map.h5')


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from kbr_localization.localization.map.kernel_map import KernelMap

kernel_map, path = KernelMap.load(sys.argv[1]), Path(sys.argv[2])
before = path.read_bytes()
for limit in range(0, Path(sys.argv[1]).stat().st_size, 9999):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, -1))
    try:
        kernel_map.save(path)
    except Exception as error:
        print(type(error).__name__, error)
    assert [*path.parent.iterdir()] == [path] and path.read_bytes() == before, limit
resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 0.0005)
signal.signal(signal.SIGALRM, signal.default_int_handler)
try:
    kernel_map.save(path)
except KeyboardInterrupt:
    print('interrupted')
kernel_map.save(path)
"""


def test_a_full_disk_or_an_interrupt_leaves_the_old_map_and_is_no_crash(
    kernel_map, saved, tmp_path
):
    path = tmp_path / 'new' / 'map.h5'
    kernel_map.subset(np.arange(3)).save(path)
    command = [sys.executable, '-c', FULL_DISK, saved, path]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, '')
    *lines, last = result.stdout.splitlines()
    assert len(lines) > 5 and last == 'interrupted'
    assert set(lines) == {f'MapError cannot write the map {path}: File too large'}
    assert_equal_maps(kernel_map, KernelMap.load(path))


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
        ('localize', out, test, '--out', tmp_path / 'a.tum'),
    ):
        done(*command)
