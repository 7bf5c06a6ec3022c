"""Kernels: positive semi-definite, densities when normalised, smoothed by noises exactly."""

import itertools
import math

from kbr_localization.errors import KernelError
from kbr_localization.kernels import (
    AdditiveNoiseModel,
    CauchyNoise,
    GaussianKernel,
    GaussianNoise,
    KernelMean,
    LaplaceKernel,
    LinearKernel,
    MaternKernel,
    median_distance,
    MixtureNoise,
    ModelKernelMean,
    PrecomputedKernel,
    RationalQuadraticKernel,
    TraceKernel,
    VarianceGammaNoise,
    VonMisesNoise,
    WrappedNormalKernel,
    WrappedNormalNoise,
)
from kbr_localization.kernels.kernels import Covariance, squared_distances
from kbr_localization.kernels.manifold import CircularKernel, wrapped_normal
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.spatial.distance import pdist
import scipy.special
import scipy.stats

FULL = [[1.0, 0.3, 0.0], [0.3, 0.5, 0.1], [0.0, 0.1, 0.4]]
VECTOR_KERNELS = [
    GaussianKernel(2.0),
    GaussianKernel(FULL, normalised=False),
    LaplaceKernel([0.5, 1.0, 2.0]),
    LaplaceKernel(0.7, normalised=False),
    RationalQuadraticKernel(FULL),
    MaternKernel([0.5, 1.0, 2.0], smoothness=1.5, normalised=False),
    MaternKernel(FULL, smoothness=2.5, alpha=1.7),
    MaternKernel(0.8, smoothness=3.2),
    GaussianKernel(1.0) + 2.0 * LaplaceKernel(1.0),
    GaussianKernel([1.0, 2.0]).on(0, 2) * WrappedNormalKernel(0.3).on(1),
    LinearKernel(0.5) * LinearKernel(1.0),
]
DENSITIES = [
    GaussianKernel(0.6),
    LaplaceKernel(0.8),
    RationalQuadraticKernel(0.5),
    MaternKernel(0.9, smoothness=0.5),
    MaternKernel(0.9, smoothness=1.5, alpha=2.2),
    MaternKernel(0.9, smoothness=39.0),
]


def rotations(size, rng):
    return scipy.stats.special_ortho_group(3, seed=rng).rvs(size)


@pytest.mark.parametrize('kernel', DENSITIES, ids=repr)
@pytest.mark.parametrize('dimension', [1, 3])
def test_normalised_kernels_integrate_to_one(kernel, dimension):
    if isinstance(kernel, LaplaceKernel):  # a product of densities on the line
        assert kernel.peak(dimension) == pytest.approx(kernel.peak(1) ** dimension)
        dimension = 1
    # the volume between spheres of radius r and r + dr
    area = 2 * np.pi ** (dimension / 2) / scipy.special.gamma(dimension / 2)

    def shell(r):
        point = np.eye(1, dimension) * r
        return area * r ** (dimension - 1) * kernel.cross_gram(point, 0 * point)[0, 0]

    total, _ = quad(shell, 0.0, np.inf, epsabs=1e-11, limit=200)
    assert total == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize('kernel', VECTOR_KERNELS, ids=repr)
def test_gram_is_symmetric_positive_semidefinite_and_agrees_with_cross_gram(kernel):
    x = np.random.default_rng(1).normal(size=(40, 3))
    gram = kernel.gram(x)
    np.testing.assert_array_equal(gram, gram.T)
    np.testing.assert_allclose(gram, kernel.cross_gram(x, x.copy()), rtol=1e-10)
    np.testing.assert_allclose(np.diag(gram), kernel.diagonal(x), rtol=1e-12)
    assert np.linalg.eigvalsh(gram)[0] > -1e-12 * gram.max()


def test_products_sums_and_multiples_combine_entry_by_entry():
    x = np.random.default_rng(2).normal(size=(6, 3))
    a, b, c = GaussianKernel(1.0), LaplaceKernel(1.0), MaternKernel(2.0)
    np.testing.assert_allclose((a * b * c).gram(x), a.gram(x) * b.gram(x) * c.gram(x))
    np.testing.assert_allclose((a + 3.0 * b + c).gram(x), a.gram(x) + 3 * b.gram(x) + c.gram(x))
    with pytest.raises(TypeError):
        1 + a


def test_trace_kernel_is_the_trace_and_refuses_what_is_no_rotation():
    rng = np.random.default_rng(3)
    x, z = rotations(6, rng), rotations(4, rng)
    expected = [[np.trace(a @ b.T) for b in z] for a in x]
    np.testing.assert_allclose(TraceKernel().cross_gram(x, z), expected, atol=1e-12)
    np.testing.assert_allclose(TraceKernel().diagonal(x), np.diag(TraceKernel().gram(x)))
    with pytest.raises(KernelError, match='x: expected rotation matrices, got'):
        TraceKernel().gram(2.0 * x)
    with pytest.raises(KernelError, match=r'x: expected shape \(n, 3, 3\), got \(6, 9\)'):
        TraceKernel().gram(x.reshape(6, 9))


@pytest.mark.parametrize('variance', [0.01, 1.0, 50.0])
def test_wrapped_normal_density_is_its_fourier_series(variance):
    angles = np.linspace(-7.0, 7.0, 41)
    series = CircularKernel(WrappedNormalKernel(variance).fourier(120))
    expected = series.cross_gram(angles[:, np.newaxis], [[0.0]])[:, 0]
    np.testing.assert_allclose(wrapped_normal(angles, variance), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize('smoothness', [0.3, 1.0, 7.3, 40.0])
def test_matern_kernel_is_the_bessel_formula_and_one_at_zero(smoothness):
    kernel = MaternKernel(1.0, smoothness, alpha=1.0, normalised=False)
    r = np.concatenate([[0.0], np.geomspace(1e-8, 50.0, 400)])[:, np.newaxis]
    values = kernel.cross_gram(r, np.zeros((1, 1)))[:, 0]
    assert values[0] == pytest.approx(1.0)
    assert np.all(np.isfinite(values)) and np.all(np.diff(values) <= 1e-13)
    factor = 2.0 ** (1 - smoothness) / scipy.special.gamma(smoothness) * 50.0**smoothness
    assert values[-1] == pytest.approx(factor * scipy.special.kv(smoothness, 50.0), rel=1e-10)


@pytest.mark.parametrize('queries', [8, 9])
@pytest.mark.parametrize('dimension', [3, 40])
@pytest.mark.parametrize('form', ['scalar', 'diagonal', 'full'])
def test_distances_are_the_plain_formula(form, dimension, queries):
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(30, dimension)), rng.normal(size=(queries, dimension))
    variances = rng.uniform(0.5, 2.0, dimension) if form != 'scalar' else np.full(dimension, 2.5)
    scale = Covariance({'scalar': 2.5, 'diagonal': variances, 'full': np.diag(variances)}[form])
    plain = ((x[:, np.newaxis] - z) ** 2 / variances).sum(axis=2)
    np.testing.assert_allclose(squared_distances(x, z, scale), plain, rtol=1e-11)
    own = squared_distances(z, z, scale)
    np.testing.assert_array_equal(own, own.T)
    np.testing.assert_array_equal(np.diag(own), 0.0)


def test_a_precomputed_kernel_is_its_matrix():
    gram = GaussianKernel(0.5).gram(np.random.default_rng(0).normal(size=(6, 2)))
    table = PrecomputedKernel(gram)
    points = table.points()
    np.testing.assert_array_equal(table.cross_gram(points[:2], points[3:]), gram[:2, 3:])
    np.testing.assert_array_equal(table.diagonal(points[4:]), gram.diagonal()[4:])
    for bad in ([[6.0]], [[-1.0]], [[0.5]]):
        with pytest.raises(KernelError, match=r'x: expected row numbers in 0\.\.5'):
            table.cross_gram(bad, points)


@pytest.mark.parametrize(('kind', 'scale'), [(GaussianKernel, 1e-6), (LaplaceKernel, 1e3)])
def test_a_density_beyond_floating_point_is_refused(kind, scale):
    x = np.random.default_rng(0).normal(size=(4, 1200))
    for call in (kind(scale).gram, kind(scale).diagonal):
        with pytest.raises(KernelError, match=r'a float in dimension 1200, .* normalised=False'):
            call(x)
    assert np.all(kind(scale, normalised=False).diagonal(x) == 1.0)


@pytest.mark.parametrize('dimension', [2, 501])
def test_median_distance_is_the_median_and_knows_equal_points(dimension):
    points = np.random.default_rng(0).uniform(size=(60, dimension))
    assert median_distance(points) == pytest.approx(np.median(pdist(points)))
    assert median_distance(points, 40) == pytest.approx(np.median(pdist(points)), rel=0.1)
    points[:50] = points[0]
    distances = pdist(points)
    assert median_distance(points) == pytest.approx(np.median(distances[distances > 0]))
    with pytest.raises(KernelError, match='points: expected at least two different points'):
        median_distance(points[:50])


def normal_density(variance, mean=0.0):
    return lambda e: math.exp(-0.5 * (e - mean) ** 2 / variance) / math.sqrt(math.tau * variance)


# noise, kernel, density of the noise on the line
SCALAR_PAIRS = {
    'gaussian': (GaussianNoise(0.5), GaussianKernel(0.3), normal_density(0.5)),
    'plain cauchy': (
        CauchyNoise(0.49),
        RationalQuadraticKernel(0.3, normalised=False),
        lambda e: 0.7 / (math.pi * (0.49 + e * e)),
    ),
    'laplace as variance-gamma': (
        VarianceGammaNoise(0.64, shape=1.0, alpha=1.6),
        MaternKernel(0.64, smoothness=1.5, alpha=1.6),
        scipy.stats.laplace(scale=0.5).pdf,
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
ANGLE_PAIRS = {
    'wrapped normal': (
        WrappedNormalNoise(0.6),
        WrappedNormalKernel(0.2),
        lambda e: wrapped_normal(np.array([e]), 0.6)[0],
    ),
    'von mises': (
        VonMisesNoise(2.5),
        WrappedNormalKernel(0.2, normalised=False),
        scipy.stats.vonmises(2.5).pdf,
    ),
}


@pytest.mark.parametrize('name', [*SCALAR_PAIRS, *ANGLE_PAIRS])
def test_conditional_kernel_mean_is_the_integral_of_the_kernel_over_the_noise(name):
    noise, kernel, density = (SCALAR_PAIRS | ANGLE_PAIRS)[name]
    z, image = np.array([[-1.1], [0.2], [2.0]]), np.array([[0.3]])
    closed = noise.conditional_kernel_mean(kernel).cross_gram(z, image)[:, 0]
    for zi, value in zip(z, closed, strict=True):

        def integrand(e, zi=zi):
            return kernel.cross_gram([zi], image + e)[0, 0] * density(e)

        # break points at the peaks of the kernel and of the noise
        breaks = sorted([-60.0, -1.0, 0.0, 0.5, float(zi[0] - 0.3), 60.0])
        breaks = [-np.pi, np.pi] if name in ANGLE_PAIRS else [-np.inf, *breaks, np.inf]
        pieces = (quad(integrand, a, b, epsabs=1e-11)[0] for a, b in itertools.pairwise(breaks))
        assert value == pytest.approx(sum(pieces), rel=1e-7)


PLANE = np.array([[0.6, 0.2], [0.2, 0.3]])
PLANE_PAIRS = {
    'gaussian': (GaussianNoise(PLANE), GaussianKernel([0.4, 0.5])),
    'cauchy': (CauchyNoise(0.25 * PLANE), RationalQuadraticKernel(PLANE)),
    'variance-gamma': (
        VarianceGammaNoise(PLANE, shape=1.4, alpha=1.3),
        MaternKernel(PLANE, smoothness=1.5, alpha=1.3),
    ),
    'mixture': (
        MixtureNoise([0.3, 0.7], [GaussianNoise(PLANE), GaussianNoise(0.1)], [[1, 0], [0, -1]]),
        GaussianKernel([0.4, 0.5], normalised=False),
    ),
}


@pytest.mark.parametrize('name', PLANE_PAIRS)
def test_conditional_kernel_mean_is_the_average_over_draws(name):
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
        prior = KernelMean.of_sample(GaussianKernel(0.5), x)
        np.testing.assert_allclose(model.push(prior, speed, t)(z), expected)
