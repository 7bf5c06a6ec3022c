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

from kbr_localization import se2
from kbr_localization.errors import LocalizationError
from kbr_localization.kernels.rules import observation_weights
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.filter.pose_kernel import PoseKernel, PoseSearch, Single
from kbr_localization.localization.map.kernel_map import EXACT_IMAGES, KernelMap
from kbr_localization.localization.map.similarity import Centring, Indices, Similarity
from kbr_localization.se2 import FloatArray
from kbr_localization.workers import batches
import numpy as np
from scipy.linalg import lapack
from scipy.sparse import csr_array


class ImageModel:
    """
    The conditional kernel mean of a map's images.

    A map of up to `EXACT_IMAGES` images is solved as a whole, of a larger one, or for a finite
    delta, what is in reach of the points: at a cost that does not grow with the map.
    `spacing`: metres from a median place of the map to the nearest other image.
    """

    def __init__(
        self, kernel_map: KernelMap, config: KbrConfig, centring: Centring | None = None
    ) -> None:
        self.config, self.poses = config, kernel_map.poses
        self.centring = centring or kernel_map.centring
        self.kernel = PoseKernel(config)
        self._search = PoseSearch(self.kernel, self.poses)
        self._measure()
        n = len(self.poses)
        self._on_map: FloatArray = np.full(n, 1.0 / (1.0 + self.config.state_ridge) / n)
        self._whole = n <= EXACT_IMAGES and not config.finite_delta
        if self._whole:
            parts = batches(self.poses, 64)
            gram = np.concatenate([self.kernel.gram(part, self.poses) for part in parts])
            self._places = _uniform_on_places(gram.sum(axis=1, dtype=np.float64))
            self._inverse = self._inverse_of(gram)
            self._ones = self._inverse.sum(axis=1)
            # mean of b_i over the map's places
            self._on_map = self._inverse @ (gram @ self._places)

    def in_reach(self, points: FloatArray, noise: FloatArray | None = None) -> Indices:
        """Return increasing indices of the map's poses in reach of any of the points (m, 3)."""
        return self._search.near(points, noise)

    def places(self, images: Indices) -> FloatArray:
        """Return the uniform law (k,) on the places of images: less for each of many at one."""
        if self._whole and len(images) == len(self.poses):
            return self._places
        poses = self.poses[images]
        i, _, values = PoseSearch(self.kernel, poses).pairs(poses)
        return _uniform_on_places(np.asarray(np.bincount(i, values), dtype=np.float64))

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
        k_y = self.image_kernel(seen.at(seen.known), seen.best)
        mean = max(float(self._on_map[seen.known] @ k_y), 1e-100)
        if self._whole:
            search = self._search
            b = np.stack([self._inverse @ k_y.astype(np.float32), self._ones])
        else:
            search, b = self._in_part(poses, prior, seen, noise)
        here, apart = poses[:crowd], poses[crowd:]
        near = search.near(here, noise)
        r, c = b.take(near, axis=1) @ self.kernel.gram(search.poses[near], here, noise)
        i, j, pairs = search.pairs(apart, noise)
        of_others = [np.bincount(j, row.take(i) * pairs, len(apart)) for row in b]
        r, c = np.concatenate([[r, c], of_others], axis=1)
        # c is about 1 at an image of the map
        covered = np.clip(c * (1.0 + self.config.state_ridge), 0.0, 1.0)
        return np.stack([np.maximum(r, 0.0) / mean, covered])

    def _in_part(
        self, points: FloatArray, weights: FloatArray, seen: Similarity, noise: FloatArray
    ) -> tuple[PoseSearch, Single]:
        """Return the poses in reach of points (m, 3), and their b_i for k_Y and for 1 (2, k)."""
        part = self.in_reach(points, noise)
        size = max(len(part), 1)
        if size > EXACT_IMAGES:
            # candidates, and others evenly spread
            some = part[np.linspace(0, size - 1, EXACT_IMAGES).astype(np.intp)]
            part = np.union1d(np.intersect1d(part, seen.candidates), some)
        ridge = self._ridge * len(part) / size
        search, k_y = PoseSearch(self.kernel, self.poses[part]), np.ones((len(part), 2))
        i, j, values = search.pairs(search.poses)
        gram = csr_array((values, (i, j)), shape=(len(part), len(part)))
        k_y[:, 0] = self.image_kernel(seen.at(part), seen.best)
        if self.config.finite_delta:
            i, j, values = search.pairs(points, noise)
            prior = np.bincount(i, values * weights[j], len(part))[:, np.newaxis]
            mu = np.maximum(_solved(gram, ridge, prior.astype(np.float64))[:, 0], 0.0)
            k_y[:, 0] = self._bayes_rule(part, mu, k_y[:, 0])
        return search, _solved(gram, ridge, k_y).T.astype(np.float32)

    def _bayes_rule(self, part: Indices, mu: FloatArray, k_y: FloatArray) -> FloatArray:
        """Return delta f (k,) of kernel Bayes' rule, which is k_Y for an infinite delta."""
        gram_y = self.image_kernel(self.centring.gram(part, part), 1.0)
        f = observation_weights(0.5 * (gram_y + gram_y.T), mu, k_y, self.config.delta)
        total = float(f.sum())  # r is relative to the mean over the map, which is that of k_Y
        return np.asarray(f * (k_y.sum() / total)) if total > 0.0 else k_y

    def _inverse_of(self, gram: Single) -> Single:
        """Return A^-1 (n, n), A = G_X + n epsilon I."""
        matrix = gram + np.float32(self._ridge) * np.eye(len(gram), dtype=np.float32)
        factor, failed = lapack.spotrf(matrix, lower=1)
        if failed:
            raise LocalizationError(
                f'{len(gram)} map poses make a singular system: raise state_ridge, which '
                f'makes n epsilon {self._ridge:g}'
            )
        lower, _ = lapack.spotri(factor, lower=1)
        return np.ascontiguousarray(lower + np.tril(lower, -1).T)

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
            i, j, values = self._search.pairs(places)
            np.add.at(crowds, begin + j, values)
            metres, _ = se2.magnitude(se2.between(places[j], self.poses[i]))
            apart = metres > 0.05 * self.config.position_bandwidth  # else at one place
            np.minimum.at(nearest, begin + j, np.where(apart, metres, np.inf))
        weights, known = 1.0 / crowds, np.isfinite(nearest)
        self._ridge = self.config.state_ridge * _median(crowds, weights)
        self.spacing = _median(nearest[known], weights[known]) if known.any() else 0.0


def _uniform_on_places(crowds: FloatArray) -> FloatArray:
    """Return weights (k,) of images, by the numbers (k,) seen from their places."""
    return np.asarray(1.0 / crowds / (1.0 / crowds).sum())


def _solved(gram: csr_array, ridge: float, right: FloatArray) -> FloatArray:
    """Solve (gram + ridge I) x = right (k, p) by conjugate gradients, for each column."""
    x, residual, direction = np.zeros_like(right), right, right
    squared = first = np.sum(right**2, axis=0)
    while np.any(squared > 1e-8 * first):
        image = gram @ direction + ridge * direction
        step = squared / np.maximum(np.sum(direction * image, axis=0), 1e-300)
        x, residual = x + step * direction, residual - step * image
        before, squared = squared, np.sum(residual**2, axis=0)
        direction = residual + squared / np.maximum(before, 1e-300) * direction
    return x


def _median(values: FloatArray, weights: FloatArray) -> float:
    """Median of values (m,) with weights (m,)."""
    order = np.argsort(values)
    mass = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(mass, 0.5 * mass[-1])])
