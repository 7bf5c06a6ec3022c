"""
Permutation tests with kernel means: are two samples of one law, are two variables independent.

Sources: Gretton, Borgwardt, Rasch, Schoelkopf, Smola, *A kernel two-sample test* (2012); Gretton,
Fukumizu, Teo, Song, Schoelkopf, Smola, *A kernel statistical test of independence* (2007).
"""

from __future__ import annotations

from dataclasses import dataclass

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel
from kbr_localization.kernels.checks import as_count, as_sample, FloatArray
from kbr_localization.kernels.linalg import smallest_ridge
import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True, eq=False)
class PermutationTest:
    """
    Outcome of a permutation test.

    `statistic`: of the data; `null`: (permutations,) of the permuted data; `rounding`: values
    that are nearer to the statistic are equal to it.
    """

    statistic: float
    null: FloatArray
    rounding: float = 0.0

    @property
    def p_value(self) -> float:
        """(1 + #{null >= statistic}) / (1 + permutations), valid at every sample size."""
        reached = int(np.count_nonzero(self.null >= self.statistic - self.rounding))
        return (1 + reached) / (1 + self.null.size)


def squared_mmd(kernel: Kernel, x: ArrayLike, y: ArrayLike) -> float:
    """
    Unbiased estimate of the squared maximum mean discrepancy of two laws; it may be negative.

    Shapes: (m, ...), (n, ...), m, n > 1. Source: Gretton et al. (2012) Lemma 6.
    """
    gram, members = _pooled(kernel, x, y)
    return float(_unbiased(gram, members[np.newaxis])[0])


def two_sample_test(
    kernel: Kernel,
    x: ArrayLike,
    y: ArrayLike,
    permutations: int = 500,
    rng: np.random.Generator | int = 0,
) -> PermutationTest:
    """
    Test whether x and y are samples of one law, by the MMD.

    Permutations redistribute the pooled points. `kernel` has to be characteristic to see
    every difference. Shapes: (m, ...), (n, ...); O((m + n)^2) for each permutation.
    """
    gram, members = _pooled(kernel, x, y)
    generator = np.random.default_rng(rng)
    deals = [generator.permutation(members) for _ in range(as_count('permutations', permutations))]
    statistic, *null = _unbiased(gram, np.array([members, *deals]))
    return PermutationTest(float(statistic), np.array(null), smallest_ridge(gram))


def hsic(kernel_x: Kernel, kernel_y: Kernel, x: ArrayLike, y: ArrayLike) -> float:
    """
    Biased estimate tr(G_X H G_Y H) / n^2 of the squared Hilbert-Schmidt norm of C_XY.

    H = I - 1/n centres. Shapes: pairs (n, ...), (n, ...), n > 1. Source: Gretton et al. (2007).
    """
    left, right, _ = _centred(kernel_x, kernel_y, x, y)
    return float(np.mean(left * right))


def independence_test(
    kernel_x: Kernel,
    kernel_y: Kernel,
    x: ArrayLike,
    y: ArrayLike,
    permutations: int = 500,
    rng: np.random.Generator | int = 0,
) -> PermutationTest:
    """
    Test whether x and y of pairs (x_i, y_i) are independent, by HSIC.

    Permutations reassign the y to the x. Points of a time series are not exchangeable: thin them
    first. Shapes: (n, ...), (n, ...); O(n^2) for each permutation.
    """
    left, right, rounding = _centred(kernel_x, kernel_y, x, y)
    generator = np.random.default_rng(rng)
    orders = (
        generator.permutation(len(left)) for _ in range(as_count('permutations', permutations))
    )
    null = np.array([np.mean(left * right[np.ix_(order, order)]) for order in orders])
    return PermutationTest(float(np.mean(left * right)), null, rounding)


def _pooled(kernel: Kernel, x: ArrayLike, y: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return the Gram matrix of all points, and ones for the smaller sample."""
    left = as_sample('x', x)
    right = as_sample('y', y, left.shape[1:])
    if min(len(left), len(right)) < 2:
        raise KernelError(
            f'x, y: expected two samples of at least two points, got {len(left)} and {len(right)}'
        )
    # sums over the smaller sample lose fewer digits
    small, large = sorted((left, right), key=len)
    members = np.repeat([1.0, 0.0], [len(small), len(large)])
    return kernel.gram(np.concatenate([small, large])), members


def _unbiased(gram: FloatArray, members: FloatArray) -> FloatArray:
    """Squared MMDs (p,) of the points of the rows of `members` (p, m + n) against the others."""
    others = 1.0 - members
    pulled = members @ gram
    m, n = members.sum(axis=1), others.sum(axis=1)
    own = (np.sum(pulled * members, axis=1) - members @ gram.diagonal()) / (m * (m - 1.0))
    second = np.sum((gram.sum(axis=0) - pulled) * others, axis=1)
    other = (second - others @ gram.diagonal()) / (n * (n - 1.0))
    return np.asarray(own + other - 2.0 * np.sum(pulled * others, axis=1) / (m * n))


def _centred(
    kernel_x: Kernel, kernel_y: Kernel, x: ArrayLike, y: ArrayLike
) -> tuple[FloatArray, FloatArray, float]:
    """Return G_X centred, G_Y, and the size of a rounding error of HSIC."""
    left = as_sample('x', x)
    gram = kernel_x.gram(left)
    other = kernel_y.gram(as_sample('y', y, size=len(left)))
    mean = gram.mean(axis=0)
    rounding = smallest_ridge(gram) * float(np.abs(other.diagonal()).mean())
    return gram - mean - mean[:, np.newaxis] + mean.mean(), other, rounding
