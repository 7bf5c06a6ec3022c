"""What the benchmarks share: figures and sections that they write one beside the other."""

from dataclasses import replace
import importlib
from importlib.util import find_spec
from pathlib import Path
import re
import subprocess
import sys

from helpers import write_tiny_cold_run
from kbr_localization import se2
from kbr_localization.datasets import open_dataset
from kbr_localization.localization.map.build import build_map
import numpy as np
import pytest

if not (Path(__file__).parents[1] / 'benchmarks').is_dir():
    pytest.skip('the folder benchmarks/ is not installed', allow_module_level=True)

results = importlib.import_module('benchmarks.results')


BENCHMARKS = sorted(
    path.stem
    for path in Path(results.__file__).parent.glob('*.py')
    if '__main__' in path.read_text(encoding='utf-8')
)


SHOW_HELP = """
import contextlib, io, runpy, sys

for name in {names!r}:
    sys.argv = [name, '--help']
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        runpy.run_module('benchmarks.' + name, run_name='__main__', alter_sys=True)
    assert out.getvalue().startswith('usage: '), name
"""


def test_help_is_all_that_help_does():
    with_ros = find_spec('rclpy') is not None
    names = [name for name in BENCHMARKS if with_ros or name != 'latency']
    command = [sys.executable, '-c', SHOW_HELP.format(names=names)]  # imports take a second
    subprocess.run(command, check=True, cwd=Path(results.__file__).parents[1])


def test_a_section_is_replaced_where_it_stands(tmp_path):
    path = tmp_path / 'README.md'
    results.publish('## Scale\n\nold', 'scale', path)
    results.publish('## Speed\n\n| a |', 'speed', path)
    results.publish('## Scale\n\nnew', 'scale', path)
    page = path.read_text()
    assert page.startswith('# Speed and memory')
    assert page.index('## Scale\n\nnew') < page.index('## Speed\n\n| a |')
    assert 'old' not in page
    measured = r'\nMeasured with (commit [0-9a-f]{7,} of [0-9-]{10}|version [0-9.]+)\.\n'
    assert len(re.findall(measured, page)) == 2


def test_functions_are_timed_in_turn():
    now = [0.0]

    def taking(seconds):
        return lambda: now.__setitem__(0, now[0] + seconds)

    functions = {'long': taking(0.5), 'short': taking(0.125)}
    times = results.interleaved(functions, 5, clock=lambda: now[0])
    assert times == {'long': [0.5] * 5, 'short': [0.125] * 5}
    assert results.median_ms(times['long']) == 500.0


@pytest.fixture(scope='module')
def cases_module():
    return importlib.import_module('benchmarks.acceptance_cases')


@pytest.fixture(scope='module')
def straight():
    """Return a run of 40 m along x, 0.2 m and 0.5 s a frame; its odometry begins elsewhere."""
    places = importlib.import_module('benchmarks.acceptance_places')
    count = 201
    truth = np.column_stack([0.2 * np.arange(count), np.zeros((count, 2))])
    odometry = se2.compose(np.array([5.0, 1.0, 2.0]), truth)
    stamps = 10**9 + np.arange(count) * 500_000_000
    return places.Taken(stamps, odometry, truth, np.arange(count)[:, np.newaxis])


def steps_of(run):
    return se2.between(run.odometry[:-1], run.odometry[1:])


def test_odometry_is_wrong_by_its_factors_from_the_first_frame_on(cases_module, straight):
    drive = cases_module.EVENTS['x 1.5'](straight, np.random.default_rng(0))
    np.testing.assert_allclose(steps_of(drive.run), 1.5 * steps_of(straight), atol=1e-9)
    np.testing.assert_array_equal(drive.run.reference, straight.reference)
    assert drive.since == 0 and drive.way[-1] == pytest.approx(60.0)


def test_frozen_odometry_stands_for_a_while_and_spinning_wheels_go_on(cases_module, straight):
    frozen = cases_module.EVENTS['frozen 15 s'](straight, np.random.default_rng(0))
    moved = np.hypot(*steps_of(frozen.run)[:, :2].T)
    assert np.flatnonzero(moved < 1e-9).tolist() == list(range(frozen.since, frozen.since + 30))
    spinning = cases_module.EVENTS['spinning'](straight, np.random.default_rng(0))
    assert len(spinning.run) == len(straight) + 30
    np.testing.assert_allclose(np.hypot(*steps_of(spinning.run)[:, :2].T), 0.2, atol=1e-9)
    stands = slice(spinning.since, spinning.since + 31)
    assert np.ptp(spinning.run.reference[stands, 0]) == 0.0
    assert np.ptp(spinning.run.descriptors[stands]) == 0
    assert np.all(np.diff(spinning.run.stamps_ns) == 500_000_000)


def test_a_carried_robot_is_elsewhere_while_its_odometry_stands(cases_module, straight):
    drive = cases_module.EVENTS['carried'](straight, np.random.default_rng(0))
    jump = np.diff(drive.run.reference[:, 0])[drive.since - 1]
    assert jump == pytest.approx(6.0, abs=0.21)
    about = slice(drive.since - 4, drive.since + 3)
    assert np.abs(steps_of(drive.run)[about]).max() < 1e-9
    assert np.diff(drive.run.stamps_ns)[drive.since - 1] == pytest.approx(15e9, rel=0.05)


@pytest.mark.parametrize('event', ['silent', 'noticed'])
def test_a_kidnapped_robot_drives_on_elsewhere(cases_module, straight, event):
    for seed in range(40):
        drive = cases_module.EVENTS[event](straight, np.random.default_rng(seed))
        jump = drive.run.reference[drive.since] - drive.run.reference[drive.since - 1]
        assert np.hypot(*jump[:2]) >= 3.0 and drive.start == 'reference'
        told = steps_of(drive.run)
        assert (np.abs(told[drive.since - 1]).max() > 1e-6) == (event == 'noticed')
        others = np.delete(told, drive.since - 1, axis=0)
        np.testing.assert_allclose(others, np.tile([0.2, 0.0, 0.0], (len(others), 1)), atol=1e-9)


def test_every_group_has_drives_that_choose_and_others_that_report(cases_module):
    cases = list(cases_module.cases())
    halves = {(case.group, case.half) for case in cases}
    assert {group for group, half in halves if half == 'choose'} == {group for group, _ in halves}
    assert {group for group, half in halves if half == 'report'} == {group for group, _ in halves}
    assert len(set(cases)) == len(cases)


def test_a_drive_of_the_acceptance_set_is_scored(tmp_path, cases_module):
    acceptance = importlib.import_module('benchmarks.acceptance')
    places = importlib.import_module('benchmarks.acceptance_places')
    place = places.Place(tmp_path / 'place')
    train, test = (
        open_dataset(write_tiny_cold_run(tmp_path / run, frames=80)) for run in ('a', 'b')
    )
    place.keep(lambda: ([train], {'run': test}))
    case = cases_module.Case('group', 'choose', cases_module.MapOf('place', 60), 'run')
    (row,) = acceptance.drive_all(case.map, [(0, case)], tmp_path, 'nearest', [0])
    assert row['right'] == 1.0 and row['found m'] == 0.0 and row['RMSE m'] < 0.5
    assert '| group | 1 |' in acceptance.described([row])
    lost = row | {'right': 0.5, 'wrong_said': 3, 'late_said': 4}
    assert '1.000 → 0.500' in acceptance.compared([row], [lost])
    assert acceptance.summary([row, lost])['wrong'] == 3 / (4 + row['late_said'])
    wrong = replace(case, kind='wrong', event='wrong pose', map=cases_module.MapOf('place'))
    drive = wrong.drive(place, wrong.map.of(place), 0)
    assert np.hypot(*(drive.start - drive.run.reference[0])[:2]) > 5.0
    assert acceptance.driven(wrong, drive, wrong.map.of(place), 'nearest', 0)['right'] == 1.0


def test_every_stage_of_a_frame_is_timed(tmp_path):
    speed = importlib.import_module('benchmarks.speed_bench')
    run = open_dataset(write_tiny_cold_run(tmp_path / 'a', frames=16))
    seconds = speed.frame_times(build_map([run]), list(run))
    frames = speed.ROUNDS * len(run)
    assert len(seconds['predict']) == len(seconds['estimate']) == frames
    updates = len(seconds['update, with kernel vector'])
    assert 0 < updates == len(seconds['describe']) == len(seconds['whole frame']) <= frames
    assert updates + len(seconds.get('whole frame without update', ())) == frames


def write_session(folder, robots=2):
    """Robots that drive on circles, seen in another frame and from some seconds later."""
    folder.mkdir()
    head = '# what the dataset says of its columns\n'
    for number in range(1, robots + 1):
        seconds = 1.2e9 + np.arange(0.0, 20.0, 0.02)
        told = np.column_stack([seconds, np.full(1000, 0.1 * number), np.full(1000, 0.1)])
        angle = 0.1 * (seconds - seconds[0])
        circle = number * np.array([np.sin(angle), 1.0 - np.cos(angle)])
        truth = np.column_stack([seconds, circle[0] + 3.0, circle[1] - 2.0, angle])
        for name, lines in (('Odometry', told), ('Groundtruth', truth[150:])):
            np.savetxt(folder / f'Robot{number}_{name}.dat', lines, '%.9f', header=head)


def test_real_odometry_is_that_of_the_true_motion(tmp_path):
    real = importlib.import_module('benchmarks.acceptance_real')
    write_session(tmp_path / 'session')
    robot = real._robot(tmp_path / 'session', 'Robot2')
    assert robot.truth.shape == robot.odometry.shape == (320, 3)
    motions = [se2.between(poses[:-1], poses[1:]) for poses in (robot.truth, robot.odometry)]
    np.testing.assert_allclose(*motions, atol=1e-6)


def test_odometry_of_a_corridor_is_that_of_the_true_motion(tmp_path, monkeypatch):
    real = importlib.import_module('benchmarks.acceptance_real')
    seconds = np.arange(0.0, 40.0, 0.2)
    x, heading = np.minimum(seconds, 20.0) * 0.5 - 3.0, 0.1 * np.maximum(seconds - 20.0, 0.0)
    poses = zip(seconds, x, heading, strict=True)
    lines = [f'point2 {t} {a} 1.5 0 0 0 0\nangle {t} {h} 0' for t, a, h in poses]
    (tmp_path / 'Hall_GT.txt').write_text('\n'.join(lines))
    told = [f'odom2 {t} {0.5 * (t < 20)} 0 {0.1 * (t >= 20)} 0 0 0' for t in seconds]
    (tmp_path / 'Hall_Input.txt').write_text('loop 1 2 0.5\n' + '\n'.join(told))
    monkeypatch.setattr(real, 'MAPPED_S', 25.0)
    (first, second), runs = real.corridor(str(tmp_path / 'Hall'))
    night = runs['night']
    assert night.config.light == 'night'
    for run in (first, second, night):
        at = run.odometry.stamps_ns
        motions = [np.diff(poses, axis=0) for poses in (run.poses, run.odometry.poses)]
        np.testing.assert_allclose(*(np.hypot(*m[:, :2].T) for m in motions), atol=1e-6)
        assert run.building.plan.is_free(run.poses[:, :2]).all() and len(at) > 100
    on_path = first.poses[:, :2]
    assert not first.building.plan.is_free(on_path + np.array([0.0, 1.5])).any()
