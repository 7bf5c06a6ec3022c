"""Kernel means: inner products, moments, modes, herding; models and Bayes' rule between them."""

from kbr_localization.errors import KernelError
from kbr_localization.kernels import (
    AdditiveNoiseModel,
    GaussianKernel,
    GaussianNoise,
    KernelABC,
    KernelBayesRule,
    KernelMean,
    LaplaceKernel,
    MaternKernel,
    MixtureNoise,
    ModelKernelMean,
    MonteCarloModel,
    nearest_rotation,
    NoMassError,
    NonparametricModel,
    RationalQuadraticKernel,
    Supervision,
    TraceKernel,
    WrappedNormalKernel,
)
from kbr_localization.kernels.rules import BAYES_RULES
import numpy as np
import pytest
from scipy.spatial.transform import Rotation
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
    assert a.mmd(b) == pytest.approx((a - b).norm())
    assert a.mmd(a) == pytest.approx(0.0, abs=1e-7)


def test_model_kernel_mean_has_the_exact_norm_of_a_gaussian_mixture():
    # <m_P, m_Q> of two Gaussian mixtures is a double sum of Gaussian densities
    means, covs = np.array([[0.0, 1.0], [2.0, -1.0]]), [0.3 * np.eye(2), np.diag([0.5, 0.1])]
    pi = np.array([0.4, 0.6])
    first, second = (
        ModelKernelMean(KERNEL, means[[k]], pi[[k]], GaussianNoise(covs[k])) for k in range(2)
    )
    mixture = first + second

    def density(i, j):
        total = 0.4 * np.eye(2) + covs[i] + covs[j]
        return scipy.stats.multivariate_normal(means[j], total).pdf(means[i])

    expected = sum(pi[i] * pi[j] * density(i, j) for i in range(2) for j in range(2))
    assert mixture.inner(mixture) == pytest.approx(expected, rel=1e-12)
    as_noise = MixtureNoise(pi, [GaussianNoise(c) for c in covs], means)
    same = ModelKernelMean(KERNEL, np.zeros((1, 2)), np.ones(1), as_noise)
    assert same.inner(mixture) == pytest.approx(expected, rel=1e-12)
    z = np.random.default_rng(0).normal(size=(5, 2))
    np.testing.assert_allclose(same(z), mixture(z), rtol=1e-12)


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
    mode = mean.mode(starts=12)
    assert mean([mode])[0] >= mean(grid).max() * (1 - 1e-9)
    gradient = mean(mode + 1e-6 * np.eye(2)) - mean(mode - 1e-6 * np.eye(2))
    np.testing.assert_allclose(gradient / 2e-6, 0.0, atol=1e-6)


@pytest.mark.parametrize('unit', [1e-4, 1e5])
def test_a_mode_does_not_depend_on_the_unit_of_the_points(unit):
    points = np.array([[0.0, 0.0], [1.0, 0.0], [0.4, 0.9]])
    radial = GaussianKernel(unit**2)
    expected = KernelMean.of_sample(radial, unit * points).mode() / unit
    for kernel in (radial.on(0) * radial.on(1), radial.on(0, 1) + radial):
        mode = KernelMean.of_sample(kernel, unit * points).mode() / unit
        np.testing.assert_allclose(mode, expected, atol=1e-4)


def test_modes_on_rotations_and_on_the_circle():
    rng = np.random.default_rng(1)
    points = scipy.stats.special_ortho_group(3, seed=rng).rvs(20)
    mean = KernelMean(TraceKernel(), points, rng.dirichlet(np.ones(20)))
    mode = mean.mode()
    candidates = scipy.stats.special_ortho_group(3, seed=rng).rvs(5000)
    assert mean(mode[np.newaxis])[0] >= mean(candidates).max()
    np.testing.assert_allclose(mode @ mode.T, np.eye(3), atol=1e-12)
    angles = np.array([[np.pi - 0.1], [-np.pi + 0.1]])
    mean = KernelMean.of_sample(WrappedNormalKernel(0.3), angles)
    assert abs(abs(mean.mode()[0]) - np.pi) < 1e-3


def test_covariance_is_that_of_the_sample_and_never_indefinite():
    points = np.random.default_rng(0).normal(size=(200, 3))
    uniform = KernelMean.of_sample(KERNEL, points)
    np.testing.assert_allclose(uniform.covariance(), np.cov(points.T, bias=True), rtol=1e-10)
    extreme = KernelMean(KERNEL, np.array([[0.0], [1.0], [5.0]]), np.array([1.0, 1.0, -0.5]))
    assert extreme.covariance()[0, 0] == 0.0  # the weighted scatter is negative


def test_herding_beats_sampling():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(500, 2))
    mean = KernelMean.of_sample(GaussianKernel(1.0), points)
    herded = KernelMean.of_sample(mean.kernel, mean.herd(20))
    samples = [
        KernelMean.of_sample(mean.kernel, points[rng.choice(500, 20)]).mmd(mean) for _ in range(50)
    ]
    assert herded.mmd(mean) < min(samples)


def test_weights_that_cancel_have_no_sum_and_no_mode():
    points = np.random.default_rng(0).normal(size=(20, 1))
    with pytest.raises(NoMassError, match='weights: expected a positive sum'):
        KernelMean(KERNEL, points, np.tile([1.0, -1.0], 10)).mean()
    for kernel in (KERNEL, 2.0 * KERNEL, LaplaceKernel(0.5)):
        negative = KernelMean(kernel, points, np.full(20, -0.1))
        with pytest.raises(NoMassError, match='weights: expected a kernel mean that is positive'):
            negative.mode()
    # small but not by rounding
    with pytest.warns(RuntimeWarning, match='posterior weights cancel'):
        found = KernelMean(KERNEL, [[2.0], [2.0]], [1.0, 1e-9 - 1.0]).mean()
    np.testing.assert_allclose(found, 2.0, atol=1e-5)


KX, KY = GaussianKernel(0.3), GaussianKernel(0.4)
LINEAR = AdditiveNoiseModel(lambda x: 0.8 * x, GaussianNoise(0.2))


def pairs(size=300, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-4.0, 4.0, size=(size, 1))
    return x, LINEAR.sample(x, rng)


def prior_mean(size=400):
    return KernelMean.of_sample(KX, np.random.default_rng(1).normal(0.5, 0.8, size=(size, 1)))


def test_a_kernel_mean_of_another_space_is_refused():
    rule = KernelBayesRule(KX, KY, *pairs(40), epsilon=1e-3, delta=1e-3)
    equal = KernelMean.of_sample(GaussianKernel(0.3), rule.x)
    assert rule.posterior(equal, [0.0]).weights.shape == (40,)
    wrong = KernelMean.of_sample(GaussianKernel(0.3, normalised=False), rule.x)
    with pytest.raises(KernelError, match='prior: expected a kernel mean of Gaussian'):
        rule.posterior(wrong, [0.0])
    with pytest.raises(KernelError, match='observation: expected a kernel mean of Gaussian'):
        rule.posterior(equal, wrong)


def test_both_chains_are_the_printed_formulas():
    x, y = pairs(50)
    prior = prior_mean(30)
    learnt = NonparametricModel(KX, KY, x, y, epsilon=1e-3)
    z = np.linspace(-1.0, 1.0, 5)[:, np.newaxis]
    cross = KX.cross_gram(x, prior.points) @ prior.weights
    w = np.linalg.solve(KX.gram(x) + 50e-3 * np.eye(50), cross)  # [MbKSR] eq. 12
    expected = GaussianKernel(0.4 + 0.2).cross_gram(z, 0.8 * y) @ w  # eq. 23
    np.testing.assert_allclose(LINEAR.push(learnt.push(prior))(z), expected, rtol=1e-8)
    on_y = NonparametricModel(KY, KX, y, x, epsilon=1e-3)
    at_sample = GaussianKernel(0.4 + 0.2).cross_gram(y, 0.8 * prior.points) @ prior.weights
    expected = np.linalg.solve(KY.gram(y) + 50e-3 * np.eye(50), at_sample)  # eq. 24
    found = on_y.push(LINEAR.push(prior, kernel=KY)).weights
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-12)


def test_chain_rule_marginalises_to_prior_and_prediction():
    learnt = NonparametricModel(KX, KY, *pairs(), epsilon=1e-5)
    joint = learnt.joint(prior_mean())
    mean_x, mean_y = joint.mean()
    assert [mean_x, mean_y] == pytest.approx([0.5, 0.4], abs=0.1)
    product = joint.normalised().expectation(lambda points: points[:, 0] * points[:, 1])
    assert product - mean_x * mean_y == pytest.approx(0.8 * 0.64, abs=0.15)
    np.testing.assert_allclose(joint.weights, learnt.push(prior_mean()).weights)


@pytest.mark.parametrize('method', BAYES_RULES)
def test_posterior_with_a_given_prior_uses_its_values_at_the_sample(method):
    rule = KernelBayesRule(KX, KY, *pairs(60), epsilon=1e-3, delta=1e-3, method=method)
    prior = ModelKernelMean(KX, np.array([[0.5]]), np.ones(1), GaussianNoise(0.64))
    posterior = rule.posterior(prior, [0.9])
    mu = np.linalg.solve(KX.gram(rule.x) + 60e-3 * np.eye(60), prior(rule.x))
    k = KY.cross_gram(rule.y, [[0.9]])[:, 0]
    expected = BAYES_RULES[method](KY.gram(rule.y), mu, k, 1e-3)
    np.testing.assert_allclose(posterior.weights, expected, rtol=1e-8, atol=1e-12)
    several = rule.posterior_weights(prior, [[0.9], [-0.2]])
    np.testing.assert_allclose(several[:, 0], posterior.weights, rtol=1e-8, atol=1e-12)
    same = rule.posterior(prior(rule.x), KernelMean(KY, [[0.9]], [1.0]))
    np.testing.assert_allclose(same.weights, posterior.weights, rtol=1e-8, atol=1e-12)


def test_the_default_is_the_rule_of_kbr_figure_1():
    x, y = pairs(30)
    epsilon, delta = 1e-3, 1e-4
    mu = 30 * np.linalg.solve(KX.gram(x) + 30 * epsilon * np.eye(30), prior_mean(20)(x))
    a = np.diag(mu) @ KY.gram(y)
    k = KY.cross_gram(y, [[0.4]])[:, 0]
    printed = a @ np.linalg.solve(a @ a + delta * np.eye(30), mu * k)
    rule = KernelBayesRule(KX, KY, x, y, epsilon, delta / 30**2)
    found = rule.posterior(prior_mean(20), [0.4]).weights
    np.testing.assert_allclose(found, printed, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize('method', ['pKBR', 'KBR'])
@pytest.mark.parametrize('weight', [0.3, 1e4])
def test_supervision_minimises_equation_10_of_kreg(weight, method):
    x, y = pairs(30)
    # the squared rule's delta compares with the square
    rule = KernelBayesRule(KX, KY, x, y, 1e-3, 1e-3 if method == 'pKBR' else 1e-6, method)
    observed, states = np.array([[0.4], [2.0]]), np.array([[1.5], [-1.0]])
    found = rule.posterior(prior_mean(20), [0.4], Supervision(observed, states, weight))
    mu = rule.likelihood.sum_rule_weights(prior_mean(20))
    kept, inputs = mu > 0, np.concatenate([y[mu > 0], observed])
    penalty = np.diag(1e-3 / np.append(mu[kept], [weight, weight]))
    solved = np.linalg.solve(KY.gram(inputs) + penalty, KY.cross_gram(inputs, [[0.4]])[:, 0])
    np.testing.assert_array_equal(found.points, np.concatenate([x[kept], states]))
    np.testing.assert_allclose(found.weights, solved, rtol=1e-6, atol=1e-9)
    assert (found.mmd(KernelMean(KX, [[1.5]], [1.0])) < 1e-3) == (weight > 1)
    # laws in the place of points: the remark after the equation
    laws = [KernelMean(KX, [[1.0], [1.6]], [0.25, 0.75]), KernelMean(KX, [[-1.0]], [1.0])]
    towards = rule.posterior(prior_mean(20), [0.4], Supervision(observed, laws, weight))
    z = np.linspace(-2, 2, 9)[:, np.newaxis]
    targets = np.column_stack([KX.cross_gram(z, x[kept]), *(law(z) for law in laws)])
    np.testing.assert_allclose(towards(z), targets @ solved, rtol=1e-6, atol=1e-9)
    assert (towards.mmd(laws[0]) < 1e-3) == (weight > 1)


def test_states_may_be_rotations():
    rng = np.random.default_rng(0)
    turn = rng.uniform(-2.0, 2.0, size=(300, 3)) * [0.2, 0.2, 1.0]
    states = Rotation.from_rotvec(turn).as_matrix()
    images = np.tanh(turn @ rng.normal(size=(3, 12)) * 0.5) + 0.02 * rng.normal(size=(300, 12))
    kernel_y = GaussianKernel(1.0, normalised=False)
    rule = KernelBayesRule(TraceKernel(), kernel_y, states[:250], images[:250], 1e-6, 1e-5)
    errors = []
    for state, image in zip(states[250:], images[250:], strict=True):
        estimate = rule.condition(image).mode()
        np.testing.assert_allclose(estimate, nearest_rotation(estimate), atol=1e-9)
        errors.append(np.linalg.norm(estimate - state))
    assert np.median(errors) < 0.1


def draw_prior(size, rng):
    return rng.normal(1.0, 1.0, size=(size, 1))


def simulator(x, rng):
    """Mean of four draws N(x, 1)."""
    return x + 0.5 * rng.normal(size=x.shape)


@pytest.mark.parametrize('observed', [0.0, 1.5])
def test_kernel_abc_finds_the_conjugate_posterior(observed):
    posterior = KernelABC(draw_prior, simulator, 2000, 1e-5).posterior([observed]).normalised()
    assert posterior.mean()[0] == pytest.approx((1.0 + 4.0 * observed) / 5.0, abs=0.06)
    assert posterior.covariance()[0, 0] == pytest.approx(1 / 5.0, abs=0.06)


POINTS, WEIGHTS = np.array([[-1.0], [0.5], [2.0]]), np.array([0.7, -0.2, 0.5])


def test_every_embedding_can_be_pushed_by_draws():
    noisy = ModelKernelMean(KX, POINTS, WEIGHTS, GaussianNoise(0.2))
    mixed = MixtureNoise([1.0, 3.0], [GaussianNoise(0.1), GaussianNoise(0.4)], [[0.5], [-0.2]])
    prior = (
        noisy
        + 2.5 * ModelKernelMean(KX, POINTS, WEIGHTS, mixed)
        - KernelMean(KX, POINTS + 1.0, WEIGHTS)
    )
    # of a linear map the noise is again normal
    at = np.zeros(3)
    for x, w, e in prior.terms:
        variance = 0.3 if e is None else 0.64 * e.covariance.value + 0.3
        at += ModelKernelMean(KX, 0.8 * x + 0.1, w, GaussianNoise(variance))(POINTS)
    model = AdditiveNoiseModel(lambda x: 0.8 * x + 0.1, GaussianNoise(0.3))
    pushed = MonteCarloModel(model.sample, 20_000, 3).push(prior)
    np.testing.assert_allclose(pushed(POINTS), at, atol=0.02)
    with pytest.raises(KernelError, match='prior: expected a KernelMean'):
        model.push(noisy)
