"""What floating point or the data cannot give is refused in one line, never answered silently."""

import warnings

from kbr_localization import kernels as k
from kbr_localization.errors import KernelError
from kbr_localization.kernels.checks import NoMassError
from kbr_localization.kernels.low_rank import pivoted_cholesky
import numpy as np
import pytest

RNG = np.random.default_rng(0)
WIDE = RNG.normal(size=(40, 1200))
NORMALISED = {
    'gaussian': k.GaussianKernel,
    'laplace': k.LaplaceKernel,
    'matern': k.MaternKernel,
    'cauchy': k.RationalQuadraticKernel,
}


@pytest.mark.parametrize('name', NORMALISED)
@pytest.mark.parametrize('scale', [1e-6, 1e3])
def test_a_density_beyond_floating_point_is_refused(name, scale):
    kernel = NORMALISED[name](scale)
    for call in (kernel.gram, kernel.diagonal, lambda x: kernel.cross_gram(x, x[:2])):
        with pytest.raises(KernelError, match=r'dimension 1200, .* use normalised=False in'):
            call(WIDE)
    assert np.all(NORMALISED[name](scale, normalised=False).diagonal(WIDE) == 1.0)


def test_a_tiny_bandwidth_is_refused_in_one_dimension_of_many_points():
    kernel = k.GaussianKernel(1e-300)
    assert kernel.diagonal(np.zeros((1, 1)))[0] == pytest.approx(1e150 / np.sqrt(2 * np.pi))
    with pytest.raises(KernelError, match=r'normalised: expected a density .* in dimension 2'):
        kernel.diagonal(np.zeros((1, 2)))


def test_pictures_of_1200_pixels_need_a_plain_kernel_and_then_give_weights():
    width = k.median_distance(WIDE) ** 2
    x = WIDE[:, :1]
    with pytest.raises(KernelError, match='normalised'):
        k.KernelBayesRule(k.GaussianKernel(1.0), k.GaussianKernel(width), x, WIDE, 1e-3, 1e-3)
    plain = k.GaussianKernel(width, normalised=False)
    rule = k.KernelBayesRule(k.GaussianKernel(1.0), plain, x, WIDE, 1e-3, 1e-3)
    prior = k.KernelMean.of_sample(rule.kernel_x, x)
    assert np.abs(rule.posterior(prior, WIDE[0]).weights).max() > 0.1
    assert np.abs(rule.condition(WIDE[0]).weights).max() > 0.1


@pytest.mark.parametrize('mixed', [False, True])
def test_the_model_based_rule_of_a_plain_kernel_holds_where_its_density_is_no_float(mixed):
    r, s = k.median_distance(WIDE) ** 2, 1.5
    noise = k.GaussianNoise(s)
    if mixed:
        noise = k.MixtureNoise([0.25, 0.75], [noise, noise])
    mean = noise.conditional_kernel_mean(k.GaussianKernel(r, normalised=False))
    squared = ((WIDE[:5, None] - WIDE[None, :5]) ** 2).sum(axis=2)
    expected = (r / (r + s)) ** 600 * np.exp(-0.5 * squared / (r + s))
    np.testing.assert_allclose(mean.cross_gram(WIDE[:5], WIDE[:5]), expected, rtol=1e-9)
    image = k.ModelKernelMean(k.GaussianKernel(r, normalised=False), WIDE[:1], [1.0], noise)
    # smoothed twice: the inner product of two noisy points
    assert image.inner(image) == pytest.approx((r / (r + 2 * s)) ** 600, rel=1e-9)


@pytest.mark.parametrize('dimension', [1, 20])
@pytest.mark.parametrize('smoothness', [0.5, 1.2, 1.5, 2.5, 300.0])
def test_points_whose_squared_distance_is_no_float_are_apart(smoothness, dimension):
    kernel = k.MaternKernel(1.0, smoothness, normalised=False)
    points = np.zeros((12, dimension))
    points[1:, 0] = 10.0 ** np.arange(150, 260, 10)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        gram = kernel.gram(points)
    np.testing.assert_array_equal(gram, np.eye(12))


def test_a_gram_matrix_of_zeros_is_refused():
    tiny = 1e-200 * (1e-200 * k.GaussianKernel(1.0, normalised=False))
    with pytest.raises(KernelError, match=r'gram: expected a diagonal .* got 0 to 0'):
        k.regularise(tiny.gram(WIDE), 0.1)
    with pytest.raises(KernelError, match='gram_y: expected a diagonal'):
        k.thresholded_bayes_rule(-np.eye(3), np.ones(3), np.ones(3), 0.1)


def test_a_centred_gram_matrix_may_be_negative_by_rounding():
    x = np.array([[1.1], [1.2], [1.3]])
    gram = x @ x.T
    gram += gram.mean() - gram.mean(axis=0) - gram.mean(axis=1, keepdims=True)
    assert gram[1, 1] < 0.0
    centred = x - x.mean()
    expected = np.linalg.solve(centred @ centred.T + 0.3 * np.eye(3), x)
    np.testing.assert_allclose(k.regularise(gram, 0.1).solve(x), expected, rtol=1e-9)
    assert np.all(np.isfinite(k.thresholded_bayes_rule(gram, np.ones(3), gram[0], 0.1)))
    assert k.PrecomputedKernel(gram).points().shape == (3, 1)


@pytest.mark.parametrize('rule', k.BAYES_RULES.values())
def test_an_asymmetric_gram_matrix_is_refused_by_every_rule(rule):
    gram = k.GaussianKernel(1.0).gram(WIDE[:6, :1])
    gram[0, 1] += 0.2
    with pytest.raises(KernelError, match=r'gram: expected a symmetric .* got shape \(6, 6\)'):
        rule(gram, np.full(6, 1 / 6), np.ones(6), 0.1)
    with pytest.raises(KernelError, match='gram: expected a symmetric matrix'):
        k.regularise(gram, 0.1)


def test_an_indefinite_kernel_is_named_and_epsilon_is_kept():
    x = RNG.normal(size=(30, 2))
    gram = np.tanh(x @ x.T + 1.0)  # the sigmoid "kernel"
    with pytest.raises(KernelError, match='gram: expected a positive semi-definite matrix'):
        k.regularise(gram, 1e-6)
    assert k.regularise(gram, 10.0).ridge == 300.0


@pytest.mark.parametrize('order', [1, -1])
def test_an_indefinite_kernel_has_no_low_rank_form(order):
    x = RNG.normal(size=(30, 2))
    for gram in (np.tanh(x @ x.T + 1.0), np.diag([1.0, 1.0, -0.1])[::order, ::order]):
        with pytest.raises(KernelError, match='gram: expected a positive semi-definite matrix'):
            pivoted_cholesky(np.diag(gram), lambda i, gram=gram: gram[i], 1e-9)


def test_a_kernel_of_single_precision_has_a_low_rank_form():
    x = RNG.normal(size=(200, 2))
    gram = k.GaussianKernel(1.0, normalised=False).gram(x).astype(np.float32).astype(float)
    found = pivoted_cholesky(np.diag(gram), lambda i: gram[i], 1e-5)
    np.testing.assert_allclose(found.dense(), gram, atol=3e-3)


def test_weights_that_cancel_have_no_sum_and_no_mode():
    points = np.random.default_rng(0).normal(size=(20, 1))
    mean = k.KernelMean.of_sample(k.GaussianKernel(0.5), points)
    nothing = mean - mean
    assert nothing.weights.sum() > 0.0  # by rounding
    with pytest.raises(NoMassError, match='weights: expected a positive sum'):
        nothing.mean()
    with pytest.raises(NoMassError, match='weights: expected a kernel mean that is positive'):
        nothing.mode()
    with pytest.raises(NoMassError, match='weights: expected a kernel mean that is positive'):
        k.KernelMean(k.GaussianKernel(0.5), np.zeros((3, 1)), [0.1, 0.2, -0.3]).mode()
    # small but not by rounding
    np.testing.assert_allclose((mean - (1.0 - 1e-9) * mean).mean(), mean.mean(), atol=1e-5)


@pytest.mark.parametrize(
    'kernel', [k.GaussianKernel(0.5), 2.0 * k.GaussianKernel(0.5), k.LaplaceKernel(0.5)]
)
def test_a_mean_that_is_positive_nowhere_has_no_mode(kernel):
    points = RNG.normal(size=(8, 2))
    mean = k.KernelMean(kernel, points, np.full(8, -0.1))
    for call in (mean.mode, mean.modes):
        with pytest.raises(NoMassError, match='weights: expected a kernel mean that is positive'):
            call()


@pytest.mark.parametrize('normalised', [True, False])
@pytest.mark.parametrize('unit', [1e-4, 1e-2, 1e2, 1e5])
def test_a_mode_does_not_depend_on_the_unit_of_the_points(unit, normalised):
    points = np.array([[0.0, 0.0], [1.0, 0.0], [0.4, 0.9]])
    radial = k.GaussianKernel(unit**2, normalised)
    expected = k.KernelMean.of_sample(radial, unit * points).mode() / unit
    for kernel in (radial.on(0) * radial.on(1), radial.on(0, 1) + radial):
        mode = k.KernelMean.of_sample(kernel, unit * points).mode() / unit
        np.testing.assert_allclose(mode, expected, atol=1e-4)


def test_a_mean_of_mixed_signs_has_its_modes_among_the_points():
    points = np.array([[0.0], [5.0], [10.0]])
    mean = k.KernelMean(k.GaussianKernel(0.5), points, [0.4, -1.0, 0.2])
    modes, heights = mean.modes()
    np.testing.assert_allclose(modes[:, 0], [0.0, 10.0], atol=1e-3)
    assert np.all(heights > 0)


def test_complex_input_is_refused_and_does_not_only_warn():
    z = np.ones((4, 2)) * (1 + 1j)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        for call in (
            lambda: k.GaussianKernel(1.0).gram(z),
            lambda: k.KernelMean.of_sample(k.GaussianKernel(1.0), z),
            lambda: k.regularise(np.eye(3) * 1j, 0.1),
            lambda: k.normalise(z[:, 0]),
        ):
            with pytest.raises(KernelError, match='expected real numbers, got complex'):
                call()
