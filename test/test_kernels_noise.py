"""Closed-form conditional kernel means against numerical integration and Monte Carlo."""

import math

from kbr_localization.kernels.kernel_mean import ModelKernelMean
from kbr_localization.kernels.kernels import (
    GaussianKernel,
    MaternKernel,
    RationalQuadraticKernel,
)
from kbr_localization.kernels.manifold import wrapped_normal, WrappedNormalKernel
from kbr_localization.kernels.models import AdditiveNoiseModel
from kbr_localization.kernels.noise import (
    CauchyNoise,
    GaussianNoise,
    MixtureNoise,
    VarianceGammaNoise,
    VonMisesNoise,
    WrappedNormalNoise,
)
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

FULL = np.array([[0.6, 0.2], [0.2, 0.3]])


def variance_gamma_density(shape, alpha, scale):
    """Density on the line as a gamma mixture of normals, summed; not the Bessel formula."""
    # the trapezoidal rule in log g converges geometrically
    g = np.exp(np.linspace(-45.0, 6.0, 1500))
    weight = scipy.stats.gamma(shape, scale=2.0 / alpha**2).pdf(g) * g * (51.0 / 1499)

    def density(e):
        return float(
            weight @ (np.exp(-0.5 * e * e / (g * scale)) / np.sqrt(2 * np.pi * g * scale))
        )

    return density


def normal_density(variance, mean=0.0):
    return lambda e: math.exp(-0.5 * (e - mean) ** 2 / variance) / math.sqrt(math.tau * variance)


def cauchy_density(e):
    return 0.7 / (math.pi * (0.49 + e * e))


# noise, kernel, density of the noise on the line
SCALAR_PAIRS = {
    'gaussian': (
        GaussianNoise(0.5),
        GaussianKernel(0.3),
        normal_density(0.5),
    ),
    'plain cauchy': (
        CauchyNoise(0.49),
        RationalQuadraticKernel(0.3, normalised=False),
        cauchy_density,
    ),
    'laplace as variance-gamma': (
        VarianceGammaNoise(0.64, shape=1.0, alpha=1.6),
        MaternKernel(0.64, smoothness=1.5, alpha=1.6),
        scipy.stats.laplace(scale=0.5).pdf,
    ),
    'variance-gamma': (
        VarianceGammaNoise(0.5, shape=2.3, alpha=1.2),
        MaternKernel(0.5, smoothness=0.8, alpha=1.2),
        variance_gamma_density(2.3, 1.2, 0.5),
    ),
    'sum of scaled gaussians': (
        GaussianNoise(0.5),
        2.0 * GaussianKernel(0.3) + GaussianKernel(1.0, normalised=False),
        normal_density(0.5),
    ),
    'mixture': (
        MixtureNoise([1.0, 3.0], [GaussianNoise(0.2), GaussianNoise(0.7)], [[-1.0], [0.5]]),
        GaussianKernel(0.3),
        lambda e: 0.25 * normal_density(0.2, -1.0)(e) + 0.75 * normal_density(0.7, 0.5)(e),
    ),
}


@pytest.mark.parametrize('name', SCALAR_PAIRS)
def test_conditional_kernel_mean_is_the_integral_of_the_kernel_over_the_noise(name):
    noise, kernel, density = SCALAR_PAIRS[name]
    z, image = np.array([[-1.1], [0.2], [2.0]]), np.array([[0.3]])
    closed = noise.conditional_kernel_mean(kernel).cross_gram(z, image)[:, 0]
    for zi, value in zip(z, closed, strict=True):

        def integrand(e, zi=zi):
            return kernel.cross_gram([zi], image + e)[0, 0] * density(e)

        # break points at the peaks of the kernel and of the noise
        breaks = [-60.0, -1.0, 0.0, 0.5, float(zi[0] - 0.3), 60.0]
        pieces = zip(sorted(breaks)[:-1], sorted(breaks)[1:], strict=True)
        total = sum(scipy.integrate.quad(integrand, a, b, epsabs=1e-11)[0] for a, b in pieces)
        tails = [(-np.inf, -60.0), (60.0, np.inf)]
        total += sum(scipy.integrate.quad(integrand, a, b, epsabs=1e-11)[0] for a, b in tails)
        assert value == pytest.approx(total, rel=1e-7)


@pytest.mark.parametrize(
    ('noise', 'density'),
    [
        (WrappedNormalNoise(0.6), lambda e: wrapped_normal(np.array([e]), 0.6)[0]),
        (VonMisesNoise(2.5), scipy.stats.vonmises(2.5).pdf),
    ],
)
@pytest.mark.parametrize('normalised', [True, False])
def test_conditional_kernel_mean_on_the_circle(noise, density, normalised):
    kernel = WrappedNormalKernel(0.2, normalised)
    z, image = np.array([[3.0], [-2.0], [0.4]]), np.array([[2.5]])
    closed = noise.conditional_kernel_mean(kernel).cross_gram(z, image)[:, 0]
    for zi, value in zip(z, closed, strict=True):
        total, _ = scipy.integrate.quad(
            lambda e, zi=zi: kernel.cross_gram([zi], image + e)[0, 0] * density(e),
            -np.pi,
            np.pi,
            epsabs=1e-12,
        )
        assert value == pytest.approx(total, rel=1e-9)


PLANE_PAIRS = {
    'gaussian': (GaussianNoise(FULL), GaussianKernel([0.4, 0.5])),
    'cauchy': (CauchyNoise(0.25 * FULL), RationalQuadraticKernel(FULL)),
    'variance-gamma': (
        VarianceGammaNoise(FULL, shape=1.4, alpha=1.3),
        MaternKernel(FULL, smoothness=1.5, alpha=1.3),
    ),
    'mixture': (
        MixtureNoise([0.3, 0.7], [GaussianNoise(FULL), GaussianNoise(0.1)], [[1, 0], [0, -1]]),
        GaussianKernel([0.4, 0.5], normalised=False),
    ),
}


@pytest.mark.parametrize('name', PLANE_PAIRS)
def test_conditional_kernel_mean_is_the_monte_carlo_average(name):
    noise, kernel = PLANE_PAIRS[name]
    z, image = np.array([[-0.5, 0.4], [0.2, 0.1], [1.0, -0.9]]), np.array([[0.3, -0.2]])
    closed = noise.conditional_kernel_mean(kernel).cross_gram(z, image)[:, 0]
    draws = image + noise.sample(200_000, 2, np.random.default_rng(0))
    values = kernel.cross_gram(z, draws)
    error = values.std(axis=1) / math.sqrt(200_000)
    assert np.all(np.abs(values.mean(axis=1) - closed) < 4.0 * error)
    assert np.all(error < 0.01 * closed)  # the comparison has power


@pytest.mark.parametrize('dimension', [2, 1200])
def test_the_mean_of_a_plain_kernel_holds_where_its_density_is_no_float(dimension):
    x = np.random.default_rng(0).normal(size=(5, dimension))
    r, s = 2.0 * dimension, 1.5
    kernel, noise = GaussianKernel(r, normalised=False), GaussianNoise(s)
    mean = MixtureNoise([0.25, 0.75], [noise, noise]).conditional_kernel_mean(kernel)
    squared = ((x[:, None] - x) ** 2).sum(axis=2)
    expected = (r / (r + s)) ** (dimension / 2) * np.exp(-0.5 * squared / (r + s))
    np.testing.assert_allclose(mean.cross_gram(x, x), expected, rtol=1e-9)
    image = ModelKernelMean(kernel, x[:1], [1.0], noise)
    expected = (r / (r + 2 * s)) ** (dimension / 2)
    assert image.inner(image) == pytest.approx(expected, rel=1e-9)


def test_a_model_follows_its_control_and_the_time():
    def drive(x, speed, _t):
        return x + np.array([speed, 0.0])

    model = AdditiveNoiseModel(drive, lambda speed, t: GaussianNoise(0.1 * t + speed**2))
    x, z = np.zeros((2, 2)), np.array([[3.0, 0.0]])
    for speed, t in [(3.0, 1), (1.0, 7)]:
        expected = GaussianKernel(0.5 + 0.1 * t + speed**2).cross_gram(z, [[speed, 0.0]])[0, 0]
        found = model.kernel_matrix(GaussianKernel(0.5), z, x, speed, t)
        np.testing.assert_allclose(found, expected)


ONE = GaussianNoise(1.0)
