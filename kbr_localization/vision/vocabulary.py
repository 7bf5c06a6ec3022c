"""
Visual vocabulary: k-means centres of local descriptors, and the quantisation by them.

Both rest on one product of matrices in float32: |d - v|^2 = |d|^2 - 2 d.v + |v|^2, where |d|^2
does not change which v is nearest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from kbr_localization.errors import VisionError
from kbr_localization.workers import batches
import numpy as np
from numpy.typing import NDArray

Float32Array = NDArray[np.float32]
_BLOCK = 1024  # descriptors per product, so that its result stays in the cache
_SETTLED = 0.02  # fraction of the descriptors that still change their word: the rest gains 0.5%
_PART = 4096  # descriptors that are summed at a time


class Vocabulary(Protocol):
    """Visual `words` (words, d) float32, and which of them a local descriptor is."""

    words: Float32Array

    def nearest(self, descriptors: Float32Array) -> NDArray[np.intp]:
        """Find the word of each descriptor: (k, d) float32 -> (k,)."""
        ...

    def state(self) -> dict[str, Any]:
        """Return, by name, the arrays that are needed beside the words to make it again."""
        ...


class FlatVocabulary:
    """Words (words, d) float32, each of which is compared with every descriptor."""

    def __init__(self, words: Float32Array) -> None:
        self.words = words

    def nearest(self, descriptors: Float32Array) -> NDArray[np.intp]:
        """Index of the nearest word: (k, d) float32 -> (k,)."""
        return nearest_words(descriptors, self.words)

    def state(self) -> dict[str, Any]:
        """Return nothing: the words are all."""
        return {}

    @classmethod
    def from_state(cls, words: Float32Array, state: Mapping[str, Any]) -> FlatVocabulary:
        """Make it of its words."""
        return cls(words)

    @classmethod
    def learn(
        cls, descriptors: Float32Array, words: int, rng: np.random.Generator
    ) -> FlatVocabulary:
        """Cluster descriptors (k, d); see `learn_vocabulary`."""
        return cls(learn_vocabulary(descriptors, words, rng))


def nearest_words(descriptors: Float32Array, vocabulary: Float32Array) -> NDArray[np.intp]:
    """
    Index of the nearest word in the Euclidean distance.

    Shapes: (k, d) and (words, d) float32 -> (k,).
    """
    transposed = np.ascontiguousarray(vocabulary.T)
    offset = 0.5 * np.einsum('ij,ij->i', vocabulary, vocabulary)
    result = np.empty(len(descriptors), dtype=np.intp)
    scores = np.empty((min(len(descriptors), _BLOCK), len(vocabulary)), dtype=np.float32)
    for start in range(0, len(descriptors), _BLOCK):
        block = slice(start, start + _BLOCK)
        score = np.matmul(descriptors[block], transposed, out=scores[: len(result[block])])
        score -= offset
        score.argmax(axis=1, out=result[block])
    return result


def learn_vocabulary(
    descriptors: Float32Array,
    words: int,
    rng: np.random.Generator,
    iterations: int = 30,
    seeds_from: Float32Array | None = None,
) -> Float32Array:
    """
    Cluster descriptors (k, d) into a vocabulary (words, d) by k-means.

    Seeded by k-means++ on `rng`, then Lloyd's iterations until hardly anything moves, at most
    `iterations`; the same generator and data give the same vocabulary. `seeds_from`: (s, d)
    descriptors that the seeds are taken from, in place of all. Raises VisionError when there are
    fewer distinct descriptors than words.
    """
    centres = _spread_seeds(descriptors if seeds_from is None else seeds_from, words, rng)
    parts = batches(descriptors, _PART)
    assigned = np.full(len(descriptors), -1)
    for _ in range(iterations):
        found = [_cluster_sums(part, centres) for part in parts]
        before, assigned = assigned, np.concatenate([part[0] for part in found])
        centres = _means(sum(part[1] for part in found), centres, sum(p[2] for p in found))
        if np.mean(assigned != before) < _SETTLED:
            break
    return centres


def too_few_patches(words: int, distinct: int) -> VisionError:
    """Say that images have fewer distinct patches than a vocabulary is to have words."""
    return VisionError(
        f'vocabulary of {words} words: the images have {distinct} distinct patches only; use more '
        'images or fewer words'
    )


def find_distinct(descriptors: Float32Array) -> NDArray[np.intp]:
    """Find the first of each group of equal descriptors (k, d): their indices."""
    bits = np.ascontiguousarray(descriptors).view(np.uint32)
    # sums of odd multiples, modulo 2**64: of two different ones equal once in 10**19
    odd = 2 * np.random.default_rng(0).integers(2**63, size=bits.shape[1], dtype=np.uint64) + 1
    return np.asarray(np.unique(bits @ odd, return_index=True)[1])


def _spread_seeds(descriptors: Float32Array, words: int, rng: np.random.Generator) -> Float32Array:
    # k-means++ on a sample: twenty candidates per word spread the seeds as well as all would
    count = min(len(descriptors), 20 * words)
    sample = descriptors[rng.choice(len(descriptors), size=count, replace=False)]
    seeds = np.empty((words, descriptors.shape[1]), dtype=np.float32)
    distance = np.full(count, np.inf)
    for index in range(words):
        weight = distance if index else np.ones(count)
        if not weight.any():
            # so many are equal, as of blank walls, that the sample has too few others
            distinct = find_distinct(descriptors)
            if not words <= len(distinct) < len(descriptors):
                raise too_few_patches(words, len(distinct))
            return _spread_seeds(descriptors[distinct], words, rng)
        seeds[index] = sample[rng.choice(count, p=weight / weight.sum())]
        distance = np.minimum(distance, _squared_distance(sample, seeds[index]))
    return seeds


def _squared_distance(sample: Float32Array, centre: Float32Array) -> NDArray[np.float64]:
    difference = sample - centre
    squared = np.einsum('ij,ij->i', difference, difference)
    return np.asarray(squared, dtype=np.float64)


def _cluster_sums(
    descriptors: Float32Array, centres: Float32Array
) -> tuple[NDArray[np.intp], Float32Array, NDArray[np.intp]]:
    """Nearest centres (k,) of descriptors (k, d), sums (words, d) and sizes (words,) by centre."""
    assigned = nearest_words(descriptors, centres)
    sums = np.zeros(centres.T.shape, dtype=np.float32)
    # as fast as a product with a sparse matrix, and importing that takes longer than all of this
    for total, values in zip(sums, descriptors.T, strict=True):
        np.add.at(total, assigned, values)
    return assigned, sums.T, np.bincount(assigned, minlength=len(centres))


def _means(sums: Any, centres: Float32Array, sizes: Any) -> Float32Array:
    updated = centres.copy()  # a word that lost all its patches stays where it is
    present = sizes > 0
    updated[present] = sums[present] / sizes[present, np.newaxis].astype(np.float32)
    return updated
