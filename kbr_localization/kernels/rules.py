"""
The rules of kernel Bayesian inference, on Gram matrices and weights.

Notation: training pairs (X_i, Y_i), i = 1..n; Gram matrices G_X, G_Y, dense or low rank; kernel
vector k_Y = (k_Y(Y_i, y))_i; a prior kernel mean m_Pi, of which only the values at the sample are
needed, m_Pi(X) = (m_Pi(X_1), ..., m_Pi(X_n)). Weights are signed.

Convention for the regularisation constants
    epsilon and delta are the Tikhonov constants of the *operators*: C_XX + epsilon I in the sum
    rule, C_WW + delta I (thresholded) or C_WW^2 + delta I (squared) in Bayes' rule. Since
    C_XX = 1/n sum_i k(., X_i) (x) k(., X_i), epsilon becomes G_X + n epsilon I on Gram matrices.
    Since C_WW = sum_i mu_i k(., Y_i) (x) k(., Y_i) and the sum-rule weights
    mu = (G_X + n epsilon I)^-1 m_Pi(X) already contain the 1/n, delta has no factor n.
    Repeating every training pair changes no kernel mean. Multiplying mu by c equals dividing
    delta by c (thresholded) or c^2 (squared). For mu = 1/n the thresholded rule is the
    conditional mean with epsilon = delta.
    In [KBR] Fig. 1 mu has an additional factor n, so its delta is n^2 times that used here.
"""

from collections.abc import Callable
import warnings

from kbr_localization.errors import KernelError
from kbr_localization.kernels.checks import (
    as_floats,
    as_gram,
    as_positive,
    FloatArray,
    NoMassError,
    require_finite,
)
from kbr_localization.kernels.linalg import (
    LowRankGram,
    RegularisedCholesky,
    RegularisedLowRank,
    solve_root_form,
)
import numpy as np
from numpy.typing import ArrayLike

GramMatrix = ArrayLike | LowRankGram
RegularisedGram = RegularisedCholesky | RegularisedLowRank
BayesRule = Callable[[GramMatrix, ArrayLike, ArrayLike, float], FloatArray]


def regularise(gram: GramMatrix, epsilon: float) -> RegularisedGram:
    """
    Factor G + n epsilon I once, for any number of sum rules and conditional means.

    Shapes: (n, n). If rounding makes the factorisation fail, epsilon is raised and this is logged.
    """
    epsilon = as_positive('epsilon', epsilon)
    if isinstance(gram, LowRankGram):
        return RegularisedLowRank(gram.factor, len(gram) * epsilon, 'n * epsilon')
    matrix = as_gram('gram', gram)
    return RegularisedCholesky(matrix, len(matrix) * epsilon, 'n * epsilon')


def conditional_mean(regularised_gram_x: RegularisedGram, k_x: ArrayLike) -> FloatArray:
    """
    Return weights (G_X + n epsilon I)^-1 k_X(x) on Y_i of the conditional kernel mean of Y.

    Shapes: `k_x` (n,) or one column per query (n, q) -> the same. Source: [MbKSR] eq. 7.
    """
    return regularised_gram_x.solve(k_x)


def nonparametric_sum_rule(
    regularised_gram_x: RegularisedGram, prior_at_sample: ArrayLike
) -> FloatArray:
    """
    NP-KSR: weights mu = (G_X + n epsilon I)^-1 m_Pi(X) on Y_i, for the law of Y if X ~ Pi.

    The same weights on the pairs (X_i, Y_i) represent the joint law (the kernel chain rule).
    Shapes: m_Pi(X) (n,) or (n, q) -> the same. Source: [MbKSR] eq. 13, [KBR] Prop. 3 without n.
    """
    return regularised_gram_x.solve(prior_at_sample)


def squared_bayes_rule(
    gram_y: GramMatrix, mu: ArrayLike, k_y: ArrayLike, delta: float
) -> FloatArray:
    """
    KBR: posterior weights w = L G ((L G)^2 + delta I)^-1 L k, L = diag(mu), mu of any sign.

    Solved in the root form w = Re (G + i sqrt(delta) L^-1)^-1 k on the points with mu != 0, which
    does not square the condition number; for G = Gamma Gamma^T as
    w = L Gamma (S^2 + delta I)^-1 Gamma^T L k, S = Gamma^T L Gamma. `delta` is used in
    C_WW^2 + delta I and corresponds to the square of the delta of the thresholded rule. The delta
    of [KBR] Fig. 1 is n^2 times this value, because its mu is n times larger.
    Shapes: (n, n), (n,), (n,) or (n, q) -> as `k_y`. Source: [KBR] eq. 13, "KBR".
    """
    return _bayes_rule(gram_y, mu, k_y, delta, is_squared=True)


def thresholded_bayes_rule(
    gram_y: GramMatrix, mu: ArrayLike, k_y: ArrayLike, delta: float
) -> FloatArray:
    """
    pKBR: w_S = (G_SS + delta diag(1 / mu_S))^-1 k_S on S = {mu > 0}, 0 elsewhere.

    Solved as w = D (D G D + delta I)^-1 D k with D = diag(sqrt(max(mu, 0))), which is symmetric
    and well conditioned for arbitrarily small weights. `delta` is used in C_WW + delta I, without
    n: for mu = 1/n it is the epsilon of the conditional mean. It corresponds to the square root of
    the delta of the squared rule.
    Shapes: (n, n), (n,), (n,) or (n, q) -> as `k_y`. Source: [kReg] eq. 8, "pKBR".
    """
    return _bayes_rule(gram_y, mu, k_y, delta, is_squared=False)


BAYES_RULES: dict[str, BayesRule] = {
    'squared': squared_bayes_rule,
    'thresholded': thresholded_bayes_rule,
}
"""The two ways to regularise Bayes' rule."""

PAPER_NAMES = {'KBR': 'squared', 'pKBR': 'thresholded', 'IW-KBR': 'thresholded'}
"""Their names in [KBR], [kReg] and [IW-KBR]."""


def importance_weighted_bayes_rule(
    gram_y: GramMatrix, density_ratio: ArrayLike, k_y: ArrayLike, delta: float
) -> FloatArray:
    """
    IW-KBR: posterior weights from density ratios r_i = dPi/dP_X(X_i), by any estimator.

    This is the thresholded rule with mu = max(r, 0) / n, in the symmetric form of [IW-KBR]. With
    the KuLSIF estimate r = n (G_X + n epsilon I)^-1 m_Pi(X) it equals pKBR. `delta`: as in the
    thresholded rule. Shapes: (n, n), (n,), (n,) or (n, q) -> as `k_y`.
    """
    ratio = as_floats('density_ratio', density_ratio)
    return thresholded_bayes_rule(gram_y, ratio / ratio.size, k_y, delta)


def regularised_bayes_rule(
    gram_y: GramMatrix,
    mu: ArrayLike,
    k_y: ArrayLike,
    delta: float,
    supervision_weight: ArrayLike,
) -> FloatArray:
    """
    kRegBayes: the thresholded rule with supervision pairs (y_j, t_j) appended to the sample.

    `gram_y` and `k_y` belong to the observations Y_1..Y_n followed by the s supervised ones.
    `supervision_weight`, scalar or (s,), replaces mu_j there: it is delta in [kReg] eq. 10, the
    penalty on the squared distance between the posterior given y_j and the point t_j.
    Shapes: (n + s, n + s), (n,), (n + s,) or (n + s, q) -> as `k_y`: weights on X_i, then on t_j.
    Source: [kReg] eq. 11.
    """
    prior = as_floats('mu', mu, 'n')
    matrix = gram_y if isinstance(gram_y, LowRankGram) else as_gram('gram_y', gram_y)
    count = len(matrix) - len(prior)
    strength = as_floats('supervision_weight', supervision_weight)
    if count < 0 or strength.shape not in ((), (count,)) or np.any(strength <= 0):
        raise KernelError(
            f'supervision_weight: expected a positive number or {count} positive numbers, for the '
            f'points of gram_y after those of mu, got {strength}'
        )
    extended = np.concatenate([prior, np.broadcast_to(strength, count)])
    return thresholded_bayes_rule(matrix, extended, k_y, delta)


def off_map_bayes_rule(
    smoother: ArrayLike, gram_y: ArrayLike, prior: ArrayLike, k_y: ArrayLike, delta: float
) -> FloatArray:
    """
    Return posterior weights w = gamma * (B^T f) for a prior gamma on points U_j other than X_i.

    Column j of `smoother` B holds the weights b(U_j) = (G_X + n epsilon I)^-1 k_X(U_j) of the
    conditional kernel mean m_{Y|U_j} ([MbKSR] eq. 7). With C_UY = sum_j gamma_j phi(U_j) (x)
    m_{Y|U_j} and mu = B gamma, C_UY (C_YY + delta I)^-1 k_Y(., y) ([KBR] eq. 10) has these
    weights, where f = (G_Y diag(mu) + delta I)^-1 k_Y(y). Negative gamma and mu are set to zero.
    For U = X and epsilon -> 0 this is the thresholded rule. For delta -> infinity, delta w tends
    to gamma_j m_{Y|U_j}(y), the conditional kernel mean evaluated at the observation.
    Shapes: (n, m), (n, n), (m,), (n,) -> (m,).
    """
    weights = np.maximum(as_floats('prior', prior, 'm'), 0.0)
    smooth = as_floats('smoother', smoother, 'n', len(weights))
    matrix, k = as_gram('gram_y', gram_y), as_floats('k_y', k_y, len(smooth))
    f = observation_weights(matrix, np.maximum(smooth @ weights, 0.0), k, delta)
    return np.asarray(weights * (smooth.T @ f))


def observation_weights(
    gram_y: FloatArray, mu: FloatArray, k_y: FloatArray, delta: float
) -> FloatArray:
    """
    Solve f = (G_Y diag(mu) + delta I)^-1 k_Y(y) for mu >= 0.

    With the weights w = mu * f of the thresholded rule, f is w / mu where mu is positive. Where mu
    is zero, f is (k - G_Y w) / delta, which is less exact for a small delta.
    Shapes: (n, n), (n,), (n,) or (n, q) -> as `k_y`.
    """
    positive, weights = mu > 0.0, np.zeros_like(k_y)
    if positive.any():
        weights = thresholded_bayes_rule(gram_y, mu, k_y, delta)
    f = np.asarray((k_y - gram_y @ weights) / delta)
    f[positive] = (weights[positive].T / mu[positive]).T
    return f


def normalise(weights: ArrayLike) -> FloatArray:
    """
    Divide weights (n,) by their sum, so that the expectation of 1 is 1.

    Warns if the sum is below 1% of the sum of absolute values. Raises NoMassError if the sum is
    not positive beyond rounding.
    """
    array = as_floats('weights', weights)
    total, size = float(array.sum()), float(np.abs(array).sum())
    if not total > array.size * np.finfo(np.float64).eps * size:
        raise NoMassError(
            f'weights: expected a positive sum, got {total:.3g}: the observation is unlike every '
            'point that the prior supports; raise delta, or restart from the conditional mean'
        )
    warn_if_cancelling(total / size)
    return np.asarray(array / total)


def warn_if_cancelling(share: float) -> None:
    """Warn if `share`, sum w / sum |w|, is below 1%: expectations then amplify errors by 100."""
    if share < 0.01:
        warnings.warn(
            'posterior weights cancel: their sum is below 1% of the sum of their absolute values, '
            'and expectations are unreliable; raise delta',
            RuntimeWarning,
            stacklevel=3,
        )


def _bayes_rule(
    gram_y: GramMatrix, mu: ArrayLike, k_y: ArrayLike, delta: float, is_squared: bool
) -> FloatArray:
    """Solve on the points of usable prior weight, scaled by diag(sqrt|mu|) on both sides."""
    gram = gram_y if isinstance(gram_y, LowRankGram) else as_gram('gram_y', gram_y)
    weights = as_floats('mu', mu, len(gram))
    columns = as_floats('k_y', k_y, len(gram), ...)
    delta = as_positive('delta', delta)
    active = np.flatnonzero(weights if is_squared else weights > 0)
    if active.size == 0:
        raise NoMassError(
            f'mu: expected at least one usable weight, got {int(np.sum(weights < 0))} negative '
            f'and {int(np.sum(weights == 0))} zero ones: the prior has no mass near the sample; '
            'raise epsilon or widen the kernel'
        )
    signs = np.sign(weights[active])
    root = np.sqrt(np.abs(weights[active]))[:, np.newaxis]
    right = root * columns.reshape(len(gram), -1)[active]
    if isinstance(gram, LowRankGram):
        factor = root * gram.factor[active]
        if is_squared:
            # (S^2 + delta)^-1 = -Im (S + i sqrt(delta))^-1 / sqrt(delta)
            signed = signs[:, np.newaxis] * factor
            inner, used = solve_root_form(factor.T @ signed, 1.0, delta, signed.T @ right)
            solution = signed @ inner.imag / -np.sqrt(used)
        else:
            solution = RegularisedLowRank(factor, delta, 'delta').solve(right)
    else:
        block = gram[active][:, active] if len(active) < len(gram) else gram.copy()
        require_finite('gram_y', block)
        block *= root
        block *= root.T
        if is_squared:
            solution = solve_root_form(block, signs, delta, right)[0].real
        else:
            solution = RegularisedCholesky(block, delta, 'delta').solve(right)
    result = np.zeros((len(gram), right.shape[1]))
    result[active] = root * solution
    return result.reshape(columns.shape)
