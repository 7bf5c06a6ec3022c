"""The estimators are the rules and filters behind them, and scikit-learn's checks pass."""

from kbr_localization.errors import KernelError
from kbr_localization.kernels import (
    GaussianKernel,
    KernelBayesFilter,
    KernelBayesRule,
    KernelMean,
    means,
    NonparametricModel,
)
from kbr_localization.kernels.estimators import (
    ConditionalMeanRegressor,
    KernelBayesRegressor,
    KernelFilterRegressor,
)
import numpy as np
import pytest
from sklearn.datasets import make_regression
from sklearn.model_selection import GridSearchCV
from sklearn.utils import estimator_checks
from state_space import autoregression

KERNEL = GaussianKernel(0.5, normalised=False)
ORDER = ('check_methods_sample_order_invariance', 'check_methods_subset_invariance')
ORDERED = dict.fromkeys(ORDER, 'a filter looks at the order of the observations')


def pairs(size=60, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.uniform(-2.0, 2.0, size=size)
    return np.column_stack([np.sin(y), np.cos(y)]) + 0.05 * rng.normal(size=(size, 2)), y


X, TARGET = pairs()
QUERIES = pairs(7, seed=1)[0]


def autoregressive(size, seed):
    x, y = autoregression(q=0.25, r=0.09).simulate(size, np.random.default_rng(seed))
    return y, x[:, 0]


@pytest.mark.parametrize(
    ('estimator', 'expected'),
    [
        (ConditionalMeanRegressor(), {}),
        (KernelBayesRegressor(method='pKBR'), {}),
        (KernelFilterRegressor(method='pKBR'), ORDERED),
    ],
    ids=repr,
)
def test_the_checks_of_scikit_learn_pass(estimator, expected, monkeypatch):
    # theirs has 200 rows, a run of which takes seconds
    few = make_regression(50, 10, n_informative=1, bias=5.0, noise=5, random_state=42)
    monkeypatch.setattr(estimator_checks, 'REGRESSION_DATASET', few)
    outcomes = estimator_checks.check_estimator(
        estimator, on_fail=None, on_skip=None, expected_failed_checks=expected
    )
    failed = [(o['check_name'], o['exception']) for o in outcomes if o['status'] == 'failed']
    assert failed == []
    assert sum(o['status'] == 'passed' for o in outcomes) >= 45


def test_a_search_of_scikit_learn_takes_them():
    grid = {'width': [0.01, 0.5], 'epsilon': [1e-4, 1e2]}
    search = GridSearchCV(ConditionalMeanRegressor(), grid).fit(*pairs(120))
    assert search.best_params_ == {'width': 0.5, 'epsilon': 1e-4}
    assert search.best_score_ > 0.95
    kernels = [2.0 * GaussianKernel(s) for s in (1e-4, 0.25)]
    search = GridSearchCV(KernelBayesRegressor(), {'kernel': kernels}).fit(*pairs(80))
    assert repr(search.best_params_['kernel']) == repr(kernels[1])


@pytest.mark.parametrize('kind', [ConditionalMeanRegressor, KernelBayesRegressor])
def test_a_kernel_may_be_a_gram_matrix(kind):
    expected = kind(KERNEL).fit(X, TARGET).predict(QUERIES)
    given = kind('precomputed').fit(KERNEL.gram(X), TARGET)
    found = given.predict(KERNEL.cross_gram(QUERIES, X))
    np.testing.assert_allclose(found, expected, rtol=1e-8)
    for kernel, points, says in (
        ('precomputed', KERNEL.cross_gram(X, QUERIES), 'X: expected the square Gram matrix'),
        (KERNEL.cross_gram, X, 'kernel: expected a Kernel, None'),
        ('rbf', X, "got 'rbf'"),
    ):
        with pytest.raises(KernelError, match=says):
            kind(kernel).fit(points, TARGET)


def test_the_conditional_mean_is_kernel_ridge():
    found = ConditionalMeanRegressor(KERNEL, epsilon=1e-3).fit(X, TARGET).predict(QUERIES)
    alpha = np.linalg.solve(KERNEL.gram(X) + 60e-3 * np.eye(60), TARGET)
    np.testing.assert_allclose(found, KERNEL.cross_gram(QUERIES, X) @ alpha, rtol=1e-8)
    assert ConditionalMeanRegressor(width=0.5).fit(X, TARGET).score(*pairs(80, 1)) > 0.98


@pytest.mark.parametrize('prior', [None, [[1.0], [1.5], [0.5]]], ids=['sample', 'given'])
def test_bayes_rule_is_bayes_rule(prior):
    states = TARGET[:, np.newaxis]
    estimator = KernelBayesRegressor(KERNEL, KERNEL, prior=prior).fit(X, TARGET)
    rule = KernelBayesRule(KERNEL, KERNEL, states, X, 1e-3)
    law = KernelMean.of_sample(KERNEL, states if prior is None else prior)
    expected = [rule.posterior(law, query).mean()[0] for query in QUERIES]
    np.testing.assert_allclose(estimator.predict(QUERIES), expected, rtol=1e-6)


def test_the_filter_is_the_learnt_filter():
    (x, y), (queries, _) = autoregressive(150, 0), autoregressive(20, 1)
    found = KernelFilterRegressor(KERNEL, KERNEL, delta=1e-5).fit(x, y).predict(queries)
    states = y[:, np.newaxis]
    rule = KernelBayesRule(KERNEL, KERNEL, states, x, 1e-3, 1e-5)
    transition = NonparametricModel(KERNEL, KERNEL, states[:-1], states[1:], 1e-3)
    expected = means(KernelBayesFilter(transition, rule).run(queries))
    np.testing.assert_array_equal(found, expected[:, 0])


@pytest.mark.parametrize('rest', [0.0, 1e-12, -0.1])
def test_weights_that_cancel_have_no_mass(rest):
    y = np.array([1.0, 4.0])
    estimator = KernelBayesRegressor('precomputed', KERNEL, delta=1e3, method='thresholded')
    estimator.fit(np.eye(2), y)
    assert estimator.predict([[1.0, 0.0]])[0] == pytest.approx(1.0)
    assert estimator.predict([[1.0, rest - 1.0]])[0] == pytest.approx(y.mean())


@pytest.mark.parametrize('method', ['KBR', 'pKBR'])
def test_the_default_delta_suits_each_rule_at_a_hundred_pairs(method):
    errors = np.zeros(3)
    for seed in range(2):
        (x, y), (queries, truth) = autoregressive(100, seed), autoregressive(100, seed + 10)
        estimators = (
            KernelBayesRegressor(method=method),
            KernelFilterRegressor(method=method),
            KernelFilterRegressor(method=method, smooth=True),
        )
        found = np.array([estimator.fit(x, y).predict(queries) for estimator in estimators])
        assert np.abs(found).max() < 1.5 * np.abs(truth).max()
        errors += np.mean((found - truth) ** 2, axis=1)
    bayes, filtered, smoothed = errors / 2 / truth.var()
    assert max(bayes, filtered, smoothed) < 0.25 and smoothed < 1.1 * filtered
    # it follows the scale of the kernel
    kernels = KERNEL, 100.0 * KERNEL
    found = [KernelBayesRegressor(k, KERNEL, method=method).fit(X, TARGET) for k in kernels]
    np.testing.assert_allclose(*(each.predict(X) for each in found), rtol=1e-6)


def test_weights_that_cancel_are_reported():
    data, (queries, _) = autoregressive(100, 0), autoregressive(100, 10)
    with pytest.warns(RuntimeWarning, match='posterior weights cancel'):
        KernelBayesRegressor(delta=1e-14).fit(*data).predict(queries)


def test_standard_deviations_are_those_of_the_exact_posterior():
    rng = np.random.default_rng(0)
    y = rng.normal(size=600)
    x = (y + 0.5 * rng.normal(size=600))[:, np.newaxis]
    for estimator in (ConditionalMeanRegressor(), KernelBayesRegressor(method='pKBR')):
        mean, std = estimator.fit(x, y).predict([[-0.5], [0.0], [0.5]], return_std=True)
        np.testing.assert_allclose(mean, [-0.4, 0.0, 0.4], atol=0.12)
        np.testing.assert_allclose(std, np.sqrt(0.2), rtol=0.15)
    assert ConditionalMeanRegressor().fit(x, y).predict([[1e3]], return_std=True)[1] > 0.9


@pytest.mark.parametrize('smooth', [False, True])
def test_rows_with_nan_or_masked_are_missing_observations(smooth):
    (x, y), (queries, truth) = autoregressive(300, 0), autoregressive(60, 1)
    queries[20:25] = np.nan
    estimator = KernelFilterRegressor(method='pKBR', smooth=smooth).fit(x, y)
    mean, std = estimator.predict(queries, return_std=True)
    assert np.abs(mean - truth).max() < 2.5
    assert std[20:24].min() > std[5:20].mean()
    x[::10] = 1e3
    x = np.ma.masked_equal(x, 1e3)
    np.testing.assert_allclose(estimator.fit(x, y).predict(queries), mean, atol=0.5)
    with pytest.raises(KernelError, match='x: expected shape'):
        estimator.fit(np.full((300, 1), np.nan), y)
