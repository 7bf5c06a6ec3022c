"""Kernels: positive semi-definite, consistent between gram, cross_gram and diagonal."""

from kbr_localization.errors import KernelError
from kbr_localization.kernels.kernels import GaussianKernel
import numpy as np
import pytest
import scipy.stats

COVARIANCES = [0.7, [0.5, 2.0, 0.1], [[1.0, 0.3, 0.0], [0.3, 0.5, 0.1], [0.0, 0.1, 0.4]]]


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


@pytest.mark.parametrize('dimension', [1, 3, 40])
@pytest.mark.parametrize('normalised', [True, False])
def test_gram_cross_gram_and_diagonal_agree(dimension, normalised):
    x = np.random.default_rng(1).normal(size=(30, dimension)) + 100.0
    kernel = GaussianKernel(2.0, normalised=normalised)
    gram = kernel.gram(x)
    np.testing.assert_array_equal(gram, gram.T)
    np.testing.assert_allclose(gram, kernel.cross_gram(x, x.copy()), rtol=1e-10)
    np.testing.assert_allclose(np.diag(gram), kernel.diagonal(x), rtol=1e-12)
    assert np.linalg.eigvalsh(gram)[0] > -1e-12 * gram[0, 0]


@pytest.mark.parametrize(
    ('covariance', 'message'),
    [
        (0.0, 'covariance: expected positive variances, got 0'),
        (-1.0, 'covariance: expected positive variances, got -1'),
        ([[1.0, 2.0], [2.0, 1.0]], r'covariance: expected a positive definite .*eigenvalue -1'),
        ([[1.0, 0.5], [0.0, 1.0]], 'covariance: expected a symmetric matrix'),
        (np.ones((2, 3)), r'covariance: expected a scalar, .*got shape \(2, 3\)'),
        (np.nan, 'covariance: expected finite numbers'),
    ],
)
def test_a_covariance_that_is_none_is_refused(covariance, message):
    with pytest.raises(KernelError, match=message):
        GaussianKernel(covariance)


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
def test_points_that_are_none_are_refused(x, message):
    with pytest.raises(KernelError, match=message):
        GaussianKernel([1.0, 1.0]).gram(x)
