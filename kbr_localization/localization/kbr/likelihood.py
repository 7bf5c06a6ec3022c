"""
What an image says about the points of a belief: kernel Bayes' rule off the map.

The conditional kernel mean of images given a pose x, learnt from the map, is m_{Y|x} =
sum_i b_i(x) k_Y(., Y_i) with b(x) = (G_X + n epsilon I)^-1 k_X(x) ([MbKSR] eq. 7). The rule, which
`kernels.off_map` derives, multiplies the weights gamma of points U_j by B^T f. B is never made:
with A = G_X + n epsilon I and K = k_X(X, U), mu = A^-1 (K gamma) and B^T f = K^T (A^-1 f).

What is computed is delta B^T f = K^T (A^-1 k_Y + A^-1 (delta f - k_Y)), k_Y = k_Y(y): the first
term for all images, the second, which a finite delta adds, for the `_COUPLED` images most like y
alone. Others are unlike these, so delta f is k_Y there. `test_localization_likelihood` compares
with the plain rule. The kernel vector is taken relative to that of the best match, k_Y(y) =
exp((k~ - k~_best) / sigma^2): the factor cancels, as factors are normalised and r is a ratio.

A map of up to `LARGEST_SYSTEM` images is solved as a whole, a larger one on the poses in reach of
the points. Let a be these, o the others, v the values that are solved for and s = A^-1 v. Then the
value at a point x is off by

    k_o^T s_o - k_a^T A_aa^-1 G_ao s_o = (k_o - G_oa b)^T s_o,   b = A_aa^-1 k_a(x),

at most |k_o - G_oa b| |v| / (n epsilon), because no eigenvalue of A is below n epsilon. Where k_X
is cut at r bandwidths the first factor is small: at most sqrt(|o|) k_X(r) for k_o. The
exponential kernel falls too slowly for that: a map of more than `LARGEST_SYSTEM` images has a
Gaussian one in its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kbr_localization.kernels.off_map import solved_observations
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.kbr.local_solver import Part, PoseSystem
from kbr_localization.localization.kbr.passes import cross_track
from kbr_localization.localization.kbr.pose_search import (
    Indices,
    PoseSearch,
    sector,
    thinned,
    to_nearest,
)
from kbr_localization.localization.kbr.seen_image import Place, SeenImage
from kbr_localization.localization.kbr.state_kernel import StateKernel
from kbr_localization.localization.kbr.uniform_law import UniformLaw
from kbr_localization.localization.map.centring import Centring
from kbr_localization.localization.map.kernel_map import EXACT_IMAGES, KernelMap
from kbr_localization.localization.map.similarity import Similarity
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray

LARGEST_SYSTEM = EXACT_IMAGES
"""Map poses in one linear system; more are split by place, and thinned where they crowd."""
_USUAL_SYSTEM = 384  # poses; above that, parts of a map are split where the points lie apart
_NEGLIGIBLE = 1e-2  # k_Y relative to the best match: up to there f is k_Y / delta, for delta = 1
_COUPLED = 16  # images, the most alike, among which the rule solves
_KEPT = 32  # images whose kernel values with each other are kept
_SMALLEST = 1e-100  # mean k_Y of a belief relative to the best match
_SAMPLES = 300  # poses that tell how many neighbours one has


@dataclass(frozen=True)
class Match:
    """
    An image at the points of a belief.

    `factors`: (m,) of the kernel Bayes rule, of mean 1 under the belief. `likelihood_ratio`,
    `coverage`: means under the belief of what `Likelihood.ratios` gives for its points.
    `facing_ratio`: the mean of that ratio to the uniform law on the places of the map that face as
    the point does. `best_on_map`: the factor where all images would be like the best match.
    `place`: the belief on the map, to ask how likely other images are there (`seen_image`).
    """

    factors: FloatArray
    likelihood_ratio: float
    coverage: float
    facing_ratio: float
    best_on_map: float
    place: Place


@dataclass(frozen=True)
class _OfImage:
    """
    Of an image y and a map.

    `uniform`, `facing`: see `UniformLaw.means`. `smooth`: A^-1 k_Y (n,), empty on a map that is
    solved in parts.
    """

    uniform: float
    facing: FloatArray
    smooth: FloatArray


class Likelihood:
    """
    The kernel Bayes rule with the conditional kernel mean of a map.

    `centring`: k~ of the map, in place of that which its images have by themselves. `ridge`: n
    epsilon, where n counts the images that the kernel k_X sees from a median place of the map.
    `spacing`: metres from a median place of the map to the nearest image elsewhere that k_X sees
    from it by the heading; 0 where no image has such another. `cross_track`: metres across between
    two runs that pass a place, their root mean square; 0 where none do.
    """

    def __init__(
        self,
        kernel_map: KernelMap,
        config: KbrConfig,
        largest_system: int = LARGEST_SYSTEM,
        centring: Centring | None = None,
    ) -> None:
        self.config, self.poses = config, kernel_map.poses
        self.centring, self.largest_system = centring or kernel_map.centring, largest_system
        self.kernel = StateKernel(config, short_ranged=len(self.poses) > LARGEST_SYSTEM)
        self._search = PoseSearch(self.poses, *self.kernel.reach)
        sampled = range(0, len(self.poses), max(1, len(self.poses) // _SAMPLES))
        places = [(at, self._search.near(self.poses[[at]])) for at in sampled]
        self._neighbours, self.spacing = self._crowding(places)
        self.cross_track = cross_track(kernel_map, places, config.localized_radius)
        self.ridge = self._ridge(1.0)
        self._system = PoseSystem(self.kernel, self.poses, self.ridge, largest_system)
        self._uniform = UniformLaw(self._uniform_weights(), self._search.sectors, self.kernel)
        self._last: tuple[Similarity, _OfImage] | None = None
        self._kept, self._kept_gram = np.zeros(0, dtype=np.intp), np.zeros((0, 0))

    @property
    def is_whole(self) -> bool:
        """Whether the map is small enough to be solved as a whole."""
        return len(self.poses) <= self.largest_system

    def image_kernel(self, values: FloatArray, best: float = 1.0) -> FloatArray:
        """
        Return k_Y of cosines k~ of any shape, relative to that of the best match, at most 1.

        exp((k~ - best) / sigma^2). With best = 1 this is the Gaussian kernel of the centred
        features, scaled to length one, whose squared distance is 2 - 2 k~.
        """
        variance = self.config.image_bandwidth**2
        return np.asarray(np.exp(np.minimum(values - best, 0.0) / variance))

    def in_reach(self, points: FloatArray) -> Indices:
        """Find the map poses (their increasing indices) near any of the points (m, 3)."""
        return self._search.near(points)

    def match(self, points: FloatArray, weights: FloatArray, similarity: Similarity) -> Match:
        """Apply the rule to points (m, 3) with weights (m,), which add up to 1."""
        values, places = np.zeros((3, len(points))), []
        for members, part in self._systems(points):
            cross, smooth, values[:2, members] = self._compared(points[members], part, similarity)
            prior = np.asarray(cross @ weights[members].astype(cross.dtype), dtype=np.float64)
            found = smooth + self._correction(part, prior, similarity)
            values[2, members] = found.astype(cross.dtype) @ cross
            at_part = prior if self.is_whole else self._system.solve(part, prior)
            places.append((part.poses, at_part))
        ratios, covered = self._scaled(values[:2], similarity)
        facing = self._of_image(similarity).facing[sector(points[:, 2])]
        factors = np.maximum(values[2], 0.0)
        # a finite delta says nothing where no image near the belief is like this one
        mean = float(weights @ factors)
        return Match(
            factors / mean if mean > 0.0 else np.ones(len(points)),
            float(weights @ ratios),
            min(float(weights @ covered), 1.0),  # weights add up to one but for rounding
            float(weights @ _ratio(values[0], facing)),
            1.0 / max(float(weights @ values[0]), _SMALLEST),
            Place.joined(places),
        )

    def seen(self, similarity: Similarity) -> SeenImage:
        """Keep what an image says of all places."""
        of_image, known = self._of_image(similarity), None
        values = of_image.smooth
        if not self.is_whole:
            known = similarity.known
            values = self.image_kernel(similarity.at(known), similarity.best)
        return SeenImage(np.append(values, 0.0), known, of_image.uniform)

    def ratios(self, points: FloatArray, similarity: Similarity) -> tuple[FloatArray, FloatArray]:
        """
        Return how likely an image is at points (m, 3), and how far the map knows them: (m,), (m,).

        How many times as likely as under the uniform law on the map, sum_i b_i(U_j) k_Y(Y_i, y)
        over the mean of this under that law; sum_i b_i(U_j), from 0 to 1.
        """
        values = np.zeros((2, len(points)))
        for members, part in self._systems(points):
            values[:, members] = self._compared(points[members], part, similarity)[2]
        return self._scaled(values, similarity)

    def _compared(
        self, points: FloatArray, part: Part, similarity: Similarity
    ) -> tuple[NDArray[np.float32], FloatArray, FloatArray]:
        """
        Compare points (m, 3) with the n poses of a part of the map.

        Returns k_X (n, m), A^-1 k_Y (n,), and (2, m): sum_i b_i(U_j) k_Y(Y_i, y), sum_i b_i(U_j).
        """
        cross = self.kernel.quick_cross_gram(self.poses[part.poses], points)
        rows = self._solutions(part, similarity)
        return cross, rows[0], np.asarray(rows.astype(cross.dtype) @ cross, dtype=np.float64)

    def _scaled(self, values: FloatArray, similarity: Similarity) -> tuple[FloatArray, FloatArray]:
        """Turn values (2, m) of `_compared` into `ratios`."""
        whole = 1.0 + self.kernel.ridge  # of the place of an image of the map
        covered = np.minimum(np.clip(values[1], 0.0, 1.0) * whole, 1.0)
        return _ratio(values[0], self._of_image(similarity).uniform), covered

    def _solutions(self, part: Part, similarity: Similarity) -> FloatArray:
        """A^-1 k_Y and A^-1 1 (2, n) of a part of the map; on a whole map solved once each."""
        if self.is_whole:
            smooth, ones = self._of_image(similarity).smooth, self._system.solution_of_ones
            return np.stack([smooth[part.poses], ones[part.poses]])
        k_y = self.image_kernel(similarity.at(part.poses), similarity.best)
        return self._system.solve(part, np.stack([k_y, np.ones(len(k_y))], axis=1)).T

    def _of_image(self, similarity: Similarity) -> _OfImage:
        """
        Return what of an image does not depend on the points; it is kept for the last image.

        On a map solved in parts the uniform law is that of the images whose values are known.
        """
        if self._last is None or self._last[0] is not similarity:
            known = np.arange(len(self.poses)) if self.is_whole else similarity.known
            k_y = self.image_kernel(similarity.at(known), similarity.best)
            smooth = self._system.solve_whole(k_y) if self.is_whole else k_y[:0]
            self._last = (similarity, _OfImage(*self._uniform.means(known, k_y), smooth))
        return self._last[1]

    def _correction(self, part: Part, prior: FloatArray, similarity: Similarity) -> FloatArray:
        """
        A^-1 (delta f - k_Y) (n,), which turns A^-1 k_Y into delta A^-1 f.

        The factor delta cancels when factors are normalised. f is solved for among the images
        that are most like y; an image unlike y is unlike these, as far as a narrow kernel goes,
        and its delta f is k_Y. A small delta makes delta f of the former as small, and so what is
        negligible beside it.
        """
        k_y = self.image_kernel(similarity.at(part.poses), similarity.best)
        coupled = np.argsort(-k_y, kind='stable')[:_COUPLED]
        negligible = _NEGLIGIBLE * min(self.config.delta, 1.0)
        coupled = np.sort(coupled[k_y[coupled] > negligible])
        if coupled.size == 0:
            return np.zeros(len(k_y))
        rows, delta = self._system.inverse_rows(part, coupled), self.config.delta
        gram, near = self._image_gram(part.poses[coupled]), k_y[coupled]
        f = solved_observations(gram, np.maximum(rows @ prior, 0.0), near, delta)
        return np.asarray((delta * f - near) @ rows)

    def _image_gram(self, images: Indices) -> FloatArray:
        """G_Y (k, k) of map images; those of the last updates are kept."""
        known = self._kept
        at = np.searchsorted(known, images)
        new = images[known.take(at, mode='clip') != images] if known.size else images
        if len(known) + len(new) > _KEPT:
            again = np.isin(known, images)
            known, self._kept_gram = known[again], self._kept_gram[np.ix_(again, again)]
        if new.size:
            both = np.concatenate([known, new])
            sharp, old = self.image_kernel(self.centring.gram(new, both)), len(known)
            gram = np.block([[self._kept_gram, sharp[:, :old].T], [sharp]])
            order = np.argsort(both)
            self._kept, self._kept_gram = both[order], gram[np.ix_(order, order)]
            at = np.searchsorted(self._kept, images)
        return self._kept_gram[np.ix_(at, at)]

    def _uniform_weights(self) -> FloatArray:
        """
        Weights mu of the uniform law on the map's images (n,).

        On a map solved in parts all are the same, as on one without gaps: one number, shape (1,).
        """
        n = len(self.poses)
        if not self.is_whole:
            return np.full(1, 1.0 / (n * (1.0 + self.kernel.ridge)))
        return self.kernel.gram(self.poses) @ self._system.solution_of_ones / n

    def _systems(self, points: FloatArray) -> Iterator[tuple[Indices, Part]]:
        """Split points by place, and the poses in their reach, into systems of moderate size."""
        if self.is_whole:
            yield np.arange(len(points)), Part(self._search.about(points), self.ridge)
            return
        active = self.in_reach(points)
        parts = -(-len(active) // _USUAL_SYSTEM)
        blocks = self._search.grid.blocks(points) if parts > 1 else []
        if len(blocks) <= 1:
            yield np.arange(len(points)), self._thinned(active)
            return
        ends = np.linspace(0, len(blocks), min(parts, len(blocks)) + 1).astype(int)
        for first, end in pairwise(ends):
            members = np.concatenate(blocks[first:end])
            yield members, self._thinned(self.in_reach(points[members]))

    def _thinned(self, active: Indices) -> Part:
        """Take at most as many of the poses as one system has; n counts those that are left."""
        kept = thinned(active, self.largest_system)
        return Part(kept, self._ridge(len(kept) / max(len(active), 1)))

    def _ridge(self, kept: float) -> float:
        """Return n epsilon of a part of the map of whose poses that fraction is kept."""
        return self.kernel.ridge * (1.0 + kept * self._neighbours)

    def _crowding(self, places: Sequence[tuple[int, Indices]]) -> tuple[float, float]:
        """
        Sum of k_X from a pose to the others, and `spacing`, at a median one of places of the map.

        `places`: indices of poses, and those of the poses near each. Of the places, not of the
        images: however many a robot took while it stood still.
        """
        sums, nearest = [], []
        for index, others in places:
            pose, near = self.poses[index], self.poses[others]
            here = pose[np.newaxis]
            sums.append(self.kernel.cross_gram(here, near).sum() - 1.0)
            metres = to_nearest(pose, near)
            if metres > self.kernel.reach[0]:
                metres = to_nearest(pose, self.poses[self._search.facing(here)])
            nearest.append(metres)
        crowds, distances = np.array(sums), np.array(nearest)
        weights, known = 1.0 / (1.0 + crowds), np.isfinite(distances)
        spacing = _median(distances[known], weights[known]) if known.any() else 0.0
        return _median(crowds, weights), spacing


def _median(values: FloatArray, weights: FloatArray) -> float:
    """Median of values (m,) with weights (m,)."""
    order = np.argsort(values)
    mass = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(mass, 0.5 * mass[-1])])


def _ratio(values: FloatArray, law: float | FloatArray) -> FloatArray:
    """Values (m,) over those of a law, at least 0; 0 where the law has none."""
    return np.asarray(np.maximum(values, 0.0) / np.maximum(law, _SMALLEST) * (np.asarray(law) > 0))
