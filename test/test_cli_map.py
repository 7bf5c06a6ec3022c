"""`kbr map …` on tiny runs and on drives round a ring."""

from dataclasses import replace
import json
import re
import shutil

from command import assert_one_line, done, FEW_WORDS, invoke
import h5py
from helpers import write_tiny_cold_run
from kbr_localization.cli.console import format_value
from kbr_localization.datasets import open_dataset
from kbr_localization.datasets.cold import write_cold_run
from kbr_localization.evaluation import reference_trajectory, write_tum
from kbr_localization.localization.map.grow import grown_path, NewImage, with_images
from kbr_localization.localization.map.kernel_map import KernelMap
from map_helpers import assert_equal_maps
from mapping_helpers import RingRun, ROUND
import numpy as np
import pytest


def facts_of(path):
    return json.loads(done('map', 'info', path, '--json').stdout)


def test_the_map_does_not_depend_on_the_number_of_processes(world, tmp_path):
    maps = []
    for jobs in (1, 2):
        path = tmp_path / f'{jobs}.h5'
        told = done('map', 'build', world / 'train', '--out', path, '--jobs', jobs, *FEW_WORDS)
        assert 'describing images: 30 of 30' in told.stderr
        maps.append(KernelMap.load(path))
    assert_equal_maps(*maps)


def test_info_says_what_the_map_holds(world):
    facts = facts_of(world / 'map.h5')
    assert facts['images'] == 30
    assert facts['runs'] == {'train': {'images': 30, 'metres': pytest.approx(5.8, abs=1e-6)}}
    assert facts['image_shape'] == [96, 128]
    assert facts['filter']['odometry_calibration'] == 'learnt'
    assert facts['odometry']['offset_x']['observable'] is False
    table = invoke('map', 'info', world / 'map.h5').stdout
    assert 'runs.train.images' in table and 'not observable' in table
    cell = f'[{", ".join(map(format_value, facts["motion_noise"]["per_metre"]))}]'
    assert re.search(rf'motion_noise\.per_metre +│ {re.escape(cell)} *\n', table)


def test_runs_of_the_same_name_stay_apart(tmp_path):
    runs = [tmp_path / day / 'run' for day in ('mon', 'tue')]
    for run, frames in zip(runs, (30, 20), strict=True):
        write_tiny_cold_run(run, frames=frames)
    result = done('map', 'build', *runs, '--out', tmp_path / 'map.h5', *FEW_WORDS)
    assert 'warning' not in result.stderr
    kernel_map = KernelMap.load(tmp_path / 'map.h5')
    # as an earlier version named them
    replace(kernel_map, run_names=('run', 'run')).save(tmp_path / 'old.h5')
    for name in ('map.h5', 'old.h5'):
        images = {run: of['images'] for run, of in facts_of(tmp_path / name)['runs'].items()}
        assert images == {'run': 30, 'run (2)': 20}
    arguments = ('map', 'extend', tmp_path / 'map.h5', runs[1], '--out', tmp_path / 'longer.h5')
    assert_one_line(invoke(*arguments), 'has a run run already', 'rename the folder')


def test_the_map_can_be_limited_in_size_and_has_what_is_set(world, tmp_path):
    options = ('--set', 'image_bandwidth=1', '--set', 'vision.words=20', '--max-images', 7)
    paths = [tmp_path / f'seed {seed}.h5' for seed in (0, 3)]
    for seed, path in zip((0, 3), paths, strict=True):
        done('map', 'build', world / 'train', *options, '--seed', seed, '--out', path)
    one, other = (KernelMap.load(path).descriptors[:] for path in paths)
    assert np.any(one != other)
    facts = facts_of(paths[0])
    assert facts['images'] == 7
    assert facts['filter']['image_bandwidth'] == 1.0
    assert facts['descriptor_size'] == 4 * 20


def test_fewer_images_are_kept_and_the_loss_is_told(world, tmp_path):
    out = tmp_path / 'few.h5'
    told = done('map', 'prune', world / 'map.h5', '--max-images', 9, '--out', out).stdout
    assert '9 of 30' in told and 'of a dropped image to a kept one' in told
    assert len(KernelMap.load(out)) == 9
    assert 'whole: 9 images' in done('map', 'check', out).stderr
    out.write_bytes(out.read_bytes()[:-2000])
    assert_one_line(invoke('map', 'check', out), 'few.h5')


def grown_beside(world, folder):
    """Copy a map and write one beside it that has grown by two images."""
    path = shutil.copy(world / 'map.h5', folder / 'map.h5')
    base = KernelMap.load(path)
    news = [
        NewImage(int(base.stamps_ns[-1]) + n, base.poses[n] + 0.01, base.descriptors[n])
        for n in (1, 2)
    ]
    with_images(base, news).save(grown_path(path))
    return path, grown_path(path)


def test_added_images_are_merged_or_dropped_by_command(world, tmp_path):
    path, beside = grown_beside(world, tmp_path)
    told = done('map', 'grown', path).stdout
    assert re.search(r'added +│ 2 ', told) and re.search(r'images +│ 32 ', told)
    before = path.read_bytes()
    done('map', 'grown', path, '--drop')
    assert path.read_bytes() == before and not beside.exists()
    assert_one_line(invoke('map', 'grown', path), 'nothing was added to')
    path, beside = grown_beside(world, tmp_path)
    assert_one_line(invoke('map', 'grown', path, '--drop', '--merge'), 'expected one of them')
    done('map', 'grown', path, '--merge')
    assert len(KernelMap.load(path)) == 32 and not beside.exists()


def test_only_what_was_added_to_the_map_is_merged_or_dropped(world, tmp_path):
    path, beside = grown_beside(world, tmp_path)
    notes, other, damaged = (tmp_path / name for name in ('notes.txt', 'other.h5', 'damaged.h5'))
    notes.write_text('mine\n')
    KernelMap.load(path).subset(np.arange(3, 20)).save(other)
    damaged.write_bytes(beside.read_bytes()[:-1000])
    says = ('notes.txt', 'not those of this', 'damaged.h5', 'the map itself')
    for file, why in zip((notes, other, damaged, path), says, strict=True):
        before = file.read_bytes()
        for option in ('--drop', '--merge'):
            assert_one_line(invoke('map', 'grown', path, option, '--added', file), why)
        assert file.read_bytes() == before
    assert beside.exists() and len(KernelMap.load(path)) == 30


def test_a_map_without_statistics_is_measured_and_prune_keeps_them(world, tmp_path):
    old, new, poses = tmp_path / 'old.h5', tmp_path / 'new.h5', tmp_path / 'poses.tum'
    shutil.copy(world / 'map.h5', old)
    with h5py.File(old, 'r+') as file:
        del file['statistics']
    assert 'are measured now' in done('localize', old, world / 'test', '--out', poses).stderr
    done('map', 'prune', old, '--max-images', 1000, '--out', new)
    assert KernelMap.load(old).statistics is None
    assert KernelMap.load(new).statistics == KernelMap.load(world / 'map.h5').statistics
    assert 'are measured now' not in done('localize', new, world / 'test', '--out', poses).stderr


@pytest.fixture(scope='module')
def made(tmp_path_factory):
    """Write two drives in COLD's format and map the first one from its odometry."""
    folder = tmp_path_factory.mktemp('ring')
    for drive in (
        RingRun(name='one', metres=1.6 * ROUND),
        RingRun(name='short', begin=9.0, metres=12.0, seed=1),
    ):
        # COLD's names of images have true poses
        frames = [replace(frame, reference=drive.true[n]) for n, frame in enumerate(drive)]
        write_cold_run(folder / drive.name, frames, drive.odometry)
    words = ('map', 'build', folder / 'one', '--poses', 'odometry', '--jobs', 1, *FEW_WORDS)
    told = done(*words, '--out', folder / 'one.h5').stderr
    assert 'closures in' in told and 'contradict them' in told
    return folder


def test_another_drive_is_added_and_typed_positions_move_the_map(made, tmp_path):
    words = ('map', 'extend', made / 'one.h5', made / 'short', '--jobs', 1)
    assert 'joined by' in done(*words, '--out', tmp_path / 'both.h5').stderr
    before, after = KernelMap.load(made / 'one.h5'), KernelMap.load(tmp_path / 'both.h5')
    np.testing.assert_array_equal(after.poses[: len(before)], before.poses)
    known = ('--at', '4,3.0,0', '--at', '40,11.8,8', '--at', '80,0,0.2')
    moved = done('map', 'align', made / 'one.h5', *known, '--out', tmp_path / 'moved.h5')
    assert 'missed_m' in moved.stdout and '3 known poses, missed by' in moved.stderr
    rows = [line.replace('│', ' ').split() for line in moved.stdout.splitlines()[2:]]
    # at the images that are nearest
    seconds = [float(row[0]) - before.stamps_ns.min() * 1e-9 for row in rows]
    assert seconds == pytest.approx([4, 40, 80], abs=1.0)
    assert [row[1:3] for row in rows][:2] == [['3.000', '0.000'], ['11.800', '8.000']]


def test_the_poses_of_a_run_move_its_map(made, tmp_path):
    moved, run = tmp_path / 'moved.h5', open_dataset(made / 'one')
    done('map', 'align', made / 'one.h5', '--bag', made / 'one', '--out', moved)
    truth = [frame.reference for frame in run]
    off = KernelMap.load(moved).poses[:, :2] - np.array(truth)[:, :2]
    assert np.median(np.hypot(*off.T)) < 0.3
    frames = [replace(frame, reference=None) for frame in run]
    write_cold_run(tmp_path / 'none', frames, run.odometry)
    none = invoke('map', 'align', made / 'one.h5', '--bag', tmp_path / 'none', '--out', moved)
    assert none.returncode == 2 and 'none: expected known poses, in a bag also' in none.stderr


def test_reference_poses_of_another_frame_are_told_until_the_map_is_aligned(made, tmp_path):
    told = (
        'one.h5: the frame of the map is that of its first image, not that of the reference poses '
        'of short: errors against them'
    )
    write_tum(tmp_path / 'known.tum', reference_trajectory(open_dataset(made / 'one')))
    moved = tmp_path / 'one.h5'
    done('map', 'align', made / 'one.h5', '--tum', tmp_path / 'known.tum', '--out', moved)
    run, out, page = made / 'short', tmp_path / 'short.tum', tmp_path / 'page.html'
    nearest = ('--method', 'nearest', '--init', 'reference')
    for whole, expected in ((made / 'one.h5', 1), (moved, 0)):
        # a map that was extended is measured, which takes as long as it is large
        kernel_map = tmp_path / f'few {expected}' / 'one.h5'
        kernel_map.parent.mkdir()
        KernelMap.load(whole).subset(np.arange(30)).save(kernel_map)
        for command in (
            ('localize', kernel_map, run, '--out', out, *nearest),
            ('report', kernel_map, run, '--out', page, *nearest),
            ('map', 'extend', kernel_map, run, '--poses', 'known', '--out', tmp_path / 'both.h5'),
        ):
            assert done(*command).stderr.count(told) == expected, command
        assert (told.partition(': ')[2] in page.read_text()) is bool(expected)
        frame = facts_of(kernel_map)['poses']['frame']
        assert frame == ('that of the first image' if expected else 'aligned')


@pytest.mark.parametrize(
    ('arguments', 'why'),
    [
        ((), 'expected one of --at, --tum, --bag, got none'),
        (('--at', '1,2'), "--at '1,2': expected SECONDS,X,Y"),
        (('--at', '1,3,nan'), "--at '1,3,nan': expected SECONDS,X,Y"),
        (('--at', '1,2,1e300'), 'metres of at most 1e+07'),
        (('--at', '1,2,3', '--reference-topic', '/known'), 'options of a bag: expected --bag'),
        (('--at', '1,2,3', '--at', '2,2,3'), '2 of 2 known poses'),
        (('--at', '1,2,3', '--at', '2,2,3', '--at', '3,2,3'), 'lie 0.00 m about their middle'),
    ],
)
def test_known_poses_that_say_nothing_are_refused(made, tmp_path, arguments, why):
    command = ('map', 'align', made / 'one.h5', *arguments, '--out', tmp_path / 'moved.h5')
    assert_one_line(invoke(*command), why)


def test_a_map_without_poses_needs_a_way_and_known_ones_no_base(tmp_path):
    write_tiny_cold_run(tmp_path / 'tiny')
    out = ('--out', tmp_path / 'map.h5')
    words = ('map', 'build', tmp_path / 'tiny', '--poses', 'odometry', '--jobs', 1, *out)
    assert_one_line(invoke(*words), 'stays in one place')
    words = ('map', 'build', tmp_path / 'tiny', '--pose-frame', 'base', *out)
    assert_one_line(invoke(*words), '--pose-frame base: expected --poses odometry')
    assert not (tmp_path / 'map.h5').exists()
