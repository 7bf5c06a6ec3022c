"""
Kernels on vectors (n, d): Gaussian, rational quadratic, Matern.

A normalised kernel is a probability density in x - x', so that the model-based sum rule needs no
coefficients ([MbKSR] section 4.1). A plain kernel (normalised=False) has k(x, x) = 1.
"""

from __future__ import annotations

from collections.abc import Callable
import math
from typing import Any

from kbr_localization.errors import KernelError
from kbr_localization.kernels.algebra import Kernel
from kbr_localization.kernels.checks import as_floats, as_positive, FloatArray
import numpy as np
from numpy.typing import ArrayLike
import scipy.linalg
from scipy.spatial.distance import cdist, pdist
import scipy.special


class Covariance:
    """Symmetric positive definite matrix S: a scalar times I, a diagonal (d,) or full (d, d)."""

    def __init__(self, value: ArrayLike | Covariance, name: str = 'covariance') -> None:
        given: ArrayLike = value.value if isinstance(value, Covariance) else value
        self.value: FloatArray = as_floats(name, given).copy()
        shape, full = self.value.shape, self.value.ndim == 2
        if self.value.size == 0 or self.value.ndim > 2 or len(set(shape)) > 1:
            raise KernelError(f'{name}: expected a scalar, (d,) or (d, d), got shape {shape}')
        if full and not _is_near(self.value, self.value.T):
            raise KernelError(f'{name}: expected a symmetric matrix: use (S + S.T) / 2')
        smallest = np.linalg.eigvalsh(self.value)[0] if full else self.value.min()
        if smallest <= 0.0:
            raise KernelError(f'{name}: expected positive (definite) values, got {smallest:.3g}')
        self._root = np.linalg.cholesky(self.value) if full else np.sqrt(self.value)

    @property
    def dimension(self) -> int | None:
        """Dimension d, or None for a scalar, which is valid in any dimension."""
        return len(self.value) if self.value.ndim else None

    def whiten(self, x: FloatArray) -> FloatArray:
        """Return L^-1 x for S = L L^T. (n, d) -> (n, d)."""
        if self.value.ndim < 2:
            return np.asarray(x / self._root)
        return np.asarray(scipy.linalg.solve_triangular(self._root, x.T, lower=True).T)

    def colour(self, x: FloatArray) -> FloatArray:
        """Return L x, which maps standard normal draws to draws of N(0, S). (n, d) -> (n, d)."""
        self._require(x.shape[1])
        return np.asarray(x * self._root if self.value.ndim < 2 else x @ self._root.T)

    def log_det(self, dimension: int) -> float:
        """Return log |S| in R^dimension."""
        root = np.diag(self._root) if self.value.ndim == 2 else self._root
        return 2.0 * float(np.log(np.broadcast_to(root, dimension)).sum())

    def matrix(self, dimension: int) -> FloatArray:
        """Return the full matrix, (d, d)."""
        self._require(dimension)
        if self.value.ndim == 2:
            return self.value
        return np.diag(np.broadcast_to(self.value, dimension))

    def __add__(self, other: Covariance) -> Covariance:
        dimension = self.dimension or other.dimension or 1
        total = self.matrix(dimension) + other.matrix(dimension)
        is_full = 2 in (self.value.ndim, other.value.ndim)
        return Covariance(total if is_full else self.value + other.value)

    def ratio_to(self, other: Covariance) -> float | None:
        """Return c with S = c * other, or None when the two are not proportional."""
        dimension = self.dimension or other.dimension or 1
        mine, theirs = self.matrix(dimension), other.matrix(dimension)
        ratio = float(np.trace(mine) / np.trace(theirs))
        return ratio if _is_near(mine, ratio * theirs) else None

    def _require(self, dimension: int) -> None:
        if self.dimension not in (None, dimension):
            raise KernelError(f'dimension: expected {self.dimension}, got {dimension}')

    def __repr__(self) -> str:
        return f'Covariance({self.value.tolist()})'


def _is_near(matrix: FloatArray, other: FloatArray) -> bool:
    # compare up to rounding, relative to the scale of each coordinate
    root = np.sqrt(matrix.diagonal())
    return bool(np.all(np.abs(matrix - other) <= 1e-10 * np.outer(root, root)))


def squared_distances(x: FloatArray, z: FloatArray, scale: Covariance) -> FloatArray:
    """Return (x_i - z_j)^T S^-1 (x_i - z_j). (n, d), (m, d) -> (n, m)."""
    a = scale.whiten(x)
    b = a if z is x else scale.whiten(z)
    if a.shape[1] <= 16 or min(len(a), len(b)) <= 8:
        return np.asarray(cdist(a, b, 'sqeuclidean'))
    # |a|^2 + |b|^2 - 2 a b is faster in many dimensions; centring avoids cancellation
    centre = a.mean(axis=0)
    left = a - centre
    right = left if b is a else b - centre
    distances = -2.0 * (left @ right.T)
    distances += (left * left).sum(axis=1)[:, np.newaxis]
    distances += (right * right).sum(axis=1)
    np.maximum(distances, 0.0, out=distances)
    if b is a:
        np.fill_diagonal(distances, 0.0)
        distances = 0.5 * (distances + distances.T)
    return np.asarray(distances)


def median_distance(points: ArrayLike, max_points: int = 2000) -> float:
    """
    Return the median of the pairwise distances, the usual initial bandwidth ([KBR] section 5.1).

    Uses `max_points` random points if there are more; matrices are flattened. Shapes: (n, d) or
    (n, 3, 3), n > 1.
    """
    array = as_floats('points', points, 'n', 'd', ...)
    array = array.reshape(len(array), -1)
    if len(array) > max_points:
        array = array[np.random.default_rng(0).choice(len(array), max_points, replace=False)]
    distances = pdist(array)
    positive = distances[distances > 0]
    if positive.size == 0:
        raise KernelError(
            f'points: expected at least two different points, got {len(array)} equal ones'
        )
    return float(np.median(distances)) or float(np.median(positive))


class RadialKernel(Kernel):
    """
    Kernel peak * profile(s), s = (x - x')^T S^-1 (x - x'), profile(0) = 1.

    `scale` S: scalar, diagonal (d,) or full matrix (d, d). The peak of a plain kernel is 1; that
    of a `normalised` one makes it a density. A plain kernel that a noise has smoothed is a density
    divided by the density peak of the original kernel, `unit`. `_profile` may overwrite its
    argument.
    """

    unit: RadialKernel | None = None
    _profile: Callable[..., FloatArray]
    _log_density_peak: Callable[[int], float]

    def __init__(self, scale: ArrayLike | Covariance, normalised: bool, name: str) -> None:
        self.scale, self.normalised = Covariance(scale, name), normalised

    def peak(self, dimension: int) -> float:
        """Return k(x, x) in R^dimension; KernelError if it overflows or underflows."""
        if not self.normalised and self.unit is None:
            return 1.0
        log_peak = self._log_density_peak(dimension)
        log_peak -= self.unit._log_density_peak(dimension) if self.unit else 0.0
        # the rules multiply kernel values, so their squares must not overflow either
        if abs(log_peak) > 350.0:
            raise KernelError(
                f'normalised: expected a density that is a float in dimension {dimension}, got '
                f'exp({log_peak:.4g}) at zero: use normalised=False in {type(self).__name__}'
            )
        return math.exp(log_peak)

    def _points(self, name: str, value: ArrayLike) -> FloatArray:
        return as_floats(name, value, 'n', self.scale.dimension or 'd')

    def _diagonal(self, x: FloatArray) -> Any:
        return np.full(len(x), self.peak(x.shape[1]))

    def _matrix(self, x: FloatArray, z: FloatArray) -> Any:
        peak = self.peak(x.shape[1])
        values = self._profile(squared_distances(x, z, self.scale), x.shape[1])
        return values if peak == 1.0 else peak * values


class GaussianKernel(RadialKernel):
    """
    Gaussian kernel exp(-(x - x')^T R^-1 (x - x') / 2), times |2 pi R|^-1/2 when normalised.

    `covariance` R: scalar (squared bandwidth), diagonal (d,) or full matrix (d, d).
    Source: [MbKSR] eq. 18.
    """

    def __init__(self, covariance: ArrayLike | Covariance, normalised: bool = True) -> None:
        super().__init__(covariance, normalised, 'covariance')

    def _profile(self, s: FloatArray, dimension: int) -> FloatArray:
        np.multiply(s, -0.5, out=s)
        return np.exp(s, out=s)

    def _log_density_peak(self, dimension: int) -> float:
        return -0.5 * (dimension * math.log(2.0 * math.pi) + self.scale.log_det(dimension))


def median_kernel(points: FloatArray, factor: float = 1.0) -> GaussianKernel:
    """Return the plain Gaussian kernel whose width is `factor` times the median distance."""
    return GaussianKernel((factor * median_distance(points)) ** 2, normalised=False)


class RationalQuadraticKernel(RadialKernel):
    """
    Rational quadratic kernel (1 + (x - x')^T R^-1 (x - x'))^-a, a = (1 + d) / 2.

    The normalised kernel is a Cauchy density with peak Gamma(a) / (pi^a |R|^(1/2)), conjugate to
    `CauchyNoise`. `scale` R: scalar, diagonal (d,) or full matrix (d, d).
    Source: [MbKSR] Appendix A.
    """

    def __init__(self, scale: ArrayLike | Covariance, normalised: bool = True) -> None:
        super().__init__(scale, normalised, 'scale')

    def _profile(self, s: FloatArray, dimension: int) -> FloatArray:
        return np.asarray((1.0 + s) ** (-0.5 * (1 + dimension)))

    def _log_density_peak(self, dimension: int) -> float:
        power = 0.5 * (1 + dimension)
        return math.lgamma(power) - power * math.log(math.pi) - 0.5 * self.scale.log_det(dimension)


class MaternKernel(RadialKernel):
    """
    Matern kernel 2^(1-v) / Gamma(v) r^v K_v(r), r = alpha sqrt((x - x')^T S^-1 (x - x')).

    `smoothness` v in (0, 40]: v = 1/2 gives exp(-r), the Laplace kernel in one dimension; large v
    with the default alpha = sqrt(2 v) approach the Gaussian kernel of covariance S. The normalised
    kernel is the variance-gamma density VG(v + d/2; alpha, S) with peak
    (alpha^2 / 4 pi)^(d/2) |S|^(-1/2) Gamma(v) / Gamma(v + d/2), conjugate to
    `VarianceGammaNoise`. Source: [MbKSR] Appendix A.
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
        if self.smoothness > 40.0:
            raise KernelError('smoothness: expected at most 40: use GaussianKernel, its limit')
        self.alpha = None if alpha is None else as_positive('alpha', alpha)

    @property
    def rate(self) -> float:
        """Return alpha, or its default sqrt(2 v)."""
        return math.sqrt(2.0 * self.smoothness) if self.alpha is None else self.alpha

    def _profile(self, s: FloatArray, dimension: int) -> FloatArray:
        # the kernel is zero beyond r = 1e6
        r, order = np.minimum(self.rate * np.sqrt(s), 1e6), self.smoothness
        polynomials = {0.5: (1.0,), 1.5: (1.0, 1.0), 2.5: (1.0, 1.0, 1.0 / 3.0)}
        if order in polynomials:
            return np.asarray(np.polynomial.polynomial.polyval(r, polynomials[order]) * np.exp(-r))
        factor = 2.0 ** (1.0 - order) / math.gamma(order)
        with np.errstate(invalid='ignore'):
            values = r**order * scipy.special.kv(order, r) * factor
        # for v <= 40, K_v overflows only where the kernel is 1 up to rounding
        return np.where(np.isfinite(values), values, 1.0)

    def _log_density_peak(self, dimension: int) -> float:
        gammas = math.lgamma(self.smoothness) - math.lgamma(self.smoothness + 0.5 * dimension)
        spread = dimension * math.log(self.rate**2 / (4.0 * math.pi))
        return gammas + 0.5 * (spread - self.scale.log_det(dimension))
