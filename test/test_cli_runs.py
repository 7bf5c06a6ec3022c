"""Commands that read runs: localize, evaluate, report, convert, compare; also bad inputs."""

from collections import Counter
from dataclasses import replace
import json
from pathlib import Path
import re
import shutil

from bag_helpers import bag, drive, images, pose_stamped, SECOND
from command import assert_one_line, done, FEW_WORDS, invoke, kbr
import cv2
from helpers import START_NS, textured_image, wall_image, write_tiny_cold_run
from kbr_localization.datasets import open_dataset
from kbr_localization.datasets.cold import write_cold_run
from kbr_localization.evaluation import read_tum, reference_trajectory, write_tum
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.trajectory import Trajectory
import numpy as np
from process_helpers import full_disk
from public_datasets import write_euroc
import pytest


@pytest.fixture
def run(world, tmp_path):
    """Copy of the test run, to be broken."""
    return shutil.copytree(world / 'test', tmp_path / 'run')


@pytest.fixture
def estimate(run):
    """Write a trajectory of the run that is 0.3 m off."""
    truth = reference_trajectory(open_dataset(run))
    path = run.parent / 'estimate.tum'
    write_tum(path, Trajectory(truth.stamps_ns, truth.poses + np.array([0.3, 0, 0])))
    return path


def localize(world, run, *more, map_file=None):
    return invoke(
        'localize', map_file or world / 'map.h5', run, '--out', run.parent / 'out.tum', *more
    )


def evaluated(*arguments):
    return json.loads(done('evaluate', *arguments, '--json').stdout)


def pictures(run):
    return sorted((run / 'std_cam').iterdir())


@pytest.mark.parametrize('method', ['kbr', 'nearest'])
def test_localizing_gives_a_pose_for_every_frame_and_details_beside_it(world, tmp_path, method):
    out, test = tmp_path / 'new' / 'folder' / 'run.tum', world / 'test'
    result = done('localize', world / 'map.h5', test, '--out', out, '--method', method)
    assert result.stdout == ''
    assert 'localizing: 20 of 20' in result.stderr and 'warning' not in result.stderr
    assert '20 poses, localized at ' in result.stderr
    assert read_tum(out).stamps_ns.tolist() == open_dataset(test).stamps_ns.tolist()
    metrics = evaluated(test, out)
    assert metrics['position_rmse_m'] < 0.5 and metrics['frames'] == 20
    assert metrics['coverage_frames'] >= 15
    if method == 'kbr':
        # one image confirms no place, however like it is to one of the map
        details = out.with_suffix('.csv').read_text().splitlines()
        assert ',not localized' in details[1] and ',localized' in details[-1]
        done('localize', world / 'map.h5', test, '--out', out, '--init', 'reference')
        assert ',not localized' not in out.with_suffix('.csv').read_text()
    else:
        of_map = KernelMap.load(world / 'map.h5').poses[:, 0]
        assert np.abs(read_tum(out).poses[:, :1] - of_map).min(axis=1).max() < 1e-6


def test_why_nothing_was_localized_is_told(world, run):
    [scans] = (run / 'odom_scans').iterdir()
    lines = [line.split() for line in scans.read_text().splitlines()]
    scans.write_text(''.join(' '.join(line[:8] + lines[0][8:]) + '\n' for line in lines))
    for command in ('localize', 'report'):
        told = done(command, world / 'map.h5', run, '--out', run.parent / 'out.tum').stderr
        assert 'the odometry shows no motion' in told
    result = kbr('map', 'build', run, '--out', run.parent / 'map.h5', *FEW_WORDS)
    assert 'away from the first one, but its odometry has travelled 0.0 m' in result.stderr


def test_a_broken_image_is_skipped_and_counted_and_black_ones_are_of_no_map(world, run):
    for picture in pictures(run):
        cv2.imwrite(str(picture), np.zeros((96, 128), np.uint8))
    pictures(run)[0].write_bytes(b'\xff\xd8 this is no picture')
    told = done('localize', world / 'map.h5', run, '--out', run.parent / 'out.tum').stderr
    assert 'skipped: 1 x broken image' in told
    assert f'left out: broken image {pictures(run)[0]}: expected a whole JPEG' in told
    assert '20 poses, localized at 0 of them (0%)' in told
    assert 'warning: never localized: is this a map of that place' in told
    assert evaluated(run, run.parent / 'out.tum')['frames'] == 20
    told = done('convert', run, run.parent / 'copy', '--to', 'bag').stderr
    assert 'skipped: 1 x broken image' in told and '19 frames' in told


def test_runs_and_maps_that_cannot_be_used_are_refused(world, run):
    for image in pictures(run):
        cv2.imwrite(str(image), textured_image(1, (60, 80)))
    assert_one_line(localize(world, run), 'no image of run could be used', '60', '96')
    assert_one_line(localize(world, run, map_file=run), str(run))
    for image in pictures(run):
        image.write_bytes(b'')
    result = invoke('map', 'build', run, '--out', run.parent / 'm.h5')
    assert_one_line(result, 'no images to learn', 'expected a whole JPEG')


def test_parameters_are_set_for_localize_and_report(world, run):
    out = run.parent / 'page.html'
    report = ('report', world / 'map.h5', run, '--out', out, '--set')
    done(*report, 'image_bandwidth=0.123456')
    assert '0.123456' in out.read_text()
    for command in (report, ('map', 'build', run, '--out', run.parent / 'm.h5', '--set')):
        assert_one_line(invoke(*command, 'warp=9'), "unknown parameter 'warp'")
    assert_one_line(localize(world, run, '--set', 'image_bandwidth'), 'NAME=VALUE')


def test_an_output_that_is_an_input_or_cannot_be_written_is_refused(world, run, tmp_path):
    kernel_map = Path(shutil.copy(world / 'map.h5', tmp_path / 'map.h5'))
    (tmp_path / 'link.h5').symlink_to(kernel_map)
    done('convert', world / 'test', tmp_path / 'bag')
    (bag_file,) = (tmp_path / 'bag').glob('*.mcap')
    odometry = run / 'odom_scans' / 'odom.tdf'
    (run / 'linked.tum').symlink_to(Path(shutil.copy(odometry, tmp_path / 'elsewhere.tum')))
    files = kernel_map, bag_file, odometry, tmp_path / 'elsewhere.tum'
    before = [path.read_bytes() for path in files]
    localized, inside = ('localize', kernel_map, run, '--out'), 'is in the folder of the run'
    reported = ('report', kernel_map, run, '--out')
    for command, says in (
        ((*localized, kernel_map), 'would be overwritten'),
        ((*localized, tmp_path / 'link.h5'), 'would be overwritten'),
        ((*reported, tmp_path / 'r', '--rerun', kernel_map), 'be overwritten'),
        (('map', 'prune', kernel_map, '--max-images', 5, '--out', kernel_map), 'overwritten'),
        (('map', 'build', bag_file, '--out', bag_file), 'would be overwritten'),
        (('tune', bag_file, '--out', bag_file), 'would be overwritten'),
        ((*localized, run / 'linked.tum'), inside),
        ((*reported, odometry), inside),
        ((*localized, ''), 'a folder'),
        ((*localized, '/proc/run.tum'), '/proc'),
    ):
        result = invoke(*command)
        assert_one_line(result, says)
        assert 'describing' not in result.stderr
        assert [path.read_bytes() for path in files] == before


def test_a_full_disk_is_one_line_and_leaves_nothing(world, tmp_path):
    for command, says in (
        (('convert', world / 'test', tmp_path / 'bag', '--storage', 'mcap'), 'cannot write'),
        (('convert', world / 'test', tmp_path / 'bag', '--storage', 'sqlite3'), 'cannot write'),
        (('synth', tmp_path / 'house', '--small'), f'cannot write {tmp_path / "house"}: '),
    ):
        with full_disk():
            result = invoke(*command)
        assert_one_line(result, says)
        assert list(tmp_path.iterdir()) == []


def test_a_trajectory_on_a_full_disk_stays_with_its_own_details(world, tmp_path):
    run, folder = write_tiny_cold_run(tmp_path / 'run', frames=95), tmp_path / 'out'
    arguments = ('localize', world / 'map.h5', run, '--out', folder / 'run.tum', '--method')
    done(*arguments, 'nearest')
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    # there is room for the poses, not for the details of this method
    with full_disk():
        result = invoke(*arguments, 'dead-reckoning')
    assert_one_line(result, 'run.')
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_errors_are_printed_as_json_or_a_table_and_frames_without_reference_told(run, estimate):
    result, dataset = evaluated(run, estimate), open_dataset(run)
    assert result['position_rmse_m'] == pytest.approx(0.3, abs=1e-6)
    assert (result['within_0.25m_2deg'], result['within_0.5m_5deg']) == (0, 1)
    assert (result['frames'], result['coverage_2sigma']) == (20, None)
    table = done('evaluate', run, estimate).stdout
    for name, value in (('position_rmse_m', '0.300'), ('coverage_2sigma', '-')):
        assert re.search(rf'{name} +│ +{value} *\n', table)
    some = [replace(f, reference=None) if n in (0, 4, 5) else f for n, f in enumerate(dataset)]
    write_cold_run(run.parent / 'some', some, dataset.odometry)
    estimate.write_text(estimate.read_text() + 'no pose\n')
    result = done('evaluate', run.parent / 'some', estimate, '--json')
    assert '3 of 20 frames have no reference pose' in result.stderr
    assert 'skipped: 1 x bad line in estimate.tum' in result.stderr
    assert json.loads(result.stdout)['frames'] == 17


def test_the_tolerance_decides_which_stamps_belong_together(run, tmp_path):
    truth, late = reference_trajectory(open_dataset(run)), tmp_path / 'late.tum'
    write_tum(late, Trajectory(truth.stamps_ns + 50_000_000, truth.poses))
    found = evaluated(run, late, '--tolerance', '0.06')
    assert found['position_rmse_m'] == pytest.approx(0, abs=1e-6)
    stamp = f'{START_NS * 1e-9:.3f}'
    assert_one_line(invoke('evaluate', run, late), 'no estimate within 0.01 s', stamp)
    assert_one_line(invoke('evaluate', run, late, '--tolerance', 'inf'), '--tolerance')


def test_page_and_recording_are_written(world, tmp_path):
    pytest.importorskip('rerun', reason='rerun-sdk is not installed')
    from rerun.chunk import RrdReader

    out, recording = tmp_path / 'new' / 'page.html', tmp_path / 'run.rrd'
    given = ('report', world / 'map.h5', world / 'test', '--method', 'nearest', '--out')
    result = done(*given, out, '--rerun', recording)
    assert 'page.html' in result.stderr and 'run.rrd' in result.stderr
    assert '<title>kbr report</title>' in out.read_text()
    rows = Counter()
    for chunk in RrdReader(recording).stream():
        rows[chunk.entity_path] += chunk.num_rows
    for path in ('pose', 'belief', 'confidence', 'error/position_m', 'images/match'):
        assert rows[f'/plan/{path}'] + rows[f'/{path}'] == 20
    assert_one_line(invoke(*given, out, '--rerun', out), 'page.html: is the file of the page')
    for options in (('--rerun', 'x.rrd'), ('--set', 'delta=0.1'), ('--cameras', 'std_cam')):
        alone = ('report', world / 'map.h5', '--out', tmp_path / 'page.html', *options)
        assert_one_line(invoke(*alone), 'options of a run: expected RUN after MAP')
    assert not (tmp_path / 'page.html').exists()


def test_a_run_becomes_a_bag_that_is_the_same_run(world, tmp_path):
    copy, tracks = tmp_path / 'bag', (tmp_path / 'run.tum', tmp_path / 'bag.tum')
    assert '20 frames' in done('convert', world / 'test', copy, '--storage', 'sqlite3').stderr
    for run, out in zip((world / 'test', copy), tracks, strict=True):
        done('localize', world / 'map.h5', run, '--out', out, '--method', 'nearest')
    assert tracks[0].read_text() == tracks[1].read_text()
    assert evaluated(world / 'test', tracks[1]) == evaluated(copy, tracks[1])
    two = write_euroc(tmp_path / 'two', ('cam0', 'cam1'))
    for run, options, says in (
        (copy, ('--storage', 'mcap'), '--storage mcap: expected --to bag'),
        (two, ('--cameras', 'cam0,cam1'), 'expected one camera, got cam0, cam1'),
    ):
        result = invoke('convert', run, tmp_path / 'out', '--to', 'cold', *options)
        assert result.returncode == 2 and says in result.stderr
        assert not (tmp_path / 'out').exists()


def test_every_command_takes_traverses_and_says_what_was_made(tmp_path):
    run, built, page = tmp_path / 'day', tmp_path / 'map.h5', tmp_path / 'page.html'
    run.mkdir()
    for place in range(12):
        cv2.imwrite(str(run / f'{place:03d}.png'), wall_image(0.4 * place))
    result = invoke('map', 'build', run, '--out', built)
    assert_one_line(result, 'expected --spacing METRES', 'traverse.yaml')
    build, report = ('map', 'build', run, *FEW_WORDS, '--out', built), ('report', built, run)
    for command in (build, (*report, '--out', page)):
        assert done(*command, '--spacing', 0.4).stderr.count('odometry made from') == 1
    assert 'odometry made from' in page.read_text()


IMAGES = images(shape=(64, 80))
POSES = [('/mocap', pose_stamped(second * SECOND, float(second)), None) for second in (1, 2, 3, 4)]


def build(tmp_path, run, *options):
    out = tmp_path / 'map.h5'
    return invoke('map', 'build', run, '--out', out, '--set', 'vision.words=4', *options)


def test_topics_are_chosen_by_the_options_that_the_refusal_names(tmp_path):
    other = [('/laser', message, None) for _, message, _ in POSES]
    two = drive(topic='/wheels'), drive(topic='/eyes')
    ambiguous = bag(tmp_path / 'bag', *two, IMAGES, POSES, other)
    assert_one_line(build(tmp_path, ambiguous), '/eyes', '/wheels', '--odometry-topic')
    chosen = ['--odometry-topic', '/wheels']
    assert_one_line(build(tmp_path, ambiguous, *chosen), '/laser', '/mocap', '--reference-topic')
    chosen += ['--reference-topic', 'mocap']
    assert build(tmp_path, ambiguous, *chosen).returncode == 0
    kernel_map = tmp_path / 'map.h5'
    np.testing.assert_allclose(KernelMap.load(kernel_map).poses[:, 0], [2, 3, 4])
    trials = ('--sizes', 2, '--trials', 1, '--methods', 'dead-reckoning')
    for command in (
        ('localize', kernel_map, ambiguous, '--out', tmp_path / 'run.tum', '--method', 'nearest'),
        ('convert', ambiguous, tmp_path / 'converted'),
        ('compare', '--map', kernel_map, '--test', ambiguous, '--out', tmp_path / 'c', *trials),
    ):
        result = invoke(*command, *chosen)
        assert 'odometry on /wheels, reference poses on /mocap' in result.stderr, result.stderr


def test_known_poses_that_come_too_seldom_or_of_another_clock_are_told(tmp_path):
    seldom = [('/mocap', pose_stamped(t * SECOND // 10, t / 10), None) for t in (9, 129, 249)]
    late = [('/mocap', pose_stamped((1000 + t) * SECOND, float(t)), None) for t in (1, 2, 3, 4)]
    out = tmp_path / 'run.tum'
    out.write_text('2 0 0 0 0 0 0 1\n')
    for name, poses, told in (
        ('rare', seldom, 'known pose: reference poses come every 12.0 s and 12.0 m, expected'),
        ('late', late, 'of late lies within its reference poses: images at [2.000, 3.000] s, ref'),
    ):
        run = bag(tmp_path / name, drive(), images(2), poses)
        assert told in build(tmp_path, run).stderr
        converted = invoke('convert', run, tmp_path / f'{name} copy').stderr
        assert 'without known poses: no image of' in converted and told in converted
        assert told in invoke('evaluate', run, out).stderr


def test_a_comparison_prints_its_rows(world, tmp_path):
    given = ('--test', world / 'test', '--trials', '2', '--methods', 'nearest', '--jobs', '1')
    given += ('--sizes', '5,10', '--out', tmp_path / 'out', *FEW_WORDS)
    trained = done('compare', '--train', world / 'train', world / 'test', *given)
    rows = json.loads((tmp_path / 'out' / 'rows.json').read_text())
    assert [(row['size'], row['trials']) for row in rows] == [(5, 2), (10, 2)]
    assert [line.split()[0] for line in trained.stdout.splitlines()[2:]] == ['nearest', 'nearest']


@pytest.mark.parametrize(
    ('options', 'fragments'),
    [
        (('--sizes', '5,many'), ['5,many', 'whole numbers']),
        (('--sizes', '500'), ['size 500', '30 images', '--sizes']),
        (('--set', 'delta=0.1'), ['--map takes a finished map']),
    ],
)
def test_a_comparison_that_cannot_be_made_is_one_line(world, tmp_path, options, fragments):
    given = ('compare', '--map', world / 'map.h5', '--test', world / 'test', '--out')
    assert_one_line(invoke(*given, tmp_path / 'out', *options), *fragments)
    assert not (tmp_path / 'out').exists()


def test_a_comparison_needs_a_map_ground_truth_and_a_folder(world, run, tmp_path):
    given = ('compare', '--sizes', '5', '--methods', 'nearest', '--out')
    assert_one_line(invoke(*given, tmp_path / 'out', '--test', run), '--train', '--map')
    given = (*given[:-1], '--map', world / 'map.h5', '--test')
    assert_one_line(invoke(*given, run, '--out', world / 'map.h5'), 'map.h5 is a file: expected a')
    unknown, dataset = tmp_path / 'unknown', open_dataset(run)
    write_cold_run(unknown, [replace(f, reference=None) for f in dataset], dataset.odometry)
    result = invoke(*given, unknown, '--out', tmp_path / 'out')
    assert_one_line(result, 'unknown has no reference poses')
    assert not (tmp_path / 'out').exists()
