"""
Prediction and likelihood of an image: conditional kernel means on the poses of the map.

The conditional kernel mean of images given a pose x, learnt from the pairs (X_i, Y_i) of the map,
is m_{Y|x} = sum_i b_i(x) k_Y(., Y_i), b(x) = (G_X + n epsilon I)^-1 k_X(x) ([MbKSR] eq. 7). For an
image y with k_Y(Y_i, y) = exp((k~(Y_i, y) - max_j k~(Y_j, y)) / sigma^2) (k~: `RunMean`) let

    r(x) = m_{Y|x}(y) / mean of m_{Y|X_j}(y) over the map,     c(x) = sum_i b_i(x) in [0, 1],

both in expectation over the noise of the motion to x (`PoseKernel`). The mean is over places: a
place counts once however many images were taken there. c is the coverage, scaled to about 1 at an
image of the map: how well the map covers x. If the image shows a place of the map with probability
i, and anything else otherwise, it is Lambda(x) = i r(x) + 1 - i c(x) times as likely at x as at a
pose that the map does not cover. Weighing points by m_{Y|x}(y) is kernel Bayes' rule off the map
(`off_map_bayes_rule`) for delta -> infinity. A finite delta replaces k_Y by delta f,
f = (G_Y diag(mu) + delta I)^-1 k_Y.
"""

import cv2
from kbr_localization import se2
from kbr_localization.errors import LocalizationError
from kbr_localization.kernels.rules import observation_weights
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.map.kernel_map import EXACT_IMAGES, KernelMap
from kbr_localization.localization.map.similarity import Centring, Indices, Similarity
from kbr_localization.se2 import FloatArray
from kbr_localization.vision.preparation import select_evenly
from kbr_localization.workers import batches
import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack
from scipy.sparse import csr_array
from scipy.spatial import cKDTree

Single = NDArray[np.float32]
SHARE, SCALES = 0.483, np.array([0.28, 1.236])
"""Weight of the narrow Gaussian, widths of both in bandwidths: least squares for d up to 5."""


class PoseKernel:
    """
    The kernel k_X of poses, and its conditional mean under Gaussian noise in closed form.

    k_X is a mixture of two Gaussians on z = (x, y, cos theta, sin theta), fitted to exp(-d), d
    being the distance in bandwidths (h, h, a, a): sharp near a pose, with slowly falling coverage.
    Let xi be Gaussian noise of covariance N (3, 3) in the frame of a pose u. Approximate z of
    u (+) xi by a Gaussian of the same mean (x, y, e cos theta, e sin theta), e = exp(-N_33 / 2),
    and covariance C: in the frame of u, N of x and y, e N_13 and e N_23 of these and the tangent
    of the circle, (1 - e^4) / 2 along the tangent, (1 - e^2)^2 / 2 along the radius. For a
    Gaussian kernel of covariance W with k(z, z) = 1 the sum rule ([MbKSR] eq. 21) is

        E k(z_i, u (+) xi) = (|W| / |S|)^(1/2) exp(-(z_i - z_u)^T S^-1 (z_i - z_u) / 2),

    S = W + C. In the frame of u, S is the same for all points. With the bandwidths B, W = s^2 B^2
    for a Gaussian of width s, and B^-1 C B^-1 = V diag(l) V^T, S is diag(s^2 + l) on the axes
    V^T B^-1.

    `bandwidths` (4,): of x, y in metres and of cos, sin; `reach`: bandwidths beyond which the
    kernel counts as zero (it is 0.002 there). Poses and points are z, (n, 4).
    """

    def __init__(self, config: KbrConfig, noise: FloatArray | None = None) -> None:
        h, a = config.position_bandwidth, config.heading_bandwidth
        self.bandwidths = np.array([h, h, a, a])
        self.widths = 0.6 * self.bandwidths  # of one Gaussian that is about as wide
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
        self._shrink = np.array([1.0, 1.0, shrink, shrink])
        self._axes = axes / self.bandwidths[:, np.newaxis]
        # -1/2 times the precisions (2, 4) of both Gaussians on the axes, and their heights (2,)
        self._precisions = (-0.5 / (squares + wider)).astype(np.float32)
        self._heights = heights.astype(np.float32)
        most = float((np.diag(spread)[[0, 1, 3]] / self.bandwidths[[0, 1, 3]] ** 2).max())
        self.reach = 4.1 * float(np.sqrt(1.0 + most / SCALES[1] ** 2))

    def gram(self, poses: FloatArray, points: FloatArray) -> Single:
        """Return the kernel matrix (n, m) of poses (n, 4) and points (m, 4)."""
        means, headings = points * self._shrink, points[:, 2] - 1j * points[:, 3]
        centre = means[:1].sum(axis=0)
        # lengths on the axes are linear in z: compute those of its unit vectors and its origin
        rows = np.empty((5, len(points), 4))
        rows[:4], rows[4] = np.eye(4)[:, np.newaxis], centre - means
        turned = (rows.view(headings.dtype) * headings[:, np.newaxis]).view(rows.dtype)
        linear = (turned @ self._axes).T.reshape(4 * len(points), 5)
        z = np.insert(poses - centre, 4, 1.0, axis=1)
        lengths = linear.astype(np.float32) @ z.astype(np.float32).T
        return self._mixture(lengths.reshape(4, len(points), len(z))).T

    def pairs(self, poses: FloatArray, points: FloatArray, j: Indices) -> Single:
        """Return the kernel values (p,) of poses (p, 4) with the points of indices j (p,)."""
        means, headings = points * self._shrink, points[:, 2] - 1j * points[:, 3]
        apart = (poses - means.take(j, axis=0)).astype(np.float32)
        headings = headings.astype(np.complex64).take(j)
        turned = (apart.view(headings.dtype) * headings[:, np.newaxis]).view(apart.dtype)
        return self._mixture(self._axes.astype(np.float32).T @ turned.T)

    def _mixture(self, lengths: Single) -> Single:
        """Return values (...) of the mixture for lengths (4, ...) on its axes."""
        if not lengths.size:
            return np.asarray(lengths[0])
        exponents = self._precisions @ np.square(lengths, out=lengths).reshape(4, -1)
        np.maximum(exponents, np.float32(-20.0), out=exponents)  # denormal numbers are slow
        values = self._heights @ cv2.exp(exponents, exponents)
        return np.asarray(values).reshape(lengths.shape[1:])


class PoseSearch:
    """Search of poses z (n, 4) of a map in reach of points, by a k-d tree in bandwidths."""

    def __init__(self, kernel: PoseKernel, z: FloatArray) -> None:
        self.z, self._tree = z, cKDTree(z / kernel.bandwidths)

    def near(self, points: FloatArray, kernel: PoseKernel) -> Indices:
        """Return increasing indices of the poses in reach of any of the points (m, 4)."""
        squares = np.round(points / kernel.bandwidths)
        _, first = np.unique(cells(squares), return_index=True)
        # a point is up to half the diagonal of its cell, one bandwidth, from the middle
        found = self._tree.query_ball_point(squares[first], kernel.reach + 1.0)
        return np.unique(np.concatenate([np.zeros(0, dtype=np.intp), *found]).astype(np.intp))

    def pairs(self, points: FloatArray, kernel: PoseKernel) -> tuple[Indices, Indices, Single]:
        """Return indices i (p,) of poses and j (p,) of points in reach, and their kernel (p,)."""
        tree = cKDTree(points / kernel.bandwidths)
        found = tree.sparse_distance_matrix(self._tree, kernel.reach, output_type='ndarray')
        i, j = found['j'].astype(np.intp), found['i'].astype(np.intp)
        return i, j, kernel.pairs(self.z.take(i, axis=0), points, j)


def cells(squares: FloatArray) -> FloatArray:
    """Return numbers (m,) of squares (m, 4) of a grid of (x, y, cos, sin), seldom equal ones."""
    return np.asarray(squares @ [1.0, 2.0**18, 2.0**36, 2.0**42])


class RunMean:
    """
    Mean similarity of the images of a run with each image of the map.

    In another building, or in a light that the map does not show, all images of a run may resemble
    the same few images of the map. So subtract from the kernel values of an image the mean of
    those of the run's N images that were taken elsewhere, according to the odometry (adaptive
    score normalisation of speaker verification: Auckenthaler, Carey and Lloyd-Thomas, 2000):

        k~(y, Y_i) - sum_t k~(y_t, Y_i) / (N + N_0),   y_t taken elsewhere than y, or long before.

    `radius`: metres of one place; `prior`: N_0, images of similarity zero that a run begins with.
    """

    def __init__(self, size: int, radius: float, prior: float = 4.0) -> None:
        self._radius, self._prior = radius, prior
        self._sums, self._counts = np.zeros(size), np.full(size, prior)
        # images whose values are not yet in the sums, and their odometry poses
        self._pending: list[tuple[Indices, FloatArray]] = []
        self._poses = np.zeros((0, 3))

    def grow(self, size: int) -> None:
        more = size - len(self._sums)
        self._sums = np.append(self._sums, np.zeros(more))
        self._counts = np.append(self._counts, np.full(more, self._prior))

    def subtract(self, seen: Similarity, odometry_pose: FloatArray) -> Similarity:
        """Return an image's values without the run mean; remember the image for later ones."""
        near = se2.within(self._poses, odometry_pose, self._radius)
        near[:-64] = False
        pending, self._pending = self._pending, []
        for image, stays in zip(pending, near, strict=True):
            if stays:
                self._pending.append(image)
            else:
                known, values = image
                self._sums[known] += values
                self._counts[known] += 1.0
        self._pending.append((seen.evaluated, seen.values_at(seen.evaluated)))
        self._poses = np.concatenate([self._poses[near], odometry_pose[np.newaxis]])

        def relative(values: FloatArray, indices: Indices) -> FloatArray:
            return np.asarray(values - self._sums.take(indices) / self._counts.take(indices))

        return seen.transformed(relative)


class ImageModel:
    """
    The conditional kernel mean of a map's images.

    A map of up to `EXACT_IMAGES` images is solved as a whole. Of a larger one, or for a finite
    delta, only the images in reach of the points are: the cost does not grow with the map.
    `spacing`: median distance in metres from a place of the map to the nearest other one.
    """

    def __init__(
        self, kernel_map: KernelMap, config: KbrConfig, centring: Centring | None = None
    ) -> None:
        self.config, self.poses = config, kernel_map.poses
        self.centring = centring or kernel_map.centring
        self.kernel = PoseKernel(config)
        self._search = PoseSearch(self.kernel, se2.to_plane_and_circle(self.poses))
        self._measure()
        n = len(self.poses)
        self._on_map: FloatArray = np.full(n, 1.0 / (1.0 + self.config.state_ridge) / n)
        self._whole = n <= EXACT_IMAGES and not config.finite_delta
        if self._whole:
            z = self._search.z
            gram = np.concatenate([self.kernel.gram(part, z) for part in batches(z, 64)])
            self._uniform = _place_weights(gram.sum(axis=1, dtype=np.float64))
            system = gram + np.float32(self._ridge) * np.eye(n, dtype=np.float32)
            factor, failed = lapack.spotrf(system, lower=1)
            if failed:
                raise LocalizationError(
                    f'{n} map poses make a singular system with n epsilon {self._ridge:g}: '
                    'raise state_ridge'
                )
            lower, _ = lapack.spotri(factor, lower=1)
            self._inverse = np.ascontiguousarray(lower + np.tril(lower, -1).T)
            self._ones = self._inverse.sum(axis=1)
            # mean of b_i over the map's places
            self._on_map = self._inverse @ (gram @ self._uniform)

    def in_reach(self, points: FloatArray) -> Indices:
        """Return increasing indices of the map's poses in reach of any of the points (m, 3)."""
        return self._search.near(se2.to_plane_and_circle(points), self.kernel)

    def uniform_on_places(self, images: Indices) -> FloatArray:
        """Return weights (k,) of images, uniform on places: many at one place share its weight."""
        if self._whole and len(images) == len(self.poses):
            return self._uniform
        z = self._search.z[images]
        i, _, values = PoseSearch(self.kernel, z).pairs(z, self.kernel)
        return _place_weights(np.asarray(np.bincount(i, values), dtype=np.float64))

    def image_kernel(self, values: FloatArray, best: float) -> FloatArray:
        """Return k_Y relative to the best match, for values k~ of any shape."""
        return np.asarray(np.exp(np.minimum(values - best, 0.0) / self.config.image_bandwidth**2))

    def evaluate(
        self, poses: FloatArray, prior: FloatArray, close: int, seen: Similarity, noise: FloatArray
    ) -> FloatArray:
        """
        Return r and c (2, m) of an image at points (m, 3), in expectation over their noise.

        `prior`: weights (m,) of the points, which a finite delta needs; `close`: how many of the
        first points are close to each other; `noise` (3, 3): in the frames of the points.
        """
        k_y = self.image_kernel(seen.values_at(seen.evaluated), seen.best)
        mean = max(float(self._on_map[seen.evaluated] @ k_y), 1e-100)
        points, kernel = se2.to_plane_and_circle(poses), PoseKernel(self.config, noise)
        if self._whole:
            search = self._search
            b = np.stack([self._inverse @ k_y.astype(np.float32), self._ones])
        else:
            search, b = self._in_part(points, prior, seen, kernel)
        # close points reach the same poses: their kernel matrix is dense, that of others sparse
        first, others = points[:close], points[close:]
        near = search.near(first, kernel)
        of_first = b.take(near, axis=1) @ kernel.gram(search.z[near], first)
        i, j, pairs = search.pairs(others, kernel)
        of_others = [np.bincount(j, row.take(i) * pairs, len(others)) for row in b]
        r, c = np.concatenate([of_first, of_others], axis=1)
        # scale c to about 1 at an image of the map
        covered = np.clip(c * (1.0 + self.config.state_ridge), 0.0, 1.0)
        return np.stack([np.maximum(r, 0.0) / mean, covered])

    def _in_part(
        self, points: FloatArray, weights: FloatArray, seen: Similarity, kernel: PoseKernel
    ) -> tuple[PoseSearch, Single]:
        """Return the poses in reach of points (m, 4), and their b_i for k_Y and for 1 (2, k)."""
        part = self._search.near(points, kernel)
        size = max(len(part), 1)
        if size > EXACT_IMAGES:
            # the candidates, and others evenly spread
            spread = select_evenly(part, EXACT_IMAGES)
            part = np.union1d(np.intersect1d(part, seen.candidates), spread)
        ridge = self._ridge * len(part) / size
        search, k_y = PoseSearch(self.kernel, self._search.z[part]), np.ones((len(part), 2))
        i, j, values = search.pairs(search.z, self.kernel)
        values += np.float32(ridge) * (i == j)
        system = csr_array((values, (i, j)), shape=(len(part), len(part)))
        k_y[:, 0] = self.image_kernel(seen.values_at(part), seen.best)
        if self.config.finite_delta:
            i, j, values = search.pairs(points, kernel)
            prior = np.bincount(i, values * weights[j], len(part))[:, np.newaxis]
            mu = np.maximum(_solved(system, prior.astype(np.float64))[:, 0], 0.0)
            gram_y = self.image_kernel(self.centring.gram(part, part), 1.0)
            f = observation_weights(0.5 * (gram_y + gram_y.T), mu, k_y[:, 0], self.config.delta)
            # delta f is k_Y for an infinite delta; r is relative to the mean of k_Y over the map
            if f.sum() > 0.0:
                k_y[:, 0] = f * (k_y[:, 0].sum() / f.sum())
        return search, _solved(system, k_y).T.astype(np.float32)

    def _measure(self) -> None:
        """
        Measure n epsilon and `spacing` at places of the map.

        n is the sum of k_X over the images, at a median place: a place counts once however many
        images a robot took while it stood there.
        """
        z = self._search.z
        sample = z[:: max(1, len(z) // 300)]
        crowds, nearest = np.zeros(len(sample)), np.full(len(sample), np.inf)
        # few places at a time, as thousands of images may be in reach of each
        for begin in range(0, len(sample), 20):
            places = sample[begin : begin + 20]  # noqa: E203
            i, j, values = self._search.pairs(places, self.kernel)
            np.add.at(crowds, begin + j, values)
            metres = np.hypot(*(places[j] - z[i])[:, :2].T)
            apart = metres > 0.05 * self.config.position_bandwidth  # not at one place
            np.minimum.at(nearest, begin + j, np.where(apart, metres, np.inf))
        weights, known = 1.0 / crowds, np.isfinite(nearest)
        self._ridge = self.config.state_ridge * _median(crowds, weights)
        self.spacing = _median(nearest[known], weights[known]) if known.any() else 0.0


def _place_weights(crowds: FloatArray) -> FloatArray:
    """Return weights (k,) of images from the numbers (k,) of images at their places."""
    return np.asarray(1.0 / crowds / (1.0 / crowds).sum())


def _solved(system: csr_array, right: FloatArray) -> FloatArray:
    """Solve system x = right (k, p) for each column, by conjugate gradients."""
    from scipy.sparse.linalg import cg  # noqa: PLC0415  (only maps of many images need it)

    # not without images in reach: older versions of SciPy refuse
    return np.stack([cg(system, b, atol=0.0)[0] if b.any() else b for b in right.T], axis=1)


def _median(values: FloatArray, weights: FloatArray) -> float:
    """Return the median of values (m,) with weights (m,)."""
    order = np.argsort(values)
    mass = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(mass, 0.5 * mass[-1])])
