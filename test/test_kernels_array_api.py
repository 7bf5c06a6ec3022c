"""Rules and solves on arrays of other libraries, judged by the strict array-API standard."""

from kbr_localization import kernels as k
from kbr_localization.errors import KernelError
from kbr_localization.kernels.checks import NoMassError
import numpy as np
import pytest

xp = pytest.importorskip('array_api_strict')

RNG = np.random.default_rng(0)
KERNEL = k.GaussianKernel(0.5, normalised=False)
X = RNG.normal(size=(20, 2))
GRAM = KERNEL.gram(X)
ONE = KERNEL.cross_gram(X, X[:1] + 0.1)[:, 0]
MANY = KERNEL.cross_gram(X, X[:4] + 0.1)
MU = RNG.normal(0.05, 0.05, size=20)
MU[3] = 0.0


def foreign(*arrays):
    return [xp.asarray(array) for array in arrays]


def same(found, expected, rtol=1e-8):
    assert type(found).__module__.startswith('array_api_strict')
    np.testing.assert_allclose(np.from_dlpack(found), expected, rtol=rtol, atol=1e-10)


@pytest.mark.parametrize('columns', [ONE, MANY], ids=['one', 'many'])
@pytest.mark.parametrize('rule', k.BAYES_RULES.values(), ids=k.BAYES_RULES)
def test_bayes_rules_are_those_of_numpy(rule, columns):
    gram, mu, k_y = foreign(GRAM, MU, columns)
    same(rule(gram, mu, k_y, 1e-3), rule(GRAM, MU, columns, 1e-3))


@pytest.mark.parametrize('columns', [ONE, MANY], ids=['one', 'many'])
def test_sum_rule_conditional_mean_and_importance_weights(columns):
    gram, k_y, mu = foreign(GRAM, columns, np.abs(MU))
    dense = k.regularise(GRAM, 1e-3)
    given = k.regularise(gram, 1e-3)
    same(k.conditional_mean(given, k_y), k.conditional_mean(dense, columns))
    same(k.nonparametric_sum_rule(given, k_y), k.nonparametric_sum_rule(dense, columns))
    expected = k.importance_weighted_bayes_rule(GRAM, np.abs(MU), columns, 1e-2)
    same(k.importance_weighted_bayes_rule(gram, mu, k_y, 1e-2), expected)


def test_single_precision_stays_single():
    gram, mu, k_y = (xp.asarray(a, dtype=xp.float32) for a in (GRAM, MU, ONE))
    for rule in k.BAYES_RULES.values():
        found = rule(gram, mu, k_y, 1e-2)
        assert found.dtype == xp.float32
        same(found, rule(GRAM, MU, ONE, 1e-2), rtol=1e-3)


def test_what_does_not_fit_is_refused():
    gram, mu, k_y = foreign(GRAM, MU, ONE)
    with pytest.raises(KernelError, match='gram: expected a square matrix'):
        k.regularise(gram[:, :3], 0.1)
    with pytest.raises(KernelError, match=r'gram: expected a positive semi-definite matrix'):
        k.regularise(-gram, 0.1)
    with pytest.raises(KernelError, match='mu: expected an array of shape'):
        k.squared_bayes_rule(gram, MU, k_y, 0.1)
    with pytest.raises(KernelError, match='right_side: expected an array of shape'):
        k.conditional_mean(k.regularise(gram, 0.1), ONE)
    for arrays in ((gram * np.nan, mu, k_y), (gram, mu * np.nan, k_y), (gram, mu, k_y * np.inf)):
        for rule in k.BAYES_RULES.values():
            with pytest.raises(KernelError, match='expected finite numbers, got NaN or infinite'):
                rule(*arrays, 0.1)
    with pytest.raises(NoMassError, match='mu: expected at least one positive'):
        k.thresholded_bayes_rule(gram, -xp.abs(mu), k_y, 0.1)
    with pytest.raises(NoMassError, match='mu: expected at least one weight'):
        k.squared_bayes_rule(gram, xp.zeros_like(mu), k_y, 0.1)
