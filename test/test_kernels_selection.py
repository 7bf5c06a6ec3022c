"""Bandwidths and regularisation: what the searches return, in parallel and one by one."""

from functools import partial

from kbr_localization.errors import KernelError
from kbr_localization.kernels.filters import KernelBayesFilter, LearntTransition
from kbr_localization.kernels.inference import KernelBayesRule
from kbr_localization.kernels.kernels import GaussianKernel, median_distance
from kbr_localization.kernels.rules import thresholded_bayes_rule
from kbr_localization.kernels.selection import (
    filter_score,
    grid_search,
    k_fold,
    kernel_mean_score,
    point_score,
)
import numpy as np
import pytest
from scipy.spatial.distance import pdist


def make_rule(x, y, width=0.3, epsilon=1e-3, delta=1e-3):
    kernel = GaussianKernel(width, normalised=False)
    return KernelBayesRule(kernel, kernel, x, y, epsilon, delta, 'thresholded')


def make_filter(x, y, width, delta):
    rule = make_rule(x[:-1], y[:-1], width, delta=delta)
    return KernelBayesFilter(LearntTransition(rule.kernel_x, x[:-1], x[1:], 1e-3), rule)


def sample(size=80, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, 1))
    return x, x + 0.3 * rng.normal(size=x.shape)


GRID = {'width': [1e-4, 0.1, 1e4], 'delta': [1e-4, 1e-2]}


def test_median_distance_is_the_median_and_subsamples_large_samples():
    points = np.random.default_rng(0).normal(size=(300, 3))
    assert median_distance(points) == pytest.approx(np.median(pdist(points)))
    assert median_distance(points, 150) == pytest.approx(np.median(pdist(points)), rel=0.1)
    assert median_distance(points, 50) == median_distance(points, 50)


@pytest.mark.parametrize('dimension', [2, 17, 501])
def test_rounding_does_not_part_equal_points(dimension):
    points = np.random.default_rng(0).uniform(size=(60, dimension))
    points[:50] = points[0]
    distances = pdist(points)
    assert median_distance(points) == pytest.approx(np.median(distances[distances > 0]))
    points[:] = points[0]
    points[::2, 0] = 0.0
    points[1::2, 0] = -0.0
    with pytest.raises(KernelError, match='points: expected at least two different points'):
        median_distance(points)


@pytest.mark.parametrize('rng', [None, np.random.default_rng(0)])
def test_folds_cover_the_sample_once(rng):
    folds = k_fold(11, 3, rng)
    np.testing.assert_array_equal(
        np.sort(np.concatenate([validation for _, validation in folds])), np.arange(11)
    )
    for training, validation in folds:
        assert not set(training) & set(validation)
        assert training.size + validation.size == 11
    if rng is None:
        assert all(np.all(np.diff(validation) == 1) for _, validation in folds)


def test_two_fold_search_finds_the_width_that_is_neither_tiny_nor_huge():
    x, y = sample()
    score = partial(point_score, x, y, make_rule)
    result = grid_search(score, GRID, k_fold(80, 2))
    assert result.best['width'] == 0.1
    assert result.scores.shape == (6, 2)
    assert result.mean_scores.min() < 0.5 * np.mean((x - x.mean()) ** 2)


def test_kernel_mean_criterion_is_the_formula_of_the_paper():
    x, y = sample(20)
    training, validation = k_fold(20, 4)[1]
    rule = make_rule(x[training], y[training])
    kernel = rule.kernel_x
    gram = kernel.gram(x[training])
    mu = np.linalg.solve(gram + 15e-3 * np.eye(15), gram.mean(axis=1))
    posteriors = [
        thresholded_bayes_rule(gram_y, mu, kernel.cross_gram(y[training], y[[j]])[:, 0], 1e-3)
        for gram_y in [kernel.gram(y[training])]
        for j in validation
    ]
    points = np.concatenate([x[training], x[validation]])
    difference = np.concatenate([np.mean(posteriors, axis=0), np.full(5, -0.2)])
    expected = difference @ kernel.gram(points) @ difference
    score = kernel_mean_score(x, y, make_rule, training, validation)
    assert score == pytest.approx(expected, rel=1e-8)


def test_filter_validation_runs_over_the_other_half():
    rng = np.random.default_rng(0)
    angle = 0.3 * np.arange(120)
    x = np.stack([np.cos(angle), np.sin(angle)], axis=1) + 0.05 * rng.normal(size=(120, 2))
    y = x + 0.2 * rng.normal(size=x.shape)
    score = partial(filter_score, x, y, make_filter)
    grid = {'width': [1e-4, 0.3, 100.0], 'delta': [1e-3, 0.1]}
    result = grid_search(score, grid, k_fold(120, 2))
    assert result.best == {'width': 0.3, 'delta': 0.1}
    assert result.mean_scores.min() < 0.5 * np.mean((y - x) ** 2)


def test_parallel_search_equals_the_serial_one():
    x, y = sample(40)
    score = partial(point_score, x, y, make_rule)
    serial = grid_search(score, GRID, k_fold(40, 2))
    parallel = grid_search(score, GRID, k_fold(40, 2), n_jobs=2)
    np.testing.assert_array_equal(serial.scores, parallel.scores)
    assert serial.settings == parallel.settings


def test_a_setting_that_fails_is_infinitely_bad_and_only_a_total_failure_raises():
    x, y = sample(20)
    score = partial(point_score, x, y, make_rule)
    result = grid_search(score, {'width': [-1.0, 0.1]}, k_fold(20, 2))
    assert np.all(np.isinf(result.scores[0]))
    assert result.best == {'width': 0.1}
    with pytest.raises(KernelError, match='covariance: expected positive'):
        grid_search(score, {'width': [-1.0, -2.0]}, k_fold(20, 2))
