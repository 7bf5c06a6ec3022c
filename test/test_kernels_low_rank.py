"""Low-rank Gram matrices, and the rules with them: equal to the dense ones at full rank."""

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import PrecomputedKernel
from kbr_localization.kernels.kernels import GaussianKernel, LaplaceKernel, MaternKernel
from kbr_localization.kernels.low_rank import incomplete_cholesky
from kbr_localization.kernels.rules import (
    BAYES_RULES,
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
    assert low.residual.sum() <= tolerance * 80 * scale
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


def test_an_indefinite_kernel_has_no_low_rank_form():
    x = np.random.default_rng(0).normal(size=(30, 2))
    table = PrecomputedKernel(np.tanh(x @ x.T + 1.0))
    with pytest.raises(KernelError, match='gram: expected a positive semi-definite matrix'):
        incomplete_cholesky(table, table.points(), 1e-9)
