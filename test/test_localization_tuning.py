"""Tuning on tiny runs to and fro along a wall, with odometry that drifts."""

from dataclasses import replace
import json
import signal
import subprocess

from command import assert_one_line, invoke, KBR
from helpers import START_NS, wall_image, write_tiny_cold_run
from kbr_localization import se2
from kbr_localization.datasets import Frame, OdometryTrack
from kbr_localization.datasets.cold import write_cold_run
from kbr_localization.errors import LocalizationError
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.localizer import PoseEstimate, UNKNOWN_VARIANCE
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods import cross_validation
from kbr_localization.localization.methods.cross_validation import (
    make_folds,
    MAX_FOLD_IMAGES,
    near,
)
from kbr_localization.localization.methods.registry import make_localizer, method_config
from kbr_localization.localization.methods.tuning import (
    Journal,
    propose,
    searched,
    tune,
    tune_map,
    TUNED,
    TuningPlan,
)
from kbr_localization.vision import VisionConfig
from kbr_localization.workers import open_workers
from map_helpers import TinyRun
import numpy as np
import pytest

VISION = VisionConfig(words=120, vocabulary_samples=4000, scale_up=False)
BASE = KbrConfig(points=30, carried_rate=0.0)
SMALL = TuningPlan(methods=('kbr',), trials=5)
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
        odometry = [np.array([3.0, 1.0, 2.0])]
        for step in steps:
            odometry.append(se2.compose(odometry[-1], step))
        stamps = START_NS + STEP_NS * np.arange(frames)
        self.odometry = OdometryTrack(stamps, np.array(odometry))
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
def short_map(short):
    return build_map(short, VISION, BASE)


@pytest.fixture(scope='module')
def full_map(runs):
    return build_map(runs, VISION, BASE)


def test_a_fold_knows_nothing_of_the_run_that_is_left_out(full_map, runs):
    folds = make_folds(full_map, runs, sizes=(10, None))
    assert len(folds) == 2
    for fold in folds:
        small, whole = fold.maps
        assert set(whole.descriptors[:, 0]).isdisjoint(fold.run.rows)
        assert (len(small), len(whole)) == (10, 40)
        assert fold.covered.all()
    similarity = full_map.describer.cross_gram(full_map.descriptors[:1], full_map.descriptors[40:])
    row = folds[0].maps[1].similarities(folds[0].run.rows[:1])
    np.testing.assert_allclose(row, similarity[0], rtol=1e-6)


def test_a_single_run_is_split_into_halves_of_time(runs):
    (there, back) = make_folds(build_map(runs[:1], VISION), runs[:1])
    assert there.run.rows.max() < back.run.rows.min()
    assert set(there.maps[0].descriptors[:, 0]) == set(back.run.rows)


def test_runs_that_hardly_meet_and_maps_too_large_to_try_are_told(full_map, runs, caplog):
    make_folds(full_map, runs, sizes=(10, MAX_FOLD_IMAGES))
    assert caplog.messages == []
    make_folds(full_map, runs, sizes=(10, 800))
    assert f'maps of 800 images are tuned on maps of {MAX_FOLD_IMAGES}' in caplog.messages[0]
    several = [WallRun(1, 60), WallRun(2, 60)]
    for run, turn in zip(several, (2.5, -2.5), strict=True):
        for index, frame in list(enumerate(run.frames))[25:]:
            run.frames[index] = replace(
                frame, reference=frame.reference + np.array([0.0, 0.0, turn])
            )
    make_folds(build_map(several, VISION, BASE), several)
    assert 'only 42% of the frames' in caplog.messages[1]


def test_a_frame_is_near_one_that_looks_the_same_way_across_the_cut():
    known = np.array([[0.0, 0.0, np.pi - 0.4]])
    poses = [[1.9, 0, 0.4 - np.pi], [2.1, 0, 0.4 - np.pi], [0, 0, 1.7 - np.pi], [0, 0, 2.0]]
    assert near(np.array(poses), known).tolist() == [True, False, False, True]


def test_bad_parameters_are_replaced_by_good_ones_whose_covariance_holds(full_map, runs):
    bad = KbrConfig(points=30, carried_rate=0.0, image_bandwidth=3.0, update_min_d=5.0)
    start = replace(full_map, filter_config=bad)
    folds = make_folds(start, runs)
    better, (result,) = tune_map(start, folds, replace(SMALL, trials=8))
    assert result.score < 0.7 * result.default_score
    for name, value in result.values.items():
        assert getattr(better.filter_config, name) == value
    assert better.filter_config.points == 30
    rng = np.random.default_rng(0)
    inside = [
        cross_validation.localize_fold(
            replace(fold.maps[0], filter_config=better.filter_config), 'kbr', fold, start, rng
        ).surprises
        <= 6.18
        for fold in folds
        for start in (0, 3, 7, 11, 16) * 4
    ]
    assert 0.87 <= np.concatenate(inside).mean() <= 0.995


def test_the_same_seed_gives_the_same_parameters_on_any_number_of_processes(short_map, short):
    plan = replace(SMALL, trials=2)
    once, expected = tune_map(short_map, make_folds(short_map, short), plan)
    with open_workers(2) as two:
        folds = make_folds(short_map, short)
        again, results = tune_map(short_map, folds, plan, workers=two)
    assert results == expected
    assert again.filter_config == once.filter_config
    other, _ = tune_map(short_map, folds, replace(plan, trials=1, seed=1))
    assert other.filter_config.covariance_scale != once.filter_config.covariance_scale


class StopAfter:
    """Progress that is interrupted, as by Ctrl-C, after some trials."""

    def __init__(self, trials):
        self.trials = trials

    def __call__(self, what, done, total):
        if what.startswith('tuning') and done >= self.trials:
            raise KeyboardInterrupt


def test_a_stopped_tuner_continues_where_it_was(short_map, short, tmp_path):
    def tuned(journal, *arguments):
        return tune_map(short_map, make_folds(short_map, short), SMALL, journal, *arguments)[1]

    at_once = tuned(Journal(None))
    path = tmp_path / 'new' / 'trials.jsonl'
    with pytest.raises(KeyboardInterrupt), Journal(path) as journal:
        tuned(journal, StopAfter(3))
    kept = path.read_text()
    assert len(kept.splitlines()) == 3
    path.write_text(kept + '{"key": "cut o')
    with Journal(path) as journal:
        with pytest.raises(LocalizationError, match='in use'):
            Journal(path)
        assert tuned(journal) == at_once
    text = path.read_text()
    assert text.startswith(kept)
    with Journal(path) as journal:
        known = len(journal.records)
        tuned(journal)
        assert len(journal.records) == known
    assert path.read_text() == text
    with Journal(path, fresh=True) as journal:
        assert not journal.records


def test_trials_of_other_data_or_another_configuration_are_not_taken(short_map, short, tmp_path):
    plan = replace(SMALL, trials=1)
    with Journal(tmp_path / 'trials') as journal:
        for wall, config in (
            (short_map, BASE),
            (short_map, replace(BASE, points=61)),
            (short_map.subset(np.arange(47)), BASE),
        ):
            before = len(journal.records)
            changed = replace(wall, filter_config=config)
            tune_map(changed, make_folds(changed, short), plan, journal)
            assert len(journal.records) == before + 2


def test_rivals_are_tuned_and_run_with_what_was_found(full_map, runs, tmp_path):
    plan = TuningPlan(methods=('knn-particle', 'algorithm1', 'fkbf'), trials=2)
    few = replace(full_map, baselines={'knn-particle': {'points': 40}})
    wall, results = tune_map(few, make_folds(few, runs, sizes=(25,)), plan)
    assert wall.filter_config == full_map.filter_config
    wall.save(tmp_path / 'map.h5')
    loaded = KernelMap.load(tmp_path / 'map.h5')
    for result in results:
        assert result.score <= result.default_score
        assert result.values.items() <= loaded.baselines[result.method].items()
        config = make_localizer(result.method, loaded).config
        for name, value in result.values.items():
            assert getattr(config, name) == value
    assert method_config('knn-particle', loaded).points == 40


@pytest.mark.parametrize('method', TUNED)
def test_candidates_stay_within_the_ranges_and_steps_shrink(full_map, method):
    config = method_config(method, full_map)
    space = searched(method)
    parent = {name: getattr(config, name) for name in space}
    for number in (0, 3):
        drawn = [propose(method, parent, number, [seed]) for seed in range(300)]
        for name, (low, high, whole) in space.items():
            values = [values[name] for values in drawn if values[name] != parent[name]]
            assert 60 < len(values) < 240 and all(low <= value <= high for value in values)
            assert all(isinstance(value, int) for value in values) or not whole
            if number == 3 and low < parent[name] < high and not whole:
                expected = np.log(high / low) / 6 / 4
                assert np.std(np.log(values)) == pytest.approx(expected, rel=0.3)
        for values in drawn[:20]:
            method_config(method, replace(full_map, baselines={method: values}))


def test_what_the_printed_algorithm_does_not_have_is_not_searched_for_it():
    assert set(searched('algorithm1')) == {
        'position_bandwidth',
        'heading_bandwidth',
        'state_ridge',
        'delta',
    }
    assert 'nearest' not in TUNED and 'dead-reckoning' not in TUNED


def test_errors_are_capped_and_placeholders_and_what_nobody_could_know_are_left_out():
    def answer(x, variance=0.01, confidence=1.0):
        return PoseEstimate(np.array([x, 0, 0]), variance * np.eye(3), confidence, '', {})

    nothing = answer(0.0, UNKNOWN_VARIANCE, 0.0)
    answers = [answer(0.0), answer(0.4), answer(50.0), nothing, answer(np.nan), answer(9.0)]
    found = cross_validation.judge(answers, np.zeros((6, 3)), np.arange(6) < 5)
    assert found.rmse == pytest.approx(np.sqrt((0.4**2 + 3 * cross_validation.CAP_M**2) / 5))
    assert found.lost == pytest.approx(3 / 5)
    assert found.score == found.rmse + found.lost
    np.testing.assert_allclose(found.surprises, [0.0, 16.0], rtol=1e-6)


def test_the_spread_is_that_of_the_quantile_and_none_of_a_few():
    surprises = 4.0 * np.random.default_rng(0).chisquare(2, 20_000)
    assert cross_validation.spread(surprises) == pytest.approx(4.0 * 5.99 / 6.18, rel=0.03)
    assert cross_validation.spread(surprises[:9]) == 1.0


def test_a_candidate_that_fails_says_why_and_sizes_count_alike(full_map, runs):
    folds = make_folds(full_map, runs, sizes=(10, 30))
    failed = cross_validation.run_trial(folds, 'kbr', (0, 0), {'image_bandwidth': -1.0})
    assert failed['score'] is None and 'image_bandwidth' in failed['error']
    parts = [[replace(fold, maps=(fold.maps[i],)) for fold in folds] for i in (0, 1)]
    small, large, both = (
        cross_validation.run_trial(f, 'nearest', (0, 0), {})['score'] for f in (*parts, folds)
    )
    assert small != large and both == pytest.approx(np.sqrt(small * large))


@pytest.mark.parametrize(
    'plan',
    [
        {'methods': ('nearest',)},
        {'methods': ()},
        {'methods': ('kbr', 'kbr')},
        {'trials': 0},
        {'sizes': ()},
        {'sizes': (None, 0)},
        {'max_images': 0},
    ],
)
def test_a_plan_without_work_is_refused(plan):
    with pytest.raises(LocalizationError, match='expected'):
        TuningPlan(**plan)


def test_the_map_can_be_limited_in_size(short):
    wall, _ = tune(short, replace(SMALL, trials=1, max_images=15), VISION, BASE)
    assert len(wall) == 15 and len(wall.thumbnails) == 15


@pytest.fixture(scope='module')
def on_disk(short, tmp_path_factory):
    folder = tmp_path_factory.mktemp('walls')
    for name, run in zip('ab', short, strict=True):
        write_cold_run(folder / name, list(run), run.odometry)
    return folder


SETTINGS = (
    '--set',
    'vision.words=20',
    '--set',
    'vision.vocabulary_samples=2000',
    '--set',
    'points=60',
)


def test_a_killed_command_loses_at_most_the_trials_in_flight(on_disk, tmp_path):
    out, trials = tmp_path / 'map.h5', tmp_path / 'map.h5.trials.jsonl'
    arguments = ('tune', on_disk / 'a', on_disk / 'b', '--out', out, '--methods', 'kbr')
    arguments += (*SETTINGS, '--trials', 3, '--jobs', 1, '--sizes', '15', '--json')
    killed = subprocess.Popen([*KBR, *map(str, arguments)], stderr=subprocess.PIPE, text=True)
    reported = 0
    for line in killed.stderr:
        if line.startswith('tuning kbr: '):
            reported = int(line.split()[2])
        if reported >= 2:
            break
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert reported >= 2 and not out.exists()
    lines = trials.read_text().splitlines()
    assert len(lines) >= reported
    result = invoke(*arguments)
    assert result.returncode == 0, result.stderr
    assert trials.read_text().splitlines()[: len(lines)] == lines
    (row,) = json.loads(result.stdout)
    assert row['score'] <= row['default_score']
    loaded = KernelMap.load(out)
    assert loaded.filter_config.covariance_scale == row['values']['covariance_scale']


def test_trials_that_cannot_be_kept_are_refused_before_the_work(tmp_path):
    (tmp_path / 'map.h5.trials.jsonl').mkdir()
    for name, says in (('map.h5', 'map.h5.trials.jsonl is a folder'), (252 * 'm', 'too long')):
        result = invoke('tune', tmp_path / 'no_run', '--out', tmp_path / name)
        assert_one_line(result, says)


@pytest.mark.parametrize('frames', [1, 2, 38])
def test_a_run_that_is_too_short_to_be_split_is_named_as_such(frames):
    with pytest.raises(LocalizationError, match=r'half of a single run\) has \d+ usable frames'):
        tune([WallRun(1, frames)], SMALL, VISION)


def test_runs_that_do_not_meet_cannot_be_tuned(tmp_path):
    write_tiny_cold_run(tmp_path / 'run', frames=60)
    result = invoke('tune', tmp_path / 'run', '--out', tmp_path / 'map.h5', *SETTINGS)
    assert_one_line(result, 'same places')
    # nor is there a journal of no trials
    assert [path.name for path in tmp_path.iterdir()] == ['run']
