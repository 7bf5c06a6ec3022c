"""The kernel k_X on poses, with the choices that the filter's configuration has."""

from __future__ import annotations

from kbr_localization import se2
from kbr_localization.kernels.algebra import Kernel
from kbr_localization.kernels.kernels import GaussianKernel, MaternKernel
from kbr_localization.kernels.manifold import WrappedNormalKernel
from kbr_localization.localization.config import FilterConfig
from kbr_localization.se2 import FloatArray
import numpy as np

_SMOOTHNESS = 1.5


class StateKernel:
    """
    Kernel k_X of poses with unit diagonal.

    `gaussian` and `matern` (3/2) act on (x, y, cos, sin); `wrapped` is a Gaussian kernel of the
    position times a wrapped normal kernel of the heading on the circle. The bandwidths are those
    of the configuration: a standard deviation, for the Matern kernel its length scale.
    """

    def __init__(self, config: FilterConfig) -> None:
        h, a = config.position_bandwidth, config.heading_bandwidth
        self._widths = np.array([h, h, a, a])
        scale = self._widths**2
        self._is_gaussian = config.state_kernel == 'gaussian'
        self._on_circle = config.state_kernel == 'wrapped'
        self._kernel: Kernel = GaussianKernel(scale, normalised=False)
        if config.state_kernel == 'matern':
            self._kernel = MaternKernel(scale, _SMOOTHNESS, normalised=False)
        elif self._on_circle:
            place = GaussianKernel(scale[:2], normalised=False).on(0, 1)
            self._kernel = place * WrappedNormalKernel(a * a, normalised=False).on(2)

    def gram(self, poses: FloatArray) -> FloatArray:
        """Gram matrix. Shapes: (n, 3) -> (n, n)."""
        return self._kernel.gram(self._embedded(poses))

    def cross_gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Matrix of k_X(x_i, z_j). Shapes: (n, 3), (m, 3) -> (n, m)."""
        if self._is_gaussian:
            return _gaussian(
                self._embedded(left) / self._widths, self._embedded(right) / self._widths
            )
        return self._kernel.cross_gram(self._embedded(left), self._embedded(right))

    def _embedded(self, poses: FloatArray) -> FloatArray:
        return poses if self._on_circle else se2.to_plane_and_circle(poses)


def _gaussian(left: FloatArray, right: FloatArray) -> FloatArray:
    """
    Values exp(-|x - z|^2 / 2), the exponent by one matrix product: (n, d), (m, d) -> (n, m).

    The origin lies amid `right`, so that hardly anything cancels: rounding errors are those of
    the squared distances from there.
    """
    centre = right.mean(axis=0) if len(right) else 0.0
    x, z = left - centre, right - centre
    x_part, z_part = (-0.5 * np.einsum('ij,ij->i', a, a)[:, np.newaxis] for a in (x, z))
    rows = np.hstack([x, x_part, np.ones_like(x_part)])
    columns = np.hstack([z, np.ones_like(z_part), z_part])
    values = rows @ columns.T
    return np.asarray(np.exp(values, out=values))
