"""The kernel Bayes rule off the map against its plain formulas."""

from hypothesis import given, settings
from hypothesis import strategies as st
from kbr_localization.kernels import GaussianKernel
from kbr_localization.kernels.off_map import observation_weights, off_map_bayes_rule
from kbr_localization.kernels.rules import thresholded_bayes_rule
import numpy as np
import pytest

KERNEL = GaussianKernel([0.5], normalised=False)
seeds = st.integers(0, 10**6)


def problem(seed, pairs=12, points=20):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(pairs, 1)), rng.normal(size=(pairs, 1))
    belief, gamma = rng.normal(size=(points, 1)), rng.dirichlet(np.ones(points))
    ridge = 0.1 * np.eye(pairs)
    smoother = np.linalg.solve(KERNEL.gram(x) + ridge, KERNEL.cross_gram(x, belief))
    return smoother, KERNEL.gram(y), gamma, KERNEL.cross_gram(y, rng.normal(size=(1, 1)))[:, 0]


@given(seeds, st.sampled_from([1e-3, 0.1, 1.0, 1e3]))
@settings(max_examples=50, deadline=None)
def test_the_weights_are_those_of_the_plain_formula(seed, delta):
    smoother, gram, gamma, k = problem(seed)
    mu = np.maximum(smoother @ gamma, 0.0)
    plain = gamma * (smoother.T @ np.linalg.solve(gram @ np.diag(mu) + delta * np.eye(12), k))
    found = off_map_bayes_rule(smoother, gram, gamma, k, delta)
    np.testing.assert_allclose(found, plain, rtol=1e-6, atol=1e-8 * np.abs(plain).max())


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_on_the_sample_it_is_the_thresholded_rule(seed):
    _, gram, _, k = problem(seed)
    mu = np.random.default_rng(seed).dirichlet(np.ones(12))
    found = off_map_bayes_rule(np.eye(12), gram, mu, k, 0.05)
    np.testing.assert_allclose(found, thresholded_bayes_rule(gram, mu, k, 0.05), rtol=1e-6)


@pytest.mark.parametrize('delta', [1e-9, 1e-12, 1e-16])
def test_a_small_delta_costs_no_exactness(delta):
    """Of a system that is well conditioned without it."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(20, 200)) / np.sqrt(200.0)
    gram, mu, k = features @ features.T, rng.dirichlet(np.ones(20)), rng.uniform(size=20)
    exact = np.linalg.solve(gram * mu + delta * np.eye(20), k)
    np.testing.assert_allclose(observation_weights(gram, mu, k, delta), exact, rtol=1e-9)


def test_for_large_delta_it_is_the_conditional_kernel_mean_at_the_observation():
    smoother, gram, gamma, k = problem(3)
    found = 1e9 * off_map_bayes_rule(smoother, gram, gamma, k, 1e9)
    np.testing.assert_allclose(found, gamma * (smoother.T @ k), rtol=1e-6)
