"""Maps and trajectories by the command line, on tiny runs."""

import dataclasses
import json
from pathlib import Path
import re
import shutil

from command import assert_one_line, invoke, kbr
import cv2
import h5py
from helpers import write_tiny_cold_run
from kbr_localization.cli.console import format_value
from kbr_localization.datasets import open_dataset
from kbr_localization.evaluation import read_tum
from kbr_localization.localization.map.grow import grown_path, NewImage, with_images
from kbr_localization.localization.map.kernel_map import KernelMap
from map_helpers import assert_equal_maps
import numpy as np
import pytest

FEW_WORDS = ('--set', 'vision.words=30', '--set', 'vision.vocabulary_samples=3000')
"""Half of what a tiny map takes is its vocabulary."""


@pytest.fixture(scope='module')
def tiny(tmp_path_factory):
    """Two runs and a map of the first."""
    folder = tmp_path_factory.mktemp('tiny')
    write_tiny_cold_run(folder / 'train', frames=30)
    write_tiny_cold_run(folder / 'test', frames=20)
    result = kbr('map', 'build', '--out', folder / 'map.h5', folder / 'train')
    assert result.returncode == 0, result.stderr
    assert result.stdout == ''
    assert 'describing images: 30 of 30' in result.stderr
    assert 'map.h5: 30 images' in result.stderr
    return folder


def test_the_map_does_not_depend_on_the_number_of_processes(tiny, tmp_path):
    maps = []
    for jobs in (1, 2):
        path = tmp_path / f'{jobs}.h5'
        options = ('--out', path, '--jobs', jobs, *FEW_WORDS)
        result = invoke('map', 'build', tiny / 'train', *options)
        assert result.returncode == 0, result.stderr
        assert 'describing images: 30 of 30' in result.stderr
        maps.append(KernelMap.load(path))
    assert_equal_maps(*maps)


def test_info_says_what_the_map_holds(tiny):
    facts = json.loads(invoke('map', 'info', tiny / 'map.h5', '--json').stdout)
    assert facts['images'] == 30
    assert facts['runs'] == {'train': {'images': 30, 'metres': pytest.approx(5.8, abs=1e-6)}}
    assert facts['image_shape'] == [96, 128]
    assert facts['filter']['odometry_calibration'] == 'learnt'
    table = invoke('map', 'info', tiny / 'map.h5').stdout
    assert 'runs.train.images' in table and 'filter.image_bandwidth' in table
    for name, values in facts['motion_noise'].items():
        cell = '-' if values is None else f'[{", ".join(map(format_value, values))}]'
        assert re.search(rf'motion_noise\.{name} +│ {re.escape(cell)} *\n', table), name
    assert facts['odometry']['offset_x']['observable'] is False
    assert 'not observable' in table


def test_runs_of_the_same_name_stay_apart(tiny, tmp_path):
    runs = [tmp_path / day / 'run' for day in ('mon', 'tue')]
    for run, frames in zip(runs, (30, 20), strict=True):
        write_tiny_cold_run(run, frames=frames)
    result = invoke('map', 'build', *runs, '--out', tmp_path / 'map.h5', *FEW_WORDS)
    assert result.returncode == 0 and 'warning' not in result.stderr
    kernel_map = KernelMap.load(tmp_path / 'map.h5')
    assert kernel_map.run_names == ('run', 'run (2)')
    # as an earlier version named them
    dataclasses.replace(kernel_map, run_names=('run', 'run')).save(tmp_path / 'old.h5')
    for name in ('map.h5', 'old.h5'):
        facts = json.loads(invoke('map', 'info', tmp_path / name, '--json').stdout)
        assert {run: of['images'] for run, of in facts['runs'].items()} == {
            'run': 30,
            'run (2)': 20,
        }
    arguments = ('map', 'extend', tmp_path / 'map.h5', runs[1], '--out', tmp_path / 'longer.h5')
    assert_one_line(invoke(*arguments), 'has a run run already', 'rename the folder')


def test_the_map_can_be_limited_in_size_and_is_the_same_for_the_same_seed(tiny, tmp_path):
    for name in ('one.h5', 'two.h5'):
        options = ('--max-images', 7, '--seed', 3, '--out', tmp_path / name, *FEW_WORDS)
        assert invoke('map', 'build', tiny / 'train', *options).returncode == 0
    one, two = (
        invoke('map', 'info', tmp_path / name, '--json').stdout for name in ('one.h5', 'two.h5')
    )
    assert json.loads(one)['images'] == 7
    assert one == two


@pytest.mark.parametrize('method', ['kbr', 'nearest'])
def test_localizing_gives_a_pose_for_every_frame_and_details_beside_it(tiny, tmp_path, method):
    out = tmp_path / 'new' / 'folder' / 'run.tum'
    result = kbr('localize', tiny / 'map.h5', tiny / 'test', '--out', out, '--method', method)
    assert result.returncode == 0, result.stderr
    assert result.stdout == ''
    assert 'localizing: 20 of 20' in result.stderr
    trajectory = read_tum(out)
    assert trajectory.stamps_ns.tolist() == open_dataset(tiny / 'test').stamps_ns.tolist()
    metrics = json.loads(invoke('evaluate', tiny / 'test', out, '--json').stdout)
    assert metrics['position_rmse_m'] < 0.5
    assert metrics['frames'] == 20 and metrics['coverage_frames'] >= 15
    if method == 'kbr':
        # one image confirms no place, however like it is to one of the map
        details = out.with_suffix('.csv').read_text().splitlines()
        assert ',localized' not in details[1] and ',localized' in details[-1]


def test_recall_of_the_map_is_reported_when_asked_for(tiny, tmp_path):
    out = tmp_path / 'run.tum'
    invoke('localize', tiny / 'map.h5', tiny / 'test', '--out', out, '--method', 'nearest')
    options = ('--map', tiny / 'map.h5', '--json')
    metrics = json.loads(invoke('evaluate', tiny / 'test', out, *options).stdout)
    assert metrics['recall_frames'] == 20
    assert metrics['recall_at_1'] <= metrics['recall_at_5'] <= metrics['recall_at_10'] == 1


def test_an_output_that_cannot_be_written_is_refused_before_the_work(tiny, tmp_path):
    (tmp_path / 'file').touch()
    result = invoke('map', 'build', tiny / 'train', '--out', tmp_path / 'file' / 'map.h5')
    assert_one_line(result, 'file')
    assert 'describing' not in result.stderr
    assert_one_line(invoke('map', 'build', tiny / 'train', '--out', tmp_path), 'is a folder')
    assert_one_line(
        invoke('localize', tiny / 'map.h5', tiny / 'test', '--out', '/proc/run.tum'), '/proc'
    )


def test_how_many_frames_were_localized_is_told(tiny, tmp_path):
    arguments = (tiny / 'map.h5', tiny / 'test', '--out', tmp_path / 'run.tum')
    result = invoke('localize', *arguments, '--method', 'nearest')
    assert '20 poses, localized at 20 of them (100%)' in result.stderr
    assert 'warning' not in result.stderr
    for file in (shutil.copytree(tiny / 'test', tmp_path / 'dark') / 'std_cam').iterdir():
        cv2.imwrite(str(file), np.zeros((96, 128), np.uint8))
    for command in ('localize', 'report'):
        result = invoke(command, arguments[0], tmp_path / 'dark', *arguments[2:])
        assert result.returncode == 0, result.stderr
        assert '20 poses, localized at 0 of them (0%)' in result.stderr
        assert 'warning: never localized' in result.stderr


def test_an_odometry_that_stands_still_is_named(tiny, tmp_path):
    run = shutil.copytree(tiny / 'test', tmp_path / 'still')
    [scans] = (run / 'odom_scans').iterdir()
    lines = [line.split() for line in scans.read_text().splitlines()]
    scans.write_text(''.join(' '.join(line[:8] + lines[0][8:]) + '\n' for line in lines))
    for command in ('localize', 'report'):
        result = invoke(command, tiny / 'map.h5', run, '--out', tmp_path / 'run.tum')
        assert result.returncode == 0, result.stderr
        assert 'by its odometry the robot stood still' in result.stderr
        assert 'is this a map of that place' not in result.stderr
    result = kbr('map', 'build', run, '--out', tmp_path / 'map.h5')
    assert result.returncode == 0
    assert 'of still go 3.8 m away from the first one, but its odometry has 0.0 m' in result.stderr


def test_an_output_that_is_an_input_is_refused(tiny, tmp_path):
    kernel_map = Path(shutil.copy(tiny / 'map.h5', tmp_path / 'map.h5'))
    (tmp_path / 'link.h5').symlink_to(kernel_map)
    invoke('convert', tiny / 'test', tmp_path / 'bag')
    (bag,) = (tmp_path / 'bag').glob('*.mcap')
    for command in (
        ('localize', kernel_map, tiny / 'test', '--out', kernel_map),
        ('localize', kernel_map, tiny / 'test', '--out', tmp_path / 'link.h5'),
        ('report', kernel_map, tiny / 'test', '--out', kernel_map),
        ('report', kernel_map, tiny / 'test', '--out', tmp_path / 'r', '--rerun', kernel_map),
        ('map', 'prune', kernel_map, '--max-images', 5, '--out', kernel_map),
        ('map', 'build', bag, '--out', bag),
        ('tune', bag, '--out', bag),
    ):
        before = [path.read_bytes() for path in (kernel_map, bag)]
        assert_one_line(invoke(*command), f'{command[-1]} would be overwritten')
        assert [path.read_bytes() for path in (kernel_map, bag)] == before


def test_details_replace_those_of_an_earlier_trajectory_and_nothing_else(tiny, tmp_path):
    command = ('localize', tiny / 'map.h5', tiny / 'test', '--method', 'nearest', '--out')
    for _ in range(2):
        assert invoke(*command, tmp_path / 'run.tum').returncode == 0
    (tmp_path / 'costs.csv').write_text('what,euros\n')
    assert_one_line(invoke(*command, tmp_path / 'costs.tum'), 'costs.csv', '--out')
    assert (tmp_path / 'costs.csv').read_text() == 'what,euros\n'
    assert not (tmp_path / 'costs.tum').exists()


def test_parameters_that_are_set_are_kept_in_the_map(tiny, tmp_path):
    options = (
        '--set',
        'image_bandwidth=1',
        '--set',
        'odometry_calibration=off',
        '--set',
        'vision.words=20',
    )
    result = invoke('map', 'build', tiny / 'train', '--out', tmp_path / 'map.h5', *options)
    assert result.returncode == 0, result.stderr
    facts = json.loads(invoke('map', 'info', tmp_path / 'map.h5', '--json').stdout)
    assert facts['filter']['image_bandwidth'] == 1.0
    assert facts['filter']['odometry_calibration'] == 'off'
    assert facts['descriptor_size'] == 4 * 20


def test_every_parameter_is_described():
    described = json.loads(invoke('parameters', '--json').stdout)
    assert described['image_bandwidth']['default'] > 0
    assert described['vision.words']['range'] == '2 … 4096'
    assert all(parameter['description'] for parameter in described.values())
    assert 'image_bandwidth' in invoke('parameters').stdout


@pytest.mark.parametrize('storage', ['mcap', 'sqlite3'])
def test_a_run_becomes_a_bag_that_is_the_same_run(tiny, tmp_path, storage):
    bag = tmp_path / 'bag'
    result = invoke('convert', tiny / 'test', bag, '--storage', storage)
    assert result.returncode == 0, result.stderr
    assert '20 frames' in result.stderr
    for run, out in ((tiny / 'test', tmp_path / 'run.tum'), (bag, tmp_path / 'bag.tum')):
        result = invoke('localize', tiny / 'map.h5', run, '--out', out, '--method', 'nearest')
        assert result.returncode == 0, result.stderr
    assert (tmp_path / 'run.tum').read_text() == (tmp_path / 'bag.tum').read_text()
    evaluated = [
        invoke('evaluate', run, tmp_path / 'bag.tum', '--json').stdout
        for run in (tiny / 'test', bag)
    ]
    assert evaluated[0] == evaluated[1]


def grown_beside(tiny, folder):
    """Copy a map and write one beside it that has grown by two images."""
    path = shutil.copy(tiny / 'map.h5', folder / 'map.h5')
    base = KernelMap.load(path)
    news = [
        NewImage(int(base.stamps_ns[-1]) + n, base.poses[n] + 0.01, base.descriptors[n])
        for n in (1, 2)
    ]
    with_images(base, news).save(grown_path(path))
    return path, grown_path(path)


def test_added_images_are_merged_or_dropped_by_command(tiny, tmp_path):
    path, beside = grown_beside(tiny, tmp_path)
    told = invoke('map', 'grown', path).stdout
    assert re.search(r'added +│ 2 ', told) and re.search(r'images +│ 32 ', told)
    before = path.read_bytes()
    assert invoke('map', 'grown', path, '--drop').returncode == 0
    assert path.read_bytes() == before and not beside.exists()
    assert_one_line(invoke('map', 'grown', path), 'nothing was added to')
    missing = invoke('map', 'grown', tmp_path / 'nowhere.h5')
    assert_one_line(missing, 'does not exist', '`kbr map build RUN --out')
    path, beside = grown_beside(tiny, tmp_path)
    assert_one_line(invoke('map', 'grown', path, '--drop', '--merge'), 'expected one of them')
    assert invoke('map', 'grown', path, '--merge').returncode == 0
    assert len(KernelMap.load(path)) == 32 and not beside.exists()


def test_images_that_were_added_to_another_map_are_not_merged(tiny, tmp_path):
    path, beside = grown_beside(tiny, tmp_path)
    KernelMap.load(path).subset(np.arange(3, 20)).save(path)
    assert_one_line(invoke('map', 'grown', path, '--merge'), 'not those of this map')
    for option in ('--drop', '--merge'):
        itself = invoke('map', 'grown', path, option, '--added', path)
        assert_one_line(itself, 'the map itself')
    assert beside.exists() and len(KernelMap.load(path)) == 17


def test_only_what_was_added_to_the_map_is_dropped(tiny, tmp_path):
    path, beside = grown_beside(tiny, tmp_path)
    notes, other = tmp_path / 'notes.txt', tmp_path / 'other.h5'
    notes.write_text('mine\n')
    KernelMap.load(path).subset(np.arange(3, 20)).save(other)
    damaged = tmp_path / 'damaged.h5'
    damaged.write_bytes(beside.read_bytes()[:-1000])
    for file, why in ((notes, 'notes.txt'), (damaged, 'damaged.h5'), (other, 'not those of this')):
        before = file.read_bytes()
        assert_one_line(invoke('map', 'grown', path, '--drop', '--added', file), why)
        assert file.read_bytes() == before
    nowhere = invoke('map', 'grown', tmp_path / 'no.h5', '--drop', '--added', beside)
    assert_one_line(nowhere, 'no.h5 does not exist')
    assert beside.exists()


def test_a_damaged_file_of_added_images_can_be_dropped(tiny, tmp_path):
    path, beside = grown_beside(tiny, tmp_path)
    beside.write_bytes(beside.read_bytes()[:-1000])
    assert invoke('map', 'grown', path, '--drop').returncode == 0
    assert path.exists() and not beside.exists()


def test_a_map_of_an_earlier_version_is_measured_and_keeps_that(tiny, tmp_path):
    old, new = tmp_path / 'old.h5', tmp_path / 'new.h5'
    shutil.copy(tiny / 'map.h5', old)
    with h5py.File(old, 'r+') as file:
        del file['statistics']
    poses = tmp_path / 'poses.tum'
    told = invoke('localize', old, tiny / 'test', '--out', poses)
    assert told.returncode == 0 and 'kbr map measure' in told.stderr
    result = invoke('map', 'measure', old, '--out', new)
    assert result.returncode == 0, result.stderr
    assert 'wrong places stays below' in result.stderr
    assert KernelMap.load(old).statistics is None
    assert KernelMap.load(new).statistics == KernelMap.load(tiny / 'map.h5').statistics
    silent = invoke('localize', new, tiny / 'test', '--out', poses)
    assert 'kbr map measure' not in silent.stderr
    same = invoke('map', 'measure', new, '--out', new)
    assert same.returncode == 2 and str(new) in same.stderr
