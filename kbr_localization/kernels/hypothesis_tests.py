"""
Permutation tests with kernel means: are two samples of one law, are two variables independent.

Sources: Gretton, Borgwardt, Rasch, Schoelkopf, Smola, *A kernel two-sample test* (2012); Gretton,
Fukumizu, Teo, Song, Schoelkopf, Smola, *A kernel statistical test of independence* (2007).
"""

from __future__ import annotations

from dataclasses import dataclass

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel, require_kernel
from kbr_localization.kernels.checks import as_count, as_generator, FloatArray, IndexArray
from kbr_localization.kernels.inference import as_pairs
from kbr_localization.kernels.linalg import smallest_ridge
import numpy as np
from numpy.typing import ArrayLike

Rng = np.random.Generator | int


@dataclass(frozen=True, eq=False)
class PermutationTest:
    """
    Outcome of a permutation test.

    `statistic`: of the data; `null`: (permutations,) of the permuted data; `p_value`: fraction of
    both that reaches the statistic, (1 + #{null >= statistic}) / (1 + permutations), which is
    valid at every sample size; `rounding`: what is below the statistic by less is equal to it.
    """

    statistic: float
    null: FloatArray
    rounding: float = 0.0

    @property
    def p_value(self) -> float:
        """Return the p-value."""
        reached = int(np.count_nonzero(self.null >= self.statistic - self.rounding))
        return (1 + reached) / (1 + self.null.size)


def squared_mmd(kernel: Kernel, x: ArrayLike, y: ArrayLike) -> float:
    """
    Unbiased estimate of the squared maximum mean discrepancy of two laws; it may be negative.

    Shapes: (m, ...), (n, ...), m, n > 1. Source: Gretton et al. (2012) Lemma 6.
    """
    gram, count = _pooled(kernel, x, y)
    return float(_unbiased(gram, _members(np.arange(len(gram)), count))[0])


def two_sample_test(
    kernel: Kernel, x: ArrayLike, y: ArrayLike, permutations: int = 500, rng: Rng = 0
) -> PermutationTest:
    """
    Test whether x and y are samples of one law, by the MMD.

    The pooled points are dealt anew to both samples. `kernel` has to be characteristic to see
    every difference. Shapes: (m, ...), (n, ...); O((m + n)^2) for each permutation, all of them in
    one product of matrices.
    """
    gram, count = _pooled(kernel, x, y)
    order = np.arange(len(gram))
    generator = as_generator('rng', rng)
    deals = [generator.permutation(order) for _ in range(as_count('permutations', permutations))]
    members = [_members(deal, count) for deal in (order, *deals)]
    statistic, *null = _unbiased(gram, np.concatenate(members))
    return PermutationTest(float(statistic), np.array(null), smallest_ridge(gram))


def hsic(kernel_x: Kernel, kernel_y: Kernel, x: ArrayLike, y: ArrayLike) -> float:
    """
    Biased estimate tr(G_X H G_Y H) / n^2 of the squared Hilbert-Schmidt norm of C_XY.

    H = I - 1/n centres. Shapes: pairs (n, ...), (n, ...), n > 1. Source: Gretton et al. (2007).
    """
    left, right, _ = _centred(kernel_x, kernel_y, x, y)
    return float(np.sum(left * right)) / len(left) ** 2


def independence_test(
    kernel_x: Kernel,
    kernel_y: Kernel,
    x: ArrayLike,
    y: ArrayLike,
    permutations: int = 500,
    rng: Rng = 0,
) -> PermutationTest:
    """
    Test whether x and y of pairs (x_i, y_i) are independent, by HSIC.

    The y are dealt anew to the x. Points of a time series are not exchangeable: thin them first.
    Shapes: (n, ...), (n, ...); O(n^2) for each permutation.
    """
    left, right, rounding = _centred(kernel_x, kernel_y, x, y)
    generator = as_generator('rng', rng)
    scale = 1.0 / len(left) ** 2
    null = np.empty(as_count('permutations', permutations))
    for i in range(null.size):
        order = generator.permutation(len(left))
        null[i] = scale * np.sum(left * right[np.ix_(order, order)])
    return PermutationTest(scale * float(np.sum(left * right)), null, rounding)


def _pooled(kernel: Kernel, x: ArrayLike, y: ArrayLike) -> tuple[FloatArray, int]:
    require_kernel('kernel', kernel)
    left, right = kernel.encode('x', x), kernel.encode('y', y)
    if left.shape[1:] != right.shape[1:] or min(len(left), len(right)) < 2:
        raise KernelError(
            f'x, y: expected two samples of at least two points of one shape, got {left.shape} '
            f'and {right.shape}: give (m, d) and (n, d)'
        )
    return kernel.gram(np.concatenate([left, right])), len(left)


def _members(order: IndexArray, count: int) -> FloatArray:
    """Return one row (1, m + n) with ones for the first `count` points of an order."""
    row = np.zeros((1, len(order)))
    row[0, order[:count]] = 1.0
    return row


def _unbiased(gram: FloatArray, members: FloatArray) -> FloatArray:
    """Squared MMDs (p,) of the points of the rows of `members` (p, m + n) against the others."""
    others = 1.0 - members
    # the sum over few points is not what those over all and over many leave: that is rounding
    if 2.0 * members[0].sum() > members.shape[1]:
        members, others = others, members
    pulled = members @ gram
    first = np.sum(pulled * members, axis=1)
    across = np.sum(pulled * others, axis=1)
    second = np.sum((gram.sum(axis=0) - pulled) * others, axis=1)
    diagonal = members @ gram.diagonal()
    m, n = members.sum(axis=1), others.sum(axis=1)
    own = (first - diagonal) / (m * (m - 1.0))
    other = (second - others @ gram.diagonal()) / (n * (n - 1.0))
    return np.asarray(own + other - 2.0 * across / (m * n), dtype=np.float64)


def _centred(
    kernel_x: Kernel, kernel_y: Kernel, x: ArrayLike, y: ArrayLike
) -> tuple[FloatArray, FloatArray, float]:
    """Return G_X centred, G_Y, and the size of a rounding error of HSIC."""
    require_kernel('kernel_x', kernel_x)
    require_kernel('kernel_y', kernel_y)
    left, right = as_pairs(kernel_x.encode('x', x), kernel_y.encode('y', y))
    if len(left) < 2:
        raise KernelError(f'x, y: expected at least two pairs, got shape {left.shape}')
    gram, other = kernel_x.gram(left), kernel_y.gram(right)
    mean = gram.mean(axis=0)
    rounding = smallest_ridge(gram) * float(np.abs(other.diagonal()).mean())
    return gram - mean - mean[:, np.newaxis] + mean.mean(), other, rounding
