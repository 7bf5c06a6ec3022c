"""
What an image says about poses on and off the map.

The conditional kernel mean of images given a pose x, learnt from the map, is
m_{Y|x} = sum_i b_i(x) k_Y(., Y_i) with b(x) = (G_X + n epsilon I)^-1 k_X(x) ([MbKSR] eq. 7). A
belief on points U_j with weights gamma_j is thus, with B = [b(U_j)], a sample of pairs of a pose
and an image embedding with Gram matrix Gamma = B^T G_Y B, and the kernel Bayes rule in its
importance-weighted form gives the posterior weights on the same points, off the map:

    w = D (D Gamma D + delta I)^-1 D B^T k_Y(y),   D = diag(sqrt(gamma)).

On the map poses (U = X, epsilon -> 0) it is the thresholded rule of [kReg] eq. 8. For large delta
it weighs each point by m_{Y|U_j}(y), the conditional kernel mean evaluated at the image.
"""

from __future__ import annotations

from collections import OrderedDict

from kbr_localization import se2
from kbr_localization.kernels.kernels import GaussianKernel
from kbr_localization.localization.config import FilterConfig
from kbr_localization.localization.kernel_map import KernelMap
from kbr_localization.se2 import FloatArray
import numpy as np
import scipy.linalg
from scipy.spatial import cKDTree

_REACH = 3.5  # bandwidths after which a kernel value counts as zero
_CACHED_FACTORS = 8


class ObservationModel:
    """Conditional kernel mean of the images given the pose, solved on the poses in reach."""

    def __init__(self, kernel_map: KernelMap, config: FilterConfig) -> None:
        self.config = config
        self.poses = kernel_map.poses
        self._embedded = se2.to_plane_and_circle(kernel_map.poses)
        h, a = config.position_bandwidth, config.heading_bandwidth
        self.kernel = GaussianKernel([h * h, h * h, a * a, a * a], normalised=False)
        self._tree = cKDTree(self.poses[:, :2])
        self._factors: OrderedDict[bytes, FloatArray] = OrderedDict()

    def sharpened(self, similarities: FloatArray) -> FloatArray:
        """Image kernel (n,) relative to the best match: exp((k - max k) / tau)."""
        tau = self.config.sharpening
        if tau == 0.0:
            return np.maximum(similarities, 0.0) / max(float(similarities.max()), 1e-12)
        return np.asarray(np.exp((similarities - similarities.max()) / tau))

    def in_reach(self, points: FloatArray) -> np.ndarray:
        """Find the map poses (their indices) near any of the points (m, 3)."""
        size = self.config.position_bandwidth
        cells = np.unique(np.round(points[:, :2] / size), axis=0) * size
        groups = self._tree.query_ball_point(cells, (_REACH + 0.75) * size)
        return np.unique(np.concatenate([np.asarray(g, dtype=np.intp) for g in groups]))

    def evidence(self, points: FloatArray, similarities: FloatArray) -> FloatArray:
        """Values m_{Y|U_j}(y) (m,) of an image at points (m, 3), relative to its best match."""
        active = self.in_reach(points)
        if active.size == 0:
            return np.zeros(len(points))
        cross = self.kernel.cross_gram(se2.to_plane_and_circle(points), self._embedded[active])
        values = self.sharpened(similarities)[active]
        solved = scipy.linalg.cho_solve((self._factor(active), True), values, check_finite=False)
        return np.asarray(np.maximum(cross @ solved, 0.0))

    def _factor(self, active: np.ndarray) -> FloatArray:
        key = active.tobytes()
        if key not in self._factors:
            gram = self.kernel.gram(self._embedded[active])
            gram.flat[:: active.size + 1] += self.config.state_ridge
            self._factors[key] = scipy.linalg.cholesky(gram, lower=True, check_finite=False)
        self._factors.move_to_end(key)
        while len(self._factors) > _CACHED_FACTORS:
            self._factors.popitem(last=False)
        return self._factors[key]
