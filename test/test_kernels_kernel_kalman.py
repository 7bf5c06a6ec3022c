"""The kernel Kalman filter is the Kalman filter with linear kernels, and near it with others."""

from kbr_localization.kernels import (
    GaussianKernel,
    KernelKalmanFilter,
    LinearKernel,
)
from kbr_localization.kernels.kernel_kalman import kalman_means
import numpy as np
import pytest
from state_space import autoregression, LinearGaussian

PLANAR = LinearGaussian(
    np.array([[0.9, 0.3], [-0.3, 0.9]]),
    np.diag([0.1, 0.2]),
    np.array([[1.0, 0.5]]),
    np.array([[0.3]]),
    np.zeros(2),
    np.eye(2),
)


def learnt(model, size, seed=0, kernels=None, epsilon=1e-6, kappa=None):
    x, y = model.simulate(size + 1, np.random.default_rng(seed))
    kernel_x, kernel_y = kernels or (LinearKernel(), LinearKernel())
    kappa = float(model.r[0, 0]) if kappa is None else kappa
    return KernelKalmanFilter(kernel_x, kernel_y, x[:-1], x[1:], y[1:], epsilon, kappa)


def ridge_model(model, size, seed=0, epsilon=1e-6):
    """Return the linear model that ridge regression finds in the same run."""
    x, y = model.simulate(size + 1, np.random.default_rng(seed))
    before, after, y = x[:-1], x[1:], y[1:]
    ridge = size * epsilon * np.eye(x.shape[1])
    a = np.linalg.solve(before.T @ before + ridge, before.T @ after).T
    c = np.linalg.solve(after.T @ after + ridge, after.T @ y).T
    residual = after - before @ a.T
    q = residual.T @ residual / size
    spread = after - after.mean(axis=0)
    return LinearGaussian(a, q, c, model.r, after.mean(axis=0), spread.T @ spread / size)


@pytest.mark.parametrize('model', [autoregression(), PLANAR], ids=['scalar', 'planar'])
def test_with_linear_kernels_it_is_the_kalman_filter_of_the_regressions(model):
    _, y = model.simulate(20, np.random.default_rng(5))
    beliefs = learnt(model, 60).run(y)
    means, covariances, *_ = ridge_model(model, 60).kalman(y)
    np.testing.assert_allclose(kalman_means(beliefs), means, rtol=1e-5, atol=1e-6)
    found = np.array([belief.covariance() for belief in beliefs])
    np.testing.assert_allclose(found, covariances, rtol=1e-4, atol=1e-6)


def test_it_tends_to_the_kalman_filter_of_the_truth():
    _, y = PLANAR.simulate(50, np.random.default_rng(5))
    truth = PLANAR.kalman(y)[0]
    errors = [
        np.sqrt(np.mean((kalman_means(learnt(PLANAR, size).run(y)) - truth)[5:] ** 2))
        for size in (30, 400)
    ]
    assert errors[1] < 0.1 * truth.std()
    assert errors[1] < errors[0]


def test_with_gaussian_kernels_it_is_nearer_to_kalman_than_the_observations():
    model = autoregression()
    x, y = model.simulate(150, np.random.default_rng(5))
    kernels = GaussianKernel(4.0, normalised=False), GaussianKernel(4.0, normalised=False)
    beliefs = learnt(model, 300, kernels=kernels, epsilon=1e-5, kappa=0.01).run(y)
    states = np.array([b.kernel_mean().normalised().mean() for b in beliefs])
    best = np.mean((model.kalman(y)[0] - x) ** 2)
    assert np.mean((states - x) ** 2) < 1.1 * best < np.mean((y - x) ** 2)


def test_a_first_sample_of_states_is_the_belief_before_the_first_observation():
    first = np.random.default_rng(1).normal([1.0, -1.0], 0.2, size=(50, 2))
    belief = learnt(PLANAR, 60).start(first)
    np.testing.assert_allclose(belief.mean(), first.mean(axis=0), rtol=1e-3)
    np.testing.assert_allclose(belief.covariance(), np.cov(first.T, bias=True), atol=1e-3)


def test_a_missing_observation_updates_nothing():
    filter_ = learnt(PLANAR, 60)
    _, y = PLANAR.simulate(3, np.random.default_rng(0))
    first = filter_.update(filter_.start(), y[0])
    expected = filter_.update(filter_.predict(filter_.predict(first)), y[2])
    found = filter_.run([y[0], None, y[2]])[2]
    np.testing.assert_array_equal(found.weights, expected.weights)
    assert filter_.run([None])[0].mean() == pytest.approx(filter_.start().mean())
