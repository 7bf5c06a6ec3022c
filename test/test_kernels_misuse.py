"""Bad arguments are refused by name: what was expected, and what was given."""

from kbr_localization import kernels as k
from kbr_localization.errors import KernelError
from kbr_localization.kernels.rules import regularise, regularised_bayes_rule
from kbr_localization.kernels.rules import thresholded_bayes_rule as pkbr
import numpy as np
import pytest

K = k.GaussianKernel(1.0)
X = np.random.default_rng(0).normal(size=(9, 1))
GRAM, MU = K.gram(X), np.full(9, 1 / 9)


def rule(**changes):
    return k.KernelBayesRule(K, K, X, X, **{'epsilon': 1e-3, 'delta': 1e-3, **changes})


def learnt(kernel=K):
    return k.NonparametricModel(kernel, K, X, X, 1e-3)


def smoothed(noise, kernel):
    return noise.conditional_kernel_mean(kernel)


def mean():
    return k.KernelMean.of_sample(K, X)


CASES = [
    (lambda: k.GaussianKernel([[1.0, 2.0], [2.0, 1.0]]), 'covariance: .* got -1'),
    (lambda: k.GaussianKernel([[1.0, 0.5], [0.0, 1.0]]), 'covariance: expected a symmetric'),
    (lambda: k.MaternKernel(1.0, 41.0), 'smoothness: expected at most 40'),
    (lambda: -1.0 * K, 'factor: expected a finite number > 0, got -1'),
    (lambda: K.on(3).gram(X), r'x: expected coordinates \(3,\)'),
    (lambda: K + 2.0, 'kernels: expected one kernel or more'),
    (lambda: K.gram(np.ones(3)), r'x: expected shape \(n, d\), got \(3,\)'),
    (lambda: K.gram([[1.0, np.nan]]), 'x: expected finite numbers, got 1'),
    (lambda: K.gram(np.ones((2, 2)) * 1j), 'x: expected real numbers'),
    (lambda: k.PrecomputedKernel([[1.0, 0.0], [0.5, 1.0]]), 'matrix: expected a symmetric'),
    (lambda: smoothed(k.GaussianNoise(1.0), k.MaternKernel(1.0)), 'conjugate to GaussianNoise'),
    (
        lambda: smoothed(k.CauchyNoise([1.0, 2.0]), k.RationalQuadraticKernel([1.0, 1.0])),
        'conjugate to CauchyNoise',
    ),
    (lambda: mean().inner(k.KernelMean.of_sample(2.0 * K, X)), 'other: expected a kernel mean of'),
    (lambda: mean().herd(0), 'count: expected an integer > 0, got 0'),
    (
        lambda: k.AdditiveNoiseModel(lambda x: x[:1], k.CauchyNoise(1.0)).images(X),
        'function.*: expected shape',
    ),
    (lambda: pkbr(np.ones((9, 8)), MU, MU, 1.0), 'gram_y: expected a square'),
    (lambda: pkbr(GRAM, -MU, MU, 1.0), 'mu: expected at least one usable'),
    (lambda: pkbr(GRAM, MU, MU[:8], 1.0), r'k_y: .* got \(8,\)'),
    (lambda: pkbr(GRAM, MU, MU, np.nan), 'delta: expected finite numbers'),
    (lambda: regularised_bayes_rule(GRAM, MU[:7], MU, 1.0, 0.0), 'supervision_weight: expected'),
    (lambda: regularise(GRAM, 0.0), 'epsilon: expected a finite number > 0'),
    (lambda: k.incomplete_cholesky(K, X, 1.0), 'expected a tolerance < 1'),
    (lambda: rule(method='cubed'), "got 'cubed'"),
    (lambda: rule().condition([[0.1]]), r'observation: expected shape \(1\), got'),
    (lambda: learnt().predict(mean(), X, [1.0]), 'belief: expected a kernel mean of points'),
    (lambda: learnt(K * K).predict(mean(), X), 'belief: expected a kernel mean of Product'),
    (
        lambda: k.KernelBayesFilter(learnt(), rule()).run(X[:3], controls=X[:1]),
        'controls: expected 2, one between two observations',
    ),
    (lambda: k.KernelBayesFilter(learnt(), rule()).run(np.ones(3)), r'observations: .* \(T, 1\)'),
    (lambda: k.squared_mmd(K, X[:1], X), 'x, y: expected two samples'),
    (lambda: k.k_fold(5, 6), r'folds: expected 2..5 for 5 points, got 6'),
]


@pytest.mark.parametrize(('make', 'message'), CASES)
def test_a_bad_argument_is_refused_by_name(make, message):
    with pytest.raises(KernelError, match=message):
        make()
