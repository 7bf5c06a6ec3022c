"""Tuning on tiny runs to and fro along a wall, with odometry that drifts."""

from dataclasses import replace
import json

from command import assert_one_line, invoke
from helpers import START_NS, wall_image, write_tiny_cold_run
from kbr_localization import se2
from kbr_localization.datasets import Frame, OdometryTrack
from kbr_localization.datasets.cold import write_cold_run
from kbr_localization.errors import LocalizationError
from kbr_localization.files import claim
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.localizer import Localizer, nothing_known, PoseEstimate
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.base import ON_MAP, SURE
from kbr_localization.localization.methods.baselines import NearestImage
from kbr_localization.localization.methods.registry import (
    make_localizer,
    Method,
    method_config,
    METHODS,
)
from kbr_localization.localization.methods.tuning import (
    localize,
    make_folds,
    propose,
    run_trial,
    searched,
    tune,
    TUNED,
)
from kbr_localization.vision import VisionConfig
from kbr_localization.workers import open_workers
from map_helpers import TinyRun
import numpy as np
import pytest

VISION = VisionConfig(words=60, vocabulary_samples=2000, scale_up=False)
BASE = KbrConfig(points=30, carried_rate=0.0)
STEP_NS = 400_000_000


class WallRun(TinyRun):
    """A run in memory: along the wall and back, always looking the same way."""

    def __init__(self, seed: int, frames: int = 40) -> None:
        self.name, self.skipped = f'wall {seed}', {}
        rng = np.random.default_rng(seed)
        x = 0.15 * np.concatenate([np.arange(frames // 2), np.arange(frames - frames // 2)[::-1]])
        references = np.stack([x, 0.02 * rng.standard_normal(frames), np.zeros(frames)], axis=1)
        steps = se2.between(references[:-1], references[1:])
        steps += [0.01, 0.01, 0.005] * rng.standard_normal((frames - 1, 3))
        odometry = se2.chain([3.0, 1.0, 2.0], steps)
        stamps = START_NS + STEP_NS * np.arange(frames)
        self.odometry = OdometryTrack(stamps, odometry)
        self.frames = [
            Frame(int(stamp), self._image(p, rng), o, p)
            for stamp, p, o in zip(stamps, references, odometry, strict=True)
        ]

    @staticmethod
    def _image(pose, rng):
        noise = rng.normal(0, 12, (96, 128))
        return np.clip(wall_image(pose[0]) + noise, 0, 255).astype(np.uint8)


@pytest.fixture(scope='module')
def runs():
    return [WallRun(1), WallRun(2)]


@pytest.fixture(scope='module')
def short():
    """Give runs hardly longer than the shortest that can be tuned."""
    return [WallRun(1, 24), WallRun(2, 24)]


@pytest.fixture(scope='module')
def full_map(runs):
    return build_map(runs, VISION, BASE)


def tuned(runs, **options):
    given = {'methods': ('kbr',), 'trials': 3, 'vision': VISION, 'filter_values': BASE}
    return tune(runs, **given | options)


def test_a_fold_knows_nothing_of_the_run_that_is_left_out(full_map, runs):
    folds = make_folds(full_map, runs, (10, 800))
    assert [len(fold.kernel_map) for fold in folds] == [10, 40, 10, 40]
    for fold in folds:
        assert set(fold.kernel_map.descriptors[:, 0]).isdisjoint(fold.rows)
        assert fold.covered.all()
    fold = next(fold for fold in folds[1::2] if fold.rows[0] == 0)
    similarity = full_map.describer.cross_gram(full_map.descriptors[:1], full_map.descriptors[40:])
    np.testing.assert_allclose(
        fold.kernel_map.similarities(fold.rows[:1]), similarity[0], rtol=1e-6
    )


def test_a_single_run_is_split_into_halves_of_time(full_map, runs):
    one, two = make_folds(full_map.subset(np.arange(40)), runs[:1], (800,))
    assert {*one.rows} == {*range(20)} or {*two.rows} == {*range(20)}
    assert {*one.kernel_map.descriptors[:, 0]} == {*two.rows}


def test_a_frame_is_covered_by_one_nearby_that_looks_the_same_way_across_the_cut(full_map, runs):
    poses = full_map.poses.copy()
    poses[:, 2] = np.pi - 0.4
    poses[40:, 2] = 0.4 - np.pi
    poses[40:44, 2], poses[44:48, 1], poses[48:52, 1] = 1.7 - np.pi, 2.1, 1.5
    folds = make_folds(replace(full_map, poses=poses), runs, (800,))
    (second,) = (fold for fold in folds if fold.rows[0] == 40)
    assert second.covered.tolist() == [False] * 8 + [True] * 32


def test_bad_parameters_are_replaced_by_good_ones_whose_covariance_holds(full_map, runs):
    bad = replace(BASE, image_bandwidth=3.0, update_min_d=5.0)
    better, (result,) = tuned(runs, trials=12, filter_values=bad)
    assert result['score'] < 0.7 * result['default_score']
    for name, value in result['values'].items():
        assert getattr(better.filter_config, name) == value
    assert better.filter_config.points == 30
    inside = []
    for fold in make_folds(full_map, runs, (800,)):
        kernel_map = replace(fold.kernel_map, filter_config=better.filter_config)
        for seed, start in enumerate((0, 3, 7, 11, 16) * 4):
            errors, surprises = localize(make_localizer('kbr', kernel_map, seed), fold, start)
            inside.append(surprises[errors < 1.0] <= 6.18)
    assert 0.87 <= np.concatenate(inside).mean() <= 0.995


@pytest.fixture(scope='module')
def at_once(short):
    """Tune short runs in one process, without a journal."""
    return tuned(short)


def test_the_same_seed_gives_the_same_parameters_on_any_number_of_processes(short, at_once):
    with open_workers(2) as two:
        again, results = tuned(short, workers=two)
    assert results == at_once[1]
    assert again.filter_config == at_once[0].filter_config
    other, _ = tuned(short, trials=1, seed=1, max_images=15)
    assert other.filter_config.covariance_scale != again.filter_config.covariance_scale
    assert len(other) == 15


def test_a_stopped_tuner_continues_where_it_was(short, at_once, tmp_path):
    path = tmp_path / 'trials.jsonl'

    def stop(what, done, total):
        """Interrupt, as by Ctrl-C, once the first trial is in the file."""
        if what.startswith('tuning') and path.read_text().endswith('\n'):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuned(short, journal=path, progress=stop)
    kept = path.read_text()
    assert len(kept.splitlines()) == 1
    path.write_text(kept + '{"key": "cut o')
    assert tuned(short, journal=path)[1] == at_once[1]
    text = path.read_text()
    assert text.startswith(kept) and len(text.splitlines()) > 3
    tuned(short, journal=path)
    assert path.read_text() == text


def test_trials_of_another_configuration_or_map_are_not_taken(short, tmp_path):
    path, options = tmp_path / 'trials.jsonl', {'trials': 1, 'journal': tmp_path / 'trials.jsonl'}
    changes = {'filter_values': replace(BASE, points=61)}, {'max_images': 9}, {'fresh': True}
    for change, lines in zip(({}, *changes), (2, 4, 6, 2), strict=True):
        tuned(short, **options, **change)
        assert len(path.read_text().splitlines()) == lines
    with path.open('ab') as file:
        claim(file, AssertionError())
        with pytest.raises(LocalizationError, match='in use'):
            tuned(short, **options)


def test_rivals_are_tuned_and_run_with_what_was_found(runs, tmp_path):
    methods = ('knn-particle', 'algorithm1', 'fkbf')
    wall, results = tuned(runs, methods=methods, trials=2, sizes=(25,))
    assert wall.filter_config == BASE
    wall.save(tmp_path / 'map.h5')
    loaded = KernelMap.load(tmp_path / 'map.h5')
    for result in results:
        assert result['score'] <= result['default_score']
        config = make_localizer(result['method'], loaded).config
        for name, value in result['values'].items():
            assert getattr(config, name) == value


@pytest.mark.parametrize('method', TUNED)
def test_candidates_stay_within_the_ranges_and_steps_shrink(full_map, method):
    assert set(searched('algorithm1')) == set(ON_MAP) - set(SURE)  # those of the paper
    config, rng = method_config(method, full_map), np.random.default_rng(0)
    parent = {name: getattr(config, name) for name in searched(method)}
    for number in (0, 3):
        drawn = [propose(method, parent, number, rng) for _ in range(300)]
        for name, (low, high) in searched(method).items():
            values = [values[name] for values in drawn if values[name] != parent[name]]
            assert 60 < len(values) < 240 and all(low <= value <= high for value in values)
            assert all(type(value) is type(parent[name]) for value in values)
            if number == 3 and low < parent[name] < high and isinstance(parent[name], float):
                expected = np.log(high / low) / 4 / 4
                assert np.std(np.log(values)) == pytest.approx(expected, rel=0.3)
        for values in drawn[:20]:
            method_config(method, replace(full_map, baselines={method: values}))


class WrongBy(Localizer):
    """Answers that are wrong by so many metres; None has no pose."""

    def __init__(self, run, error):
        self.run, self.error, self.frame = run, error, 0

    def initialize_globally(self):
        pass

    def predict(self, odometry_increment):
        pass

    def wants_image(self):
        return True

    def update(self, descriptor):
        self.frame = int(descriptor[0])

    def estimate(self):
        if self.error is None:
            return nothing_known({})
        pose = self.run[self.frame].reference + np.array([0.0, self.error, 0.0])
        return PoseEstimate(pose, 0.04 * np.eye(3), 1.0, 'localized', {})


def test_errors_are_capped_and_answers_without_a_pose_are_lost(full_map, runs, monkeypatch):
    folds = [fold for fold in make_folds(full_map, runs, (800,)) if fold.rows[0] == 0]
    for error, rmse, lost, spread in ((0.4, 0.4, 0.0, 4.0 / 6.18), (9.0, 3.0, 1.0, 1.0)):
        wrong = Method('wrong', NearestImage.parameters, lambda *_, by=error: WrongBy(runs[0], by))
        monkeypatch.setitem(METHODS, 'wrong', wrong)
        found = run_trial(folds, 'wrong', (0, 0), {})
        expected = [rmse, lost, rmse + lost, spread]
        values = [found[name] for name in ('rmse_m', 'lost_fraction', 'score', 'spread')]
        assert values == pytest.approx(expected, rel=1e-3)
    errors, _ = localize(WrongBy(runs[0], None), folds[0], 4)
    assert errors.tolist() == [np.inf] * 12
    failed = run_trial(folds, 'kbr', (0, 0), {'image_bandwidth': -1.0})
    assert failed['score'] == np.inf and 'image_bandwidth' in failed['error']


SETTINGS = ('--set', 'vision.words=20', '--set', 'vision.vocabulary_samples=2000')


def test_the_command_makes_a_map_with_what_was_found(short, tmp_path):
    out, arguments = tmp_path / 'map.h5', []
    for name, run in zip('ab', short, strict=True):
        write_cold_run(tmp_path / name, list(run), run.odometry)
        arguments.append(tmp_path / name)
    arguments += ['--out', out, '--methods', 'kbr', *SETTINGS, '--trials', 2, '--sizes', '15']
    result = invoke('tune', *arguments, '--jobs', 1, '--json')
    assert result.returncode == 0, result.stderr
    assert len((tmp_path / 'map.h5.trials.jsonl').read_text().splitlines()) == 4
    (row,) = json.loads(result.stdout)
    assert row['score'] <= row['default_score']
    loaded = KernelMap.load(out)
    assert loaded.filter_config.covariance_scale == row['values']['covariance_scale']


def test_trials_that_cannot_be_kept_are_refused_before_the_work(tmp_path):
    (tmp_path / 'map.h5.trials.jsonl').mkdir()
    for name, says in (('map.h5', 'map.h5.trials.jsonl is a folder'), (252 * 'm', 'too long')):
        result = invoke('tune', tmp_path / 'no_run', '--out', tmp_path / name)
        assert_one_line(result, says)


def test_runs_that_do_not_meet_or_are_too_short_cannot_be_tuned(tmp_path):
    for frames in (1, 2, 38):
        with pytest.raises(LocalizationError, match='half of a single run'):
            tuned([WallRun(1, frames)])
    write_tiny_cold_run(tmp_path / 'run', frames=60)
    for methods, says in (('kbr', 'same places'), ('nearest', 'expected some of')):
        out = ('--out', tmp_path / 'map.h5', '--methods', methods)
        assert_one_line(invoke('tune', tmp_path / 'run', *out, *SETTINGS), says)
        # nor is there a journal of no trials
        assert [path.name for path in tmp_path.iterdir()] == ['run']
