"""References that share nothing with the toolbox: exact fractions, integrals, Kalman and RTS."""

from fractions import Fraction
import functools

from kbr_localization.kernels import (
    AdditiveNoiseModel,
    BAYES_RULES,
    conditional_mean,
    GaussianKernel,
    GaussianNoise,
    importance_weighted_bayes_rule,
    KernelBayesFilter,
    KernelBayesRule,
    KernelBayesSmoother,
    KernelMean,
    KernelMonteCarloFilter,
    ModelKernelMean,
    ModelTransition,
    nonparametric_sum_rule,
    regularise,
    regularised_bayes_rule,
)
from kbr_localization.kernels.filters import means
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from state_space import autoregression

SIZE, DELTA, EPSILON = 7, 2.0**-10, 2.0**-8
SEEDS = range(4)


def solved(matrix, columns):
    """Solution of linear equations in exact fractions, by elimination. (n, n), (n,) -> (n,)."""
    rows = [[*row, value] for row, value in zip(matrix, columns, strict=True)]
    for i in range(len(rows)):
        pivot = next(j for j in range(i, len(rows)) if rows[j][i] != 0)
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for j in range(len(rows)):
            if j != i:
                rows[j] = [a - rows[j][i] * b for a, b in zip(rows[j], rows[i], strict=True)]
    return [row[-1] for row in rows]


def fractions(values):
    """Floats as the fractions that they are."""
    return [fractions(one) for one in values] if np.ndim(values) else Fraction(float(values))


def times(left, right):
    """Product of matrices, or of a matrix and a vector, of fractions."""
    if isinstance(right[0], list):
        columns = list(zip(*right, strict=True))
        return [[dot(row, column) for column in columns] for row in left]
    return [dot(row, right) for row in left]


def dot(left, right):
    return sum((a * b for a, b in zip(left, right, strict=True)), Fraction(0))


def plus(matrix, diagonal):
    return [
        [value + (diagonal[i] if i == j else 0) for j, value in enumerate(row)]
        for i, row in enumerate(matrix)
    ]


def exact_squared(gram, mu, k, delta):
    product = [[m * value for value in row] for m, row in zip(mu, gram, strict=True)]
    square = plus(times(product, product), [delta] * len(mu))
    return times(product, solved(square, [m * one for m, one in zip(mu, k, strict=True)]))


def exact_thresholded(gram, mu, k, delta):
    kept = [i for i, m in enumerate(mu) if m > 0]
    block = [[gram[i][j] for j in kept] for i in kept]
    found = solved(plus(block, [delta / mu[i] for i in kept]), [k[i] for i in kept])
    return [found[kept.index(i)] if i in kept else Fraction(0) for i in range(len(mu))]


EXACT = {'squared': exact_squared, 'thresholded': exact_thresholded}


def problem(seed):
    """Gram matrix, signed prior weights and kernel vector, as floats."""
    rng = np.random.default_rng(seed)
    y = rng.normal(size=(SIZE, 2))
    kernel = GaussianKernel(0.5, normalised=False)
    mu = rng.normal(0.15, 0.2, SIZE)
    assert (mu < 0).any()
    assert (mu > 0).any()
    return kernel.gram(y), mu, kernel.cross_gram(y, rng.normal(size=(1, 2)))[:, 0]


def agree(found, exact):
    expected = np.array([float(value) for value in exact])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13 * np.abs(expected).max())


@pytest.mark.parametrize('seed', SEEDS)
@pytest.mark.parametrize('method', BAYES_RULES)
def test_both_bayes_rules_are_the_printed_formulas_to_the_last_digits(method, seed):
    gram, mu, k = problem(seed)
    exact = EXACT[method](fractions(gram), fractions(mu), fractions(k), Fraction(DELTA))
    agree(BAYES_RULES[method](gram, mu, k, DELTA), exact)


@pytest.mark.parametrize('seed', SEEDS)
def test_importance_weights_are_those_of_the_weighted_least_squares(seed):
    gram, ratio, k = problem(seed)
    mu = [value / SIZE for value in fractions(ratio)]
    exact = exact_thresholded(fractions(gram), mu, fractions(k), Fraction(DELTA))
    agree(importance_weighted_bayes_rule(gram, ratio, k, DELTA), exact)


@pytest.mark.parametrize('seed', SEEDS)
@pytest.mark.parametrize('rule', [conditional_mean, nonparametric_sum_rule])
def test_the_conditional_mean_and_the_sum_rule_are_regularised_inverses(rule, seed):
    gram, _, k = problem(seed)
    ridge = [Fraction(SIZE) * Fraction(EPSILON)] * SIZE
    exact = solved(plus(fractions(gram), ridge), fractions(k))
    agree(rule(regularise(gram, EPSILON), k), exact)


@pytest.mark.parametrize('seed', SEEDS)
def test_supervision_is_a_pair_with_a_weight_of_its_own(seed):
    gram, mu, k = problem(seed)
    strength = Fraction(1, 4)
    extended = [*fractions(mu[:-1]), strength]
    exact = exact_thresholded(fractions(gram), extended, fractions(k), Fraction(DELTA))
    agree(regularised_bayes_rule(gram, mu[:-1], k, DELTA, float(strength)), exact)


def test_the_model_based_sum_rule_is_an_integral_over_correlated_noise():
    rng = np.random.default_rng(0)
    kernel = GaussianKernel([[0.4, 0.1], [0.1, 0.3]])
    sigma = np.array([[0.5, -0.2], [-0.2, 0.3]])
    prior = KernelMean(kernel, rng.normal(size=(5, 2)), np.array([0.5, -0.2, 0.3, 0.3, 0.1]))

    def images(x):
        return np.column_stack([np.sin(x[:, 0]) + x[:, 1], x[:, 0] * x[:, 1]])

    pushed = AdditiveNoiseModel(images, GaussianNoise(sigma)).push(prior)
    # Gauss-Hermite quadrature over the noise
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    grid = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    noise = grid @ np.linalg.cholesky(sigma).T
    mass = np.outer(weights, weights).ravel() / (2.0 * np.pi)
    inverse = np.linalg.inv([[0.4, 0.1], [0.1, 0.3]])
    for z in rng.normal(size=(3, 2)):
        offsets = z - images(prior.points)[:, np.newaxis] - noise
        exponents = -0.5 * np.einsum('ijd,de,ije->ij', offsets, inverse, offsets)
        values = np.exp(exponents) * np.sqrt(np.linalg.det(inverse)) / (2.0 * np.pi)
        assert pushed(z[np.newaxis])[0] == pytest.approx(prior.weights @ values @ mass, rel=1e-9)


OBSERVED = np.linspace(-0.5, 2.0, 6)


def likelihood(x, y):
    return scipy.stats.norm(x + 0.5 * np.sin(2.0 * x), 0.5).pdf(y)


@functools.cache
def posterior_mean(y):
    """E[x | y] under the prior N(0.5, 0.8^2), by quadrature."""
    prior = scipy.stats.norm(0.5, 0.8).pdf
    mass, moment = (
        scipy.integrate.quad(lambda x, p=p: x**p * prior(x) * likelihood(x, y), -8, 8)[0]
        for p in (0, 1)
    )
    return moment / mass


def posterior_error(method, size, seed):
    """Root mean squared error of posterior means from pairs of one sample."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-3.0, 4.0, size=(size, 1))
    y = x + 0.5 * np.sin(2.0 * x) + 0.5 * rng.normal(size=x.shape)
    kernel = GaussianKernel(0.15)
    prior = ModelKernelMean(kernel, np.array([[0.5]]), np.ones(1), GaussianNoise(0.64))
    delta = 1e-3 if method == 'thresholded' else 1e-6
    rule = KernelBayesRule(kernel, kernel, x, y, 0.01 / size, delta, method)
    weights = rule.posterior_weights(prior, OBSERVED[:, np.newaxis])
    found = (weights.T @ x)[:, 0] / weights.sum(axis=0)
    return np.sqrt(np.mean((found - [posterior_mean(y) for y in OBSERVED]) ** 2))


@pytest.mark.parametrize('method', ['squared', 'thresholded'])
def test_posteriors_of_a_nonlinear_model_tend_to_the_integrals(method):
    small, large = (
        np.mean([posterior_error(method, size, seed) for seed in range(4)]) for size in (60, 800)
    )
    assert large < 0.5 * small
    assert large < 0.1  # the posterior's deviation is 0.4


MODEL = autoregression(q=0.3, r=0.4)
KERNEL = GaussianKernel(0.3)
GIVEN = AdditiveNoiseModel(lambda x: 0.9 * x, GaussianNoise(0.3))
START = ModelKernelMean(KERNEL, np.zeros((1, 1)), np.ones(1), GaussianNoise(0.3 / 0.19))


def learnt_rule(size):
    rng = np.random.default_rng(1)
    x = rng.uniform(-4.0, 4.0, size=(size, 1))
    y = x + np.sqrt(0.4) * rng.normal(size=x.shape)
    return KernelBayesRule(KERNEL, KERNEL, x, y, 0.01 / size, (0.1 / size) ** 2)


def test_the_kernel_monte_carlo_filter_has_kalmans_means_and_variances():
    _, y = MODEL.simulate(50, np.random.default_rng(5))
    exact, variances, *_ = MODEL.kalman(y)
    beliefs = KernelMonteCarloFilter(GIVEN.sample, learnt_rule(400), rng=0).run(y, prior=START)
    assert np.sqrt(np.mean((means(beliefs) - exact) ** 2)) < 0.12 * exact.std()
    found = [belief.covariance()[0, 0] for belief in beliefs[5:]]
    assert np.mean(found) == pytest.approx(np.mean(variances[5:]), rel=0.15)


def smoother_gap(observations, size):
    """Distance of the kernel smoother's means from those of Rauch, Tung and Striebel."""
    rng = np.random.default_rng(2)
    x = rng.uniform(-4.0, 4.0, size=(size, 1))
    constants = 0.01 / size, (0.1 / size) ** 2
    backward = KernelBayesRule(KERNEL, KERNEL, x, GIVEN.sample(x, rng), *constants)
    forward = KernelBayesFilter(ModelTransition(GIVEN, KERNEL), learnt_rule(size))
    found = means(KernelBayesSmoother(forward, backward).run(observations, prior=START))
    return np.sqrt(np.mean((found - MODEL.rts(observations)[0]) ** 2))


def test_forward_and_backward_passes_together_tend_to_rts():
    _, y = MODEL.simulate(50, np.random.default_rng(5))
    filtered, smoothed = MODEL.kalman(y)[0], MODEL.rts(y)[0]
    small, large = (smoother_gap(y, size) for size in (100, 600))
    assert large < 0.7 * small
    assert large < 0.7 * np.sqrt(np.mean((filtered - smoothed) ** 2))
    assert large < 0.2 * smoothed.std()
