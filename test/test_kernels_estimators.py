"""The estimators are the rules and filters behind them, and scikit-learn's checks pass."""

from kbr_localization.errors import KernelError
from kbr_localization.kernels import (
    ConditionalMeanRegressor,
    GaussianKernel,
    KernelBayesFilter,
    KernelBayesRegressor,
    KernelBayesRule,
    KernelFilterRegressor,
    KernelMean,
    LearntTransition,
)
from kbr_localization.kernels.filters import means
import numpy as np
import pytest

KERNEL = GaussianKernel(0.5, normalised=False)
ALL = [
    ConditionalMeanRegressor(),
    KernelBayesRegressor(method='pKBR', delta=1e-3),
    KernelFilterRegressor(method='pKBR', delta=1e-3),
]
ORDER = ('check_methods_sample_order_invariance', 'check_methods_subset_invariance')
ORDERED = dict.fromkeys(ORDER, 'a filter looks at the order of the observations')


def pairs(size=60, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.uniform(-2.0, 2.0, size=size)
    return np.column_stack([np.sin(y), np.cos(y)]) + 0.05 * rng.normal(size=(size, 2)), y


@pytest.mark.parametrize('estimator', ALL, ids=repr)
def test_the_checks_of_scikit_learn_pass(estimator):
    checks = pytest.importorskip('sklearn.utils.estimator_checks')
    expected = ORDERED if isinstance(estimator, KernelFilterRegressor) else {}
    outcomes = checks.check_estimator(
        estimator, on_fail=None, on_skip=None, expected_failed_checks=expected
    )
    failed = [(o['check_name'], o['exception']) for o in outcomes if o['status'] == 'failed']
    assert failed == []
    assert sum(o['status'] == 'passed' for o in outcomes) >= 50


def test_a_search_of_scikit_learn_takes_them():
    selection = pytest.importorskip('sklearn.model_selection')
    grid = {'width': [0.01, 0.5], 'epsilon': [1e-4, 1e2]}
    search = selection.GridSearchCV(ConditionalMeanRegressor(), grid).fit(*pairs(120))
    assert search.best_params_ == {'width': 0.5, 'epsilon': 1e-4}
    assert search.best_score_ > 0.95


def test_the_conditional_mean_is_kernel_ridge():
    X, y = pairs()
    queries = pairs(7, seed=1)[0]
    found = ConditionalMeanRegressor(KERNEL, epsilon=1e-3).fit(X, y).predict(queries)
    alpha = np.linalg.solve(KERNEL.gram(X) + 60e-3 * np.eye(60), y)
    np.testing.assert_allclose(found, KERNEL.cross_gram(queries, X) @ alpha, rtol=1e-8)
    assert ConditionalMeanRegressor(width=0.5).fit(X, y).score(*pairs(80, 1)) > 0.98


@pytest.mark.parametrize('prior', [None, [[1.0], [1.5], [0.5]]], ids=['sample', 'given'])
def test_bayes_rule_is_bayes_rule(prior):
    X, y = pairs()
    queries = pairs(7, seed=1)[0]
    estimator = KernelBayesRegressor(KERNEL, KERNEL, prior=prior).fit(X, y)
    rule = KernelBayesRule(KERNEL, KERNEL, y[:, None], X, 1e-3, 1e-6)
    law = KernelMean.of_sample(KERNEL, y[:, None] if prior is None else prior)
    expected = [rule.posterior(law, query).mean()[0] for query in queries]
    np.testing.assert_allclose(estimator.predict(queries), expected, rtol=1e-6)


def test_an_observation_without_mass_gets_the_mean_of_the_prior():
    X, y = pairs()
    prior = np.full((20, 1), 1.0) + 0.1 * np.arange(-10, 10)[:, None]
    estimator = KernelBayesRegressor(KERNEL, KERNEL, prior=prior).fit(X, y)
    np.testing.assert_allclose(estimator.predict([[1e6, 1e6]]), prior.mean(), atol=0.1)


@pytest.mark.parametrize('rest', [0.0, 1e-12, -0.1])
def test_weights_that_cancel_have_no_mass(rest):
    y = np.array([1.0, 4.0])
    estimator = KernelBayesRegressor('precomputed', KERNEL, delta=1e3, method='thresholded')
    estimator.fit(np.eye(2), y)
    assert estimator.predict([[1.0, 0.0]])[0] == pytest.approx(1.0)
    assert estimator.predict([[1.0, rest - 1.0]])[0] == pytest.approx(y.mean())


@pytest.mark.parametrize('kind', [ConditionalMeanRegressor, KernelBayesRegressor])
def test_gram_matrices_may_be_given(kind):
    X, y = pairs()
    queries = pairs(7, seed=1)[0]
    expected = kind(KERNEL).fit(X, y).predict(queries)
    given = kind('precomputed').fit(KERNEL.gram(X), y)
    np.testing.assert_allclose(given.predict(KERNEL.cross_gram(queries, X)), expected, rtol=1e-8)
    with pytest.raises(KernelError, match='X: expected the square Gram matrix'):
        kind('precomputed').fit(KERNEL.cross_gram(queries, X), y[:7])
    with pytest.raises(KernelError, match="got 'gaussian'"):
        kind('gaussian').fit(X, y)


@pytest.mark.parametrize('smooth', [False, True])
def test_the_filter_is_the_learnt_filter(smooth):
    rng = np.random.default_rng(0)
    angle = 0.3 * np.arange(200)
    y = np.column_stack([np.cos(angle), np.sin(angle)])
    X = y + 0.3 * rng.normal(size=y.shape)
    estimator = KernelFilterRegressor(KERNEL, KERNEL, smooth=smooth, delta=1e-5)
    found = estimator.fit(X[:150], y[:150]).predict(X[150:])
    assert np.mean((found - y[150:]) ** 2) < 0.5 * np.mean((X[150:] - y[150:]) ** 2)
    if not smooth:
        rule = KernelBayesRule(KERNEL, KERNEL, y[:150], X[:150], 1e-3, 1e-5)
        transition = LearntTransition(KERNEL, y[:149], y[1:150], 1e-3)
        expected = means(KernelBayesFilter(transition, rule).run(X[150:]))
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize('smooth', [False, True])
def test_a_run_may_begin_with_an_observation_unlike_the_sample(smooth):
    X = np.linspace(0.0, 5.0, 30)[:, np.newaxis]
    estimator = KernelFilterRegressor(KERNEL, KERNEL, smooth=smooth).fit(X, X[:, 0])
    found = estimator.predict([[1000.0], [2.0], [2.1]])
    assert np.isfinite(found[0])
    np.testing.assert_allclose(found[1:], [2.0, 2.1], atol=0.2)
