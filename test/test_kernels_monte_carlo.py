"""Draws in place of formulas: the sum rule against quadrature, the filter against Kalman."""

from kbr_localization.errors import KernelError
from kbr_localization.kernels import (
    AdditiveNoiseModel,
    CauchyNoise,
    GaussianKernel,
    GaussianNoise,
    KernelBayesRule,
    KernelMean,
    KernelMonteCarloFilter,
    LaplaceKernel,
    LinearModel,
    MixtureNoise,
    ModelKernelMean,
    MonteCarloModel,
    MonteCarloTransition,
    RationalQuadraticKernel,
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
    matrix = MonteCarloModel(model.sample, 20_000, 2).kernel_matrix(kernel, z[:, None], POINTS)
    np.testing.assert_allclose(matrix @ WEIGHTS, exact, atol=0.01)


def test_its_error_falls_with_the_root_of_the_draws():
    model = AdditiveNoiseModel(np.sin, GaussianNoise(0.5))
    prior = KernelMean(KERNEL, POINTS, WEIGHTS)
    exact = model.push(prior)

    def error(draws, seed):
        return MonteCarloModel(model.sample, draws, seed).push(prior).mmd(exact)

    errors = [np.mean([error(draws, seed) for seed in range(9)]) for draws in (25, 400)]
    assert errors[1] / errors[0] == pytest.approx(0.25, abs=0.1)


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


LINEAR = LinearModel([[0.8]], GaussianNoise(0.3), [0.1])


@pytest.mark.parametrize('name', embeddings())
def test_every_embedding_can_be_pushed_through_the_model(name):
    prior = embeddings()[name]
    exact = LINEAR.push_exactly(prior)
    for pushed in (
        LINEAR.push(prior, draws=20_000),
        MonteCarloModel(LINEAR.sample, 20_000, 3).push(prior),
    ):
        np.testing.assert_allclose(pushed(POINTS), exact(POINTS), atol=0.01)


def test_the_linear_model_pushes_a_gaussian_to_a_gaussian():
    prior = ModelKernelMean(KERNEL, np.array([[0.5]]), np.ones(1), GaussianNoise(0.2))
    truth = ModelKernelMean(KERNEL, np.array([[0.5]]), np.ones(1), GaussianNoise(0.64 * 0.2 + 0.3))
    assert LINEAR.push_exactly(prior).mmd(truth) < 1e-7
    heavy = ModelKernelMean(
        RationalQuadraticKernel(1.0), np.zeros((1, 1)), np.ones(1), CauchyNoise(1.0)
    )
    with pytest.raises(KernelError, match='prior: expected Gaussian noise'):
        LINEAR.push_exactly(heavy, KERNEL)


def test_the_linear_model_refuses_points_of_another_dimension():
    plane = KernelMean.of_sample(KERNEL, np.ones((3, 2)))
    for push in (
        lambda: LINEAR.images(plane.points),
        lambda: LINEAR.push(plane),
        lambda: LINEAR.push_exactly(plane),
    ):
        with pytest.raises(KernelError, match=r'x: expected points of shape \(n, 1\) .* \(3, 2\)'):
            push()


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


def test_without_resampling_points_without_weight_are_drawn_from_in_vain():
    # the reason that the paper gives for its resampling
    assert filter_gap(200, 0, resample=False)[0] > 1.5 * filter_gap(200, 0)[0]


def test_the_number_of_draws_is_free():
    belief = KernelMean(KERNEL, POINTS, np.array([0.5, 0.2, 0.3]))
    exact = AdditiveNoiseModel(lambda x: x, GaussianNoise(0.1)).push(belief)(POINTS)
    for resample in (True, False):
        transition = MonteCarloTransition(
            lambda x, rng: x + np.sqrt(0.1) * rng.normal(size=x.shape),
            KERNEL, 5000, 0, resample,
        )  # fmt: skip
        np.testing.assert_allclose(transition.predict(belief, POINTS), exact, atol=0.02)


def test_a_sampler_that_draws_too_few_is_refused():
    transition = MonteCarloTransition(lambda x, rng: x[:1], KERNEL)
    with pytest.raises(KernelError, match=r'sampler: expected draws of shape \(3, d\), got'):
        transition.predict(KernelMean.of_sample(KERNEL, POINTS), POINTS)


def test_a_linear_model_of_the_plane_turns_the_noise_of_its_prior():
    model = LinearModel([[0.0, -2.0], [1.0, 0.0]], GaussianNoise([0.1, 0.2]), [5.0, 6.0])
    prior = ModelKernelMean(GaussianKernel(1.0), [[3.0, 4.0]], [1.0], GaussianNoise([0.5, 0.7]))
    ((points, _, noise),) = model.push_exactly(prior).terms()
    np.testing.assert_allclose(points, [[-3.0, 9.0]])
    np.testing.assert_allclose(noise.covariance.matrix(2), np.diag([0.1 + 4 * 0.7, 0.2 + 0.5]))
