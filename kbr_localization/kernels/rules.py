"""
The rules of kernel Bayesian inference, on Gram matrices and weights.

Notation: training pairs (X_i, Y_i), i = 1..n; Gram matrices G_X, G_Y; kernel vector
k_Y = (k_Y(Y_i, y))_i; a prior kernel mean m_Pi that enters only by its values at the sample,
m_Pi(X) = (m_Pi(X_1), ..., m_Pi(X_n)). Weights are signed.

The convention for the regularisation constants
    epsilon and delta are the Tikhonov constants of the *operators*: C_XX + epsilon I in the sum
    rule, C_WW + delta I (thresholded) or C_WW^2 + delta I (squared) in Bayes' rule. Since
    C_XX = 1/n sum_i k(., X_i) (x) k(., X_i), epsilon meets Gram matrices as G_X + n epsilon I;
    since C_WW = sum_i mu_i k(., Y_i) (x) k(., Y_i) and the sum-rule weights
    mu = (G_X + n epsilon I)^-1 m_Pi(X) already carry the 1/n, delta stands without n.
    Consequences, all tested: repeating every training pair changes no kernel mean; multiplying mu
    by c equals dividing delta by c (thresholded) or c^2 (squared); for mu = 1/n the thresholded
    rule is the conditional mean with epsilon = delta.
    [KBR] Fig. 1 gives mu a further factor n: its delta is n^2 times ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbr_localization.errors import KernelError
from kbr_localization.kernels import array_rules, low_rank_rules
from kbr_localization.kernels.checks import (
    as_columns,
    as_floats,
    as_gram,
    as_points,
    as_positive,
    as_square,
    as_weights,
    FloatArray,
    IndexArray,
    NoMassError,
    require,
    require_finite,
    require_mass,
)
from kbr_localization.kernels.conditional_means import ConditionalKernelMean
from kbr_localization.kernels.linalg import RegularisedCholesky, solve_root_form
from kbr_localization.kernels.low_rank import LowRankGram, RegularisedLowRank
import numpy as np
from numpy.typing import ArrayLike, NDArray

GramMatrix = ArrayLike | LowRankGram
RegularisedGram = RegularisedCholesky | RegularisedLowRank | array_rules.ArrayRegularised
BayesRule = Callable[[GramMatrix, ArrayLike, ArrayLike, float], FloatArray]


def regularise(gram: GramMatrix, epsilon: float) -> RegularisedGram:
    """
    Factor G + n epsilon I once, for any number of sum rules and conditional means.

    Shapes: (n, n). A factorisation that fails by rounding raises epsilon and logs it. Arrays of
    other libraries stay on their device, see `array_rules`.
    """
    if isinstance(gram, LowRankGram):
        ridge = gram.size * as_positive('epsilon', epsilon)
        return RegularisedLowRank(gram, ridge, name='n * epsilon')
    if array_rules.is_foreign(gram):
        array_rules.require_square('gram', gram)
        ridge = np.shape(gram)[0] * as_positive('epsilon', epsilon)
        return array_rules.ArrayRegularised(gram, ridge, name='n * epsilon')
    matrix = as_gram('gram', gram)
    ridge = matrix.shape[0] * as_positive('epsilon', epsilon)
    return RegularisedCholesky(matrix, ridge, name='n * epsilon')


def conditional_mean(regularised_gram_x: RegularisedGram, k_x: ArrayLike) -> FloatArray:
    """
    Weights on Y_i of the conditional kernel mean of Y given x: (G_X + n epsilon I)^-1 k_X(x).

    Shapes: `k_x` (n,) or one column per query (n, q) -> the same. Source: [MbKSR] eq. 7.
    """
    return _solve(regularised_gram_x, 'k_x', k_x)


def nonparametric_sum_rule(
    regularised_gram_x: RegularisedGram, prior_at_sample: ArrayLike
) -> FloatArray:
    """
    NP-KSR: weights mu = (G_X + n epsilon I)^-1 m_Pi(X) on Y_i, of the law of Y when X ~ Pi.

    The same weights on the pairs (X_i, Y_i) represent the joint law (the kernel chain rule).
    Shapes: m_Pi(X) (n,) or (n, q) -> the same. Source: [MbKSR] eq. 13, [KBR] Prop. 3 without n.
    """
    return _solve(regularised_gram_x, 'prior_at_sample', prior_at_sample)


def model_based_sum_rule(
    conditional_kernel_mean: ConditionalKernelMean,
    z: ArrayLike,
    f_x: ArrayLike,
    weights: ArrayLike,
) -> FloatArray:
    """
    Mb-KSR: evaluate m_Q = sum_j gamma_j m(. | x_j) at z, with no training data.

    `conditional_kernel_mean`: of a noise model, see `Noise.conditional_kernel_mean`; `f_x`: the
    noise-free images f(x_j) of the prior's points; `weights` gamma.
    Shapes: (m, d), (n, d), (n,) -> (m,). Source: [MbKSR] eq. 21.
    """
    if not hasattr(conditional_kernel_mean, 'cross_gram'):
        raise KernelError(
            'conditional_kernel_mean: expected what Noise.conditional_kernel_mean(kernel) '
            f'returns, got {type(conditional_kernel_mean).__name__}'
        )
    images = as_points('f_x', f_x)
    gamma = as_weights('weights', weights, len(images))
    transition = conditional_kernel_mean.cross_gram(as_points('z', z, images.shape[1]), images)
    return np.asarray(transition @ gamma, dtype=np.float64)


def squared_bayes_rule(
    gram_y: GramMatrix, mu: ArrayLike, k_y: ArrayLike, delta: float
) -> FloatArray:
    """
    Posterior weights w = L G ((L G)^2 + delta I)^-1 L k, with L = diag(mu), of any sign.

    Solved in its root form w = Re (G + i sqrt(delta) L^-1)^-1 k on the points with mu != 0, one
    complex symmetric solve that does not square the condition number. `delta` is that of
    C_WW^2 + delta I: it compares with the square of the thresholded rule's; [KBR] Fig. 1 has n^2
    times this value, because its mu is n times ours.
    Shapes: (n, n), (n,), (n,) or (n, q) -> as `k_y`. Source: [KBR] eq. 13, "KBR".
    """
    if isinstance(gram_y, LowRankGram):
        return low_rank_rules.squared_bayes_rule(gram_y, mu, k_y, delta).values
    if array_rules.is_foreign(gram_y):
        return _array(array_rules.squared_bayes_rule(gram_y, mu, k_y, delta))
    matrix, weights, columns = _checked(gram_y, mu, k_y)
    active, half, block = _active_block(matrix, weights, weights != 0)
    signs = np.sign(weights[active])
    observed = _scale(half, columns[active])
    solution, _ = solve_root_form(block, signs, as_positive('delta', delta), observed)
    return _scatter(columns, active, _scale(half, solution.real))


def thresholded_bayes_rule(
    gram_y: GramMatrix, mu: ArrayLike, k_y: ArrayLike, delta: float
) -> FloatArray:
    """
    Posterior weights w_S = (G_SS + delta diag(1 / mu_S))^-1 k_S on S = {mu > 0}, 0 elsewhere.

    Solved as w = D (D G D + delta I)^-1 D k with D = diag(sqrt(max(mu, 0))): symmetric, and well
    conditioned however small a weight is. `delta` is that of C_WW + delta I, without n: for
    mu = 1/n it is the epsilon of the conditional mean, and it compares with the square root of
    the squared rule's delta.
    Shapes: (n, n), (n,), (n,) or (n, q) -> as `k_y`. Source: [kReg] eq. 8, "pKBR".
    """
    if isinstance(gram_y, LowRankGram):
        return low_rank_rules.thresholded_bayes_rule(gram_y, mu, k_y, delta).values
    if array_rules.is_foreign(gram_y):
        return _array(array_rules.thresholded_bayes_rule(gram_y, mu, k_y, delta))
    matrix, weights, columns = _checked(gram_y, mu, k_y)
    active, half, block = _active_block(matrix, weights, weights > 0)
    factor = RegularisedCholesky(block, as_positive('delta', delta), name='delta')
    solution = factor.solve(_scale(half, columns[active]))
    return _scatter(columns, active, _scale(half, solution))


BAYES_RULES: dict[str, BayesRule] = {
    'squared': squared_bayes_rule,
    'thresholded': thresholded_bayes_rule,
}
"""The rules that differ in nothing but the regularisation, by their names."""

PAPER_NAMES = {'KBR': 'squared', 'pKBR': 'thresholded', 'IW-KBR': 'thresholded'}
"""
The same by the names of [KBR], [kReg] and [IW-KBR].

IW-KBR with the KuLSIF density ratio is the thresholded rule, see `importance_weighted_bayes_rule`.
"""


def importance_weighted_bayes_rule(
    gram_y: GramMatrix, density_ratio: ArrayLike, k_y: ArrayLike, delta: float
) -> FloatArray:
    """
    Posterior weights from density ratios r_i = dPi/dP_X(X_i), by any estimator of them.

    It is the thresholded rule with mu = max(r, 0) / n, in the symmetric form of [IW-KBR]; with
    the KuLSIF estimate r = n (G_X + n epsilon I)^-1 m_Pi(X) the two are the same. `delta`: as in
    the thresholded rule, without n.
    Shapes: (n, n), (n,), (n,) or (n, q) -> as `k_y`.
    """
    size = _size(gram_y)
    if array_rules.is_foreign(density_ratio):
        return thresholded_bayes_rule(gram_y, _array(density_ratio) / size, k_y, delta)
    mu = as_weights('density_ratio', density_ratio, size) / size
    return thresholded_bayes_rule(gram_y, mu, k_y, delta)


def regularised_bayes_rule(
    gram_y: GramMatrix,
    mu: ArrayLike,
    k_y: ArrayLike,
    delta: float,
    supervision_weight: ArrayLike,
) -> FloatArray:
    """
    kRegBayes: the thresholded rule with supervision pairs (y_j, t_j) appended to the sample.

    `gram_y` and `k_y` are of the observations Y_1..Y_n followed by the s supervised ones;
    `supervision_weight` scalar or (s,) takes the place of mu_j there (delta' in [kReg] eq. 10: the
    penalty on the distance of the posterior given y_j from the point t_j). `delta`: as in the
    thresholded rule, without n.
    Shapes: (n + s, n + s), (n,), (n + s,) or (n + s, q) -> as `k_y`: weights on X_i, then on t_j.
    Source: [kReg] eq. 11.
    """
    prior = as_floats('mu', mu)
    count = _size(gram_y) - prior.size
    strength = as_floats('supervision_weight', supervision_weight)
    if prior.ndim != 1 or count < 0 or strength.shape not in ((), (count,)):
        raise KernelError(
            f'supervision_weight: expected a number or shape ({count},), got {strength.shape}, '
            f'with mu of shape {prior.shape} and a Gram matrix of {_size(gram_y)} points: append '
            'the supervised observations to the sample'
        )
    if np.any(strength <= 0):
        raise KernelError(
            f'supervision_weight: expected positive numbers, got {strength.min():g}: leave out '
            'pairs without weight'
        )
    extended = np.concatenate([prior, np.broadcast_to(strength, count)])
    return thresholded_bayes_rule(gram_y, extended, k_y, delta)


def normalise(weights: ArrayLike) -> FloatArray:
    """
    Weights divided by their sum, so that the expectation of 1 is 1.

    Shapes: (n,) -> (n,). Raises NoMassError when the sum is not positive beyond its rounding.
    """
    array = as_floats('weights', weights)
    array = as_weights('weights', array, array.size)
    total, size = float(array.sum()), float(np.abs(array).sum())
    if not total > array.size * np.finfo(np.float64).eps * size:
        raise NoMassError(
            f'weights: expected a positive sum, got {total:.3g} over shape {array.shape} with '
            f'sizes of sum {size:.3g}: the observation is unlike every point that the prior '
            'supports; raise delta, or start again from the conditional mean'
        )
    return np.asarray(array / total, dtype=np.float64)


def _solve(gram: RegularisedGram, name: str, columns: ArrayLike) -> FloatArray:
    kinds = (RegularisedCholesky, RegularisedLowRank, array_rules.ArrayRegularised)
    require('regularised_gram_x', gram, kinds, 'the result of regularise(gram, epsilon)')
    if isinstance(gram, array_rules.ArrayRegularised):
        solution: FloatArray = gram.solve(columns)
        return solution
    return gram.solve(as_columns(name, columns, gram.size))


def _array(value: Any) -> FloatArray:
    # an array of another library, which the types of NumPy cannot name
    result: FloatArray = value
    return result


def _size(gram: GramMatrix) -> int:
    if array_rules.is_foreign(gram):
        return int(_array(gram).shape[0])
    return gram.size if isinstance(gram, LowRankGram) else as_square('gram_y', gram).shape[0]


def _checked(
    gram_y: ArrayLike, mu: ArrayLike, k_y: ArrayLike
) -> tuple[FloatArray, FloatArray, FloatArray]:
    matrix = as_gram('gram_y', gram_y)
    size = matrix.shape[0]
    return matrix, as_weights('mu', mu, size), as_columns('k_y', k_y, size)


def _active_block(
    matrix: FloatArray, weights: FloatArray, mask: NDArray[np.bool_]
) -> tuple[IndexArray, FloatArray, FloatArray]:
    """Return active indices S, sqrt|mu_S| and sqrt|mu_S| G_SS sqrt|mu_S|."""
    active = require_mass(weights, mask)
    half = np.sqrt(np.abs(weights[active]))
    selected = active.size < weights.size
    block = matrix[active][:, active] if selected else matrix.copy()
    require_finite('gram_y', block)
    block *= half[:, np.newaxis]
    block *= half
    return active, half, block


def _scale(half: FloatArray, columns: FloatArray) -> FloatArray:
    return np.asarray((columns.T * half).T, dtype=np.float64)


def _scatter(like: FloatArray, active: IndexArray, values: FloatArray) -> FloatArray:
    result = np.zeros_like(like)
    result[active] = values
    return result
