"""Tuning on tiny runs to and fro along a wall, with odometry that drifts."""

from dataclasses import replace
import json
import signal
import subprocess

from command import assert_one_line, invoke, KBR
from helpers import START_NS, wall_image, write_tiny_cold_run
from kbr_localization import se2
from kbr_localization.configuration import to_mapping
from kbr_localization.datasets import Frame, OdometryTrack
from kbr_localization.datasets.cold import write_cold_run
from kbr_localization.errors import ConfigurationError, LocalizationError
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.localizer import PoseEstimate, UNKNOWN_VARIANCE
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.methods.method_configs import method_config, parameter_value
from kbr_localization.localization.methods.registry import make_localizer
from kbr_localization.localization.tuning import folds as cross_validation
from kbr_localization.localization.tuning import score, tuning
from kbr_localization.localization.tuning.folds import Fold, Frames, make_folds, MAX_FOLD_IMAGES
from kbr_localization.localization.tuning.journal import Journal
from kbr_localization.localization.tuning.score import episodes, FULL, run_episode, run_trial
from kbr_localization.localization.tuning.space import Dimension, propose, search_space, TUNED
from kbr_localization.localization.tuning.tuning import tune, tune_map, TuningPlan
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


@pytest.fixture(scope='module')
def tuned(full_map, runs):
    return tune_map(full_map, runs, SMALL)


def coverage(kernel_map, folds):
    outcomes = [
        run_episode(replace(fold.maps[0], filter_config=kernel_map.filter_config), 'kbr', fold, e)
        for number, fold in enumerate(folds)
        for other in range(18)  # 420 positions are too few to tell 0.978 from 0.99
        for e in episodes(fold, FULL, number + len(folds) * other)
    ]
    return np.mean(np.concatenate([outcome.surprises for outcome in outcomes]) <= 6.18)


def test_a_fold_knows_nothing_of_the_run_that_is_left_out(full_map, runs):
    folds = make_folds(full_map, runs)
    assert len(folds) == 2
    for fold, run in zip(folds, runs, strict=True):
        assert set(fold.run.stamps_ns) == {frame.stamp_ns for frame in run}
        rows = set(fold.maps[0].descriptors[:, 0])
        assert rows.isdisjoint(fold.run.rows) and len(rows) == 40
        assert fold.covered.all()
    similarity = full_map.describer.cross_gram(full_map.descriptors[:1], full_map.descriptors[40:])
    row = folds[0].maps[0].similarities(folds[0].run.rows[:1])
    np.testing.assert_allclose(row, similarity[0], rtol=1e-6)


def test_a_single_run_is_split_into_halves_of_time(runs):
    (there, back) = make_folds(build_map(runs[:1], VISION), runs[:1])
    assert there.run.stamps_ns.max() < back.run.stamps_ns.min()
    assert set(there.maps[0].stamps_ns) == set(back.run.stamps_ns)


def test_runs_that_hardly_meet_are_told(caplog):
    several = [WallRun(1, 60), WallRun(2, 60)]
    make_folds(build_map(several, VISION, BASE), several)
    assert caplog.messages == []
    for run, turn in zip(several, (2.5, -2.5), strict=True):
        for index, frame in list(enumerate(run.frames))[25:]:
            run.frames[index] = replace(
                frame, reference=frame.reference + np.array([0.0, 0.0, turn])
            )
    make_folds(build_map(several, VISION, BASE), several)
    (told,) = caplog.messages
    assert 'only 42% of the frames' in told


@pytest.mark.usefixtures('short_episodes')
def test_maps_of_several_sizes_take_part(full_map, runs):
    folds = make_folds(full_map, runs, sizes=(10, 30))
    assert [[len(part) for part in fold.maps] for fold in folds] == [[10, 30]] * 2
    small = [replace(fold, maps=fold.maps[:1]) for fold in folds]
    large = [replace(fold, maps=fold.maps[1:]) for fold in folds]
    scores = [run_trial(f, 'kbr', {}, FULL, 0)['score'] for f in (small, large, folds)]
    assert scores[0] != scores[1]
    assert scores[2] == pytest.approx(np.sqrt(scores[0] * scores[1]))


def test_sizes_above_the_largest_map_that_is_tried_are_told(full_map, runs, caplog):
    make_folds(full_map, runs, sizes=(10, MAX_FOLD_IMAGES))
    assert caplog.messages == []
    make_folds(full_map, runs, sizes=(10, 800))
    (told,) = caplog.messages
    assert 'maps of 800 images' in told and f'maps of {MAX_FOLD_IMAGES}' in told


def test_the_help_says_how_large_the_maps_of_a_tuner_are():
    shown = ' '.join(invoke('tune', '--help').stdout.replace('│', '').split())
    assert f'{MAX_FOLD_IMAGES} images' in shown


def test_maps_can_be_chosen_at_random_as_in_a_comparison(full_map, runs):
    folds = make_folds(full_map, runs, sizes=(10, 40))
    at_random = make_folds(full_map, runs, sizes=(10, 40), random_maps=True)
    assert [[len(part) for part in fold.maps] for fold in at_random] == [[10, 40]] * 2
    assert at_random[0].maps[0].stamps_ns.tolist() != folds[0].maps[0].stamps_ns.tolist()


def test_bad_parameters_are_replaced_by_good_ones(full_map, runs):
    bad = KbrConfig(points=30, carried_rate=0.0, image_bandwidth=3.0, update_min_d=5.0)
    plan = replace(SMALL, trials=8)
    better, (result,) = tune_map(replace(full_map, filter_config=bad), runs, plan)
    assert result.score < 0.7 * result.default_score
    assert better.filter_config != bad
    for name, value in result.values.items():
        assert getattr(better.filter_config, name) == value
    assert better.filter_config.points == 30


def test_the_covariance_holds_what_it_promises(full_map, runs, tuned):
    folds = make_folds(full_map, runs)
    assert 0.9 <= coverage(tuned[0], folds) <= 0.99


def test_the_same_seed_gives_the_same_parameters_on_any_number_of_processes(short_map, short):
    plan = replace(SMALL, trials=2)
    once, expected = tune_map(short_map, short, plan)
    with open_workers(2) as two:
        again, results = tune_map(short_map, short, plan, workers=two)
    assert results == expected
    assert again.filter_config == once.filter_config
    other, _ = tune_map(short_map, short, replace(plan, trials=1, seed=1))
    assert other.filter_config.covariance_scale != once.filter_config.covariance_scale


class StopAfter:
    """Progress that is interrupted, as by Ctrl-C, after some trials."""

    def __init__(self, trials):
        self.trials = trials

    def __call__(self, what, done, total):
        if what.startswith('tuning') and done >= self.trials:
            raise KeyboardInterrupt


@pytest.mark.usefixtures('short_episodes')
def test_a_stopped_tuner_goes_on_where_it_was(short_map, short, tmp_path):
    _, at_once = tune_map(short_map, short, SMALL)
    path = tmp_path / 'new' / 'trials.jsonl'
    with pytest.raises(KeyboardInterrupt), Journal(path) as journal:
        tune_map(short_map, short, SMALL, journal, StopAfter(3))
    kept = path.read_text()
    assert len(kept.splitlines()) == 3
    path.write_text(kept + '{"key": "cut o')
    with Journal(path) as journal:
        _, results = tune_map(short_map, short, SMALL, journal)
    assert results == at_once
    text = path.read_text()
    assert text.startswith(kept)
    with Journal(path) as journal:
        keys = set(journal.records)
        tune_map(short_map, short, SMALL, journal)
        assert set(journal.records) == keys
    assert path.read_text() == text
    with Journal(path, fresh=True) as journal:
        assert not journal.records


@pytest.mark.usefixtures('short_episodes')
def test_trials_of_other_data_or_another_configuration_are_not_taken(short_map, short, tmp_path):
    plan = replace(SMALL, trials=1)
    with Journal(tmp_path / 'trials') as journal:
        for wall, config in (
            (short_map, BASE),
            (short_map, replace(BASE, points=61)),
            (short_map.subset(np.arange(47)), BASE),
        ):
            before = len(journal.records)
            tune_map(replace(wall, filter_config=config), short, plan, journal)
            assert len(journal.records) == before + 4


def test_two_tuners_do_not_write_one_journal(tmp_path):
    with Journal(tmp_path / 'trials'), pytest.raises(LocalizationError, match='in use'):
        Journal(tmp_path / 'trials')
    Journal(tmp_path / 'trials').close()


@pytest.mark.usefixtures('short_episodes')
def test_baselines_are_tuned_and_run_with_what_was_found(full_map, runs, tmp_path):
    plan = TuningPlan(methods=('knn-particle', 'algorithm1', 'fkbf'), trials=2, sizes=(25,))
    few = replace(full_map, baselines={'knn-particle': {'points': 40}})
    wall, results = tune_map(few, runs, plan)
    assert wall.filter_config == full_map.filter_config
    wall.save(tmp_path / 'map.h5')
    loaded = KernelMap.load(tmp_path / 'map.h5')
    for result in results:
        assert result.score <= result.default_score
        assert result.values.items() <= loaded.baselines[result.method].items()
        for name, value in result.values.items():
            assert parameter_value(result.method, loaded, name) == value
    neighbours = make_localizer('knn-particle', loaded)
    assert neighbours.neighbours.neighbours == results[0].values['neighbours']
    assert neighbours.neighbours.points == 40
    assert neighbours.gate.wanted[0] == results[0].values['update_min_d']
    for localizer, result in zip(('algorithm1', 'fkbf'), results[1:], strict=True):
        assert make_localizer(localizer, loaded).config.delta == result.values['delta']


def test_what_a_map_keeps_for_a_baseline_is_checked(full_map):
    wrong = replace(full_map, baselines={'fkbf': {'delta': -1.0}})
    with pytest.raises(ConfigurationError, match='delta'):
        make_localizer('fkbf', wrong)
    plain = method_config('kbr', full_map)
    assert to_mapping(plain) == to_mapping(BASE)


@pytest.mark.parametrize('method', TUNED)
def test_candidates_stay_within_the_allowed_ranges(full_map, method):
    space = search_space(method)
    parent = {d.name: parameter_value(method, full_map, d.name) for d in space}
    rng = np.random.default_rng(0)
    for generation in (0, 1, 3):
        for _ in range(50):
            values = propose(space, parent, generation, rng)
            assert values != parent
            method_config(method, replace(full_map, baselines={method: values}))
            for d in space:
                changed = values[d.name] != parent[d.name]
                assert not changed or d.low <= values[d.name] <= d.high


def test_errors_are_capped_and_placeholders_and_what_nobody_could_know_are_left_out():
    def answer(x, variance=0.01, confidence=1.0):
        return PoseEstimate(np.array([x, 0, 0]), variance * np.eye(3), confidence, '', {})

    nothing = answer(0.0, UNKNOWN_VARIANCE, 0.0)
    answers = [answer(0.0), answer(0.4), answer(50.0), nothing, answer(np.nan), answer(9.0)]
    found = score._outcome(answers, np.zeros((6, 3)), np.arange(6) < 5)
    assert found.rmse == pytest.approx(np.sqrt((0.4**2 + 3 * score.CAP_M**2) / 5))
    assert found.lost == pytest.approx(3 / 5)
    assert found.score == found.rmse + found.lost
    np.testing.assert_allclose(found.surprises, [0.0, 16.0], rtol=1e-6)


def test_the_spread_is_that_of_the_quantile_and_none_of_a_few():
    surprises = 4.0 * np.random.default_rng(0).chisquare(2, 20_000)
    assert score._spread(surprises) == pytest.approx(4.0 * 5.99 / 6.18, rel=0.03)
    assert score._spread(surprises[:9]) == 1.0


def test_the_whole_run_weighs_as_much_as_all_short_starts():
    outcomes = [score.Outcome(value, value, 0.0, np.zeros(0)) for value in (4.0, 1.0, 1.0, 1.0)]
    assert score._balanced(outcomes) == 2.5
    assert score._balanced(outcomes[:2]) == 2.5
    assert score._balanced(outcomes[1:3]) == 1.0


@pytest.mark.parametrize(('step', 'starts', 'frames'), [(0.2, 25, 76), (2.0, 92, 15)])
def test_short_starts_are_of_frames_that_can_be_known_and_have_a_way_before_them(
    step, starts, frames
):
    poses = np.column_stack([step * np.arange(200.0), np.zeros((200, 2))])
    run = Frames(np.arange(200), np.arange(200), poses, poses)
    fold = Fold(run, np.arange(200) >= 100, ())
    for seed in range(20):
        whole, *short = episodes(fold, FULL, seed)
        assert (whole.start, whole.stop) == (0, 200)
        assert all(100 <= part.start <= 100 + starts for part in short)
        for part in short:
            assert abs(part.stop - min(part.start + frames, 200)) <= 1


def test_an_episode_is_scored_by_its_own_frames_and_moved_by_its_own_odometry(monkeypatch):
    class ByOdometry:
        x = 0.0

        def initialize_globally(self):
            pass

        def predict(self, increment):
            self.x += increment[0]

        def wants_image(self):
            return False

        def estimate(self):
            return PoseEstimate(np.array([self.x, 0, 0]), np.eye(3), 1.0, '', {})

    monkeypatch.setattr(score, 'make_localizer', lambda *_: ByOdometry())
    poses = np.column_stack([0.2 * np.arange(200.0), np.zeros((200, 2))])
    run = Frames(np.arange(200), np.arange(200), poses, poses - poses[100])
    fold = Fold(run, np.arange(200) >= 100, ())
    assert run_episode(None, 'kbr', fold, score.Episode(100, 130, 0)).rmse == pytest.approx(0)
    assert run_episode(None, 'kbr', fold, score.Episode(80, 130, 0)).lost == 1.0


def test_a_frame_is_near_one_that_looks_the_same_way_across_the_cut():
    known = np.array([[0.0, 0.0, np.pi - 0.4]])
    poses = [[1.9, 0, 0.4 - np.pi], [2.1, 0, 0.4 - np.pi], [0, 0, 1.7 - np.pi], [0, 0, 2.0]]
    assert cross_validation._near(np.array(poses), known).tolist() == [True, False, False, True]


def test_who_does_not_beat_the_default_with_other_starts_does_not_replace_it():
    full, fresh = [1.0, 0.5, 0.2, 0.1], [1.0, 0.9, 1.1, None]
    records = [[{'score': value} for value in values] for values in (full, fresh)]
    assert tuning._totals(*records) == [1.0, 0.7, np.inf, np.inf]


@pytest.mark.parametrize('generation', [1, 3])
def test_steps_shrink_with_the_generation_and_none_jumps_but_in_the_first(generation):
    space, rng = (Dimension('a', 1e-3, 1e3),), np.random.default_rng(0)
    drawn = [propose(space, {'a': 1.0}, generation, rng)['a'] for _ in range(1000)]
    expected = np.log(1e6) / 6 / (1 + generation)
    assert np.log(drawn).std() == pytest.approx(expected, rel=0.1)
    assert propose(space, {'a': 0.0}, generation, rng)['a'] >= 1e-3  # of another range


def test_what_the_printed_algorithm_does_not_have_is_not_searched_for_it():
    printed = {d.name for d in search_space('algorithm1')}
    names = {d.name for d in search_space('algorithm1-adapted')}
    assert 'delta' in printed and printed.isdisjoint({'sharpening', 'update_min_d', 'noise_scale'})
    assert {'delta', 'sharpening', 'update_min_d'} <= names and 'outlier_rate' not in names


def test_a_candidate_that_fails_says_why_and_does_not_win(full_map, runs):
    folds = make_folds(full_map, runs)
    record = run_trial(folds, 'kbr', {'image_bandwidth': -1.0}, FULL, 0)
    assert record['score'] is None and 'image_bandwidth' in record['error']


@pytest.mark.parametrize(
    'plan',
    [
        {'methods': ('nearest',)},
        {'methods': ()},
        {'methods': ('kbr', 'kbr')},
        {'trials': 0},
        {'sizes': ()},
        {'sizes': (0,)},
        {'sizes': (10, -3)},
        {'sizes': (None, 0)},
    ],
)
def test_a_plan_without_work_is_refused(plan):
    with pytest.raises(LocalizationError, match='expected'):
        TuningPlan(**plan)


@pytest.mark.usefixtures('short_episodes')
def test_the_map_can_be_limited_in_size(runs):
    wall, _ = tune(runs, replace(SMALL, trials=1, max_images=15), VISION, BASE)
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
