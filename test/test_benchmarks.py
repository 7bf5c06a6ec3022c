"""What the benchmarks measure with: events, scores, tables, the images of photographs alone."""

from dataclasses import replace
from functools import partial
import importlib
from importlib.util import find_spec
from pathlib import Path
import runpy
import sys

from command import FEW_WORDS
import cv2
from helpers import wall_image, write_tiny_cold_run
from kbr_localization import se2
from kbr_localization.datasets import open_dataset
from kbr_localization.localization.map.build import build_map
from map_helpers import TINY_VISION
import numpy as np
import pytest

FOLDER = Path(__file__).parents[1] / 'benchmarks'
if not FOLDER.is_dir():
    pytest.skip('the folder benchmarks/ is not installed', allow_module_level=True)

results, cases, places, acceptance, real, speed, photographs = (
    importlib.import_module(f'benchmarks.{name}')
    for name in (
        *('results', 'acceptance_cases', 'acceptance_places', 'acceptance', 'acceptance_real'),
        *('speed_bench', 'photographs'),
    )
)
PROGRAMS = sorted(p.stem for p in FOLDER.glob('*.py') if '__main__' in p.read_text('utf-8'))


@pytest.mark.parametrize('name', PROGRAMS)
def test_help_is_all_that_help_does(name, monkeypatch, capsys):
    if name == 'latency' and find_spec('rclpy') is None:
        pytest.skip('rclpy is not installed')
    monkeypatch.setattr(sys, 'argv', [name, '--help'])
    monkeypatch.delitem(sys.modules, f'benchmarks.{name}', raising=False)
    with pytest.raises(SystemExit, match='0'):
        runpy.run_module(f'benchmarks.{name}', run_name='__main__', alter_sys=True)
    assert capsys.readouterr().out.startswith('usage: ')


# the acceptance set: a run of 40 m along x, 0.2 m and 0.5 s a frame, its odometry elsewhere

TRUTH = np.column_stack([0.2 * np.arange(201), np.zeros((201, 2))])
RUN = places.Taken(
    10**9 + np.arange(201) * 500_000_000,
    se2.compose(np.array([5.0, 1.0, 2.0]), TRUTH),
    TRUTH,
    np.arange(201)[:, np.newaxis],
)


def after(event, seed=0):
    """Return a drive with an event, and the steps of its odometry."""
    drive = cases.EVENTS[event](RUN, np.random.default_rng(seed))
    return drive, se2.between(drive.run.odometry[:-1], drive.run.odometry[1:])


def test_odometry_is_wrong_by_its_factors_from_the_first_frame_on():
    drive, steps = after('x 1.5')
    np.testing.assert_allclose(steps, np.tile([0.3, 0.0, 0.0], (200, 1)), atol=1e-9)
    np.testing.assert_array_equal(drive.run.reference, TRUTH)
    assert drive.since == 0 and drive.way[-1] == pytest.approx(60.0)


def test_frozen_odometry_stands_for_a_while_and_spinning_wheels_go_on():
    frozen, steps = after('frozen 15 s')
    standing = np.flatnonzero(np.hypot(*steps[:, :2].T) < 1e-9)
    assert standing.tolist() == list(range(frozen.since, frozen.since + 30))
    spinning, steps = after('spinning')
    assert len(spinning.run) == len(RUN) + 30
    np.testing.assert_allclose(np.hypot(*steps[:, :2].T), 0.2, atol=1e-9)
    stands = slice(spinning.since, spinning.since + 31)
    assert np.ptp(spinning.run.reference[stands, 0]) == 0.0
    assert np.ptp(spinning.run.descriptors[stands]) == 0
    assert np.all(np.diff(spinning.run.stamps_ns) == 500_000_000)


def test_a_carried_robot_is_elsewhere_while_its_odometry_stands():
    drive, steps = after('carried')
    jump = np.diff(drive.run.reference[:, 0])[drive.since - 1]
    assert jump == pytest.approx(6.0, abs=0.21)
    assert np.abs(steps[slice(drive.since - 4, drive.since + 3)]).max() < 1e-9
    assert np.diff(drive.run.stamps_ns)[drive.since - 1] == pytest.approx(15e9, rel=0.05)


@pytest.mark.parametrize('event', ['silent', 'noticed'])
def test_a_kidnapped_robot_drives_on_elsewhere(event):
    for seed in range(40):
        drive, steps = after(event, seed)
        jump = drive.run.reference[drive.since] - drive.run.reference[drive.since - 1]
        assert np.hypot(*jump[:2]) >= 3.0 and drive.start == 'reference'
        assert (np.abs(steps[drive.since - 1]).max() > 1e-6) == (event == 'noticed')
        others = np.delete(steps, drive.since - 1, axis=0)
        np.testing.assert_allclose(others, np.tile([0.2, 0.0, 0.0], (len(others), 1)), atol=1e-9)


def test_every_group_has_drives_that_choose_and_others_that_report():
    every = list(cases.cases())
    for half in ('choose', 'report'):
        groups = {case.group for case in every if case.half == half}
        assert groups == {case.group for case in every}
    assert len(set(every)) == len(every)


def test_a_drive_of_the_acceptance_set_is_scored(tmp_path, monkeypatch):
    monkeypatch.setattr(places, 'build_map', partial(build_map, vision=TINY_VISION))
    place = places.Place(tmp_path / 'place')
    train, test = (
        open_dataset(write_tiny_cold_run(tmp_path / run, frames=80)) for run in ('a', 'b')
    )
    place.keep(lambda: ([train], {'run': test}))
    case = cases.Case('group', 'choose', cases.MapOf('place', 60), 'run')
    (row,) = acceptance.drive_all(case.map, [(0, case)], tmp_path, 'nearest', [0])
    assert row['right'] == 1.0 and row['found m'] == 0.0 and row['RMSE m'] < 0.5
    assert '| group | 1 |' in acceptance.described([row])
    lost = row | {'right': 0.5, 'wrong_said': 3, 'late_said': 4}
    assert '1.000 → 0.500' in acceptance.compared([row], [lost])
    assert acceptance.summary([row, lost])['wrong'] == 3 / (4 + row['late_said'])
    wrong = replace(case, kind='wrong', event='wrong pose', map=cases.MapOf('place'))
    drive = wrong.drive(place, wrong.map.of(place), 0)
    assert np.hypot(*(drive.start - drive.run.reference[0])[:2]) > 5.0
    assert acceptance.driven(wrong, drive, wrong.map.of(place), 'nearest', 0)['right'] == 1.0


# the images of photographs alone


def test_the_table_of_small_traverses(tmp_path, capsys):
    for number, name in enumerate(('day_left', 'day_right', 'night_right')):
        (tmp_path / name).mkdir()
        for place in range(24):
            picture = wall_image(0.4 * place + 0.02 * number)
            cv2.imwrite(str(tmp_path / name / f'{place:03d}.png'), picture)
    photographs.main([str(tmp_path), *FEW_WORDS])
    assert '| day_right → night_right | image kernel | 1.00 | 1.00 |' in capsys.readouterr().out
