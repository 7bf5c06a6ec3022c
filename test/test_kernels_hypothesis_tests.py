"""MMD and HSIC: their values by plain sums, their levels and their power."""

from kbr_localization.kernels import (
    GaussianKernel,
    hsic,
    independence_test,
    LinearKernel,
    squared_mmd,
    two_sample_test,
)
import numpy as np
import pytest

KERNEL = GaussianKernel(1.0, normalised=False)


def normal(size, seed, shift=0.0, dimension=2):
    return np.random.default_rng(seed).normal(shift, 1.0, size=(size, dimension))


def test_mmd_is_the_sum_over_pairs():
    x, y = normal(5, 0), normal(7, 1, 0.5)
    within = [
        np.mean([KERNEL.cross_gram(p[[i]], p[[j]])[0, 0]
                 for i in range(len(p)) for j in range(len(p)) if i != j])
        for p in (x, y)
    ]  # fmt: skip
    across = KERNEL.cross_gram(x, y).mean()
    assert squared_mmd(KERNEL, x, y) == pytest.approx(sum(within) - 2 * across)


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


def test_hsic_is_the_trace():
    x, y = normal(9, 0), normal(9, 1, dimension=1)
    h = np.eye(9) - 1 / 9
    expected = np.trace(KERNEL.gram(x) @ h @ KERNEL.gram(y) @ h) / 81
    assert hsic(KERNEL, KERNEL, x, y) == pytest.approx(expected)
    linear = LinearKernel()
    covariance = np.cov(x[:, 0], y[:, 0], bias=True)[0, 1]
    assert hsic(linear, linear, x[:, :1], y) == pytest.approx(covariance**2)


def rejections(test, trials=60):
    return np.mean([test(seed).p_value <= 0.1 for seed in range(trials)])


def test_the_levels_are_kept():
    same = rejections(lambda s: two_sample_test(KERNEL, normal(25, s), normal(25, 900 + s), 99, s))
    apart = rejections(
        lambda s: independence_test(KERNEL, KERNEL, normal(25, s), normal(25, 900 + s), 99, s)
    )
    assert same <= 0.22  # three standard deviations of 60 trials above 0.1
    assert apart <= 0.22


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
