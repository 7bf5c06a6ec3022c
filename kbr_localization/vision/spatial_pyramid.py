"""
Spatial pyramid matching kernel on counts of visual words.

An image is cut into max(2^l, S) x 2^l cells, rows by columns, at level l = 0..L and h_l(a) counts,
cell by cell, the words of its patches. With N(a) the sum of the counts the kernel is ([SPM] eq. 3,
[MbKSR] section 6.3)

    k(a, b) = sum_l w_l sum_i min(h_l(a)_i, h_l(b)_i) / sqrt(N(a) N(b)),
    w_0 = 1/2^L,  w_l = 1/2^(L - l + 1).

With S = 1 these are the papers' 2^l x 2^l cells. With S > 1 the coarse levels keep S horizontal
strips, as one level does in [VOC07]: a camera that turns with a robot in the plane moves what it
sees sideways and leaves it in its strip, and floor, walls and ceiling, which the whole image has
together, are told apart.

It is positive definite: min(s, t) is the integral over u >= 0 of [u < s][u < t], an inner product
of indicator functions; sums with positive weights keep positive definiteness, and so does scaling
k(a, b) by f(a) f(b). The weights add up to one and every h_l(a) adds up to N(a), so k is in [0, 1]
and 1 between equal images. Between images with equally many patches it is the intersection of the
normalised histograms. All of this holds for any non-negative numbers in place of counts, such as
weighted counts or square roots, with N(a) the sum of the levels' sums, weighted by w_l.

Only level L is kept, as small unsigned integers: the coarser levels are sums of its cells, or of
square roots the roots of the sums of their squares.
Minima and sums of small integers are the fastest arithmetic that a processor has, and exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.unsignedinteger]
_ROWS_PER_BLOCK = 256  # a block stays in the processor's cache
_BYTE = 255
_LARGEST_UINT16 = 65535.0


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

    def rows(self, level: int) -> int:
        """Rows of cells at a level."""
        return max(int(2**level), self.strips)


def level_weights(levels: int) -> NDArray[np.float64]:
    """Weights (levels + 1,) of the pyramid's levels from coarse to fine; they add up to one."""
    exponents = np.array([levels] + [levels - level + 1 for level in range(1, levels + 1)])
    return 0.5**exponents


def cell_of(centres: NDArray[np.int64], shape: tuple[int, int], levels: int) -> NDArray[np.int64]:
    """
    Cell of level L that each point lies in, row after row.

    Shapes: (k, 2) x, y in pixels and (height, width) -> (k,) in 0 .. 4**levels - 1.
    """
    side = 2**levels
    column = centres[:, 0] * side // shape[1]
    row = centres[:, 1] * side // shape[0]
    cells: NDArray[np.int64] = row * side + column
    return cells


def count_words(
    words_of_patches: NDArray[np.intp],
    cells: NDArray[np.int64],
    layout: Layout,
    weights: NDArray[np.float32] | None = None,
) -> NDArray[Any]:
    """
    Count the words in every cell of level L, or sum their weights.

    Shapes: (k,), (k,) and (k,) -> (layout.size,), the cells one after the other.
    """
    return np.bincount(cells * layout.words + words_of_patches, weights, minlength=layout.size)


def cross_gram(left: Counts, right: Counts, layout: Layout) -> NDArray[np.float64]:
    """
    Kernel matrix of two sets of images.

    Shapes: level-L counts (n, layout.size) and (m, layout.size) -> (n, m) in [0, 1].
    An image without counts has the kernel 0 with every image.
    """
    queries = Pyramids(left, layout)
    result = np.empty((len(left), len(right)))
    for start in range(0, len(right), _ROWS_PER_BLOCK):
        block = slice(start, start + _ROWS_PER_BLOCK)
        result[:, block] = Pyramids(right[block], layout).compared_with(queries)
    return result


class Pyramids:
    """Images of level-L counts (n, layout.size) with the sums of all levels."""

    def __init__(self, counts: Counts, layout: Layout) -> None:
        self.levels = pyramid(counts, layout)
        weighted = zip(level_weights(layout.levels), self.levels, strict=True)
        self.scale = _inverse_root(sum(weight * _row_sums(level) for weight, level in weighted))

    def compared_with(self, queries: Pyramids) -> NDArray[np.float64]:
        """Kernel matrix (m, n) in [0, 1] of m other images with these."""
        kernel = _overlaps(queries.levels, self.levels) * np.outer(queries.scale, self.scale)
        return np.clip(kernel, 0.0, 1.0, out=kernel)


class PreparedImages:
    """
    Images that single ones are compared with again and again.

    All levels lie in one row, each times 2^L w_l, which is a whole number, and

        sum_i min(s_i, t_i) = (sum_i s_i + sum_i t_i - sum_i |s_i - t_i|) / 2,

    of which processors have the last sum, of bytes, as an instruction. What a number has beyond
    255 goes on in further columns, since min(s, t) is the sum over k >= 0 of the minima of s and t
    less 255 k, cut to 0 .. 255.
    """

    def __init__(self, counts: Counts, layout: Layout) -> None:
        self._layout, finest = layout, layout.levels
        self._factors = (2**finest * level_weights(finest)).astype(np.int32)
        largest = np.max([levels.max(axis=0) for _, levels in self._blocks(counts)], axis=0)
        layers = np.maximum(-(-largest.astype(np.int64) // _BYTE), 1) - 1
        self._further = np.repeat(np.arange(len(largest)), layers)
        layer = 1 + np.arange(len(self._further)) - np.repeat(np.cumsum(layers) - layers, layers)
        self._below = (_BYTE * layer).astype(np.int32)
        self._columns = len(largest) + len(layer)
        self._rows, self._sums = self._bytes(counts)
        self._scale = self._inverse_root(self._sums)

    def compared_with(self, queries: Counts) -> NDArray[np.float64]:
        """
        Kernel values of these images and another one, or several.

        Shapes: (layout.size,) -> (n,), (m, layout.size) -> (n, m).
        """
        rows, sums = self._bytes(np.atleast_2d(queries))
        apart = np.empty((len(self._rows), len(rows)), dtype=np.int32)
        for column, row in enumerate(rows[:, np.newaxis]):
            # the distance from each of many to the nearest one of one
            found = cv2.batchDistance(self._rows, row, cv2.CV_32S, normType=cv2.NORM_L1, K=1)
            apart[:, column] = found[0][:, 0]
        overlaps = 0.5 * (self._sums[:, np.newaxis] + rows.sum(axis=1, dtype=np.int64) - apart)
        own = self._inverse_root(sums)
        kernel = overlaps / 2**self._layout.levels * np.outer(self._scale, own)
        np.clip(kernel, 0.0, 1.0, out=kernel)
        return np.asarray(kernel if queries.ndim > 1 else kernel[:, 0])

    def _inverse_root(self, sums: NDArray[np.int64]) -> NDArray[np.float64]:
        """1 / sqrt(N) of images whose levels add up to `sums`."""
        return _inverse_root(sums / 2**self._layout.levels)

    def _blocks(self, counts: Counts) -> Iterator[tuple[slice, NDArray[np.int32]]]:
        """All levels of images (m, layout.size), one after the other, times 2^L w_l; by blocks."""
        rows = _ROWS_PER_BLOCK // np.dtype(np.int32).itemsize
        for start in range(0, len(counts), rows):
            block = slice(start, start + rows)
            levels = zip(self._factors, pyramid(counts[block], self._layout), strict=True)
            yield block, np.concatenate([factor * level for factor, level in levels], axis=1)

    def _bytes(self, counts: Counts) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """
        Return what is compared of images (m, layout.size), and the sums of their levels (m,).

        An image may have more than the largest numbers here, which is left out of the former.
        """
        rows = np.empty((len(counts), self._columns), dtype=np.uint8)
        sums = np.empty(len(counts), dtype=np.int64)
        for block, levels in self._blocks(counts):
            further = levels.take(self._further, axis=1) - self._below
            parts = [_saturated(levels), _saturated(np.maximum(further, 0))]
            np.concatenate(parts, axis=1, out=rows[block])
            levels.sum(axis=1, out=sums[block])
        return rows, sums


def pyramid(counts: Counts, layout: Layout) -> list[Counts]:
    """
    Sum the counts of level L to those of all levels, from coarse to fine.

    Shapes: (n, layout.size) -> (n, S words), ... (n, 4**L words).
    """
    n, words = len(counts), layout.words
    # OpenCV adds no integers of 32 bits; floating point has them exactly, of a million patches
    large = counts.dtype.itemsize > np.dtype(np.uint16).itemsize
    finest: Any = np.ascontiguousarray(counts, dtype=np.float32 if large else counts.dtype)
    result: list[Counts] = [finest]
    sums: NDArray[Any] = finest.astype(np.float32) if layout.rooted else _summable(finest)
    for level in reversed(range(layout.levels)):
        if layout.rows(level) < layout.rows(level + 1):
            sums = _pairs_summed(sums, 2 ** (level + 1) * words, layout.rooted)
        sums = _pairs_summed(sums, words, layout.rooted)
        whole = (sums + np.float32(0.5)).astype(np.uint16) if layout.rooted else sums
        result.insert(0, whole.reshape(n, layout.rows(level) * 2**level * words))
    return result


def _pairs_summed(values: NDArray[Any], width: int, rooted: bool) -> NDArray[Any]:
    """
    Sum every two neighbouring pieces of `width` numbers: to (m, width).

    `rooted`: what the numbers, float32, are the square roots of.
    """
    pairs = values.reshape(-1, 2, width)
    first, second = pairs[:, 0], pairs[:, 1]
    if rooted and len(pairs):
        return np.asarray(cv2.magnitude(first, second))
    return np.asarray(first + second)


def _summable(counts: Counts) -> NDArray[Any]:
    """Give counts a type that holds the sum of every row."""
    most = float(_row_sums(counts).max(initial=0.0))
    return counts.astype(np.uint16 if most <= _LARGEST_UINT16 else np.float32)


def _overlaps(queries: list[Counts], candidates: list[Counts]) -> NDArray[np.float64]:
    """Weighted intersections (n, m) of two pyramids, not normalised."""
    result = np.zeros((len(queries[0]), len(candidates[0])))
    weights = level_weights(len(queries) - 1)
    for weight, level, others in zip(weights, queries, candidates, strict=True):
        shared = np.empty_like(others)
        for index, query in enumerate(level):
            result[index] += weight * _row_sums(np.minimum(others, query, out=shared))
    return result


def _saturated(numbers: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Cast numbers (n, d) that are not negative to bytes, at most 255: faster than by NumPy."""
    return np.asarray(cv2.convertScaleAbs(numbers)) if numbers.size else numbers.astype(np.uint8)


def _row_sums(counts: NDArray[Any]) -> NDArray[np.float32]:
    """Sum the rows of (n, d); exact up to 2**24."""
    if not counts.size:
        return np.zeros(len(counts), dtype=np.float32)
    # several times faster than numpy's sum of small integers
    return np.asarray(cv2.reduce(counts, 1, cv2.REDUCE_SUM, dtype=cv2.CV_32F)[:, 0])


def _inverse_root(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(totals > 0, 1.0 / np.sqrt(np.maximum(totals, 1.0)), 0.0)
