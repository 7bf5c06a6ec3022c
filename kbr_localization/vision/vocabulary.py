"""
Visual vocabulary: k-means centres of local descriptors, and the words of descriptors.

Finding words rests on one product of matrices: |d - v|^2 = |d|^2 - 2 d.v + |v|^2, where |d|^2
does not change which v is nearest. A vocabulary of many words is a tree of two levels (Nister and
Stewenius, CVPR 2006): a descriptor is compared with the branches, and then with the words of the
nearest branch, 2 sqrt(M) distances in place of M. It may miss the very nearest word where that
belongs to the next branch, but equal patches get equal words, which is what counting words needs.

Descriptors and words are multiples of about 1/2048 of their length. Their products are then exact
in float32, whose numbers have 24 bits, in whatever order a processor sums them, so that every
processor learns the same words from the same descriptors and finds the same words of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
import math
from typing import Any

from kbr_localization.errors import VisionError
from kbr_localization.vision.local_descriptors import rounded
import numpy as np
from numpy.typing import NDArray

Float32Array = NDArray[np.float32]
_BLOCK = 1024  # descriptors per product, so that its result stays in the cache
_SETTLED = 0.02  # k-means ends when fewer descriptors change their word: the rest gains 0.5%


class Vocabulary:
    """
    Visual words (words, d) float32, branch after branch in a tree.

    `branches`: (b, d) float32, their centres. `sizes`: (b,) words of each, at least one.
    """

    def __init__(
        self,
        words: Float32Array,
        branches: Float32Array | None = None,
        sizes: NDArray[np.int64] | None = None,
    ) -> None:
        self.words, self.branches = words, branches
        self.sizes = np.array([len(words)]) if sizes is None else sizes
        ends = np.cumsum(self.sizes)
        self._starts = (ends - self.sizes).tolist()
        self._leaves = np.split(words, ends[:-1])

    def nearest(self, descriptors: Float32Array) -> NDArray[np.intp]:
        """Index of the nearest word in the nearest branch: (k, d) float32 -> (k,)."""
        if self.branches is None:
            return nearest_words(descriptors, self.words)
        branch = nearest_words(descriptors, self.branches).astype(np.uint16)
        order = np.argsort(branch, kind='stable')  # of small integers: a radix sort
        ends = np.cumsum(np.bincount(branch, minlength=len(self.branches))).tolist()
        gathered = descriptors[order]
        result = np.empty(len(descriptors), dtype=np.intp)
        for first, leaves, (start, end) in zip(
            self._starts, self._leaves, pairwise([0, *ends]), strict=True
        ):
            result[order[start:end]] = first + nearest_words(gathered[start:end], leaves)
        return result

    def state(self) -> dict[str, Any]:
        """Return the arrays by name, without the words, for `from_state`."""
        if self.branches is None:
            return {}
        return {'branches': self.branches, 'branch_sizes': self.sizes}

    @classmethod
    def from_state(cls, words: Float32Array, state: Mapping[str, Any], tree: bool) -> Vocabulary:
        """Build again from words and `state()`; raises VisionError for damaged arrays."""
        if not tree:
            return cls(words)
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
    def learn_tree(
        cls, descriptors: Float32Array, words: int, rng: np.random.Generator, step: float = 2**-11
    ) -> Vocabulary:
        """
        Cluster descriptors (k, d) into sqrt(words) branches and these into words, by k-means.

        Branches get words by how far their descriptors spread. The same generator and data give
        the same tree. Raises VisionError when there are fewer distinct descriptors than words.
        """
        distinct = _find_distinct(descriptors)
        if len(distinct) < words:
            raise _too_few_patches(words, len(distinct))
        count = math.isqrt(words)
        sample = rng.permutation(distinct)[: 256 * count]  # few centres need no more
        branches = learn_vocabulary(descriptors[sample], count, rng, step)
        found = nearest_words(descriptors, branches)
        members = [descriptors[found == branch] for branch in range(count)]
        different = [descriptors[distinct[found[distinct] == branch]] for branch in range(count)]
        # a branch without descriptors keeps one word: its centre
        most = np.array([max(len(one), 1) for one in different])
        spread = np.array(
            [
                ((one - centre) ** 2).sum(dtype=np.float64)
                for one, centre in zip(members, branches, strict=True)
            ]
        )
        sizes = _share_words(spread, words, most)
        leaves = []
        for own, seeds, centre, size in zip(members, different, branches, sizes, strict=True):
            if len(seeds) > size:
                leaves.append(learn_vocabulary(own, size, rng, step, seeds))
            else:
                leaves.append(seeds if len(seeds) else centre[np.newaxis])
        return cls(np.concatenate(leaves), branches, sizes)


def nearest_words(descriptors: Float32Array, vocabulary: Float32Array) -> NDArray[np.intp]:
    """
    Index of the nearest word in the Euclidean distance.

    Shapes: (k, d) and (words, d) float32 -> (k,).
    """
    transposed = np.ascontiguousarray(vocabulary.T)
    offset = 0.5 * np.einsum('ij,ij->i', vocabulary, vocabulary)
    result = np.empty(len(descriptors), dtype=np.intp)
    for start in range(0, len(descriptors), _BLOCK):
        block = slice(start, start + _BLOCK)
        score = descriptors[block] @ transposed
        score -= offset
        score.argmax(axis=1, out=result[block])
    return result


def learn_vocabulary(
    descriptors: Float32Array,
    words: int,
    rng: np.random.Generator,
    step: float = 2**-11,
    seeds_from: Float32Array | None = None,
    iterations: int = 30,
) -> Float32Array:
    """
    Cluster descriptors (k, d) into a vocabulary (words, d) by k-means.

    Seeded by k-means++ on `rng`, then Lloyd's iterations until hardly anything moves, at most
    `iterations`; the same generator and data give the same vocabulary. `step`: words are multiples
    of it. `seeds_from`: (s, d) descriptors that the seeds are taken from, in place of all. Raises
    VisionError when there are fewer distinct descriptors than words.
    """
    centres = _spread_seeds(descriptors if seeds_from is None else seeds_from, words, rng)
    assigned = np.full(len(descriptors), -1)
    for _ in range(iterations):
        before, assigned = assigned, nearest_words(descriptors, centres)
        sizes = np.bincount(assigned, minlength=words)
        present = sizes > 0  # a word that lost all its patches stays where it is
        for axis, values in enumerate(descriptors.T):
            sums = np.bincount(assigned, values, minlength=words)
            centres[present, axis] = rounded(sums[present] / sizes[present], step)
        if np.mean(assigned != before) < _SETTLED:
            break
    return centres


def _spread_seeds(descriptors: Float32Array, words: int, rng: np.random.Generator) -> Float32Array:
    """k-means++ on a sample: twenty candidates per word spread the seeds as well as all would."""
    count = min(len(descriptors), 20 * words)
    sample = descriptors[rng.choice(len(descriptors), size=count, replace=False)]
    seeds = np.empty((words, descriptors.shape[1]), dtype=np.float32)
    distance = np.full(count, np.inf)
    for index in range(words):
        weight = distance if index else np.ones(count)
        if not weight.any():
            # too few distinct ones in the sample, as of blank walls
            distinct = _find_distinct(descriptors)
            if not words <= len(distinct) < len(descriptors):
                raise _too_few_patches(words, len(distinct))
            return _spread_seeds(descriptors[distinct], words, rng)
        seeds[index] = sample[rng.choice(count, p=weight / weight.sum())]
        difference = sample - seeds[index]
        distance = np.minimum(distance, np.einsum('ij,ij->i', difference, difference))
    return seeds


def _find_distinct(descriptors: Float32Array) -> NDArray[np.intp]:
    """Index of the first of each group of equal descriptors (k, d)."""
    return np.asarray(np.unique(descriptors, axis=0, return_index=True)[1])


def _too_few_patches(words: int, distinct: int) -> VisionError:
    return VisionError(
        f'vocabulary of {words} words: the images have {distinct} distinct patches only; use more '
        'images or fewer words'
    )


def _share_words(
    spread: NDArray[np.float64], words: int, most: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Share words out by spread (b,), to each branch at least one and at most `most` (b,)."""
    rest = words - len(spread)
    wanted = 1 + np.floor(rest * spread / max(spread.sum(), np.finfo(float).tiny)).astype(np.int64)
    sizes: NDArray[np.int64] = np.minimum(wanted, most)
    while sizes.sum() < words:
        # where a further word makes most of a difference; where there is none to be had, nowhere
        sizes[np.argmax(np.where(sizes < most, spread / sizes, -1.0))] += 1
    return sizes
