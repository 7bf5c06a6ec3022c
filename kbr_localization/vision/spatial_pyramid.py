"""
Spatial pyramid matching kernel on counts of visual words.

An image is cut into 2^l x 2^l cells at level l = 0..L and h_l(a) counts, cell by cell, the words
of its patches, divided by the number of patches. The kernel is ([SPM] eq. 3, [MbKSR] section 6.3)

    k(a, b) = sum_l w_l sum_i min(h_l(a)_i, h_l(b)_i),   w_0 = 1/2^L,  w_l = 1/2^(L - l + 1).

It is positive definite: min(s, t) is the integral over u >= 0 of [u < s][u < t], an inner product
of indicator functions, and sums with positive weights keep positive definiteness. The weights add
up to one and each h_l adds up to one, so k is in [0, 1] and 1 between equal images.

Only the counts of level L are kept, as small unsigned integers: the coarser levels are sums of
four cells each.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.unsignedinteger]
_ROWS_PER_BLOCK = 64  # a block of expanded counts stays in the processor's cache


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
    words: int,
    levels: int,
    dtype: np.dtype[np.unsignedinteger],
) -> Counts:
    """
    Count the words in every cell of level L.

    Shapes: (k,) and (k,) -> (4**levels * words,), the cells one after the other.
    """
    length = 4**levels * words
    return np.bincount(cells * words + words_of_patches, minlength=length).astype(dtype)


def expand(counts: Counts, words: int, levels: int) -> NDArray[np.float32]:
    """
    All levels' counts, coarse to fine, of the counts of level L.

    Shapes: (n, 4**levels * words) -> (n, (1 + 4 + ... + 4**levels) * words).
    """
    side = 2**levels
    finest = counts.reshape(-1, side, side, words).astype(np.float32)
    pyramid = [finest]
    for _ in range(levels):
        cells = pyramid[0]
        pairs = cells[:, 0::2] + cells[:, 1::2]
        pyramid.insert(0, pairs[:, :, 0::2] + pairs[:, :, 1::2])
    return np.concatenate([level.reshape(len(finest), -1) for level in pyramid], axis=1)


def weighted_pyramid(counts: Counts, words: int, levels: int) -> NDArray[np.float32]:
    """
    Weigh and normalise the levels: the vectors whose intersection is the kernel.

    Shapes: as `expand`; with M = 200 and L = 2 the 4200 numbers of [MbKSR]. An image without
    counts gives zeros.
    """
    cells = 4 ** np.arange(levels + 1)
    weights = np.repeat(level_weights(levels), cells * words).astype(np.float32)
    total = counts.sum(axis=1, keepdims=True, dtype=np.float32)
    vectors: NDArray[np.float32] = expand(counts, words, levels) * weights
    vectors /= np.maximum(total, 1)
    return vectors


def cross_gram(left: Counts, right: Counts, words: int, levels: int) -> NDArray[np.float64]:
    """
    Kernel matrix of the counts of two sets of images.

    Shapes: (n, 4**levels * words) and (m, 4**levels * words) -> (n, m) in [0, 1].
    """
    queries = weighted_pyramid(left, words, levels)
    ones = np.ones(queries.shape[1], dtype=np.float32)
    result = np.empty((len(left), len(right)))
    for start in range(0, len(right), _ROWS_PER_BLOCK):
        block = slice(start, start + _ROWS_PER_BLOCK)
        candidates = weighted_pyramid(right[block], words, levels)
        overlap = np.empty_like(candidates)
        for row, query in zip(result, queries, strict=True):
            row[block] = np.minimum(candidates, query, out=overlap) @ ones
    return np.minimum(result, 1.0, out=result)
