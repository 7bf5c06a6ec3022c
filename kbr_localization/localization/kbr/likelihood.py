"""
What an image says about the points of a belief: kernel Bayes' rule off the map.

The conditional kernel mean of images given a pose x, learnt from the map, is m_{Y|x} =
sum_i b_i(x) k_Y(., Y_i) with b(x) = (G_X + n epsilon I)^-1 k_X(x) ([MbKSR] eq. 7). The rule (see
`kernels.off_map`) multiplies the weights gamma of points U_j by B^T f. B is never made: with A =
G_X + n epsilon I, mu = A^-1 (K gamma) and B^T f = K^T (A^-1 f), K = k_X(X, U).

A map of up to `LARGEST_SYSTEM` images is solved as a whole, a larger one on the poses in reach of
the points. Let a be these, o the others, v the values that are solved for and s = A^-1 v. Then the
value at a point x is off by

    k_o^T s_o - k_a^T A_aa^-1 G_ao s_o = (k_o - G_oa b)^T s_o,   b = A_aa^-1 k_a(x),

at most |k_o - G_oa b| |v| / (n epsilon), because no eigenvalue of A is below n epsilon. Where k_X
is cut at r bandwidths the first factor is small: at most sqrt(|o|) k_X(r) for k_o. The
exponential kernel falls too slowly for that, so a large map has a Gaussian one in its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from kbr_localization.kernels.off_map import observation_weights
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.kbr.local_solver import PoseSystem
from kbr_localization.localization.kbr.pose_search import PoseSearch, thinned
from kbr_localization.localization.kbr.state_kernel import StateKernel
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.similarity import Similarity
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]
LARGEST_SYSTEM = 1024
"""Map poses in one linear system; more are split by place, and thinned where they crowd."""
_USUAL_SYSTEM = 384  # poses; larger systems of a large map are split where the points lie apart
_NEGLIGIBLE = 1e-2  # k_Y relative to the best match: f is k_Y / delta there, whatever mu is
_COUPLED = 32  # images, the most alike, among which the rule solves
_SAMPLES = 300  # poses that tell how many neighbours one has


@dataclass(frozen=True)
class Match:
    """
    An image at the points of a belief.

    `factors`: (m,) of the kernel Bayes rule, of mean 1 under the belief. `evidence`: how many
    times as likely the image is under the belief as under the uniform law on the map, sum_i mu_i
    k_Y(Y_i, y) over the same with the mu of that law. `coverage`: share of the belief that the map
    knows, the mean of sum_i b_i(U_j), at most 1.
    """

    factors: FloatArray
    evidence: float
    coverage: float


class Likelihood:
    """
    The kernel Bayes rule with the conditional kernel mean of a map.

    `ridge`: n epsilon, where n counts the images that the kernel k_X sees from one of them.
    """

    def __init__(
        self, kernel_map: KernelMap, config: KbrConfig, largest_system: int = LARGEST_SYSTEM
    ) -> None:
        self.config, self.poses = config, kernel_map.poses
        self._kernel_map, self.largest_system = kernel_map, largest_system
        self.kernel = StateKernel(config, short_ranged=len(self.poses) > LARGEST_SYSTEM)
        self._search = PoseSearch(self.poses, *self.kernel.reach)
        self.ridge = self.kernel.ridge * (1.0 + self._neighbours())
        self._system = PoseSystem(self.kernel, self.poses, self.ridge)
        self._uniform = self._uniform_law()

    @property
    def is_whole(self) -> bool:
        """Whether the map is small enough to be solved as a whole."""
        return len(self.poses) <= self.largest_system

    def sharpened(self, values: FloatArray, best: float) -> FloatArray:
        """Image kernel (m,) relative to the best match: exp((k - best) / tau), at most 1."""
        tau = self.config.sharpening
        if tau == 0.0:
            return np.asarray(np.clip(values / max(best, 1e-12), 0.0, 1.0))
        return np.asarray(np.exp(np.minimum(values - best, 0.0) / tau))

    def in_reach(self, points: FloatArray) -> Indices:
        """Find the map poses (their increasing indices) near any of the points (m, 3)."""
        return self._search.near(points)

    def match(self, points: FloatArray, weights: FloatArray, similarity: Similarity) -> Match:
        """Apply the rule to points (m, 3) with weights (m,), which add up to 1."""
        values, covered, evidence = np.zeros((2, len(points))), np.zeros(len(points)), 0.0
        for members, reach in self._systems(points):
            part = self._solved(points[members], weights[members], reach, similarity)
            values[:, members], evidence = part[0], evidence + part[2]
            covered[members] = part[1]
        factors = np.maximum(values[0], 0.0)
        # a finite delta says nothing where no image near the belief is like this one
        mean = float(weights @ factors)
        coverage = float(weights @ np.clip(covered, 0.0, 1.0))
        uniform = self._uniform_evidence(similarity)
        return Match(
            factors / mean if mean > 0.0 else np.ones(len(points)),
            max(evidence, 0.0) / uniform if uniform > 0.0 else 0.0,
            min(coverage * (1.0 + self.kernel.ridge), 1.0),
        )

    def _solved(
        self, points: FloatArray, weights: FloatArray, reach: Indices, similarity: Similarity
    ) -> tuple[FloatArray, FloatArray, float]:
        """B^T f (m,), sum_i b_i(U_j) (m,) and sum_i mu_i k_i of points and the poses in reach."""
        if reach.size == 0:
            return np.zeros(len(points)), np.zeros(len(points)), 0.0
        cross = self.kernel.quick_cross_gram(self.poses[reach], points)
        k_y = self.sharpened(similarity.at(reach), similarity.best)
        prior = np.asarray(cross @ weights.astype(cross.dtype), dtype=np.float64)
        mu = self._solve(reach, prior)
        found = self._solve(reach, self._observation_weights(reach, mu, k_y))
        both = np.stack([found, self._solution_of_ones(reach)]).astype(cross.dtype) @ cross
        return np.asarray(both[0], np.float64), np.asarray(both[1], np.float64), float(mu @ k_y)

    def _observation_weights(self, reach: Indices, mu: FloatArray, k_y: FloatArray) -> FloatArray:
        """F (n,) of the rule, solved among the images that matter."""
        delta = self.config.delta
        coupled = np.flatnonzero((k_y > _NEGLIGIBLE) & (mu > 0.0))
        coupled = np.sort(coupled[np.argsort(-k_y[coupled], kind='stable')[:_COUPLED]])
        result = k_y / delta
        if coupled.size:
            gram = self._image_gram(reach[coupled])
            solved = observation_weights(gram, mu[coupled], k_y[coupled], delta)
            result[coupled] = solved
        return result

    def _image_gram(self, images: Indices) -> FloatArray:
        """G_Y (k, k) of map images, sharpened."""
        rows = self._kernel_map.descriptors[images]
        gram = np.asarray(self._kernel_map.describer.cross_gram(rows, rows), dtype=np.float64)
        tau = self.config.sharpening
        return np.exp((gram - 1.0) / tau) if tau > 0.0 else gram

    def _solve(self, reach: Indices, right_side: FloatArray) -> FloatArray:
        if not self.is_whole:
            return self._system.solve(reach, right_side)
        everywhere = np.zeros(len(self.poses))
        everywhere[reach] = right_side
        return np.asarray(self._system.solve_whole(everywhere)[reach])

    def _solution_of_ones(self, reach: Indices) -> FloatArray:
        if self.is_whole:
            return np.asarray(self._system.solution_of_ones[reach])
        return self._system.solve(reach, np.ones(len(reach)))

    def _uniform_law(self) -> FloatArray:
        """Weights mu of the uniform law on the map; of a large map 1 / n, as without gaps."""
        n = len(self.poses)
        if not self.is_whole:
            return np.full(1, 1.0 / n)
        return self.kernel.gram(self.poses) @ self._system.solution_of_ones / n

    def _uniform_evidence(self, similarity: Similarity) -> float:
        """Sum of mu_i k_Y(Y_i, y) under the uniform law: all images that are like y count."""
        candidates = similarity.candidates
        k_y = self.sharpened(similarity.at(candidates), similarity.best)
        law = self._uniform[candidates] if self.is_whole else self._uniform
        return float(np.sum(law * k_y))

    def _systems(self, points: FloatArray) -> Iterator[tuple[Indices, Indices]]:
        """Split points by place, and the poses in their reach, into systems of moderate size."""
        active = self.in_reach(points)
        parts = 1 if self.is_whole else -(-len(active) // _USUAL_SYSTEM)
        blocks = self._search.grid.blocks(points) if parts > 1 else []
        if len(blocks) <= 1:
            yield np.arange(len(points)), thinned(active, self.largest_system)
            return
        ends = np.linspace(0, len(blocks), min(parts, len(blocks)) + 1).astype(int)
        for first, end in pairwise(ends):
            members = np.concatenate(blocks[first:end])
            yield members, thinned(self.in_reach(points[members]), self.largest_system)

    def _neighbours(self) -> float:
        """Mean over the poses of the sum of k_X over all others: how many neighbours one has."""
        sample = self.poses[:: max(1, len(self.poses) // _SAMPLES), np.newaxis]
        sums = [
            self.kernel.cross_gram(pose, self.poses[self._search.near(pose)]).sum() - 1.0
            for pose in sample
        ]
        return float(np.mean(sums))
