"""Kernels on rotations and on the circle."""

from collections.abc import Callable
import math
from typing import Any

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel
from kbr_localization.kernels.checks import as_floats, as_positive, FloatArray
import numpy as np
from numpy.typing import ArrayLike


class TraceKernel(Kernel):
    """
    Kernel tr(A B^T) of rotation matrices, points (n, 3, 3).

    It is linear in the nine entries, so it is not characteristic, its Gram matrices have rank at
    most nine, and its kernel mean encodes the mean matrix. Source: [KBR] section 5.3, "KBR (Tr)".
    """

    point = (3, 3)

    def _points(self, name: str, value: ArrayLike) -> FloatArray:
        matrices = super()._points(name, value)
        defect = np.abs(matrices @ matrices.transpose(0, 2, 1) - np.eye(3)).max()
        if defect > 1e-6 or np.any(np.linalg.det(matrices) < 0):
            raise KernelError(
                f'{name}: expected rotation matrices, got |A A^T - I| up to {defect:.2g}, or '
                'reflections: project with nearest_rotation()'
            )
        return matrices

    def _matrix(self, x: FloatArray, z: FloatArray) -> Any:
        return x.reshape(-1, 9) @ z.reshape(-1, 9).T

    def _diagonal(self, x: FloatArray) -> Any:
        return np.full(len(x), 3.0)


class _OnCircle(Kernel):
    """Kernel of the difference of angles (n, 1) in radians."""

    point = (1,)
    _of_difference: Callable[[FloatArray], FloatArray]

    def _matrix(self, x: FloatArray, z: FloatArray) -> Any:
        return self._of_difference(x - z.T)

    def _diagonal(self, x: FloatArray) -> Any:
        return np.full(len(x), self._of_difference(np.zeros(1))[0])


class CircularKernel(_OnCircle):
    """
    Kernel (c_0 + 2 sum_k c_k cos k(t - t')) / 2 pi on the circle, points (n, 1) in radians.

    `coefficients` (K + 1,): Fourier coefficients c_k >= 0, truncated at K; c_0 = 1 for a density.
    """

    def __init__(self, coefficients: ArrayLike) -> None:
        self.coefficients = as_floats('coefficients', coefficients, 'K + 1')
        if np.any(self.coefficients < 0):
            raise KernelError(f'coefficients: expected numbers >= 0, got {self.coefficients}')

    def _of_difference(self, angle: FloatArray) -> FloatArray:
        # a sum of cosines is a Chebyshev series of the cosine
        series = np.append(self.coefficients[0], 2.0 * self.coefficients[1:])
        values = np.polynomial.chebyshev.chebval(np.cos(angle), series)
        return np.asarray(values / (2.0 * math.pi))


class WrappedNormalKernel(_OnCircle):
    """
    Wrapped normal density sum_k g(t - t' + 2 pi k; 0, s^2) on the circle, points (n, 1) in rad.

    `variance` s^2 in rad^2; normalised=False divides by the peak.
    """

    def __init__(self, variance: float, normalised: bool = True) -> None:
        self.variance, self.normalised = as_positive('variance', variance), normalised

    def _of_difference(self, angle: FloatArray) -> FloatArray:
        values = wrapped_normal(angle, self.variance)
        return values if self.normalised else values / self.density_peak()

    def density_peak(self) -> float:
        """Return the wrapped normal density at zero."""
        return float(wrapped_normal(np.zeros(1), self.variance)[0])

    def fourier(self, count: int) -> FloatArray:
        """Return the Fourier coefficients exp(-s^2 k^2 / 2) of the density, k = 0..count."""
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
