"""
Speed of the kernel rules as ratios measured in one run: python -m benchmarks.kernels_bench.

Setting of [KBR] section 5.2: Gaussian kernels with the median heuristic on a joint Gaussian
sample, incomplete Cholesky with tolerance 0.001. The thresholded rule uses the positive prior
weights only: all of them under a uniform prior, nearly all under a broad one, about half under a
narrow one, which is what a filter predicts.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any

from benchmarks import results
from kbr_localization.kernels import (
    GaussianKernel,
    incomplete_cholesky,
    KernelMean,
    LowRankGram,
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


def compare_rules(size: int, prior: str, rounds: int = 11) -> dict[str, float]:
    """Squared update, ours and as printed, over the thresholded one; all dense."""
    problem = Problem(size)
    mu = problem.prior_weights(prior)
    gram = problem.kernel_y.gram(problem.y)
    rules = {'textbook': textbook_squared, **RULES}
    times = results.interleaved(
        {
            name: functools.partial(rule, gram, mu, problem.k_y, DELTA)
            for name, rule in rules.items()
        },
        rounds,
    )
    return {
        'positive': float(np.mean(mu > 0)),
        'thresholded ms': results.median_ms(times['thresholded']),
        'squared': results.ratio(times, 'squared', 'thresholded'),
        'textbook': results.ratio(times, 'textbook', 'thresholded'),
    }


def compare_low_rank(size: int, dimension: int, method: str) -> dict[str, float]:
    """Dense over low-rank update, alone and together with what makes the Gram matrix."""
    problem = Problem(size, dimension)
    kernel, y, mu = problem.kernel_y, problem.y, problem.prior_weights('broad')
    update = functools.partial(RULES[method], mu=mu, k_y=problem.k_y, delta=DELTA)
    gram, low = kernel.gram(y), incomplete_cholesky(kernel, y, TOLERANCE)
    times = results.interleaved(
        {
            'dense': lambda: update(gram),
            'low': lambda: update(low),
            'dense gram': lambda: kernel.gram(y),
            'low gram': lambda: incomplete_cholesky(kernel, y, TOLERANCE),
        },
        1,
    )
    together = {
        kind: [a + b for a, b in zip(times[kind], times[f'{kind} gram'], strict=True)]
        for kind in ('dense', 'low')
    }
    return {
        'rank': float(low.rank),
        'low ms': results.median_ms(times['low']),
        'update': results.ratio(times, 'dense', 'low'),
        'with Gram': results.ratio(together, 'dense', 'low'),
        'error': _relative_error(problem, update, gram, low),
    }


def _relative_error(
    problem: Problem, update: Callable[[Any], Any], gram: Any, low: LowRankGram
) -> float:
    """RKHS distance of the low-rank posterior from the dense one, relative to its norm."""
    dense, approximate = (
        KernelMean(problem.kernel_x, problem.x, update(matrix)) for matrix in (gram, low)
    )
    return approximate.mmd(dense) / dense.norm()


def main() -> dict[str, float]:
    """Measure, print and write the ratios."""
    rules = {prior: compare_rules(1000, prior) for prior in PRIORS}
    low = {
        (method, dimension): compare_low_rank(6000, dimension, method)
        for dimension in (2, 4)
        for method in RULES
    }
    figures = {
        f'squared_over_thresholded_1k_{prior}': found['squared'] for prior, found in rules.items()
    } | {
        f'{method}_dense_over_low_rank_6k_d{dimension}': found['update']
        for (method, dimension), found in low.items()
    }
    results.merge_figures(figures)
    text = _section(rules, low)
    results.publish(text, 'kernels')
    return figures


def _section(rules: dict[str, Any], low: dict[tuple[str, int], Any]) -> str:
    of_rules = results.table(
        ['prior', 'positive weights', 'thresholded ms', 'squared, ours', 'squared as printed'],
        [[prior, *found.values()] for prior, found in rules.items()],
    )
    of_low = results.table(
        ['rule', 'd', 'rank', 'low rank ms', 'dense', 'dense, with Gram', 'relative error'],
        [[*key, *found.values()] for key, found in low.items()],
    )
    return (
        f'## Rules of kernel Bayesian inference\n\n{results.machine()}.\n\n'
        "### Bayes' rule at n = 1000, dense: squared over thresholded\n\n"
        f'{of_rules}\n\n'
        '### Dense over low rank at n = 6000 (incomplete Cholesky, tolerance 0.001)\n\n'
        f'{of_low}'
    )


if __name__ == '__main__':
    results.take_no_options(__doc__)
    main()
