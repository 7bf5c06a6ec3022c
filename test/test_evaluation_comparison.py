"""The comparison of methods over map sizes, on tiny runs; results that are kept."""

from helpers import write_tiny_cold_run
from kbr_localization.datasets import open_dataset
from kbr_localization.errors import EvaluationError
from kbr_localization.evaluation import comparison, run_errors
from kbr_localization.evaluation.comparison import (
    comparison_rows,
    complete_metrics,
    random_map,
    Task,
)
from kbr_localization.evaluation.journal import run_once
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.pipeline import localize
from kbr_localization.trajectory import Trajectory
from kbr_localization.workers import open_workers
import numpy as np
import pytest

PLAN = ('algorithm1', 'nearest'), (6, 12), 2


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp('runs')
    return [
        open_dataset(write_tiny_cold_run(folder / name, frames=count))
        for name, count in (('train', 24), ('test', 16))
    ]


@pytest.fixture(scope='module')
def train_map(runs):
    return build_map([runs[0]], seed=1)


def compare(kernel_map, test, out, plan=PLAN):
    """Compare methods; times aside, as they differ."""
    tasks = comparison.plan_tasks(*plan, len(kernel_map))
    rows = comparison.compare(kernel_map, [test], tasks, out, seed=1)
    assert all(0.1 < row.pop('ms_per_frame') < 1000.0 for row in rows)
    return rows


@pytest.fixture(scope='module')
def compared(runs, train_map, tmp_path_factory):
    """Return a finished comparison: its folder and rows."""
    out = tmp_path_factory.mktemp('compared') / 'out'
    return out, compare(train_map, runs[1], out)


def test_a_row_is_what_localizations_of_the_real_run_give(runs, train_map, compared):
    _, rows = compared
    named = [(row['method'], row['size'], row['trials']) for row in rows]
    assert named == [(method, size, 2) for size in PLAN[1] for method in PLAN[0]]
    found = []
    for trial in range(2):
        small = random_map(train_map, Task('nearest', 6, trial), 1)
        run = localize(small, runs[1], method='nearest')
        reference = np.array([frame.reference for frame in runs[1]])
        apart = np.hypot(*(run.poses - reference)[:, :2].T)
        found.append(np.sqrt(np.mean(apart**2)))
    assert rows[1]['position_rmse_m'] == pytest.approx(np.mean(found))
    assert rows[1]['position_rmse_m_sd'] == pytest.approx(np.std(found, ddof=1)) != 0


def test_two_processes_find_what_one_finds(runs, train_map, compared, tmp_path):
    with open_workers(2):
        assert compare(train_map, runs[1], tmp_path / 'out') == compared[1]


def test_results_are_taken_where_nothing_they_depend_on_has_changed(tmp_path):
    path = tmp_path / 'kept.jsonl'

    def worked(conditions, tasks):
        done = []
        found = run_once('working', path, conditions, lambda n: done.append(n) or [n, 0.1], tasks)
        assert found == [[n, 0.1] for n in tasks]
        return done

    assert worked({'seed': 1}, [3, 1]) == [3, 1]
    # damaged lines, and one that a crash has cut off
    path.write_bytes(path.read_bytes() + b'{"key": 1}\n[2]\n5\n\xff\n{"key": "m')
    assert worked({'seed': 1}, [1, 2, 3]) == [2]
    assert worked({'seed': 1}, [1, 2, 3]) == []
    assert worked({'seed': 2}, [1]) == [1]


def test_a_method_that_needs_a_larger_map_is_refused(runs, train_map, tmp_path):
    with pytest.raises(EvaluationError, match=r'fkbf on a random map of 1 images.* leave it out'):
        compare(train_map, runs[1], tmp_path, (('fkbf',), (1,), 1))


def test_trials_differ_and_methods_of_a_trial_share_their_map(train_map):
    first, same, other = (
        random_map(train_map, Task(method, 6, trial), 0).stamps_ns.tolist()
        for method, trial in (('a', 0), ('b', 0), ('a', 1))
    )
    assert first == same != other and len(set(first)) == len(set(other)) == 6


def along(x, y, **said):
    x, y = np.broadcast_arrays(x, y)
    stamps = np.arange(len(x)) * 1_000_000_000
    return Trajectory(stamps, np.column_stack([x, y, np.zeros(len(x))]), **said)


METRES = np.linspace(0.0, 10.0, 21)
STRAIGHT = along(METRES, 0.0)


def test_what_a_run_never_reaches_counts_as_reached_at_its_end():
    aside = np.where(METRES < 2.0, 5.0, 0.2), 5.0
    words = ('uncertain',) * 21, ('uncertain',) * 10 + ('localized',) * 11
    done = [
        complete_metrics(run_errors(STRAIGHT, along(METRES, y, statuses=said)))
        | {'ms_per_frame': 5}
        for y, said in zip(aside, words, strict=True)
    ]
    (row,) = comparison_rows([Task('kbr', 6, trial) for trial in (0, 1)], done)
    assert (row['below_1m_after_m'], row['below_1m_after_s']) == ((2.0 + 10.0) / 2, (4 + 20) / 2)
    assert (row['localized_after_m'], row['localized_after_s']) == ((10.0 + 5.0) / 2, 15.0)
    assert row['lost_fraction_once_below_1m'] == 0.5
    # of the trials that have one
    assert row['wrong_called_localized'] == pytest.approx((0.0 + 11 / 21) / 2)
    assert row['rmse_once_below_1m_m'] == pytest.approx(0.2)
    assert row['coverage_2sigma'] is None
    rmse = [one['position_rmse_m'] for one in done]
    assert row['position_rmse_m'] == pytest.approx(np.mean(rmse))
    assert row['position_rmse_m_sd'] == pytest.approx(abs(rmse[1] - rmse[0]) / np.sqrt(2))


def test_unusable_images_of_a_test_run_are_told(train_map, tmp_path, caplog):
    run, plan = write_tiny_cold_run(tmp_path / 'run', frames=6), (('nearest',), (6,), 1)
    files = sorted((run / 'std_cam').iterdir())
    for file in files[:2]:
        file.write_bytes(b'no jpeg')
    compare(train_map, open_dataset(run), tmp_path / 'out', plan)
    assert 'run: skipped 2 of 6 images that cannot be used' in caplog.messages
    for file in files:
        file.write_bytes(b'no jpeg')
    with pytest.raises(EvaluationError, match='no image of run could be used: broken'):
        compare(train_map, open_dataset(run), tmp_path / 'out', plan)
