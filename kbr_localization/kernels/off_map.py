"""
Kernel Bayes' rule off the training sample.

A belief lies on points U_j, weights gamma_j, anywhere. Training pairs (X_i, Y_i) give the
conditional kernel mean m_{Y|x} = sum_i b_i(x) k_Y(., Y_i), b(x) = (G_X + n epsilon I)^-1 k_X(x)
([MbKSR] eq. 7). With B = [b(U_1) ... b(U_m)] and mu = B gamma the operators of the belief are

    C_UY = sum_j gamma_j phi(U_j) (x) m_{Y|U_j},
    C_YY = sum_i mu_i k_Y(., Y_i) (x) k_Y(., Y_i),

and C_UY (C_YY + delta I)^-1 k_Y(., y) ([KBR] eq. 10) has the weights, on the same points,

    w = gamma * (B^T f),    f = (G_Y diag(mu) + delta I)^-1 k_Y(y),

negative gamma and mu taken for 0.

For U = X and epsilon -> 0 it is the thresholded rule of [kReg] eq. 8; for delta -> infinity
delta w is gamma_j m_{Y|U_j}(y), the conditional kernel mean evaluated at the observation.
"""

from __future__ import annotations

from kbr_localization.errors import KernelError
from kbr_localization.kernels.checks import (
    as_columns,
    as_floats,
    as_positive,
    as_square,
    as_weights,
    FloatArray,
    require_finite,
)
from kbr_localization.kernels.linalg import RegularisedCholesky, require_symmetric
import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import lapack


def observation_weights(
    gram_y: ArrayLike, mu: ArrayLike, k_y: ArrayLike, delta: float
) -> FloatArray:
    """
    Solve f = (G_Y diag(mu) + delta I)^-1 k_Y(y), with zeros in place of negative mu.

    One symmetric system of the observations whose mu is positive (`solved_observations`); that of
    the others is delta f = k_Y - G_Y mu f.
    Shapes: (n, n), (n,), (n,) or (n, q) -> as `k_y`.
    """
    matrix = as_square('gram_y', gram_y)
    size, weights = matrix.shape[0], as_floats('mu', mu)
    positive = as_weights('mu', weights, size) > 0.0
    columns, ridge = as_columns('k_y', k_y, size), as_positive('delta', delta)
    require_finite('gram_y', matrix)
    require_symmetric('gram_y', matrix)
    f = np.array(columns / ridge)
    if positive.any():
        block, rest = matrix[np.ix_(positive, positive)], matrix[np.ix_(~positive, positive)]
        f[positive] = solved_observations(block, weights[positive], columns[positive], ridge)
        f[~positive] -= rest @ (f[positive].T * weights[positive]).T / ridge
    return f


def solved_observations(
    gram_y: FloatArray, mu: FloatArray, k_y: FloatArray, delta: float
) -> FloatArray:
    """
    `observation_weights` of arrays that are right, mu not negative, without looking at them.

    With h = diag(sqrt(mu)) and s = (h G_Y h + delta I)^-1 h k it is f = s / h where mu is
    positive, and (k - G_Y h s) / delta, which a small delta makes inexact, where it is not.
    Shapes: (n, n), (n,), (n,) or (n, q) -> as `k_y`.
    """
    root = np.sqrt(mu)
    block = root[:, np.newaxis] * gram_y * root
    right = (k_y.T * root).T
    block.flat[:: len(root) + 1] += delta
    _, solved, failed = lapack.dposv(block, right, lower=1)
    if failed:  # a delta that rounding exceeds
        block.flat[:: len(root) + 1] -= delta
        solved = RegularisedCholesky(block, delta, name='delta').solve(right)
    f = np.asarray((k_y - gram_y @ (solved.T * root).T) / delta)
    positive = root > 0.0
    f[positive] = (solved[positive].T / root[positive]).T
    return f


def off_map_bayes_rule(
    smoother: ArrayLike, gram_y: ArrayLike, prior: ArrayLike, k_y: ArrayLike, delta: float
) -> FloatArray:
    """
    Posterior weights w = gamma * (B^T f) of a belief on points off the sample; see the module.

    `smoother`: B (n, m), one column b(U_j) for each point. `prior`: gamma (m,).
    Shapes: (n, m), (n, n), (m,), (n,) -> (m,). Raises KernelError for shapes that do not fit.
    """
    smooth, gamma = as_floats('smoother', smoother), as_floats('prior', prior)
    size = as_square('gram_y', gram_y).shape[0]
    if smooth.ndim != 2 or smooth.shape != (size, gamma.size):
        raise KernelError(
            f'smoother: expected shape ({size}, {gamma.size}), a column b(U_j) for each of the '
            f'{gamma.size} points, got {smooth.shape}'
        )
    weights = np.maximum(as_weights('prior', gamma, gamma.size), 0.0)
    return np.asarray(
        weights * (smooth.T @ observation_weights(gram_y, smooth @ weights, k_y, delta))
    )
