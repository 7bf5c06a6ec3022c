"""`kbr map build --poses odometry`, `kbr map align` and `kbr map extend`."""

from dataclasses import replace
import json

from command import invoke
from helpers import write_tiny_cold_run
from kbr_localization.datasets import open_dataset
from kbr_localization.datasets.cold import write_cold_run
from kbr_localization.evaluation import reference_trajectory, write_tum
from kbr_localization.localization.map.kernel_map import KernelMap
from mapping_helpers import RingRun, ROUND
import numpy as np
import pytest

WORDS = ('--set', 'vision.words=30', '--set', 'vision.vocabulary_samples=3000')


@pytest.fixture(scope='module')
def made(tmp_path_factory):
    """Write two drives in COLD's format and map the first one."""
    folder = tmp_path_factory.mktemp('ring')
    for drive in (
        RingRun(name='one', metres=1.6 * ROUND),
        RingRun(name='short', begin=9.0, metres=12.0, seed=1),
    ):
        # COLD's names of images have true poses
        frames = [replace(frame, reference=drive.true[n]) for n, frame in enumerate(drive)]
        write_cold_run(folder / drive.name, frames, drive.odometry)
    words = ('map', 'build', folder / 'one', '--poses', 'odometry', '--jobs', 1, *WORDS)
    done = invoke(*words, '--out', folder / 'one.h5')
    assert done.returncode == 0, done.stderr
    return folder, done


def test_the_map_says_what_it_was_made_of(made):
    _, done = made
    assert 'closures in' in done.stderr
    assert 'contradict them' in done.stderr


def test_another_drive_is_added(made, tmp_path):
    folder, _ = made
    words = ('map', 'extend', folder / 'one.h5', folder / 'short', '--jobs', 1)
    done = invoke(*words, '--out', tmp_path / 'both.h5')
    assert done.returncode == 0, done.stderr
    assert 'joined by' in done.stderr
    before, after = KernelMap.load(folder / 'one.h5'), KernelMap.load(tmp_path / 'both.h5')
    np.testing.assert_array_equal(after.poses[: len(before)], before.poses)


def test_typed_positions_move_the_map_and_are_listed(made, tmp_path):
    folder, _ = made
    known = ('--at', '4,3.0,0', '--at', '40,11.8,8', '--at', '80,0,0.2')
    done = invoke('map', 'align', folder / 'one.h5', *known, '--out', tmp_path / 'moved.h5')
    assert done.returncode == 0, done.stderr
    rows = [line.replace('│', ' ').split() for line in done.stdout.splitlines()[2:]]
    first = KernelMap.load(folder / 'one.h5').stamps_ns.min() * 1e-9
    # at the images that are nearest
    assert [float(row[0]) - first for row in rows] == pytest.approx([4, 40, 80], abs=1.0)
    assert [row[1:3] for row in rows][:2] == [['3.000', '0.000'], ['11.800', '8.000']]
    assert 'missed_m' in done.stdout
    assert '3 known poses, missed by' in done.stderr


def test_the_poses_of_a_run_move_its_map(made, tmp_path):
    folder, _ = made
    moved = tmp_path / 'moved.h5'
    done = invoke('map', 'align', folder / 'one.h5', '--bag', folder / 'one', '--out', moved)
    assert done.returncode == 0, done.stderr
    truth = [frame.reference for frame in open_dataset(folder / 'one')]
    off = KernelMap.load(moved).poses[:, :2] - np.array(truth)[:, :2]
    assert np.median(np.hypot(*off.T)) < 0.3
    frames = [replace(frame, reference=None) for frame in open_dataset(folder / 'short')]
    write_cold_run(tmp_path / 'none', frames, open_dataset(folder / 'short').odometry)
    none = invoke('map', 'align', folder / 'one.h5', '--bag', tmp_path / 'none', '--out', moved)
    assert none.returncode == 2
    assert 'none: expected known poses, of a bag also by --reference-topic' in none.stderr


def test_reference_poses_of_another_frame_are_told_until_the_map_is_aligned(made, tmp_path):
    folder, _ = made
    told = (
        'one.h5: the frame of the map is that of its first image, not that of the reference poses '
        'of short: errors against them'
    )
    write_tum(tmp_path / 'known.tum', reference_trajectory(open_dataset(folder / 'one')))
    moved, known = tmp_path / 'one.h5', ('--tum', tmp_path / 'known.tum')
    assert invoke('map', 'align', folder / 'one.h5', *known, '--out', moved).returncode == 0
    run, out, page = folder / 'short', tmp_path / 'short.tum', tmp_path / 'page.html'
    nearest = ('--method', 'nearest')
    some = ('--sizes', 9, '--trials', 1, '--methods', 'nearest', '--jobs', 1)
    for whole, expected in ((folder / 'one.h5', 1), (moved, 0)):
        # a map that was extended is measured, which takes as long as it is large
        kernel_map = tmp_path / f'few {expected}' / 'one.h5'
        kernel_map.parent.mkdir()
        KernelMap.load(whole).subset(np.arange(30)).save(kernel_map)
        for command in (
            ('localize', kernel_map, run, '--out', out, *nearest),
            ('localize', kernel_map, run, '--out', out, *nearest, '--init', 'reference'),
            ('evaluate', run, out, '--map', kernel_map),
            ('report', kernel_map, run, '--out', page, *nearest),
            (
                'compare', '--map', kernel_map, '--test', run, '--out', tmp_path / f'{expected}',
                *some,
            ),
            ('map', 'extend', kernel_map, run, '--poses', 'known', '--out', tmp_path / 'both.h5'),
        ):  # fmt: skip
            done = invoke(*command)
            assert done.returncode == 0, done.stderr
            assert done.stderr.count(told) == expected, command
        assert (told.partition(': ')[2] in page.read_text()) is bool(expected)
        facts = json.loads(invoke('map', 'info', kernel_map, '--json').stdout)
        assert facts['poses']['frame'] == ('that of the first image' if expected else 'aligned')


@pytest.mark.parametrize(
    ('arguments', 'why'),
    [
        ((), 'expected one of --at, --tum, --bag, --onto, got none'),
        (('--at', '1,2'), "--at '1,2': expected SECONDS,X,Y"),
        (('--at', '1e30,2,3'), "--at '1e30,2,3': expected SECONDS,X,Y"),
        (('--at', '-1,2,3'), "--at '-1,2,3': expected SECONDS,X,Y"),
        (('--at', '1,nan,3'), "--at '1,nan,3': expected SECONDS,X,Y"),
        (('--at', '1,2,1e300'), 'metres of at most 1e+07'),
        (
            ('--at', '1,2,3', '--reference-topic', '/known'),
            'options of a bag: expected --bag beside them',
        ),
        (('--at', '1,2,3', '--at', '2,2,3'), '2 of 2 known poses'),
        (('--at', '1,2,3', '--at', '2,2,3', '--at', '3,2,3'), 'lie 0.00 m about their middle'),
    ],
)
def test_known_poses_that_say_nothing_are_refused(made, tmp_path, arguments, why):
    folder, _ = made
    done = invoke('map', 'align', folder / 'one.h5', *arguments, '--out', tmp_path / 'moved.h5')
    assert done.returncode == 2
    assert why in done.stderr


def test_a_short_run_is_refused_in_one_line(tmp_path):
    write_tiny_cold_run(tmp_path / 'tiny')
    words = ('map', 'build', tmp_path / 'tiny', '--poses', 'odometry', '--jobs', 1)
    done = invoke(*words, '--out', tmp_path / 'map.h5')
    assert done.returncode == 2
    assert 'stays in one place' in done.stderr
    assert not (tmp_path / 'map.h5').exists()
