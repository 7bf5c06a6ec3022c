"""
Permutation tests with kernel means: the two-sample test and the independence test.

Sources: Gretton, Borgwardt, Rasch, Schoelkopf, Smola, *A kernel two-sample test* (2012); Gretton,
Fukumizu, Teo, Song, Schoelkopf, Smola, *A kernel statistical test of independence* (2007).
"""

from typing import NamedTuple

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel
from kbr_localization.kernels.checks import as_count, as_floats, FloatArray
from kbr_localization.kernels.linalg import smallest_ridge
import numpy as np
from numpy.typing import ArrayLike


class PermutationTest(NamedTuple):
    """
    Result of a permutation test.

    `statistic`: value for the data; `null`: (permutations,) values for permuted data; `p_value`:
    (1 + #{null >= statistic}) / (1 + permutations), valid at every sample size.
    """

    statistic: float
    null: FloatArray
    p_value: float


def squared_mmd(kernel: Kernel, x: ArrayLike, y: ArrayLike) -> float:
    """
    Return the unbiased estimate of the squared maximum mean discrepancy; it may be negative.

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
    Test whether x and y are samples of the same distribution, by the MMD.

    Permutations redistribute the pooled points. Only a characteristic `kernel` detects every
    difference. Shapes: (m, ...), (n, ...); O((m + n)^2) for each permutation.
    """
    gram, members = _pooled(kernel, x, y)
    generator = np.random.default_rng(rng)
    count = as_count('permutations', permutations)
    permuted = [generator.permutation(members) for _ in range(count)]
    return _result(_unbiased(gram, np.array([members, *permuted])), smallest_ridge(gram))


def hsic(kernel_x: Kernel, kernel_y: Kernel, x: ArrayLike, y: ArrayLike) -> float:
    """
    Return the biased estimate tr(G_X H G_Y H) / n^2 of the squared Hilbert-Schmidt norm of C_XY.

    H = I - 1 1^T / n. Shapes: pairs (n, ...), (n, ...), n > 1. Source: Gretton et al. (2007).
    """
    left, right = _centred(kernel_x, kernel_y, x, y)
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

    Permutations reassign the y to the x. Points of a time series are not exchangeable: subsample
    them first. Shapes: (n, ...), (n, ...); O(n^2) for each permutation.
    """
    left, right = _centred(kernel_x, kernel_y, x, y)
    generator, values = np.random.default_rng(rng), [np.mean(left * right)]
    for _ in range(as_count('permutations', permutations)):
        order = generator.permutation(len(left))
        values.append(np.mean(left * right[np.ix_(order, order)]))
    rounding = smallest_ridge(left) * float(np.abs(right.diagonal()).mean())
    return _result(np.array(values), rounding)


def _result(values: FloatArray, rounding: float) -> PermutationTest:
    """Compare the first value with the others; differences below `rounding` count as ties."""
    statistic, null = float(values[0]), values[1:]
    reached = int(np.count_nonzero(null >= statistic - rounding))
    return PermutationTest(statistic, null, (1 + reached) / (1 + null.size))


def _pooled(kernel: Kernel, x: ArrayLike, y: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return the Gram matrix of all points and the indicator of the smaller sample."""
    left = as_floats('x', x, 'n', 'd', ...)
    right = as_floats('y', y, 'n', *left.shape[1:])
    if min(len(left), len(right)) < 2:
        raise KernelError(
            f'x, y: expected two samples of at least two points, got {len(left)} and {len(right)}'
        )
    # sums over the smaller sample lose fewer digits
    small, large = sorted((left, right), key=len)
    members = np.repeat([1.0, 0.0], [len(small), len(large)])
    return kernel.gram(np.concatenate([small, large])), members


def _unbiased(gram: FloatArray, members: FloatArray) -> FloatArray:
    """Return the squared MMD (p,) for each assignment `members` (p, m + n) to two samples."""
    others = 1.0 - members
    sums = members @ gram
    m, n = members.sum(axis=1), others.sum(axis=1)
    own = (np.sum(sums * members, axis=1) - members @ gram.diagonal()) / (m * (m - 1.0))
    second = np.sum((gram.sum(axis=0) - sums) * others, axis=1)
    other = (second - others @ gram.diagonal()) / (n * (n - 1.0))
    return np.asarray(own + other - 2.0 * np.sum(sums * others, axis=1) / (m * n))


def _centred(
    kernel_x: Kernel, kernel_y: Kernel, x: ArrayLike, y: ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """Return H G_X H and G_Y."""
    left = as_floats('x', x, 'n', 'd', ...)
    gram = kernel_x.gram(left)
    mean = gram.mean(axis=0)
    other = kernel_y.gram(as_floats('y', y, len(left), 'd', ...))
    return gram - mean - mean[:, np.newaxis] + mean.mean(), other
