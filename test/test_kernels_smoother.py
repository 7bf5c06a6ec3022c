"""The kernel smoother against Rauch, Tung and Striebel's, and its step in plain formulas."""

from kbr_localization.kernels import (
    AdditiveNoiseModel,
    GaussianKernel,
    GaussianNoise,
    KernelBayesFilter,
    KernelBayesRule,
    KernelBayesSmoother,
    KernelMean,
    ModelKernelMean,
    ModelTransition,
)
from kbr_localization.kernels.filters import means
import numpy as np
import pytest
from state_space import autoregression

MODEL = autoregression(q=0.3, r=0.6)
KERNEL = GaussianKernel(0.3)
GIVEN = AdditiveNoiseModel(lambda x: 0.9 * x, GaussianNoise(0.3))


def pairs(size, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-4.0, 4.0, size=(size, 1))
    return x, x + np.sqrt(0.6) * rng.normal(size=x.shape)


def hybrid(size=300, seed=0):
    n = size
    rule = KernelBayesRule(KERNEL, KERNEL, *pairs(size, seed), 0.01 / n, 0.1 / n, 'pKBR')
    return KernelBayesFilter(ModelTransition(GIVEN, KERNEL), rule)


def backward(size=300, seed=7):
    x, _ = pairs(size, seed)
    x_next = GIVEN.sample(x, np.random.default_rng(seed))
    return KernelBayesRule(KERNEL, KERNEL, x, x_next, 0.01 / size, 0.1 / size, 'pKBR')


def exact_beliefs(observations):
    return [
        ModelKernelMean(KERNEL, m[np.newaxis], np.ones(1), GaussianNoise(p))
        for m, p, *_ in zip(*MODEL.kalman(observations), strict=True)
    ]


def test_the_backward_pass_turns_kalman_into_rts():
    _, y = MODEL.simulate(60, np.random.default_rng(3))
    exact, variances = MODEL.rts(y)
    errors = []
    for size in (100, 400):
        smoothed = KernelBayesSmoother(hybrid(20), backward(size)).smooth(exact_beliefs(y))[:-1]
        errors.append(np.sqrt(np.mean((means(smoothed) - exact[:-1]) ** 2)))
    assert errors[1] < 0.5 * errors[0]
    assert errors[1] < 0.2 * exact.std()
    found = [belief.covariance()[0, 0] for belief in smoothed]
    assert np.mean(found) == pytest.approx(np.mean(variances[:-1]), rel=0.2)


def test_smoothing_is_better_than_filtering():
    x, y = MODEL.simulate(80, np.random.default_rng(3))
    smoother = KernelBayesSmoother(hybrid(300), backward(300))
    forward = smoother.forward.run(y)
    smoothed = means(smoother.smooth(forward))
    assert np.mean((smoothed - x) ** 2) < 0.9 * np.mean((means(forward) - x) ** 2)
    np.testing.assert_array_equal(smoothed[-1], means(forward)[-1])


def test_a_step_is_the_printed_formula():
    rule = backward(40)
    rng = np.random.default_rng(0)
    now = KernelMean(KERNEL, rng.normal(size=(5, 1)), np.full(5, 0.2))
    later = KernelMean(KERNEL, rng.normal(size=(6, 1)), np.full(6, 1 / 6))
    g_x, g_next = KERNEL.gram(rule.x), KERNEL.gram(rule.y)
    mu = np.linalg.solve(g_x + 0.01 * np.eye(40), now(rule.x))
    kept = mu > 0
    inner = g_next[np.ix_(kept, kept)] + rule.delta * np.diag(1 / mu[kept])
    expected = np.zeros(40)
    expected[kept] = np.linalg.solve(inner, later(rule.y)[kept])
    found = rule.posterior_given(now, later).weights
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
