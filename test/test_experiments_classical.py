"""The comparison filters against a Kalman recursion written out and against each other."""

import importlib
from pathlib import Path

import numpy as np
import pytest
from state_space import LinearGaussian

if not (Path(__file__).parents[1] / 'experiments').is_dir():
    pytest.skip('the folder experiments/ is not installed', allow_module_level=True)

classical = importlib.import_module('experiments.classical')

F, H = np.array([[0.9, 0.3], [-0.2, 0.8]]), np.array([[1.0, 0.5]])
Q, R = np.array([[0.2, 0.05], [0.05, 0.1]]), np.array([[0.3]])
START = np.array([1.0, -1.0]), np.eye(2)
MATRICES = classical.GaussianStateSpaceModel(F, Q, H, R, *START)
FUNCTIONS = classical.GaussianStateSpaceModel(lambda x: x @ F.T, Q, lambda x: x @ H.T, R, *START)


@pytest.mark.parametrize(
    ('method', 'model'),
    [('kalman', MATRICES), ('extended', FUNCTIONS), ('unscented', FUNCTIONS)],
)
def test_gaussian_filters_are_exact_on_a_linear_model(method, model):
    truth = LinearGaussian(F, Q, H, R, *START)
    _, y = truth.simulate(30, np.random.default_rng(0))
    means, covariances = classical.classical_filter(method, model, y)
    expected, expected_covariances, *_ = truth.kalman(y)
    np.testing.assert_allclose(means, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(covariances, expected_covariances, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(('method', 'expected'), [('extended', 4.0), ('unscented', 4.25)])
def test_the_unscented_transform_knows_the_mean_of_a_square_and_the_extended_one_does_not(
    method, expected
):
    """E x^2 = m^2 + P for x ~ N(2, 1/4), where observations say nothing."""
    one = np.eye(1)
    model = classical.GaussianStateSpaceModel(
        lambda x: x**2, one, lambda x: x, 1e12 * one, np.array([2.0]), 0.25 * one
    )
    means, _ = classical.classical_filter(method, model, np.zeros((2, 1)))
    assert means[1, 0] == pytest.approx(expected, rel=1e-6)
