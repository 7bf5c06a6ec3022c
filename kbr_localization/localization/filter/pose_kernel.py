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

S = W + C. In the frame of u, S is the same for all points, so that all values are one matrix
product of monomials in z_i.
"""

from __future__ import annotations

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
        centre = points[:1, :2].sum(axis=0)
        forms = self._forms(points, centre, noise)
        values = _exp(self._monomials(poses, centre) @ forms.reshape(-1, forms.shape[2]).T)
        near, far = np.split(values, 2, axis=1)
        return np.asarray(near * np.float32(SHARE) + far * np.float32(1.0 - SHARE))

    def pairs(
        self,
        poses: FloatArray,
        points: FloatArray,
        i: Indices,
        j: Indices,
        noise: FloatArray | None = None,
    ) -> Single:
        """Return the entries (p,) of `gram` at indices i (p,) of poses and j (p,) of points."""
        centre = points[:1, :2].sum(axis=0)
        monomials, forms = self._monomials(poses, centre)[i], self._forms(points, centre, noise)
        return np.asarray(
            [SHARE, 1.0 - SHARE] @ _exp(np.einsum('pk,spk->sp', monomials, forms[:, j]))
        )

    def _monomials(self, poses: FloatArray, centre: FloatArray) -> FloatArray:
        """Monomials (n, 21) up to degree 2 of z of poses (n, 3), x and y from a centre (2,)."""
        z = se2.to_plane_and_circle(poses)
        z[:, :2] -= centre
        squares = (z[:, :, np.newaxis] * z[:, np.newaxis]).reshape(len(z), 16)
        return np.concatenate([squares, z, np.ones((len(z), 1))], axis=1)

    def _forms(
        self, points: FloatArray, centre: FloatArray, noise: FloatArray | None
    ) -> FloatArray:
        """Coefficients (2, m, 21) of the logarithm of each Gaussian, as a polynomial in z."""
        u = se2.to_plane_and_circle(points)
        u[:, :2] -= centre
        squares = (SCALES[:, np.newaxis] * self.bandwidths) ** 2
        spread = squares[:, :, np.newaxis] * np.eye(4)
        if noise is not None:
            turning, shrink = noise[2, 2], np.exp(-0.5 * noise[2, 2])
            u[:, 2:] *= shrink
            spread[:, :2, :2] += noise[:2, :2]
            spread[:, :2, 3] += noise[:2, 2] * shrink
            spread[:, 3, :2] += noise[:2, 2] * shrink
            spread[:, 2, 2] += 0.5 * np.expm1(-turning) ** 2
            spread[:, 3, 3] -= 0.5 * np.expm1(-2.0 * turning)
        precision = np.linalg.inv(spread)
        turn = np.zeros((len(points), 4, 4))
        turn[:, :2, :2] = turn[:, 2:, 2:] = se2.rotation(points[:, 2])[:, :2, :2]
        quadratic = turn @ precision[:, np.newaxis] @ turn.transpose(0, 2, 1)
        linear = np.einsum('smij,mj->smi', quadratic, u)
        scale = np.log(np.linalg.det(precision) * squares.prod(axis=1))
        constant = scale[:, np.newaxis] - np.einsum('smi,mi->sm', linear, u)
        return np.concatenate(
            [-0.5 * quadratic.reshape(2, -1, 16), linear, 0.5 * constant[..., np.newaxis]], axis=2
        )


def _exp(exponent: FloatArray) -> Single:
    """Exponentials in single precision, where very small ones are slow."""
    if not exponent.size:
        return exponent.astype(np.float32)
    values = cv2.exp(np.maximum(exponent, -20.0).astype(np.float32))
    return np.asarray(values, dtype=np.float32).reshape(exponent.shape)


class PoseSearch:
    """Find poses of a map in reach of points, by a tree in the metric of the kernel."""

    def __init__(self, kernel: PoseKernel, poses: FloatArray) -> None:
        self._bandwidths = kernel.bandwidths
        self._tree = cKDTree(se2.to_plane_and_circle(poses) / kernel.bandwidths)

    def near(self, points: FloatArray, noise: FloatArray | None = None) -> Indices:
        """Return increasing indices of the poses in reach of any of the points (m, 3)."""
        squares = np.round(se2.to_plane_and_circle(points) / self._bandwidths)
        _, first = np.unique(cells(squares), return_index=True)
        # a point is up to half the diagonal of its cell from the middle
        found = self._tree.query_ball_point(squares[first], self._reach(noise) + 1.0)
        return np.unique(np.concatenate([np.zeros(0, dtype=np.intp), *found]).astype(np.intp))

    def pairs(self, points: FloatArray, noise: FloatArray) -> tuple[Indices, Indices]:
        """Return pairs i (p,) of poses and j (p,) of points (m, 3) in reach of each other."""
        tree = cKDTree(se2.to_plane_and_circle(points) / self._bandwidths)
        found = tree.sparse_distance_matrix(self._tree, self._reach(noise), output_type='ndarray')
        return found['j'].astype(np.intp), found['i'].astype(np.intp)

    def _reach(self, noise: FloatArray | None) -> float:
        """Return the bandwidths beyond which the kernel counts as zero: it is 0.002 there."""
        if noise is None:
            return 4.1
        variances = np.array([noise[0, 0], noise[1, 1], -0.5 * np.expm1(-2.0 * noise[2, 2])])
        wider = float((variances / self._bandwidths[[0, 1, 3]] ** 2).max())
        return float(4.1 * np.sqrt(1.0 + wider / SCALES[1] ** 2))
