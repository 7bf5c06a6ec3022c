"""Filters and smoother against the printed recursions, and against Kalman's on linear models."""

import logging

from kbr_localization.errors import KernelError
from kbr_localization.kernels import (
    AdditiveNoiseModel,
    GaussianKernel,
    GaussianNoise,
    KernelBayesFilter,
    KernelBayesRule,
    KernelBayesSmoother,
    KernelKalmanFilter,
    KernelMean,
    LinearKernel,
    means,
    ModelKernelMean,
    modes,
    MonteCarloTransition,
    NonparametricModel,
    Supervision,
)
from kbr_localization.kernels.rules import normalise, squared_bayes_rule
import numpy as np
import pytest
from state_space import autoregression, LinearGaussian

ETA, B, M = 0.4, 0.4, 8  # the oscillating rotation of [KBR] section 5.3 (b)
KERNEL = GaussianKernel(0.3)
MODEL = autoregression()
LINEAR = AdditiveNoiseModel(lambda x: 0.9 * x, GaussianNoise(0.3))


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


def pairs(size, seed=0, noise=0.2):
    """States of a broad law and their observations."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-4, 4, size=(size, 1))
    return x, x + np.sqrt(noise) * rng.normal(size=x.shape)


def rule_of(x, y, method='thresholded'):
    delta = 0.1 / len(x)
    return KernelBayesRule(KERNEL, KERNEL, x, y, 0.01 / len(x), delta, method)


def hybrid(x, y, method='thresholded', model=LINEAR):
    return KernelBayesFilter(model, rule_of(x, y, method))


def test_hybrid_filter_is_algorithm_1_written_out():
    x, y = pairs(40)
    rule = KernelBayesRule(KERNEL, KERNEL, x, y, 1e-3, 1e-4, method='squared')
    observations = np.array([[0.3], [-0.4], [0.8]])
    beliefs = KernelBayesFilter(LINEAR, rule).run(observations)
    gram_x, gram_y = KERNEL.gram(x), KERNEL.gram(y)
    transition = GaussianKernel(0.3 + 0.3).cross_gram(x, 0.9 * x)
    inverse = np.linalg.inv(gram_x + 40e-3 * np.eye(40))
    k = KERNEL.cross_gram(y, observations)
    alpha = normalise(np.linalg.solve(gram_y + 40e-3 * np.eye(40), k[:, 0]))
    np.testing.assert_allclose(beliefs[0].weights, alpha, rtol=1e-8, atol=1e-10)
    for t in (1, 2):
        mu = inverse @ (transition @ alpha)
        product = np.diag(mu) @ gram_y
        alpha = product @ np.linalg.solve(product @ product + 1e-4 * np.eye(40), mu * k[:, t])
        alpha = normalise(alpha)
        np.testing.assert_allclose(beliefs[t].weights, alpha, rtol=1e-7, atol=1e-9)


def test_weights_as_algorithm_1_prints_them_differ_by_a_factor_from_normalised_ones():
    normalised = hybrid(*pairs(60))
    printed = KernelBayesFilter(LINEAR, normalised.bayes_rule, normalise=False)
    observed = np.array([[0.3], [-0.4]])
    start, beliefs = printed.start(observed[0]), normalised.run(observed)
    assert start.weights.sum() != pytest.approx(1.0)
    np.testing.assert_allclose(start.normalised().weights, beliefs[0].weights)
    following = printed.step(beliefs[0], observed[1])
    np.testing.assert_allclose(following.normalised().weights, beliefs[1].weights)


def test_nonparametric_filter_is_equation_17_of_kbr_written_out():
    x, y = rotation_run(41, 0)
    now, later = x[:-1], x[1:]
    kernel = GaussianKernel(0.2)
    rule = KernelBayesRule(kernel, kernel, now, y[:-1], 1e-3, 1e-3, method='squared')
    filter_ = KernelBayesFilter(NonparametricModel(kernel, kernel, now, later, 1e-3), rule)
    belief = filter_.start(y[0])
    following = filter_.step(belief, y[1])
    inverse = np.linalg.inv(kernel.gram(now) + 40e-3 * np.eye(40))
    transfer = kernel.cross_gram(now, later)
    mu = inverse @ transfer @ inverse @ kernel.gram(now) @ belief.weights
    k = kernel.cross_gram(y[:-1], y[[1]])[:, 0]
    expected = normalise(squared_bayes_rule(kernel.gram(y[:-1]), mu, k, 1e-3))
    np.testing.assert_allclose(following.weights, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize('draws', [None, 7])
def test_the_kernel_monte_carlo_filter_predicts_by_herded_points_that_are_moved(draws):
    x, _ = pairs(40)
    belief = KernelMean(KERNEL, x, np.random.default_rng(0).normal(0.05, 0.05, 40))
    transition = MonteCarloTransition(lambda points, rng, u: u * points, draws)
    moved = KernelMean.of_sample(KERNEL, -0.5 * belief.herd(draws or 40))
    np.testing.assert_allclose(transition.predict(belief, x, -0.5), moved(x), rtol=1e-12)


def test_a_control_moves_the_prediction_of_model_and_learnt_transition():
    rng = np.random.default_rng(0)
    kernel = GaussianKernel(0.1)
    model = AdditiveNoiseModel(lambda x, u: x + u, GaussianNoise(0.01))
    x, u = rng.uniform(-2, 2, size=(400, 1)), rng.choice([-0.5, 0.5], size=(400, 1))
    x_next = x + u + 0.1 * rng.normal(size=(400, 1))
    both = kernel.on(0) * GaussianKernel(0.05, normalised=False).on(1)
    learnt = NonparametricModel(both, kernel, np.hstack([x, u]), x_next, 1e-5)
    belief = KernelMean.of_sample(kernel, np.array([[0.2], [0.3]]))
    z = np.linspace(-2, 2, 401)[:, np.newaxis]
    for transition in (model, learnt):
        for control in (-0.5, 0.5):
            values = transition.predict(belief, z, np.array([control]))
            assert z[np.argmax(values), 0] == pytest.approx(0.25 + control, abs=0.1)
    with pytest.raises(KernelError, match='belief: expected a kernel mean of Gaussian'):
        learnt.predict(KernelMean.of_sample(KERNEL, x), z, u[0])


def test_controls_enter_a_run_one_per_step():
    model = AdditiveNoiseModel(lambda x, u: x + u, GaussianNoise(0.05))
    truth = np.array([-2.0, -1.0, 0.0, 1.0])
    beliefs = hybrid(*pairs(200), model=model).run(truth[:, np.newaxis], controls=[1.0, 1.0, 1.0])
    np.testing.assert_allclose(means(beliefs)[:, 0], truth, atol=0.35)
    np.testing.assert_allclose(modes(beliefs)[:, 0], truth, atol=0.35)


def test_a_prior_enters_the_first_update():
    prior = KernelMean.of_sample(KERNEL, np.full((5, 1), -1.0))
    filter_ = hybrid(*pairs(300))
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

    filters = KernelBayesFilter(wrong, rule), KernelBayesFilter(wrong, rule, supervise)
    errors = [np.mean((means(filter_.run(observed)) - states) ** 2) for filter_ in filters]
    assert errors[1] < 0.5 * errors[0]


@pytest.mark.parametrize('at', [0, 1])
def test_an_outlier_leaves_the_filter_alive_and_is_logged(caplog, at):
    observed = np.array([[1.0], [1.0], [1.0], [0.9]])
    observed[at] = 1e6
    with caplog.at_level(logging.WARNING):
        beliefs = hybrid(*pairs(200)).run(observed)
    assert 'update left out' in caplog.text
    assert np.all(np.isfinite(means(beliefs)))
    assert means(beliefs)[-1, 0] == pytest.approx(0.9, abs=0.4)


@pytest.mark.parametrize('method', ['squared', 'thresholded'])
def test_low_rank_filter_follows_the_dense_one(method):
    x, y = rotation_run(151, 1)
    _, observed = rotation_run(10, 2)
    kernel = GaussianKernel(0.2)

    def run(tolerance):
        rule = KernelBayesRule(kernel, kernel, x[:-1], y[:-1], 1e-3, 1e-2, method, tolerance)
        learnt = NonparametricModel(kernel, kernel, x[:-1], x[1:], 1e-3, tolerance=tolerance)
        return means(KernelBayesFilter(learnt, rule).run(observed))

    np.testing.assert_allclose(run(1e-9), run(None), atol=2e-3)


@pytest.mark.parametrize('gap', [None, [np.nan], np.ma.masked_all(1)], ids=str)
def test_a_missing_observation_is_a_step_without_one(gap):
    filter_ = hybrid(*pairs(60))
    known = filter_.run(np.array([[0.3]]))[0]
    expected = filter_.step(filter_.step(known, None), [0.8])
    found = filter_.run([np.array([0.3]), gap, np.array([0.8])])
    np.testing.assert_array_equal(found[2].weights, expected.weights)
    assert found[1].covariance()[0, 0] > found[0].covariance()[0, 0]


def test_a_run_may_begin_without_an_observation():
    x, y = pairs(200)
    observed = np.ma.masked_values([[-9.0], [0.5]], -9.0)
    np.testing.assert_allclose(hybrid(x, y).run(observed)[0].mean(), x.mean(axis=0))
    prior = KernelMean.of_sample(KERNEL, np.full((5, 1), -1.0))
    first = hybrid(x, y).run(observed, prior=prior)[0]
    assert first.mean()[0] == pytest.approx(-1.0, abs=0.1)


def backward(size, seed=7):
    x, _ = pairs(size, seed)
    return rule_of(x, LINEAR.sample(x, np.random.default_rng(seed)))


def test_the_backward_pass_turns_kalman_into_rauch_tung_striebel():
    model = autoregression(r=0.6)
    _, y = model.simulate(30, np.random.default_rng(3))
    exact, variances = model.rts(y)
    filtered = [
        ModelKernelMean(KERNEL, m[np.newaxis], np.ones(1), GaussianNoise(p))
        for m, p, *_ in zip(*model.kalman(y), strict=True)
    ]
    errors = []
    for size in (100, 400):
        smoother = KernelBayesSmoother(hybrid(*pairs(20)), backward(size))
        smoothed = smoother.smooth(filtered)[:-1]
        errors.append(np.sqrt(np.mean((means(smoothed) - exact[:-1]) ** 2)))
    assert errors[1] < min(0.5 * errors[0], 0.2 * exact.std())
    found = [belief.covariance()[0, 0] for belief in smoothed]
    assert np.mean(found) == pytest.approx(np.mean(variances[:-1]), rel=0.2)


PLANAR = LinearGaussian(
    np.array([[0.9, 0.3], [-0.3, 0.9]]),
    np.diag([0.1, 0.2]),
    np.array([[1.0, 0.5]]),
    np.array([[0.3]]),
    np.zeros(2),
    np.eye(2),
)


def kernel_kalman(model, size):
    x, y = model.simulate(size + 1, np.random.default_rng(0))
    kernel, kappa = LinearKernel(), float(model.r[0, 0])
    return KernelKalmanFilter(kernel, kernel, x[:-1], x[1:], y[1:], 1e-6, kappa)


def ridge_model(model, size, epsilon=1e-6):
    """Return the linear model that ridge regression finds in the same run."""
    x, y = model.simulate(size + 1, np.random.default_rng(0))
    before, after, y = x[:-1], x[1:], y[1:]
    ridge = size * epsilon * np.eye(x.shape[1])
    a = np.linalg.solve(before.T @ before + ridge, before.T @ after).T
    c = np.linalg.solve(after.T @ after + ridge, after.T @ y).T
    residual, spread = after - before @ a.T, after - after.mean(axis=0)
    q, p = residual.T @ residual / size, spread.T @ spread / size
    return LinearGaussian(a, q, c, model.r, after.mean(axis=0), p)


@pytest.mark.parametrize('model', [MODEL, PLANAR], ids=['scalar', 'planar'])
def test_with_linear_kernels_it_is_the_kalman_filter_of_the_regressions(model):
    _, y = model.simulate(20, np.random.default_rng(5))
    beliefs = kernel_kalman(model, 60).run(y)
    expected, covariances, *_ = ridge_model(model, 60).kalman(y)
    np.testing.assert_allclose(means(beliefs), expected, rtol=1e-5, atol=1e-6)
    found = np.array([belief.covariance() for belief in beliefs])
    np.testing.assert_allclose(found, covariances, rtol=1e-4, atol=1e-6)


def test_a_first_sample_of_states_is_the_kalman_belief_before_the_first_observation():
    first = np.random.default_rng(1).normal([1.0, -1.0], 0.2, size=(50, 2))
    belief = kernel_kalman(PLANAR, 60).start(first)
    np.testing.assert_allclose(belief.mean(), first.mean(axis=0), rtol=1e-3)
    np.testing.assert_allclose(belief.covariance(), np.cov(first.T, bias=True), atol=1e-3)


def test_a_missing_observation_updates_no_kalman_belief():
    filter_ = kernel_kalman(PLANAR, 60)
    _, y = PLANAR.simulate(3, np.random.default_rng(0))
    first = filter_.update(filter_.start(), y[0])
    expected = filter_.update(filter_.predict(filter_.predict(first)), y[2])
    found = filter_.run([y[0], None, y[2]])[2]
    np.testing.assert_array_equal(found.weights, expected.weights)
