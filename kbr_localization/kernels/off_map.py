"""
Kernel Bayes' rule off the training sample.

A belief lies on points U_j, weights gamma_j, anywhere. Training pairs (X_i, Y_i) give the
conditional kernel mean m_{Y|x} = sum_i b_i(x) k_Y(., Y_i), b(x) = (G_X + n epsilon I)^-1 k_X(x)
([MbKSR] eq. 7). With B = [b(U_1) ... b(U_m)] and mu = B gamma the operators of the belief are

    C_UY = sum_j gamma_j phi(U_j) (x) m_{Y|U_j},
    C_YY = sum_i mu_i k_Y(., Y_i) (x) k_Y(., Y_i),

and C_UY (C_YY + delta I)^-1 k_Y(., y) ([KBR] eq. 10) has the weights, on the same points,

    w = gamma * (B^T f),    f = (G_Y diag(mu) + delta I)^-1 k_Y(y),

with zero in place of negative gamma and mu.

For U = X and epsilon -> 0 it is the thresholded rule of [kReg] eq. 8; for delta -> infinity
delta w is gamma_j m_{Y|U_j}(y), the conditional kernel mean evaluated at the observation.
"""

from __future__ import annotations

from kbr_localization.kernels.checks import as_floats, as_positive, FloatArray
from kbr_localization.kernels.linalg import RegularisedCholesky
import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import lapack


def off_map_bayes_rule(
    smoother: ArrayLike, gram_y: ArrayLike, prior: ArrayLike, k_y: ArrayLike, delta: float
) -> FloatArray:
    """
    Posterior weights w = gamma * (B^T f) of a belief on points off the sample; see the module.

    `smoother`: B (n, m), one column b(U_j) for each point; `prior`: gamma (m,).
    Shapes: (n, m), (n, n), (m,), (n,) -> (m,).
    """
    weights = np.maximum(as_floats('prior', prior, 'm'), 0.0)
    smooth = as_floats('smoother', smoother, 'n', len(weights))
    matrix = as_floats('gram_y', gram_y, len(smooth), len(smooth))
    mu = np.maximum(smooth @ weights, 0.0)
    f = observation_weights(
        matrix, mu, as_floats('k_y', k_y, len(mu)), as_positive('delta', delta)
    )
    return np.asarray(weights * (smooth.T @ f))


def observation_weights(
    gram_y: FloatArray, mu: FloatArray, k_y: FloatArray, delta: float
) -> FloatArray:
    """
    Solve f = (G_Y diag(mu) + delta I)^-1 k_Y(y) for mu >= 0; the arguments are not checked.

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
