"""Closed-form conditional kernel means against numerical integration and Monte Carlo."""

import math

from kbr_localization.errors import KernelError
from kbr_localization.kernels.kernel_mean import ModelKernelMean
from kbr_localization.kernels.kernels import (
    GaussianKernel,
    LaplaceKernel,
    MaternKernel,
    RationalQuadraticKernel,
)
from kbr_localization.kernels.manifold import wrapped_normal, WrappedNormalKernel
from kbr_localization.kernels.models import AdditiveNoiseModel
from kbr_localization.kernels.noise import (
    CauchyNoise,
    GaussianNoise,
    IndependentNoise,
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


# noise, kernel, density of the noise on the line, relative tolerance of the integral
SCALAR_PAIRS = {
    'gaussian': (
        GaussianNoise(0.5),
        GaussianKernel(0.3),
        scipy.stats.norm(scale=math.sqrt(0.5)).pdf,
    ),
    'plain gaussian': (
        GaussianNoise(0.5),
        GaussianKernel(0.3, normalised=False),
        scipy.stats.norm(scale=math.sqrt(0.5)).pdf,
    ),
    'cauchy': (
        CauchyNoise(0.49),
        RationalQuadraticKernel(0.3),
        scipy.stats.cauchy(scale=0.7).pdf,
    ),
    'plain cauchy': (
        CauchyNoise(0.49),
        RationalQuadraticKernel(0.3, normalised=False),
        scipy.stats.cauchy(scale=0.7).pdf,
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
        scipy.stats.norm(scale=math.sqrt(0.5)).pdf,
    ),
    'mixture': (
        MixtureNoise([1.0, 3.0], [GaussianNoise(0.2), GaussianNoise(0.7)], [[-1.0], [0.5]]),
        GaussianKernel(0.3),
        lambda e: (
            0.25 * scipy.stats.norm(-1.0, math.sqrt(0.2)).pdf(e)
            + 0.75 * scipy.stats.norm(0.5, math.sqrt(0.7)).pdf(e)
        ),
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
    'plane and circle': (
        IndependentNoise([(GaussianNoise(0.3), [0]), (WrappedNormalNoise(0.4), [1])]),
        GaussianKernel(0.5).on(0) * WrappedNormalKernel(0.2).on(1),
    ),
    'noise on one coordinate': (
        IndependentNoise([(WrappedNormalNoise(0.4), [1])]),
        GaussianKernel(0.5).on(0) * WrappedNormalKernel(0.2).on(1),
    ),
}


def test_von_mises_samples_have_the_kernel_mean_of_the_fourier_series():
    kernel, noise, z = WrappedNormalKernel(0.2), VonMisesNoise(2.5), np.array([[0.7]])
    draws = noise.sample(100_000, 1, np.random.default_rng(0))
    closed = noise.conditional_kernel_mean(kernel).cross_gram(z, np.zeros((1, 1)))[0, 0]
    assert kernel.cross_gram(z, draws).mean() == pytest.approx(closed, rel=0.01)


@pytest.mark.parametrize('kappa', [0.9e9, 1.1e9, 1e12])
def test_a_narrow_von_mises_noise_is_the_normal_one(kappa):
    kernel, z = WrappedNormalKernel(0.2), np.linspace(-3.0, 3.0, 7)[:, np.newaxis]
    wide = WrappedNormalKernel(0.2 + 1.0 / kappa).cross_gram(z, z)
    for given in (kernel, VonMisesNoise(1e12).conditional_kernel_mean(kernel)):
        found = VonMisesNoise(kappa).conditional_kernel_mean(given).cross_gram(z, z)
        np.testing.assert_allclose(found, wide, rtol=1e-8, atol=1e-15)


def test_a_narrow_kernel_takes_no_more_terms_than_the_von_mises_noise_has():
    z = np.linspace(-3.0, 3.0, 7)[:, np.newaxis]
    for variance in (1e-8, 1e-16):
        mean = VonMisesNoise(2.0).conditional_kernel_mean(WrappedNormalKernel(variance))
        assert mean.coefficients.size < 100
        found = mean.cross_gram(z, np.zeros((1, 1)))[:, 0]
        np.testing.assert_allclose(found, scipy.stats.vonmises(2.0).pdf(z[:, 0]), rtol=1e-6)


@pytest.mark.parametrize('normalised', [True, False])
@pytest.mark.parametrize('other', [VonMisesNoise(2.5), WrappedNormalNoise(0.6)], ids=['vm', 'wn'])
def test_noisy_angles_have_inner_products(other, normalised):
    kernel = WrappedNormalKernel(0.2, normalised)
    one, two = (
        ModelKernelMean(kernel, np.array([[angle]]), np.ones(1), noise)
        for angle, noise in ((0.3, VonMisesNoise(1.5)), (1.0, other))
    )
    angles = np.linspace(-np.pi, np.pi, 400, endpoint=False)
    law = scipy.stats.vonmises(1.5).pdf(angles)
    expected = two((0.3 + angles).reshape(-1, 1)) @ law / law.sum()
    assert one.inner(two) == pytest.approx(expected, rel=1e-9)
    assert two.inner(one) == pytest.approx(expected, rel=1e-9)
    assert one.mmd(two) ** 2 == pytest.approx(
        one.norm() ** 2 + two.norm() ** 2 - 2.0 * expected, rel=1e-9
    )


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


@pytest.mark.parametrize(
    ('noise', 'kernel', 'message'),
    [
        (GaussianNoise(1.0), LaplaceKernel(1.0), 'expected a GaussianKernel for GaussianNoise'),
        (GaussianNoise([1.0, 1.0]), GaussianKernel([1.0] * 3), 'matrices of one dimension'),
        (CauchyNoise(1.0), GaussianKernel(1.0), 'expected a RationalQuadraticKernel'),
        (CauchyNoise(1.0), RationalQuadraticKernel(1.0, 3.0), r'with exponent \(1 \+ d\) / 2'),
        (CauchyNoise([1.0, 2.0]), RationalQuadraticKernel(1.0), 'a scale proportional'),
        (CauchyNoise([1e6, 2e-6]), RationalQuadraticKernel([1e6, 1e-6]), 'a scale proportional'),
        (VarianceGammaNoise(1.0), GaussianKernel(1.0), 'expected a MaternKernel'),
        (VarianceGammaNoise(1.0), MaternKernel(2.0, alpha=1.0), 'MaternKernel of alpha 1.0'),
        (WrappedNormalNoise(1.0), GaussianKernel(1.0), 'expected a WrappedNormalKernel'),
        (VonMisesNoise(1.0), GaussianKernel(1.0), 'expected a WrappedNormalKernel'),
        (
            IndependentNoise([(GaussianNoise(1.0), [0])]),
            GaussianKernel(1.0) * GaussianKernel(1.0),
            'expected a product of kernels on the columns',
        ),
        (MixtureNoise([1.0], [GaussianNoise(1.0)]), LaplaceKernel(1.0), 'a GaussianKernel'),
    ],
)
def test_a_pair_that_is_not_conjugate_is_refused_with_the_reason(noise, kernel, message):
    with pytest.raises(KernelError, match=message):
        noise.conditional_kernel_mean(kernel)


@pytest.mark.parametrize('columns', [[[0], [0]], [[0, 1], [1]], [[1, 1]], [[-1]], [[0.5]], [[]]])
def test_independent_noises_are_on_columns_that_are_given_once(columns):
    with pytest.raises(KernelError, match=r'parts: expected one column .* given once in all, got'):
        IndependentNoise([(GaussianNoise(1.0), group) for group in columns])


@pytest.mark.parametrize('columns', [[0], [0, 1]])
def test_a_noisy_coordinate_is_seen_by_one_factor(columns):
    # E[k1 k2] of two factors on one noise is not E[k1] E[k2]
    noise = IndependentNoise([(GaussianNoise(1.0), [0])])
    shared = GaussianKernel(0.1).on(0) * GaussianKernel(0.2).on(*columns)
    with pytest.raises(KernelError, match=r'on the columns \(0,\), each seen by no other factor'):
        noise.conditional_kernel_mean(shared)
    # without noise there factors may share what they like
    quiet = GaussianKernel(0.1).on(1) * GaussianKernel(0.2).on(1, 2)
    z, image = np.array([[0.3, 0.1, -0.2]]), np.zeros((1, 3))
    found = noise.conditional_kernel_mean(GaussianKernel(0.5).on(0) * quiet).cross_gram(z, image)
    wide = GaussianKernel(1.5).cross_gram(z[:, :1], image[:, :1])
    np.testing.assert_allclose(found, wide * quiet.cross_gram(z, image), rtol=1e-12)


def test_a_factor_of_a_product_may_be_a_multiple():
    noise = IndependentNoise([(GaussianNoise(1.0), [0]), (WrappedNormalNoise(0.3), [1])])
    first, second = GaussianKernel(0.1).on(0), WrappedNormalKernel(0.2).on(1)
    x = np.random.default_rng(0).normal(size=(5, 3))
    plain = noise.conditional_kernel_mean(first * second).cross_gram(x, x)
    # Python multiplies from the left: the first of them is (2 k) k'
    for kernel in (2.0 * first * second, first * (2.0 * second), 2.0 * (first * second)):
        mean = noise.conditional_kernel_mean(kernel)
        np.testing.assert_allclose(mean.cross_gram(x, x), 2.0 * plain, rtol=1e-14)
        wide = noise.conditional_kernel_mean(mean).cross_gram(x, x)
        expected = noise.conditional_kernel_mean(noise.conditional_kernel_mean(first * second))
        np.testing.assert_allclose(wide, 2.0 * expected.cross_gram(x, x), rtol=1e-14)
    third = GaussianKernel(0.4).on(2)
    found = noise.conditional_kernel_mean(2.0 * (3.0 * first * second) * third).cross_gram(x, x)
    np.testing.assert_allclose(found, 6.0 * plain * third.gram(x), rtol=1e-14)


def test_a_column_beyond_the_points_is_refused():
    noise = IndependentNoise([(GaussianNoise(1.0), [3])])
    with pytest.raises(KernelError, match=r'dimension: expected more than 3, .* got 2'):
        noise.sample(5, 2, np.random.default_rng(0))
    mean = noise.conditional_kernel_mean(GaussianKernel(0.5).on(3))
    with pytest.raises(KernelError, match=r'f_x: expected points with a coordinate 3, .*\(1, 2\)'):
        mean.cross_gram(np.zeros((1, 4)), np.zeros((1, 2)))


def test_a_mixture_needs_one_weight_and_location_per_component():
    with pytest.raises(KernelError, match=r'weights: expected 2 positive numbers'):
        MixtureNoise([1.0], [GaussianNoise(1.0)] * 2)
    with pytest.raises(KernelError, match=r'got shape \(2,\) with minimum 0'):
        MixtureNoise([1.0, 0.0], [GaussianNoise(1.0)] * 2)
    with pytest.raises(KernelError, match=r'locations: expected shape \(2, d\)'):
        MixtureNoise([1.0, 1.0], [GaussianNoise(1.0)] * 2, [[0.0]])


@pytest.mark.parametrize('locations', [[[1.0], [-1.0]], [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
def test_the_locations_of_a_mixture_have_the_dimension_of_the_points(locations):
    noise = MixtureNoise([1.0, 1.0], [GaussianNoise(1.0)] * 2, locations)
    points, kernel = np.zeros((2, 2)), GaussianKernel(0.5)
    mean = ModelKernelMean(kernel, points, [0.5, 0.5], noise)
    for call in (
        lambda: noise.sample(3, 2, np.random.default_rng(0)),
        lambda: noise.conditional_kernel_mean(kernel).cross_gram(points, points),
        lambda: mean(points),
        mean.norm,
    ):
        with pytest.raises(KernelError, match='locations: expected rows of 2, the dimension of'):
            call()


def test_variance_gamma_samples_have_the_variance_of_the_characteristic_function():
    noise = VarianceGammaNoise(FULL, shape=1.4, alpha=1.3)
    draws = noise.sample(200_000, 2, np.random.default_rng(1))
    np.testing.assert_allclose(np.cov(draws.T), 2 * 1.4 / 1.3**2 * FULL, rtol=0.03)


def test_a_model_follows_its_control_and_the_time():
    def drive(x, speed, _t):
        return x + np.array([speed, 0.0])

    model = AdditiveNoiseModel(drive, lambda speed, t: GaussianNoise(0.1 * t + speed**2))
    x, z = np.zeros((2, 2)), np.array([[3.0, 0.0]])
    kernel = GaussianKernel(0.5)
    for speed, t in [(3.0, 1), (1.0, 7)]:
        expected = GaussianKernel(0.5 + 0.1 * t + speed**2).cross_gram(z, [[speed, 0.0]])[0, 0]
        np.testing.assert_allclose(model.kernel_matrix(kernel, z, x, speed, t), expected)
    with pytest.raises(KernelError, match=r'function: expected images of shape \(2, d\)'):
        AdditiveNoiseModel(lambda x: x[0], GaussianNoise(1.0)).images(x)
