"""
Kernels on vectors (n, d): Gaussian, Laplace, rational quadratic, Matern.

A normalised kernel is a probability density in x - x', which makes the model-based sum rule free
of coefficients ([MbKSR] section 4.1). A plain kernel (normalised=False) has k(x, x) = 1.
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
    as_sample,
    FloatArray,
)
import numpy as np
from numpy.typing import ArrayLike
import scipy.linalg
from scipy.spatial.distance import cdist
import scipy.special


class Covariance:
    """
    Symmetric positive definite matrix S of R^d.

    `value`: scalar (S = value I in any dimension), diagonal (d,) or full matrix (d, d).
    """

    def __init__(self, value: ArrayLike, name: str = 'covariance') -> None:
        self.value = as_floats(name, value).copy()
        square = self.value.ndim == 2 and self.value.shape[0] == self.value.shape[1]
        if self.value.size == 0 or not (self.value.ndim < 2 or square):
            raise KernelError(
                f'{name}: expected a scalar, (d,) or (d, d), got shape {self.value.shape}'
            )
        if square and np.any(np.abs(self.value - self.value.T) > _rounding(self.value)):
            raise KernelError(f'{name}: expected a symmetric matrix: use (S + S.T) / 2')
        smallest = np.linalg.eigvalsh(self.value)[0] if square else self.value.min()
        if smallest <= 0.0:
            raise KernelError(
                f'{name}: expected positive variances or a positive definite matrix, got '
                f'{smallest:.3g}'
            )
        self._root = np.linalg.cholesky(self.value) if square else np.sqrt(self.value)

    @property
    def dimension(self) -> int | None:
        """Dimension d, or None for a scalar, which fits any dimension."""
        return len(self.value) if self.value.ndim else None

    def whiten(self, x: FloatArray) -> FloatArray:
        """Return L^-1 x, S = L L^T. (n, d) -> (n, d)."""
        if self.value.ndim < 2:
            return np.asarray(x / self._root)
        return np.asarray(scipy.linalg.solve_triangular(self._root, x.T, lower=True).T)

    def colour(self, x: FloatArray) -> FloatArray:
        """Return L x: standard normal draws become draws of N(0, S). (n, d) -> (n, d)."""
        if self.dimension not in (None, x.shape[1]):
            raise KernelError(f'dimension: expected {self.dimension}, got {x.shape[1]}')
        return np.asarray(x * self._root if self.value.ndim < 2 else x @ self._root.T)

    def log_det(self, dimension: int) -> float:
        """Return log |S| in R^dimension."""
        root = np.diag(self._root) if self.value.ndim == 2 else self._root
        return 2.0 * float(np.log(np.broadcast_to(root, dimension)).sum())

    def matrix(self, dimension: int) -> FloatArray:
        """Return it in full (d, d)."""
        if self.value.ndim == 2:
            return self.value
        return np.diag(np.broadcast_to(self.value, dimension))

    def __add__(self, other: Covariance) -> Covariance:
        if None not in (self.dimension, other.dimension) and self.dimension != other.dimension:
            raise KernelError(
                f'covariance: expected one dimension, got {self.dimension} and {other.dimension}'
            )
        if 2 not in (self.value.ndim, other.value.ndim):
            return Covariance(self.value + other.value)
        dimension = self.dimension or other.dimension or 1
        return Covariance(self.matrix(dimension) + other.matrix(dimension))

    def ratio_to(self, other: Covariance) -> float | None:
        """Return c with S = c * other, or None when the two are not proportional."""
        dimension = self.dimension or other.dimension or 1
        mine, theirs = self.matrix(dimension), other.matrix(dimension)
        if mine.shape != theirs.shape:
            return None
        ratio = float(np.trace(mine) / np.trace(theirs))
        return ratio if np.all(np.abs(mine - ratio * theirs) <= _rounding(mine)) else None

    def __repr__(self) -> str:
        return f'Covariance({self.value.tolist()})'


def as_covariance(name: str, value: ArrayLike | Covariance) -> Covariance:
    """Return a Covariance, made of an array where necessary."""
    return value if isinstance(value, Covariance) else Covariance(value, name)


def _rounding(matrix: FloatArray) -> FloatArray:
    """Return the rounding of each entry (d, d), in the units of its two coordinates."""
    root = np.sqrt(np.abs(matrix.diagonal()))
    return np.asarray(1e-10 * np.multiply.outer(root, root))


def squared_distances(x: ArrayLike, z: ArrayLike, scale: Covariance) -> FloatArray:
    """Distances (x_i - z_j)^T S^-1 (x_i - z_j). (n, d), (m, d) -> (n, m)."""
    left = as_points('x', x, scale.dimension)
    right = left if z is x else as_points('z', z, left.shape[1])
    if scale.dimension is None:
        return np.asarray(_squared_euclidean(left, right) / scale.value)
    a = scale.whiten(left)
    return _squared_euclidean(a, a if right is left else scale.whiten(right))


def _squared_euclidean(a: FloatArray, b: FloatArray) -> FloatArray:
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


def median_distance(points: ArrayLike, max_points: int = 2000, seed: int = 0) -> float:
    """
    Median of the pairwise distances, the usual first bandwidth ([KBR] section 5.1).

    Of `max_points` random points when there are more; matrices count as vectors of their
    entries. Shapes: (n, d) or (n, 3, 3), n > 1.
    """
    array = as_sample('points', points)
    array = array.reshape(len(array), -1)
    if len(array) > max_points:
        chosen = np.random.default_rng(seed).choice(len(array), max_points, replace=False)
        array = array[chosen]
    squared = squared_distances(array, array, Covariance(1.0))
    # rounding parts equal points in many dimensions
    labels = np.unique(array, axis=0, return_inverse=True)[1].reshape(-1)
    squared[np.equal.outer(labels, labels)] = 0.0
    distances = np.sqrt(squared[np.triu_indices(len(array), 1)])
    positive = distances[distances > 0]
    if positive.size == 0:
        raise KernelError(
            f'points: expected at least two different points, got {len(array)} equal ones'
        )
    return float(np.median(distances)) or float(np.median(positive))


class RadialKernel(Kernel):
    """
    Kernel peak * profile(s), s = (x - x')^T S^-1 (x - x'), profile(0) = 1.

    `scale` S: scalar, diagonal (d,) or full matrix (d, d).
    """

    def __init__(self, scale: ArrayLike | Covariance, normalised: bool, name: str) -> None:
        self.scale = as_covariance(name, scale)
        self.normalised = normalised
        self.unit: RadialKernel | None = None
        """Plain kernel that a noise smoothed to this one: values are relative to its peak."""

    @abstractmethod
    def profile(self, s: FloatArray, dimension: int) -> FloatArray:
        """Value at squared distance s relative to that at zero; may overwrite s."""

    @abstractmethod
    def slope(self, s: FloatArray, dimension: int) -> FloatArray:
        """Return minus the profile's derivative at s > 0."""

    @abstractmethod
    def log_density_peak(self, dimension: int) -> float:
        """Logarithm of the normalised kernel's k(x, x) in R^dimension."""

    def peak(self, dimension: int) -> float:
        """Value k(x, x) in R^dimension; KernelError when floating point cannot hold it."""
        if not self.normalised and self.unit is None:
            return 1.0
        unit = self.unit.log_density_peak(dimension) if self.unit else 0.0
        return _exp_peak(self.log_density_peak(dimension) - unit, dimension, self)

    def cross_gram(self, x: ArrayLike, z: ArrayLike) -> FloatArray:
        """Matrix of k(x_i, z_j). Shapes: (n, d), (m, d) -> (n, m)."""
        dimension = as_points('x', x).shape[1]
        values = self.profile(squared_distances(x, z, self.scale), dimension)
        peak = self.peak(dimension)
        return values if peak == 1.0 else np.asarray(peak * values)

    def gram(self, x: ArrayLike) -> FloatArray:
        """Matrix of k(x_i, x_j), exactly symmetric. Shapes: (n, d) -> (n, n)."""
        return self.cross_gram(x, x)

    def diagonal(self, x: ArrayLike) -> FloatArray:
        """Values k(x_i, x_i), all equal to the peak. Shapes: (n, d) -> (n,)."""
        points = as_points('x', x, self.scale.dimension)
        return np.full(len(points), self.peak(points.shape[1]))

    def _shown(self, settings: str = '') -> str:
        unit = f', unit={self.unit!r}' if self.unit else ''
        scale = self.scale.value.tolist()
        return f'{type(self).__name__}({scale}, {settings}normalised={self.normalised}{unit})'


def _exp_peak(log_peak: float, dimension: int, kernel: Kernel) -> float:
    # the rules multiply kernel values: their squares must be floats as well
    if abs(log_peak) > 350.0:
        raise KernelError(
            f'normalised: expected a density that is a float in dimension {dimension}, got '
            f'exp({log_peak:.4g}) at zero: use normalised=False in {type(kernel).__name__}'
        )
    return math.exp(log_peak)


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
        """Return exp(-s / 2) / 2."""
        return np.asarray(0.5 * np.exp(-0.5 * s))

    def log_density_peak(self, dimension: int) -> float:
        """Return log |2 pi R|^-1/2."""
        return -0.5 * (dimension * math.log(2.0 * math.pi) + self.scale.log_det(dimension))

    def __repr__(self) -> str:
        return self._shown()


def median_kernel(points: FloatArray, factor: float = 1.0) -> GaussianKernel:
    """Return the plain Gaussian kernel of `factor` times the median distance of points (n, d)."""
    return GaussianKernel((factor * median_distance(points)) ** 2, normalised=False)


class RationalQuadraticKernel(RadialKernel):
    """
    Rational quadratic kernel (1 + (x - x')^T R^-1 (x - x'))^-a; by default a Cauchy density.

    `exponent` a > d / 2; None means a = (1 + d) / 2, conjugate to `CauchyNoise`; other exponents
    normalise to Student's t. Source: [MbKSR] Appendix A.
    """

    def __init__(
        self,
        scale: ArrayLike | Covariance,
        exponent: float | None = None,
        normalised: bool = True,
    ) -> None:
        super().__init__(scale, normalised, 'scale')
        self.exponent = None if exponent is None else as_positive('exponent', exponent)

    def _power(self, dimension: int) -> float:
        return 0.5 * (1 + dimension) if self.exponent is None else self.exponent

    def profile(self, s: FloatArray, dimension: int) -> FloatArray:
        """Return (1 + s)^-a."""
        return np.asarray((1.0 + s) ** -self._power(dimension))

    def slope(self, s: FloatArray, dimension: int) -> FloatArray:
        """Return a (1 + s)^-(a + 1)."""
        power = self._power(dimension)
        return np.asarray(power * (1.0 + s) ** -(power + 1.0))

    def log_density_peak(self, dimension: int) -> float:
        """Return log of Gamma(a) / (Gamma(a - d/2) pi^(d/2) |R|^(1/2))."""
        power = self._power(dimension)
        if power <= 0.5 * dimension:
            raise KernelError(
                f'exponent: expected more than d / 2 = {0.5 * dimension}, got {power}: raise it, '
                'or set normalised=False'
            )
        gammas = math.lgamma(power) - math.lgamma(power - 0.5 * dimension)
        return gammas - 0.5 * (dimension * math.log(math.pi) + self.scale.log_det(dimension))

    def __repr__(self) -> str:
        return self._shown(f'exponent={self.exponent}, ')


class MaternKernel(RadialKernel):
    """
    Matern kernel 2^(1-v) / Gamma(v) r^v K_v(r), r = alpha sqrt((x - x')^T S^-1 (x - x')).

    `smoothness` v in (0, 200]: 1/2 is exp(-r), and for large v it tends to the Gaussian kernel of
    covariance S with the default alpha = sqrt(2 v). Normalised it is the variance-gamma density
    VG(v + d/2; alpha, S), conjugate to `VarianceGammaNoise`. Source: [MbKSR] Appendix A.
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
        if self.smoothness > 200.0:
            raise KernelError('smoothness: expected at most 200: use GaussianKernel, its limit')
        self.alpha = None if alpha is None else as_positive('alpha', alpha)

    @property
    def rate(self) -> float:
        """Return alpha, or its default sqrt(2 v)."""
        return math.sqrt(2.0 * self.smoothness) if self.alpha is None else self.alpha

    def profile(self, s: FloatArray, dimension: int) -> FloatArray:
        """Return 2^(1-v) / Gamma(v) r^v K_v(r) at r = alpha sqrt(s)."""
        return _matern_profile(self.rate * np.sqrt(s), self.smoothness)

    def slope(self, s: FloatArray, dimension: int) -> FloatArray:
        """Return alpha^2 2^-v / Gamma(v) r^(v-1) K_(v-1)(r), finite away from r = 0."""
        r = np.maximum(self.rate * np.sqrt(s), 1e-9)
        order = self.smoothness - 1.0
        if order > 0:
            return _matern_profile(r, order) * self.rate**2 / (4.0 * order)
        factor = self.rate**2 * 0.5**self.smoothness / math.gamma(self.smoothness)
        return np.asarray(factor * r**order * scipy.special.kv(-order, r))

    def log_density_peak(self, dimension: int) -> float:
        """Return log of (alpha^2 / 4 pi)^(d/2) |S|^(-1/2) Gamma(v) / Gamma(v + d/2)."""
        gammas = math.lgamma(self.smoothness) - math.lgamma(self.smoothness + 0.5 * dimension)
        spread = dimension * math.log(self.rate**2 / (4.0 * math.pi))
        return gammas + 0.5 * (spread - self.scale.log_det(dimension))

    def __repr__(self) -> str:
        return self._shown(f'smoothness={self.smoothness}, alpha={self.rate}, ')


def _matern_profile(r: FloatArray, order: float) -> FloatArray:
    """Return 2^(1-v) / Gamma(v) r^v K_v(r), 1 at r = 0. Shapes: any -> the same."""
    r = np.minimum(r, 1e100)  # zero to the last bit; at infinity the factors make NaN
    polynomials = {0.5: (1.0,), 1.5: (1.0, 1.0), 2.5: (1.0, 1.0, 1.0 / 3.0)}
    if order in polynomials:
        return np.asarray(np.polynomial.polynomial.polyval(r, polynomials[order]) * np.exp(-r))
    bessel = scipy.special.kv(order, r)
    # K_v overflows near zero: there sum_k (-r^2/4)^k / (k! (v-1) ... (v-k)), k < v, converges
    near = ~np.isfinite(bessel)
    small = np.where(near, r, 0.0)
    series = term = np.ones_like(r)
    for k in range(1, min(math.ceil(order), 40)):
        term = term * (-0.25 * small * small) / (k * (order - k))
        series = series + term
    log_factor = (1.0 - order) * math.log(2.0) - math.lgamma(order)
    with np.errstate(divide='ignore'):
        far = np.exp(log_factor + order * np.log(np.where(near, 1.0, r)) + np.log(bessel))
    return np.where(near, series, far)


class LaplaceKernel(Kernel):
    """
    Laplace kernel exp(-sum_i |x_i - x'_i| / b_i), times prod 1 / (2 b_i) when normalised.

    `scale` b: scalar or one per coordinate (d,). The kernel exp(-|x - x'| / b) of the Euclidean
    distance is `MaternKernel(b**2, 0.5, alpha=1.0)`.
    """

    def __init__(self, scale: ArrayLike, normalised: bool = True) -> None:
        self.scale, self.normalised = as_floats('scale', scale), normalised
        if self.scale.ndim > 1 or self.scale.size == 0 or np.any(self.scale <= 0):
            raise KernelError(
                f'scale: expected a positive scalar or positive entries (d,), got {self.scale}'
            )

    def peak(self, dimension: int) -> float:
        """Value k(x, x) in R^dimension; KernelError when floating point cannot hold it."""
        if not self.normalised:
            return 1.0
        log_peak = -float(np.log(2.0 * np.broadcast_to(self.scale, dimension)).sum())
        return _exp_peak(log_peak, dimension, self)

    def cross_gram(self, x: ArrayLike, z: ArrayLike) -> FloatArray:
        """Matrix of k(x_i, z_j). Shapes: (n, d), (m, d) -> (n, m)."""
        left = self._points('x', x)
        right = left if z is x else as_points('z', z, left.shape[1])
        distances = cdist(left / self.scale, right / self.scale, 'cityblock')
        return np.asarray(self.peak(left.shape[1]) * np.exp(-distances))

    def diagonal(self, x: ArrayLike) -> FloatArray:
        """Values k(x_i, x_i), all equal to the peak. Shapes: (n, d) -> (n,)."""
        points = self._points('x', x)
        return np.full(len(points), self.peak(points.shape[1]))

    def _points(self, name: str, x: ArrayLike) -> FloatArray:
        return as_points(name, x, self.scale.size if self.scale.ndim else None)

    def __repr__(self) -> str:
        return f'LaplaceKernel({self.scale.tolist()}, normalised={self.normalised})'
