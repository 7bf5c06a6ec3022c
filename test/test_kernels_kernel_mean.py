"""Kernel means: inner products, modes, herding, moments."""

from kbr_localization.kernels.algebra import PolynomialKernel
from kbr_localization.kernels.checks import NoMassError
from kbr_localization.kernels.kernel_mean import KernelMean, ModelKernelMean
from kbr_localization.kernels.kernels import (
    GaussianKernel,
    LaplaceKernel,
    MaternKernel,
    RationalQuadraticKernel,
)
from kbr_localization.kernels.manifold import TraceKernel, WrappedNormalKernel
from kbr_localization.kernels.noise import (
    CauchyNoise,
    GaussianNoise,
    MixtureNoise,
)
import numpy as np
import pytest
import scipy.stats

KERNEL = GaussianKernel(0.4)


def signed_mean(seed=0, size=30, kernel=KERNEL):
    rng = np.random.default_rng(seed)
    weights = rng.normal(0.05, 0.1, size=size)
    return KernelMean(kernel, rng.normal(size=(size, 2)), weights + (1 - weights.sum()) / size)


def test_inner_product_norm_and_mmd_are_gram_expressions():
    a, b = signed_mean(0), signed_mean(1, size=20)
    cross = KERNEL.cross_gram(a.points, b.points)
    assert a.inner(b) == pytest.approx(a.weights @ cross @ b.weights, rel=1e-12)
    assert a.norm() ** 2 == pytest.approx(a.weights @ KERNEL.gram(a.points) @ a.weights)
    squared = a.inner(a) + b.inner(b) - 2 * a.inner(b)
    assert a.mmd(b) == pytest.approx(np.sqrt(squared))
    assert a.mmd(a) == pytest.approx(0.0, abs=1e-7)


def test_model_kernel_mean_has_the_exact_norm_of_a_gaussian_mixture():
    # <m_P, m_Q> of two Gaussian mixtures is a double sum of Gaussian densities
    means, covs = np.array([[0.0, 1.0], [2.0, -1.0]]), [0.3 * np.eye(2), np.diag([0.5, 0.1])]
    pi = np.array([0.4, 0.6])
    parts = [
        ModelKernelMean(KERNEL, means[[k]], pi[[k]], GaussianNoise(covs[k])) for k in range(2)
    ]
    mixture = parts[0] + parts[1]
    expected = sum(
        pi[i]
        * pi[j]
        * scipy.stats.multivariate_normal(means[j], 0.4 * np.eye(2) + covs[i] + covs[j]).pdf(
            means[i]
        )
        for i in range(2)
        for j in range(2)
    )
    assert mixture.inner(mixture) == pytest.approx(expected, rel=1e-12)
    as_noise = MixtureNoise(pi, [GaussianNoise(c) for c in covs], means)
    same = ModelKernelMean(KERNEL, np.zeros((1, 2)), np.ones(1), as_noise)
    assert same.inner(mixture) == pytest.approx(expected, rel=1e-12)
    z = np.random.default_rng(0).normal(size=(5, 2))
    np.testing.assert_allclose(same(z), mixture(z), rtol=1e-12)


@pytest.mark.parametrize('plain', [False, True])
def test_empirical_kernel_means_approach_the_exact_embedding(plain):
    kernel = RationalQuadraticKernel(0.5, normalised=not plain)
    noise = CauchyNoise(0.08)
    exact = ModelKernelMean(kernel, np.array([[1.0], [-2.0]]), np.array([0.3, 0.7]), noise)
    rng = np.random.default_rng(0)
    chosen = rng.choice([1.0, -2.0], size=(2000, 1), p=[0.3, 0.7])
    sample = KernelMean.of_sample(kernel, chosen + noise.sample(2000, 1, rng))
    peak = kernel.diagonal(np.zeros((1, 1)))[0]
    # E |m_n - m|^2 <= k(x, x) / n
    assert sample.mmd(exact) < 2.0 * np.sqrt(peak / 2000)


MODE_KERNELS = [
    GaussianKernel(0.4),
    3.0 * GaussianKernel([[0.4, 0.1], [0.1, 0.3]], normalised=False),
    RationalQuadraticKernel(0.4),
    MaternKernel(0.4, smoothness=1.5),
    GaussianKernel(0.4).on(0) * GaussianKernel(0.3).on(1),
]


@pytest.mark.parametrize('kernel', MODE_KERNELS, ids=repr)
@pytest.mark.parametrize('seed', range(2))
def test_mode_is_the_highest_point_of_a_fine_grid(kernel, seed):
    mean = signed_mean(seed, size=40, kernel=kernel)
    axis = np.linspace(-3.0, 3.0, 121)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    highest = mean(grid).max()
    mode = mean.mode(starts=12)
    assert mean(mode[np.newaxis])[0] >= highest * (1 - 1e-9)


def test_modes_finds_both_peaks_highest_first_and_only_once():
    rng = np.random.default_rng(0)
    left, right = rng.normal(-3, 0.2, size=(60, 1)), rng.normal(3, 0.2, size=(40, 1))
    mean = KernelMean.of_sample(GaussianKernel(0.2), np.concatenate([left, right]))
    modes, heights = mean.modes()
    assert modes.shape == (2, 1)
    np.testing.assert_allclose(modes[:, 0], [-3, 3], atol=0.15)
    assert heights[0] > heights[1]
    gradient = (mean(modes + 1e-6) - mean(modes - 1e-6)) / 2e-6
    np.testing.assert_allclose(gradient, 0.0, atol=1e-6)


@pytest.mark.parametrize('seed', [0, 31])
def test_modes_of_any_kernel_are_sorted_by_the_distance_that_they_minimise(seed):
    rng = np.random.default_rng(seed)
    kernel = PolynomialKernel(2, 0.5) * GaussianKernel(0.5, normalised=False)
    mean = KernelMean(kernel, rng.normal(size=(8, 2)), rng.normal(0.2, 0.125, size=8))
    modes, _ = mean.modes()
    distances = [mean.mmd(KernelMean.of_sample(kernel, mode[np.newaxis])) for mode in modes]
    np.testing.assert_array_equal(distances, np.sort(distances))
    np.testing.assert_array_equal(mean.mode(), modes[0])


def test_mode_of_rotations_is_the_rotation_nearest_to_the_mean_matrix():
    rng = np.random.default_rng(1)
    points = scipy.stats.special_ortho_group(3, seed=rng).rvs(20)
    mean = KernelMean(TraceKernel(), points, rng.dirichlet(np.ones(20)))
    mode = mean.mode()
    candidates = scipy.stats.special_ortho_group(3, seed=rng).rvs(5000)
    assert mean(mode[np.newaxis])[0] >= mean(candidates).max()
    np.testing.assert_allclose(mode @ mode.T, np.eye(3), atol=1e-12)


def test_mode_on_the_circle_crosses_the_wrap():
    angles = np.array([[np.pi - 0.1], [-np.pi + 0.1]])
    mean = KernelMean.of_sample(WrappedNormalKernel(0.3), angles)
    assert abs(abs(mean.mode()[0]) - np.pi) < 1e-3


def test_covariance_is_that_of_the_sample_and_never_indefinite():
    points = np.random.default_rng(0).normal(size=(200, 3))
    uniform = KernelMean.of_sample(KERNEL, points)
    np.testing.assert_allclose(uniform.covariance(), np.cov(points.T, bias=True), rtol=1e-10)
    extreme = KernelMean(KERNEL, np.array([[0.0], [1.0], [5.0]]), np.array([1.0, 1.0, -0.5]))
    assert extreme.covariance()[0, 0] == 0.0  # the weighted scatter is negative
    assert np.linalg.eigvalsh(signed_mean(3).covariance())[0] >= 0.0


def test_herding_beats_sampling():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(500, 2))
    mean = KernelMean.of_sample(GaussianKernel(1.0), points)
    herded = KernelMean.of_sample(mean.kernel, mean.herd(20))
    samples = [
        KernelMean.of_sample(mean.kernel, points[rng.choice(500, 20)]).mmd(mean) for _ in range(50)
    ]
    assert herded.mmd(mean) < min(samples)
    pool = rng.normal(size=(300, 2))
    chosen = mean.herd(5, candidates=pool)
    assert all((pool == row).all(axis=1).any() for row in chosen)


def test_heaviest_and_normalised():
    mean = KernelMean(KERNEL, np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([-1.0, 3.0]))
    np.testing.assert_array_equal(mean.heaviest(), [3.0, 4.0])
    np.testing.assert_allclose(mean.normalised().weights, [-0.5, 1.5])


@pytest.mark.parametrize('unit', [1e-4, 1e5])
def test_a_mode_does_not_depend_on_the_unit_of_the_points(unit):
    points = np.array([[0.0, 0.0], [1.0, 0.0], [0.4, 0.9]])
    radial = GaussianKernel(unit**2)
    expected = KernelMean.of_sample(radial, unit * points).mode() / unit
    for kernel in (radial.on(0) * radial.on(1), radial.on(0, 1) + radial):
        mode = KernelMean.of_sample(kernel, unit * points).mode() / unit
        np.testing.assert_allclose(mode, expected, atol=1e-4)


def test_weights_that_cancel_have_no_sum_and_no_mode():
    mean = KernelMean.of_sample(KERNEL, np.random.default_rng(0).normal(size=(20, 1)))
    nothing = mean - mean
    with pytest.raises(NoMassError, match='weights: expected a positive sum'):
        nothing.mean()
    for kernel in (KERNEL, 2.0 * KERNEL, LaplaceKernel(0.5)):
        negative = KernelMean(kernel, mean.points, np.full(20, -0.1))
        with pytest.raises(NoMassError, match='weights: expected a kernel mean that is positive'):
            negative.mode()
    # small but not by rounding
    with pytest.warns(RuntimeWarning, match='posterior weights cancel'):
        found = (mean - (1.0 - 1e-9) * mean).mean()
    np.testing.assert_allclose(found, mean.mean(), atol=1e-5)
