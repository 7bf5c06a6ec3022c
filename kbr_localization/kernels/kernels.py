"""
Kernels on vectors: Gaussian, Laplace, rational quadratic, Matern; points are arrays (n, d).

A kernel that is normalised is a probability density in x - x'; that makes the model-based kernel
sum rule free of coefficients ([MbKSR] section 4.1). A plain kernel has k(x, x) = 1.
"""

from __future__ import annotations

from abc import abstractmethod
import math

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel
from kbr_localization.kernels.checks import (
    as_floats,
    as_points,
    as_positive,
    exp_peak,
    FloatArray,
)
from kbr_localization.kernels.covariance import as_covariance, Covariance
from kbr_localization.kernels.distances import bessel_profile, squared_distances
import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial.distance import cdist
import scipy.special

__all__ = [
    'GaussianKernel',
    'Kernel',
    'LaplaceKernel',
    'MaternKernel',
    'RadialKernel',
    'RationalQuadraticKernel',
    'squared_distances',
]


class RadialKernel(Kernel):
    """
    Kernel peak(d) * profile(s) of the squared distance s = (x - x')^T S^-1 (x - x').

    `scale` S: scalar, diagonal (d,) or full matrix (d, d); profile(0) = 1.
    """

    def __init__(self, scale: ArrayLike | Covariance, normalised: bool, name: str) -> None:
        self.scale = as_covariance(name, scale)
        self.normalised = normalised

    @abstractmethod
    def profile(self, s: FloatArray, dimension: int) -> FloatArray:
        """Value at squared distance s relative to that at zero; may overwrite s."""

    @abstractmethod
    def slope(self, s: FloatArray, dimension: int) -> FloatArray:
        """Return minus the profile's derivative at s > 0."""

    @abstractmethod
    def log_density_peak(self, dimension: int) -> float:
        """Logarithm of the normalised kernel's k(x, x) in R^dimension."""

    @abstractmethod
    def with_normalised(self, normalised: bool) -> RadialKernel:
        """Return the same kernel, normalised as a density or plain."""

    def peak(self, dimension: int) -> float:
        """Value k(x, x) in R^dimension; KernelError when floating point cannot hold it."""
        if not self.normalised:
            return 1.0
        return exp_peak(self.log_density_peak(dimension), dimension, self)

    def cross_gram(self, x: ArrayLike, z: ArrayLike) -> FloatArray:
        """Matrix of k(x_i, z_j). Shapes: (n, d), (m, d) -> (n, m)."""
        distances = squared_distances(x, z, self.scale)
        dimension = np.shape(x)[1]
        values = self.profile(distances, dimension)
        if self.normalised:
            values *= self.peak(dimension)
        return values

    def relative_cross_gram(self, x: ArrayLike, z: ArrayLike, log_unit: float) -> FloatArray:
        """Matrix of k(x_i, z_j) / exp(log_unit), also where k itself is no float. -> (n, m)."""
        dimension = np.shape(x)[1]
        log_peak = self.log_density_peak(dimension) if self.normalised else 0.0
        values = self.profile(squared_distances(x, z, self.scale), dimension)
        return np.asarray(exp_peak(log_peak - log_unit, dimension, self) * values)

    def gram(self, x: ArrayLike) -> FloatArray:
        """Matrix of k(x_i, x_j), exactly symmetric. Shapes: (n, d) -> (n, n)."""
        return self.cross_gram(x, x)

    def diagonal(self, x: ArrayLike) -> FloatArray:
        """Values k(x_i, x_i), all equal to the peak. Shapes: (n, d) -> (n,)."""
        points = as_points('x', x, self.scale.dimension)
        return np.full(points.shape[0], self.peak(points.shape[1]))


class GaussianKernel(RadialKernel):
    """
    Gaussian kernel exp(-(x - x')^T R^-1 (x - x') / 2), times |2 pi R|^-1/2 when normalised.

    `covariance` R: scalar (squared bandwidth), diagonal (d,) or full matrix (d, d).
    Source: [MbKSR] eq. 18.
    """

    def __init__(self, covariance: ArrayLike | Covariance, normalised: bool = True) -> None:
        super().__init__(covariance, normalised, 'covariance')

    @property
    def covariance(self) -> Covariance:
        """Return the covariance R."""
        return self.scale

    def profile(self, s: FloatArray, dimension: int) -> FloatArray:
        """Return exp(-s / 2)."""
        np.multiply(s, -0.5, out=s)
        return np.exp(s, out=s)

    def slope(self, s: FloatArray, dimension: int) -> FloatArray:
        """Return exp(-s / 2) / 2: the weights of the fixed point in [KBR] section 4.1."""
        return np.asarray(0.5 * np.exp(-0.5 * s), dtype=np.float64)

    def log_density_peak(self, dimension: int) -> float:
        """Return log |2 pi R|^-1/2."""
        log_det = self.scale.log_det(dimension)
        return -0.5 * (dimension * math.log(2.0 * math.pi) + log_det)

    def with_normalised(self, normalised: bool) -> GaussianKernel:
        """Return the same kernel, normalised as a density or plain."""
        return GaussianKernel(self.scale, normalised)

    def __repr__(self) -> str:
        return f'GaussianKernel({self.scale.value.tolist()}, normalised={self.normalised})'


class RationalQuadraticKernel(RadialKernel):
    """
    Rational quadratic kernel (1 + (x - x')^T R^-1 (x - x'))^-a; by default a Cauchy density.

    `scale` R: scalar, diagonal (d,) or full matrix (d, d). `exponent` a > d / 2; None means
    a = (1 + d) / 2, whose normalised kernel is the Cauchy density of scale R, conjugate to
    `CauchyNoise`; other exponents normalise to Student's t. Source: [MbKSR] Appendix A.
    """

    def __init__(
        self,
        scale: ArrayLike | Covariance,
        exponent: float | None = None,
        normalised: bool = True,
    ) -> None:
        super().__init__(scale, normalised, 'scale')
        self.exponent = None if exponent is None else as_positive('exponent', exponent)

    def power(self, dimension: int) -> float:
        """Return the exponent a in R^dimension."""
        return 0.5 * (1 + dimension) if self.exponent is None else self.exponent

    def profile(self, s: FloatArray, dimension: int) -> FloatArray:
        """Return (1 + s)^-a."""
        return np.asarray((1.0 + s) ** -self.power(dimension), dtype=np.float64)

    def slope(self, s: FloatArray, dimension: int) -> FloatArray:
        """Return a (1 + s)^-(a + 1)."""
        power = self.power(dimension)
        return np.asarray(power * (1.0 + s) ** -(power + 1.0), dtype=np.float64)

    def log_density_peak(self, dimension: int) -> float:
        """Return log of Gamma(a) / (Gamma(a - d/2) pi^(d/2) |R|^(1/2))."""
        power = self.power(dimension)
        if power <= 0.5 * dimension:
            raise KernelError(
                f'exponent: expected more than d / 2 = {0.5 * dimension} to normalise, got '
                f'{power}: raise it, or set normalised=False'
            )
        gammas = math.lgamma(power) - math.lgamma(power - 0.5 * dimension)
        spread = dimension * math.log(math.pi) + self.scale.log_det(dimension)
        return gammas - 0.5 * spread

    def with_normalised(self, normalised: bool) -> RationalQuadraticKernel:
        """Return the same kernel, normalised as a density or plain."""
        return RationalQuadraticKernel(self.scale, self.exponent, normalised)

    def __repr__(self) -> str:
        return (
            f'RationalQuadraticKernel({self.scale.value.tolist()}, exponent={self.exponent}, '
            f'normalised={self.normalised})'
        )


class MaternKernel(RadialKernel):
    """
    Matern kernel 2^(1-v) / Gamma(v) r^v K_v(r), r = alpha sqrt((x - x')^T S^-1 (x - x')).

    `scale` S (squared length): scalar, diagonal (d,) or full matrix (d, d); `smoothness` v > 0;
    `alpha` > 0, None means sqrt(2 v), with which it tends to the Gaussian kernel of covariance S
    as v grows. Normalised it is the variance-gamma density
    VG(v + d/2; alpha, S) with characteristic function (1 + t^T S t / alpha^2)^-(v + d/2),
    conjugate to `VarianceGammaNoise` of the same alpha and S. v = 1/2 is exp(-r).
    Source: [MbKSR] Appendix A.
    """

    def __init__(
        self,
        scale: ArrayLike | Covariance,
        smoothness: float = 1.5,
        alpha: float | None = None,
        normalised: bool = True,
    ) -> None:
        super().__init__(scale, normalised, 'scale')
        self.smoothness = as_positive('smoothness', smoothness)
        default = math.sqrt(2.0 * self.smoothness)
        self.alpha = default if alpha is None else as_positive('alpha', alpha)

    def profile(self, s: FloatArray, dimension: int) -> FloatArray:
        """Return 2^(1-v) / Gamma(v) r^v K_v(r) at r = alpha sqrt(s)."""
        return bessel_profile(self.alpha * np.sqrt(s), self.smoothness)

    def slope(self, s: FloatArray, dimension: int) -> FloatArray:
        """Return alpha^2 2^-v / Gamma(v) r^(v-1) K_(v-1)(r), finite away from r = 0."""
        r = np.maximum(self.alpha * np.sqrt(s), 1e-9)
        order = self.smoothness - 1.0
        if order > 0:
            return bessel_profile(r, order) * self.alpha**2 / (4.0 * order)
        factor = self.alpha**2 * 0.5**self.smoothness / math.gamma(self.smoothness)
        return np.asarray(factor * r**order * scipy.special.kv(-order, r), dtype=np.float64)

    def log_density_peak(self, dimension: int) -> float:
        """Return log of (alpha^2 / 4 pi)^(d/2) |S|^(-1/2) Gamma(v) / Gamma(v + d/2)."""
        # the difference of two logarithms of Gamma would cancel for a large smoothness
        half = 0.5 * dimension
        gammas = float(scipy.special.betaln(self.smoothness, half)) - math.lgamma(half)
        spread = dimension * math.log(self.alpha**2 / (4.0 * math.pi))
        return gammas + 0.5 * (spread - self.scale.log_det(dimension))

    def with_normalised(self, normalised: bool) -> MaternKernel:
        """Return the same kernel, normalised as a density or plain."""
        return MaternKernel(self.scale, self.smoothness, self.alpha, normalised)

    def __repr__(self) -> str:
        return (
            f'MaternKernel({self.scale.value.tolist()}, smoothness={self.smoothness}, '
            f'alpha={self.alpha}, normalised={self.normalised})'
        )


class LaplaceKernel(Kernel):
    """
    Laplace kernel exp(-sum_i |x_i - x'_i| / b_i), times prod 1 / (2 b_i) when normalised.

    `scale` b: scalar or one per coordinate (d,), in the unit of x. The kernel of Euclidean
    distance exp(-|x - x'| / b) is `MaternKernel(b**2, 0.5, alpha=1.0)`.
    """

    def __init__(self, scale: ArrayLike, normalised: bool = True) -> None:
        self.scale = as_floats('scale', scale)
        self.normalised = normalised
        if self.scale.ndim > 1 or self.scale.size == 0 or np.any(self.scale <= 0):
            raise KernelError(
                f'scale: expected a positive scalar or positive entries (d,), got shape '
                f'{self.scale.shape} with minimum {self.scale.min(initial=np.inf):g}'
            )

    def peak(self, dimension: int) -> float:
        """Value k(x, x) in R^dimension; KernelError when floating point cannot hold it."""
        if not self.normalised:
            return 1.0
        log_peak = -float(np.log(2.0 * np.broadcast_to(self.scale, dimension)).sum())
        return exp_peak(log_peak, dimension, self)

    def cross_gram(self, x: ArrayLike, z: ArrayLike) -> FloatArray:
        """Matrix of k(x_i, z_j). Shapes: (n, d), (m, d) -> (n, m)."""
        left = self._points('x', x)
        right = left if z is x else as_points('z', z, left.shape[1])
        distances = cdist(left / self.scale, right / self.scale, 'cityblock')
        return np.asarray(self.peak(left.shape[1]) * np.exp(-distances), dtype=np.float64)

    def diagonal(self, x: ArrayLike) -> FloatArray:
        """Values k(x_i, x_i), all equal to the peak. Shapes: (n, d) -> (n,)."""
        points = self._points('x', x)
        return np.full(points.shape[0], self.peak(points.shape[1]))

    def _points(self, name: str, x: ArrayLike) -> FloatArray:
        return as_points(name, x, self.scale.size if self.scale.ndim else None)

    def __repr__(self) -> str:
        return f'LaplaceKernel({self.scale.tolist()}, normalised={self.normalised})'
