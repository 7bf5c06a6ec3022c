"""The kernel k_X of poses, on (x, y, cos, sin)."""

from __future__ import annotations

import cv2
from kbr_localization import se2
from kbr_localization.localization.config import KbrConfig
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray

_GAUSSIAN_RIDGE = 2.5  # of the Gaussian over that of the exponential, for the same error
_ROUNDING = 1e-3  # of squared distances in bandwidths: 0.03 of a bandwidth between equal poses
GAUSSIAN_WIDTH = 0.589
"""Bandwidth of the Gaussian that is a half where the exponential kernel is: sqrt(log(2) / 2)."""


class StateKernel:
    """
    Kernel k_X of poses with unit diagonal: exponential (Matern 1/2), or Gaussian of short range.

    The exponential one suits sparse and dense maps alike, but falls so slowly that many poses with
    small values add up; maps that are solved piece by piece take the Gaussian. `reach`: (2,)
    metres and chord of the heading beyond which values count as zero, five bandwidths of the
    exponential (values up to 0.007) or 3.5 of the Gaussian (0.002). `ridge`: epsilon that suits
    the kernel.
    """

    def __init__(self, config: KbrConfig, short_ranged: bool = False) -> None:
        h, a = config.position_bandwidth, config.heading_bandwidth
        width = GAUSSIAN_WIDTH if short_ranged else 1.0
        self._widths = width * np.array([h, h, a, a])
        self._gaussian = short_ranged
        self.reach = (3.5 if short_ranged else 5.0) * self._widths[[0, 2]]
        self.ridge = (_GAUSSIAN_RIDGE if short_ranged else 1.0) * config.state_ridge

    def gram(self, poses: FloatArray) -> FloatArray:
        """Gram matrix. Shapes: (n, 3) -> (n, n)."""
        gram = self.cross_gram(poses, poses)
        gram.flat[:: len(poses) + 1] = 1.0  # to the last bit
        return gram

    def cross_gram(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Matrix of k_X(x_i, z_j). Shapes: (n, 3), (m, 3) -> (n, m)."""
        if len(left) == 0 or len(right) == 0:
            return np.zeros((len(left), len(right)))
        return np.asarray(self._profile(self._squared(left, right)))

    def quick_cross_gram(self, left: FloatArray, right: FloatArray) -> NDArray[np.float32]:
        """Do the same, (n, 3), (m, 3) -> (n, m), in single precision: several times as fast."""
        if len(left) == 0 or len(right) == 0:
            return np.zeros((len(left), len(right)), dtype=np.float32)
        squared = self._squared(left, right, np.float32)
        return np.asarray(self._profile(squared), dtype=np.float32)

    def _profile(self, squared: NDArray[np.floating]) -> NDArray[np.floating]:
        """Turn squared distances in bandwidths into values of the kernel, in place."""
        if self._gaussian:
            np.multiply(squared, -0.5, out=squared)
        else:
            np.negative(cv2.sqrt(squared, squared), out=squared)
        # as exact as that of NumPy, and four (single precision) to ten times as fast
        return np.asarray(cv2.exp(squared, squared))

    def _squared(
        self, left: FloatArray, right: FloatArray, dtype: type[np.floating] = np.float64
    ) -> NDArray[np.floating]:
        """
        Squared distances in bandwidths, by one matrix product: (n, 3), (m, 3) -> (n, m).

        The origin lies amid `right`, so that hardly anything cancels: rounding errors are those of
        the squared distances from there. Where `right` is so wide that they would show, the
        product is in double precision.
        """
        x, z = ((se2.to_plane_and_circle(poses) / self._widths).T for poses in (left, right))
        centre = z.mean(axis=1, keepdims=True)
        x -= centre
        z -= centre
        from_x, from_z = np.einsum('ji,ji->i', x, x), np.einsum('ji,ji->i', z, z)
        error = np.finfo(dtype).eps * max(from_x.max(), from_z.max())
        product = dtype if error < _ROUNDING else np.float64
        rows = np.empty((6, len(left)), dtype=product)
        columns = np.empty((6, len(right)), dtype=product)
        rows[:4], rows[4], rows[5] = -2.0 * x, from_x, 1.0
        columns[:4], columns[4], columns[5] = z, 1.0, from_z
        squared = (rows.T @ columns).astype(dtype, copy=False)
        # what rounding made negative; the maximum with zero would take twice as long
        return np.asarray(np.abs(squared, out=squared))
