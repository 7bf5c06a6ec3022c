"""Low-rank Gram matrices, and the rules with them: equal to the dense ones at full rank."""

from kbr_localization.errors import KernelError
from kbr_localization.kernels.kernels import GaussianKernel, LaplaceKernel, MaternKernel
from kbr_localization.kernels.low_rank import incomplete_cholesky, pivoted_cholesky
from kbr_localization.kernels.rules import (
    BAYES_RULES,
    conditional_mean,
    model_based_sum_rule,
    nonparametric_sum_rule,
    regularise,
)
import numpy as np
import pytest

KERNEL = GaussianKernel(0.5, normalised=False)


def dense(low):
    return low.factor @ low.factor.T


class Sample:
    """A sample with a dense Gram matrix, prior weights of both signs and an observation."""

    def __init__(self, seed=0, size=80):
        rng = np.random.default_rng(seed)
        self.y = rng.normal(size=(size, 2))
        self.gram = KERNEL.gram(self.y)
        self.mu = rng.normal(0.5, 1.0, size=size) / size
        self.query = rng.normal(size=(1, 2))
        self.k = KERNEL.cross_gram(self.y, self.query)[:, 0]


@pytest.mark.parametrize('kernel', [KERNEL, LaplaceKernel(1.0), MaternKernel(0.5, 2.5)], ids=repr)
@pytest.mark.parametrize('tolerance', [1e-1, 1e-6])
def test_residual_is_positive_semidefinite_with_the_reported_diagonal(kernel, tolerance):
    y = Sample().y
    low = incomplete_cholesky(kernel, y, tolerance)
    residual = kernel.gram(y) - dense(low)
    scale = kernel.diagonal(y)[0]
    np.testing.assert_allclose(np.diag(residual), low.residual, atol=1e-12 * scale)
    assert np.linalg.eigvalsh(residual)[0] > -1e-11 * scale
    assert low.trace_error <= tolerance * 80 * scale
    assert low.rank == len(set(low.pivots.tolist())) <= 80
    np.testing.assert_array_equal(low.triangle, np.tril(low.factor[low.pivots]))


def test_features_extend_the_factor_to_new_points():
    s = Sample()
    low = incomplete_cholesky(KERNEL, s.y, 1e-12)
    new = np.random.default_rng(1).normal(size=(7, 2))
    features = low.features(KERNEL, s.y, new)
    np.testing.assert_allclose(low.factor @ features.T, KERNEL.cross_gram(s.y, new), atol=1e-5)
    own = low.features(KERNEL, s.y, s.y)
    np.testing.assert_allclose(own, low.factor, atol=1e-6)


def test_rank_is_found_exactly_and_duplicates_cost_nothing():
    points = np.repeat(np.random.default_rng(0).normal(size=(5, 2)), 20, axis=0)
    low = incomplete_cholesky(KERNEL, points, tolerance=0.0)
    assert low.rank == 5
    np.testing.assert_allclose(dense(low), KERNEL.gram(points), atol=1e-12)
    assert incomplete_cholesky(KERNEL, points, 0.0, max_rank=3).rank == 3


@pytest.mark.parametrize('epsilon', [1e-2, 1e-4])
def test_sum_rule_at_full_rank_is_the_dense_one(epsilon):
    s = Sample()
    low = regularise(incomplete_cholesky(KERNEL, s.y, 0.0), epsilon)
    dense = regularise(s.gram, epsilon)
    expected = conditional_mean(dense, s.k)
    np.testing.assert_allclose(conditional_mean(low, s.k), expected, rtol=1e-8, atol=1e-9)
    columns = np.stack([s.k, s.gram[:, 3]], axis=1)
    np.testing.assert_allclose(
        nonparametric_sum_rule(low, columns), dense.solve(columns), rtol=1e-8, atol=1e-9
    )


@pytest.mark.parametrize('ridge', [1e-7, 1e-13])
def test_a_small_regularisation_costs_no_accuracy(ridge):
    s, kernel = Sample(), LaplaceKernel(1.0)
    gram, low = kernel.gram(s.y), incomplete_cholesky(kernel, s.y, 0.0)
    k = kernel.cross_gram(s.y, s.query)[:, 0]
    np.testing.assert_allclose(
        regularise(low, ridge).solve(k), regularise(gram, ridge).solve(k), rtol=1e-9, atol=1e-10
    )
    found, dense = (BAYES_RULES['thresholded'](g, s.mu, k, ridge) for g in (low, gram))
    np.testing.assert_allclose(found, dense, rtol=1e-9, atol=1e-10)


def test_a_regularisation_below_rounding_is_raised_and_logged(caplog):
    s = Sample()
    low = incomplete_cholesky(KERNEL, s.y, 1e-3)
    solver = regularise(low, 1e-18)
    assert 'n * epsilon raised from 8e-17' in caplog.text
    assert 80e-18 < solver.ridge < 1e-12
    inside = low.factor @ low.factor[0]
    np.testing.assert_allclose(dense(low) @ solver.solve(inside), inside, rtol=1e-9)


@pytest.mark.parametrize('method', BAYES_RULES)
@pytest.mark.parametrize('delta', [1e-2, 1e-5])
def test_bayes_rule_at_full_rank_is_the_dense_one(method, delta):
    s = Sample()
    low = incomplete_cholesky(KERNEL, s.y, 0.0)
    dense = BAYES_RULES[method](s.gram, s.mu, s.k, delta)
    np.testing.assert_allclose(
        BAYES_RULES[method](low, s.mu, s.k, delta), dense, rtol=1e-8, atol=1e-9
    )


@pytest.mark.parametrize('signs', ['all', 'positive', 'negative'])
def test_squared_rule_is_the_plain_formula_for_weights_of_any_sign(signs):
    s = Sample()
    low = incomplete_cholesky(KERNEL, s.y, 1e-3)
    mu = {'all': s.mu, 'positive': np.abs(s.mu), 'negative': -np.abs(s.mu)}[signs]
    delta, product, columns = 1e-2, np.diag(mu) @ dense(low), s.gram[:, :3]
    inverse = np.linalg.inv(product @ product + delta * np.eye(len(mu)))
    plain = product @ inverse @ (mu[:, np.newaxis] * columns)
    found = BAYES_RULES['squared'](low, mu, columns, delta)
    np.testing.assert_allclose(found, plain, rtol=1e-9, atol=1e-12)


def test_model_based_sum_rule_tends_to_the_exact_one():
    rng = np.random.default_rng(2)
    z, images, gamma = rng.normal(size=(50, 2)), rng.normal(size=(60, 2)), rng.normal(size=60)
    kernel = GaussianKernel(0.8)
    exact = model_based_sum_rule(kernel, z, images, gamma)
    found = model_based_sum_rule(kernel, z, images, gamma, 1e-6)
    np.testing.assert_allclose(found, exact, atol=1e-3 * np.abs(exact).max())


@pytest.mark.parametrize('order', [1, -1])
def test_an_indefinite_kernel_has_no_low_rank_form(order):
    x = np.random.default_rng(0).normal(size=(30, 2))
    for gram in (np.tanh(x @ x.T + 1.0), np.diag([1.0, 1.0, -0.1])[::order, ::order]):
        with pytest.raises(KernelError, match='gram: expected a positive semi-definite matrix'):
            pivoted_cholesky(np.diag(gram), lambda i, gram=gram: gram[i], 1e-9)


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        (lambda s, low: incomplete_cholesky(KERNEL, np.ones(3)), 'points: expected points'),
        (lambda s, low: incomplete_cholesky(KERNEL, s.y, -1.0), 'tolerance: expected a finite'),
        (lambda s, low: incomplete_cholesky(KERNEL, s.y, 1.0), 'expected a tolerance < 1'),
        (lambda s, low: incomplete_cholesky(KERNEL, s.y, max_rank=0), 'max_rank: expected an int'),
        (lambda s, low: regularise(low, 0.0), 'epsilon: expected a finite number > 0'),
        (
            lambda s, low: BAYES_RULES['thresholded'](low, -abs(s.mu), s.k, 1.0),
            'mu: expected at least one usable weight, got 80 negative',
        ),
    ],
)
def test_misuse_is_refused(make, message):
    s = Sample()
    with pytest.raises(KernelError, match=message):
        make(s, incomplete_cholesky(KERNEL, s.y))
