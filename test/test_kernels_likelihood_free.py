"""Kernel ABC and KDE + IW against exact posteriors and plain formulas."""

from kbr_localization.errors import KernelError
from kbr_localization.kernels import DensityPosterior, GaussianKernel, KernelABC
import numpy as np
import pytest
import scipy.stats


def prior(size, rng):
    return rng.normal(1.0, 1.0, size=(size, 1))


def simulator(x, rng):
    """Mean of four draws N(x, 1)."""
    return x + 0.5 * rng.normal(size=x.shape)


@pytest.mark.parametrize('observed', [0.0, 1.5])
def test_kernel_abc_finds_the_conjugate_posterior(observed):
    posterior = KernelABC(prior, simulator, 2000, 1e-5).posterior([observed]).normalised()
    assert posterior.mean()[0] == pytest.approx((1.0 + 4.0 * observed) / 5.0, abs=0.06)
    assert posterior.covariance()[0, 0] == pytest.approx(1 / 5.0, abs=0.06)


def test_its_weights_are_equation_19():
    abc = KernelABC(prior, simulator, 30, 1e-3, rng=3)
    k = abc.kernel_y.cross_gram(abc.y, [[0.3]])[:, 0]
    expected = np.linalg.solve(abc.kernel_y.gram(abc.y) + 0.03 * np.eye(30), k)
    np.testing.assert_allclose(abc.posterior([0.3]).weights, expected, rtol=1e-9)
    assert KernelABC(prior, simulator, 30, rng=3).x == pytest.approx(abc.x)


def test_a_simulator_of_another_length_is_refused():
    with pytest.raises(KernelError, match=r'prior\(size, rng\), simulator\(x, rng\): expected'):
        KernelABC(prior, lambda x, rng: x[:3], 10)
    with pytest.raises(KernelError, match='summary: expected one point'):
        KernelABC(prior, simulator, 10).posterior([[0.1]])


def test_density_weights_are_the_formula_of_the_paper():
    rng = np.random.default_rng(0)
    x, y, u = rng.normal(size=(3, 12, 2))
    observed = np.array([0.2, -0.4])
    weights = []
    for point in u:
        k_x = scipy.stats.multivariate_normal(point, 0.5**2).pdf(x)
        k_y = scipy.stats.multivariate_normal(observed, 0.8**2).pdf(y)
        weights.append(np.sum(k_x * k_y) / np.sum(k_x))
    expected = np.array(weights) / np.sum(weights)
    found = DensityPosterior(x, y, 0.5, 0.8).weights(u, [observed])
    np.testing.assert_allclose(found, [expected], rtol=1e-10)


def test_density_weights_are_finite_where_no_density_is_a_float():
    # near 0 and 1 only the pair at zero counts, from whose y all of them are as far
    pairs = np.array([[0.0], [100.0]])
    weights = DensityPosterior(pairs, pairs, 1.0, 1.0).weights([[0.0], [1.0]], [[60.0]])
    np.testing.assert_allclose(weights, [[0.5, 0.5]])


def test_density_posterior_is_near_the_exact_one_and_far_observations_have_weights():
    rng = np.random.default_rng(1)
    x = rng.uniform(-4.0, 4.0, size=(2000, 1))
    posterior = DensityPosterior(x, simulator(x, rng), 0.2, 0.2)
    u = prior(2000, rng)
    mean = posterior.posterior(u, [1.5], GaussianKernel(1.0))
    assert mean.mean()[0] == pytest.approx(7.0 / 5.0, abs=0.1)
    far = posterior.weights(u, [[1e3]])
    assert far.sum() == pytest.approx(1.0)
    with pytest.raises(KernelError, match=r'observation: expected one point of shape \(1,\)'):
        posterior.posterior(u, [[1.5]], GaussianKernel(1.0))
