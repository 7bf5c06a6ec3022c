"""Squared Mahalanobis distances and the Bessel function of the Matern kernel, numerically safe."""

from __future__ import annotations

import math

from kbr_localization.kernels.checks import as_points, FloatArray
from kbr_localization.kernels.covariance import Covariance
import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial.distance import cdist
import scipy.special

# below this dimension differences are as fast as the matrix product, and exact
_DIRECT_DIMENSION = 16
# for so few points on one side the product's passes over the other side cost more than they save
_FEW_POINTS = 8
# above this order the uniform expansion is as exact as scipy.special.kv, which overflows
_LARGE_ORDER = 200.0
# every profile is zero there, to the last bit; at infinity its factors make NaN
_FAR = 1e100
# u_k(p) / p^k in powers of p^2 for k = 1..4, DLMF 10.41.10 and 10.41.11
_DEBYE = (
    (1 / 8, -5 / 24),
    (9 / 128, -77 / 192, 385 / 1152),
    (75 / 1024, -4563 / 5120, 17017 / 9216, -85085 / 82944),
    (3675 / 32768, -96833 / 40960, 144001 / 16384, -7436429 / 663552, 37182145 / 7962624),
)


def squared_distances(x: ArrayLike, z: ArrayLike, scale: Covariance) -> FloatArray:
    """
    Squared Mahalanobis distances (x_i - z_j)^T S^-1 (x_i - z_j).

    Shapes: (n, d), (m, d) -> (n, m); exactly symmetric with a zero diagonal when `z is x`.
    """
    left = as_points('x', x, scale.dimension)
    right = left if z is x else as_points('z', z, left.shape[1])
    low, few = left.shape[1] <= _DIRECT_DIMENSION, min(len(left), len(right)) <= _FEW_POINTS
    if few and not low and scale.dimension is None:
        # whitening would copy the whole sample for one kernel vector
        return np.asarray(cdist(left, right, 'sqeuclidean') / scale.value, dtype=np.float64)
    a = scale.whiten(left)
    b = a if right is left else scale.whiten(right)
    if low or few:
        return np.asarray(cdist(a, b, 'sqeuclidean'), dtype=np.float64)
    return _distances_by_product(a, b)


def _distances_by_product(a: FloatArray, b: FloatArray) -> FloatArray:
    # centring keeps the cancellation in |a|^2 + |b|^2 - 2ab small
    centre = a.mean(axis=0)
    left = a - centre
    right = left if b is a else b - centre
    with np.errstate(over='ignore'):
        own, other = (left * left).sum(axis=1), (right * right).sum(axis=1)
        overflows = not np.isfinite(own.max() + other.max())
    if overflows:  # the product would be infinity less infinity
        return np.asarray(cdist(a, b, 'sqeuclidean'), dtype=np.float64)
    distances = -2.0 * (left @ right.T)
    distances += own[:, np.newaxis]
    distances += other
    np.maximum(distances, 0.0, out=distances)
    if b is a:
        np.fill_diagonal(distances, 0.0)
        distances = 0.5 * (distances + distances.T)
    return np.asarray(distances, dtype=np.float64)


def bessel_profile(r: FloatArray, order: float) -> FloatArray:
    """
    Matern profile 2^(1-v) / Gamma(v) r^v K_v(r), 1 at r = 0.

    Half-integer orders up to 5/2 have closed forms; above order 200 the asymptotic expansion for
    large orders has a relative error below 1e-12 for every r. Shapes: any -> the same.
    """
    r = np.minimum(r, _FAR)
    if order > _LARGE_ORDER:
        return _of_large_order(r, order)
    polynomials = {0.5: (1.0,), 1.5: (1.0, 1.0), 2.5: (1.0, 1.0, 1.0 / 3.0)}
    if order in polynomials:
        values = np.polynomial.polynomial.polyval(r, polynomials[order]) * np.exp(-r)
        return np.asarray(values, dtype=np.float64)
    bessel = scipy.special.kv(order, r)
    # K_v overflows near zero, where the power series of the profile converges at once
    near = ~np.isfinite(bessel)
    safe = np.where(near, 1.0, r)
    log_factor = (1.0 - order) * math.log(2.0) - math.lgamma(order) + order * np.log(safe)
    values = np.where(near, _series(np.where(near, r, 0.0), order), 0.0)
    with np.errstate(divide='ignore'):
        values += np.where(near, 0.0, np.exp(log_factor + np.log(bessel)))
    return np.asarray(values, dtype=np.float64)


def _of_large_order(r: FloatArray, order: float) -> FloatArray:
    """K_v(v z) for large v, uniformly in z, relative to its value at zero (DLMF 10.41.4)."""
    z = r / order
    root = np.hypot(1.0, z)
    excess = z * (z / (1.0 + root))  # root - 1 without cancellation
    decay = np.exp(-order * (excess - np.log1p(0.5 * excess)))
    correction = _debye_sum(1.0 / root, order) / _debye_sum(np.ones(1), order)
    return np.asarray(decay / np.sqrt(root) * correction, dtype=np.float64)


def _debye_sum(p: FloatArray, order: float) -> FloatArray:
    """Sum_k (-1)^k u_k(p) / v^k."""
    terms = (
        (-p / order) ** k * np.polynomial.polynomial.polyval(p * p, row)
        for k, row in enumerate(_DEBYE, start=1)
    )
    return np.asarray(1.0 + sum(terms), dtype=np.float64)


def _series(r: FloatArray, order: float) -> FloatArray:
    """Regular part of the series at r = 0: sum_k (-r^2/4)^k / (k! (v-1) ... (v-k)) for k < v."""
    total = term = np.ones_like(r)
    for k in range(1, min(math.ceil(order), 40)):
        term = term * (-0.25 * r * r) / (k * (order - k))
        total = total + term
    return total
