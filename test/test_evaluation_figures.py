"""What a figure of a run or a comparison shows, whatever its numbers are."""

from kbr_localization.evaluation.comparison import Task
from kbr_localization.evaluation.figures import (
    comparison_figure,
    method_colours,
    run_figure,
    save_figure,
    Scene,
)
from kbr_localization.evaluation.metrics import run_errors
from kbr_localization.evaluation.record import ImagePair
from kbr_localization.localization.localizer import LOST_M
from kbr_localization.localization.methods.registry import METHODS
from kbr_localization.trajectory import Trajectory
import numpy as np
import pytest


def along(x, y):
    x, y = np.broadcast_arrays(x, y)
    return Trajectory(np.arange(len(x)), np.column_stack([x, y, np.zeros(len(x))]))


METRES = np.linspace(0.0, 10.0, 21)
STRAIGHT = along(METRES, 0.0)


@pytest.mark.parametrize(('aside', 'shown'), [(2.0, 2.0), (-2.5, 2.5), (500.0, 3.0)])
def test_a_plan_follows_an_estimate_out_of_the_building_but_not_to_its_end(aside, shown):
    strayed = along(METRES, np.linspace(0.0, aside, len(METRES)))
    estimates = {'kbr': strayed, 'other': along(METRES, 900.0)}
    axes = run_figure('run', STRAIGHT.poses, STRAIGHT, estimates, {}).axes[0]
    low, high = axes.get_ylim()
    assert max(-low, high) >= shown
    assert high - low < 2.0 * shown + 3.0


@pytest.mark.parametrize('rmse', [(0.73, 0.84), (0.0, 0.0)])
def test_the_errors_of_a_comparison_can_be_read_from_its_figure(rmse, tmp_path):
    rows = [
        {'method': 'kbr', 'size': size, 'position_rmse_m_mean': error, 'position_rmse_m_sd': None}
        for size, error in zip((50, 100), rmse, strict=True)
    ]
    shown = Scene(Task('kbr', 50, 0), STRAIGHT.poses, STRAIGHT, np.zeros((0, 3)))
    figure = comparison_figure(rows, STRAIGHT, [shown])
    save_figure(figure, tmp_path / 'figure.png')
    low, high = figure.axes[-1].get_ylim()
    assert low < max(rmse[0], 1e-3) < high


def test_an_estimate_that_jumps_draws_no_line_in_between():
    jumping = along(METRES, np.where(METRES < 5.0, 0.0, 3.0))
    axes = run_figure('run', STRAIGHT.poses, STRAIGHT, {'kbr': jumping}, {}).axes[0]
    drawn = next(line for line in axes.lines if line.get_label() == 'kbr')
    assert np.isnan(drawn.get_ydata()).sum() == 1


def test_a_figure_of_a_run_has_the_colours_of_its_images_and_the_limit_of_lost_frames():
    blue = np.zeros((4, 6, 3), np.uint8)
    blue[..., 0] = 255
    pairs = [ImagePair(blue, blue, pose, np.zeros(3), 0.5) for pose in (np.ones(3), None)]
    errors = {'kbr': run_errors(STRAIGHT, along(METRES, 0.5))}
    figure = run_figure('run', STRAIGHT.poses, STRAIGHT, {'kbr': STRAIGHT}, errors, pairs)
    shown = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    assert len(shown) == 4
    assert all((pixels == [0, 0, 255]).all() for pixels in shown)
    # a frame whose place is not known has no number on the plan
    assert [text.get_text() for text in figure.axes[0].texts] == ['1']
    assert figure.axes[1].lines[-1].get_ydata() == [LOST_M, LOST_M]


def test_no_two_methods_of_a_comparison_have_one_colour():
    assert len(set(method_colours(list(METHODS)).values())) == len(METHODS)
