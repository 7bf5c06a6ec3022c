"""
Speed of the kernel rules as ratios measured in one run: python -m benchmarks.kernels_bench.

Setting of [KBR] section 5.2: Gaussian kernels with the median heuristic on a joint Gaussian
sample, incomplete Cholesky with tolerance 0.001. The thresholded rule uses the positive prior
weights only: all of them under a uniform prior, nearly all under a broad one, about half under a
narrow one, which is what a filter predicts.
"""

from __future__ import annotations

import functools
from typing import Any

from benchmarks import results
from kbr_localization.kernels import (
    GaussianKernel,
    incomplete_cholesky,
    KernelMean,
    median_distance,
    regularise,
    squared_bayes_rule,
    thresholded_bayes_rule,
)
import numpy as np

TOLERANCE, DELTA = 1e-3, 1e-3
RULES = {'squared': squared_bayes_rule, 'thresholded': thresholded_bayes_rule}
PRIORS = {'uniform': 0.0, 'broad': 0.7, 'narrow': 0.1}
"""Standard deviation of a sample whose kernel mean gives the prior weights, 0: equal weights."""


class Problem:
    """Pairs of a linear-Gaussian model and an observation. Points (n, d)."""

    def __init__(self, size: int, dimension: int = 2, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.x = self.rng.normal(size=(size, dimension))
        mixing = np.eye(dimension) + 0.3 * self.rng.normal(size=(dimension, dimension))
        self.y = self.x @ mixing + 0.5 * self.rng.normal(size=(size, dimension))
        self.kernel_x, self.kernel_y = (
            GaussianKernel(median_distance(points) ** 2, normalised=False)
            for points in (self.x, self.y)
        )
        self.k_y = self.kernel_y.cross_gram(self.y, self.y[:1])[:, 0]

    def prior_weights(self, prior: str) -> Any:
        """Weights mu (n,) of one of PRIORS."""
        if not PRIORS[prior]:
            return np.full(len(self.x), 1.0 / len(self.x))
        sample = self.rng.normal(0.3, PRIORS[prior], size=self.x.shape)
        mean = KernelMean.of_sample(self.kernel_x, sample)
        low = incomplete_cholesky(self.kernel_x, self.x, 1e-6)
        return regularise(low, 0.01 / len(self.x)).solve(mean(self.x))


def textbook_squared(gram: Any, mu: Any, k_y: Any, delta: float) -> Any:
    """[KBR] eq. 13 as printed, by LU."""
    product = mu[:, np.newaxis] * gram
    shifted = product @ product
    shifted.flat[:: len(mu) + 1] += delta
    return product @ np.linalg.solve(shifted, mu * k_y)


def compare_rules(size: int, prior: str, rounds: int = 11) -> list[float]:
    """Positive weights, ms of the thresholded update, and both squared ones over it; all dense."""
    problem = Problem(size)
    mu = problem.prior_weights(prior)
    gram = problem.kernel_y.gram(problem.y)
    times = results.interleaved(
        {
            name: functools.partial(rule, gram, mu, problem.k_y, DELTA)
            for name, rule in (RULES | {'textbook': textbook_squared}).items()
        },
        rounds,
    )
    over = [results.ratio(times, name, 'thresholded') for name in ('squared', 'textbook')]
    return [float(np.mean(mu > 0)), results.median_ms(times['thresholded']), *over]


def compare_low_rank(size: int, dimension: int, method: str) -> list[float]:
    """Rank, ms of the low-rank update, the dense one over it, and the error of the posterior."""
    problem = Problem(size, dimension)
    update = functools.partial(
        RULES[method], mu=problem.prior_weights('broad'), k_y=problem.k_y, delta=DELTA
    )
    low = incomplete_cholesky(problem.kernel_y, problem.y, TOLERANCE)
    matrices: dict[str, Any] = {'dense': problem.kernel_y.gram(problem.y), 'low': low}
    times = results.interleaved(
        {name: functools.partial(update, matrix) for name, matrix in matrices.items()}, 1
    )
    dense, approximate = (
        KernelMean(problem.kernel_x, problem.x, update(matrix)) for matrix in matrices.values()
    )
    error = approximate.mmd(dense) / dense.norm()
    ratio = results.ratio(times, 'dense', 'low')
    return [float(low.rank), results.median_ms(times['low']), ratio, float(error)]


def main() -> None:
    """Measure, print and write the ratios."""
    rules = {prior: compare_rules(1000, prior) for prior in PRIORS}
    low = {
        (method, dimension): compare_low_rank(6000, dimension, method)
        for dimension in (2, 4)
        for method in RULES
    }
    results.merge_figures(
        {f'squared_over_thresholded_1k_{prior}': found[2] for prior, found in rules.items()}
        | {f'{rule}_dense_over_low_rank_6k_d{d}': found[2] for (rule, d), found in low.items()}
    )
    of_rules = results.table(
        ['prior', 'positive weights', 'thresholded ms', 'squared, ours', 'squared as printed'],
        [[prior, *found] for prior, found in rules.items()],
    )
    of_low = results.table(
        ['rule', 'd', 'rank', 'low rank ms', 'dense', 'relative error'],
        [[*key, *found] for key, found in low.items()],
    )
    text = (
        f'## Rules of kernel Bayesian inference\n\n{results.machine()}.\n\n'
        "### Bayes' rule at n = 1000, dense: squared over thresholded\n\n"
        f'{of_rules}\n\n'
        '### Dense over low rank at n = 6000 (incomplete Cholesky, tolerance 0.001)\n\n'
        f'{of_low}'
    )
    results.publish(text, 'kernels')


if __name__ == '__main__':
    results.take_no_options(__doc__)
    main()
