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

The system is solved on the map poses that the points can reach. Let a be these, o the others, A =
G_X + n epsilon I, v the image's kernel values and s = A^-1 v the full solution. Then the evidence
at a point x is off by

    k_o^T s_o - k_a^T A_aa^-1 G_ao s_o = (k_o - G_oa b)^T s_o,   b = A_aa^-1 k_a(x),

at most |k_o - G_oa b| |v| / (n epsilon), because no eigenvalue of A is below n epsilon. Where k_X
is cut at r bandwidths the first factor is small: at most sqrt(|o|) k_X(r) for k_o. Places that
reach only images with values below c count as without evidence, an error of at most c |b|_1. The
exponential kernel falls too slowly for that, so a large map has a Gaussian one in its place.
"""

from __future__ import annotations

from itertools import pairwise

from kbr_localization.localization.config import FilterConfig
from kbr_localization.localization.kbr.importance_weighting import importance_weighted
from kbr_localization.localization.kbr.map_density import (
    nearest_closeness,
    neighbours_likeness,
    neighbours_seen,
)
from kbr_localization.localization.kbr.pose_search import PoseSearch, thinned
from kbr_localization.localization.kbr.pose_system import PoseSystem
from kbr_localization.localization.kbr.state_kernel import as_gaussian, short_ranged, StateKernel
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.similarity import Similarity
from kbr_localization.se2 import FloatArray
from kbr_localization.vision.multi_camera import TYPICAL_SIMILARITY
import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]
_REACH = {'gaussian': 3.5, 'wrapped': 3.5, 'matern': 5.0, 'exponential': 5.0}
"""Bandwidths after which a value of k_X counts as zero: below 0.007."""
_UNLIKE = 0.35  # of the best match, behind what map images have with their neighbours
_UNLIKE_SCALE = 0.1
_NEGLIGIBLE = 5e-3  # of the best match: such an image says nothing in favour of a place
_KNOWN = 0.5  # k_X of the nearest pose of a large map: a point is not in a gap
_EXACT_WHOLE = 64  # poses of a whole map; of more only those that matter are taken, quickly
_UNIMPORTANT = 5e-4  # entry of a solution: leaving these out changes evidence by about as much
_EXACT_SYSTEM = 192  # poses; more are looked through for those that matter
_USUAL_SYSTEM = 384  # poses; larger systems are split where the points lie apart
LARGEST_SYSTEM = 1024
"""Map poses in one linear system; more are split by place, and thinned where they crowd."""


class ObservationModel:
    """
    Conditional kernel mean of the images given the pose.

    A map of up to `largest_system` images is solved as a whole and inverted once, a larger one on
    the poses in reach. `density`: how free of gaps the map is, at most 1. `ridge`: n epsilon,
    where n counts the images that the kernel k_X sees from one of them. `likeness`: kernel value
    k_Y that an image of the map usually has with the best of those around it, or NaN.
    """

    def __init__(
        self, kernel_map: KernelMap, config: FilterConfig, largest_system: int = LARGEST_SYSTEM
    ) -> None:
        self.poses = kernel_map.poses
        config = config if len(self.poses) <= LARGEST_SYSTEM else short_ranged(config)
        self.config = config
        self._kernel_map = kernel_map
        self.kernel = StateKernel(config)
        reach = _REACH[config.state_kernel]
        self._search = PoseSearch(
            self.poses, reach * config.position_bandwidth, reach * config.heading_bandwidth
        )
        self.largest_system = largest_system
        self._asked: tuple[FloatArray, Indices] = (np.zeros((0, 3)), np.zeros(0, dtype=np.intp))
        self._last: tuple[Similarity, FloatArray] | None = None
        closeness = StateKernel(as_gaussian(config))
        self.density = nearest_closeness(self.poses, closeness, self._search.near)
        neighbours = neighbours_seen(self.poses, self.kernel, self._search.near)
        self.ridge = config.state_ridge * (1.0 + neighbours)
        self.likeness = neighbours_likeness(kernel_map, closeness, self._search.near)
        self._system = PoseSystem(self.kernel, self.poses, self.ridge)

    def sharpened(self, values: FloatArray, best: float) -> FloatArray:
        """Image kernel (m,) relative to the best match: exp((k - best) / tau), at most 1."""
        tau = self.config.sharpening
        if tau == 0.0:
            return np.asarray(np.clip(values / max(best, 1e-12), 0.0, 1.0))
        return np.asarray(np.exp(np.minimum(values - best, 0.0) / tau))

    def whole_best(self, similarity: Similarity) -> float:
        """Return the best match's value, with cameras that had no image counted as usual ones."""
        if not similarity.missing or np.isnan(self.likeness):
            return similarity.best
        usual = self.likeness ** (1.0 / len(self._kernel_map.cameras))
        return float(similarity.best * (usual / TYPICAL_SIMILARITY) ** similarity.missing)

    def shortfall(self, best: float) -> float:
        """How far a best match of that value stays behind `likeness`; 0 where that is unknown."""
        return 0.0 if np.isnan(self.likeness) else self.likeness - best

    def trust(self, best: float) -> float:
        """
        How far an image counts whose best match has that value: 1, less where it is like nothing.

        What comes from a covered lens, or shows what nobody has mapped, is most like some image of
        the map too, but that says nothing about the pose.
        """
        excess = max(0.0, self.shortfall(best) - _UNLIKE) / _UNLIKE_SCALE
        return float(np.exp(-(excess**2)))

    def trust_in(self, similarity: Similarity) -> float:
        """How far an image counts, cameras that had none counted as usual ones."""
        return self.trust(self.whole_best(similarity))

    @property
    def is_whole(self) -> bool:
        """Whether the map is small enough to be solved as a whole."""
        return len(self.poses) <= self.largest_system

    def in_reach(self, points: FloatArray) -> Indices:
        """Find the map poses (their increasing indices) near any of the points (m, 3)."""
        if points is not self._asked[0]:
            self._asked = (points, self._search.near(points))
        return self._asked[1]

    def evidence(self, points: FloatArray, similarity: Similarity) -> FloatArray:
        """
        Values m_{Y|U_j}(y) (m,) of an image at points (m, 3), relative to its best match.

        Where the points reach many poses, it is zero at those that reach only poses whose images
        are nothing like it.
        """
        if self.is_whole:
            return self._evidence_of_whole(points, similarity)
        active = self.in_reach(points)
        best, values = similarity.best, similarity.at(active)
        if len(active) <= _EXACT_SYSTEM:
            return self._smoothed(
                points, active, self._system.solve(active, self.sharpened(values, best))
            )
        like = active[self.sharpened(values, best) > _NEGLIGIBLE]
        return self._evidence_near(points, self.poses[like], similarity)

    def factors(
        self,
        points: FloatArray,
        similarity: Similarity,
        outlier_rate: float,
        weights: FloatArray | None = None,
    ) -> FloatArray:
        """
        Factors (m,) by which an image changes the weights of points (m, 3).

        They are what the points explain of it and what every place gets.
        """
        explained = self.explained(points, similarity, weights)
        return explained + self.anywhere(similarity, outlier_rate)

    def explained(
        self, points: FloatArray, similarity: Similarity, weights: FloatArray | None = None
    ) -> FloatArray:
        """
        How well points (m, 3) explain an image (m,): 1 for as well as the best place on the map.

        With `weights` (m,) by the importance-weighted rule with delta, else by its limit. Less
        where the image is like nothing on the map.
        """
        evidence = self.evidence(points, similarity)
        if weights is not None:
            evidence = self._importance_weighted(points, similarity, weights, evidence)
        return np.asarray(self.trust_in(similarity) * np.minimum(evidence, 1.0))

    def anywhere(self, similarity: Similarity, outlier_rate: float) -> float:
        """Factor that every place gets: an image that says nothing, or is like nothing."""
        trust = self.trust_in(similarity)
        return trust * outlier_rate + (1.0 - trust)

    def plausible(self, similarity: Similarity, most: int | None = None) -> Indices:
        """
        Images of the map (their increasing indices) that the robot may see.

        On a map that is compared as a whole these are all; on a large one the candidates, but for
        those that are nothing like the image, and the `most` best ones of them.
        """
        candidates = similarity.candidates
        if len(candidates) == similarity.size:
            return candidates
        values = self.sharpened(similarity.at(candidates), similarity.best)
        best = np.argsort(-values, kind='stable')[:most]
        kept = best[values[best] > _NEGLIGIBLE]
        return candidates[np.sort(kept if kept.size else best)]

    def error_bound(self, points: FloatArray, similarities: FloatArray) -> FloatArray:
        """
        Bound (m,) of the error at each point (m, 3) of having solved on the poses in reach only.

        See the module's text. It takes the full kernel vector (n,) and reads all of the map: for
        tests and measurements.
        """
        active = self.in_reach(points)
        others = np.setdiff1d(np.arange(len(self.poses)), active)
        a, o = self.poses[active], self.poses[others]
        weights = self._system.solve(active, self.kernel.cross_gram(a, points))
        missed = self.kernel.cross_gram(o, points) - self.kernel.cross_gram(o, a) @ weights
        size = np.linalg.norm(self.sharpened(similarities, float(similarities.max())))
        bound = np.linalg.norm(missed, axis=0) * size / self.ridge
        return np.asarray(bound + _NEGLIGIBLE * np.abs(weights).sum(axis=0))

    def coverage(self, points: FloatArray) -> FloatArray:
        """
        How much the map knows of points (m, 3): sum_i b_i(x), 0 in a gap and 1 on a map pose.

        On maps too large to be solved as a whole, 1 as far as k_X of the nearest is a half.
        """
        active = self.in_reach(points)
        if not self.is_whole:
            near = self.kernel.cross_gram(points, self.poses[active])
            closeness = near.max(axis=1, initial=0.0)
            return np.asarray(np.minimum(closeness / _KNOWN, 1.0))
        known = self._smoothed(points, active, self._system.solution_of_ones[active])
        return np.minimum((1.0 + self.ridge) * known, 1.0)

    def _evidence_of_whole(self, points: FloatArray, similarity: Similarity) -> FloatArray:
        active, solved = self.in_reach(points), self._whole_solution(similarity)
        if len(active) <= _EXACT_WHOLE:
            return self._smoothed(points, active, solved[active])
        active = active[np.abs(solved[active]) > _UNIMPORTANT]
        cross = self.kernel.quick_cross_gram(points, self.poses[active])
        found = cross @ solved[active].astype(cross.dtype)
        return np.asarray(np.maximum(found, 0.0), dtype=np.float64)

    def _evidence_near(
        self, points: FloatArray, like: FloatArray, similarity: Similarity
    ) -> FloatArray:
        """Evidence (m,) at points near the poses `like` (k, 3), zero at the others."""
        result = np.zeros(len(points))
        worth = np.flatnonzero(self._search.grid.within_cells_of(points, like))
        if worth.size == 0:
            return result
        for group, reach in self._systems(points[worth]):
            members = worth[group]
            values = self.sharpened(similarity.at(reach), similarity.best)
            solved = self._system.solve(reach, values)
            result[members] = self._smoothed(points[members], reach, solved)
        return result

    def _importance_weighted(
        self, points: FloatArray, similarity: Similarity, weights: FloatArray, evidence: FloatArray
    ) -> FloatArray:
        active = thinned(self.in_reach(points), self.largest_system)
        if active.size == 0:
            return evidence
        smoother = self._system.solve(active, self.kernel.cross_gram(self.poses[active], points))
        descriptors = self._kernel_map.descriptors[active]
        gram = self._kernel_map.describer.cross_gram(descriptors, descriptors)
        sharp = self.sharpened(gram, 1.0)
        return importance_weighted(evidence, weights, smoother, sharp, self.config.delta)

    def _systems(self, points: FloatArray) -> list[tuple[Indices, Indices]]:
        """Split points by place, and the poses in their reach, into systems of moderate size."""
        active = self.in_reach(points)
        parts = -(-len(active) // _USUAL_SYSTEM)
        blocks = self._search.grid.blocks(points) if parts > 1 else []
        if len(blocks) <= 1:
            return [(np.arange(len(points)), thinned(active, self.largest_system))]
        ends = np.linspace(0, len(blocks), min(parts, len(blocks)) + 1).astype(int)
        groups = [np.concatenate(blocks[first:end]) for first, end in pairwise(ends)]
        size = self.largest_system
        return [(group, thinned(self.in_reach(points[group]), size)) for group in groups]

    def _whole_solution(self, similarity: Similarity) -> FloatArray:
        """Solve on all of a small map, once for each image."""
        if self._last is None or self._last[0] is not similarity:
            everything = np.arange(len(self.poses))
            values = self.sharpened(similarity.at(everything), similarity.best)
            self._last = (similarity, self._system.solve_whole(values))
        return self._last[1]

    def _smoothed(self, points: FloatArray, active: Indices, solved: FloatArray) -> FloatArray:
        cross = self.kernel.cross_gram(points, self.poses[active])
        return np.asarray(np.maximum(cross @ solved, 0.0))
