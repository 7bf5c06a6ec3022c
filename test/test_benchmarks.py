"""What the benchmarks share: figures and sections that they write one beside the other."""

import argparse
from dataclasses import replace
import importlib
from importlib.util import find_spec
import json
from pathlib import Path
import re
import subprocess
import sys

import cv2
from helpers import write_tiny_cold_run
from kbr_localization import se2
from kbr_localization.datasets import open_dataset
from kbr_localization.evaluation.described import DescribedRun
from kbr_localization.localization.kbr.filter import KernelBayesFilter
from kbr_localization.localization.map.build import build_map
from kbr_localization.simulation import BuildingConfig, SyntheticBuilding
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
import contextlib, io, json, runpy, sys

shown = {{}}
for name in {names!r}:
    sys.argv = [name, '--help']
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            runpy.run_module('benchmarks.' + name, run_name='__main__', alter_sys=True)
        except SystemExit as end:
            shown[name] = [end.code, out.getvalue()]
print(json.dumps(shown))
"""


@pytest.fixture(scope='module')
def help_shown():
    """Exit code and output of every help, out of one process: imports take a second."""
    with_ros = find_spec('rclpy') is not None
    names = [name for name in BENCHMARKS if with_ros or name not in ('camera', 'latency')]
    command = [sys.executable, '-c', SHOW_HELP.format(names=names)]
    folder = Path(results.__file__).parents[1]
    ended = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
    return json.loads(ended.stdout)


@pytest.mark.parametrize('name', BENCHMARKS)
def test_help_is_all_that_help_does(name, help_shown):
    if name in ('camera', 'latency'):
        pytest.importorskip('rclpy')
    code, text = help_shown[name]
    assert code == 0
    assert text.startswith('usage: ')


def test_figures_of_others_stay(tmp_path):
    path = tmp_path / 'latest.json'
    results.merge_figures({'frame_ms': 12.3456, 'build_speedup_2p': 1.9}, path)
    results.merge_figures({'frame_ms': 11.0}, path)
    assert json.loads(path.read_text()) == {'frame_ms': 11.0, 'build_speedup_2p': 1.9}
    assert [file.name for file in tmp_path.iterdir()] == ['latest.json']


def test_a_section_is_replaced_where_it_stands(tmp_path):
    path = tmp_path / 'README.md'
    results.write_section('scale', '## Scale\n\nold', path)
    results.write_section('speed', '## Speed\n\n| a |', path)
    results.write_section('scale', '## Scale\n\nnew', path)
    page = path.read_text()
    assert page.startswith('# Speed and memory')
    assert page.index('## Scale\n\nnew') < page.index('## Speed\n\n| a |')
    assert 'old' not in page
    assert page.count('\nMeasured with ') == 2


def test_a_section_says_which_commit_was_measured():
    assert re.fullmatch(
        r'Measured with (commit [0-9a-f]{7,} of \d{4}-\d\d-\d\d|version \d+\.\d+\.\d+)\.',
        results.measured_with(),
    )


def test_the_ratio_of_two_functions_is_that_of_their_times():
    now = [0.0]

    def taking(seconds):
        return lambda: now.__setitem__(0, now[0] + seconds)

    functions = {'long': taking(0.5), 'short': taking(0.125)}
    times = results.interleaved(functions, 5, clock=lambda: now[0])
    assert results.ratio(times, 'long', 'short') == 4.0
    assert results.median_ms(times['long']) == 500.0


def test_the_factor_on_a_covariance_puts_as_many_truths_inside_as_asked_for():
    buildings = importlib.import_module('benchmarks.buildings')
    distances = np.random.default_rng(0).chisquare(2, 20_000)
    honest = buildings.Cell(1, 100, {}, distances)
    assert honest.coverage == pytest.approx(0.954, abs=0.005)
    assert honest.factor(0.954) == pytest.approx(1.0, abs=0.05)
    # half of the covariance it should have
    shy = buildings.Cell(1, 100, {}, 2.0 * distances)
    assert shy.factor(0.95) == pytest.approx(2.0 * honest.factor(0.95))
    assert shy.coverage < 0.9


def test_odd_buildings_are_reported_and_their_robots_are_drawn():
    buildings = importlib.import_module('benchmarks.buildings')
    options = argparse.Namespace(first=101, buildings=3, step=None, robots=True, map_robots=False)
    assert list(buildings.seeds(options)) == [101, 103, 105]
    options.robots = False
    assert list(buildings.seeds(options)) == [101, 102, 103]
    test, mapping = buildings.drawn(7, True, True)
    assert test == buildings.drawn(7, True, False)[0] != mapping
    assert buildings.drawn(7, False, False) == (None, None)
    assert buildings.about_robots(True, False) == ', test robots drawn at random'


@pytest.mark.parametrize(
    'name, options',
    [
        ('prediction', ['--trials', '1']),
        ('constants', ['--only', 'filter|budgets|delta']),
        ('other_buildings', ['--sizes', '8,9']),
        ('wrong_odometry', ['--rates', '1e-5', '1e-3']),
        ('half_mapped', []),
        ('starts', ['--sizes', '8,9']),
    ],
)
def test_a_benchmark_runs_on_runs_that_are_given(name, options, tmp_path, capsys):
    train, test = (str(write_tiny_cold_run(tmp_path / run, frames=16)) for run in ('a', 'b'))
    benchmark = importlib.import_module(f'benchmarks.{name}')
    benchmark.main(['--train', train, '--test', test, '--sizes', '8', *options])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith('| ')]
    assert len(rows) > 3 and not any('nan' in row for row in rows)


def test_runs_of_several_places_are_driven_on_each_others_maps(tmp_path, capsys):
    other_buildings = importlib.import_module('benchmarks.other_buildings')
    places = [tmp_path / place / run for place in 'ab' for run in '12']
    for path in places[:3]:
        write_tiny_cold_run(path, frames=16)
    places[3].mkdir(parents=True)
    for index in range(16):  # photographs without poses, of another shape
        cv2.imwrite(
            str(places[3] / f'{index:03}.png'),
            np.random.default_rng(index).integers(0, 255, (90, 200), np.uint8),
        )
    paths = [str(path) for path in places]
    other_buildings.main(['--runs', *paths, '--sizes', '8', '--spacing', '0.5'])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith('| ')][2:]
    pairs = {tuple(row.split(' | ')[:2]) for row in rows}
    names = ['a/1', 'a/2', 'b/1', 'b/2, 0.5 m']
    assert pairs == {(f'| {a}', b) for a in names for b in names if a[0] != b[0]}
    assert len(rows) == 16


def test_a_wrong_odometry_is_wrong_by_the_factors_where_they_hold(tmp_path):
    wrong_odometry = importlib.import_module('benchmarks.wrong_odometry')
    driven = open_dataset(write_tiny_cold_run(tmp_path, frames=100))
    poses = se2.chain(np.array([5.0, 1.0, 2.0]), np.tile([0.1, 0.02, 0.3], (99, 1)))
    frames = tuple(replace(driven[index], odometry=pose) for index, pose in enumerate(poses))
    run = DescribedRun('run', driven.odometry, {}, frames, np.zeros((100, 1)), 0.0)
    by = wrong_odometry.driven_by(run, (2.0, 2.0, -1.0), (0.5, 1.0))
    told = np.array([frame.odometry for frame in by])
    found, steps = se2.between(told[:-1], told[1:]), se2.between(poses[:-1], poses[1:])
    np.testing.assert_allclose(found[:48], steps[:48], atol=1e-9)
    np.testing.assert_allclose(found[50:], steps[50:] * [2.0, 2.0, -1.0], atol=1e-9)
    assert [frame.stamp_ns for frame in by] == [frame.stamp_ns for frame in frames]


def test_a_constant_is_changed_where_it_is_used_and_is_itself_again():
    constants = importlib.import_module('benchmarks.constants')
    from kbr_localization.localization.kbr import belief, cohorts, confirmation, informative

    found = constants.constants()
    assert {'budgets', 'belief.OTHER_WAY', 'confirmation.UNCONFIRMED'} <= found.keys()
    assert 'likelihood.LARGEST_SYSTEM' not in found
    before = found['belief.OTHER_WAY']['OTHER_WAY']
    with constants.changed(found['belief.OTHER_WAY'], 3.0):
        assert belief.OTHER_WAY == informative.OTHER_WAY == 3.0 * before
    assert belief.OTHER_WAY == informative.OTHER_WAY == before
    assert found['confirmation.UNCONFIRMED'] == {'UNCONFIRMED': confirmation.UNCONFIRMED}
    assert found['budgets'].keys() == constants.BUDGETS
    with constants.changed(found['budgets'], 2.0):
        assert 2 * found['budgets']['_COHORT'] == cohorts._COHORT
    assert found['budgets']['_COHORT'] == cohorts._COHORT
    assert (constants.scaled(30, 0.5), constants.scaled(3.0, 2.0)) == (15, 6.0)
    assert constants.scaled(0.5, 2.0) == pytest.approx(2.0 / 3.0)
    assert {'parameter noise_scale', 'parameter points'} <= constants.parameters().keys()
    assert 'parameter localized_mass' not in constants.parameters()


def test_the_covariance_is_found_that_errors_were_drawn_from():
    covariance = importlib.import_module('benchmarks.covariance')
    rng, cases = np.random.default_rng(0), []
    drawn_from = np.array([0.3, 0.25])
    for number in range(8):
        spreads = np.tile(np.diag([0.1, 0.05]) * (1.0 + number % 3), (400, 1, 1))
        made = covariance.Recorded(
            f'{number}', np.zeros((400, 2)), spreads, np.full(400, 0.5 * number), 0.1, 0.4
        )
        stated = made.stated(drawn_from)[0]
        errors = rng.multivariate_normal(np.zeros(2), stated, 400)
        cases.append(replace(made, errors=errors))
    np.testing.assert_allclose(covariance.fitted(cases), drawn_from, rtol=0.2)
    assert cases[0].scores(drawn_from)[1:] == pytest.approx((0.954, 1.15), abs=0.1)
    text = covariance.described(cases)
    assert 'every other case' in text and text.count('\n| ') >= 8


def test_the_frames_whose_answer_is_right_are_recorded(tmp_path):
    train, test = (write_tiny_cold_run(tmp_path / run, frames=80) for run in ('a', 'b'))
    cases, covariance = (
        importlib.import_module(f'benchmarks.{n}') for n in ('cases', 'covariance')
    )
    parser = argparse.ArgumentParser()
    cases.add_options(parser)
    given = ['--train', str(train), '--test', str(test), '--sizes', '80']
    (case,) = cases.given(parser.parse_args(given))
    recorded = covariance.record(case)
    assert recorded is not None and 20 <= len(recorded.errors) <= 80
    assert recorded.errors.shape == (len(recorded.likelihoods), 2)
    assert np.abs(recorded.errors).max() < 0.5 and recorded.spreads.shape[1:] == (2, 2)


def test_every_stage_of_a_frame_is_timed(tmp_path):
    scene_module, stages = (
        importlib.import_module(f'benchmarks.{n}') for n in ('scene', 'stages')
    )
    run = open_dataset(write_tiny_cold_run(tmp_path / 'a', frames=16))
    frames = tuple(run)
    images = tuple(frame.load_image() for frame in frames)
    scene = scene_module.Scene((), build_map([run]), frames, images)
    published = []
    seconds = stages.stage_times(scene, lambda estimate, stamp: published.append(stamp))
    assert seconds.keys() == set(stages.STAGES)
    assert published == [frame.stamp_ns for frame in frames]
    assert all(len(seconds[stage]) == len(frames) for stage in stages.PER_FRAME)
    assert 0 < len(seconds['update']) == len(seconds['kernel vector']) <= len(frames)
    moving, still = stages.frame_times(scene, KernelBayesFilter(scene.kernel_map))
    assert len(moving) == len(seconds['update']) and len(moving) + len(still) == len(frames)


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
    real = importlib.import_module('benchmarks.real_odometry')
    write_session(tmp_path / 'session')
    robots = real.session(tmp_path / 'session')
    assert [robot.name for robot in robots] == ['session Robot1', 'session Robot2']
    for robot in robots:
        assert robot.truth.shape == robot.odometry.shape == (320, 3)
        motions = [se2.between(poses[:-1], poses[1:]) for poses in (robot.truth, robot.odometry)]
        np.testing.assert_allclose(*motions, atol=1e-6)
    plan, origin = real.room_about(robots)
    building = SyntheticBuilding(BuildingConfig(kind='hall', width=32, height=24), plan)
    run = robots[1].run(building, origin, 0)
    assert np.all(plan.is_free(run.drive.poses[:, :2]))
    assert run[3].load_image().shape == (24, 32)
    expected = se2.interpolate(run.odometry.stamps_ns, robots[1].odometry, run[3].stamp_ns)
    np.testing.assert_array_equal(run[3].odometry, expected)


def test_odometry_of_a_corridor_is_that_of_the_true_motion(tmp_path):
    corridor = importlib.import_module('benchmarks.corridor_odometry')
    seconds = np.arange(0.0, 40.0, 0.2)
    x, heading = np.minimum(seconds, 20.0) * 0.5 - 3.0, 0.1 * np.maximum(seconds - 20.0, 0.0)
    poses = zip(seconds, x, heading, strict=True)
    lines = [f'point2 {t} {a} 1.5 0 0 0 0\nangle {t} {h} 0' for t, a, h in poses]
    (tmp_path / 'Hall_GT.txt').write_text('\n'.join(lines))
    told = [f'odom2 {t} {0.5 * (t < 20)} 0 {0.1 * (t >= 20)} 0 0 0' for t in seconds]
    (tmp_path / 'Hall_Input.txt').write_text('loop 1 2 0.5\n' + '\n'.join(told))
    parts = [corridor.recorded(str(tmp_path / 'Hall'), *span) for span in ((0, 25), (25, np.inf))]
    assert [len(part.truth) for part in parts] == [500, 296]
    for part in parts:
        motions = [se2.between(poses[:-1], poses[1:]) for poses in (part.truth, part.odometry)]
        np.testing.assert_allclose(*motions, atol=1e-6)
    np.testing.assert_allclose(parts[1].truth[0], [7.0, 1.5, 0.5], atol=1e-6)
    plan, origin = corridor.corridor_about(parts[0].truth[:, :2])
    assert plan.is_free(plan.lamps).all() and len(plan.lamps)
    on_path = origin + parts[0].truth[:, :2]
    assert plan.is_free(on_path).all() and plan.is_free(on_path + np.array([0.0, 0.9])).all()
    assert not plan.is_free(on_path + np.array([0.0, 1.5])).any()
    building = SyntheticBuilding(BuildingConfig(width=32, height=24), plan)
    night = parts[1].run(building, origin, 0, 'night')
    assert night.config.light == 'night' and night[3].load_image().shape == (24, 32)
    with pytest.raises(SystemExit, match=r'expected lines of angle in .*Input\.txt, got none'):
        corridor._columns(tmp_path / 'Hall_Input.txt', 'angle', 2)


def test_a_folder_without_robots_is_refused(tmp_path):
    real = importlib.import_module('benchmarks.real_odometry')
    with pytest.raises(SystemExit, match=r'no Robot1_Groundtruth\.dat'):
        real.session(tmp_path)
