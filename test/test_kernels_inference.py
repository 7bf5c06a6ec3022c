"""Chains of learnt and given models, Bayes' rule on kernel means, convergence to the exact one."""

from kbr_localization.errors import KernelError
from kbr_localization.kernels.filters import KernelBayesFilter, ModelTransition
from kbr_localization.kernels.inference import (
    KernelABC,
    KernelBayesRule,
    NonparametricModel,
    Supervision,
)
from kbr_localization.kernels.kernel_mean import KernelMean, ModelKernelMean
from kbr_localization.kernels.kernels import GaussianKernel
from kbr_localization.kernels.manifold import nearest_rotation, TraceKernel
from kbr_localization.kernels.models import AdditiveNoiseModel
from kbr_localization.kernels.noise import GaussianNoise
from kbr_localization.kernels.rules import BAYES_RULES, regularise
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

KX, KY = GaussianKernel(0.3), GaussianKernel(0.4)
LINEAR = AdditiveNoiseModel(lambda x: 0.8 * x, GaussianNoise(0.2))


def pairs(size=300, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-4.0, 4.0, size=(size, 1))
    return x, LINEAR.sample(x, rng)


def prior_mean(size=400, seed=1):
    x = np.random.default_rng(seed).normal(0.5, 0.8, size=(size, 1))
    return KernelMean.of_sample(KX, x)


def test_a_kernel_mean_of_another_space_is_refused():
    rule = KernelBayesRule(KX, KY, *pairs(40), epsilon=1e-3, delta=1e-3)
    equal = KernelMean.of_sample(GaussianKernel(0.3), rule.x)
    assert rule.posterior(equal, [0.0]).weights.shape == (40,)
    wrong = KernelMean.of_sample(GaussianKernel(0.3, normalised=False), rule.x)
    for call in (
        lambda: rule.posterior(wrong, [0.0]),
        lambda: KernelBayesFilter(ModelTransition(LINEAR, KX), rule).start([0.0], wrong),
    ):
        with pytest.raises(KernelError, match='prior: expected a kernel mean of Gaussian'):
            call()
    with pytest.raises(KernelError, match='evidence: expected a kernel mean of Gaussian'):
        rule.posterior_given(equal, wrong)


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
    prior = prior_mean()
    joint = learnt.joint(prior)
    mean_x, mean_y = joint.normalised().expectation(lambda points: points)
    assert mean_x == pytest.approx(0.5, abs=0.1)
    assert mean_y == pytest.approx(0.4, abs=0.1)
    product = joint.normalised().expectation(lambda points: points[:, 0] * points[:, 1])
    assert product - mean_x * mean_y == pytest.approx(0.8 * 0.64, abs=0.15)
    np.testing.assert_allclose(joint.weights, learnt.push(prior).weights)


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
    assert several.shape == (60, 2)
    same = rule.posterior(prior(rule.x), [0.9])
    np.testing.assert_array_equal(same.weights, posterior.weights)


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


def test_supervision_of_the_squared_rule_takes_the_root_of_its_delta():
    supervision = Supervision(np.array([[0.4]]), np.array([[1.5]]), 0.1)
    settings = {'squared': 1e-6, 'thresholded': 1e-3}
    rules = [KernelBayesRule(KX, KY, *pairs(30), 1e-3, d, m) for m, d in settings.items()]
    weights = [rule.posterior(prior_mean(20), [0.4], supervision).weights for rule in rules]
    np.testing.assert_allclose(weights[0], weights[1], rtol=1e-10)


def posterior_errors(method, sizes, trials):
    """Root mean square error of the posterior mean of a linear-Gaussian model."""
    prior = ModelKernelMean(KX, np.array([[0.5]]), np.ones(1), GaussianNoise(0.64))
    gain = 0.8 * 0.64 / (0.64 * 0.64 + 0.2)
    observations = np.linspace(-0.6, 1.4, 9)[:, np.newaxis]
    truth = 0.5 + gain * (observations - 0.8 * 0.5)
    errors = []
    for n in sizes:
        squares = []
        for trial in range(trials):
            x, y = pairs(n, 10 + trial)
            mu = regularise(KX.gram(x), 0.01 / n).solve(prior(x))
            k_y = KY.cross_gram(y, observations)
            weights = BAYES_RULES[method](KY.gram(y), mu, k_y, 0.1 / n)
            squares.append(np.mean(((weights.T @ x) / weights.sum(axis=0)[:, None] - truth) ** 2))
        errors.append(np.sqrt(np.mean(squares)))
    return np.array(errors)


@pytest.mark.parametrize('method', BAYES_RULES)
def test_bayes_rule_converges_to_the_exact_posterior_mean(method):
    sizes = np.array([25, 50, 100, 200, 400])
    errors = posterior_errors(method, sizes, trials=8)
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert slope < -0.35, f'errors {errors} fall with slope {slope:.2f}'
    assert errors[-1] < 0.08


@pytest.mark.parametrize('weight', [0.3, 1e4])
def test_supervision_by_laws_minimises_equation_10_of_kreg(weight):
    x, y = pairs(30)
    rule = KernelBayesRule(KX, KY, x, y, 1e-3, 1e-3, 'pKBR')
    laws = [KernelMean(KX, [[1.0], [1.6]], [0.25, 0.75]), KernelMean(KX, [[-1.0]], [1.0])]
    observed = np.array([[0.4], [2.0]])
    found = rule.posterior(prior_mean(20), [0.4], Supervision(observed, laws, weight))
    mu = rule.likelihood.sum_rule_weights(prior_mean(20))
    kept, z = mu > 0, np.linspace(-2, 2, 9)[:, np.newaxis]
    targets = np.column_stack([KX.cross_gram(z, x[kept]), *(law(z) for law in laws)])
    inputs = np.concatenate([y[kept], observed])
    penalty = np.diag(1e-3 / np.append(mu[kept], [weight, weight]))
    solved = np.linalg.solve(KY.gram(inputs) + penalty, KY.cross_gram(inputs, [[0.4]])[:, 0])
    np.testing.assert_allclose(found(z), targets @ solved, rtol=1e-6, atol=1e-9)
    assert (found.mmd(laws[0]) < 1e-3) == (weight > 1)


def test_a_point_supervises_as_the_law_that_is_certain_of_it():
    rule = KernelBayesRule(KX, KY, *pairs(30), 1e-3, 1e-3, 'pKBR')
    forms = np.array([[1.5]]), [KernelMean(KX, [[1.5]], [1.0])]
    supervised = [Supervision(np.array([[0.4]]), states, 0.1) for states in forms]
    point, law = (rule.posterior(prior_mean(20), [0.4], s) for s in supervised)
    np.testing.assert_array_equal(point.weights, law.weights)
    with pytest.raises(KernelError, match='states: expected a kernel mean of'):
        other = KernelMean(GaussianKernel(9.0), [[1.5]], [1.0])
        rule.posterior(prior_mean(20), [0.4], Supervision(np.array([[0.4]]), [other], 0.1))


def test_states_may_be_rotations():
    rng = np.random.default_rng(0)
    turn = rng.uniform(-2.0, 2.0, size=(300, 3)) * [0.2, 0.2, 1.0]
    states = Rotation.from_rotvec(turn).as_matrix()
    images = np.tanh(turn @ rng.normal(size=(3, 12)) * 0.5) + 0.02 * rng.normal(size=(300, 12))
    train, test = slice(0, 250), slice(250, 300)
    kernel_y = GaussianKernel(1.0, normalised=False)
    rule = KernelBayesRule(
        TraceKernel(), kernel_y, states[train], images[train], epsilon=1e-6, delta=1e-5
    )
    errors = []
    for state, image in zip(states[test], images[test], strict=True):
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


def test_its_weights_are_equation_19():
    abc = KernelABC(draw_prior, simulator, 30, 1e-3, rng=3)
    k = abc.kernel_y.cross_gram(abc.y, [[0.3]])[:, 0]
    expected = np.linalg.solve(abc.kernel_y.gram(abc.y) + 0.03 * np.eye(30), k)
    np.testing.assert_allclose(abc.posterior([0.3]).weights, expected, rtol=1e-9)
    assert KernelABC(draw_prior, simulator, 30, rng=3).x == pytest.approx(abc.x)
