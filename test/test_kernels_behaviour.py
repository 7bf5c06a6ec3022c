"""What the toolbox does at the edges: rounding, no mass, gaps, outliers, bad arguments."""

from functools import partial
import logging

from kbr_localization import kernels as k
from kbr_localization.errors import KernelError
from kbr_localization.kernels.linalg import RegularisedCholesky
from kbr_localization.kernels.rules import (
    BAYES_RULES,
    regularise,
    regularised_bayes_rule,
)
from kbr_localization.kernels.rules import (
    thresholded_bayes_rule as pkbr,
)
from kbr_localization.kernels.selection import filter_score, point_score
import numpy as np
import pytest
import scipy.stats

KERNEL, PLAIN = k.GaussianKernel(0.3), k.GaussianKernel(0.5, normalised=False)
MODEL = k.AdditiveNoiseModel(lambda x: 0.9 * x, k.GaussianNoise(0.3))
Y = np.random.default_rng(0).normal(size=(80, 2))


def pairs(size=200, seed=0):
    """States of a broad law and their observations."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-4, 4, size=(size, 1))
    return x, x + np.sqrt(0.2) * rng.normal(size=x.shape)


def rule(x, y, method='thresholded', kernel=KERNEL, epsilon=1e-4, delta=1e-3, tolerance=None):
    return k.KernelBayesRule(kernel, kernel, x, y, epsilon, delta, method, tolerance)


def hybrid(size=200, model=MODEL, **settings):
    return k.KernelBayesFilter(model, rule(*pairs(size)), **settings)


# linear algebra


def test_a_ridge_is_raised_by_tens_until_the_factorisation_succeeds(caplog):
    gram = np.diag([1.0, 1.0, -1e-8])
    factor = RegularisedCholesky(gram, 1e-10, name='delta')
    assert factor.ridge == pytest.approx(1e-7)
    assert 'delta raised from 1e-10 to 1e-07' in caplog.text
    residual = (gram + 1e-7 * np.eye(3)) @ factor.solve(np.ones(3))
    np.testing.assert_allclose(residual, 1.0, rtol=1e-10)


@pytest.mark.parametrize('kernel', [PLAIN, k.MaternKernel(1.0, 0.5)], ids=repr)
@pytest.mark.parametrize('tolerance', [1e-1, 1e-6])
def test_what_a_low_rank_leaves_is_positive_semidefinite_with_the_reported_diagonal(
    kernel, tolerance
):
    low = k.incomplete_cholesky(kernel, Y, tolerance)
    residual, scale = kernel.gram(Y) - low.factor @ low.factor.T, kernel.diagonal(Y)[0]
    np.testing.assert_allclose(np.diag(residual), low.residual, atol=1e-12 * scale)
    assert np.linalg.eigvalsh(residual)[0] > -1e-11 * scale
    assert low.residual.sum() <= tolerance * 80 * scale
    assert low.rank == len(set(low.pivots.tolist())) <= 80
    twice = np.concatenate([Y[:5], Y[:5]])
    assert k.incomplete_cholesky(kernel, twice, 0.0).rank == 5


def test_differences_of_variance_and_dependence_without_correlation_are_seen():
    x, z, e = np.random.default_rng(0).normal(size=(3, 150, 1))
    assert k.two_sample_test(KERNEL, x, 2.0 * z, 199).p_value == 1 / 200
    dependent = x**2 + 0.1 * e
    assert abs(np.corrcoef(x[:, 0], dependent[:, 0])[0, 1]) < 0.25
    assert k.independence_test(KERNEL, KERNEL, x, dependent, 199).p_value == 1 / 200
    # ties of binary pairs count
    binary = np.repeat([[0.0], [1.0]], 50, axis=0), np.tile([[0.0], [1.0]], (50, 1))
    assert k.independence_test(KERNEL, KERNEL, *binary, 200).p_value == 1.0


# kernel means

MODE_KERNELS = [
    3.0 * k.GaussianKernel([[0.4, 0.1], [0.1, 0.3]], normalised=False),
    k.RationalQuadraticKernel(0.4),
    k.MaternKernel(0.4, smoothness=1.5),
    k.GaussianKernel(0.4).on(0) * k.GaussianKernel(0.3).on(1),
]


@pytest.mark.parametrize('kernel', MODE_KERNELS, ids=repr)
def test_mode_is_the_highest_point_of_a_fine_grid(kernel):
    weights = np.random.default_rng(0).normal(0.05, 0.1, size=80)
    mean = k.KernelMean(kernel, Y, weights + (1 - weights.sum()) / 80)
    axis = np.linspace(-3.0, 3.0, 121)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    mode = mean.mode(starts=12)
    assert mean([mode])[0] >= mean(grid).max() * (1 - 1e-9)
    gradient = mean(mode + 1e-6 * np.eye(2)) - mean(mode - 1e-6 * np.eye(2))
    np.testing.assert_allclose(gradient / 2e-6, 0.0, atol=1e-6)


@pytest.mark.parametrize('unit', [1e-4, 1e5])
def test_a_mode_does_not_depend_on_the_unit_of_the_points(unit):
    points = np.array([[0.0, 0.0], [1.0, 0.0], [0.4, 0.9]])
    radial = k.GaussianKernel(unit**2)
    expected = k.KernelMean.of_sample(radial, unit * points).mode() / unit
    for kernel in (radial.on(0) * radial.on(1), radial.on(0, 1) + radial):
        mode = k.KernelMean.of_sample(kernel, unit * points).mode() / unit
        np.testing.assert_allclose(mode, expected, atol=1e-4)


def test_modes_on_rotations_and_on_the_circle():
    rng = np.random.default_rng(1)
    points = scipy.stats.special_ortho_group(3, seed=rng).rvs(20)
    mean = k.KernelMean(k.TraceKernel(), points, rng.dirichlet(np.ones(20)))
    mode = mean.mode()
    candidates = scipy.stats.special_ortho_group(3, seed=rng).rvs(5000)
    assert mean(mode[np.newaxis])[0] >= mean(candidates).max()
    np.testing.assert_allclose(mode @ mode.T, np.eye(3), atol=1e-12)
    angles = np.array([[np.pi - 0.1], [-np.pi + 0.1]])
    mean = k.KernelMean.of_sample(k.WrappedNormalKernel(0.3), angles)
    assert abs(abs(mean.mode()[0]) - np.pi) < 1e-3


def test_a_covariance_is_never_indefinite():
    # the weighted scatter is negative
    mean = k.KernelMean(KERNEL, [[0.0], [1.0], [5.0]], [1.0, 1.0, -0.5])
    assert mean.covariance()[0, 0] == 0.0


def test_herding_beats_sampling():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(500, 2))
    mean = k.KernelMean.of_sample(k.GaussianKernel(1.0), points)
    chosen = [mean.herd(20), *(points[rng.choice(500, 20)] for _ in range(50))]
    apart = [k.KernelMean.of_sample(mean.kernel, some).mmd(mean) for some in chosen]
    assert apart[0] < min(apart[1:])


def test_draws_move_noisy_points_as_the_closed_form_does():
    points, weights = np.array([[-1.0], [0.5], [2.0]]), np.array([0.7, -0.2, 0.5])
    noisy = k.ModelKernelMean(KERNEL, points, weights, k.GaussianNoise(0.2))
    moved = k.GaussianNoise(0.81 * 0.2 + 0.3)  # of a linear map it is again normal
    expected = k.ModelKernelMean(KERNEL, 0.9 * points, weights, moved)(points)
    pushed = k.MonteCarloModel(MODEL.sample, 20_000, 3).push(noisy)
    np.testing.assert_allclose(pushed(points), expected, atol=0.02)


# filters


def rotation_run(size, seed, sigma=0.2):
    """Simulate the oscillating rotation of [KBR] section 5.3 (b)."""
    rng = np.random.default_rng(seed)
    x = np.ones((size, 2))
    for t in range(1, size):
        x[t] = rotate(x[[t - 1]])[0] + sigma * rng.normal(size=2)
    return x, x + sigma * rng.normal(size=x.shape)


def rotate(x, turn=0.4):
    angle = np.arctan2(x[:, 1], x[:, 0]) + turn
    radius = 1.0 + 0.4 * np.sin(8 * angle)
    return radius[:, np.newaxis] * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def test_controls_move_model_and_learnt_transition_one_per_step():
    rng, truth = np.random.default_rng(0), np.array([-2.0, -1.0, 0.0, -1.0])
    x, u = rng.uniform(-4, 4, size=(400, 1)), rng.choice([-1.0, 1.0], size=(400, 1))
    both = KERNEL.on(0) * k.GaussianKernel(0.05, normalised=False).on(1)
    after = x + u + 0.2 * rng.normal(size=x.shape)
    learnt = k.NonparametricModel(both, KERNEL, np.hstack([x, u]), after, 1e-5)
    model = k.AdditiveNoiseModel(lambda x, u: x + u, k.GaussianNoise(0.05))
    for transition in (model, learnt):
        beliefs = hybrid(model=transition).run(
            truth[:, np.newaxis], controls=np.diff(truth)[:, np.newaxis]
        )
        for found in (k.means(beliefs), k.modes(beliefs)):
            np.testing.assert_allclose(found[:, 0], truth, atol=0.35)


def test_supervised_filter_follows_the_supervision():
    # the model is wrong by 0.5 per step; the supervision knows better, as in [kReg] section 5
    states, observed = rotation_run(40, 2)
    bayes = rule(*rotation_run(201, 1), kernel=k.GaussianKernel(0.1), delta=3e-3)
    wrong = k.AdditiveNoiseModel(lambda z: rotate(z, 0.9), k.GaussianNoise(0.04))

    def supervise(step, belief, observation):
        return k.Supervision(observation[np.newaxis], states[[step]], weight=1.0)

    filters = k.KernelBayesFilter(wrong, bayes), k.KernelBayesFilter(wrong, bayes, supervise)
    errors = [np.mean((k.means(each.run(observed)) - states) ** 2) for each in filters]
    assert errors[1] < 0.5 * errors[0]


@pytest.mark.parametrize('at', [0, 1])
def test_an_outlier_leaves_the_filter_alive_and_is_logged(caplog, at):
    observed = np.array([[1.0], [1.0], [1.0], [0.9]])
    observed[at] = 1e6
    with caplog.at_level(logging.WARNING):
        beliefs = hybrid().run(observed)
    assert 'update skipped' in caplog.text
    assert np.all(np.isfinite(k.means(beliefs)))
    assert k.means(beliefs)[-1, 0] == pytest.approx(0.9, abs=0.4)


@pytest.mark.parametrize('method', BAYES_RULES)
def test_low_rank_filter_follows_the_dense_one(method):
    (x, y), (_, observed) = rotation_run(151, 1), rotation_run(10, 2)
    kernel = k.GaussianKernel(0.2)

    def run(tolerance):
        bayes = rule(x[:-1], y[:-1], method, kernel, 1e-3, 1e-2, tolerance)
        learnt = k.NonparametricModel(kernel, kernel, x[:-1], x[1:], 1e-3, tolerance)
        return k.means(k.KernelBayesFilter(learnt, bayes).run(observed))

    np.testing.assert_allclose(run(1e-9), run(None), atol=2e-3)


@pytest.mark.parametrize('gap', [None, [np.nan], np.ma.masked_all(1)], ids=str)
def test_a_missing_observation_is_a_step_without_one(gap):
    filter_ = hybrid(60)
    known = filter_.run(np.array([[0.3]]))[0]
    expected = filter_.step(filter_.step(known, None), [0.8])
    found = filter_.run([np.array([0.3]), gap, np.array([0.8])])
    np.testing.assert_array_equal(found[2].weights, expected.weights)
    assert found[1].covariance()[0, 0] > found[0].covariance()[0, 0]
    # a run may begin with one
    first = filter_.run([gap, np.array([0.8])])[0]
    np.testing.assert_allclose(first.mean(), pairs(60)[0].mean(axis=0))


def test_a_prior_enters_the_first_update_and_stands_without_one():
    prior, filter_ = k.KernelMean.of_sample(KERNEL, np.full((5, 1), -1.0)), hybrid(300)
    assert filter_.start([0.0], prior).mean()[0] < -0.3 < filter_.start([0.0]).mean()[0]
    assert filter_.start(None, prior).mean()[0] == pytest.approx(-1.0, abs=0.1)


# cross-validation


@pytest.mark.parametrize('rng', [None, np.random.default_rng(0)])
def test_folds_cover_the_sample_once(rng):
    folds = k.k_fold(11, 3, rng)
    whole = np.sort(np.concatenate([validation for _, validation in folds]))
    np.testing.assert_array_equal(whole, np.arange(11))
    for training, validation in folds:
        assert sorted({*training, *validation}) == list(range(11))
        assert training.size + validation.size == 11
        assert rng or np.all(np.diff(validation) == 1)


def make_rule(x, y, width, delta=1e-3):
    return rule(x, y, kernel=k.GaussianKernel(width, normalised=False), epsilon=1e-3, delta=delta)


def make_filter(x, y, width, delta):
    bayes = make_rule(x[:-1], y[:-1], width, delta)
    learnt = k.NonparametricModel(bayes.kernel_x, bayes.kernel_x, x[:-1], x[1:], 1e-3)
    return k.KernelBayesFilter(learnt, bayes)


@pytest.mark.parametrize(
    ('score', 'make', 'widths', 'delta'),
    [
        (point_score, make_rule, [1e-4, 0.1, 1e4], 1e-3),
        (filter_score, make_filter, [1e-4, 0.3, 100.0], 0.1),
    ],
    ids=['point', 'filter'],
)
def test_two_fold_search_finds_the_width_that_is_neither_tiny_nor_huge(score, make, widths, delta):
    angle, rng = 0.3 * np.arange(120), np.random.default_rng(0)
    x = np.stack([np.cos(angle), np.sin(angle)], axis=1) + 0.05 * rng.normal(size=(120, 2))
    y = x + 0.2 * rng.normal(size=x.shape)
    grid = {'width': widths, 'delta': [delta]}
    result = k.grid_search(partial(score, x, y, make), grid, k.k_fold(120, 2))
    assert result.best == {'width': widths[1], 'delta': delta}
    assert result.scores.shape == (3, 2)
    assert result.mean_scores.min() < 0.5 * np.mean((x - x.mean(axis=0)) ** 2)


def test_a_setting_that_fails_is_infinitely_bad_and_only_a_total_failure_raises():
    score = partial(point_score, *pairs(20), make_rule)
    result = k.grid_search(score, {'width': [-1.0, 0.1]}, k.k_fold(20, 2))
    assert np.all(np.isinf(result.scores[0]))
    assert result.best == {'width': 0.1}
    with pytest.raises(KernelError, match='covariance: expected positive'):
        k.grid_search(score, {'width': [-1.0, -2.0]}, k.k_fold(20, 2))


# bad arguments are refused by name: what was expected, and what was given

K = k.GaussianKernel(1.0)
X = np.random.default_rng(0).normal(size=(9, 1))
GRAM, MU, MEAN = K.gram(X), np.full(9, 1 / 9), k.KernelMean.of_sample(K, X)
RULE, LEARNT = rule(X, X, kernel=K), k.NonparametricModel(K, K, X, X, 1e-3)
OTHER = k.KernelMean.of_sample(2.0 * K, X)
STEPS = k.KernelBayesFilter(LEARNT, RULE)
NOISY = k.ModelKernelMean(K, X, MU, k.GaussianNoise(0.2))
TABLE, TURN = k.PrecomputedKernel(np.tanh(Y @ Y.T + 1.0)), k.TraceKernel()
CANCELLING = k.KernelMean(K, X[:8], np.tile([1.0, -1.0], 4))
SKEW = GRAM + np.triu(np.full((9, 9), 0.1), 1)


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        (lambda: k.GaussianKernel([[1.0, 2.0], [2.0, 1.0]]), 'covariance: .* got -1'),
        (lambda: k.MaternKernel(1.0, 41.0), 'smoothness: expected at most 40'),
        (lambda: -1.0 * K, 'factor: expected a finite number > 0, got -1'),
        (lambda: K.on(3).gram(X), r'x: expected coordinates \(3,\)'),
        (lambda: K.gram([[1.0, np.nan]]), 'x: expected finite numbers, got 1'),
        (lambda: TURN.gram(2.0 * np.eye(3)[None]), 'x: expected rotation matrices, got'),
        (lambda: k.PrecomputedKernel([[1.0, 0.0], [0.5, 1.0]]), 'matrix: expected a symmetric'),
        (lambda: TABLE.gram([[80.0]]), r'x: expected row numbers in 0\.\.79'),
        (lambda: k.incomplete_cholesky(TABLE, TABLE.points(), 1e-9), 'gram: expected a positive'),
        (lambda: k.median_distance(np.ones((5, 2))), 'points: expected at least two different'),
        (
            lambda: k.GaussianNoise(1.0).conditional_kernel_mean(k.MaternKernel(1.0)),
            'conjugate to GaussianNoise',
        ),
        (lambda: MEAN.inner(OTHER), 'other: expected a kernel mean of'),
        (
            lambda: k.AdditiveNoiseModel(lambda x: x[:1], k.CauchyNoise(1.0)).images(X),
            'function.*: expected shape',
        ),
        (lambda: MODEL.push(NOISY), 'prior: expected a KernelMean'),
        (lambda: k.GaussianKernel(1e-6).gram(np.ones((2, 1200))), 'a float in dimension 1200, '),
        (lambda: regularise(SKEW, 1.0), r'gram: expected a symmetric matrix.* up to 0\.1:'),
        (CANCELLING.mean, 'weights: expected a positive sum'),
        (k.KernelMean(K, X, -MU).mode, 'a kernel mean that is positive'),
        (lambda: pkbr(np.ones((9, 8)), MU, MU, 1.0), 'gram_y: expected a square'),
        (lambda: regularised_bayes_rule(GRAM, MU[:7], MU, 1.0, 0.0), 'supervision_weight: exp'),
        (lambda: rule(X, X, method='cubed'), "got 'cubed'"),
        (lambda: LEARNT.predict(MEAN, X, [1.0]), 'belief: expected a kernel mean of points'),
        (lambda: STEPS.run(X[:3], controls=X[:1]), 'controls: expected 2, one between two'),
        (lambda: k.squared_mmd(K, X[:1], X), 'x, y: expected two samples'),
        (lambda: k.k_fold(5, 6), r'folds: expected 2..5 for 5 points, got 6'),
    ],
)
def test_a_bad_argument_is_refused_by_name(make, message):
    with pytest.raises(KernelError, match=message):
        make()
