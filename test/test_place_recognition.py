"""What the benchmark of photographs reports, against small cases worked out by hand."""

import importlib
from pathlib import Path

from helpers import FRAME_NS, SHARED_DATA, START_NS, textured_image, tiny_frames, tiny_odometry
from kbr_localization.evaluation.described import DescribedRun
from kbr_localization.trajectory import Trajectory
import numpy as np
import pytest

if not (Path(__file__).parents[1] / 'benchmarks').is_dir():
    pytest.skip('the folder benchmarks/ is not installed', allow_module_level=True)

recognition = importlib.import_module('benchmarks.place_recognition')
seqslam = importlib.import_module('benchmarks.seqslam')
photographs = importlib.import_module('benchmarks.photographs')

DISTANCE = np.abs(np.subtract.outer(np.arange(4.0), np.arange(4.0)))


def test_recall_is_the_fraction_of_images_with_a_right_one_among_the_best():
    similarity = np.eye(4)
    similarity[0] = [0.2, 0.1, 0.0, 0.9]
    assert recognition.recalls(similarity, DISTANCE, 0.5) == [0.75, 1.0, 1.0]
    # an image without a place on the map does not count
    far = np.vstack([DISTANCE, np.full((1, 4), 9.0)])
    more = np.vstack([similarity, np.ones((1, 4))])
    assert recognition.recalls(more, far, 0.5)[0] == 0.75


def test_area_under_precision_and_recall():
    similarity = np.diag([0.9, 0.8, 0.7, 0.6])
    assert recognition.area_under_precision_recall(similarity, DISTANCE, 0.5) == 1.0
    similarity[0] = [0.0, 0.0, 0.0, 0.95]
    # the surest is wrong: precision 1/2, 2/3, 3/4 at recalls of 1/4, 2/4, 3/4
    expected = (1 / 2 + 2 / 3 + 3 / 4) / 4
    found = recognition.area_under_precision_recall(similarity, DISTANCE, 0.5)
    assert found == pytest.approx(expected)
    # an own score puts the wrong one last
    score = np.array([0.0, 1.0, 1.0, 1.0])
    last = recognition.area_under_precision_recall(similarity, DISTANCE, 0.5, score)
    assert last == pytest.approx(3 / 4)


def test_answers_of_a_run():
    """Forty frames 0.2 m apart: the last ten are 2 m off, of which five say localized."""
    frames = tiny_frames(40)
    run = DescribedRun('run', tiny_odometry(40), {}, tuple(frames), np.zeros((40, 1)), 0.0)
    poses = np.array([frame.reference for frame in frames])
    poses[30:, 1] = 2.0
    statuses = ['localized'] * 20 + ['uncertain'] * 10 + ['localized'] * 5 + ['uncertain'] * 5
    trajectory = Trajectory(
        START_NS + np.arange(40) * FRAME_NS,
        poses,
        np.tile(np.eye(3) * 0.01, (40, 1, 1)),
        statuses=tuple(statuses),
    )
    found = recognition.answers(run, trajectory, 1.0)
    assert found['right'] == 0.75
    assert found['said'] == pytest.approx(20 / 30)
    # after 5 m, that is from frame 26 on, only wrong ones say so
    assert found['wrong'] == 1.0
    assert found['misled'] == pytest.approx(5 / 14)
    assert found['covered'] == pytest.approx(20 / 25)


def test_means_leave_out_what_is_unknown():
    rows = [{'a': 1.0, 'b': float('nan')}, {'a': 2.0, 'b': 3.0}]
    assert recognition.mean_of(rows) == {'a': 1.5, 'b': 3.0}


def test_a_thumbnail_does_not_see_the_light():
    image = textured_image(1, (96, 128))
    darker = (40 + 0.5 * image).astype(np.uint8)
    alike = np.abs(seqslam.thumbnail(image) - seqslam.thumbnail(darker)).mean()
    other = np.abs(seqslam.thumbnail(image) - seqslam.thumbnail(textured_image(2))).mean()
    assert alike < 0.1 * other


def test_sequences_find_what_single_images_do_not():
    rng = np.random.default_rng(0)
    truth = np.arange(20, 60)
    difference = rng.uniform(0.5, 1.0, (40, 80))
    difference[np.arange(40), truth] -= 0.25
    alone = np.mean(difference.argmin(axis=1) == truth)
    scores = seqslam.sequence_scores(seqslam.contrasted(difference))
    together = np.mean(np.abs(scores.argmin(axis=1) - truth)[10:] <= 1)
    assert alone < 0.7
    assert together > 0.95
    sure = seqslam.distinctness(scores)
    assert sure.shape == (40,) and np.all((sure >= 0) & (sure <= 1))


def test_lines_do_not_begin_before_the_map():
    scores = seqslam.sequence_scores(np.ones((30, 40)))
    length = seqslam.LENGTH
    assert np.isinf(scores[-1, : round(0.8 * (length - 1))]).all()
    assert np.isfinite(scores[-1, length:]).all()


def test_tables_of_a_small_pair(tmp_path, capsys):
    cv2 = pytest.importorskip('cv2')
    from helpers import wall_image

    for name, shift in (('day', 0.0), ('night', 0.02)):
        (tmp_path / name).mkdir()
        for place in range(30):
            picture = wall_image(0.4 * place + shift)
            cv2.imwrite(str(tmp_path / name / f'{place:03d}.png'), picture)
    pair = ('--pair', str(tmp_path / 'day'), str(tmp_path / 'night'))
    photographs.main([*pair, '--spacing', '0.4', '--seeds', '2', '--methods', 'nearest'])
    text = capsys.readouterr().out
    assert 'odometry is made from that' in text
    assert '| day → night | image kernel | 1.00 / 1.00 / 1.00 |' in text
    assert '| day → night | 0.4 | nearest | 1 | 1 |' in text
    with pytest.raises(SystemExit, match='expected DATA or --pair'):
        photographs.main([])
    with pytest.raises(SystemExit, match='expected --methods to be some of'):
        photographs.main([*pair, '--methods', 'magic'])


@pytest.mark.slow
@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason='../shared/data is absent')
def test_photographs_by_night_from_the_other_side_are_localized():
    """What a map says of itself decides it: with more to make up for, 0.6 of the right ones."""
    gardens = SHARED_DATA / 'gardens_point'
    (pair,) = photographs.pairs(gardens / 'day_left', gardens / 'night_right', [1.0])
    ((*_, right, _, said, wrong, covered),) = photographs.localized(pair, ['kbr'], 1, {})
    assert right > 0.95
    assert said > 0.75  # 0.81 to 0.94 with six vocabularies
    assert wrong < 0.01
    assert covered > 0.85
