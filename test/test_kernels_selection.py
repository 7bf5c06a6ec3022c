"""Cross-validation scores by their formulas; levels and power of the permutation tests."""

from functools import partial

from kbr_localization.errors import KernelError
from kbr_localization.kernels import (
    GaussianKernel,
    grid_search,
    hsic,
    independence_test,
    k_fold,
    KernelBayesFilter,
    KernelBayesRule,
    KernelMean,
    LinearKernel,
    NonparametricModel,
    squared_mmd,
    two_sample_test,
)
from kbr_localization.kernels.selection import (
    filter_score,
    kernel_mean_score,
    point_score,
    posterior_score,
)
import numpy as np
import pytest

KERNEL = GaussianKernel(1.0, normalised=False)
GRID = {'width': [1e-4, 0.1, 1e4], 'delta': [1e-4, 1e-2]}


def make_rule(x, y, width=0.3, epsilon=1e-3, delta=1e-3):
    kernel = GaussianKernel(width, normalised=False)
    return KernelBayesRule(kernel, kernel, x, y, epsilon, delta, 'thresholded')


def make_filter(x, y, width, delta):
    rule = make_rule(x[:-1], y[:-1], width, delta=delta)
    kernel = rule.kernel_x
    return KernelBayesFilter(NonparametricModel(kernel, kernel, x[:-1], x[1:], 1e-3), rule)


def sample(size=80):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(size, 1))
    return x, x + 0.3 * rng.normal(size=x.shape)


@pytest.mark.parametrize('rng', [None, np.random.default_rng(0)])
def test_folds_cover_the_sample_once(rng):
    folds = k_fold(11, 3, rng)
    whole = np.sort(np.concatenate([validation for _, validation in folds]))
    np.testing.assert_array_equal(whole, np.arange(11))
    for training, validation in folds:
        assert sorted({*training, *validation}) == list(range(11))
        assert training.size + validation.size == 11
        assert rng or np.all(np.diff(validation) == 1)


def test_two_fold_search_finds_the_width_that_is_neither_tiny_nor_huge():
    x, y = sample()
    result = grid_search(partial(point_score, x, y, make_rule), GRID, k_fold(80, 2))
    assert result.best['width'] == 0.1
    assert result.scores.shape == (6, 2)
    assert result.mean_scores.min() < 0.5 * np.mean((x - x.mean()) ** 2)


def test_kernel_mean_scores_are_distances_in_the_rkhs():
    x, y = sample(20)
    fold = training, validation = k_fold(20, 4)[1]
    rule = make_rule(x[training], y[training])
    prior = KernelMean.of_sample(rule.kernel_x, rule.x)
    posteriors = [rule.posterior(prior, y[j]) for j in validation]
    states = [KernelMean.of_sample(rule.kernel_x, x[[j]]) for j in validation]
    expected = np.mean([p.mmd(k) ** 2 for p, k in zip(posteriors, states, strict=True)])
    assert posterior_score(x, y, make_rule, *fold) == pytest.approx(expected, rel=1e-8)
    averaged = KernelMean(rule.kernel_x, rule.x, np.mean([p.weights for p in posteriors], axis=0))
    expected = averaged.mmd(KernelMean.of_sample(rule.kernel_x, x[validation])) ** 2
    assert kernel_mean_score(x, y, make_rule, *fold) == pytest.approx(expected, rel=1e-8)


def test_filter_validation_runs_over_the_other_half():
    rng = np.random.default_rng(0)
    angle = 0.3 * np.arange(120)
    x = np.stack([np.cos(angle), np.sin(angle)], axis=1) + 0.05 * rng.normal(size=(120, 2))
    y = x + 0.2 * rng.normal(size=x.shape)
    grid = {'width': [1e-4, 0.3, 100.0], 'delta': [0.1]}
    result = grid_search(partial(filter_score, x, y, make_filter), grid, k_fold(120, 2))
    assert result.best == {'width': 0.3, 'delta': 0.1}
    assert result.mean_scores.min() < 0.5 * np.mean((y - x) ** 2)


def test_a_setting_that_fails_is_infinitely_bad_and_only_a_total_failure_raises():
    x, y = sample(20)
    score = partial(point_score, x, y, make_rule)
    result = grid_search(score, {'width': [-1.0, 0.1]}, k_fold(20, 2))
    assert np.all(np.isinf(result.scores[0]))
    assert result.best == {'width': 0.1}
    with pytest.raises(KernelError, match='covariance: expected positive'):
        grid_search(score, {'width': [-1.0, -2.0]}, k_fold(20, 2))


def normal(size, seed, shift=0.0, dimension=2):
    return np.random.default_rng(seed).normal(shift, 1.0, size=(size, dimension))


def test_mmd_is_the_sum_over_pairs():
    x, y = normal(5, 0), normal(7, 1, 0.5)
    grams = KERNEL.gram(x), KERNEL.gram(y)
    within = [(gram.sum() - len(gram)) / (len(gram) * (len(gram) - 1)) for gram in grams]
    expected = sum(within) - 2 * KERNEL.cross_gram(x, y).mean()
    assert squared_mmd(KERNEL, x, y) == pytest.approx(expected)


def test_the_mmd_of_very_unequal_samples_keeps_its_digits():
    # means of all pairs lose a constant of the kernel, of which sums over many points have more
    x, y = normal(1000, 0), normal(2, 1)
    expected = squared_mmd(LinearKernel(0.0), x, y)
    assert squared_mmd(LinearKernel(1e8), x, y) == pytest.approx(expected, abs=1e-6)
    assert squared_mmd(LinearKernel(1e8), y, x) == pytest.approx(expected, abs=1e-6)


def test_the_null_of_two_samples_is_the_mmd_of_every_deal():
    x, y = normal(6, 0), normal(9, 1, 0.5)
    found = two_sample_test(KERNEL, x, y, permutations=20, rng=3)
    pooled, generator = np.concatenate([x, y]), np.random.default_rng(3)
    deals = [generator.permutation(np.arange(15) < 6) for _ in range(20)]
    plain = [squared_mmd(KERNEL, pooled[deal], pooled[~deal]) for deal in deals]
    np.testing.assert_allclose(found.null, plain, rtol=1e-10, atol=1e-14)
    assert found.statistic == pytest.approx(squared_mmd(KERNEL, x, y), rel=1e-12)
    assert found.p_value == (1 + np.sum(found.null >= found.statistic)) / 21


def test_hsic_is_the_trace():
    x, y = normal(9, 0), normal(9, 1, dimension=1)
    h = np.eye(9) - 1 / 9
    expected = np.trace(KERNEL.gram(x) @ h @ KERNEL.gram(y) @ h) / 81
    assert hsic(KERNEL, KERNEL, x, y) == pytest.approx(expected)


def test_differences_of_variance_and_dependence_without_correlation_are_seen():
    x = normal(150, 0, dimension=1)
    assert two_sample_test(KERNEL, x, 2.0 * normal(150, 1, dimension=1), 199).p_value == 1 / 200
    dependent = x**2 + 0.1 * normal(150, 2, dimension=1)
    assert abs(np.corrcoef(x[:, 0], dependent[:, 0])[0, 1]) < 0.25
    assert independence_test(KERNEL, KERNEL, x, dependent, 199).p_value == 1 / 200


def test_ties_of_binary_pairs_are_counted():
    x = np.repeat([[0.0], [1.0]], 50, axis=0)
    y = np.tile([[0.0], [1.0]], (50, 1))
    assert independence_test(KERNEL, KERNEL, x, y, 200).p_value == 1.0
