"""Low-rank rules: equal to the dense ones at full rank, within their own bound below it."""

from counting_kernel import CountingKernel
from hypothesis import given, settings
from hypothesis import strategies as st
from kbr_localization.errors import KernelError
from kbr_localization.kernels import low_rank_rules
from kbr_localization.kernels.kernels import GaussianKernel, LaplaceKernel, MaternKernel
from kbr_localization.kernels.low_rank import incomplete_cholesky, RegularisedLowRank
from kbr_localization.kernels.rules import (
    BAYES_RULES,
    conditional_mean,
    importance_weighted_bayes_rule,
    model_based_sum_rule,
    nonparametric_sum_rule,
    regularise,
    regularised_bayes_rule,
)
import numpy as np
import pytest

KERNEL = GaussianKernel(0.5, normalised=False)
LOW_RANK = {
    'squared': low_rank_rules.squared_bayes_rule,
    'thresholded': low_rank_rules.thresholded_bayes_rule,
}


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
@pytest.mark.parametrize('tolerance', [1e-1, 1e-3, 1e-6])
def test_residual_is_positive_semidefinite_with_the_reported_diagonal(kernel, tolerance):
    y = Sample().y
    low = incomplete_cholesky(kernel, y, tolerance)
    residual = kernel.gram(y) - low.dense()
    scale = kernel.diagonal(y)[0]
    np.testing.assert_allclose(np.diag(residual), low.residual, atol=1e-12 * scale)
    assert np.linalg.eigvalsh(residual)[0] > -1e-11 * scale
    assert low.trace_error <= tolerance * 80 * scale
    assert low.rank == len(set(low.pivots.tolist())) <= 80
    np.testing.assert_array_equal(low.triangle, np.tril(low.factor[low.pivots]))


def test_only_kernel_columns_are_evaluated():
    kernel = CountingKernel(0.5, normalised=False)
    low = incomplete_cholesky(kernel, Sample(size=500).y)
    assert kernel.evaluations == 500 * low.rank < 500 * 100


def test_features_extend_the_factor_to_new_points():
    s = Sample()
    low = incomplete_cholesky(KERNEL, s.y, 1e-12)
    new = np.random.default_rng(1).normal(size=(7, 2))
    features = low.features(KERNEL, s.y, new)
    np.testing.assert_allclose(low.factor @ features.T, KERNEL.cross_gram(s.y, new), atol=1e-5)
    own = low.features(KERNEL, s.y, s.y)
    np.testing.assert_allclose(own, low.factor, atol=1e-6)


def test_restricting_and_extending_keep_the_rows_of_the_other_points():
    s = Sample()
    low = incomplete_cholesky(KERNEL, s.y, 1e-2)
    kept = np.array([5, 3, 70])
    part = low.restricted(kept)
    np.testing.assert_array_equal(part.dense(), low.dense()[np.ix_(kept, kept)])
    joint = part.extended(KERNEL, s.y, s.query)
    exact = KERNEL.gram(np.concatenate([s.y[kept], s.query]))
    residual = exact - joint.dense()
    np.testing.assert_allclose(np.diag(residual), joint.residual, atol=1e-10)
    assert np.linalg.eigvalsh(residual)[0] > -1e-10


def test_rank_is_found_exactly_and_duplicates_cost_nothing():
    points = np.repeat(np.random.default_rng(0).normal(size=(5, 2)), 20, axis=0)
    low = incomplete_cholesky(KERNEL, points, tolerance=0.0)
    assert low.rank == 5
    np.testing.assert_allclose(low.dense(), KERNEL.gram(points), atol=1e-12)
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


@pytest.mark.parametrize('ridge', [1e-7, 1e-9, 1e-11, 1e-13])
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
    np.testing.assert_allclose(low.dense() @ solver.solve(inside), inside, rtol=1e-9)


@pytest.mark.parametrize('method', LOW_RANK)
@pytest.mark.parametrize('delta', [1e-2, 1e-5])
def test_bayes_rule_at_full_rank_is_the_dense_one(method, delta):
    s = Sample()
    low = incomplete_cholesky(KERNEL, s.y, 0.0)
    dense = BAYES_RULES[method](s.gram, s.mu, s.k, delta)
    np.testing.assert_allclose(
        BAYES_RULES[method](low, s.mu, s.k, delta), dense, rtol=1e-8, atol=1e-9
    )


@pytest.mark.parametrize('epsilon', [1e-1, 1e-3])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), exponent=st.floats(-8, -1))
def test_sum_rule_stays_within_its_bound(epsilon, seed, exponent):
    s = Sample(seed, size=40)
    low = incomplete_cholesky(KERNEL, s.y, 10.0**exponent)
    solver = regularise(low, epsilon)
    assert isinstance(solver, RegularisedLowRank)
    weights = solver.solve(s.k)
    distance = np.linalg.norm(weights - regularise(s.gram, epsilon).solve(s.k))
    assert distance <= solver.error_bound(weights) * (1 + 1e-6) + 1e-10


@pytest.mark.parametrize('method', LOW_RANK)
@pytest.mark.parametrize('delta', [1e-1, 1e-3])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), exponent=st.floats(-8, -1))
def test_bayes_rule_stays_within_its_bound(method, delta, seed, exponent):
    s = Sample(seed, size=40)
    low = incomplete_cholesky(KERNEL, s.y, 10.0**exponent)
    result = LOW_RANK[method](low, s.mu, s.k, delta)
    dense = BAYES_RULES[method](s.gram, s.mu, s.k, delta)
    distance = np.linalg.norm(result.values - dense)
    assert distance <= result.error_bound * (1 + 1e-6) + 1e-10


@pytest.mark.parametrize('method', LOW_RANK)
def test_the_bound_is_nearly_reached_by_small_samples_and_never_passed(method):
    reached = []
    for seed in range(200):
        s = Sample(seed, size=2 + seed % 5)
        s.mu[0] = abs(s.mu[0])
        low = incomplete_cholesky(KERNEL, s.y, 0.5)
        delta = 10.0 ** np.random.default_rng(seed).uniform(-3, 1)
        result = LOW_RANK[method](low, s.mu, s.k, delta)
        distance = np.linalg.norm(result.values - BAYES_RULES[method](s.gram, s.mu, s.k, delta))
        assert distance <= result.error_bound * (1 + 1e-6) + 1e-12
        reached.append(distance / max(result.error_bound, 1e-12))
    assert max(reached) > 0.6


@pytest.mark.parametrize('method', LOW_RANK)
def test_the_bound_is_useful_and_falls_with_the_tolerance(method):
    s = Sample()
    bounds = []
    for tolerance in (1e-6, 1e-9, 1e-12):
        low = incomplete_cholesky(KERNEL, s.y, tolerance)
        result = LOW_RANK[method](low, s.mu, s.k, 1e-1)
        bounds.append(float(result.error_bound) / np.linalg.norm(result.values))
    assert bounds[0] > 30 * bounds[1] > 900 * bounds[2]
    assert bounds[0] < 1e-2


@pytest.mark.parametrize('method', LOW_RANK)
def test_several_observations_at_once(method):
    s = Sample()
    low = incomplete_cholesky(KERNEL, s.y)
    columns = s.gram[:, :3]
    result = LOW_RANK[method](low, s.mu, columns, 1e-2)
    assert result.error_bound.shape == (3,)
    for j in range(3):
        alone = LOW_RANK[method](low, s.mu, columns[:, j], 1e-2)
        np.testing.assert_allclose(result.values[:, j], alone.values, rtol=1e-8, atol=1e-12)
        assert result.error_bound[j] == pytest.approx(float(alone.error_bound))


@pytest.mark.parametrize('signs', ['all', 'positive', 'negative'])
def test_squared_rule_is_the_plain_formula_for_weights_of_any_sign(signs):
    s = Sample()
    low = incomplete_cholesky(KERNEL, s.y, 1e-3)
    mu = {'all': s.mu, 'positive': np.abs(s.mu), 'negative': -np.abs(s.mu)}[signs]
    delta, product = 1e-2, np.diag(mu) @ low.dense()
    inverse = np.linalg.inv(product @ product + delta * np.eye(len(mu)))
    plain = product @ inverse @ (mu * s.k)
    found = low_rank_rules.squared_bayes_rule(low, mu, s.k, delta).values
    np.testing.assert_allclose(found, plain, rtol=1e-9, atol=1e-12)


def test_a_rule_finds_its_bound_only_when_asked_for_it(monkeypatch):
    s = Sample()
    low = incomplete_cholesky(KERNEL, s.y, 1e-3)
    norms = []
    norm = np.linalg.norm
    monkeypatch.setattr(np.linalg, 'norm', lambda *a, **k: norms.append(a) or norm(*a, **k))
    result = low_rank_rules.squared_bayes_rule(low, s.mu, s.k, 1e-2)
    assert not norms
    assert result.error_bound is result.error_bound
    assert len(norms) == 2


def test_model_based_sum_rule_stays_within_its_bound():
    rng = np.random.default_rng(2)
    z, images, gamma = rng.normal(size=(50, 2)), rng.normal(size=(60, 2)), rng.normal(size=60)
    kernel = GaussianKernel(0.8)
    exact = model_based_sum_rule(kernel, z, images, gamma)
    for tolerance in (1e-2, 1e-5):
        result = low_rank_rules.model_based_sum_rule(kernel, z, images, gamma, tolerance)
        assert np.abs(result.values - exact).max() <= result.error_bound
    assert np.abs(result.values - exact).max() < 1e-3 * np.abs(exact).max()


def test_supervised_and_importance_weighted_rules_take_low_rank_matrices():
    s = Sample()
    low = incomplete_cholesky(KERNEL, s.y, 0.0)
    ratio = 80 * s.mu
    np.testing.assert_allclose(
        importance_weighted_bayes_rule(low, ratio, s.k, 1e-3),
        importance_weighted_bayes_rule(s.gram, ratio, s.k, 1e-3),
        rtol=1e-8,
        atol=1e-9,
    )
    np.testing.assert_allclose(
        regularised_bayes_rule(low, s.mu[:75], s.k, 1e-3, 0.1),
        regularised_bayes_rule(s.gram, s.mu[:75], s.k, 1e-3, 0.1),
        rtol=1e-8,
        atol=1e-9,
    )


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        (lambda s, low: incomplete_cholesky(KERNEL, np.ones(3)), r'points: expected shape \(n, d'),
        (lambda s, low: incomplete_cholesky(KERNEL, s.y, -1.0), 'tolerance: expected a finite'),
        (
            lambda s, low: incomplete_cholesky(KERNEL, s.y, max_rank=0),
            'max_rank: expected an int',
        ),
        (lambda s, low: regularise(low, 0.0), 'epsilon: expected a finite number > 0'),
        (
            lambda s, low: low_rank_rules.squared_bayes_rule(low, 0 * s.mu, s.k, 1.0),
            'mu: expected at least one usable weight',
        ),
        (
            lambda s, low: low_rank_rules.thresholded_bayes_rule(low, -abs(s.mu), s.k, 1.0),
            'mu: expected at least one usable weight, got 80 negative',
        ),
        (
            lambda s, low: low_rank_rules.thresholded_bayes_rule(low, s.mu, s.k[1:], 1.0),
            r'k_y: expected shape \(80,\)',
        ),
    ],
)
def test_bad_input_is_refused(make, message):
    s = Sample()
    with pytest.raises(KernelError, match=message):
        make(s, incomplete_cholesky(KERNEL, s.y))
