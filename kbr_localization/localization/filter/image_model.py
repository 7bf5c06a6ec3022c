"""
The likelihood of an image: the conditional kernel mean of the map's images.

The conditional kernel mean of images given a pose x, learnt from the pairs (X_i, Y_i) of the map,
is m_{Y|x} = sum_i b_i(x) k_Y(., Y_i), b(x) = (G_X + n epsilon I)^-1 k_X(x) ([MbKSR] eq. 7). For an
image y with k_Y(Y_i, y) = exp((k~(Y_i, y) - max_j k~(Y_j, y)) / sigma^2) (k~: `run_mean`) let

    r(x) = m_{Y|x}(y) / mean of m_{Y|X_j}(y) over the map,     c(x) = sum_i b_i(x) in [0, 1].

The mean is over places, which weigh the same however many images were taken there. c is the
coverage, scaled to about 1 at an image of the map: how far the map knows x. If the image shows a
place of the map with probability i, and else anything, it is Lambda(x) = i r(x) + 1 - i c(x)
times as likely at x as where nothing is known. Weighing points by m_{Y|x}(y) is kernel Bayes'
rule off the map (`off_map_bayes_rule`) for delta -> infinity. A finite delta replaces k_Y by
delta f, f = (G_Y diag(mu) + delta I)^-1 k_Y.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from kbr_localization import se2
from kbr_localization.errors import LocalizationError
from kbr_localization.kernels.rules import observation_weights
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.filter.pose_kernel import Indices, PoseKernel, PoseSearch
from kbr_localization.localization.map.kernel_map import EXACT_IMAGES, KernelMap
from kbr_localization.localization.map.similarity import Centring, Similarity
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack


class ImageModel:
    """
    The conditional kernel mean of a map's images.

    A map of up to `EXACT_IMAGES` images is solved as a whole, a larger one, or for a finite delta,
    by the poses in reach of groups of points, at a cost that does not grow with the map.
    `spacing`: metres from a median place of the map to the nearest other image.
    """

    def __init__(
        self, kernel_map: KernelMap, config: KbrConfig, centring: Centring | None = None
    ) -> None:
        self.config, self.poses = config, kernel_map.poses
        self.centring = centring or kernel_map.centring
        self.kernel = PoseKernel(config)
        self._search = PoseSearch(self.kernel, self.poses)
        self._whole = len(self.poses) <= EXACT_IMAGES
        self._factors: OrderedDict[bytes, FloatArray] = OrderedDict()
        self._measure()
        n = len(self.poses)
        self._on_map: FloatArray = np.full(n, 1.0 / (1.0 + self.config.state_ridge) / n)
        if self._whole:
            every, gram = np.arange(n), self.kernel.gram(self.poses, self.poses)
            self._places = _uniform_on_places(gram)
            self._ones = self._solve(every, np.ones(n), gram)
            # mean of b_i over the map's places
            self._on_map = self._solve(every, gram @ self._places)

    def in_reach(self, points: FloatArray, noise: FloatArray | None = None) -> Indices:
        """Return increasing indices of the map's poses in reach of any of the points (m, 3)."""
        return self._search.near(points, noise)

    def places(self, images: Indices) -> FloatArray:
        """Return the uniform law (k,) on the places of images: less for each of many at one."""
        if len(images) == len(self.poses) and self._whole:
            return self._places
        poses = self.poses[images]
        return _uniform_on_places(self.kernel.gram(poses, poses))

    def image_kernel(self, values: FloatArray, best: float) -> FloatArray:
        """Return k_Y relative to the best match, of values k~ of any shape."""
        return np.asarray(np.exp(np.minimum(values - best, 0.0) / self.config.image_bandwidth**2))

    def evaluate(
        self,
        poses: FloatArray,
        prior: FloatArray,
        crowd: int,
        seen: Similarity,
        noise: FloatArray,
    ) -> FloatArray:
        """
        Return r and c (2, m) of an image at points (m, 3), in expectation over their noise.

        `prior`: weights (m,) of the points, which a finite delta needs; `crowd`: how many of the
        first points are at one place; `noise`: (3, 3) in the frames of the points (eq. 21).
        """
        known = np.arange(len(self.poses)) if self._whole else seen.known
        k_y = self.image_kernel(seen.at(known), seen.best)
        mean = max(float(self._on_map[known] @ k_y), 1e-100)
        if self._whole and not self.config.finite_delta:
            rows, here = np.stack([self._solve(known, k_y), self._ones]), poses[:crowd]
            near = self.in_reach(here, noise)
            gram = self.kernel.gram(self.poses[near], here, noise)
            values = [rows[:, near].astype(np.float32) @ gram]
            if len(poses) > crowd:
                i, j = self._search.pairs(poses[crowd:], noise)
                pairs = self.kernel.pairs(self.poses, poses[crowd:], i, j, noise)
                apart = len(poses) - crowd
                values.append(np.stack([np.bincount(j, row[i] * pairs, apart) for row in rows]))
            found = np.concatenate(values, axis=1)
        else:
            found = self._by_parts(poses, prior, seen, noise)
        # c is about 1 at an image of the map
        covered = np.clip(found[1] * (1.0 + self.config.state_ridge), 0.0, 1.0)
        return np.stack([np.maximum(found[0], 0.0) / mean, covered])

    def _by_parts(
        self, poses: FloatArray, weights: FloatArray, seen: Similarity, noise: FloatArray
    ) -> FloatArray:
        """Return b^T delta f and sum_i b_i (2, m) at poses (m, 3), by local systems."""
        values = np.zeros((2, len(poses)))
        for members, part in self._parts(poses, noise):
            gram = self.kernel.gram(self.poses[part], poses[members], noise)
            k_y = self.image_kernel(seen.at(part), seen.best)
            if self.config.finite_delta and part.size:
                prior = self.kernel.gram(self.poses[part], poses, noise) @ weights
                k_y = self._bayes_rule(part, k_y, np.asarray(prior, dtype=np.float64))
            right_side = np.stack([k_y, np.ones(len(part))], axis=1)
            values[:, members] = self._solve(part, right_side).T.astype(np.float32) @ gram
        return values

    def _bayes_rule(self, part: Indices, k_y: FloatArray, prior: FloatArray) -> FloatArray:
        """
        Return delta f (n,) of kernel Bayes' rule, which is k_Y for an infinite delta.

        `prior`: (n,) values of the kernel mean of the belief at a part of the map's poses.
        """
        mu = np.maximum(self._solve(part, prior), 0.0)
        gram_y = self.image_kernel(self.centring.gram(part, part), 1.0)
        f = observation_weights(0.5 * (gram_y + gram_y.T), mu, k_y, self.config.delta)
        total = float(f.sum())  # r is relative to the mean over the map, which is that of k_Y
        return np.asarray(f * (k_y.sum() / total)) if total > 0.0 else k_y

    def _parts(self, poses: FloatArray, noise: FloatArray) -> Iterator[tuple[Indices, Indices]]:
        """Group poses (m, 3) by place; yield each group and the map's poses in its reach."""
        squares = np.floor(poses[:, :2] / (6.0 * self.kernel.bandwidths[0]))
        _, group = np.unique(squares @ [1.0, 2.0**20], return_inverse=True)
        for number in range(int(group.max(initial=-1)) + 1):
            members = np.flatnonzero(group == number)
            part = self.in_reach(poses[members], noise)
            # a part is factored while the robot drives, the whole map once at the start
            most = EXACT_IMAGES // 2
            if len(part) > most:
                part = part[np.linspace(0, len(part) - 1, most).astype(np.intp)]
            yield members, part

    def _solve(
        self, part: Indices, right_side: FloatArray, gram: NDArray[np.float32] | None = None
    ) -> FloatArray:
        """Solve A s = v, A = G_X + n epsilon I of a part of the map's poses: (n,) or (n, k)."""
        if not part.size:
            return right_side
        key = part.tobytes()
        if key not in self._factors:
            if gram is None:
                gram = self.kernel.gram(self.poses[part], self.poses[part])
            matrix = gram.astype(np.float64)
            matrix.flat[:: len(part) + 1] = 1.0 + self._ridge
            factor, failed = lapack.dpotrf(matrix.T, lower=1, clean=0)
            if failed:
                raise LocalizationError(
                    f'{len(part)} map poses make a singular system: raise state_ridge, which '
                    f'makes n epsilon {self._ridge:g}'
                )
            self._factors[key] = factor
        self._factors.move_to_end(key)
        while len(self._factors) > 8:
            self._factors.popitem(last=False)
        return np.asarray(lapack.dpotrs(self._factors[key], right_side, lower=1)[0])

    def _measure(self) -> None:
        """
        Measure n epsilon and `spacing` at places of the map.

        n counts the images that k_X sees from a median place: of places, not of images, however
        many of these a robot took while it stood.
        """
        sample = self.poses[:: max(1, len(self.poses) // 300)]
        crowds, nearest = np.zeros(len(sample)), np.full(len(sample), np.inf)
        # some places at once, as thousands of images may be in reach of each
        for begin in range(0, len(sample), 20):
            places = sample[begin : begin + 20]  # noqa: E203
            found = [self.in_reach(place) for place in places[:, np.newaxis]]
            near, sizes = self.poses[np.concatenate(found)], [len(one) for one in found]
            i, j = np.arange(len(near)), np.repeat(np.arange(len(found)), sizes)
            np.add.at(crowds, begin + j, self.kernel.pairs(near, places, i, j))
            metres, _ = se2.magnitude(se2.between(places[j], near))
            apart = metres > 0.05 * self.config.position_bandwidth  # else at one place
            np.minimum.at(nearest, begin + j, np.where(apart, metres, np.inf))
        weights, known = 1.0 / crowds, np.isfinite(nearest)
        self._ridge = self.config.state_ridge * _median(crowds, weights)
        self.spacing = _median(nearest[known], weights[known]) if known.any() else 0.0


def _uniform_on_places(gram: NDArray[np.floating[Any]]) -> FloatArray:
    """Return weights (n,) of images, by their kernel matrix (n, n) of poses."""
    weights = 1.0 / gram.sum(axis=1, dtype=np.float64)
    return np.asarray(weights / weights.sum())


def _median(values: FloatArray, weights: FloatArray) -> float:
    """Median of values (m,) with weights (m,)."""
    order = np.argsort(values)
    mass = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(mass, 0.5 * mass[-1])])
