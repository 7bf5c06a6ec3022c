"""Commands that read runs: localize, evaluate, report, convert, compare; also bad inputs."""

from dataclasses import replace
import json
import os
from pathlib import Path
import resource
import shutil
import signal

from bag_helpers import bag, drive, images, pose_stamped, SECOND
from command import assert_one_line, done, invoke, kbr
import cv2
import h5py
from helpers import START_NS, textured_image, wall_image, write_tiny_cold_run
from kbr_localization.datasets import open_dataset
from kbr_localization.datasets.cold import write_cold_run
from kbr_localization.evaluation import read_tum, reference_trajectory, write_tum
from kbr_localization.evaluation.tum import write_detailed
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.trajectory import Trajectory
import numpy as np
from public_datasets import write_euroc, write_tum_rgbd
import pytest


@pytest.fixture(scope='module')
def world(tmp_path_factory):
    """Two runs and a map of the first."""
    folder = tmp_path_factory.mktemp('world')
    write_tiny_cold_run(folder / 'train', frames=30)
    write_tiny_cold_run(folder / 'test', frames=20)
    done('map', 'build', '--out', folder / 'map.h5', folder / 'train')
    return folder


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
    result = kbr('localize', world / 'map.h5', test, '--out', out, '--method', method)
    assert (result.returncode, result.stdout) == (0, ''), result.stderr
    assert 'localizing: 20 of 20' in result.stderr and 'warning' not in result.stderr
    assert '20 poses, localized at ' in result.stderr
    assert read_tum(out).stamps_ns.tolist() == open_dataset(test).stamps_ns.tolist()
    metrics = evaluated(test, out, '--map', world / 'map.h5')
    assert metrics['position_rmse_m'] < 0.5
    assert metrics['frames'] == metrics['recall_frames'] == 20
    assert metrics['coverage_frames'] >= 15
    assert metrics['recall_at_1'] <= metrics['recall_at_5'] <= metrics['recall_at_10'] == 1
    if method == 'kbr':
        # one image confirms no place, however like it is to one of the map
        details = out.with_suffix('.csv').read_text().splitlines()
        assert ',localized' not in details[1] and ',localized' in details[-1]


def test_why_nothing_was_localized_is_told(world, run):
    [scans] = (run / 'odom_scans').iterdir()
    moving = scans.read_text()
    lines = [line.split() for line in moving.splitlines()]
    scans.write_text(''.join(' '.join(line[:8] + lines[0][8:]) + '\n' for line in lines))
    for command in ('localize', 'report'):
        told = done(command, world / 'map.h5', run, '--out', run.parent / 'out.tum').stderr
        assert 'by its odometry the robot stood still' in told
        assert 'is this a map of that place' not in told
    result = kbr('map', 'build', run, '--out', run.parent / 'map.h5')
    assert 'of run go 3.8 m away from the first one, but its odometry has 0.0 m' in result.stderr
    scans.write_text(moving)
    for picture in pictures(run):
        cv2.imwrite(str(picture), np.zeros((96, 128), np.uint8))
    told = localize(world, run).stderr
    assert '20 poses, localized at 0 of them (0%)' in told
    assert 'warning: never localized: is this a map of that place' in told


def test_a_broken_image_is_skipped_and_counted(world, run):
    pictures(run)[0].write_bytes(b'\xff\xd8 this is no picture')
    result = localize(world, run)
    assert result.returncode == 0, result.stderr
    assert 'skipped: 1 x broken image' in result.stderr
    assert f'left out: broken image {pictures(run)[0]}: expected a whole JPEG' in result.stderr
    metrics = done('evaluate', run, run.parent / 'out.tum', '--json', '--map', world / 'map.h5')
    assert '1 of 20 images cannot be used' in metrics.stderr
    found = json.loads(metrics.stdout)
    assert (found['frames'], found['recall_frames']) == (20, 19)


def test_runs_of_unusable_images_are_refused(world, run):
    for image in pictures(run):
        cv2.imwrite(str(image), textured_image(1, (60, 80)))
    assert_one_line(localize(world, run), 'no image of run could be used', '60', '96')
    for image in pictures(run):
        image.write_bytes(b'')
    assert_one_line(localize(world, run), 'no image of run could be used')
    result = invoke('map', 'build', run, '--out', run.parent / 'm.h5')
    assert_one_line(result, 'no images to learn', 'expected a whole JPEG')


def test_a_map_that_is_no_map(world, run):
    foreign = run.parent / 'foreign.h5'
    foreign.write_text('hello')
    assert_one_line(localize(world, run, map_file=foreign), 'foreign.h5')
    with h5py.File(foreign, 'w') as file:
        file['data'] = [1, 2, 3]
    assert_one_line(localize(world, run, map_file=foreign), 'foreign.h5')
    assert_one_line(localize(world, run, map_file=run), str(run))
    odd = shutil.copy(world / 'map.h5', run.parent / 'odd.h5')
    with h5py.File(odd, 'r+') as file:
        file['filter'].attrs['image_bandwidth'] = -1.0
    assert_one_line(localize(world, run, map_file=odd), 'odd.h5', "'image_bandwidth'", '-1.0')


def test_parameters_are_set_for_localize_and_report(world, run):
    out = run.parent / 'page.html'
    report = ('report', world / 'map.h5', run, '--out', out, '--set')
    done(*report, 'image_bandwidth=0.123456')
    assert '0.123456' in out.read_text()
    for bad, says in (('warp=9', "unknown parameter 'warp'"), ('image_bandwidth', 'NAME=VALUE')):
        assert_one_line(invoke(*report, bad), says)
        assert_one_line(localize(world, run, '--set', bad), says)
        built = invoke('map', 'build', run, '--out', run.parent / 'm.h5', '--set', bad)
        assert_one_line(built, says)


def test_an_output_that_is_an_input_or_cannot_be_written_is_refused(world, run, tmp_path):
    kernel_map = Path(shutil.copy(world / 'map.h5', tmp_path / 'map.h5'))
    (tmp_path / 'link.h5').symlink_to(kernel_map)
    (tmp_path / 'file').touch()
    done('convert', world / 'test', tmp_path / 'bag')
    (bag_file,) = (tmp_path / 'bag').glob('*.mcap')
    odometry = run / 'odom_scans' / 'odom.tdf'
    (run / 'linked.tum').symlink_to(Path(shutil.copy(odometry, tmp_path / 'elsewhere.tum')))
    (tmp_path / 'link.tum').symlink_to(odometry)
    files = kernel_map, bag_file, odometry, tmp_path / 'elsewhere.tum'
    before = [path.read_bytes() for path in files]
    localized, inside = ('localize', kernel_map, run, '--out'), 'is in the folder of the run'
    for command, says in (
        ((*localized, kernel_map), 'would be overwritten'),
        ((*localized, tmp_path / 'link.h5'), 'would be overwritten'),
        (('report', *localized[1:], kernel_map), 'would be overwritten'),
        (('report', *localized[1:], tmp_path / 'r', '--rerun', kernel_map), 'be overwritten'),
        (('map', 'prune', kernel_map, '--max-images', 5, '--out', kernel_map), 'overwritten'),
        (('map', 'build', bag_file, '--out', bag_file), 'would be overwritten'),
        (('tune', bag_file, '--out', bag_file), 'would be overwritten'),
        ((*localized, odometry), inside),
        ((*localized, run / 'linked.tum'), inside),
        ((*localized, tmp_path / 'link.tum'), inside),
        (('report', *localized[1:], odometry), inside),
        (('map', 'build', run, '--out', odometry), inside),
        ((*localized, '.'), 'a folder'),
        ((*localized, ''), 'a folder'),
        ((*localized, '/proc/run.tum'), '/proc'),
        (('map', 'build', run, '--out', tmp_path / 'file' / 'map.h5'), 'file'),
        (('map', 'build', run, '--out', tmp_path), 'is a folder'),
    ):
        result = invoke(*command)
        assert_one_line(result, says)
        assert 'describing' not in result.stderr
        assert [path.read_bytes() for path in files] == before


def test_details_replace_those_of_an_earlier_trajectory_and_nothing_else(world, tmp_path):
    command = ('localize', world / 'map.h5', world / 'test', '--method', 'nearest', '--out')
    for _ in range(2):
        done(*command, tmp_path / 'run.tum')
    (tmp_path / 'costs.csv').write_text('what,euros\n')
    assert_one_line(invoke(*command, tmp_path / 'costs.tum'), 'costs.csv', '--out')
    assert (tmp_path / 'costs.csv').read_text() == 'what,euros\n'
    assert not (tmp_path / 'costs.tum').exists()


def full_disk():
    """No file of this process may have more than 8 kB; that is refused, and no signal."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))


# half a file of bytecode would break the next process
DISK_IS_FULL = {'preexec_fn': full_disk, 'env': os.environ | {'PYTHONDONTWRITEBYTECODE': '1'}}


def test_a_full_disk_is_one_line_and_leaves_nothing(world, tmp_path):
    for command, says in (
        (('convert', world / 'test', tmp_path / 'bag', '--storage', 'mcap'), 'cannot write'),
        (('convert', world / 'test', tmp_path / 'bag', '--storage', 'sqlite3'), 'cannot write'),
        (('synth', tmp_path / 'house'), f'cannot write {tmp_path / "house"}: '),
    ):
        assert_one_line(kbr(*command, **DISK_IS_FULL), says)
        assert list(tmp_path.iterdir()) == []


def test_a_trajectory_on_a_full_disk_stays_with_its_own_details(world, tmp_path):
    run, folder = write_tiny_cold_run(tmp_path / 'run', frames=95), tmp_path / 'out'
    arguments = ('localize', world / 'map.h5', run, '--out', folder / 'run.tum', '--method')
    done(*arguments, 'nearest')
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    # there is room for the poses, not for the details of this method
    assert_one_line(kbr(*arguments, 'dead-reckoning', **DISK_IS_FULL), 'run.')
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_json_is_all_that_stands_on_stdout_and_the_table_shows_the_same(run, estimate):
    result = evaluated(run, estimate)
    assert result['position_rmse_m'] == pytest.approx(0.3, abs=1e-6)
    assert (result['within_0.25m_2deg'], result['within_0.5m_5deg']) == (0, 1)
    assert (result['frames'], result['coverage_2sigma']) == (20, None)
    output = done('evaluate', run, estimate).stdout
    rows = dict(line.split('│') for line in output.splitlines() if '│' in line)
    numbers = {name.strip(): value.strip() for name, value in rows.items()}
    assert (numbers['position_rmse_m'], numbers['coverage_2sigma']) == ('0.300', '-')


def test_frames_without_a_reference_pose_are_told(run, estimate):
    frames = list(open_dataset(run))
    for number in (0, 4, 5):
        frames[number] = replace(frames[number], reference=None)
    write_cold_run(run.parent / 'some', frames, open_dataset(run).odometry)
    result = done('evaluate', run.parent / 'some', estimate, '--json')
    assert '3 of 20 frames have no reference pose' in result.stderr
    assert json.loads(result.stdout)['frames'] == 17


def test_the_tolerance_decides_which_stamps_belong_together(run, tmp_path):
    truth, late = reference_trajectory(open_dataset(run)), tmp_path / 'late.tum'
    write_tum(late, Trajectory(truth.stamps_ns + 50_000_000, truth.poses))
    done('evaluate', run, late, '--tolerance', '1e300')
    endless = invoke('evaluate', run, late, '--tolerance', 'inf')
    assert_one_line(endless, '--tolerance inf: expected a finite number of seconds')
    found = evaluated(run, late, '--tolerance', '0.06')
    assert found['position_rmse_m'] == pytest.approx(0, abs=1e-6)
    assert_one_line(
        invoke('evaluate', run, late), 'no estimate within 0.01 s', f'{START_NS * 1e-9:.3f}'
    )


def test_details_beside_the_trajectory_give_the_coverage(run, estimate):
    track, count = read_tum(estimate), 20
    detailed = replace(
        track,
        covariances=np.tile(np.diag([0.2**2, 0.2**2, 0.1**2]), (count, 1, 1)),
        confidences=np.ones(count),
        statuses=('localized',) * count,
        updated=np.ones(count, dtype=bool),
        seconds=np.ones(count),
    )
    write_detailed(estimate, detailed)
    result = evaluated(run, estimate)
    # 0.3 m is 1.5 standard deviations; the ellipse that holds 68.3% reaches to 1.515
    assert (result['coverage_1sigma'], result['coverage_2sigma']) == (1.0, 1.0)
    assert result['heading_coverage_1sigma'] == 1.0
    # a trajectory named .csv is not taken for its own details
    lines = [line.replace(' ', ',') for line in estimate.read_text().splitlines()[1:]]
    path = estimate.with_name('other.csv')
    path.write_text('\n'.join(lines))
    assert evaluated(run, path)['position_rmse_m'] == pytest.approx(0.3, abs=1e-6)


def test_a_recall_that_cannot_be_told_hides_nothing_else(world, run, estimate, tmp_path):
    built = KernelMap.load(world / 'map.h5')
    replace(built, poses=built.poses + np.array([50.0, 0.0, 0.0])).save(tmp_path / 'far.h5')
    result = done('evaluate', run, estimate, '--map', tmp_path / 'far.h5', '--json')
    assert 'recall: no map image lies within 1 m' in result.stderr
    assert json.loads(result.stdout)['frames'] == 20


def test_page_and_recording_are_written(world, tmp_path):
    pytest.importorskip('rerun', reason='rerun-sdk is not installed')
    out, recording = tmp_path / 'new' / 'page.html', tmp_path / 'run.rrd'
    given = ('report', world / 'map.h5', world / 'test', '--method', 'nearest', '--out')
    result = done(*given, out, '--rerun', recording)
    assert 'page.html' in result.stderr and 'run.rrd' in result.stderr
    assert '<title>kbr report</title>' in out.read_text()
    assert recording.stat().st_size > 10_000
    (tmp_path / 'link.html').symlink_to('page.html')
    refused = invoke(*given, tmp_path / 'page.html', '--rerun', tmp_path / 'link.html')
    assert_one_line(refused, 'link.html: is the file of the page')
    for options in (('--rerun', 'x.rrd'), ('--set', 'delta=0.1'), ('--cameras', 'std_cam')):
        alone = ('report', world / 'map.h5', '--out', tmp_path / 'page.html', *options)
        assert_one_line(invoke(*alone), 'options of a run: expected RUN beside MAP')
    assert not (tmp_path / 'page.html').exists()


@pytest.mark.parametrize('storage', ['mcap', 'sqlite3'])
def test_a_run_becomes_a_bag_that_is_the_same_run(world, tmp_path, storage):
    copy = tmp_path / 'bag'
    assert '20 frames' in done('convert', world / 'test', copy, '--storage', storage).stderr
    for run, out in ((world / 'test', tmp_path / 'run.tum'), (copy, tmp_path / 'bag.tum')):
        done('localize', world / 'map.h5', run, '--out', out, '--method', 'nearest')
    assert (tmp_path / 'run.tum').read_text() == (tmp_path / 'bag.tum').read_text()
    found = [evaluated(run, tmp_path / 'bag.tum') for run in (world / 'test', copy)]
    assert found[0] == found[1]
    words = ('convert', world / 'test', tmp_path / 'out', '--to', 'cold', '--storage', storage)
    assert_one_line(invoke(*words), f'--storage {storage}: expected --to bag')
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('to', ['bag', 'cold'])
def test_broken_images_are_left_out_of_a_conversion_and_counted(tmp_path, caplog, to):
    run = write_tiny_cold_run(tmp_path / 'run')
    files = pictures(run)
    png = cv2.imencode('.png', textured_image(0))[1].tobytes()
    # nothing of an image, and half of one
    for file, data in zip(files[2:5], (b'', files[3].read_bytes()[:700], png[:-20]), strict=True):
        file.write_bytes(data)
    told = ['kbr: skipped: 3 x broken image', f'kbr: {tmp_path / "out"}: 5 frames']
    assert done('convert', run, tmp_path / 'out', '--to', to).stderr.splitlines() == told
    assert caplog.messages[0].startswith(f'{files[2].name} left out: broken image')
    assert len(caplog.messages) == 1
    assert len(open_dataset(tmp_path / 'out')) == 5
    for file in files:
        file.write_bytes(b'')
    result = invoke('convert', run, tmp_path / 'none', '--to', to)
    assert (result.returncode, (tmp_path / 'none').exists()) == (2, False)


MADE = 'odometry made from the truth'


def made(result):
    """Return how often it was told that the odometry was made."""
    assert result.returncode == 0, result.stderr
    return sum(MADE in line for line in result.stderr.splitlines())


def test_every_command_takes_traverses_and_says_what_was_made(tmp_path):
    day, night = tmp_path / 'day', tmp_path / 'night'
    for folder in (day, night):
        folder.mkdir()
        for place in range(12):
            cv2.imwrite(str(folder / f'{place:03d}.png'), wall_image(0.4 * place))
    result = invoke('map', 'build', day, '--out', tmp_path / 'map.h5')
    assert_one_line(result, 'expected --spacing METRES', 'traverse.yaml')
    spacing = ('--spacing', 0.4)
    built, tum, page = tmp_path / 'map.h5', tmp_path / 'out.tum', tmp_path / 'page.html'
    assert made(invoke('map', 'build', day, *spacing, '--out', built)) == 1
    assert made(invoke('localize', built, night, *spacing, '--out', tum)) == 1
    assert made(invoke('evaluate', night, tum, *spacing)) == 1
    assert made(invoke('report', built, night, *spacing, '--out', page)) == 1
    assert MADE in page.read_text()
    out = tmp_path / 'compared'
    options = ('--sizes', 8, '--trials', 1, '--methods', 'nearest', '--jobs', 1, *spacing)
    compared = kbr('compare', '--train', day, '--test', night, '--out', out, *options)
    assert made(compared) == 2
    assert MADE in (out / 'comparison.md').read_text()


@pytest.mark.parametrize(('to', 'files'), [('cold', 'std_cam/*'), ('bag', '*.mcap')])
def test_a_conversion_keeps_the_note(tmp_path, to, files):
    run = write_tum_rgbd(tmp_path / 'data')
    assert made(invoke('convert', run, tmp_path / 'out', '--to', to)) == 1
    assert list((tmp_path / 'out').glob(files))
    assert MADE in (tmp_path / 'out' / 'kbr_notes.txt').read_text()
    assert made(invoke('convert', tmp_path / 'out', tmp_path / 'again')) == 1
    run = write_euroc(tmp_path / 'two', ('cam0', 'cam1'))
    several = ('convert', run, tmp_path / 'none', '--to', 'cold', '--cameras', 'cam0,cam1')
    result = invoke(*several)
    assert result.returncode == 2 and 'expected one camera, got cam0, cam1' in result.stderr
    assert not (tmp_path / 'none').exists()


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
    poses = KernelMap.load(tmp_path / 'map.h5').poses
    np.testing.assert_allclose(poses[:, 0], [2, 3, 4])
    out, kernel_map = tmp_path / 'run.tum', tmp_path / 'map.h5'
    trials = ('--sizes', 2, '--trials', 1, '--methods', 'dead-reckoning')
    words = ('--trials', 1, '--methods', 'kbr', '--set', 'vision.words=4')
    for command in (
        ('localize', kernel_map, ambiguous, '--out', out, '--method', 'dead-reckoning'),
        ('evaluate', ambiguous, out),
        ('report', kernel_map, ambiguous, '--out', tmp_path / 'page', '--method', 'nearest'),
        ('convert', ambiguous, tmp_path / 'converted'),
        ('tune', ambiguous, '--out', tmp_path / 't.h5', *words),
        ('compare', '--map', kernel_map, '--test', ambiguous, '--out', tmp_path / 'c', *trials),
    ):
        result = invoke(*command, *chosen)
        assert 'odometry on /wheels, reference poses on /mocap' in result.stderr, result.stderr
    fused = bag(tmp_path / 'fused', drive(), drive(topic='/odometry/filtered'), IMAGES)
    result = build(tmp_path, fused)
    assert result.returncode == 2
    assert 'no reference poses (in the frame of the odometry: /odometry/filtered' in result.stderr
    assert build(tmp_path, fused, '--reference-topic', '/odometry/filtered').returncode == 0


def test_known_poses_that_come_too_seldom_or_of_another_clock_are_told(tmp_path):
    seldom = [('/mocap', pose_stamped(t * SECOND // 2, float(t)), None) for t in (3, 7, 11)]
    run, out = bag(tmp_path / 'bag', drive(), images(2), seldom), tmp_path / 'run.tum'
    out.write_text('2 0 0 0 0 0 0 1\n')
    told = (
        'no image of bag has a known pose: reference poses come every 2.0 s and 4.0 m, and '
        'between two that are more than 1 s and 0.3 m apart nothing is interpolated'
    )
    assert told in build(tmp_path, run).stderr
    assert f'without known poses: {told}' in invoke('convert', run, tmp_path / 'copy').stderr
    assert told in invoke('evaluate', run, out).stderr
    late = [('/mocap', pose_stamped((1000 + t) * SECOND, float(t)), None) for t in (1, 2, 3, 4)]
    run, kernel_map = bag(tmp_path / 'late', drive(), IMAGES, late), tmp_path / 'map.h5'
    assert build(tmp_path, bag(tmp_path / 'good', drive(), IMAGES, POSES)).returncode == 0
    for command in (
        ('map', 'build', run, '--out', tmp_path / 'late.h5'),
        ('map', 'extend', kernel_map, run, '--poses', 'known', '--out', tmp_path / 'late.h5'),
        ('evaluate', run, out),
        ('compare', '--map', kernel_map, '--test', run, '--sizes', 2, '--out', tmp_path / 'all'),
    ):
        result = invoke(*command)
        assert result.returncode == 2
        assert result.stderr.splitlines()[-1] == (
            'kbr: no image of late lies within its reference poses: images at [2.000, 4.000] s, '
            'reference poses at [1001.000, 1004.000] s: are their stamps of one clock?'
        )


def test_a_comparison_prints_its_rows(world, tmp_path):
    given = ('--test', world / 'test', '--trials', '2', '--methods', 'nearest', '--jobs', '1')
    trained = kbr(
        'compare', '--train', world / 'train', world / 'test', *given, '--sizes', '5,10',
        '--out', tmp_path / 'out', '--json',
    )  # fmt: skip
    rows = json.loads(trained.stdout)
    assert [(row['size'], row['trials']) for row in rows] == [(5, 2), (10, 2)]
    assert (tmp_path / 'out' / 'comparison.png').is_file()
    assert all(row['position_rmse_m_sd'] >= 0.0 for row in rows)
    # the usual sizes are those that a map has
    done('map', 'build', world / 'train', world / 'test', '--out', tmp_path / 'map.h5')
    on_map = ('compare', '--map', tmp_path / 'map.h5', *given, '--json', '--out')
    assert [row['size'] for row in json.loads(done(*on_map, tmp_path / 'two').stdout)] == [50]


@pytest.mark.parametrize(
    ('options', 'fragments'),
    [
        (('--sizes', '5,many'), ['5,many', 'whole numbers']),
        (('--sizes', '500'), ['size 500', '30 images', '--sizes']),
        ((), ['size 50', '30 images', '--sizes']),
        (('--sizes', '5', '--methods', 'magic'), ["'magic'", 'nearest']),
        (('--trials', '0'), ['--trials']),
        (('--set', 'delta=0.1'), ['--map takes the map as it is']),
        (('--train', 'anything'), ['--map takes the map as it is']),
    ],
)
def test_a_comparison_that_cannot_be_made_is_one_line(world, tmp_path, options, fragments):
    given = ('compare', '--map', world / 'map.h5', '--test', world / 'test', '--out')
    assert_one_line(invoke(*given, tmp_path / 'out', *options), *fragments)
    assert not (tmp_path / 'out').exists()
    result = invoke(*given, world / 'map.h5', '--sizes', '5', '--methods', 'nearest')
    assert_one_line(result, 'map.h5 is a file: expected a folder')


def test_a_comparison_needs_a_map_and_ground_truth(world, run, tmp_path):
    given = ('compare', '--test', run, '--sizes', '5', '--methods', 'nearest', '--out')
    assert_one_line(invoke(*given, tmp_path / 'out'), '--train', '--map')
    frames = [replace(frame, reference=None) for frame in open_dataset(run)]
    write_cold_run(tmp_path / 'c', frames, open_dataset(run).odometry)
    unknown = ('compare', '--map', world / 'map.h5', '--test', tmp_path / 'c', *given[3:])
    assert_one_line(invoke(*unknown, tmp_path / 'out'), 'c has no reference poses')
    assert not (tmp_path / 'out').exists()
