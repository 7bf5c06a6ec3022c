"""Filters against the printed recursions, against Kalman on a linear model, and on rotations."""

import logging

from kbr_localization.kernels.filters import (
    KernelBayesFilter,
    LearntTransition,
    means,
    ModelTransition,
    modes,
)
from kbr_localization.kernels.inference import KernelBayesRule, Supervision
from kbr_localization.kernels.kernel_mean import KernelMean
from kbr_localization.kernels.kernels import GaussianKernel
from kbr_localization.kernels.models import AdditiveNoiseModel
from kbr_localization.kernels.noise import GaussianNoise
from kbr_localization.kernels.rules import normalise, squared_bayes_rule
import numpy as np
import pytest

ETA, B, M = 0.4, 0.4, 8  # the oscillating rotation of [KBR] section 5.3 (b)


def rotate(x, turn=ETA):
    angle = np.arctan2(x[:, 1], x[:, 0]) + turn
    radius = 1.0 + B * np.sin(M * angle)
    return radius[:, np.newaxis] * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def rotation_run(size, seed, sigma=0.2):
    rng = np.random.default_rng(seed)
    x = np.ones((size, 2))
    for t in range(1, size):
        x[t] = rotate(x[[t - 1]])[0] + sigma * rng.normal(size=2)
    return x, x + sigma * rng.normal(size=x.shape)


LINEAR = AdditiveNoiseModel(lambda x: 0.9 * x, GaussianNoise(0.3))


def linear_run(size, seed):
    rng = np.random.default_rng(seed)
    x = np.zeros((size, 1))
    for t in range(1, size):
        x[t] = 0.9 * x[t - 1] + np.sqrt(0.3) * rng.normal()
    return x, x + np.sqrt(0.2) * rng.normal(size=x.shape)


def hybrid(x, y, model=LINEAR, bandwidths=(0.3, 0.3), **settings):
    kernel_x, kernel_y = (GaussianKernel(value) for value in bandwidths)
    n = len(x)
    settings = {'epsilon': 0.01 / n, 'delta': 0.1 / n, 'method': 'thresholded', **settings}
    rule = KernelBayesRule(kernel_x, kernel_y, x, y, **settings)
    return KernelBayesFilter(ModelTransition(model, kernel_x), rule)


def uniform_sample(size, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-4, 4, size=(size, 1))
    return x, x + np.sqrt(0.2) * rng.normal(size=x.shape)


def test_hybrid_filter_is_algorithm_1_written_out():
    x, y = uniform_sample(40, 0)
    filter_ = hybrid(x, y, epsilon=1e-3, delta=1e-4, method='squared')
    observations = np.array([[0.3], [-0.4], [0.8]])
    beliefs = filter_.run(observations)
    kernel = GaussianKernel(0.3)
    gram_x, gram_y = kernel.gram(x), kernel.gram(y)
    transition = GaussianKernel(0.3 + 0.3).cross_gram(x, 0.9 * x)
    inverse = np.linalg.inv(gram_x + 40e-3 * np.eye(40))
    k = kernel.cross_gram(y, observations)
    alpha = normalise(np.linalg.solve(gram_y + 40e-3 * np.eye(40), k[:, 0]))
    np.testing.assert_allclose(beliefs[0].weights, alpha, rtol=1e-8, atol=1e-10)
    for t in (1, 2):
        mu = inverse @ (transition @ alpha)
        product = np.diag(mu) @ gram_y
        alpha = product @ np.linalg.solve(product @ product + 1e-4 * np.eye(40), mu * k[:, t])
        alpha = normalise(alpha)
        np.testing.assert_allclose(beliefs[t].weights, alpha, rtol=1e-7, atol=1e-9)


def test_nonparametric_filter_is_equation_17_of_kbr_written_out():
    x, y = rotation_run(41, 0)
    now, later = x[:-1], x[1:]
    kernel = GaussianKernel(0.2)
    rule = KernelBayesRule(kernel, kernel, now, y[:-1], 1e-3, 1e-3, method='squared')
    filter_ = KernelBayesFilter(LearntTransition(kernel, now, later, 1e-3), rule)
    belief = filter_.start(y[0])
    following = filter_.step(belief, y[1])
    inverse = np.linalg.inv(kernel.gram(now) + 40e-3 * np.eye(40))
    transfer = kernel.cross_gram(now, later)
    mu = inverse @ transfer @ inverse @ kernel.gram(now) @ belief.weights
    k = kernel.cross_gram(y[:-1], y[[1]])[:, 0]
    expected = normalise(squared_bayes_rule(kernel.gram(y[:-1]), mu, k, 1e-3))
    np.testing.assert_allclose(following.weights, expected, rtol=1e-6, atol=1e-8)


def kalman_means(y):
    mean, variance, found = 0.0, 1.0, []
    for observation in y[:, 0]:
        gain = variance / (variance + 0.2)
        mean, variance = mean + gain * (observation - mean), (1.0 - gain) * variance
        found.append(mean)
        mean, variance = 0.9 * mean, 0.9**2 * variance + 0.3
    return np.array(found)[:, np.newaxis]


@pytest.mark.parametrize('method', ['thresholded', 'squared'])
def test_hybrid_filter_converges_to_kalman(method):
    _, y = linear_run(40, 7)
    truth = kalman_means(y)
    sizes = np.array([25, 50, 100, 200] if method == 'squared' else [25, 50, 100, 200, 400])
    errors = []
    for n in sizes:
        squares = []
        for trial in range(3):
            estimates = means(hybrid(*uniform_sample(n, trial), method=method).run(y))
            squares.append(np.mean((estimates[5:] - truth[5:]) ** 2))
        errors.append(np.sqrt(np.mean(squares)))
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert slope < -0.35, f'errors {errors} fall with slope {slope:.2f}'
    assert errors[-1] < 0.2 * truth.std()


def test_a_control_moves_the_prediction_of_model_and_learnt_transition():
    rng = np.random.default_rng(0)
    kernel = GaussianKernel(0.1)
    model = AdditiveNoiseModel(lambda x, u: x + u, GaussianNoise(0.01))
    x, u = rng.uniform(-2, 2, size=(400, 1)), rng.choice([-0.5, 0.5], size=(400, 1))
    x_next = x + u + 0.1 * rng.normal(size=(400, 1))
    learnt = LearntTransition(kernel, x, x_next, 1e-5, u, GaussianKernel(0.05, normalised=False))
    belief = KernelMean.of_sample(kernel, np.array([[0.2], [0.3]]))
    z = np.linspace(-2, 2, 401)[:, np.newaxis]
    for transition in (ModelTransition(model, kernel), learnt):
        for control in (-0.5, 0.5):
            values = transition.predict(belief, z, np.array([control]))
            assert z[np.argmax(values), 0] == pytest.approx(0.25 + control, abs=0.1)


def test_controls_enter_a_run_one_per_step():
    x, y = uniform_sample(200, 0)
    model = AdditiveNoiseModel(lambda x, u: x + u, GaussianNoise(0.05))
    filter_ = hybrid(x, y, model)
    truth = np.array([-2.0, -1.0, 0.0, 1.0])
    beliefs = filter_.run(truth[:, np.newaxis], controls=[1.0, 1.0, 1.0])
    np.testing.assert_allclose(means(beliefs)[:, 0], truth, atol=0.35)
    np.testing.assert_allclose(modes(beliefs)[:, 0], truth, atol=0.35)


def test_a_prior_enters_the_first_update():
    x, y = uniform_sample(300, 0)
    prior = KernelMean.of_sample(GaussianKernel(0.3), np.full((5, 1), -1.0))
    filter_ = hybrid(x, y)
    assert filter_.start([0.0], prior).mean()[0] < -0.3 < filter_.start([0.0]).mean()[0]


def test_supervised_filter_follows_the_supervision():
    # the model is wrong by 0.5 per step; the supervision knows better, as in [kReg] section 5
    x, y = rotation_run(201, 1)
    states, observed = rotation_run(40, 2)
    kernel = GaussianKernel(0.1)
    rule = KernelBayesRule(kernel, kernel, x, y, 1e-4, 3e-3, 'thresholded')
    wrong = AdditiveNoiseModel(lambda z: rotate(z, ETA + 0.5), GaussianNoise(0.04))

    def supervise(step, belief, observation):
        return Supervision(observation[np.newaxis], states[[step]], weight=1.0)

    plain = KernelBayesFilter(ModelTransition(wrong, kernel), rule)
    supervised = KernelBayesFilter(ModelTransition(wrong, kernel), rule, supervise)
    errors = [
        np.mean((means(filter_.run(observed)) - states) ** 2) for filter_ in (plain, supervised)
    ]
    assert errors[1] < 0.5 * errors[0]


def test_an_outlier_leaves_the_filter_alive_and_is_logged(caplog):
    x, y = uniform_sample(200, 0)
    filter_ = hybrid(x, y)
    with caplog.at_level(logging.WARNING):
        beliefs = filter_.run(np.array([[1.0], [1e6], [1.0], [0.9]]))
    assert 'update left out' in caplog.text
    assert np.all(np.isfinite(means(beliefs)))
    assert means(beliefs)[-1, 0] == pytest.approx(0.9, abs=0.4)


@pytest.mark.parametrize('method', ['squared', 'thresholded'])
@pytest.mark.parametrize('transition', ['learnt', 'model'])
def test_low_rank_filter_follows_the_dense_one(transition, method):
    x, y = rotation_run(151, 1)
    _, observed = rotation_run(10, 2)
    kernel = GaussianKernel(0.2)
    model = AdditiveNoiseModel(rotate, GaussianNoise(0.04))

    def run(tolerance):
        rule = KernelBayesRule(
            kernel, kernel, x[:-1], y[:-1], 1e-3, 1e-2, method, tolerance=tolerance
        )
        learnt = LearntTransition(kernel, x[:-1], x[1:], 1e-3, tolerance=tolerance)
        given = ModelTransition(model, kernel, tolerance)
        chosen = learnt if transition == 'learnt' else given
        return means(KernelBayesFilter(chosen, rule).run(observed))

    np.testing.assert_allclose(run(1e-9), run(None), atol=2e-3)


def test_weights_that_are_not_normalised_differ_by_a_factor():
    x, y = uniform_sample(60, 0)
    normalised = hybrid(x, y)
    printed = KernelBayesFilter(normalised.transition, normalised.bayes_rule, normalise=False)
    observations = np.array([[0.3], [-0.4]])
    start, beliefs = printed.start(observations[0]), normalised.run(observations)
    assert start.weights.sum() != pytest.approx(1.0)
    np.testing.assert_allclose(start.normalised().weights, beliefs[0].weights)
    following = printed.step(beliefs[0], observations[1])
    np.testing.assert_allclose(following.normalised().weights, beliefs[1].weights)


GAPS = [None, [np.nan], np.ma.masked_all(1)]


@pytest.mark.parametrize('gap', GAPS, ids=['none', 'nan', 'masked'])
def test_a_missing_observation_is_a_step_without_one(gap):
    filter_ = hybrid(*uniform_sample(60, 0))
    known = filter_.run(np.array([[0.3]]))[0]
    expected = filter_.step(filter_.step(known, None), [0.8])
    found = filter_.run([np.array([0.3]), gap, np.array([0.8])])
    np.testing.assert_array_equal(found[2].weights, expected.weights)
    assert found[1].covariance()[0, 0] > found[0].covariance()[0, 0]


def test_a_run_may_begin_without_an_observation():
    x, y = uniform_sample(200, 0)
    filter_ = hybrid(x, y)
    observed = np.ma.masked_values([[-9.0], [0.5]], -9.0)
    blind = filter_.run(observed)[0]
    np.testing.assert_allclose(blind.mean(), x.mean(axis=0))
    prior = KernelMean.of_sample(GaussianKernel(0.3), np.full((5, 1), -1.0))
    assert filter_.run(observed, prior=prior)[0].mean()[0] == pytest.approx(-1.0, abs=0.1)
