"""
The kernel k_X of poses, and its conditional mean under Gaussian noise in closed form.

k_X is a mixture of two Gaussians on z = (x, y, cos theta, sin theta), fitted to exp(-d), d being
the distance in bandwidths (h, h, a, a): maps are sharp near their poses, coverage falls slowly.
For a Gaussian of covariance W with k(z, z) = 1, let xi be Gaussian noise of a pose u in its own
frame, of covariance N (3, 3). Take z of u (+) xi for Gaussian, with its first two moments: the
mean (x, y, e cos theta, e sin theta), e = exp(-N_33 / 2), and the covariance C, which in the frame
of u is N of x and y, e N_13 and e N_23 of these and the tangent of the circle, (1 - e^4) / 2 along
the tangent and (1 - e^2)^2 / 2 along the radius. The model-based kernel sum rule for conjugate
Gaussian noise ([MbKSR] eq. 21) is

    E k(z_i, u (+) xi) = (|W| / |S|)^(1/2) exp(-(z_i - z_u)^T S^-1 (z_i - z_u) / 2),

S = W + C. In the frame of u, S is the same for all points. W is s^2 B^2, B the bandwidths and s
the width of the Gaussian: with B^-1 C B^-1 = V diag(l) V^T, S is diag(s^2 + l) on the axes
V^T B^-1, whatever s is.
"""

from typing import Any

import cv2
from kbr_localization import se2
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.filter.points import cells
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

Indices = NDArray[np.intp]
Single = NDArray[np.float32]
SHARE, SCALES = 0.483, np.array([0.28, 1.236])
"""Weight of the sharp Gaussian, widths of both in bandwidths: least squares for d up to 5."""


class PoseKernel:
    """k_X; `bandwidths` (4,): of x, y in metres and of cos, sin."""

    def __init__(self, config: KbrConfig) -> None:
        h, a = config.position_bandwidth, config.heading_bandwidth
        self.bandwidths = np.array([h, h, a, a])
        self.widths = 0.6 * self.bandwidths  # of one Gaussian that is about as wide

    def gram(
        self, poses: FloatArray, points: FloatArray, noise: FloatArray | None = None
    ) -> Single:
        """
        Return E k_X(X_i, U_j (+) xi) (n, m) of poses (n, 3) and points (m, 3).

        `noise`: covariance (3, 3) of xi, in the frames of the points; None for no noise.
        """
        means, headings, axes, precisions, heights = self._gaussians(points, noise)
        z, centre = se2.to_plane_and_circle(poses), means[:1].sum(axis=0)
        # lengths on the axes are linear in z: those of its unit vectors, and of its origin
        rows = np.empty((5, len(points), 4))
        rows[:4], rows[4] = np.eye(4)[:, np.newaxis], centre - means
        linear = (_turned(rows, headings) @ axes).T.reshape(4 * len(points), 5)
        z = np.insert(z - centre, 4, 1.0, axis=1)
        lengths = linear.astype(np.float32) @ z.astype(np.float32).T
        return _mixture(lengths.reshape(4, len(points), len(z)), precisions, heights).T

    def pairs(
        self, z: FloatArray, points: FloatArray, j: Indices, noise: FloatArray | None = None
    ) -> Single:
        """Return entries (p,) of `gram` of poses on plane and circle (p, 4) and of points j."""
        means, headings, axes, precisions, heights = self._gaussians(points, noise)
        apart = (z - means.take(j, axis=0)).astype(np.float32)
        turned = _turned(apart, headings.astype(np.complex64).take(j))
        return _mixture(axes.astype(np.float32).T @ turned.T, precisions, heights)

    def _gaussians(
        self, points: FloatArray, noise: FloatArray | None
    ) -> tuple[FloatArray, NDArray[np.complex128], FloatArray, Single, Single]:
        """
        Return the mixture E k(., u (+) xi) of points u (m, 3).

        Means (m, 4) and conjugate headings (m,) of the points; in their frames the axes (4, 4), on
        these -1/2 the precisions (2, 4) of both Gaussians, and their heights (2,).
        """
        noise = np.zeros((3, 3)) if noise is None else noise
        shrink = np.exp(-0.5 * noise[2, 2])
        spread = np.zeros((4, 4))
        spread[:2, :2] = noise[:2, :2]
        spread[:2, 3] = spread[3, :2] = noise[:2, 2] * shrink
        spread[2, 2] = 0.5 * np.expm1(-noise[2, 2]) ** 2
        spread[3, 3] = -0.5 * np.expm1(-2.0 * noise[2, 2])
        wider, axes = np.linalg.eigh(spread / np.outer(self.bandwidths, self.bandwidths))
        squares = SCALES[:, np.newaxis] ** 2
        heights = np.sqrt(squares / (squares + wider)).prod(axis=1) * [SHARE, 1.0 - SHARE]
        means = se2.to_plane_and_circle(points)
        headings = means[:, 2] - 1j * means[:, 3]
        means[:, 2:] *= shrink
        axes /= self.bandwidths[:, np.newaxis]
        precisions = (-0.5 / (squares + wider)).astype(np.float32)
        return means, headings, axes, precisions, heights.astype(np.float32)


def _turned(apart: NDArray[Any], headings: NDArray[Any]) -> NDArray[Any]:
    """Turn differences (..., m, 4) on plane and circle by conjugate headings (m,)."""
    turned = apart.view(headings.dtype) * headings[:, np.newaxis]
    return np.asarray(turned.view(apart.dtype))


def _mixture(lengths: Single, precisions: Single, heights: Single) -> Single:
    """Return values (...) of a mixture of two Gaussians, of lengths (4, ...) on their axes."""
    if not lengths.size:
        return np.asarray(lengths[0])
    exponents = precisions @ np.square(lengths, out=lengths).reshape(4, -1)
    np.maximum(exponents, np.float32(-20.0), out=exponents)  # very small numbers are slow
    return np.asarray(heights @ cv2.exp(exponents, exponents)).reshape(lengths.shape[1:])


class PoseSearch:
    """Find poses of a map in reach of points, by a tree in the metric of the kernel."""

    def __init__(self, kernel: PoseKernel, poses: FloatArray) -> None:
        self.poses, self._kernel, self._bandwidths = poses, kernel, kernel.bandwidths
        self._tree = cKDTree(se2.to_plane_and_circle(poses) / kernel.bandwidths)

    def near(self, points: FloatArray, noise: FloatArray | None = None) -> Indices:
        """Return increasing indices of the poses in reach of any of the points (m, 3)."""
        squares = np.round(se2.to_plane_and_circle(points) / self._bandwidths)
        _, first = np.unique(cells(squares), return_index=True)
        # a point is up to half the diagonal of its cell from the middle
        found = self._tree.query_ball_point(squares[first], self._reach(noise) + 1.0)
        return np.unique(np.concatenate([np.zeros(0, dtype=np.intp), *found]).astype(np.intp))

    def pairs(
        self, points: FloatArray, noise: FloatArray | None = None
    ) -> tuple[Indices, Indices, Single]:
        """Return pairs i (p,) of poses and j (p,) of points in reach, and their `gram` (p,)."""
        tree = cKDTree(se2.to_plane_and_circle(points) / self._bandwidths)
        found = tree.sparse_distance_matrix(self._tree, self._reach(noise), output_type='ndarray')
        i, j = found['j'].astype(np.intp), found['i'].astype(np.intp)
        z = self._tree.data.take(i, axis=0) * self._bandwidths
        return i, j, self._kernel.pairs(z, points, j, noise)

    def _reach(self, noise: FloatArray | None) -> float:
        """Return the bandwidths beyond which the kernel counts as zero: it is 0.002 there."""
        if noise is None:
            return 4.1
        variances = np.array([noise[0, 0], noise[1, 1], -0.5 * np.expm1(-2.0 * noise[2, 2])])
        wider = float((variances / self._bandwidths[[0, 1, 3]] ** 2).max())
        return float(4.1 * np.sqrt(1.0 + wider / SCALES[1] ** 2))
