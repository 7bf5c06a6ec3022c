"""Draws in place of formulas: the sum rule against quadrature, the filter against Kalman."""

from kbr_localization.kernels import (
    AdditiveNoiseModel,
    CauchyNoise,
    GaussianKernel,
    GaussianNoise,
    KernelBayesRule,
    KernelMean,
    KernelMonteCarloFilter,
    LaplaceKernel,
    MixtureNoise,
    ModelKernelMean,
    MonteCarloModel,
)
from kbr_localization.kernels.filters import means
import numpy as np
import pytest
from scipy.integrate import quad
import scipy.stats
from state_space import autoregression

KERNEL = GaussianKernel(0.3)
POINTS = np.array([[-1.0], [0.5], [2.0]])
WEIGHTS = np.array([0.7, -0.2, 0.5])


def by_quadrature(kernel, density, z, function):
    """Sum_j w_j int k(z, f_j + e) p(e) de."""
    images = function(POINTS)[:, 0]

    def value(j):
        def integrand(e):
            return kernel.cross_gram([[z]], [[images[j] + e]])[0, 0] * density(e)

        return quad(integrand, -30, 30, points=[z - images[j]], limit=300)[0]

    return sum(WEIGHTS[j] * value(j) for j in range(3))


@pytest.mark.parametrize(
    ('kernel', 'noise', 'density'),
    [
        (LaplaceKernel(0.7), GaussianNoise(0.5), scipy.stats.norm(0, 0.5**0.5).pdf),
        (KERNEL, CauchyNoise(0.04), scipy.stats.cauchy(0, 0.2).pdf),
        (KERNEL, GaussianNoise(0.5), scipy.stats.norm(0, 0.5**0.5).pdf),
    ],
    ids=['laplace-gaussian', 'gaussian-cauchy', 'conjugate'],
)
def test_the_monte_carlo_sum_rule_is_the_integral(kernel, noise, density):
    model = AdditiveNoiseModel(np.sin, noise)
    prior = KernelMean(kernel, POINTS, WEIGHTS)
    pushed = MonteCarloModel(model.sample, draws=20_000, rng=1).push(prior)
    z = np.array([-1.5, 0.0, 0.8])
    exact = [by_quadrature(kernel, density, value, np.sin) for value in z]
    np.testing.assert_allclose(pushed(z[:, np.newaxis]), exact, atol=0.01)


def embeddings():
    noisy = ModelKernelMean(KERNEL, POINTS, WEIGHTS, GaussianNoise(0.2))
    mixed = MixtureNoise([1.0, 3.0], [GaussianNoise(0.1), GaussianNoise(0.4)], [[0.5], [-0.2]])
    return {
        'points': KernelMean(KERNEL, POINTS, WEIGHTS),
        'noisy': noisy,
        'mixture': ModelKernelMean(KERNEL, POINTS, WEIGHTS, mixed),
        'sum': noisy + KernelMean(KERNEL, POINTS + 1.0, WEIGHTS),
        'difference': noisy - ModelKernelMean(KERNEL, POINTS, WEIGHTS / 3, GaussianNoise(0.3)),
        'scaled': 2.5 * (noisy + noisy) / 3.0,
    }


@pytest.mark.parametrize('name', embeddings())
def test_every_embedding_can_be_pushed_through_a_model(name):
    prior = embeddings()[name]
    noise = GaussianNoise(0.3)
    # of a linear map the noise is again normal
    exact = sum(
        ModelKernelMean(KERNEL, 0.8 * x + 0.1, w, noise if e is None else added(e))
        for x, w, e in prior.terms()
    )
    model = AdditiveNoiseModel(lambda x: 0.8 * x + 0.1, noise)
    for pushed in (
        model.push(prior, draws=20_000),
        MonteCarloModel(model.sample, 20_000, 3).push(prior),
    ):
        np.testing.assert_allclose(pushed(POINTS), exact(POINTS), atol=0.01)


def added(noise):
    return GaussianNoise(0.64 * noise.covariance.value + 0.3)


def filter_gap(size, seed, resample=True):
    """Distance of the filter's means from Kalman's, and the spread of the latter."""
    model = autoregression()
    rng = np.random.default_rng(seed)
    x = rng.uniform(-4.0, 4.0, size=(size, 1))
    y = x + np.sqrt(0.2) * rng.normal(size=x.shape)
    rule = KernelBayesRule(KERNEL, KERNEL, x, y, 0.01 / size, (0.1 / size) ** 2)

    def sampler(points, generator):
        return 0.9 * points + np.sqrt(0.3) * generator.normal(size=points.shape)

    _, observed = model.simulate(60, np.random.default_rng(100))
    exact = model.kalman(observed)[0]
    prior = ModelKernelMean(KERNEL, np.zeros((1, 1)), np.ones(1), GaussianNoise(1.5))
    filter_ = KernelMonteCarloFilter(sampler, rule, rng=seed, resample=resample)
    return np.sqrt(np.mean((means(filter_.run(observed, prior=prior)) - exact) ** 2)), exact.std()


def test_the_kernel_monte_carlo_filter_is_near_kalman():
    errors = np.array([[filter_gap(n, s)[0] for s in range(2)] for n in (50, 300)])
    assert errors[1].mean() < 0.12 * filter_gap(50, 0)[1]
    assert errors[1].mean() < 0.7 * errors[0].mean()
