"""Every benchmark and experiment starts, and runs at its smallest size."""

from dataclasses import replace
from functools import partial
import importlib
from importlib.util import find_spec
import json
from pathlib import Path
import runpy
import sys

from command import FEW_WORDS
import cv2
from helpers import wall_image, write_tiny_cold_run
from kbr_localization.datasets import open_dataset
from kbr_localization.localization.map.build import build_map
from map_helpers import TINY_VISION
import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
if not ((ROOT / 'benchmarks').is_dir() and (ROOT / 'experiments').is_dir()):
    pytest.skip('benchmarks/ and experiments/ are not installed', allow_module_level=True)
pytest.importorskip('matplotlib')

# only now: the folders and matplotlib are there
cases, places, acceptance, photographs = (
    importlib.import_module(f'benchmarks.{name}')
    for name in ('acceptance_cases', 'acceptance_places', 'acceptance', 'photographs')
)
common, records, experiments = (
    importlib.import_module(f'experiments.{name}') for name in ('common', 'records', '__main__')
)
PROGRAMS = sorted(
    p.stem for p in (ROOT / 'benchmarks').glob('*.py') if '__main__' in p.read_text('utf-8')
)


@pytest.mark.parametrize('name', PROGRAMS)
def test_help_is_all_that_help_does(name, monkeypatch, capsys):
    if name == 'latency' and find_spec('rclpy') is None:
        pytest.skip('rclpy is not installed')
    monkeypatch.setattr(sys, 'argv', [name, '--help'])
    monkeypatch.delitem(sys.modules, f'benchmarks.{name}', raising=False)
    with pytest.raises(SystemExit, match='0'):
        runpy.run_module(f'benchmarks.{name}', run_name='__main__', alter_sys=True)
    assert capsys.readouterr().out.startswith('usage: ')


def test_a_drive_of_the_acceptance_set_is_scored(tmp_path, monkeypatch):
    monkeypatch.setattr(places, 'build_map', partial(build_map, vision=TINY_VISION))
    place = places.Place(tmp_path / 'place')
    train, test = (
        open_dataset(write_tiny_cold_run(tmp_path / run, frames=80)) for run in ('a', 'b')
    )
    place.cache(lambda: ([train], {'run': test}))
    case = cases.Case('group', 'choose', cases.MapOf('place', 60), 'run')
    (row,) = acceptance.run_cases(case.map, [(0, case)], tmp_path, 'nearest', [0])
    assert row['right'] == 1.0 and row['found m'] == 0.0 and row['RMSE m'] < 0.5
    assert '| group | 1 |' in acceptance.result_table([row])
    wrong = replace(case, kind='wrong', event='wrong pose', map=cases.MapOf('place'))
    drive = wrong.drive(place, wrong.map.of(place), 0)
    assert np.hypot(*(drive.start - drive.run.reference[0])[:2]) > 5.0
    assert acceptance.run_case(wrong, drive, wrong.map.of(place), 'nearest', 0)['right'] == 1.0


def test_the_table_of_small_traverses(tmp_path, capsys):
    for number, name in enumerate(('day_left', 'day_right', 'night_right')):
        (tmp_path / name).mkdir()
        for place in range(24):
            picture = wall_image(0.4 * place + 0.02 * number)
            cv2.imwrite(str(tmp_path / name / f'{place:03d}.png'), picture)
    photographs.main([str(tmp_path), *FEW_WORDS])
    assert '| day_right → night_right | image kernel | 1.00 | 1.00 |' in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize('name', experiments.NAMES)
def test_an_experiment_writes_a_table_a_figure_and_verdicts(name, tmp_path):
    experiments.main([name, '--size', 'tiny', '--out', str(tmp_path), '--seeds', '0,1'])
    results = tmp_path / 'results'
    assert len((results / f'{name}.csv').read_text().splitlines()) > 2
    assert (results / f'{name}.png').stat().st_size > 0
    assert json.loads((results / f'{name}.json').read_text())['size'] == 'tiny'


@pytest.mark.slow
@pytest.mark.parametrize('name', experiments.NAMES)
def test_committed_verdicts_are_those_of_the_committed_records(name, tmp_path):
    """What is judged again from the records of all five seeds is what is stored."""
    stored = ROOT / 'experiments' / 'results'
    experiment = importlib.import_module(f'experiments.{name}').EXPERIMENT
    size = experiment.sizes['reduced']
    tasks = records.tasks_of(size)
    known = records.stored(stored / 'records' / f'{name}_reduced.json', tasks)
    assert list(known.done) == tasks
    outcome = experiment.judge(known, size)
    line = json.loads((stored / f'{name}.json').read_text(encoding='utf-8'))
    assert [vars(one) for one in outcome.claims] == line['claims']
    common.write_rows(tmp_path / 'rows.csv', outcome.rows)
    assert (tmp_path / 'rows.csv').read_text() == (stored / f'{name}.csv').read_text()
