"""Kernels on rotations and on the circle."""

from __future__ import annotations

import math

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel
from kbr_localization.kernels.checks import as_floats, as_points, as_positive, FloatArray
import numpy as np
from numpy.typing import ArrayLike

_ORTHONORMAL_TOLERANCE = 1e-6
# the wrapped sum converges fast below this standard deviation (rad), the Fourier series above
_WIDE = 2.0
# terms beyond this many standard deviations are below double precision
_REACH = 8.7


class TraceKernel(Kernel):
    """
    Kernel tr(A B^T) of rotation matrices, points (n, 3, 3).

    It is linear in the nine entries: not characteristic, of rank nine at most, and its kernel mean
    is the mean rotation matrix. Source: [KBR] section 5.3, "KBR (Tr)".
    """

    def cross_gram(self, x: ArrayLike, z: ArrayLike) -> FloatArray:
        """Matrix of tr(X_i Z_j^T). Shapes: (n, 3, 3), (m, 3, 3) -> (n, m)."""
        left, right = as_rotations('x', x), as_rotations('z', z)
        return np.asarray(left.reshape(-1, 9) @ right.reshape(-1, 9).T, dtype=np.float64)

    def diagonal(self, x: ArrayLike) -> FloatArray:
        """Values tr(X_i X_i^T) = 3. Shapes: (n, 3, 3) -> (n,)."""
        return np.full(as_rotations('x', x).shape[0], 3.0)

    def __repr__(self) -> str:
        return 'TraceKernel()'


class CircularKernel(Kernel):
    """
    Shift-invariant kernel on the circle, (c_0 + 2 sum_k c_k cos k(t - t')) / 2 pi.

    `coefficients` (K + 1,): Fourier coefficients c_k >= 0 of a density (c_0 = 1), truncated where
    they vanish. Points (n, 1) in radians.
    """

    def __init__(self, coefficients: ArrayLike) -> None:
        self.coefficients = as_floats('coefficients', coefficients)
        flat = self.coefficients.ndim == 1 and self.coefficients.size > 0
        if not flat or np.any(self.coefficients < 0):
            raise KernelError(
                f'coefficients: expected numbers >= 0 of shape (K + 1,), one or more, got shape '
                f'{self.coefficients.shape} with minimum '
                f'{self.coefficients.min(initial=np.inf):g}: the kernel is not positive definite'
            )

    def cross_gram(self, x: ArrayLike, z: ArrayLike) -> FloatArray:
        """Matrix of k(t_i, t'_j). Shapes: (n, 1), (m, 1) -> (n, m)."""
        return self._values(_angle_differences(x, z))

    def diagonal(self, x: ArrayLike) -> FloatArray:
        """Values k(t_i, t_i). Shapes: (n, 1) -> (n,)."""
        return np.full(as_points('x', x, 1).shape[0], float(self._values(np.zeros(1))[0]))

    def _values(self, difference: FloatArray) -> FloatArray:
        series = 2.0 * self.coefficients
        series[0] = self.coefficients[0]
        # Clenshaw's recursion sums the cosines without computing each of them
        values = np.polynomial.chebyshev.chebval(np.cos(difference), series) / (2.0 * math.pi)
        return np.asarray(values, dtype=np.float64)

    def __repr__(self) -> str:
        return f'CircularKernel({self.coefficients.tolist()})'


class WrappedNormalKernel(Kernel):
    """
    Wrapped normal kernel on the circle: sum_k g(t - t' + 2 pi k; 0, s^2), divided by its peak.

    `variance` s^2 in rad^2; normalised (by default) it is the wrapped normal density. Points
    (n, 1) in radians.
    """

    def __init__(self, variance: float, normalised: bool = True) -> None:
        self.variance = as_positive('variance', variance)
        self.normalised = normalised

    def cross_gram(self, x: ArrayLike, z: ArrayLike) -> FloatArray:
        """Matrix of k(t_i, t'_j). Shapes: (n, 1), (m, 1) -> (n, m)."""
        values = wrapped_normal(_angle_differences(x, z), self.variance)
        return values if self.normalised else np.asarray(values / self.density_peak())

    def diagonal(self, x: ArrayLike) -> FloatArray:
        """Values k(t_i, t_i). Shapes: (n, 1) -> (n,)."""
        peak = self.density_peak() if self.normalised else 1.0
        return np.full(as_points('x', x, 1).shape[0], peak)

    def density_peak(self) -> float:
        """Return the wrapped normal density at zero."""
        return float(wrapped_normal(np.zeros(1), self.variance)[0])

    def fourier(self, count: int) -> FloatArray:
        """Return the density's Fourier coefficients exp(-s^2 k^2 / 2), k = 0..count."""
        return np.asarray(np.exp(-0.5 * self.variance * np.arange(count + 1) ** 2))

    def __repr__(self) -> str:
        return f'WrappedNormalKernel({self.variance}, normalised={self.normalised})'


def wrapped_normal(angle: FloatArray, variance: float) -> FloatArray:
    """Return the wrapped normal density at angles in rad, by the series that converges faster."""
    deviation = math.sqrt(variance)
    if deviation > _WIDE:
        order = np.arange(1, math.ceil(_REACH / deviation) + 1)
        terms = np.exp(-0.5 * variance * order**2) * np.cos(np.multiply.outer(angle, order))
        return np.asarray((1.0 + 2.0 * terms.sum(axis=-1)) / (2.0 * math.pi))
    turns = math.ceil((_REACH * deviation + math.pi) / (2.0 * math.pi))
    wrapped = np.mod(angle + math.pi, 2.0 * math.pi) - math.pi
    total = np.zeros_like(wrapped)
    for turn in range(-turns, turns + 1):
        total += np.exp(-0.5 * (wrapped + 2.0 * math.pi * turn) ** 2 / variance)
    return np.asarray(total / math.sqrt(2.0 * math.pi * variance))


def as_rotations(name: str, value: ArrayLike) -> FloatArray:
    """Rotation matrices (n, 3, 3); raises KernelError when they are not orthonormal."""
    matrices = as_floats(name, value)
    if matrices.ndim != 3 or matrices.shape[1:] != (3, 3) or matrices.shape[0] == 0:
        raise KernelError(
            f'{name}: expected rotation matrices of shape (n, 3, 3), got {matrices.shape}'
        )
    defect = np.abs(matrices @ matrices.transpose(0, 2, 1) - np.eye(3)).max()
    if defect > _ORTHONORMAL_TOLERANCE or np.any(np.linalg.det(matrices) < 0):
        raise KernelError(
            f'{name}: expected rotations of shape (n, 3, 3), got {matrices.shape} with '
            f'|A A^T - I| up to {defect:.2g} and least determinant '
            f'{np.linalg.det(matrices).min():.3g}: project with nearest_rotation()'
        )
    return matrices


def nearest_rotation(matrix: ArrayLike) -> FloatArray:
    """
    Rotation R that maximises tr(R M^T), the one nearest to M in Frobenius norm.

    Shapes: (..., 3, 3) -> (..., 3, 3).
    """
    left, _, right = np.linalg.svd(as_floats('matrix', matrix))
    sign = np.linalg.det(left @ right)
    left[..., :, -1] *= sign[..., np.newaxis]
    return np.asarray(left @ right, dtype=np.float64)


def _angle_differences(x: ArrayLike, z: ArrayLike) -> FloatArray:
    return np.asarray(as_points('x', x, 1) - as_points('z', z, 1).T, dtype=np.float64)
