"""The images of photographs alone, against small cases worked out by hand."""

import importlib
from pathlib import Path

import cv2
from helpers import textured_image, wall_image
import numpy as np
import pytest

if not (Path(__file__).parents[1] / 'benchmarks').is_dir():
    pytest.skip('the folder benchmarks/ is not installed', allow_module_level=True)

photographs = importlib.import_module('benchmarks.photographs')


def test_recall_is_the_fraction_of_images_whose_best_match_is_the_place():
    apart = np.abs(np.subtract.outer(np.arange(4.0), np.arange(4.0)))
    difference = 1.0 - np.eye(4)
    difference[0] = [0.8, 0.9, 1.0, 0.1]
    assert photographs.recall(difference, apart, 0.5) == 0.75
    # an image without a place on the map does not count
    far, more = np.vstack([apart, np.full((1, 4), 9.0)]), np.vstack([difference, np.ones((1, 4))])
    assert photographs.recall(more, far, 0.5) == 0.75


def test_a_thumbnail_does_not_see_the_light():
    image = textured_image(1, (96, 128))
    darker = (40 + 0.5 * image).astype(np.uint8)
    alike = np.abs(photographs.thumbnail(image) - photographs.thumbnail(darker)).mean()
    other = np.abs(photographs.thumbnail(image) - photographs.thumbnail(textured_image(2))).mean()
    assert alike < 0.1 * other


def test_sequences_find_what_single_images_do_not():
    rng = np.random.default_rng(0)
    truth, size = np.arange(20, 60), (photographs.HEIGHT, photographs.WIDTH)
    mapped = rng.uniform(0.0, 255.0, (80, *size))
    noise = rng.uniform(0.0, 255.0, (40, *size))
    images, places = (x.astype(np.uint8) for x in (0.05 * mapped[truth] + 0.95 * noise, mapped))
    difference = photographs.contrasted(images, places)
    alone = np.mean(difference.argmin(axis=1) == truth)
    scores = photographs.sequence_scores(difference)
    together = np.mean(np.abs(scores.argmin(axis=1) - truth)[10:] <= 1)
    assert alone < 0.7
    assert together > 0.95


def test_lines_do_not_begin_before_the_map():
    scores = photographs.sequence_scores(np.ones((30, 40)))
    length = photographs.LENGTH
    assert np.isinf(scores[-1, : round(0.8 * (length - 1))]).all()
    assert np.isfinite(scores[-1, length:]).all()


def test_the_table_of_small_traverses(tmp_path, capsys):
    for number, name in enumerate(('day_left', 'day_right', 'night_right')):
        (tmp_path / name).mkdir()
        for place in range(30):
            picture = wall_image(0.4 * place + 0.02 * number)
            cv2.imwrite(str(tmp_path / name / f'{place:03d}.png'), picture)
    photographs.main([str(tmp_path)])
    assert '| day_right → night_right | image kernel | 1.00 | 1.00 |' in capsys.readouterr().out
