"""The comparison filters against a Kalman recursion written out and against each other."""

import importlib
from pathlib import Path

import numpy as np
import pytest

if not (Path(__file__).parents[1] / 'experiments').is_dir():
    pytest.skip('the folder experiments/ is not installed', allow_module_level=True)

classical = importlib.import_module('experiments.classical')
classical_filter = classical.classical_filter
GaussianStateSpaceModel = classical.GaussianStateSpaceModel

F, H = np.array([[0.9, 0.3], [-0.2, 0.8]]), np.array([[1.0, 0.5]])
Q, R = np.array([[0.2, 0.05], [0.05, 0.1]]), np.array([[0.3]])
LINEAR = GaussianStateSpaceModel(F, Q, H, R, np.array([1.0, -1.0]), np.eye(2))
AS_FUNCTIONS = GaussianStateSpaceModel(
    lambda x: x @ F.T, Q, lambda x: x @ H.T, R, np.array([1.0, -1.0]), np.eye(2)
)


def observations(steps=30):
    rng = np.random.default_rng(0)
    x, y = np.array([1.0, -1.0]), []
    for _ in range(steps):
        y.append(H @ x + rng.normal(size=1) * np.sqrt(0.3))
        x = F @ x + rng.multivariate_normal(np.zeros(2), Q)
    return np.array(y)


def written_out(y):
    m, P, means, covariances = LINEAR.mean, LINEAR.covariance, [], []
    for t, observation in enumerate(y):
        if t > 0:
            m, P = F @ m, F @ P @ F.T + Q
        K = P @ H.T @ np.linalg.inv(H @ P @ H.T + R)
        m, P = m + K @ (observation - H @ m), P - K @ H @ P
        means.append(m)
        covariances.append(P)
    return np.array(means), np.array(covariances)


@pytest.mark.parametrize(
    ('method', 'model'),
    [('kalman', LINEAR), ('extended', AS_FUNCTIONS), ('unscented', AS_FUNCTIONS)],
)
def test_gaussian_filters_are_exact_on_a_linear_model(method, model):
    y = observations()
    means, covariances = classical_filter(method, model, y)
    expected, expected_covariances = written_out(y)
    np.testing.assert_allclose(means, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(covariances, expected_covariances, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(('method', 'expected'), [('extended', 4.0), ('unscented', 4.25)])
def test_the_unscented_transform_knows_the_mean_of_a_square_and_the_extended_one_does_not(
    method, expected
):
    """E x^2 = m^2 + P for x ~ N(2, 1/4), where observations say nothing."""
    one = np.eye(1)
    model = GaussianStateSpaceModel(
        lambda x: x**2, one, lambda x: x, 1e12 * one, np.array([2.0]), 0.25 * one
    )
    means, _ = classical_filter(method, model, np.zeros((2, 1)))
    assert means[1, 0] == pytest.approx(expected, rel=1e-6)
