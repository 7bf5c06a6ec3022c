"""What a picture of a run or a comparison shows, whatever its numbers are."""

from kbr_localization.evaluation.comparison_figure import (
    COLUMNS,
    comparison_figure,
    log_ticks,
    Scene,
)
from kbr_localization.evaluation.matches import ImagePair
from kbr_localization.evaluation.metrics import run_errors
from kbr_localization.evaluation.pictures import (
    method_colours,
    plan_axes,
    run_figure,
    save_figure,
)
from kbr_localization.evaluation.protocol import Task
from kbr_localization.localization.localizer import LOST_M
from kbr_localization.localization.methods.registry import METHODS
from kbr_localization.trajectory import Trajectory
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
import numpy as np
from PIL import Image
import pytest


def along(x, y):
    x, y = np.broadcast_arrays(x, y)
    return Trajectory(np.arange(len(x)), np.column_stack([x, y, np.zeros(len(x))]))


METRES = np.linspace(0.0, 10.0, 21)
STRAIGHT = along(METRES, 0.0)


@pytest.mark.parametrize(('aside', 'shown'), [(2.0, 2.0), (-2.5, 2.5), (500.0, 3.0)])
def test_a_plan_follows_an_estimate_out_of_the_building_but_not_to_its_end(aside, shown):
    (axes,) = np.ravel(Figure().subplots())
    strayed = along(METRES, np.linspace(0.0, aside, len(METRES)))
    plan_axes(axes, STRAIGHT.poses, STRAIGHT, {'kbr': strayed, 'other': along(METRES, 900.0)})
    low, high = axes.get_ylim()
    assert max(-low, high) >= shown
    assert high - low < 2.0 * shown + 3.0


@pytest.mark.parametrize(
    ('low', 'high', 'ticks'),
    [
        (0.05, 20.0, [0.1, 1.0, 10.0]),
        (0.15, 2.5, [0.2, 0.5, 1.0, 2.0]),
        (0.7, 4.4, [0.7, 0.8, 0.9, 1.0, 2.0, 3.0, 4.0]),
        (0.71, 0.76, [0.71, 0.72, 0.73, 0.74, 0.75, 0.76]),
    ],
)
def test_an_axis_of_any_length_has_numbers_to_read(low, high, ticks):
    np.testing.assert_allclose(log_ticks(low, high), ticks)


def test_the_errors_of_a_comparison_can_be_read_from_its_figure():
    rows = [
        {'method': 'kbr', 'size': size, 'position_rmse_m_mean': rmse, 'position_rmse_m_sd': None}
        for size, rmse in ((50, 0.73), (100, 0.84))
    ]
    shown = Scene(Task('kbr', 50, 0), STRAIGHT.poses, STRAIGHT, np.zeros((0, 3)))
    figure = comparison_figure(rows, STRAIGHT, [shown])
    axes = figure.axes[-1]
    low, high = axes.get_ylim()
    labels = [float(label.get_text()) for label in axes.get_yticklabels(which='both')]
    assert len(labels) >= 3 and all(low <= label <= high for label in labels)
    assert low < 0.73 and high > 0.84


def test_a_deviation_larger_than_the_mean_stays_on_the_axis_of_a_comparison():
    """Of its logarithm."""
    rows = [
        {'method': 'kbr', 'size': size, 'position_rmse_m_mean': 1.0, 'position_rmse_m_sd': 2.0}
        for size in (50, 100)
    ]
    shown = Scene(Task('kbr', 50, 0), STRAIGHT.poses, STRAIGHT, np.zeros((0, 3)))
    (bars,) = comparison_figure(rows, STRAIGHT, [shown]).axes[-1].containers
    for (_, low), (_, high) in bars.lines[2][0].get_segments():
        assert (low, high) == pytest.approx((0.4, 3.0))


def test_a_comparison_without_an_error_has_a_figure(tmp_path):
    """As of the most similar image, where the test run is in the map."""
    rows = [
        {'method': 'nearest', 'size': 50, 'position_rmse_m_mean': 0.0, 'position_rmse_m_sd': None}
    ]
    shown = Scene(Task('kbr', 50, 0), STRAIGHT.poses, STRAIGHT, np.zeros((0, 3)))
    save_figure(comparison_figure(rows, STRAIGHT, [shown]), tmp_path / 'figure.png')


def test_the_columns_of_a_table_of_a_comparison_have_names_of_their_own():
    assert len(set(COLUMNS.values())) == len(COLUMNS)


def test_an_estimate_that_leaps_draws_no_way_in_between():
    (axes,) = np.ravel(Figure().subplots())
    leaping = along(METRES, np.where(METRES < 5.0, 0.0, 3.0))
    plan_axes(axes, STRAIGHT.poses, STRAIGHT, {'kbr': leaping})
    drawn = next(line for line in axes.lines if line.get_label() == 'kbr')
    assert np.isnan(drawn.get_ydata()).sum() == 1


def test_a_picture_of_a_run_has_the_colours_of_its_images_and_the_limit_of_lost_frames():
    blue = np.zeros((4, 6, 3), np.uint8)
    blue[..., 0] = 255
    pairs = [ImagePair(blue, blue, pose, 0, np.zeros(3), 0.5) for pose in (np.ones(3), None)]
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


def test_methods_keep_their_colours_in_the_file(tmp_path):
    rows = [
        {'method': name, 'size': size, 'position_rmse_m_mean': rmse, 'position_rmse_m_sd': 0.1}
        for rmse, name in enumerate(METHODS, start=1)
        for size in (50, 100)
    ]
    shown = Scene(Task('kbr', 50, 0), STRAIGHT.poses, STRAIGHT, np.zeros((0, 3)))
    save_figure(comparison_figure(rows, STRAIGHT, [shown]), tmp_path / 'all.png')
    with Image.open(tmp_path / 'all.png') as picture:
        drawn = np.unique(np.asarray(picture.convert('RGB'), dtype=float).reshape(-1, 3), axis=0)
    for name, colour in method_colours(list(METHODS)).items():
        away = np.abs(drawn - 255.0 * np.array(to_rgb(colour))).max(axis=1)
        assert away.min() < 10.0, name
