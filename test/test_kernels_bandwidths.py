"""Gradients of the cross-validation criteria against differences, and what the search finds."""

from functools import partial

from kbr_localization.errors import KernelError
from kbr_localization.kernels import (
    BandwidthCriterion,
    GaussianKernel,
    k_fold,
    KernelBayesRule,
    KernelMean,
    MaternKernel,
    RationalQuadraticKernel,
)
from kbr_localization.kernels.selection import point_score
import numpy as np
import pytest

KX = GaussianKernel(1.0, normalised=False)
KERNELS = {
    'plain': GaussianKernel([1.5, 0.7, 2.0], normalised=False),
    'density': GaussianKernel(1.2),
    'rough': MaternKernel(1.5, 0.5, normalised=False),
    'cauchy': RationalQuadraticKernel(2.0),
}


def sample(size=40, seed=0):
    """Pairs whose y has a coordinate that tells x, one that tells it less, and one of noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, 1))
    noise = rng.normal(size=(size, 3)) * [0.2, 1.0, 3.0]
    return x, x * [1.0, 1.0, 0.0] + noise


def criterion(kernel, size=40, **options):
    return BandwidthCriterion(KX, kernel, *sample(size), k_fold(size, 3), 1e-3, **options)


@pytest.mark.parametrize('method', ['squared', 'thresholded'])
@pytest.mark.parametrize('kernel', KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize('factors', [1.3, [0.8, 1.1, 1.7]], ids=['one', 'each'])
def test_gradients_are_the_differences(kernel, method, factors):
    loss = criterion(kernel, method=method)
    logs = np.append(np.log(factors), np.log(3e-3))
    step = 1e-5

    def at(values):
        chosen = values[0] if np.ndim(factors) == 0 else values[:-1]
        return loss(np.exp(chosen), np.exp(values[-1]))

    differences = [
        (at(logs + step * e)[0] - at(logs - step * e)[0]) / (2 * step) for e in np.eye(logs.size)
    ]
    gradient = at(logs)[1]
    np.testing.assert_allclose(gradient, differences, rtol=2e-5, atol=2e-6 * abs(gradient).max())


@pytest.mark.parametrize('method', ['squared', 'thresholded'])
def test_the_search_lowers_the_criterion_and_widens_the_coordinate_of_noise(method):
    start = GaussianKernel(1.0, normalised=False)
    loss = criterion(start, 120, method=method)
    one, each = (loss.minimise(1e-2, per_coordinate) for per_coordinate in (False, True))
    assert each.value < one.value < loss(1.0, 1e-2)[0]
    widths = np.sqrt(each.kernel_y.scale.value)
    assert widths[2] > 5 * widths[0]
    x, y = sample(300, seed=5)
    errors = []
    for kernel, delta in ((start, 1e-2), (each.kernel_y, each.delta)):
        make = partial(make_rule_with, kernel, delta, method)
        errors.append(np.mean([point_score(x, y, make, *fold) for fold in k_fold(300, 3)]))
    assert errors[1] < 0.5 * errors[0]


@pytest.mark.parametrize('kernel', [GaussianKernel(1.0), GaussianKernel(1e-4, normalised=False)])
def test_a_search_without_a_slope_is_refused(kernel):
    """The values of a density in 20 dimensions are far below delta, those between points zero."""
    y = np.random.default_rng(0).normal(size=(40, 20))
    loss = BandwidthCriterion(KX, kernel, y[:, :1], y, k_fold(40, 2), 1e-3)
    with pytest.raises(KernelError, match='delta, kernel_y: expected posteriors with weight'):
        loss.minimise(1e-3)


def make_rule_with(kernel, delta, method, x, y):
    return KernelBayesRule(KX, kernel, x, y, 1e-3, delta, method)


@pytest.mark.parametrize('method', ['squared', 'thresholded'])
def test_the_criterion_is_the_distance_of_posteriors_from_the_states(method):
    (x, y), kernel, means = sample(), KERNELS['plain'], []
    for training, validation in k_fold(40, 3):
        rule = KernelBayesRule(KX, kernel, x[training], y[training], 1e-3, 2e-3, method)
        prior = KernelMean.of_sample(KX, rule.x)
        states = [KernelMean.of_sample(KX, x[[j]]) for j in validation]
        posteriors = [rule.posterior(prior, y[j]) for j in validation]
        means.append(np.mean([p.mmd(k) ** 2 for p, k in zip(posteriors, states, strict=True)]))
    assert criterion(kernel, method=method)(1.0, 2e-3)[0] == pytest.approx(np.mean(means))
