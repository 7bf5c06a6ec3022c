import json

from command import assert_one_line, invoke
from helpers import write_tiny_cold_run
from kbr_localization.cli.options import repeat_options
import pytest


@pytest.fixture
def runs(tmp_path):
    return [str(write_tiny_cold_run(tmp_path / name, frames=12)) for name in ('a', 'b', 'c')]


def arguments(runs, tmp_path, *more):
    a, b, c = runs
    given = ['compare', '--train', a, b, '--test', c, '--out', str(tmp_path / 'out'), *more]
    return repeat_options(given, ['--train', '--test'])


def test_the_rows_are_printed_as_json(runs, tmp_path):
    options = ('--sizes', '5,10', '--trials', '2', '--methods', 'nearest', '--jobs', '1', '--json')
    result = invoke(*arguments(runs, tmp_path, *options))
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)
    assert [(row['method'], row['size'], row['trials']) for row in rows] == [
        ('nearest', 5, 2),
        ('nearest', 10, 2),
    ]
    assert (tmp_path / 'out' / 'comparison.png').is_file()
    assert all(row['position_rmse_m_sd'] >= 0.0 for row in rows)


@pytest.mark.parametrize(
    ('options', 'fragments'),
    [
        (('--sizes', '5,many'), ['5,many', 'whole numbers']),
        (('--sizes', ''), ["--sizes '': expected whole numbers like 50,100,200"]),
        (('--sizes', '500'), ['size 500', '24 images', '--sizes']),
        ((), ['size 50', '24 images', '--sizes']),
        (('--sizes', '5', '--methods', 'magic'), ["'magic'", 'nearest']),
        (('--trials', '0'), ['--trials']),
        (
            ('--sizes', '1,5', '--methods', 'nearest,fkbf'),
            ['size 1: fkbf learns the motion from 2 images or more', 'leave it out of --methods'],
        ),
    ],
)
def test_a_comparison_that_cannot_be_made_is_one_line(runs, tmp_path, options, fragments):
    assert_one_line(invoke(*arguments(runs, tmp_path, *options)), *fragments)


def test_the_usual_sizes_are_those_that_a_map_has(runs, tmp_path):
    run = write_tiny_cold_run(tmp_path / 'long', frames=50)
    assert invoke('map', 'build', run, '--out', tmp_path / 'map.h5').returncode == 0
    given = ('compare', '--map', tmp_path / 'map.h5', '--test', runs[0], '--trials', '1')
    given = (*given, '--methods', 'nearest', '--jobs', '1', '--json', '--out')
    result = invoke(*given, tmp_path / 'out')
    assert result.returncode == 0, result.stderr
    assert [row['size'] for row in json.loads(result.stdout)] == [50]
    assert_one_line(invoke(*given, tmp_path / 'new', '--sizes', '51'), 'only 50 images', '--sizes')
    assert not (tmp_path / 'new').exists()
    assert_one_line(invoke(*given, tmp_path / 'map.h5'), 'map.h5 is a file: expected a folder')


def test_a_comparison_needs_runs_or_a_map(runs, tmp_path):
    result = invoke('compare', '--test', runs[0], '--out', tmp_path / 'out')
    assert_one_line(result, '--train', '--map')
    for more in (('--set', 'delta=0.1'), ('--train', runs[1])):
        given = ('--map', tmp_path / 'map.h5', '--test', runs[0], '--out', tmp_path / 'out')
        assert_one_line(invoke('compare', *given, *more), '--map takes the map as it is')


def test_a_test_run_without_ground_truth_is_refused_before_the_work(runs, tmp_path):
    for image in (tmp_path / 'c' / 'std_cam').iterdir():
        image.rename(image.with_name(f'{image.name.split("_")[0]}.jpeg'))
    options = ('--sizes', '5', '--trials', '1', '--methods', 'nearest', '--jobs', '1')
    result = invoke(*arguments(runs, tmp_path, *options))
    assert_one_line(result, 'c has no reference poses')
    assert not (tmp_path / 'out').exists()
