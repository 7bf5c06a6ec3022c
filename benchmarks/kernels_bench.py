"""
Speed of the kernel rules as ratios measured in one run: python -m benchmarks.kernels_bench.

Prints a table and writes benchmarks/results/kernels.json. The thresholded rule uses the positive
prior weights only: nearly all of them under a broad prior, about half under a narrow one, which is
what a filter predicts. Setting of [KBR] section 5.2: Gaussian
kernels with the median heuristic on a joint Gaussian sample in two dimensions, incomplete Cholesky
with tolerance 0.001.
"""

from collections.abc import Callable
import json
import os
from pathlib import Path
import platform
import time
from typing import Any

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
import scipy

RESULTS = Path(__file__).parent / 'results' / 'kernels.json'
TOLERANCE = 1e-3
RULES = {'squared': squared_bayes_rule, 'thresholded': thresholded_bayes_rule}


class Problem:
    """Pairs of a linear-Gaussian model, prior weights of both signs and an observation."""

    def __init__(self, size: int, prior_deviation: float = 0.7, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.x = rng.normal(size=(size, 2))
        self.y = self.x @ np.array([[1.0, 0.4], [-0.3, 0.8]]) + 0.5 * rng.normal(size=(size, 2))
        self.kernel_x = GaussianKernel(median_distance(self.x) ** 2, normalised=False)
        self.kernel_y = GaussianKernel(median_distance(self.y) ** 2, normalised=False)
        prior_points = rng.normal(0.3, prior_deviation, size=(size, 2))
        prior = KernelMean.of_sample(self.kernel_x, prior_points)
        self.low_x = incomplete_cholesky(self.kernel_x, self.x, 1e-6)
        self.mu = regularise(self.low_x, 0.01 / size).solve(prior(self.x))
        self.k_y = self.kernel_y.cross_gram(self.y, self.y[:1])[:, 0]
        self.delta = 1e-3


def textbook_squared(gram: Any, mu: Any, k_y: Any, delta: float) -> Any:
    """[KBR] eq. 13 as printed, by LU."""
    product = mu[:, np.newaxis] * gram
    shifted = product @ product
    shifted.flat[:: len(mu) + 1] += delta
    return product @ np.linalg.solve(shifted, mu * k_y)


def seconds(function: Callable[[], Any], repeats: int) -> float:
    """Return the best time of several runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def compare_rules(size: int, prior_deviation: float, rounds: int = 15) -> dict[str, float]:
    """Squared (textbook and ours) against thresholded update, dense; rounds are interleaved."""
    p = Problem(size, prior_deviation)
    arguments = (p.kernel_y.gram(p.y), p.mu, p.k_y, p.delta)
    rules = {'textbook_squared': textbook_squared, **RULES}
    times: dict[str, list[float]] = {name: [] for name in rules}
    for _ in range(rounds):
        for name, rule in rules.items():
            times[name].append(seconds(lambda rule=rule: rule(*arguments), 1))
    best = {name: min(values) for name, values in times.items()}
    found = {f'{name}_ms': 1e3 * value for name, value in best.items()}
    found['positive_weights'] = float(np.mean(p.mu > 0))
    found['squared_over_thresholded'] = best['squared'] / best['thresholded']
    found['textbook_over_thresholded'] = best['textbook_squared'] / best['thresholded']
    return found


def compare_low_rank(size: int) -> dict[str, float]:
    """Dense against low-rank update, without and with making the Gram matrix."""
    p = Problem(size)
    start = time.perf_counter()
    low = incomplete_cholesky(p.kernel_y, p.y, TOLERANCE)
    low_gram = time.perf_counter() - start
    start = time.perf_counter()
    gram = p.kernel_y.gram(p.y)
    dense_gram = time.perf_counter() - start
    found = {'rank': float(low.rank), 'low_rank_gram_ms': 1e3 * low_gram}
    for name, rule in RULES.items():
        found |= _low_rank_times(p, name, rule, gram, low, dense_gram, low_gram)
    return found


def _low_rank_times(
    p: Problem,
    name: str,
    rule: Callable[..., Any],
    gram: Any,
    low: LowRankGram,
    dense_gram: float,
    low_gram: float,
) -> dict[str, float]:
    dense_time = seconds(lambda: rule(gram, p.mu, p.k_y, p.delta), 1)
    low_time = seconds(lambda: rule(low, p.mu, p.k_y, p.delta), 3)
    dense = KernelMean(p.kernel_x, p.x, rule(gram, p.mu, p.k_y, p.delta))
    approximate = KernelMean(p.kernel_x, p.x, rule(low, p.mu, p.k_y, p.delta))
    return {
        f'{name}_dense_ms': 1e3 * dense_time,
        f'{name}_low_rank_ms': 1e3 * low_time,
        f'{name}_dense_over_low_rank': dense_time / low_time,
        f'{name}_with_gram_dense_over_low_rank': (dense_time + dense_gram) / (low_time + low_gram),
        f'{name}_relative_rkhs_error': approximate.mmd(dense) / dense.norm(),
    }


def main() -> dict[str, Any]:
    """Measure, print and write the ratios."""
    results: dict[str, Any] = {
        'machine': {
            'processor': platform.processor() or platform.machine(),
            'cpus': os.cpu_count(),
            'python': platform.python_version(),
            'numpy': np.__version__,
            'scipy': scipy.__version__,
            'openblas_threads': os.environ.get('OPENBLAS_NUM_THREADS', 'default'),
        },
        'rules_1000_broad_prior': compare_rules(1000, 0.7),
        'rules_1000_narrow_prior': compare_rules(1000, 0.1),
        'low_rank_6000': compare_low_rank(6000),
    }
    for section in ('rules_1000_broad_prior', 'rules_1000_narrow_prior', 'low_rank_6000'):
        print(section)
        for key, value in results[section].items():
            print(f'  {key:45s} {value:12.4g}')
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2) + '\n')
    return results


if __name__ == '__main__':
    main()
