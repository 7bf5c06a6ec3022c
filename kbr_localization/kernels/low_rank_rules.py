"""
Bayes' rule and the model-based sum rule with low-rank Gram matrices, O(n r^2), with error bounds.

The bounds are of the Euclidean distance between the returned weights and those of the dense rule;
E = G - Gamma Gamma^T enters only by its diagonal e.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from kbr_localization.kernels.algebra import Kernel
from kbr_localization.kernels.checks import (
    as_columns,
    as_points,
    as_positive,
    as_weights,
    FloatArray,
    require_mass,
)
from kbr_localization.kernels.linalg import solve_root_form
from kbr_localization.kernels.low_rank import incomplete_cholesky, LowRankGram, RegularisedLowRank
import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True, eq=False)
class Bounded:
    """
    Result of a low-rank rule.

    `values`: (n,) or (n, q); `bound` finds the error bound, which costs as much as the values and
    is only found when it is asked for.
    """

    values: FloatArray
    bound: Callable[[], FloatArray]

    @cached_property
    def error_bound(self) -> FloatArray:
        """Bound of the Euclidean distance from the dense result. Shapes: -> () or (q,)."""
        return np.asarray(self.bound(), dtype=np.float64)


def squared_bayes_rule(
    gram_y: LowRankGram, mu: ArrayLike, k_y: ArrayLike, delta: float
) -> Bounded:
    """
    Posterior weights w = L Gamma (S^2 + delta I)^-1 Gamma^T L k with S = Gamma^T L Gamma.

    `delta` is that of C_WW^2 + delta I, without n, see `rules`.
    Shapes: mu (n,), k (n,) or (n, q). Source: [KBR] eq. 13 and section 4.2.
    """
    weights, columns = _checked(gram_y, mu, k_y)
    active = require_mass(weights, weights != 0)
    half, signs = np.sqrt(np.abs(weights[active])), np.sign(weights[active])
    scaled = half[:, np.newaxis] * gram_y.factor[active]
    observed = (columns[active].T * half * signs).T
    # (S^2 + delta)^-1 = -Im (S + i sqrt(delta))^-1 / sqrt(delta) does not square S
    inner, delta = solve_root_form(
        _difference_of_grams(scaled[signs > 0], scaled[signs < 0]),
        1.0,
        as_positive('delta', delta),
        scaled.T @ observed,
    )
    root = float(np.sqrt(delta))
    values = np.zeros_like(columns)
    values[active] = ((scaled @ inner.imag).T * half * signs).T / -root

    def bound() -> FloatArray:
        solution = (observed.T - (scaled @ inner).T * signs).T / (1j * root)
        residual = float(half**2 @ gram_y.residual[active])
        size = float(np.linalg.norm(scaled.T @ scaled, 2)) + residual
        gain = half.max() * (1.0 + size / root) / root
        return np.asarray(gain * residual * np.linalg.norm(solution, axis=0))

    return Bounded(values, bound)


def thresholded_bayes_rule(
    gram_y: LowRankGram, mu: ArrayLike, k_y: ArrayLike, delta: float
) -> Bounded:
    """
    Posterior weights w = D (D Gamma Gamma^T D + delta I)^-1 D k, D = diag(sqrt(max(mu, 0))).

    `delta` is that of C_WW + delta I, without n, see `rules`.
    Shapes: mu (n,), k (n,) or (n, q). Source: [kReg] eq. 8.
    """
    weights, columns = _checked(gram_y, mu, k_y)
    active = require_mass(weights, weights > 0)
    half = np.sqrt(weights[active])
    scaled = replace(
        gram_y,
        factor=half[:, np.newaxis] * gram_y.factor[active],
        residual=weights[active] * gram_y.residual[active],
    )
    solver = RegularisedLowRank(scaled, delta, name='delta')
    solution = solver.solve((columns[active].T * half).T)
    values = np.zeros_like(columns)
    values[active] = (solution.T * half).T
    return Bounded(values, lambda: np.asarray(half.max() * solver.error_bound(solution)))


def model_based_sum_rule(
    kernel: Kernel, z: ArrayLike, f_x: ArrayLike, weights: ArrayLike, tolerance: float = 1e-6
) -> Bounded:
    """
    Evaluate m_Q(z) = sum_j gamma_j K(z, f_j) through one incomplete Cholesky of z and f together.

    `kernel` K: a conditional kernel mean that is a kernel. O((m + n) r^2) instead of O(m n);
    `error_bound` is of the largest entry, from |E_ij| <= sqrt(e_i e_j).
    Shapes: (m, d), (n, d), (n,) -> (m,).
    """
    images = as_points('f_x', f_x)
    points = as_points('z', z, images.shape[1])
    gamma = as_weights('weights', weights, images.shape[0])
    gram = incomplete_cholesky(kernel, np.concatenate([points, images]), tolerance)
    count = points.shape[0]
    values = gram.factor[:count] @ (gram.factor[count:].T @ gamma)

    def bound() -> FloatArray:
        spread = np.sqrt(gram.residual)
        return np.asarray(spread[:count].max() * (spread[count:] @ np.abs(gamma)))

    return Bounded(values, bound)


def _difference_of_grams(positive: FloatArray, negative: FloatArray) -> FloatArray:
    """Return A^T A - B^T B, by two symmetric products at half the cost of a general one."""
    return np.asarray(positive.T @ positive - negative.T @ negative, dtype=np.float64)


def _checked(gram_y: LowRankGram, mu: ArrayLike, k_y: ArrayLike) -> tuple[FloatArray, FloatArray]:
    weights = as_weights('mu', mu, gram_y.size)
    columns = as_columns('k_y', k_y, gram_y.size)
    return weights, columns
