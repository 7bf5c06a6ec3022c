"""Every rule, dense, of low rank and off the map, against the plain textbook expression."""

import logging

from kbr_localization.errors import KernelError
from kbr_localization.kernels import (
    GaussianKernel,
    GaussianNoise,
    incomplete_cholesky,
    LaplaceKernel,
    MaternKernel,
    PrecomputedKernel,
)
from kbr_localization.kernels.linalg import RegularisedCholesky, solve_root_form
from kbr_localization.kernels.rules import (
    BAYES_RULES,
    conditional_mean,
    importance_weighted_bayes_rule,
    model_based_sum_rule,
    nonparametric_sum_rule,
    normalise,
    observation_weights,
    off_map_bayes_rule,
    regularise,
    regularised_bayes_rule,
    squared_bayes_rule,
)
import numpy as np
import pytest

EPSILON, DELTA = 1e-3, 1e-4
TIGHT = {'rtol': 1e-8, 'atol': 1e-10}


class Problem:
    """A regression sample with a prior and an observation."""

    def __init__(self, seed=0, size=40):
        rng = np.random.default_rng(seed)
        self.x = rng.normal(size=(size, 2))
        self.y = np.sin(self.x) + 0.2 * rng.normal(size=(size, 2))
        self.prior_points = rng.normal(0.3, 0.7, size=(30, 2))
        self.gamma = rng.dirichlet(np.ones(30))
        self.kernel_x, self.kernel_y = (GaussianKernel(r, normalised=False) for r in (0.5, 0.3))
        self.query = rng.normal(size=(1, 2))
        self.gram_x, self.gram_y = self.kernel_x.gram(self.x), self.kernel_y.gram(self.y)
        self.k_y = self.kernel_y.cross_gram(self.y, self.query)[:, 0]
        self.cross = self.kernel_x.cross_gram(self.x, self.prior_points)
        self.prior_at_sample = self.cross @ self.gamma
        self.mu = nonparametric_sum_rule(regularise(self.gram_x, EPSILON), self.prior_at_sample)


def plain_squared(gram, mu, k, delta):
    product = np.diag(mu) @ gram
    return product @ np.linalg.solve(product @ product + delta * np.eye(len(mu)), (mu * k.T).T)


def plain_thresholded(gram, mu, k, delta):
    kept, weights = np.flatnonzero(mu > 0), np.zeros(k.shape)
    ridge = delta * np.diag(1.0 / mu[kept])
    weights[kept] = np.linalg.solve(gram[np.ix_(kept, kept)] + ridge, k[kept])
    return weights


PLAIN = {'squared': plain_squared, 'thresholded': plain_thresholded}


def test_nonparametric_sum_rule_averages_conditional_means_over_the_prior():
    p = Problem()
    inverse = np.linalg.inv(p.gram_x + 40 * EPSILON * np.eye(40))
    columns = conditional_mean(regularise(p.gram_x, EPSILON), p.cross)
    np.testing.assert_allclose(columns, inverse @ p.cross, **TIGHT)
    np.testing.assert_allclose(p.mu, columns @ p.gamma, **TIGHT)


def test_model_based_sum_rule_is_a_gaussian_mixture_of_the_added_covariances():
    p = Problem()
    R, sigma = np.array([[0.5, 0.1], [0.1, 0.3]]), np.array([0.2, 0.4])
    images = p.x @ np.array([[0.9, 0.2], [-0.1, 1.1]])
    mean = GaussianNoise(sigma).conditional_kernel_mean(GaussianKernel(R))
    total, offsets = R + np.diag(sigma), p.query - images
    exponents = -0.5 * np.einsum('id,de,ie->i', offsets, np.linalg.inv(total), offsets)
    density = np.exp(exponents) / np.sqrt(np.linalg.det(2 * np.pi * total))
    found = model_based_sum_rule(mean, p.query, images, p.mu)
    np.testing.assert_allclose(found, [p.mu @ density], **TIGHT)


@pytest.mark.parametrize('method', BAYES_RULES)
@pytest.mark.parametrize('every', [1, 3])
def test_bayes_rule_is_the_textbook_formula_and_ignores_points_without_prior_mass(method, every):
    p = Problem()
    mu = np.where(np.arange(40) % every == 0, p.mu, 0.0)
    found = BAYES_RULES[method](p.gram_y, mu, p.k_y, DELTA)
    np.testing.assert_allclose(found, PLAIN[method](p.gram_y, mu, p.k_y, DELTA), **TIGHT)
    assert np.all(found[mu == 0] == 0)
    columns = BAYES_RULES[method](p.gram_y, mu, np.column_stack([p.k_y, p.gram_y[:, 0]]), DELTA)
    np.testing.assert_allclose(columns[:, 0], found, **TIGHT)


def test_importance_weighted_rule_is_the_thresholded_rule_of_the_density_ratio():
    p = Problem()
    weights = importance_weighted_bayes_rule(p.gram_y, 40 * p.mu, p.k_y, DELTA)
    half = np.diag(np.sqrt(np.maximum(p.mu, 0.0)))  # the form of [IW-KBR]
    expected = half @ np.linalg.solve(half @ p.gram_y @ half + DELTA * np.eye(40), half @ p.k_y)
    np.testing.assert_allclose(weights, expected, **TIGHT)


def test_regularised_rule_is_the_textbook_formula_with_supervision_appended():
    p, rng = Problem(), np.random.default_rng(0)
    joint = np.concatenate([p.y, rng.normal(size=(5, 2))])
    gram, k_y = p.kernel_y.gram(joint), p.kernel_y.cross_gram(joint, p.query)[:, 0]
    strength = rng.uniform(0.1, 1.0, size=5)
    # Lambda^+ of [kReg] eq. 11
    expected = plain_thresholded(gram, np.append(p.mu, strength), k_y, DELTA)
    weights = regularised_bayes_rule(gram, p.mu, k_y, DELTA, strength)
    np.testing.assert_allclose(weights, expected, **TIGHT)


def test_normalise_refuses_weights_without_positive_sum():
    np.testing.assert_allclose(normalise([1.0, 4.0, -1.0]), [0.25, 1.0, -0.25])
    with pytest.raises(KernelError, match=r'weights: expected a positive sum'):
        normalise([1.0, -2.0])


def positive_definite(size=30):
    a = np.random.default_rng(0).normal(size=(size, size))
    return a @ a.T / size


@pytest.mark.parametrize('order', ['C', 'F'])
def test_cholesky_solves_and_leaves_its_argument_alone(order):
    gram = np.array(positive_definite(), order=order)
    before, b = gram.copy(), np.ones((30, 2))
    found = RegularisedCholesky(gram, 0.1).solve(b)
    expected = np.linalg.solve(before + 0.1 * np.eye(30), b)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    np.testing.assert_array_equal(gram, before)


def test_a_ridge_is_raised_by_tens_until_the_factorisation_succeeds(caplog):
    gram = np.diag([1.0, 1.0, -1e-8])
    factor = RegularisedCholesky(gram, 1e-10, name='delta')
    assert factor.ridge == pytest.approx(1e-7)
    assert 'delta raised from 1e-10 to 1e-07' in caplog.text
    residual = (gram + 1e-7 * np.eye(3)) @ factor.solve(np.ones(3))
    np.testing.assert_allclose(residual, 1.0, rtol=1e-10)


def test_an_asymmetric_matrix_is_refused():
    gram = positive_definite()
    gram[2, 7] += 0.1
    for solve in (regularise, lambda g, delta: solve_root_form(g, 1.0, delta, np.ones(30))):
        with pytest.raises(KernelError, match=r'gram: expected a symmetric matrix.* up to 0\.1:'):
            solve(gram, 1.0)


def test_root_form_keeps_digits_that_the_squared_form_loses():
    # one eigenvalue of 1e-9: squared it is below rounding beside 1
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(5, 5)))[0]
    values = np.array([1.0, 0.5, 0.2, 0.1, 1e-9])
    b = rotation[:, 4]
    solution, _ = solve_root_form((rotation * values) @ rotation.T, 1.0, 1e-18, b)
    exact = values[4] / (values[4] ** 2 + 1e-18)
    assert b @ solution.real == pytest.approx(exact, rel=1e-5)


def test_a_delta_below_rounding_is_raised_no_further_than_that_and_logged(caplog):
    _, delta = solve_root_form(np.ones((2, 2)), 1.0, 1e-60, np.ones(2))
    assert 1e-60 < delta < 1e-26
    with caplog.at_level(logging.WARNING):
        weights = squared_bayes_rule(np.ones((50, 50)), np.full(50, 0.02), np.ones(50), 1e-80)
    assert 'delta raised' in caplog.text
    np.testing.assert_allclose(weights, 0.02, rtol=1e-6)  # one point, seen fifty times


def dense(low):
    return low.factor @ low.factor.T


KERNEL = GaussianKernel(0.5, normalised=False)
Y = np.random.default_rng(0).normal(size=(80, 2))
SIGNED = np.random.default_rng(1).normal(0.5, 1.0, size=80) / 80


@pytest.mark.parametrize('kernel', [KERNEL, LaplaceKernel(1.0), MaternKernel(0.5, 2.5)], ids=repr)
@pytest.mark.parametrize('tolerance', [1e-1, 1e-6])
def test_residual_is_positive_semidefinite_with_the_reported_diagonal(kernel, tolerance):
    low = incomplete_cholesky(kernel, Y, tolerance)
    residual, scale = kernel.gram(Y) - dense(low), kernel.diagonal(Y)[0]
    np.testing.assert_allclose(np.diag(residual), low.residual, atol=1e-12 * scale)
    assert np.linalg.eigvalsh(residual)[0] > -1e-11 * scale
    assert low.residual.sum() <= tolerance * 80 * scale
    assert low.rank == len(set(low.pivots.tolist())) <= 80


def test_rank_is_found_exactly_and_duplicates_cost_nothing():
    points = np.repeat(Y[:5], 20, axis=0)
    low = incomplete_cholesky(KERNEL, points, tolerance=0.0)
    assert low.rank == 5
    np.testing.assert_allclose(dense(low), KERNEL.gram(points), atol=1e-12)
    assert incomplete_cholesky(KERNEL, points, 0.0, max_rank=3).rank == 3


@pytest.mark.parametrize('ridge', [1e-7, 1e-13])
def test_a_small_regularisation_of_low_rank_costs_no_accuracy(ridge):
    kernel = LaplaceKernel(1.0)
    grams, k = (incomplete_cholesky(kernel, Y, 0.0), kernel.gram(Y)), kernel.gram(Y)[:, 0]
    found, expected = (regularise(gram, ridge).solve(k + 0.1) for gram in grams)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10)
    found, expected = (BAYES_RULES['thresholded'](gram, SIGNED, k, ridge) for gram in grams)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize('method', BAYES_RULES)
@pytest.mark.parametrize('sign', [0, 1, -1])
def test_bayes_rule_of_low_rank_is_the_plain_formula(method, sign):
    low = incomplete_cholesky(KERNEL, Y, 1e-3)
    mu = sign * np.abs(SIGNED) if sign else SIGNED
    if method == 'thresholded' and sign < 0:
        mu = SIGNED
    expected = PLAIN[method](dense(low), mu, KERNEL.gram(Y)[:, :3], 1e-2)
    found = BAYES_RULES[method](low, mu, KERNEL.gram(Y)[:, :3], 1e-2)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_an_indefinite_kernel_has_no_low_rank_form():
    table = PrecomputedKernel(np.tanh(Y @ Y.T + 1.0))
    with pytest.raises(KernelError, match='gram: expected a positive semi-definite matrix'):
        incomplete_cholesky(table, table.points(), 1e-9)


@pytest.mark.parametrize('delta', [1e-3, 0.1, 1.0, 1e9])
@pytest.mark.parametrize('seed', range(4))
def test_off_the_map_the_weights_are_those_of_the_plain_formula(seed, delta):
    p = Problem(seed, size=12)
    smoother = np.linalg.solve(p.gram_x + 0.1 * np.eye(12), p.cross)
    mu = np.maximum(smoother @ p.gamma, 0.0)
    f = np.linalg.solve(p.gram_y @ np.diag(mu) + delta * np.eye(12), p.k_y)
    plain = p.gamma * (smoother.T @ f)
    found = off_map_bayes_rule(smoother, p.gram_y, p.gamma, p.k_y, delta)
    np.testing.assert_allclose(found, plain, rtol=1e-6, atol=1e-8 * np.abs(plain).max())


@pytest.mark.parametrize('delta', [1e-9, 1e-16])
def test_a_small_delta_off_the_map_costs_no_exactness(delta):
    """Of a system that is well conditioned without it."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(20, 200)) / np.sqrt(200.0)
    gram, mu, k = features @ features.T, rng.dirichlet(np.ones(20)), rng.uniform(size=20)
    exact = np.linalg.solve(gram * mu + delta * np.eye(20), k)
    np.testing.assert_allclose(observation_weights(gram, mu, k, delta), exact, rtol=1e-9)
