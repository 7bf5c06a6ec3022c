"""Kernels on rotations and on the circle."""

from __future__ import annotations

import math

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel
from kbr_localization.kernels.checks import as_floats, as_positive, FloatArray
import numpy as np
from numpy.typing import ArrayLike


class TraceKernel(Kernel):
    """
    Kernel tr(A B^T) of rotation matrices, points (n, 3, 3).

    It is linear in the nine entries: not characteristic, of rank nine at most, and its kernel mean
    is the mean rotation matrix. Source: [KBR] section 5.3, "KBR (Tr)".
    """

    def cross_gram(self, x: ArrayLike, z: ArrayLike) -> FloatArray:
        """Matrix of tr(X_i Z_j^T). Shapes: (n, 3, 3), (m, 3, 3) -> (n, m)."""
        left, right = _as_rotations('x', x), _as_rotations('z', z)
        return np.asarray(left.reshape(-1, 9) @ right.reshape(-1, 9).T)

    def diagonal(self, x: ArrayLike) -> FloatArray:
        """Values tr(X_i X_i^T) = 3. Shapes: (n, 3, 3) -> (n,)."""
        return np.full(len(_as_rotations('x', x)), 3.0)


class CircularKernel(Kernel):
    """
    Kernel (c_0 + 2 sum_k c_k cos k(t - t')) / 2 pi on the circle, points (n, 1) in radians.

    `coefficients` (K + 1,): Fourier coefficients c_k >= 0 of a density (c_0 = 1), truncated.
    """

    def __init__(self, coefficients: ArrayLike) -> None:
        self.coefficients = as_floats('coefficients', coefficients, 'K + 1')
        if np.any(self.coefficients < 0):
            raise KernelError(f'coefficients: expected numbers >= 0, got {self.coefficients}')

    def cross_gram(self, x: ArrayLike, z: ArrayLike) -> FloatArray:
        """Matrix of k(t_i, t'_j). Shapes: (n, 1), (m, 1) -> (n, m)."""
        series = 2.0 * self.coefficients
        series[0] = self.coefficients[0]
        # a sum of cosines is a Chebyshev series of the cosine
        cosine = np.cos(_angle_differences(x, z))
        return np.asarray(np.polynomial.chebyshev.chebval(cosine, series) / (2.0 * math.pi))

    def diagonal(self, x: ArrayLike) -> FloatArray:
        """Values k(t_i, t_i). Shapes: (n, 1) -> (n,)."""
        return np.full(len(as_floats('x', x, 'n', 1)), self.cross_gram([[0.0]], [[0.0]])[0, 0])


class WrappedNormalKernel(Kernel):
    """
    Wrapped normal density sum_k g(t - t' + 2 pi k; 0, s^2) on the circle, points (n, 1) in rad.

    `variance` s^2 in rad^2; with normalised=False divided by its peak.
    """

    def __init__(self, variance: float, normalised: bool = True) -> None:
        self.variance, self.normalised = as_positive('variance', variance), normalised

    def cross_gram(self, x: ArrayLike, z: ArrayLike) -> FloatArray:
        """Matrix of k(t_i, t'_j). Shapes: (n, 1), (m, 1) -> (n, m)."""
        values = wrapped_normal(_angle_differences(x, z), self.variance)
        return values if self.normalised else np.asarray(values / self.density_peak())

    def diagonal(self, x: ArrayLike) -> FloatArray:
        """Values k(t_i, t_i). Shapes: (n, 1) -> (n,)."""
        peak = self.density_peak() if self.normalised else 1.0
        return np.full(len(as_floats('x', x, 'n', 1)), peak)

    def density_peak(self) -> float:
        """Return the wrapped normal density at zero."""
        return float(wrapped_normal(np.zeros(1), self.variance)[0])

    def fourier(self, count: int) -> FloatArray:
        """Return the density's Fourier coefficients exp(-s^2 k^2 / 2), k = 0..count."""
        return np.asarray(np.exp(-0.5 * self.variance * np.arange(count + 1) ** 2))


def wrapped_normal(angle: FloatArray, variance: float) -> FloatArray:
    """Return the wrapped normal density at angles in rad; any shape -> the same."""
    # terms beyond 8.7 standard deviations are below double precision
    turns = math.ceil((8.7 * math.sqrt(variance) + math.pi) / (2.0 * math.pi))
    wrapped = np.mod(angle + math.pi, 2.0 * math.pi) - math.pi
    total = np.zeros_like(wrapped)
    for turn in range(-turns, turns + 1):
        total += np.exp(-0.5 * (wrapped + 2.0 * math.pi * turn) ** 2 / variance)
    return np.asarray(total / math.sqrt(2.0 * math.pi * variance))


def nearest_rotation(matrix: ArrayLike) -> FloatArray:
    """Return the rotation R that maximises tr(R M^T). Shapes: (..., 3, 3) -> the same."""
    left, _, right = np.linalg.svd(as_floats('matrix', matrix))
    left[..., :, -1] *= np.linalg.det(left @ right)[..., np.newaxis]
    return np.asarray(left @ right)


def _as_rotations(name: str, value: ArrayLike) -> FloatArray:
    matrices = as_floats(name, value, 'n', 3, 3)
    defect = np.abs(matrices @ matrices.transpose(0, 2, 1) - np.eye(3)).max()
    if defect > 1e-6 or np.any(np.linalg.det(matrices) < 0):
        raise KernelError(
            f'{name}: expected rotation matrices, got |A A^T - I| up to {defect:.2g}, or '
            'reflections: project with nearest_rotation()'
        )
    return matrices


def _angle_differences(x: ArrayLike, z: ArrayLike) -> FloatArray:
    return np.asarray(as_floats('x', x, 'n', 1) - as_floats('z', z, 'm', 1).T)
