"""The toolbox against references: plain linear algebra, quadrature, brute force, Kalman."""

from functools import reduce
import itertools
import math

from kbr_localization import kernels as k
from kbr_localization.kernels.kernels import Covariance, squared_distances
from kbr_localization.kernels.manifold import CircularKernel, wrapped_normal
from kbr_localization.kernels.rules import (
    BAYES_RULES,
    conditional_mean,
    importance_weighted_bayes_rule,
    nonparametric_sum_rule,
    normalise,
    off_map_bayes_rule,
    regularise,
)
from kbr_localization.kernels.selection import kernel_mean_score, posterior_score
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.spatial.distance import pdist
import scipy.special
import scipy.stats
from state_space import autoregression, LinearGaussian

GAUSSIAN, NARROW = k.GaussianKernel(0.4), k.GaussianKernel(0.3)
N, EPSILON, DELTA = 40, 1e-3, 1e-4
RIDGE = N * EPSILON * np.eye(N)
STEP = k.AdditiveNoiseModel(lambda x: 0.9 * x, k.GaussianNoise(0.2))


class Problem:
    """Pairs of states and observations, a signed prior, and three observations."""

    def __init__(self, seed=0, size=N):
        rng = np.random.default_rng(seed)
        self.x, self.z = rng.normal(size=(size, 2)), rng.normal(size=(5, 2))
        self.y = np.sin(self.x) + 0.2 * rng.normal(size=(size, 2))
        self.gamma = rng.dirichlet(np.ones(30))
        self.gamma[:2] += [-0.05, 0.05]
        self.prior = k.KernelMean(NARROW, rng.normal(0.3, 0.7, size=(30, 2)), self.gamma)
        self.gram_x, self.gram_y = NARROW.gram(self.x), GAUSSIAN.gram(self.y)
        self.k_y = GAUSSIAN.cross_gram(self.y, rng.normal(size=(3, 2)))
        self.cross = NARROW.cross_gram(self.x, self.prior.points)
        inverse = np.linalg.inv(self.gram_x + size * EPSILON * np.eye(size))
        self.inverse, self.mu = inverse, inverse @ self.cross @ self.gamma

    def rule(self, method='squared', delta=DELTA):
        return k.KernelBayesRule(NARROW, GAUSSIAN, self.x, self.y, EPSILON, delta, method)

    def learnt(self):
        return k.NonparametricModel(NARROW, GAUSSIAN, self.x, self.y, EPSILON)


def plain_squared(gram, mu, k_y, delta):
    product = np.diag(mu) @ gram
    return product @ np.linalg.solve(product @ product + delta * np.eye(len(mu)), (mu * k_y.T).T)


def plain_thresholded(gram, mu, k_y, delta):
    kept, weights = np.flatnonzero(mu > 0), np.zeros(k_y.shape)
    ridge = delta * np.diag(1.0 / mu[kept])
    weights[kept] = np.linalg.solve(gram[np.ix_(kept, kept)] + ridge, k_y[kept])
    return weights


PLAIN = {'squared': plain_squared, 'thresholded': plain_thresholded}


# what the toolbox finds, and the printed formula, of one `Problem` each


def sum_rule(p):
    regularised = regularise(p.gram_x, EPSILON)
    found = conditional_mean(regularised, p.cross) @ p.gamma
    return [found, nonparametric_sum_rule(regularised, p.cross @ p.gamma)], [p.mu, p.mu]


def kernel_abc(p):
    laws = (lambda n, rng: p.x), (lambda x, rng: p.y)
    found = k.KernelABC(*laws, N, EPSILON, NARROW, GAUSSIAN).posterior(p.z[0]).weights
    return found, np.linalg.solve(p.gram_y + RIDGE, GAUSSIAN.cross_gram(p.y, p.z[:1])[:, 0])


def iw_kbr(p):
    half = np.diag(np.sqrt(np.maximum(p.mu, 0.0)))
    plain = half @ np.linalg.solve(half @ p.gram_y @ half + DELTA * np.eye(N), half @ p.k_y)
    return importance_weighted_bayes_rule(p.gram_y, N * p.mu, p.k_y, DELTA), plain


def kbr_figure_1(p):
    """With n times our mu, and n^2 times our delta."""
    a = np.diag(N * p.mu) @ p.gram_y
    y = p.y[0] + 0.1
    k_y = GAUSSIAN.cross_gram(p.y, [y])[:, 0]
    printed = a @ np.linalg.solve(a @ a + N**2 * DELTA * np.eye(N), N * p.mu * k_y)
    return p.rule().posterior(p.prior, y).weights, printed


def model_prior(p):
    prior = k.ModelKernelMean(NARROW, p.z, np.full(5, 0.2), k.GaussianNoise(0.64))
    mu = p.inverse @ k.GaussianKernel(0.3 + 0.64).cross_gram(p.x, p.z).mean(axis=1)
    observation = k.KernelMean.of_sample(GAUSSIAN, p.z)
    k_y = GAUSSIAN.cross_gram(p.y, p.z).mean(axis=1)
    plain = [plain_squared(p.gram_y, mu, each, DELTA) for each in (k_y, k_y)]
    given = (p.rule().posterior(law, observation) for law in (prior, prior(p.x)))
    return [belief.weights for belief in given], plain


def learnt_then_model(p):
    """[MbKSR] equations 12 and 23."""
    found = STEP.push(p.learnt().push(p.prior))(p.z)
    return found, k.GaussianKernel(0.4 + 0.2).cross_gram(p.z, 0.9 * p.y) @ p.mu


def model_then_learnt(p):
    """[MbKSR] equation 24."""
    at_sample = k.GaussianKernel(0.3 + 0.2).cross_gram(p.x, 0.9 * p.prior.points) @ p.gamma
    return p.learnt().push(STEP.push(p.prior)).weights, p.inverse @ at_sample


def algorithm_1(p):
    """Of [MbKSR]: weights divided by their sum after each step, and as printed."""
    observed = p.y[:3] + 0.1
    k_y, start = GAUSSIAN.cross_gram(p.y, observed), np.linalg.inv(p.gram_y + RIDGE)
    transition = k.GaussianKernel(0.3 + 0.2).cross_gram(p.x, 0.9 * p.x)
    found, plain = [], []
    for scaled in (normalise, np.asarray):
        alpha = scaled(start @ k_y[:, 0])
        for t in range(3):
            if t:
                mu = p.inverse @ (transition @ alpha)
                alpha = scaled(plain_squared(p.gram_y, mu, k_y[:, t], DELTA))
            plain.append(alpha)
        filter_ = k.KernelBayesFilter(STEP, p.rule(), normalise=scaled is normalise)
        found += [belief.weights for belief in filter_.run(observed)]
    return found, plain


def kernel_monte_carlo(p):
    plain = []
    found = []
    for draws in (None, 7):
        transition = k.MonteCarloTransition(lambda points, rng, u: u * points, draws)
        found.append(transition.predict(p.prior, p.x, -0.5))
        moved = -0.5 * p.prior.herd(draws or 30)
        plain.append(NARROW.cross_gram(p.x, moved).mean(axis=1))
    return found, plain


def chain_rule(p):
    joint, at = p.learnt().joint(p.prior), np.concatenate([p.z, p.z[::-1]], axis=1)
    parts = NARROW.cross_gram(p.z, p.x), GAUSSIAN.cross_gram(p.z[::-1], p.y)
    return joint(at), np.prod(parts, axis=0) @ p.mu


def gaussian_mixture(p):
    """<m_P, m_P> of a mixture is a double sum of normal densities."""
    covariances, pi = [0.3 * np.eye(2), np.diag([0.5, 0.1])], np.array([0.4, 0.6])
    noises = [k.GaussianNoise(c) for c in covariances]
    parts = [k.ModelKernelMean(GAUSSIAN, p.z[[i]], pi[[i]], noises[i]) for i in range(2)]
    noise = k.MixtureNoise(pi, noises, p.z[:2])
    mixture = k.ModelKernelMean(GAUSSIAN, np.zeros((1, 2)), [1.0], noise)
    plain = 0.0
    for i, j in itertools.product(range(2), repeat=2):
        law = scipy.stats.multivariate_normal(
            p.z[j], 0.4 * np.eye(2) + covariances[i] + covariances[j]
        )
        plain += pi[i] * pi[j] * law.pdf(p.z[i])
    return [mixture.inner(mixture), *mixture(p.z)], [plain, *sum(part(p.z) for part in parts)]


def inner_products(p):
    other = k.KernelMean(NARROW, p.x, p.mu)
    weights, points = np.append(p.gamma, -p.mu), np.concatenate([p.prior.points, p.x])
    apart = weights @ NARROW.gram(points) @ weights
    found = [p.prior.inner(other), p.prior.mmd(other) ** 2]
    return found, [p.gamma @ p.cross.T @ p.mu, apart]


def scores(p):
    """Distances in the RKHS of each posterior, and of their average, from held out states."""
    part, held = np.arange(30), np.arange(30, N)
    rule = k.KernelBayesRule(NARROW, GAUSSIAN, p.x[part], p.y[part], EPSILON, DELTA)
    prior, states = k.KernelMean.of_sample(NARROW, rule.x), p.x[held]
    weights = [rule.posterior(prior, p.y[j]).weights for j in held]
    beliefs = [k.KernelMean(NARROW, rule.x, w) for w in [*weights, np.mean(weights, axis=0)]]
    laws = [k.KernelMean.of_sample(NARROW, at) for at in [*states[:, np.newaxis], states]]
    *apart, average = (a.mmd(b) ** 2 for a, b in zip(beliefs, laws, strict=True))
    given = p.x, p.y, lambda x, y: k.KernelBayesRule(NARROW, GAUSSIAN, x, y, EPSILON, DELTA)
    found = [score(*given, part, held) for score in (posterior_score, kernel_mean_score)]
    return found, [np.mean(apart), average]


def hsic_trace(p):
    h = np.eye(N) - 1 / N
    return k.hsic(NARROW, GAUSSIAN, p.x, p.y), np.trace(p.gram_x @ h @ p.gram_y @ h) / N**2


def mmd_of_pairs(p):
    grams = NARROW.gram(p.z), p.gram_x
    within = [(gram.sum() - gram.trace()) / (len(gram) * (len(gram) - 1)) for gram in grams]
    return k.squared_mmd(NARROW, p.z, p.x), sum(within) - 2 * NARROW.cross_gram(p.z, p.x).mean()


def null_of_deals(p):
    """Of a permutation test: the statistic of every deal of the pooled points."""
    found = k.two_sample_test(NARROW, p.z, p.x[:9], permutations=20, rng=3)
    pooled, generator = np.concatenate([p.z, p.x[:9]]), np.random.default_rng(3)
    deals = [np.arange(14) < 5] + [generator.permutation(np.arange(14) < 5) for _ in range(20)]
    plain = [k.squared_mmd(NARROW, pooled[deal], pooled[~deal]) for deal in deals]
    p_value = (1 + np.sum(np.array(plain[1:]) >= plain[0])) / 21
    return [found.statistic, *found.null, found.p_value], [*plain, p_value]


def covariance_of_sample(p):
    return k.KernelMean.of_sample(NARROW, p.x).covariance(), np.cov(p.x.T, bias=True)


def combinations(p):
    a, b, c = k.GaussianKernel(1.0), k.MaternKernel(1.0, 0.5), k.MaternKernel(2.0)
    grams = a.gram(p.x), b.gram(p.x), c.gram(p.x)
    found = [(a * b * c).gram(p.x), (a + 3.0 * b + c).gram(p.x), a.on(1).gram(p.x)]
    columns = a.gram(p.x[:, 1:])
    return found, [reduce(np.multiply, grams), grams[0] + 3 * grams[1] + grams[2], columns]


def trace_of_rotations(p):
    x = scipy.stats.special_ortho_group(3, seed=3).rvs(6)
    plain = [[np.trace(a @ b.T) for b in x[:4]] for a in x]
    return k.TraceKernel().cross_gram(x, x[:4].copy()), plain


def table_of_values(p):
    table = k.PrecomputedKernel(p.gram_x)
    points = table.points()
    return table.cross_gram(points[:2], points[3:]), p.gram_x[:2, 3:]


def median_of_distances(p):
    stood = np.concatenate([p.x, np.tile(p.x[:1], (200, 1))])
    distances = pdist(stood)
    found = [k.median_distance(points) for points in (p.x, stood)]
    return found, [np.median(pdist(p.x)), np.median(distances[distances > 0])]


def control_and_time(p):
    model = k.AdditiveNoiseModel(
        lambda x, speed, t: x + np.array([speed, 0.0]),
        lambda speed, t: k.GaussianNoise(0.1 * t + speed**2),
    )
    found, plain = [], []
    for speed, t in [(3.0, 1), (1.0, 7)]:
        found.append(model.push(p.prior, speed, t)(p.z))
        moved = p.prior.points + np.array([speed, 0.0])
        wide = k.GaussianKernel(0.3 + 0.1 * t + speed**2)
        plain.append(wide.cross_gram(p.z, moved) @ p.gamma)
    return found, plain


@pytest.mark.parametrize(
    'reference',
    [
        *(sum_rule, kernel_abc, iw_kbr, kbr_figure_1, model_prior, learnt_then_model),
        *(model_then_learnt, algorithm_1, kernel_monte_carlo, chain_rule),
        *(gaussian_mixture, inner_products, scores, hsic_trace, mmd_of_pairs, null_of_deals),
        *(covariance_of_sample, combinations, trace_of_rotations, table_of_values),
        *(median_of_distances, control_and_time),
    ],
    ids=lambda reference: reference.__name__,
)
def test_it_is_the_plain_formula(reference):
    found, expected = reference(Problem())
    for one, other in zip(np.atleast_1d(found), np.atleast_1d(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize('method', BAYES_RULES)
@pytest.mark.parametrize('mass', ['of any sign', 'positive', 'negative', 'at every third point'])
@pytest.mark.parametrize('tolerance', [None, 1e-3])
def test_bayes_rule_is_the_printed_formula_dense_and_of_low_rank(method, mass, tolerance):
    p, third = Problem(), np.arange(N) % 3 == 0
    forms = {'positive': np.abs(p.mu), 'negative': -np.abs(p.mu), 'of any sign': p.mu}
    mu, gram, plain = forms.get(mass, p.mu * third), p.gram_y, p.gram_y
    if tolerance:
        gram = k.incomplete_cholesky(GAUSSIAN, p.y, tolerance)
        plain = gram.factor @ gram.factor.T
    if (method, mass) == ('thresholded', 'negative'):
        with pytest.raises(k.NoMassError, match='mu: expected at least one usable'):
            BAYES_RULES[method](gram, mu, p.k_y, 1e-2)
        return
    found = BAYES_RULES[method](gram, mu, p.k_y, 1e-2)
    np.testing.assert_allclose(found, PLAIN[method](plain, mu, p.k_y, 1e-2), rtol=1e-8, atol=1e-11)
    assert np.all(found[mu == 0] == 0)
    np.testing.assert_allclose(BAYES_RULES[method](gram, mu, p.k_y[:, 0], 1e-2), found[:, 0])


@pytest.mark.parametrize('delta', [1e-3, 0.1, 1.0, 1e9])
@pytest.mark.parametrize('seed', range(2))
def test_off_the_map_the_weights_are_those_of_the_plain_formula(seed, delta):
    p = Problem(seed, size=12)
    smoother = np.linalg.solve(p.gram_x + 0.1 * np.eye(12), p.cross)
    gamma = np.maximum(p.gamma, 0.0)
    system = p.gram_y @ np.diag(np.maximum(smoother @ gamma, 0.0)) + delta * np.eye(12)
    plain = gamma * (smoother.T @ np.linalg.solve(system, p.k_y[:, 0]))
    found = off_map_bayes_rule(smoother, p.gram_y, gamma, p.k_y[:, 0], delta)
    np.testing.assert_allclose(found, plain, rtol=1e-6, atol=1e-8 * np.abs(plain).max())


def test_supervision_needs_a_prior_with_mass_near_the_sample():
    p = Problem()
    far = k.KernelMean(NARROW, p.prior.points + 100.0, p.gamma)
    with pytest.raises(k.NoMassError, match='the prior has no mass near the sample'):
        p.rule('pKBR').posterior(far, p.y[0], k.Supervision(p.y[:1], p.x[:1], 1.0))


@pytest.mark.parametrize('method', ['pKBR', 'KBR'])
@pytest.mark.parametrize('weight', [0.3, 1e4])
@pytest.mark.parametrize('laws', [False, True])
def test_supervision_minimises_equation_10_of_kreg(weight, method, laws):
    """Towards points, or towards laws (the remark after the equation)."""
    p, observed, points = Problem(), np.array([[0.4, 0.0], [2.0, 1.0]]), np.eye(2)
    states = [k.KernelMean(NARROW, points[[i]] * [[1.0], [1.6]], [0.25, 0.75]) for i in range(2)]
    targets = states if laws else [k.KernelMean(NARROW, points[[i]], [1.0]) for i in range(2)]
    # the squared rule's delta compares with the square
    rule = p.rule(method, 1e-3 if method == 'pKBR' else 1e-6)
    supervision = k.Supervision(observed, states if laws else points, weight)
    found = rule.posterior(p.prior, observed[0], supervision)
    kept, inputs = p.mu > 0, np.concatenate([p.y[p.mu > 0], observed])
    penalty = np.diag(1e-3 / np.append(p.mu[kept], [weight, weight]))
    k_y = GAUSSIAN.cross_gram(inputs, observed[:1])[:, 0]
    solved = np.linalg.solve(GAUSSIAN.gram(inputs) + penalty, k_y)
    columns = [NARROW.cross_gram(p.z, p.x[kept]), *(law(p.z) for law in targets)]
    plain = np.column_stack(columns) @ solved
    np.testing.assert_allclose(found(p.z), plain, rtol=1e-6, atol=1e-8)
    assert (found.mmd(targets[0]) < 1e-3) == (weight > 1)


# kernels and noises

DENSITIES = [
    k.GaussianKernel(0.6),
    k.RationalQuadraticKernel(0.5),
    k.MaternKernel(0.9, smoothness=0.5),
    k.MaternKernel(0.9, smoothness=1.5, alpha=2.2),
    k.MaternKernel(0.9, smoothness=39.0),
]


@pytest.mark.parametrize('kernel', DENSITIES, ids=repr)
@pytest.mark.parametrize('dimension', [1, 3])
def test_normalised_kernels_integrate_to_one(kernel, dimension):
    # the volume between spheres of radius r and r + dr
    area = 2 * np.pi ** (dimension / 2) / scipy.special.gamma(dimension / 2)

    def shell(r):
        point = np.eye(1, dimension) * r
        return area * r ** (dimension - 1) * kernel.cross_gram(point, 0 * point)[0, 0]

    total, _ = quad(shell, 0.0, np.inf, epsabs=1e-11, limit=200)
    assert total == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize('variance', [0.01, 1.0, 50.0])
def test_wrapped_normal_density_is_its_fourier_series(variance):
    angles = np.linspace(-7.0, 7.0, 41)
    series = CircularKernel(k.WrappedNormalKernel(variance).fourier(120))
    expected = series.cross_gram(angles[:, np.newaxis], [[0.0]])[:, 0]
    np.testing.assert_allclose(wrapped_normal(angles, variance), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize('smoothness', [0.3, 1.0, 1.5, 7.3, 40.0])
def test_matern_kernel_is_the_bessel_formula_and_one_at_zero(smoothness):
    kernel = k.MaternKernel(1.0, smoothness, alpha=1.0, normalised=False)
    r = np.concatenate([[0.0], np.geomspace(1e-8, 50.0, 400)])[:, np.newaxis]
    values = kernel.cross_gram(r, np.zeros((1, 1)))[:, 0]
    assert values[0] == pytest.approx(1.0)
    assert np.all(np.isfinite(values)) and np.all(np.diff(values) <= 1e-13)
    factor = 2.0 ** (1 - smoothness) / scipy.special.gamma(smoothness) * 50.0**smoothness
    assert values[-1] == pytest.approx(factor * scipy.special.kv(smoothness, 50.0), rel=1e-10)


@pytest.mark.parametrize('queries', [8, 9])
@pytest.mark.parametrize('dimension', [3, 40])
@pytest.mark.parametrize('form', ['scalar', 'diagonal', 'full'])
def test_distances_are_the_plain_formula(form, dimension, queries):
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(30, dimension)), rng.normal(size=(queries, dimension))
    variances = rng.uniform(0.5, 2.0, dimension) if form != 'scalar' else np.full(dimension, 2.5)
    scale = Covariance({'scalar': 2.5, 'diagonal': variances, 'full': np.diag(variances)}[form])
    plain = ((x[:, np.newaxis] - z) ** 2 / variances).sum(axis=2)
    np.testing.assert_allclose(squared_distances(x, z, scale), plain, rtol=1e-11)
    own = squared_distances(z, z, scale)
    np.testing.assert_array_equal(own, own.T)
    np.testing.assert_array_equal(np.diag(own), 0.0)
    assert squared_distances(x, x.copy(), scale).min() >= 0.0


PLANE, ANGLE = np.array([[0.6, 0.2], [0.2, 0.3]]), k.WrappedNormalKernel(0.2)
WIDE = k.GaussianKernel([0.4, 0.5])
PARTS = [k.GaussianNoise(PLANE), k.GaussianNoise(0.1)]


@pytest.mark.parametrize(
    ('noise', 'kernel'),
    [
        (k.GaussianNoise(PLANE), 2.0 * WIDE + k.GaussianKernel(1.0, normalised=False)),
        (k.CauchyNoise(0.25 * PLANE), k.RationalQuadraticKernel(PLANE)),
        (k.VarianceGammaNoise(PLANE, 1.4, alpha=1.3), k.MaternKernel(PLANE, 1.5, alpha=1.3)),
        (k.MixtureNoise([0.9, 2.1], PARTS, [[1, 0], [0, -1]]), WIDE),
        (k.WrappedNormalNoise(0.6), ANGLE),
        (k.WrappedNormalNoise(0.6), k.WrappedNormalKernel(0.2, normalised=False)),
        (k.VonMisesNoise(2.5), ANGLE),
    ],
    ids=lambda part: type(part).__name__,
)
def test_conditional_kernel_mean_is_the_average_over_draws(noise, kernel):
    size = 1 if isinstance(kernel, k.WrappedNormalKernel) else 2
    z, image = np.array([[-0.5, 0.4], [0.2, 0.1], [1.0, -0.9]]), np.array([[0.3, -0.2]])
    closed = noise.conditional_kernel_mean(kernel).cross_gram(z[:, :size], image[:, :size])[:, 0]
    draws = image[:, :size] + noise.sample(200_000, size, np.random.default_rng(0))
    values = kernel.cross_gram(z[:, :size], draws)
    error = values.std(axis=1) / math.sqrt(200_000)
    assert np.all(np.abs(values.mean(axis=1) - closed) < 4.0 * error)
    assert np.all(error < 0.01 * closed)  # the comparison has power


# linear models: Kalman, and Rauch, Tung and Striebel

PLANAR = LinearGaussian(
    np.array([[0.9, 0.3], [-0.3, 0.9]]),
    np.diag([0.1, 0.2]),
    np.array([[1.0, 0.5]]),
    np.array([[0.3]]),
    np.zeros(2),
    np.eye(2),
)


def kernel_kalman(model, size=60):
    """Return the filter on linear kernels, and the model that ridge regression finds."""
    x, y = model.simulate(size + 1, np.random.default_rng(0))
    before, after, y, kernel = x[:-1], x[1:], y[1:], k.LinearKernel()
    a, c = (
        np.linalg.solve(u.T @ u + size * 1e-6 * np.eye(x.shape[1]), u.T @ v).T
        for u, v in ((before, after), (after, y))
    )
    residual, mean = after - before @ a.T, after.mean(axis=0)
    q, first = residual.T @ residual / size, np.cov(after.T, bias=True).reshape(len(a), -1)
    learnt = k.KernelKalmanFilter(kernel, kernel, before, after, y, 1e-6, float(model.r[0, 0]))
    return learnt, LinearGaussian(a, q, c, model.r, mean, first)


def test_with_linear_kernels_it_is_the_kalman_filter_of_the_regressions():
    _, y = PLANAR.simulate(20, np.random.default_rng(5))
    y[7] = np.nan  # is missing
    learnt, ridge_model = kernel_kalman(PLANAR)
    beliefs, (expected, covariances, *_) = learnt.run(y), ridge_model.kalman(y)
    np.testing.assert_allclose(k.means(beliefs), expected, rtol=1e-5, atol=1e-6)
    found = np.array([belief.covariance() for belief in beliefs])
    np.testing.assert_allclose(found, covariances, rtol=1e-4, atol=1e-6)


def test_the_backward_pass_turns_kalman_into_rauch_tung_striebel():
    model, step = autoregression(r=0.6), k.AdditiveNoiseModel(STEP.function, k.GaussianNoise(0.3))
    _, y = model.simulate(30, np.random.default_rng(3))
    exact, variances = model.rts(y)
    filtered = [
        k.ModelKernelMean(NARROW, m[np.newaxis], np.ones(1), k.GaussianNoise(p))
        for m, p, *_ in zip(*model.kalman(y), strict=True)
    ]
    errors = []
    for size in (100, 400):
        x = np.random.default_rng(7).uniform(-4, 4, size=(size, 1))
        after = step.sample(x, np.random.default_rng(7))
        constants = 0.01 / size, 0.1 / size, 'thresholded'
        backward = k.KernelBayesRule(NARROW, NARROW, x, after, *constants)
        smoother = k.KernelBayesSmoother(k.KernelBayesFilter(step, backward), backward)
        smoothed = smoother.smooth(filtered)[:-1]
        errors.append(np.sqrt(np.mean((k.means(smoothed) - exact[:-1]) ** 2)))
    assert errors[1] < min(0.5 * errors[0], 0.2 * exact.std())
    found = [belief.covariance()[0, 0] for belief in smoothed]
    assert np.mean(found) == pytest.approx(np.mean(variances[:-1]), rel=0.2)
