"""What the benchmarks share: figures and sections that they write one beside the other."""

import argparse
import importlib
from importlib.util import find_spec
import json
from pathlib import Path
import subprocess
import sys

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
