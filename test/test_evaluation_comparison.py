"""The comparison of methods over map sizes, on tiny runs."""

import dataclasses
import itertools
import json
import shutil

from helpers import tiny_frames, tiny_odometry, write_tiny_cold_run
from kbr_localization.datasets import open_dataset
from kbr_localization.errors import EvaluationError
from kbr_localization.evaluation import comparison, figures
from kbr_localization.evaluation.comparison import (
    comparison_rows,
    ComparisonPlan,
    complete,
    Outcome,
    random_map,
    Task,
)
from kbr_localization.evaluation.described import describe_run, on_described_run
from kbr_localization.evaluation.metrics import Metrics
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.pipeline import localize
from kbr_localization.workers import open_workers
import numpy as np
import pytest

KEYS = [
    'method',
    'size',
    'trials',
    'localized_after_s',
    'localized_after_m',
    'below_1m_after_s',
    'below_1m_after_m',
    'rmse_once_below_1m_m_mean',
    'position_median_m',
    'lost_fraction',
    'wrong_called_localized',
    'coverage_2sigma',
    'sharpness',
    'ms_per_frame',
    'position_rmse_m_mean',
    'position_rmse_m_sd',
]
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
    """Compare methods on the map of the first run."""

    def run(test, out, plan=PLAN, **options):
        return comparison.compare(lambda: train_map, ['train'], [test], plan, out, **options)

    return run


@pytest.fixture(scope='module')
def compared(runs, compare, tmp_path_factory):
    """Return a finished comparison: its folder and rows."""
    out = tmp_path_factory.mktemp('compared') / 'out'
    return out, compare(runs[1], out)


def test_rows_have_the_agreed_keys_in_the_agreed_order(compared):
    _, rows = compared
    assert [list(row) for row in rows] == [KEYS] * 4
    assert [(row['method'], row['size']) for row in rows] == [
        ('kbr', 6),
        ('kbr', 12),
        ('nearest', 6),
        ('nearest', 12),
    ]
    assert all(row['trials'] == 2 and row['ms_per_frame'] > 0 for row in rows)
    json.dumps(rows, allow_nan=False)


def test_a_row_is_what_a_localization_of_the_real_run_gives(runs, train_map, compared):
    out, rows = compared
    task = Task('nearest', 6, 0)
    trajectory = localize(random_map(train_map, task, PLAN.seed), runs[1], method='nearest')
    positions = np.loadtxt(comparison.trajectory_path(out, task, 0))[:, 1:3]
    np.testing.assert_allclose(positions, trajectory.poses[:, :2], atol=1e-8)
    assert rows[2]['position_rmse_m_sd'] > 0


def test_two_processes_find_what_one_finds(runs, compare, compared, tmp_path):
    with open_workers(2) as two:
        parallel = compare(runs[1], tmp_path / 'out', workers=two)
    for mine, theirs in zip(parallel, compared[1], strict=True):
        times = {'ms_per_frame': 0.0}
        assert mine | times == theirs | times


def test_a_stopped_comparison_goes_on_and_keeps_what_is_done(runs, compare, compared, tmp_path):
    out = tmp_path / 'out'

    def stop_in_the_middle(what, done, total):
        if what == 'comparing' and done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(runs[1], out, progress=stop_in_the_middle)
    trials = out / comparison.OUTCOMES
    done = trials.read_text().splitlines()
    assert len(done) == 3
    # the crash came in the middle of a line
    trials.write_text('\n'.join(done) + '\n{"task": {"meth')
    steps = []
    rows = compare(runs[1], out, progress=lambda *step: steps.append(step))
    assert ('comparing', 3, 8) in steps and ('comparing', 8, 8) in steps
    assert trials.read_text().splitlines()[:3] == done
    for mine, theirs in zip(rows, compared[1], strict=True):
        times = {'ms_per_frame': 0.0}
        assert mine | times == theirs | times


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
    (tmp_path / 'plan.json').write_text('{}')
    with pytest.raises(EvaluationError, match='another comparison'):
        compare(runs[1], tmp_path)


def test_two_processes_cannot_be_at_one_comparison(runs, compare, tmp_path):
    def meddle(what, done, total):
        compare(runs[1], tmp_path / 'out')

    with pytest.raises(EvaluationError, match='in use'):
        compare(runs[1], tmp_path / 'out', progress=meddle)


def test_damaged_lines_are_done_again_and_repeated_ones_count_once(
    runs, compare, compared, tmp_path
):
    out = tmp_path / 'out'
    shutil.copytree(compared[0], out)
    trials = out / comparison.OUTCOMES
    first, _, *others = trials.read_bytes().splitlines(keepends=True)
    trials.write_bytes(b''.join([first, first, b'{"foo": 1}\n', b'\xff\n', *others]))
    rows = compare(runs[1], out)
    for mine, theirs in zip(rows, compared[1], strict=True):
        times = {'ms_per_frame': 0.0}
        assert mine | times == theirs | times


def test_the_order_in_which_trials_end_changes_nothing():
    outcomes = [
        Outcome(Task('kbr', 6, trial), NEVER_LOCALIZED | {'position_rmse_m': rmse}, 5.0)
        for trial, rmse in enumerate((0.1, 0.2, 0.3, 1e-9, 7.7))
    ]
    rows = [comparison_rows(PLAN, order) for order in itertools.permutations(outcomes)]
    assert all(row == rows[0] for row in rows)


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


NEVER_LOCALIZED: Metrics = {
    'position_rmse_m': 1.0,
    'rmse_once_below_1m_m': None,
    'position_median_m': None,
    'lost_fraction': 0.9,
    'lost_fraction_once_below_1m': None,
    'wrong_called_localized': 0.25,
    'coverage_2sigma': None,
    'sharpness': None,
    'localized_after_m': 10.0,
    'localized_after_s': 20.0,
    'below_1m_after_m': None,
    'below_1m_after_s': None,
}


def test_what_a_run_never_reaches_counts_as_reached_at_its_end():
    good = NEVER_LOCALIZED | {
        'position_rmse_m': 0.2,
        'rmse_once_below_1m_m': 0.1,
        'position_median_m': 0.1,
        'lost_fraction_once_below_1m': 0.0,
        'wrong_called_localized': None,
        'localized_after_m': None,
        'below_1m_after_m': 2.0,
        'below_1m_after_s': 4.0,
    }
    outcomes = [
        Outcome(Task('kbr', 6, trial), complete(metrics, 40.0, 80.0), 5.0)
        for trial, metrics in enumerate((good, NEVER_LOCALIZED))
    ]
    (row,) = comparison_rows(PLAN, outcomes)
    assert (row['below_1m_after_m'], row['below_1m_after_s']) == (21.0, 42.0)
    assert (row['localized_after_m'], row['localized_after_s']) == (25.0, 50.0)
    assert row['wrong_called_localized'] == 0.25  # of the trials that have a wrong answer
    assert row['position_rmse_m_mean'] == pytest.approx(0.6)
    assert row['position_rmse_m_sd'] == pytest.approx(0.8 / np.sqrt(2))
    assert row['rmse_once_below_1m_m_mean'] == pytest.approx(0.1)
    assert row['lost_fraction'] == pytest.approx(0.5)
    assert row['coverage_2sigma'] is None


def test_a_broken_image_stays_broken_in_a_described_run(train_map, tmp_path):
    from kbr_localization.datasets.cold import write_cold_run

    write_cold_run(tmp_path / 'run', tiny_frames(6), tiny_odometry(6))
    broken = sorted((tmp_path / 'run' / 'std_cam').iterdir())[0]
    broken.write_bytes(b'no jpeg')
    run = describe_run(train_map.describer, open_dataset(tmp_path / 'run'))
    trajectory = localize(on_described_run(train_map, run), run)
    assert trajectory.skipped == {'broken image': 1}


@pytest.mark.parametrize('broken', [2, 6])
def test_unusable_images_of_a_test_run_are_told(compare, tmp_path, caplog, broken):
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


def test_table_and_figure_are_written(runs, compared):
    out, rows = compared
    figures.save_comparison(out, rows, PLAN, [runs[1]])
    table = (out / figures.TABLE).read_text().splitlines()
    assert len(table) == 2 + len(rows)
    cells = [line.split('|')[1:3] for line in table[2:]]
    assert cells == [[f' {size} ', f' {name} '] for size in (6, 12) for name in ('kbr', 'nearest')]
    assert (out / figures.FIGURE).read_bytes().startswith(b'\x89PNG')
