"""The comparison of methods over map sizes, on tiny runs, and figures."""

import dataclasses
import itertools
import json

from helpers import write_tiny_cold_run
from kbr_localization.datasets import open_dataset
from kbr_localization.errors import EvaluationError
from kbr_localization.evaluation import comparison, figures, run_errors
from kbr_localization.evaluation.comparison import (
    comparison_rows,
    ComparisonPlan,
    complete,
    random_map,
    Task,
)
from kbr_localization.evaluation.described import describe_run, on_given_descriptors
from kbr_localization.evaluation.report import ImagePair
from kbr_localization.localization.localizer import LOST_M
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.pipeline import localize
from kbr_localization.trajectory import Trajectory
from kbr_localization.workers import open_workers
from matplotlib.figure import Figure
import numpy as np
import pytest

PLAN = ComparisonPlan(sizes=(6, 12), trials=2, methods=('kbr', 'nearest'), seed=1)


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp('runs')
    return [
        open_dataset(write_tiny_cold_run(folder / name, frames=count))
        for name, count in (('train', 24), ('test', 16))
    ]


@pytest.fixture(scope='module')
def train_map(runs):
    return build_map([runs[0]], seed=PLAN.seed)


@pytest.fixture(scope='module')
def compare(train_map):
    """Compare methods on the map of the first run; times aside, as they differ."""

    def run(test, out, plan=PLAN, **options):
        rows = comparison.compare(lambda: train_map, ['train'], [test], plan, out, **options)
        assert all(row.pop('ms_per_frame') > 0 for row in rows)
        return rows

    return run


@pytest.fixture(scope='module')
def compared(runs, compare, tmp_path_factory):
    """Return a finished comparison: its folder and rows."""
    out = tmp_path_factory.mktemp('compared') / 'out'
    return out, compare(runs[1], out)


def test_a_row_is_what_localizations_of_the_real_run_give(runs, train_map, compared):
    out, rows = compared
    named = [(row['method'], row['size'], row['trials']) for row in rows]
    assert named == [('kbr', 6, 2), ('kbr', 12, 2), ('nearest', 6, 2), ('nearest', 12, 2)]
    kept = json.loads((out / 'rows.json').read_text())
    assert [{**row, 'ms_per_frame': 0} for row in rows] == [{**r, 'ms_per_frame': 0} for r in kept]
    task = Task('nearest', 6, 0)
    trajectory = localize(random_map(train_map, task, PLAN.seed), runs[1], method='nearest')
    positions = np.loadtxt(comparison.trajectory_path(out, task, 0))[:, 1:3]
    np.testing.assert_allclose(positions, trajectory.poses[:, :2], atol=1e-8)
    assert rows[2]['position_rmse_m_sd'] > 0


def test_two_processes_find_what_one_finds(runs, compare, compared, tmp_path):
    with open_workers(2) as two:
        assert compare(runs[1], tmp_path / 'out', workers=two) == compared[1]


def test_a_stopped_comparison_goes_on_and_keeps_what_is_done(runs, compare, compared, tmp_path):
    def stop_in_the_middle(what, done, total):
        if what == 'comparing' and done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(runs[1], tmp_path / 'out', progress=stop_in_the_middle)
    trials = tmp_path / 'out' / 'trials.jsonl'
    done = trials.read_text().splitlines()
    assert len(done) == 4  # the first one is the plan
    # repeated and damaged lines, and a crash in the middle of one
    trials.write_bytes('\n'.join([*done, done[1]]).encode() + b'\n{"foo": 1}\n\xff\n{"task": {"m')
    steps = []
    rows = compare(runs[1], tmp_path / 'out', progress=lambda *step: steps.append(step))
    assert next(step for step in steps if step[0] == 'comparing') == ('comparing', 4, 8)
    assert trials.read_text('utf-8', 'replace').splitlines()[:4] == done
    assert rows == compared[1]


def test_a_folder_of_another_comparison_is_refused(runs, compare, compared, tmp_path, monkeypatch):
    out, _ = compared
    with pytest.raises(EvaluationError, match='another comparison'):
        compare(runs[1], out, dataclasses.replace(PLAN, trials=3))
    # a run of the same name and length, as COLD's runs of two buildings
    other = write_tiny_cold_run(tmp_path / runs[1].name, frames=len(runs[1]) + 1)
    min((other / 'std_cam').iterdir()).unlink()
    assert len(open_dataset(other)) == len(runs[1])
    with pytest.raises(EvaluationError, match='another comparison'):
        compare(open_dataset(other), out)
    monkeypatch.setattr(comparison, 'code_state', lambda: '0.1.0 of another commit')
    with pytest.raises(EvaluationError, match='code of this package'):
        compare(runs[1], out)


def test_two_processes_cannot_be_at_one_comparison(runs, compare, tmp_path):
    with pytest.raises(EvaluationError, match='in use'):
        compare(runs[1], tmp_path / 'o', progress=lambda *_: compare(runs[1], tmp_path / 'o'))


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'methods': ('kbr', 'magic')}, "'magic'"),
        ({'methods': ()}, 'at least one'),
        ({'sizes': ()}, 'at least one'),
        ({'sizes': (0, 5)}, 'at least one'),
        ({'trials': 0}, 'at least one'),
        ({'methods': ('kbr', 'kbr')}, 'each of them once'),
    ],
)
def test_a_plan_without_work_is_refused(change, message):
    with pytest.raises(EvaluationError, match=message):
        dataclasses.replace(PLAN, **change)


def test_trials_differ_and_methods_of_a_trial_share_their_map(train_map):
    maps = [
        random_map(train_map, Task(method, 6, trial), 0) for trial in (0, 1) for method in 'ab'
    ]
    stamps = [m.stamps_ns.tolist() for m in maps]
    assert stamps[0] == stamps[1] != stamps[2] == stamps[3]
    assert all(len(set(s)) == 6 for s in stamps)


NEVER = {
    'position_rmse_m': 1.0,
    'rmse_once_below_1m_m': None,
    'position_median_m': None,
    'lost_fraction_once_below_1m': None,
    'coverage_2sigma': None,
    'sharpness': None,
    'below_1m_after_m': None,
    'below_1m_after_s': None,
    'wrong_called_localized': 0.25,
    'localized_after_m': 10.0,
    'localized_after_s': 20.0,
    'ms_per_frame': 5.0,
}


def test_what_a_run_never_reaches_counts_as_reached_at_its_end():
    good = NEVER | {
        'position_rmse_m': 0.2,
        'rmse_once_below_1m_m': 0.1,
        'lost_fraction_once_below_1m': 0.0,
        'wrong_called_localized': None,
        'localized_after_m': None,
        'below_1m_after_m': 2.0,
        'below_1m_after_s': 4.0,
    }
    done = {
        Task('kbr', 6, trial): complete(metrics, 40.0, 80.0)
        for trial, metrics in enumerate((good, NEVER))
    }
    (row,) = comparison_rows(PLAN, done)
    assert (row['below_1m_after_m'], row['below_1m_after_s']) == (21.0, 42.0)
    assert (row['localized_after_m'], row['localized_after_s']) == (25.0, 50.0)
    assert row['wrong_called_localized'] == 0.25  # of the trials that have a wrong answer
    assert row['position_rmse_m_mean'] == pytest.approx(0.6)
    assert row['position_rmse_m_sd'] == pytest.approx(0.8 / np.sqrt(2))
    assert row['rmse_once_below_1m_m_mean'] == pytest.approx(0.1)
    assert (row['lost_fraction'], row['coverage_2sigma']) == (0.5, None)


def test_the_order_in_which_trials_end_changes_nothing():
    trials = [
        (Task('kbr', 6, trial), NEVER | {'position_rmse_m': rmse})
        for trial, rmse in enumerate((0.1, 0.2, 0.3, 1e-9, 7.7))
    ]
    plan = dataclasses.replace(PLAN, trials=5)
    rows = [comparison_rows(plan, dict(order)) for order in itertools.permutations(trials)]
    assert all(row == rows[0] for row in rows)


@pytest.mark.parametrize('broken', [2, 6])
def test_unusable_images_of_a_test_run_are_told(train_map, compare, tmp_path, caplog, broken):
    run = write_tiny_cold_run(tmp_path / 'run', frames=6)
    for file in sorted((run / 'std_cam').iterdir())[:broken]:
        file.write_bytes(b'no jpeg')
    plan = dataclasses.replace(PLAN, sizes=(6,), trials=1, methods=('nearest',))
    if broken == 6:
        with pytest.raises(EvaluationError, match='no image of run could be used: broken'):
            compare(open_dataset(run), tmp_path / 'out', plan)
        return
    compare(open_dataset(run), tmp_path / 'out', plan)
    assert 'run: skipped 2 of 6 images that cannot be used' in caplog.messages
    described = describe_run(train_map.describer, open_dataset(run))
    assert localize(on_given_descriptors(train_map), described).skipped == {'broken image': 2}


def test_table_and_figure_are_written(runs, compared):
    out, _ = compared
    rows = json.loads((out / 'rows.json').read_text())
    figures.save_comparison(out, rows, PLAN, [runs[1]])
    table = (out / figures.TABLE).read_text().splitlines()
    assert table[0].startswith('| method | size | trials | localized_after_s |')
    cells = [line.split('|')[1:3] for line in table[2:]]
    assert cells == [[f' {name} ', f' {size} '] for size in (6, 12) for name in ('kbr', 'nearest')]
    assert (out / figures.FIGURE).read_bytes().startswith(b'\x89PNG')


def along(x, y):
    x, y = np.broadcast_arrays(x, y)
    return Trajectory(np.arange(len(x)), np.column_stack([x, y, np.zeros(len(x))]))


METRES = np.linspace(0.0, 10.0, 21)
STRAIGHT = along(METRES, 0.0)


@pytest.mark.parametrize(('aside', 'shown'), [(2.0, 2.0), (-2.5, 2.5), (500.0, 3.0)])
def test_a_plan_follows_an_estimate_out_of_the_building_but_not_to_its_end(aside, shown):
    strayed = along(METRES, np.linspace(0.0, aside, len(METRES)))
    estimates = {'kbr': strayed, 'other': along(METRES, 900.0)}
    axes = figures.run_figure('run', STRAIGHT.poses, STRAIGHT, estimates, {}).axes[0]
    low, high = axes.get_ylim()
    assert max(-low, high) >= shown
    assert high - low < 2.0 * shown + 3.0


@pytest.mark.parametrize('rmse', [(0.73, 0.84), (0.0, 0.0)])
def test_the_errors_of_a_comparison_can_be_read_from_its_figure(rmse):
    rows = [
        {'method': 'kbr', 'size': size, 'position_rmse_m_mean': error, 'position_rmse_m_sd': None}
        for size, error in zip((50, 100), rmse, strict=True)
    ]
    axes = Figure().subplots()
    figures.draw_errors(axes, rows)
    low, high = axes.get_ylim()
    assert low < max(rmse[0], 1e-3) < high


def test_a_figure_of_a_run_has_its_images_its_jumps_and_the_limit_of_lost_frames():
    blue = np.zeros((4, 6, 3), np.uint8)
    blue[..., 0] = 255
    pairs = [ImagePair(blue, blue, pose, np.zeros(3), 0.5) for pose in (np.ones(3), None)]
    errors = {'kbr': run_errors(STRAIGHT, along(METRES, 0.5))}
    jumping = {'kbr': along(METRES, np.where(METRES < 5.0, 0.0, 3.0))}
    figure = figures.run_figure('run', STRAIGHT.poses, STRAIGHT, jumping, errors, pairs)
    shown = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    assert len(shown) == 4
    assert all((pixels == [0, 0, 255]).all() for pixels in shown)
    # a frame whose place is not known has no number on the plan
    assert [text.get_text() for text in figure.axes[0].texts] == ['1']
    assert figure.axes[1].lines[-1].get_ydata() == [LOST_M, LOST_M]
    drawn = next(line for line in figure.axes[0].lines if line.get_label() == 'kbr')
    assert np.isnan(drawn.get_ydata()).sum() == 1
