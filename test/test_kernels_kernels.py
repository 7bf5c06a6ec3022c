"""Kernels: positive semi-definite, densities when normalised, consistent between their methods."""

import math
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st
from kbr_localization.errors import KernelError
from kbr_localization.kernels.covariance import Covariance
from kbr_localization.kernels.distances import bessel_profile, squared_distances
from kbr_localization.kernels.embedding import is_same_kernel
from kbr_localization.kernels.kernels import (
    GaussianKernel,
    LaplaceKernel,
    MaternKernel,
    RationalQuadraticKernel,
)
from kbr_localization.kernels.manifold import (
    CircularKernel,
    nearest_rotation,
    TraceKernel,
    wrapped_normal,
    WrappedNormalKernel,
)
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats

COVARIANCES = [0.7, [0.5, 2.0, 0.1], [[1.0, 0.3, 0.0], [0.3, 0.5, 0.1], [0.0, 0.1, 0.4]]]
FULL = COVARIANCES[2]

VECTOR_KERNELS = [
    GaussianKernel(2.0),
    GaussianKernel(FULL, normalised=False),
    LaplaceKernel([0.5, 1.0, 2.0]),
    LaplaceKernel(0.7, normalised=False),
    RationalQuadraticKernel(FULL),
    RationalQuadraticKernel(0.4, exponent=3.0, normalised=False),
    MaternKernel(0.8, smoothness=0.5),
    MaternKernel([0.5, 1.0, 2.0], smoothness=1.5, normalised=False),
    MaternKernel(FULL, smoothness=2.5, alpha=1.7),
    MaternKernel(0.8, smoothness=3.2),
    GaussianKernel(1.0) + 2.0 * LaplaceKernel(1.0),
    GaussianKernel([1.0, 2.0]).on(0, 2) * WrappedNormalKernel(0.3).on(1),
]
DENSITIES = [
    GaussianKernel(0.6),
    LaplaceKernel(0.8),
    RationalQuadraticKernel(0.5, exponent=2.5),
    MaternKernel(0.9, smoothness=0.5),
    MaternKernel(0.9, smoothness=1.5, alpha=2.2),
    MaternKernel(0.9, smoothness=4.3),
    MaternKernel(0.9, smoothness=900.0),
]


def rotations(size, rng):
    return scipy.stats.special_ortho_group(3, seed=rng).rvs(size)


@pytest.mark.parametrize('covariance', COVARIANCES)
def test_normalised_gaussian_kernel_is_the_gaussian_density(covariance):
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(5, 3)), rng.normal(size=(4, 3))
    value = np.asarray(covariance)
    full = value * np.eye(3) if value.ndim == 0 else np.diag(value) if value.ndim == 1 else value
    expected = [[scipy.stats.multivariate_normal(zj, full).pdf(xi) for zj in z] for xi in x]
    np.testing.assert_allclose(
        GaussianKernel(covariance).cross_gram(x, z), expected, rtol=1e-12, atol=0
    )


def test_normalised_rational_quadratic_kernel_is_the_cauchy_density():
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(5, 3)), np.zeros((1, 3))
    expected = scipy.stats.multivariate_t(shape=FULL, df=1).pdf(x)
    values = RationalQuadraticKernel(FULL).cross_gram(x, z)[:, 0]
    np.testing.assert_allclose(values, expected, rtol=1e-12)


def test_matern_of_smoothness_one_half_is_the_exponential():
    x = np.linspace(0.0, 5.0, 30)[:, np.newaxis]
    values = MaternKernel(4.0, 0.5, normalised=False).cross_gram(x, np.zeros((1, 1)))[:, 0]
    np.testing.assert_allclose(values, np.exp(-x[:, 0] / 2.0), rtol=1e-12)


@pytest.mark.parametrize('kernel', DENSITIES, ids=repr)
@pytest.mark.parametrize('dimension', [1, 2, 3])
def test_normalised_kernels_integrate_to_one(kernel, dimension):
    if isinstance(kernel, LaplaceKernel):  # a product of densities on the line
        assert kernel.peak(dimension) == pytest.approx(kernel.peak(1) ** dimension)
        dimension = 1
    # the volume between spheres of radius r and r + dr
    area = 2 * np.pi ** (dimension / 2) / scipy.special.gamma(dimension / 2)

    def shell(r):
        point = np.eye(1, dimension) * r
        return area * r ** (dimension - 1) * kernel.cross_gram(point, 0 * point)[0, 0]

    total, _ = scipy.integrate.quad(shell, 0.0, np.inf, epsabs=1e-11, limit=200)
    assert total == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize('variance', [0.01, 1.0, 3.9, 4.1, 50.0])
def test_wrapped_normal_kernel_is_the_wrapped_density(variance):
    angles = np.linspace(-7.0, 7.0, 41)
    turns = 2 * np.pi * np.arange(-40, 41)
    expected = (
        scipy.stats.norm(scale=math.sqrt(variance))
        .pdf((np.mod(angles + np.pi, 2 * np.pi) - np.pi)[:, np.newaxis] + turns)
        .sum(axis=1)
    )
    np.testing.assert_allclose(wrapped_normal(angles, variance), expected, rtol=1e-11, atol=1e-15)
    series = CircularKernel(WrappedNormalKernel(variance).fourier(120))
    kernel_values = series.cross_gram(angles[:, np.newaxis], np.zeros((1, 1)))[:, 0]
    np.testing.assert_allclose(kernel_values, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize('kernel', VECTOR_KERNELS, ids=repr)
def test_gram_is_symmetric_positive_semidefinite_and_agrees_with_cross_gram(kernel):
    x = np.random.default_rng(1).normal(size=(40, 3))
    gram = kernel.gram(x)
    np.testing.assert_array_equal(gram, gram.T)
    np.testing.assert_allclose(gram, kernel.cross_gram(x, x.copy()), rtol=1e-10)
    np.testing.assert_allclose(np.diag(gram), kernel.diagonal(x), rtol=1e-12)
    assert np.linalg.eigvalsh(gram)[0] > -1e-12 * gram[0, 0]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), index=st.integers(0, len(VECTOR_KERNELS) - 1))
def test_kernels_are_positive_semidefinite_on_any_points(seed, index):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(12, 3)) * 10.0 ** rng.uniform(-3, 2)
    x[5] = x[4]  # a repeated point
    gram = VECTOR_KERNELS[index].gram(x)
    assert np.all(np.isfinite(gram))
    assert np.linalg.eigvalsh(gram)[0] > -1e-11 * gram.diagonal().max()


@pytest.mark.parametrize('dimension', [1, 3, 40])
def test_distances_survive_points_far_from_the_origin(dimension):
    x = np.random.default_rng(1).normal(size=(30, dimension)) + 1e4
    gram = GaussianKernel(2.0, normalised=False).gram(x)
    expected = np.exp(-0.25 * ((x[:, np.newaxis] - x) ** 2).sum(axis=2))
    np.testing.assert_allclose(gram, expected, rtol=1e-8)
    np.testing.assert_array_equal(np.diag(gram), 1.0)


@pytest.mark.parametrize('queries', [1, 8, 9])
@pytest.mark.parametrize('dimension', [3, 40, 1200])
@pytest.mark.parametrize('form', ['scalar', 'diagonal', 'full'])
def test_few_and_many_queries_have_the_distances_of_the_plain_formula(form, dimension, queries):
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(30, dimension)), rng.normal(size=(queries, dimension))
    diagonal = rng.uniform(0.5, 2.0, dimension)
    scale = {'scalar': 2.5, 'diagonal': diagonal, 'full': np.diag(diagonal)}[form]
    variances = np.full(dimension, 2.5) if form == 'scalar' else diagonal
    plain = ((x[:, np.newaxis] - z) ** 2 / variances).sum(axis=2)
    found = squared_distances(x, z, Covariance(scale))
    np.testing.assert_allclose(found, plain, rtol=1e-11)
    np.testing.assert_allclose(squared_distances(z, x, Covariance(scale)), plain.T, rtol=1e-11)
    own = squared_distances(z, z, Covariance(scale))
    np.testing.assert_array_equal(own, own.T)
    np.testing.assert_array_equal(np.diag(own), 0.0)


def test_one_query_of_many_dimensions_copies_no_sample():
    x = np.random.default_rng(0).normal(size=(500, 1200))
    kernel = GaussianKernel(2.0, normalised=False)
    tracemalloc.start()
    try:
        kernel.cross_gram(x, x[:1])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 0.1 * x.nbytes


def test_product_and_sum_flatten_and_scale():
    x = np.random.default_rng(2).normal(size=(6, 3))
    a, b, c = GaussianKernel(1.0), LaplaceKernel(1.0), MaternKernel(2.0)
    np.testing.assert_allclose((a * b * c).gram(x), a.gram(x) * b.gram(x) * c.gram(x))
    np.testing.assert_allclose((a + 3.0 * b + c).gram(x), a.gram(x) + 3 * b.gram(x) + c.gram(x))
    assert len((a * b * c).kernels) == len((a + b + c).kernels) == 3
    assert repr(sum([a, b, c])) == repr(a + b + c)
    with pytest.raises(TypeError):
        1 + a


def test_a_product_on_a_coordinate_prints_unlike_one_whose_last_factor_is():
    a, b = GaussianKernel(1.0), LaplaceKernel(1.0)
    whole, last = (a * b).on(0), a * b.on(0)
    assert not is_same_kernel(whole, last)
    assert is_same_kernel(whole, (GaussianKernel(1.0) * LaplaceKernel(1.0)).on(0))
    assert repr(2.0 * (a * b)) == f'2.0 * ({a!r} * {b!r})'


def test_trace_kernel_is_the_trace_and_refuses_what_is_no_rotation():
    rng = np.random.default_rng(3)
    x, z = rotations(6, rng), rotations(4, rng)
    expected = [[np.trace(a @ b.T) for b in z] for a in x]
    np.testing.assert_allclose(TraceKernel().cross_gram(x, z), expected, atol=1e-12)
    np.testing.assert_allclose(TraceKernel().diagonal(x), np.diag(TraceKernel().gram(x)))
    with pytest.raises(KernelError, match=r'x: expected rotations .* project with nearest_rot'):
        TraceKernel().gram(2.0 * x)
    with pytest.raises(KernelError, match=r'x: expected rotation matrices .* got \(6, 9\)'):
        TraceKernel().gram(x.reshape(6, 9))


def test_nearest_rotation_recovers_a_disturbed_rotation():
    rng = np.random.default_rng(4)
    x = rotations(5, rng)
    noisy = x + 1e-4 * rng.normal(size=x.shape)
    found = nearest_rotation(noisy)
    np.testing.assert_allclose(found @ found.transpose(0, 2, 1), [np.eye(3)] * 5, atol=1e-12)
    np.testing.assert_allclose(np.linalg.det(found), 1.0)
    np.testing.assert_allclose(found, x, atol=1e-3)
    assert np.linalg.det(nearest_rotation(-np.eye(3))) == pytest.approx(1.0)


@pytest.mark.parametrize('order', [0.3, 0.5, 1.0, 2.5, 7.3, 60.0, 250.0, 1e3, 1e9])
def test_matern_profile_is_finite_and_falls_from_one(order):
    r = np.concatenate([[0.0], np.geomspace(1e-8, 50.0, 400)])
    values = bessel_profile(r, order)
    assert values[0] == pytest.approx(1.0)
    assert np.all(np.isfinite(values))
    assert np.all(np.diff(values) <= 1e-13)
    middle = np.array([3.0])
    if order < 100:
        factor = 2.0 ** (1 - order) / scipy.special.gamma(order) * 3.0**order
        expected = factor * scipy.special.kv(order, 3.0)
        assert bessel_profile(middle, order)[0] == pytest.approx(expected, rel=1e-11)


def gamma_mixture(r, order):
    """Matern profile as E exp(-r^2 / 4t) over t of the gamma law, by the trapezoidal rule."""
    # t = v (1 + u) keeps the exponents small
    u = np.linspace(-0.99, 9.0, 400_001)
    log_weight = (order - 1.0) * np.log1p(u) - order * u
    weight = np.exp(log_weight)
    exponent = np.multiply.outer(-0.25 * r * r / order, 1.0 / (1.0 + u))
    return np.exp(log_weight + exponent).sum(axis=1) / weight.sum()


@pytest.mark.parametrize('order', [150.0, 199.5, 200.0, 200.5, 201.0, 1000.0, 3000.0])
def test_matern_profile_of_large_order_is_the_mixture_of_gaussians(order):
    distance = np.array([0.0, 1e-4, 0.3, 1.0, 2.0, 4.0, 7.0, 12.0])
    values = bessel_profile(math.sqrt(2.0 * order) * distance, order)
    np.testing.assert_allclose(
        values, gamma_mixture(math.sqrt(2.0 * order) * distance, order), rtol=5e-12
    )


@pytest.mark.parametrize('smoothness', [199.5, 200.0, 200.5, 201.0, 800.0, 1e5])
def test_matern_kernels_of_large_smoothness_are_positive_semidefinite(smoothness):
    x = np.linspace(0.0, 8.0, 81)[:, np.newaxis]
    gram = MaternKernel(1.0, smoothness, normalised=False).gram(x)
    assert np.linalg.eigvalsh(gram)[0] > -1e-12 * len(x)
    assert gram.max() == 1.0


@pytest.mark.parametrize('normalised', [False, True])
@pytest.mark.parametrize('smoothness', [1e3, 1e6, 1e12, 1e100])
def test_matern_kernels_tend_to_the_gaussian(smoothness, normalised):
    x = np.linspace(0.0, 8.0, 81)[:, np.newaxis]
    found = MaternKernel(0.7, smoothness, normalised=normalised).gram(x)
    expected = GaussianKernel(0.7, normalised).gram(x)
    np.testing.assert_allclose(found, expected, atol=0.3 / smoothness + 1e-12)


@pytest.mark.parametrize('kernel', [k for k in DENSITIES if hasattr(k, 'slope')], ids=repr)
def test_slope_is_minus_the_derivative_of_the_profile(kernel):
    s, step = np.geomspace(0.01, 20.0, 30), 1e-6
    difference = kernel.profile(s + step, 2) - kernel.profile(s - step, 2)
    np.testing.assert_allclose(kernel.slope(s, 2), -difference / (2 * step), rtol=1e-5)


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        (lambda: GaussianKernel(0.0), 'covariance: expected positive variances, got 0'),
        (lambda: GaussianKernel(-1.0), 'covariance: expected positive variances, got -1'),
        (
            lambda: GaussianKernel([[1.0, 2.0], [2.0, 1.0]]),
            r'covariance: expected a positive definite matrix, got shape \(2, 2\) .*eigenvalue -1',
        ),
        (lambda: GaussianKernel([[1.0, 0.5], [0.0, 1.0]]), 'covariance: expected a symmetric'),
        (lambda: GaussianKernel(np.ones((2, 3))), r'covariance: .*got shape \(2, 3\)'),
        (lambda: GaussianKernel(np.nan), 'covariance: expected finite numbers'),
        (lambda: LaplaceKernel([1.0, 0.0]), r'scale: expected a positive scalar .*\(2,\)'),
        (lambda: MaternKernel(1.0, smoothness=0.0), 'smoothness: expected a finite number > 0'),
        (lambda: MaternKernel(1.0, alpha=-1.0), 'alpha: expected a finite number > 0'),
        (lambda: RationalQuadraticKernel(1.0, exponent=0.0), 'exponent: expected a finite'),
        (lambda: WrappedNormalKernel(0.0), 'variance: expected a finite number > 0'),
        (lambda: CircularKernel([1.0, -0.5]), 'coefficients: expected numbers >= 0'),
        (lambda: CircularKernel([]), r'coefficients: expected .* one or more, got shape \(0,\)'),
        (lambda: -1.0 * GaussianKernel(1.0), 'factor: expected a finite number > 0, got -1'),
        (lambda: GaussianKernel(1.0).on(), 'columns: expected at least one index'),
        (lambda: GaussianKernel(1.0).on(3).gram(np.ones((2, 3))), 'x: .*with a coordinate 3'),
        (
            lambda: RationalQuadraticKernel(1.0, exponent=1.0).gram(np.ones((2, 3))),
            'exponent: expected more than d / 2 = 1.5 to normalise',
        ),
    ],
)
def test_kernels_that_are_none_are_refused(make, message):
    with pytest.raises(KernelError, match=message):
        make()


@pytest.mark.parametrize(
    ('x', 'message'),
    [
        (np.ones(3), r'x: expected points of shape \(n, d\), got \(3,\): reshape'),
        (np.ones((3, 4)), r'x: expected points of shape \(n, 2\), got \(3, 4\)'),
        (np.empty((0, 2)), r'x: expected at least one point, got shape \(0, 2\)'),
        ([[1.0, np.nan]], r'x: expected finite numbers, got 1 NaN'),
        ([['a', 'b']], r'x: expected an array of numbers'),
    ],
)
@pytest.mark.parametrize('kernel', [GaussianKernel([1.0, 1.0]), LaplaceKernel([1.0, 1.0])])
def test_points_that_are_none_are_refused(kernel, x, message):
    with pytest.raises(KernelError, match=message):
        kernel.gram(x)
