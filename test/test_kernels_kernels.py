"""Kernels: positive semi-definite, densities when normalised, consistent between their methods."""

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import PrecomputedKernel
from kbr_localization.kernels.kernels import (
    Covariance,
    GaussianKernel,
    LaplaceKernel,
    MaternKernel,
    RationalQuadraticKernel,
    squared_distances,
)
from kbr_localization.kernels.manifold import (
    CircularKernel,
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
    MaternKernel(0.9, smoothness=190.0),
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


@pytest.mark.parametrize('kernel', VECTOR_KERNELS, ids=repr)
def test_gram_is_symmetric_positive_semidefinite_and_agrees_with_cross_gram(kernel):
    x = np.random.default_rng(1).normal(size=(40, 3))
    gram = kernel.gram(x)
    np.testing.assert_array_equal(gram, gram.T)
    np.testing.assert_allclose(gram, kernel.cross_gram(x, x.copy()), rtol=1e-10)
    np.testing.assert_allclose(np.diag(gram), kernel.diagonal(x), rtol=1e-12)
    assert np.linalg.eigvalsh(gram)[0] > -1e-12 * gram[0, 0]


def test_product_and_sum_flatten_and_scale():
    x = np.random.default_rng(2).normal(size=(6, 3))
    a, b, c = GaussianKernel(1.0), LaplaceKernel(1.0), MaternKernel(2.0)
    np.testing.assert_allclose((a * b * c).gram(x), a.gram(x) * b.gram(x) * c.gram(x))
    np.testing.assert_allclose((a + 3.0 * b + c).gram(x), a.gram(x) + 3 * b.gram(x) + c.gram(x))
    assert len((a * b * c).kernels) == len((a + b + c).kernels) == 3
    assert repr(sum([a, b, c])) == repr(a + b + c)
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
    with pytest.raises(KernelError, match=r'x: expected points of shape .* got \(6, 9\)'):
        TraceKernel().gram(x.reshape(6, 9))


@pytest.mark.parametrize('variance', [0.01, 1.0, 50.0])
def test_wrapped_normal_density_is_its_fourier_series(variance):
    angles = np.linspace(-7.0, 7.0, 41)
    series = CircularKernel(WrappedNormalKernel(variance).fourier(120))
    expected = series.cross_gram(angles[:, np.newaxis], [[0.0]])[:, 0]
    np.testing.assert_allclose(wrapped_normal(angles, variance), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize('smoothness', [0.3, 1.0, 7.3, 60.0, 200.0])
def test_matern_kernel_is_the_bessel_formula_and_one_at_zero(smoothness):
    kernel = MaternKernel(1.0, smoothness, alpha=1.0, normalised=False)
    r = np.concatenate([[0.0], np.geomspace(1e-8, 50.0, 400)])[:, np.newaxis]
    values = kernel.cross_gram(r, np.zeros((1, 1)))[:, 0]
    assert values[0] == pytest.approx(1.0)
    assert np.all(np.isfinite(values)) and np.all(np.diff(values) <= 1e-13)
    if smoothness < 100:
        factor = 2.0 ** (1 - smoothness) / scipy.special.gamma(smoothness) * r[-1, 0] ** smoothness
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
