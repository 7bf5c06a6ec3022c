"""Tuning on tiny runs to and fro along a wall, with odometry that drifts."""

from dataclasses import replace
import json
from pathlib import Path

from command import assert_one_line, invoke
from helpers import FRAME_NS, START_NS, wall_image, write_tiny_cold_run
from kbr_localization import se2
from kbr_localization.datasets import Frame, OdometryTrack
from kbr_localization.datasets.cold import write_cold_run
from kbr_localization.errors import EvaluationError
from kbr_localization.evaluation import reference_trajectory, tuning
from kbr_localization.evaluation.tuning import make_folds, run_trial, search_ranges, tune
from kbr_localization.localization.config import KbrConfig, sensible_config
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.registry import make_localizer
from kbr_localization.progress import report_to
from kbr_localization.trajectory import Trajectory
from kbr_localization.vision import VisionConfig
from map_helpers import TinyRun
import numpy as np
import pytest

VISION = VisionConfig(words=60, vocabulary_samples=2000, scale_up=False)
BASE = KbrConfig(points=30, carried_rate=0.0)


class WallRun(TinyRun):
    """A run in memory: along the wall and back, always looking the same way."""

    def __init__(self, seed: int, frames: int = 24) -> None:
        self.name, self.skipped = f'wall {seed}', {}
        rng = np.random.default_rng(seed)
        x = 0.15 * np.concatenate([np.arange(frames // 2), np.arange(frames - frames // 2)[::-1]])
        references = np.stack([x, 0.02 * rng.standard_normal(frames), np.zeros(frames)], axis=1)
        steps = se2.between(references[:-1], references[1:])
        steps += [0.01, 0.01, 0.005] * rng.standard_normal((frames - 1, 3))
        odometry = se2.chain([3.0, 1.0, 2.0], steps)
        stamps = START_NS + FRAME_NS * np.arange(frames)
        self.odometry, self.frames = OdometryTrack(stamps, odometry), []
        for stamp, pose, at in zip(stamps.tolist(), references, odometry, strict=True):
            noisy = np.clip(wall_image(pose[0]) + rng.normal(0, 12, (96, 128)), 0, 255)
            self.frames.append(Frame(stamp, noisy.astype(np.uint8), at, pose))


@pytest.fixture(scope='module')
def runs():
    """Give runs hardly longer than the shortest that can be tuned."""
    return [WallRun(1), WallRun(2)]


@pytest.fixture(scope='module')
def full_map(runs):
    return build_map(runs, VISION, vars(BASE))


@pytest.fixture(scope='module')
def folds(full_map, runs):
    """Give the folds with all images of the other run: of the first run, of the second."""
    return sorted(make_folds(full_map, runs, (800,)), key=lambda fold: fold[1].name)


def rows_of(full_map, descriptors):
    """Row numbers of descriptors (k, d) in a map."""
    return {int((full_map.descriptors == one).all(axis=1).argmax()) for one in descriptors}


def tuned(runs, journal=Path('/dev/null'), **options):
    given = {'methods': ('kbr',), 'trials': 3, 'vision': VISION, 'filter_values': vars(BASE)}
    return tune(runs, journal, **given | options)


def test_a_fold_knows_nothing_of_the_run_that_is_left_out(full_map, runs, folds):
    sizes = [len(kernel_map) for kernel_map, _ in make_folds(full_map, runs, (10, 800))]
    assert sizes == [10, 24, 10, 24]
    for kernel_map, run in folds:
        seen = rows_of(full_map, [frame.load_image() for frame in run])
        assert len(seen) == 24 and seen.isdisjoint(rows_of(full_map, kernel_map.descriptors))
        assert all(frame.reference is not None for frame in run)
    kernel_map, run = folds[0]
    similarity = full_map.describer.cross_gram(full_map.descriptors[:1], full_map.descriptors[24:])
    found = kernel_map.similarities(run[0].load_image())
    np.testing.assert_allclose(found, similarity[0], rtol=1e-6)
    np.testing.assert_allclose(run[3].odometry, runs[0].frames[3].odometry)


def test_a_single_run_is_split_into_halves_of_time(full_map):
    run = WallRun(1, 48)
    whole = replace(full_map, run_index=np.zeros(48, dtype=np.int32))
    stamps = np.array([frame.stamp_ns for frame in run.frames])
    for kernel_map, left_out in make_folds(replace(whole, stamps_ns=stamps), [run], (800,)):
        mine = rows_of(full_map, [frame.load_image() for frame in left_out])
        assert mine in ({*range(24)}, {*range(24, 48)})
        assert rows_of(full_map, kernel_map.descriptors) == {*range(48)} - mine


def test_a_frame_is_covered_by_one_nearby_that_looks_the_same_way_across_the_cut(full_map, runs):
    poses = full_map.poses.copy()
    poses[:, 2] = np.pi - 0.4
    poses[24:, 2] = 0.4 - np.pi
    poses[24:26, 2], poses[26:28, 1], poses[28:30, 1] = 1.7 - np.pi, 2.1, 1.5
    folds = make_folds(replace(full_map, poses=poses), runs, (800,))
    (second,) = (run for _, run in folds if run.name == 'run 1')
    covered = [frame.reference is not None for frame in second]
    assert covered == [False] * 4 + [True] * 20


def test_bad_parameters_are_replaced_by_good_ones(runs):
    bad = replace(BASE, image_bandwidth=3.0, update_min_d=5.0)
    better, (result,) = tuned(runs, trials=12, filter_values=vars(bad))
    assert result['score'] < 0.7 * result['default_score']
    for name, value in result['values'].items():
        assert getattr(better.filter_config, name) == value
    assert better.filter_config.points == 30


def test_a_stopped_tuner_continues_where_it_was(runs, tmp_path):
    once, path = tuned(runs), tmp_path / 'trials.jsonl'

    def stop(what, done, total):
        """Interrupt, as by Ctrl-C, once the first trial is in the file."""
        if what.startswith('tuning'):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), report_to(stop):
        tuned(runs, journal=path)
    assert len(path.read_text().splitlines()) == 1
    kernel_map, rows = tuned(runs, journal=path)
    assert rows == once[1] and kernel_map.filter_config == once[0].filter_config
    # trials of another configuration or seed are not taken
    for change in ({'filter_values': vars(BASE) | {'points': 31}}, {'seed': 1}):
        before = path.read_text().splitlines()
        tuned(runs, journal=path, trials=1, **change)
        assert len(path.read_text().splitlines()) == len(before) + 2


def test_rivals_are_tuned_and_run_with_what_was_found(runs, tmp_path):
    methods = ('knn-particle', 'algorithm1')
    wall, results = tuned(runs, methods=methods, trials=2, sizes=(25,))
    assert wall.filter_config == BASE
    wall.save(tmp_path / 'map.h5')
    loaded = KernelMap.load(tmp_path / 'map.h5')
    for result in results:
        assert result['score'] <= result['default_score']
        config = make_localizer(result['method'], loaded).config
        for name, value in result['values'].items():
            assert getattr(config, name) == value


def test_lengths_are_searched_in_the_unit_of_the_map(full_map):
    yard = replace(full_map, poses=full_map.poses * [100.0, 100.0, 1.0])
    field = replace(yard, decay=replace(full_map.decay, length=5.0))
    unit = sensible_config(field.poses, (), 5.0).update_min_d / KbrConfig().update_min_d
    assert unit > 3.0
    near, far = (search_ranges('kbr', one) for one in (replace(yard, decay=None), field))
    changed = {name for name in near if far[name] != near[name]}
    assert changed == {'position_bandwidth', 'update_min_d'}
    assert far['update_min_d'] == pytest.approx(np.multiply(unit, near['update_min_d']))


@pytest.mark.parametrize(
    ('error', 'status', 'rmse', 'lost', 'spread'),
    [
        (0.4, 'localized', 0.4, 0.0, 4.0 / 6.18),
        (9.0, 'localized', 3.0, 1.0, 1.0),
        (0.4, 'not localized', 3.0, 1.0, 1.0),
    ],
)
def test_errors_are_capped_and_answers_without_a_pose_are_lost(
    folds, monkeypatch, error, status, rmse, lost, spread
):
    def answer(kernel_map, run, *_, **__):
        truth, count = reference_trajectory(run), len(run)
        sure = np.tile(0.04 * np.eye(3), (count, 1, 1))
        poses = truth.poses + np.array([0.0, error, 0.0])
        return Trajectory(truth.stamps_ns, poses, sure, statuses=(status,) * count)

    monkeypatch.setattr(tuning, 'localize', answer)
    found = run_trial(folds[:1], 0, ('kbr', {}, [0]))
    values = [found[name] for name in ('rmse_m', 'lost_fraction', 'score', 'spread')]
    assert values == pytest.approx([rmse, lost, rmse + lost, spread], rel=1e-3)


def test_parameters_that_cannot_be_used_have_the_worst_score(folds):
    failed = run_trial(folds, 0, ('kbr', {'image_bandwidth': -1.0}, [0]))
    assert failed['score'] == np.inf and 'image_bandwidth' in failed['error']


SETTINGS = ('--set', 'vision.words=20', '--set', 'vision.vocabulary_samples=2000')


def test_the_command_makes_a_map_with_what_was_found(runs, tmp_path, monkeypatch):
    out, arguments, sizes = tmp_path / 'map.h5', [], []
    monkeypatch.setattr(tuning, 'make_folds', lambda *a: sizes.append(a[2]) or make_folds(*a))
    for name, run in zip('ab', runs, strict=True):
        write_cold_run(tmp_path / name, list(run), run.odometry)
        arguments.append(tmp_path / name)
    arguments += ['--out', out, '--methods', 'kbr', *SETTINGS, '--trials', 1, '--sizes', '15']
    result = invoke('tune', *arguments, '--jobs', 1, '--json')
    assert result.returncode == 0, result.stderr
    _, last = (tmp_path / 'map.h5.trials.jsonl').read_text().splitlines()
    (row,) = json.loads(result.stdout)
    assert sizes == [(15,)] and row['score'] <= row['default_score']
    # by how much the errors of the chosen parameters were larger or smaller than stated
    scale = KbrConfig().covariance_scale * json.loads(last)[2]['spread']
    assert row['values']['covariance_scale'] == pytest.approx(scale)
    assert KernelMap.load(out).filter_config.covariance_scale == pytest.approx(scale)


def test_trials_that_cannot_be_kept_are_refused_before_the_work(tmp_path):
    (tmp_path / 'map.h5.trials.jsonl').mkdir()
    for name, says in (('map.h5', 'map.h5.trials.jsonl is a folder'), (252 * 'm', 'too long')):
        result = invoke('tune', tmp_path / 'no_run', '--out', tmp_path / name)
        assert_one_line(result, says)


def test_runs_that_do_not_meet_or_are_too_short_cannot_be_tuned(tmp_path):
    with pytest.raises(EvaluationError, match='half of a single run'):
        tuned([WallRun(1, 38)])
    write_tiny_cold_run(tmp_path / 'run', frames=60)
    for methods, says in (('kbr', 'same places'), ('nearest', 'expected some of')):
        out = ('--out', tmp_path / 'map.h5', '--methods', methods)
        assert_one_line(invoke('tune', tmp_path / 'run', *out, *SETTINGS), says)
        # nor is there a journal of no trials
        assert [path.name for path in tmp_path.iterdir()] == ['run']
