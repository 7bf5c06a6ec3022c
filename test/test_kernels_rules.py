"""Every rule against the plain textbook expression, and the invariants of the convention."""

import logging

from hypothesis import given, settings
from hypothesis import strategies as st
from kbr_localization.errors import KernelError
from kbr_localization.kernels.kernels import GaussianKernel
from kbr_localization.kernels.noise import GaussianNoise
from kbr_localization.kernels.rules import (
    BAYES_RULES,
    conditional_mean,
    importance_weighted_bayes_rule,
    model_based_sum_rule,
    nonparametric_sum_rule,
    normalise,
    regularise,
    regularised_bayes_rule,
    squared_bayes_rule,
    thresholded_bayes_rule,
)
import numpy as np
import pytest

EPSILON, DELTA = 1e-3, 1e-4
TIGHT = {'rtol': 1e-8, 'atol': 1e-10}


class Problem:
    """A regression sample with a prior and an observation."""

    def __init__(self, seed, size=40):
        rng = np.random.default_rng(seed)
        self.x = rng.normal(size=(size, 2))
        self.y = np.sin(self.x) + 0.2 * rng.normal(size=(size, 2))
        self.prior_points = rng.normal(0.3, 0.7, size=(30, 2))
        self.prior_weights = rng.dirichlet(np.ones(30))
        self.kernel_x = GaussianKernel(0.5, normalised=False)
        self.kernel_y = GaussianKernel(0.3, normalised=False)
        self.query = rng.normal(size=(1, 2))
        self.gram_x = self.kernel_x.gram(self.x)
        self.gram_y = self.kernel_y.gram(self.y)
        self.k_x = self.kernel_x.cross_gram(self.x, self.query)[:, 0]
        self.k_y = self.kernel_y.cross_gram(self.y, self.query)[:, 0]
        self.prior_at_sample = (
            self.kernel_x.cross_gram(self.x, self.prior_points) @ self.prior_weights
        )
        self.mu = nonparametric_sum_rule(regularise(self.gram_x, EPSILON), self.prior_at_sample)


def plain_squared(gram, mu, k, delta):
    product = np.diag(mu) @ gram
    return product @ np.linalg.solve(product @ product + delta * np.eye(len(mu)), mu * k)


def plain_thresholded(gram, mu, k, delta):
    kept = np.flatnonzero(mu > 0)
    weights = np.zeros(len(mu))
    ridge = delta * np.diag(1.0 / mu[kept])
    weights[kept] = np.linalg.solve(gram[np.ix_(kept, kept)] + ridge, k[kept])
    return weights


PLAIN = {'squared': plain_squared, 'thresholded': plain_thresholded}


def test_conditional_mean_is_the_regularised_inverse_times_the_kernel_vector():
    p = Problem(0)
    expected = np.linalg.solve(p.gram_x + 40 * EPSILON * np.eye(40), p.k_x)
    np.testing.assert_allclose(
        conditional_mean(regularise(p.gram_x, EPSILON), p.k_x), expected, **TIGHT
    )


def test_nonparametric_sum_rule_averages_conditional_means_over_the_prior():
    p = Problem(0)
    factor = regularise(p.gram_x, EPSILON)
    columns = conditional_mean(factor, p.kernel_x.cross_gram(p.x, p.prior_points))
    np.testing.assert_allclose(p.mu, columns @ p.prior_weights, **TIGHT)
    expected = np.linalg.inv(p.gram_x + 40 * EPSILON * np.eye(40)) @ p.prior_at_sample
    np.testing.assert_allclose(p.mu, expected, **TIGHT)


def test_model_based_sum_rule_is_a_gaussian_mixture_of_the_added_covariances():
    p = Problem(0)
    R, sigma = np.array([[0.5, 0.1], [0.1, 0.3]]), np.array([0.2, 0.4])
    images = p.x @ np.array([[0.9, 0.2], [-0.1, 1.1]])
    mean = GaussianNoise(sigma).conditional_kernel_mean(GaussianKernel(R))
    values = model_based_sum_rule(mean, p.query, images, p.mu)
    total = R + np.diag(sigma)
    offsets = p.query - images
    exponents = -0.5 * np.einsum('id,de,ie->i', offsets, np.linalg.inv(total), offsets)
    density = np.exp(exponents) / np.sqrt(np.linalg.det(2 * np.pi * total))
    np.testing.assert_allclose(values, [p.mu @ density], **TIGHT)


@pytest.mark.parametrize('method', BAYES_RULES)
def test_bayes_rule_agrees_with_the_textbook_formula(method):
    p = Problem(0)
    expected = PLAIN[method](p.gram_y, p.mu, p.k_y, DELTA)
    np.testing.assert_allclose(
        BAYES_RULES[method](p.gram_y, p.mu, p.k_y, DELTA), expected, **TIGHT
    )


@pytest.mark.parametrize('method', BAYES_RULES)
def test_bayes_rule_ignores_points_without_prior_mass(method):
    p = Problem(1)
    mu = np.where(np.arange(40) % 3 == 0, p.mu, 0.0)
    kept = np.flatnonzero(mu)
    whole = BAYES_RULES[method](p.gram_y, mu, p.k_y, DELTA)
    part = BAYES_RULES[method](p.gram_y[np.ix_(kept, kept)], mu[kept], p.k_y[kept], DELTA)
    np.testing.assert_allclose(whole[kept], part, **TIGHT)
    assert np.all(np.delete(whole, kept) == 0)
    np.testing.assert_allclose(whole, PLAIN[method](p.gram_y, mu, p.k_y, DELTA), **TIGHT)


@pytest.mark.parametrize('method', BAYES_RULES)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), copies=st.integers(2, 3))
def test_repeating_every_training_pair_changes_no_kernel_mean(method, seed, copies):
    p = Problem(seed, size=12)
    tiled = np.tile(np.arange(12), copies)
    gram_x, gram_y = p.gram_x[np.ix_(tiled, tiled)], p.gram_y[np.ix_(tiled, tiled)]
    mu = nonparametric_sum_rule(regularise(gram_x, EPSILON), p.prior_at_sample[tiled])
    np.testing.assert_allclose(mu.reshape(copies, 12).sum(axis=0), p.mu, rtol=1e-7, atol=1e-9)
    if method == 'thresholded' and np.any(np.abs(p.mu) < 1e-9):
        return  # rounding decides on which side of the threshold such a weight falls
    weights = BAYES_RULES[method](gram_y, mu, p.k_y[tiled], DELTA)
    expected = BAYES_RULES[method](p.gram_y, p.mu, p.k_y, DELTA)
    together = weights.reshape(copies, 12).sum(axis=0)
    np.testing.assert_allclose(together, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(('method', 'power'), [('squared', 2), ('thresholded', 1)])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), factor=st.floats(0.01, 100.0))
def test_scaling_the_prior_equals_scaling_delta(method, power, seed, factor):
    p = Problem(seed, size=15)
    weights = BAYES_RULES[method](p.gram_y, p.mu, p.k_y, DELTA)
    scaled = BAYES_RULES[method](p.gram_y, factor * p.mu, p.k_y, factor**power * DELTA)
    np.testing.assert_allclose(scaled, weights, rtol=1e-7, atol=1e-9)


def test_thresholded_rule_with_a_uniform_prior_is_the_conditional_mean():
    p = Problem(3)
    weights = thresholded_bayes_rule(p.gram_y, np.full(40, 1 / 40), p.k_y, EPSILON)
    expected = conditional_mean(regularise(p.gram_y, EPSILON), p.k_y)
    np.testing.assert_allclose(weights, expected, **TIGHT)


def test_a_delta_below_rounding_is_raised_and_logged(caplog):
    gram, mu = np.ones((50, 50)), np.full(50, 0.02)
    with caplog.at_level(logging.WARNING):
        weights = squared_bayes_rule(gram, mu, np.ones(50), 1e-80)
    assert 'delta raised' in caplog.text
    np.testing.assert_allclose(weights, 0.02, rtol=1e-6)  # one point, seen fifty times


def test_importance_weighted_rule_is_the_thresholded_rule_of_the_density_ratio():
    p = Problem(0)
    weights = importance_weighted_bayes_rule(p.gram_y, 40 * p.mu, p.k_y, DELTA)
    half = np.diag(np.sqrt(np.maximum(p.mu, 0.0)))  # the form of [IW-KBR]
    expected = half @ np.linalg.solve(half @ p.gram_y @ half + DELTA * np.eye(40), half @ p.k_y)
    np.testing.assert_allclose(weights, expected, **TIGHT)


def test_regularised_rule_is_the_textbook_formula_with_supervision_appended():
    p = Problem(0)
    rng = np.random.default_rng(0)
    joint = np.concatenate([p.y, rng.normal(size=(5, 2))])
    gram = p.kernel_y.gram(joint)
    k_y = p.kernel_y.cross_gram(joint, p.query)[:, 0]
    strength = rng.uniform(0.1, 1.0, size=5)
    kept = np.concatenate([np.flatnonzero(p.mu > 0), 40 + np.arange(5)])
    diagonal = np.concatenate([1.0 / p.mu[p.mu > 0], 1.0 / strength])  # Lambda^+ of [kReg] eq. 11
    expected = np.zeros(45)
    expected[kept] = np.linalg.solve(
        gram[np.ix_(kept, kept)] + DELTA * np.diag(diagonal), k_y[kept]
    )
    weights = regularised_bayes_rule(gram, p.mu, k_y, DELTA, strength)
    np.testing.assert_allclose(weights, expected, **TIGHT)


def test_normalise_refuses_weights_without_positive_sum():
    np.testing.assert_allclose(normalise([1.0, 4.0, -1.0]).sum(), 1.0)
    with pytest.raises(KernelError, match=r'weights: expected a positive sum'):
        normalise([1.0, -2.0])
