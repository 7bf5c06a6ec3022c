"""
Spatial pyramid matching kernel on counts of visual words.

An image a is divided into 2 x 2 cells at level 1 and into an upper and a lower half at level 0.
h_l(a) holds the square roots of the weighted word counts of each cell. With
N(a) = sum_l w_l sum_i h_l(a)_i the kernel is ([SPM] eq. 3, [MbKSR] section 6.3, with two levels)

    k(a, b) = sum_l w_l sum_i min(h_l(a)_i, h_l(b)_i) / sqrt(N(a) N(b)),   w_0 = w_1 = 1/2.

The papers use the whole image at level 0 and plain counts (`PapersPyramid`). Halves are used here
because a camera that turns with a robot in the plane shifts the scene sideways within its half,
while floor and ceiling stay separate. Roots keep a large blank wall from dominating.

The kernel is positive definite: min(s, t) is the integral over u >= 0 of [u < s][u < t], an inner
product of indicator functions; sums with positive weights preserve positive definiteness, and so
does scaling k(a, b) by f(a) f(b). It is in [0, 1], and 1 for equal images.

Only level 1 is stored, as bytes (n, 4 M) for M words. The root of a half is the square root of the
sum of the squares of its two cells, rounded. All of this arithmetic is exact.
"""

from typing import Any

import cv2
from kbr_localization.workers import blocks
import numpy as np
from numpy.typing import NDArray

Roots = NDArray[np.uint8]
CELLS = 4
_IMAGES_PER_BLOCK = 64


def cell_of(
    centres: NDArray[np.int64], shape: tuple[int, int], side: int = 2
) -> NDArray[np.int64]:
    """Return the cell, 0 to side**2 - 1 in row-major order, of points x, y (k, 2) of an image."""
    row, column = centres[:, 1] * side // shape[0], centres[:, 0] * side // shape[1]
    return np.asarray(row * side + column)


class PyramidComparer:
    """
    Compare root counts (n, 4 M) of n images with queries, repeatedly.

    Both levels are stored in one row of bytes per image, since

        sum_i min(s_i, t_i) = (sum_i s_i + sum_i t_i - sum_i |s_i - t_i|) / 2,

    and processors have an instruction for the last sum over bytes. The excess of a half's root
    over 255 has a separate column: min(s, t) is the sum of the minimum of s and t, both clipped
    to 255, and the minimum of their excesses. An image without words has kernel 0 with any image.
    """

    def __init__(self, roots: Roots) -> None:
        halves, clipped = _halves(roots)
        self._overflowing = np.flatnonzero(clipped.max(axis=0, initial=0) == 255)
        self._rows, self._sums, self._scale = self._expand(roots, halves, clipped)

    def __call__(self, queries: Roots) -> NDArray[np.float64]:
        """Kernel values with queries. Shapes: (4 M,) -> (n,), (m, 4 M) -> (n, m)."""
        roots = np.atleast_2d(queries)
        rows, _, scale = self._expand(roots, *_halves(roots))
        distances = np.empty((len(self._rows), len(rows)), dtype=np.int32)
        for column, row in enumerate(rows[:, np.newaxis]):
            # a search for the nearest one of a single row returns all distances to that row
            found = cv2.batchDistance(self._rows, row, cv2.CV_32S, normType=cv2.NORM_L1, K=1)
            distances[:, column] = found[0][:, 0]
        sums = self._sums[:, np.newaxis] + rows.sum(axis=1, dtype=np.int64)
        overlaps = 0.5 * (sums - distances)
        kernel = 0.5 * overlaps * np.outer(self._scale, scale)
        np.clip(kernel, 0.0, 1.0, out=kernel)
        return np.asarray(kernel if queries.ndim > 1 else kernel[:, 0])

    def _expand(
        self, roots: Roots, halves: NDArray[np.float32], clipped: Roots
    ) -> tuple[Roots, NDArray[np.float64], NDArray[np.float64]]:
        """Return byte rows (m, columns) of images (m, 4 M), sums of both levels, 1 / sqrt(N)."""
        excess = np.clip(halves.take(self._overflowing, axis=1) - 255, 0, 255).astype(np.uint8)
        rows = np.concatenate([clipped, roots, excess], axis=1)
        sums = halves.sum(axis=1, dtype=np.float64) + roots.sum(axis=1, dtype=np.int64)
        totals = 0.5 * sums
        return rows, sums, np.where(totals > 0, 1.0 / np.sqrt(np.maximum(totals, 1.0)), 0.0)


def _halves(roots: Roots) -> tuple[NDArray[np.float32], Roots]:
    """Return the roots (n, 2 M) of the halves of images (n, 4 M), and the same clipped to 255."""
    halves = np.empty((len(roots), roots.shape[1] // 2), dtype=np.float32)
    clipped = np.empty(halves.shape, dtype=np.uint8)
    for block in blocks(len(roots), _IMAGES_PER_BLOCK):
        cells = roots[block].reshape(-1, 2, 2, roots.shape[1] // CELLS)
        left = cells[:, :, 0].astype(np.float32).reshape(len(cells), -1)
        right = cells[:, :, 1].astype(np.float32).reshape(len(cells), -1)
        halves[block] = np.rint(cv2.magnitude(left, right))
        clipped[block] = cv2.convertScaleAbs(halves[block])  # faster than NumPy
    return halves, clipped


def cross_gram(left: Roots, right: Roots) -> NDArray[np.float64]:
    """Kernel matrix (n, m) in [0, 1] of roots (n, 4 M) and (m, 4 M)."""
    result = np.empty((len(left), len(right)))
    for block in blocks(len(right), 4 * _IMAGES_PER_BLOCK):
        result[:, block] = PyramidComparer(right[block])(left).T
    return result


class PapersPyramid:
    """
    The pyramid of [SPM] with L = 2 as [MbKSR] uses it, on plain counts of M words.

    A descriptor holds the counts of 1, 4 and 16 cells times 4 w_l, which are integers, as the
    weights of the levels are w = 1/4, 1/4, 1/2. It sums to 4 N for the N patches of an image, so

        k(a, b) = sum_i min(a_i, b_i) / (4 N)

    is the intersection of the weighted histograms, normalised by the number of patches.
    `centres`: x, y (N, 2) of the patches in an image of `shape` (height, width).
    """

    def __init__(self, centres: NDArray[np.int64], shape: tuple[int, int], words: int) -> None:
        self.size, self._sum = 21 * words, 4 * len(centres)
        self.dtype = np.min_scalar_type(self._sum)
        self._levels = [
            (weight, side**2 * words, cell_of(centres, shape, side) * words)
            for weight, side in ((1, 1), (1, 2), (2, 4))
        ]

    def counts(self, words: NDArray[np.int64]) -> NDArray[Any]:
        """Return the descriptor (21 M,) of an image from the words (N,) of its patches."""
        levels = [w * np.bincount(first + words, minlength=n) for w, n, first in self._levels]
        return np.concatenate(levels).astype(self.dtype)

    def cross_gram(self, left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.float64]:
        """Kernel matrix (n, m) in [0, 1] of descriptors (n, 21 M) and (m, 21 M)."""
        result = np.empty((len(left), len(right)))
        for block in blocks(len(right), _IMAGES_PER_BLOCK):
            for values, row in zip(result, left, strict=True):
                values[block] = np.minimum(row, right[block]).sum(axis=1, dtype=np.uint32)
        return result / self._sum
