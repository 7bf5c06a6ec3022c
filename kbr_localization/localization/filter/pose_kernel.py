"""
The kernel k_X of poses, and its conditional mean under Gaussian noise in closed form.

k_X is Gaussian on z = (x, y, cos theta, sin theta), of covariance W = diag(w^2, w^2, a^2, a^2) and
k_X(z, z) = 1. Let xi be Gaussian noise of a pose u in its own frame, of covariance N (3, 3). To
first order in the position and by its first two moments on the circle, z of u (+) xi is Gaussian
about (x, y, e cos theta, e sin theta), e = exp(-N_33 / 2), and the model-based kernel sum rule for
conjugate Gaussian noise ([MbKSR] eq. 21) is

    E k_X(z_i, u (+) xi) = (|W| / |S|)^(1/2) exp(-(z_i - z_u)^T S^-1 (z_i - z_u) / 2),

S = W + B N B^T, where B takes (dx, dy, dtheta) to (x, y, tangent of the circle) of u. In the frame
of u, S is the same for all points, so that all values are one matrix product of monomials in z_i.
"""

from __future__ import annotations

import cv2
from kbr_localization import se2
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.filter.points import GRID
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

Indices = NDArray[np.intp]
WIDTH = np.sqrt(0.5 * np.log(2.0))
"""Width of the Gaussian that is 1/2 where exp(-d) is: bandwidths are those of an exponential."""
RIDGE = 2.5
"""Factor on `state_ridge`, which is that of an exponential kernel, for the same error."""
REACH = 3.5
"""Widths beyond which the kernel counts as zero: it is 0.002 there."""
NO_NOISE = np.zeros((3, 3))
_LOWEST = -20.0  # of exponents: smaller ones are slow in single precision
_BODY = [0, 1, 3]  # of (x, y, radius, tangent of the circle): what noise of a pose moves


class PoseKernel:
    """k_X; `widths` (4,): of x, y in metres and of cos, sin."""

    def __init__(self, config: KbrConfig) -> None:
        h, a = config.position_bandwidth, config.heading_bandwidth
        self.widths = WIDTH * np.array([h, h, a, a])
        self.ridge = RIDGE * config.state_ridge

    def gram(
        self, poses: FloatArray, points: FloatArray, noise: FloatArray = NO_NOISE
    ) -> NDArray[np.float32]:
        """
        Return E k_X(X_i, U_j (+) xi) (n, m) of poses (n, 3) and points (m, 3).

        `noise`: covariance (3, 3) of xi, in the frames of the points. Single precision.
        """
        centre = points[:1, :2].sum(axis=0)
        exponent = self._monomials(poses, centre) @ self._forms(points, centre, noise).T
        return _exp(exponent)

    def pairs(
        self,
        poses: FloatArray,
        points: FloatArray,
        i: Indices,
        j: Indices,
        noise: FloatArray = NO_NOISE,
    ) -> NDArray[np.float32]:
        """Return the entries (p,) of `gram` at indices i (p,) of poses and j (p,) of points."""
        centre = points[:1, :2].sum(axis=0)
        forms = self._forms(points, centre, noise)
        exponent = np.einsum('pk,pk->p', self._monomials(poses, centre)[i], forms[j])
        return _exp(exponent)

    def _monomials(self, poses: FloatArray, centre: FloatArray) -> FloatArray:
        """Monomials (n, 21) up to degree 2 of z of poses (n, 3), x and y from a centre (2,)."""
        z = se2.to_plane_and_circle(poses)
        z[:, :2] -= centre
        squares = (z[:, :, np.newaxis] * z[:, np.newaxis]).reshape(len(z), 16)
        return np.concatenate([squares, z, np.ones((len(z), 1))], axis=1)

    def _forms(self, points: FloatArray, centre: FloatArray, noise: FloatArray) -> FloatArray:
        """Coefficients (m, 21) of the logarithm of the kernel, as a polynomial in z."""
        u = se2.to_plane_and_circle(points)
        u[:, :2] -= centre
        u[:, 2:] *= np.exp(-0.5 * noise[2, 2])
        spread = np.diag(self.widths**2)
        spread[np.ix_(_BODY, _BODY)] += noise
        spread[3, 3] += 0.5 * -np.expm1(-2.0 * noise[2, 2]) - noise[2, 2]
        precision = np.linalg.inv(spread)
        turn = np.zeros((len(points), 4, 4))
        turn[:, :2, :2] = turn[:, 2:, 2:] = se2.rotation(points[:, 2])[:, :2, :2]
        quadratic = turn @ precision @ turn.transpose(0, 2, 1)
        linear = np.einsum('mij,mj->mi', quadratic, u)
        constant = np.log(np.linalg.det(precision) * np.prod(self.widths**2)) - np.einsum(
            'mi,mi->m', linear, u
        )
        parts = [-0.5 * quadratic.reshape(-1, 16), linear, 0.5 * constant[:, np.newaxis]]
        return np.concatenate(parts, axis=1)


def _exp(exponent: FloatArray) -> NDArray[np.float32]:
    """Exponentials in single precision."""
    if not exponent.size:
        return exponent.astype(np.float32)
    values = cv2.exp(np.maximum(exponent, _LOWEST).astype(np.float32))
    return np.asarray(values, dtype=np.float32).reshape(exponent.shape)


class PoseSearch:
    """Find poses of a map in reach of points, by a tree in the metric of the kernel."""

    def __init__(self, kernel: PoseKernel, poses: FloatArray) -> None:
        self._widths = kernel.widths
        self._tree = cKDTree(se2.to_plane_and_circle(poses) / kernel.widths)

    def near(self, points: FloatArray, noise: FloatArray = NO_NOISE) -> Indices:
        """Return increasing indices of the poses in reach of any of the points (m, 3)."""
        wider = float(np.sqrt(1.0 + noise[[0, 1], [0, 1]].max() / self._widths[0] ** 2))
        cells = np.round(se2.to_plane_and_circle(points) / self._widths)
        _, first = np.unique(cells @ GRID, return_index=True)
        # a point is up to half the diagonal of its cell from the middle
        found = self._tree.query_ball_point(cells[first], wider * REACH + 1.0)
        return np.unique(np.concatenate([np.zeros(0, dtype=np.intp), *found]).astype(np.intp))

    def pairs(self, points: FloatArray, noise: FloatArray = NO_NOISE) -> tuple[Indices, Indices]:
        """Return pairs i (p,) of poses and j (p,) of points (m, 3) in reach of each other."""
        wider = float(np.sqrt(1.0 + noise[[0, 1], [0, 1]].max() / self._widths[0] ** 2))
        tree = cKDTree(se2.to_plane_and_circle(points) / self._widths)
        found = tree.sparse_distance_matrix(self._tree, wider * REACH, output_type='ndarray')
        return found['j'].astype(np.intp), found['i'].astype(np.intp)
