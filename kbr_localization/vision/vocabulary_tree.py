"""
Visual words in a tree of two levels: many words at the price of few.

A descriptor is compared with the branches, and then with the words of the nearest branch only
(Nister and Stewenius, CVPR 2006): about 2 sqrt(M) distances in place of M. It may miss the very
nearest word where that belongs to the next branch, but equal patches get equal words, which is
what counting words needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
import math
from typing import Any

from kbr_localization.errors import VisionError
from kbr_localization.vision.vocabulary import (
    find_distinct,
    learn_vocabulary,
    nearest_words,
    too_few_patches,
)
import numpy as np
from numpy.typing import NDArray

Float32Array = NDArray[np.float32]
Sizes = NDArray[np.int64]
_BRANCH_SAMPLE = 256  # descriptors for each branch: few centres need no more


class VocabularyTree:
    """
    Words (words, d) float32, branch after branch.

    `branches`: (b, d) float32, their centres. `sizes`: (b,) how many words each of them has, at
    least one.
    """

    def __init__(self, words: Float32Array, branches: Float32Array, sizes: Sizes) -> None:
        self.words, self.branches, self.sizes = words, branches, sizes
        ends = np.cumsum(sizes)
        self._starts = (ends - sizes).tolist()
        self._transposed = [
            np.ascontiguousarray(leaves.T) for leaves in np.split(words, ends[:-1])
        ]
        self._offsets = np.split(0.5 * np.einsum('ij,ij->i', words, words), ends[:-1])
        self._index_type = np.min_scalar_type(len(branches))

    def nearest(self, descriptors: Float32Array) -> NDArray[np.intp]:
        """Index of the nearest word in the nearest branch: (k, d) float32 -> (k,)."""
        found = nearest_words(descriptors, self.branches).astype(self._index_type)
        order = np.argsort(found, kind='stable')  # of small integers: a radix sort
        ends = np.cumsum(np.bincount(found, minlength=len(self.branches))).tolist()
        gathered = descriptors[order]
        words = np.empty(len(descriptors), dtype=np.intp)
        for branch, (start, end) in enumerate(pairwise([0, *ends])):
            if start == end:
                continue
            scores = gathered[start:end] @ self._transposed[branch]
            scores -= self._offsets[branch]
            words[start:end] = self._starts[branch] + scores.argmax(axis=1)
        result = np.empty_like(words)
        result[order] = words
        return result

    def state(self) -> dict[str, Any]:
        """Return the arrays by name, without the words: what `from_state` needs beside them."""
        return {'branches': self.branches, 'branch_sizes': self.sizes}

    @classmethod
    def from_state(cls, words: Float32Array, state: Mapping[str, Any]) -> VocabularyTree:
        """Build again from words and `state()`; raises VisionError for damaged arrays."""
        branches = np.ascontiguousarray(state['branches'], dtype=np.float32)
        sizes = np.asarray(state['branch_sizes']).astype(np.int64)
        fits = branches.ndim == words.ndim and branches.shape == (len(sizes), words.shape[1])
        counted = bool((sizes > 0).all()) and sizes.sum() == len(words)
        if not (fits and counted and np.isfinite(branches).all()):
            raise VisionError(
                f'branches of shape {branches.shape} for {sizes.sum()} words: expected those of '
                f'words of shape {words.shape}; build the map again'
            )
        return cls(words, branches, sizes)

    @classmethod
    def learn(
        cls, descriptors: Float32Array, words: int, rng: np.random.Generator
    ) -> VocabularyTree:
        """
        Cluster descriptors (k, d) into sqrt(words) branches and these into words, by k-means.

        Branches get words by how far their descriptors spread. The same generator and data give
        the same tree. Raises VisionError when there are fewer distinct descriptors than words.
        """
        distinct = find_distinct(descriptors)
        if len(distinct) < words:
            raise too_few_patches(words, len(distinct))
        count = math.isqrt(words)
        sample = rng.permutation(distinct)[: _BRANCH_SAMPLE * count]
        branches = learn_vocabulary(descriptors[sample], count, rng)
        found = nearest_words(descriptors, branches)
        members = [descriptors[found == branch] for branch in range(count)]
        different = [descriptors[distinct[found[distinct] == branch]] for branch in range(count)]
        # a branch without descriptors keeps one word: its centre
        most = np.array([max(len(one), 1) for one in different])
        spread = np.array([_spread(*pair) for pair in zip(members, branches, strict=True)])
        sizes = _shares(spread, words, most)
        parts = zip(members, different, branches, sizes.tolist(), strict=True)
        leaves = [_words_of(*part, rng) for part in parts]
        return cls(np.concatenate(leaves), branches, sizes)


def _spread(descriptors: Float32Array, centre: Float32Array) -> float:
    return float(((descriptors - centre) ** 2).sum(dtype=np.float64))


def _shares(spread: NDArray[np.float64], words: int, most: Sizes) -> Sizes:
    """Share words out by spread (b,), to each branch at least one and at most so many (b,)."""
    rest = words - len(spread)
    wanted = 1 + np.floor(rest * spread / max(spread.sum(), np.finfo(float).tiny)).astype(np.int64)
    sizes: Sizes = np.minimum(wanted, most)
    while sizes.sum() < words:
        # where a further word makes most of a difference; where there is none to be had, nowhere
        sizes[np.argmax(np.where(sizes < most, spread / sizes, -1.0))] += 1
    return sizes


def _words_of(
    members: Float32Array,
    distinct: Float32Array,
    centre: Float32Array,
    size: int,
    rng: np.random.Generator,
) -> Float32Array:
    if len(distinct) <= size:
        return distinct if len(distinct) else centre[np.newaxis]
    return learn_vocabulary(members, size, rng, seeds_from=distinct)
