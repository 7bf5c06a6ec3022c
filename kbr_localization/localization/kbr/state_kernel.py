"""The kernel k_X on poses, with the choices that the filter's configuration has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kbr_localization import se2
from kbr_localization.kernels.algebra import Kernel
from kbr_localization.kernels.kernels import GaussianKernel, MaternKernel
from kbr_localization.kernels.manifold import WrappedNormalKernel
from kbr_localization.localization.config import FilterConfig, SMALLEST_BANDWIDTH
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]

_SMOOTHNESS = {'exponential': 0.5, 'matern': 1.5}
_HALF_WIDTH = {'gaussian': 1.177, 'wrapped': 1.177, 'matern': 0.969, 'exponential': 0.693}
"""Distance in bandwidths at which each kernel is a half."""
_SMOOTH_RIDGE = 2.5  # of a Gaussian kernel, over that of an exponential one which errs as little


class StateKernel:
    """
    Kernel k_X of poses with unit diagonal.

    `gaussian`, `matern` (3/2) and `exponential` (Matern 1/2) act on (x, y, cos, sin); `wrapped` is
    a Gaussian kernel of the position times a wrapped normal kernel of the heading on the circle.
    The bandwidths are those of the configuration: a standard deviation, for the Matern kernels
    their length scale.
    """

    def __init__(self, config: FilterConfig) -> None:
        h, a = config.position_bandwidth, config.heading_bandwidth
        self._widths = np.array([h, h, a, a])
        scale = self._widths**2
        name = config.state_kernel
        self._on_circle = name == 'wrapped'
        self._profile = _PROFILES.get(name)
        self._kernel: Kernel = GaussianKernel(scale, normalised=False)
        if name in _SMOOTHNESS:
            self._kernel = MaternKernel(scale, _SMOOTHNESS[name], normalised=False)
        elif self._on_circle:
            place = GaussianKernel(scale[:2], normalised=False).on(0, 1)
            self._kernel = place * WrappedNormalKernel(a * a, normalised=False).on(2)

    def gram(self, poses: FloatArray) -> FloatArray:
        """Gram matrix. Shapes: (n, 3) -> (n, n)."""
        return self._kernel.gram(self._embedded(poses))

    def cross_gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Matrix of k_X(x_i, z_j). Shapes: (n, 3), (m, 3) -> (n, m)."""
        if self._profile is not None:
            return self._profile(self._exponent(left, right))
        if len(left) == 0 or len(right) == 0:
            return np.zeros((len(left), len(right)))
        return self._kernel.cross_gram(self._embedded(left), self._embedded(right))

    def quick_cross_gram(self, left: FloatArray, right: FloatArray) -> NDArray[np.floating]:
        """Do the same in single precision, in which roots are several times as fast."""
        if self._profile is None:
            return self.cross_gram(left, right)
        return np.asarray(self._profile(self._exponent(left, right).astype(np.float32)))

    def _exponent(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """
        Values -|x - z|^2 / 2, in bandwidths, by one matrix product: (n, 3), (m, 3) -> (n, m).

        The origin lies amid `right`, so that hardly anything cancels: rounding errors are those of
        the squared distances from there.
        """
        x, z = self._embedded(left) / self._widths, self._embedded(right) / self._widths
        centre = z.mean(axis=0) if len(z) else 0.0
        x, z = x - centre, z - centre
        x_part, z_part = (-0.5 * np.einsum('ij,ij->i', a, a)[:, np.newaxis] for a in (x, z))
        rows = np.hstack([x, x_part, np.ones_like(x_part)])
        columns = np.hstack([z, np.ones_like(z_part), z_part])
        return np.asarray(rows @ columns.T)

    def _embedded(self, poses: FloatArray) -> FloatArray:
        return poses if self._on_circle else se2.to_plane_and_circle(poses)


def as_gaussian(config: FilterConfig) -> FilterConfig:
    """Take the Gaussian kernel that is a half where k_X is, which tells how near poses are."""
    share = _HALF_WIDTH[config.state_kernel] / _HALF_WIDTH['gaussian']
    h, a = (
        max(share * width, SMALLEST_BANDWIDTH)
        for width in (config.position_bandwidth, config.heading_bandwidth)
    )
    return replace(config, state_kernel='gaussian', position_bandwidth=h, heading_bandwidth=a)


def short_ranged(config: FilterConfig) -> FilterConfig:
    """Take a Gaussian kernel in place of an exponential one, with a ridge that suits it."""
    if config.state_kernel != 'exponential':
        return config
    return replace(as_gaussian(config), state_ridge=_SMOOTH_RIDGE * config.state_ridge)


def _gaussian(exponent: Floats) -> Floats:
    return np.exp(exponent, out=exponent)


def _matern(exponent: Floats) -> Floats:
    """Profile (1 + r) exp(-r) of smoothness 3/2, r = sqrt(3) |x - z|."""
    distance = _root(exponent, -6.0)
    decay = np.exp(-distance)
    distance += 1.0
    return np.multiply(distance, decay, out=distance)


def _exponential(exponent: Floats) -> Floats:
    """Profile exp(-r) of smoothness 1/2, r = |x - z|."""
    distance = _root(exponent, -2.0)
    return np.exp(np.negative(distance, out=distance), out=distance)


def _root(exponent: Floats, factor: float) -> Floats:
    """Root of a multiple of -|x - z|^2 / 2, in place; rounding may have made that positive."""
    squared = np.multiply(exponent, factor, out=exponent)
    return np.sqrt(np.maximum(squared, 0.0, out=squared), out=squared)


_PROFILES = {'gaussian': _gaussian, 'matern': _matern, 'exponential': _exponential}
