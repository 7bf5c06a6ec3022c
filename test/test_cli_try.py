"""`kbr try`: the figures are those of map build, localize and evaluate on the same split."""

from dataclasses import replace
import json

from bag_helpers import bag, drive, images
from command import assert_one_line, done, invoke
from helpers import write_tiny_cold_run
from kbr_localization.datasets import OdometryTrack, open_dataset
from kbr_localization.datasets.cold import write_cold_run
from kbr_localization.evaluation import trial
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.trajectory import Trajectory
from mapping_helpers import RingRun, ROUND
import numpy as np
import pytest


@pytest.fixture(scope='module')
def ring(tmp_path_factory):
    """Drive round a ring, and a third of it again, with known poses."""
    folder = tmp_path_factory.mktemp('ring')
    run = RingRun(metres=1.35 * ROUND, known=(1.0, 2.0, 0.5))
    write_cold_run(folder / 'run', run, run.odometry)
    return folder


@pytest.fixture(scope='module')
def tried(ring):
    result = done('try', ring / 'run', '--out', ring / 'try/report.html', '--json')
    return json.loads(result.stdout), result.stderr


@pytest.fixture(scope='module')
def ring_map():
    return build_map([RingRun(metres=1.1 * ROUND, known=(1.0, 2.0, 0.5))])


def page_of(path):
    data = path.read_text().partition('<script type="application/json" id="data">')[2]
    return json.loads(data.partition('</script>')[0])


def test_the_figures_are_those_of_the_single_commands(ring, tried):
    found, _ = tried
    whole, cut = open_dataset(ring / 'run'), found['map_images']
    # the second round begins where the first ended
    assert cut == pytest.approx(len(whole) / 1.35, abs=8)
    frames, end = list(whole), cut + found['test_frames']
    parts = trial.part_of(whole, frames[:cut]), trial.part_of(whole, frames[cut:end])
    for name, part in zip(('map', 'test'), parts, strict=True):
        write_cold_run(ring / name, part, part.odometry)
    done('map', 'build', ring / 'map', '--out', ring / 'map.h5')
    done('localize', ring / 'map.h5', ring / 'test', '--out', ring / 'test.tum')
    result = done('evaluate', ring / 'test', ring / 'test.tum', '--json')
    expected = json.loads(result.stdout)
    assert len(KernelMap.load(ring / 'map.h5')) == cut
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert expected['coverage_frames'] > 0 and found['localized'] > 0.5


def test_the_page_shows_the_split_the_figures_and_what_to_do(ring, tried):
    found, told = tried
    page = page_of(ring / 'try/report.html')
    median = pytest.approx(found['position_median_m'], rel=1e-5)
    assert page['tiles'][2] == ['median error', median, 'm']
    assert {'Topics', 'Stamps', 'Odometry errors, corrected', 'Images'} == set(page['facts'])
    assert 'against known poses' in page['subtitle'] and '% of the drive' in page['subtitle']
    assert page['verdict'] == found['verdict']
    assert page['plans'][0]['layers'][1]['label'] == 'known poses'
    # most of the ring was driven once, all of it in one direction only
    again, other = page['advice'][:2]
    assert again.startswith('2') and 'm of the map were not tested' in again
    assert 'driven in one direction only' in other and '1. ' in told
    marks = page['plans'][0]['layers'][-1]['points']
    assert {number for _, _, number in marks} >= {1, 2}


def test_without_known_poses_the_drive_itself_gives_them(tmp_path):
    run = RingRun(metres=1.6 * ROUND)
    frames = (replace(frame, reference=None) for frame in run)
    write_cold_run(tmp_path / 'run', frames, run.odometry)
    page = tmp_path / 'r.html'
    found = json.loads(done('try', tmp_path / 'run', '--out', page, '--json').stdout)
    assert found['position_median_m'] < 0.5 and found['localized'] > 0.3
    assert 'against the pose graph of all images' in page_of(page)['subtitle']


def test_of_two_drives_one_is_mapped_and_the_other_localized(tmp_path):
    for name, metres, seed in (('run', 0.6, 3), ('second', 0.4, 4)):
        second = RingRun(metres=metres * ROUND, begin=5.0, known=(1.0, 2.0, 0.5), seed=seed)
        write_cold_run(tmp_path / name, second, second.odometry)
    drives, out = (tmp_path / 'run', tmp_path / 'second'), ('--out', tmp_path / 'r.html')
    assert_one_line(invoke('try', *drives, '--twice', drives[0], *out), 'drop one')
    sorted((tmp_path / 'run/std_cam').iterdir())[9].write_bytes(b'no image')
    result = invoke('try', *drives, *out)
    assert 'kbr: skipped: 1 x broken image' in result.stderr
    told = result.stdout.splitlines()
    assert told[0].startswith(('Yes: ', 'Partly: ', 'Not yet: '))
    assert f'{drives[1]} on a map of {drives[0]}' in told[1]
    found = json.loads(done('try', drives[0], '--twice', drives[1], *out, '--json').stdout)
    assert found['test_frames'] == len(second) and found['position_median_m'] < 0.3
    # both are looked at, and nothing is said of a part of the drive
    page = page_of(tmp_path / 'r.html')
    assert 'm (another drive)' in page['subtitle'] and found['test_of_drive'] is None
    assert {'Stamps of run', 'Images of second'} <= set(page['facts'])
    assert page['facts']['Stamps of run'] == page['facts']['Stamps of second']
    assert [line.split('│')[0].strip() for line in told[3:]] == [t[0] for t in page['tiles']]


NONE = 'no answer called localized was more than 1 m off; localized in'


@pytest.mark.parametrize(
    ('localized', 'called', 'wrong', 'says'),
    [
        (0.8, 80, 0, f'Yes: {NONE} 80% of'),
        (0.79, 79, 0, f'Partly: {NONE} 79%'),
        (0.9, 100, 5, 'Partly: 5 of 100 answers called localized were more than 1 m off; '),
        (0.9, 100, 6, 'Not yet: 6 of 100 answers'),
        (0.49, 49, 0, f'Not yet: {NONE} 49%'),
        (0.0, 0, 0, 'Not yet: the robot was never localized.'),
    ],
)
def test_the_verdict_follows_from_the_share_and_the_wrong_answers(localized, called, wrong, says):
    figures = {'localized': localized, 'called_localized': called, 'localized_after_m': 10.7}
    found = trial.verdict(figures | {'called_localized_1m_off': wrong})
    assert found.startswith(says)
    assert not called or found.endswith(' of the frames, the first time after 10.7 m.')


def test_drives_that_cannot_be_tested_are_one_line_and_leave_nothing(tmp_path):
    straight = write_tiny_cold_run(tmp_path / 'straight', frames=40)
    standing = RingRun(metres=0.3, known=(0.0, 0.0, 0.0))
    write_cold_run(tmp_path / 'standing', standing, standing.odometry)
    (file,) = bag(tmp_path / 'cut', drive(), images()).glob('*.mcap')
    file.write_bytes(file.read_bytes()[:-600])
    for name, says in (
        (straight, 'no place is passed twice in the same direction'),
        ('standing', 'the odometry shows no motion: 0.00 m over'),
        ('cut', '`mcap recover`'),
    ):
        result = invoke('try', tmp_path / name, '--out', tmp_path / 'out/report.html')
        assert_one_line(result, says)
        assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('known', [True, False])
@pytest.mark.parametrize(
    ('change', 'says'),
    [
        (lambda p: p * [1, 1, 1], 'is this a map of that place, made with that camera?'),
        (lambda p: p * [1, -1, -1], 'its odometry turns to the other side: is z of its frame'),
        (lambda p: p @ [[0, 1, 0], [-1, 0, 0], [0, 0, 1]], 'has its x axis turned by 90 degrees'),
        (lambda p: p * [1, 1, 0], 'has another heading than its motion: is it never set'),
        (lambda p: p * [1, 1, 180 / np.pi], 'than its motion: is it never set, or in degrees?'),
    ],
)
def test_an_odometry_of_the_wrong_kind_is_named_where_few_frames_are_localized(
    ring_map, change, says, known
):
    run = RingRun(metres=0.9 * ROUND, begin=3.0, known=(1.0, 2.0, 0.5) if known else None, seed=4)
    run.odometry = OdometryTrack(run.odometry.stamps_ns, change(run.odometry.poses))
    stamps, statuses = run.odometry.stamps_ns, ('uncertain',) * len(run)
    lost = Trajectory(stamps, run.true, statuses=statuses)
    # every fifth image is of another place
    run.ways[::5] += 20.0
    assert says in trial.why_not_localized(ring_map, run, lost)
    found = Trajectory(stamps, run.true, statuses=('localized',) * len(run))
    assert trial.why_not_localized(ring_map, run, found) == ''


@pytest.mark.parametrize(
    ('fault', 'says'),
    [
        ('none', ''),
        ('frozen', 'the images change while the odometry stands still: see whether its driver'),
        ('spinning', 'the images do not change as the odometry moves: see whether the wheels'),
    ],
)
def test_images_and_odometry_that_contradict_each_other_are_told(ring_map, tmp_path, fault, says):
    run = RingRun(metres=0.9 * ROUND, begin=3.0, known=(1.0, 2.0, 0.5), seed=4)
    half, track = len(run) // 2, run.odometry
    if fault == 'frozen':
        poses = np.where(np.arange(len(run))[:, np.newaxis] < half, track.poses, track.poses[half])
        run.odometry = OdometryTrack(track.stamps_ns, poses)
    elif fault == 'spinning':  # the robot is blocked
        run.ways[half:], run.true[half:] = run.ways[half], run.true[half]
    write_cold_run(tmp_path / 'run', run, run.odometry)
    ring_map.save(tmp_path / 'map.h5')
    out = tmp_path / 'run.tum'
    told = invoke('localize', tmp_path / 'map.h5', tmp_path / 'run', '--out', out).stderr
    assert says in told and ('warning: at ' in told) == bool(says)
    errors = json.loads(invoke('evaluate', tmp_path / 'run', out, '--json').stdout)
    assert (errors['wrong_called_localized'] or 0.0) < 0.1


def test_the_likeliest_topics_are_taken_and_the_others_named(tmp_path):
    depth = images(3, '/depth/image_raw')
    topics = (drive(), drive(topic='/wheels'), images(3, '/front/color'), depth)
    run = open_dataset(bag(tmp_path / 'bag', *topics), guess=True)
    assert run.sources[:2] == ('images on /front/color', 'odometry on /odom')
    assert [other.split()[0] for other in run.others] == ['/depth/image_raw', '/wheels']


def test_a_robot_has_come_back_when_it_was_away():
    out = np.column_stack([np.arange(0, 8, 0.5), np.zeros((16, 2))])
    stands = np.tile(out[-1], (4, 1))
    turned = out[::-1] + np.array([0.0, 0.0, np.pi])
    seen = trial.first_visits(np.concatenate([out, stands, turned, out]))
    assert (seen[:36] == 52).all() and seen[36:].tolist()[:4] == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ('first_seen', 'stretch'),
    [
        ([9, 9, 9, 0, 1, 2, 9, 9, 9], (3, 6)),
        # what was not seen before counts against a stretch
        ([10, 10, 10, 10, 0, 1, 10, 10, 2, 3], (4, 6)),
        # a stretch that only comes back to itself is no test of what was mapped before it
        ([9, 9, 0, 1, 9, 9, 4, 5, 2], (6, 9)),
    ],
)
def test_the_test_is_the_stretch_with_most_frames_at_mapped_places(first_seen, stretch):
    assert trial.best_stretch(np.array(first_seen)) == stretch
