"""
Spatial pyramid matching kernel on counts of visual words.

An image is cut into max(2^l, S) x 2^l cells, rows by columns, at level l = 0..L and h_l(a) counts,
cell by cell, the words of its patches. With N(a) the sum of the counts the kernel is ([SPM] eq. 3,
[MbKSR] section 6.3)

    k(a, b) = sum_l w_l sum_i min(h_l(a)_i, h_l(b)_i) / sqrt(N(a) N(b)),
    w_0 = 1/2^L,  w_l = 1/2^(L - l + 1).

With S = 1 these are the papers' 2^l x 2^l cells. With S > 1 the coarse levels keep S horizontal
strips, as one level does in [VOC07]: a camera that turns with a robot in the plane moves what it
sees sideways within its strip, and floor, walls and ceiling stay distinct.

It is positive definite: min(s, t) is the integral over u >= 0 of [u < s][u < t], an inner product
of indicator functions; sums with positive weights keep positive definiteness, and so does scaling
k(a, b) by f(a) f(b). The weights add up to one and every h_l(a) adds up to N(a), so k is in [0, 1]
and 1 between equal images. Between images with equally many patches it is the intersection of the
normalised histograms. All of this holds for any non-negative numbers in place of counts, such as
weighted counts or square roots, with N(a) the sum of the levels' sums, weighted by w_l.

Only level L is kept, as small unsigned integers: the coarser levels are sums of its cells, or of
square roots the roots of the sums of their squares. All of this arithmetic is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.unsignedinteger]
_BLOCK = 64  # images that are expanded at a time


@dataclass(frozen=True)
class Layout:
    """
    Words (M) that are counted, the finest level (L) and the strips (S) of a pyramid.

    S is a power of two and at most 2^L. `rooted`: square roots stand in place of the counts.
    """

    words: int
    levels: int
    strips: int = 1
    rooted: bool = False

    @property
    def size(self) -> int:
        """Length of what is kept of an image, the counts of level L: 4^L M."""
        return int(4**self.levels) * self.words

    @property
    def weights(self) -> NDArray[np.float64]:
        """Weights (levels + 1,) of the levels from coarse to fine; they add up to one."""
        finest = self.levels
        return 0.5 ** np.array([finest, *(finest - level + 1 for level in range(1, finest + 1))])

    def all_levels(self, counts: Counts) -> list[NDArray[Any]]:
        """Sum counts (n, size) of level L to all levels, coarse to fine: (n, S M), ..."""
        sums = counts.astype(np.float32)  # which holds integers up to 2**24
        result: list[NDArray[Any]] = [counts]
        if self.rooted:
            np.square(sums, out=sums)
        for level in reversed(range(self.levels)):
            if 2**level >= self.strips:
                below = sums.reshape(-1, 2, 2 ** (level + 1) * self.words)
                sums = below[:, 0] + below[:, 1]
            beside = sums.reshape(-1, 2, self.words)
            sums = beside[:, 0] + beside[:, 1]
            whole = np.rint(np.sqrt(sums)) if self.rooted else sums
            result.insert(0, whole.reshape(len(counts), -1))
        return result


def cell_of(centres: NDArray[np.int64], shape: tuple[int, int], levels: int) -> NDArray[np.int64]:
    """
    Cell of level L that each point lies in, row after row.

    Shapes: (k, 2) x, y in pixels and (height, width) -> (k,) in 0 .. 4**levels - 1.
    """
    side = 2**levels
    return np.asarray(centres[:, 1] * side // shape[0] * side + centres[:, 0] * side // shape[1])


class PreparedImages:
    """
    Images of level-L counts (n, layout.size) that others are compared with again and again.

    All levels lie in one row, each times 2^L w_l, which is a whole number, and

        sum_i min(s_i, t_i) = (sum_i s_i + sum_i t_i - sum_i |s_i - t_i|) / 2,

    of which processors have the last sum, of bytes, as an instruction. A number beyond 255 goes on
    in further columns, since min(s, t) is the sum over k >= 0 of the minima of s and t less 255 k,
    cut to 0 .. 255. An image without counts has the kernel 0 with every image.
    """

    def __init__(self, counts: Counts, layout: Layout) -> None:
        self._layout = layout
        largest = np.max([levels.max(axis=0) for _, levels in self._blocks(counts)], axis=0)
        layers = np.maximum(-(-largest.astype(np.int64) // 255), 1) - 1
        self._further = np.repeat(np.arange(len(largest)), layers)
        first = np.repeat(np.cumsum(layers) - layers, layers)
        self._below = 255 * (1 + np.arange(len(self._further)) - first).astype(np.float32)
        self._columns = len(largest) + len(self._further)
        self._rows, self._sums, self._scale = self._expand(counts)

    def compared_with(self, queries: Counts) -> NDArray[np.float64]:
        """
        Kernel values of these images and another one, or several.

        Shapes: (layout.size,) -> (n,), (m, layout.size) -> (n, m).
        """
        rows, _, scale = self._expand(np.atleast_2d(queries))
        apart = np.empty((len(self._rows), len(rows)), dtype=np.int32)
        for column, row in enumerate(rows[:, np.newaxis]):
            # the nearest of one row is that row
            found = cv2.batchDistance(self._rows, row, cv2.CV_32S, normType=cv2.NORM_L1, K=1)
            apart[:, column] = found[0][:, 0]
        overlaps = 0.5 * (self._sums[:, np.newaxis] + rows.sum(axis=1, dtype=np.int64) - apart)
        kernel = overlaps / 2**self._layout.levels * np.outer(self._scale, scale)
        np.clip(kernel, 0.0, 1.0, out=kernel)
        return np.asarray(kernel if queries.ndim > 1 else kernel[:, 0])

    def _blocks(self, counts: Counts) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        """All levels of images (m, layout.size) side by side, times 2^L w_l; block by block."""
        factors = 2**self._layout.levels * self._layout.weights.astype(np.float32)
        for start in range(0, len(counts), _BLOCK):
            block = slice(start, start + _BLOCK)
            levels = zip(factors, self._layout.all_levels(counts[block]), strict=True)
            yield block, np.concatenate([factor * level for factor, level in levels], axis=1)

    def _expand(
        self, counts: Counts
    ) -> tuple[NDArray[np.uint8], NDArray[np.float64], NDArray[np.float64]]:
        """
        Return the bytes (m, columns) of images (m, layout.size), the sums of levels, 1 / sqrt(N).

        A query's numbers beyond the largest ones here are cut off in its bytes.
        """
        rows = np.empty((len(counts), self._columns), dtype=np.uint8)
        sums = np.empty(len(counts))
        for block, levels in self._blocks(counts):
            further = np.maximum(levels.take(self._further, axis=1) - self._below, 0)
            # OpenCV saturates at 255, and is faster than NumPy
            rows[block] = cv2.convertScaleAbs(np.concatenate([levels, further], axis=1))
            sums[block] = levels.sum(axis=1, dtype=np.float64)
        totals = sums / 2**self._layout.levels
        return rows, sums, np.where(totals > 0, 1.0 / np.sqrt(np.maximum(totals, 1.0)), 0.0)


def cross_gram(left: Counts, right: Counts, layout: Layout) -> NDArray[np.float64]:
    """Kernel matrix (n, m) in [0, 1] of level-L counts (n, layout.size) and (m, layout.size)."""
    result = np.empty((len(left), len(right)))
    for start in range(0, len(right), 4 * _BLOCK):
        block = slice(start, start + 4 * _BLOCK)
        result[:, block] = PreparedImages(right[block], layout).compared_with(left).T
    return result
