"""
Visual vocabulary: k-means centres of local descriptors, called words, and nearest-word search.

The search is one matrix product: |d - v|^2 = |d|^2 - 2 d.v + |v|^2, where |d|^2 does not affect
which word v is nearest. A vocabulary of many words is a tree of two levels (Nister and Stewenius,
CVPR 2006): a descriptor is compared with the branches and then with the words of the nearest
branch, about 2 sqrt(M) distances instead of M. The tree may miss the nearest word if that belongs
to another branch, but equal patches get equal words, which suffices for counting words.

Descriptors and words are multiples of about 1/2048 of their length. Their dot products are then
exact in float32, which has 24 bits, in any order of summation, so that all processors learn the
same words from the same descriptors and assign the same words to them.
"""

from itertools import pairwise
import math

from kbr_localization.errors import VisionError
from kbr_localization.vision.local_descriptors import rounded
from kbr_localization.workers import blocks
import numpy as np
from numpy.typing import NDArray

Float32Array = NDArray[np.float32]
_DESCRIPTORS_PER_BLOCK = 1024  # so that the matrix product stays in the cache


class Vocabulary:
    """Words (words, d) in the order of branches; centres (b, d) and word counts (b,) of these."""

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
        """Return the index of the nearest word in the nearest branch: (k, d) float32 -> (k,)."""
        if self.branches is None:
            return nearest_words(descriptors, self.words)
        branch = nearest_words(descriptors, self.branches).astype(np.uint16)
        order = np.argsort(branch, kind='stable')  # a radix sort, as the integers are small
        ends = np.cumsum(np.bincount(branch, minlength=len(self.branches))).tolist()
        gathered = descriptors[order]
        result = np.empty(len(descriptors), dtype=np.intp)
        for first, leaves, (start, end) in zip(
            self._starts, self._leaves, pairwise([0, *ends]), strict=True
        ):
            result[order[start:end]] = first + nearest_words(gathered[start:end], leaves)
        return result


def nearest_words(descriptors: Float32Array, vocabulary: Float32Array) -> NDArray[np.intp]:
    """Return the index of the nearest word: (k, d) and (words, d) float32 -> (k,)."""
    transposed = np.ascontiguousarray(vocabulary.T)
    offset = 0.5 * np.einsum('ij,ij->i', vocabulary, vocabulary)
    result = np.empty(len(descriptors), dtype=np.intp)
    for block in blocks(len(descriptors), _DESCRIPTORS_PER_BLOCK):
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

    The seeds are chosen by k-means++, then refined by at most `iterations` of Lloyd's algorithm.
    `step`: words are rounded to multiples of it. `seeds_from`: (s, d) descriptors that the seeds
    are chosen from, all by default. Raises VisionError if there are fewer distinct descriptors
    than words.
    """
    centres = _kmeans_seeds(descriptors if seeds_from is None else seeds_from, words, rng)
    assigned = np.full(len(descriptors), -1)
    for _ in range(iterations):
        before, assigned = assigned, nearest_words(descriptors, centres)
        sizes = np.bincount(assigned, minlength=words)
        present = sizes > 0  # a word without descriptors keeps its centre
        for axis, values in enumerate(descriptors.T):
            sums = np.bincount(assigned, values, minlength=words)
            centres[present, axis] = rounded(sums[present] / sizes[present], step)
        # further iterations would lower the error by 0.5% only
        if np.mean(assigned != before) < 0.02:
            break
    return centres


def learn_tree(
    descriptors: Float32Array, words: int, rng: np.random.Generator, step: float = 2**-11
) -> Vocabulary:
    """Cluster descriptors (k, d) into sqrt(words) branches, and each branch into words."""
    distinct = _find_distinct(descriptors, words)
    count = math.isqrt(words)
    sample = rng.permutation(distinct)[: 256 * count]  # enough for so few centres
    branches = learn_vocabulary(descriptors[sample], count, rng, step)
    nearest = nearest_words(descriptors, branches)
    members = [descriptors[nearest == branch] for branch in range(count)]
    # a branch without descriptors keeps one word: its centre
    different = [descriptors[distinct[nearest[distinct] == branch]] for branch in range(count)]
    seeds = [own if len(own) else branches[[n]] for n, own in enumerate(different)]
    pairs = zip(members, branches, strict=True)
    spread = [((own - centre) ** 2).sum(dtype=np.float64) for own, centre in pairs]
    sizes = _allocate_words(np.array(spread), words, np.array([len(own) for own in seeds]))
    leaves = [
        learn_vocabulary(own, size, rng, step, start) if len(start) > size else start
        for own, start, size in zip(members, seeds, sizes, strict=True)
    ]
    return Vocabulary(np.concatenate(leaves), branches, sizes)


def _kmeans_seeds(descriptors: Float32Array, words: int, rng: np.random.Generator) -> Float32Array:
    """Choose seeds by k-means++ among 20 descriptors per word, as good as among all."""
    count = min(len(descriptors), 20 * words)
    sample = descriptors[rng.choice(len(descriptors), size=count, replace=False)]
    seeds = np.empty((words, descriptors.shape[1]), dtype=np.float32)
    distance = np.full(count, np.inf)
    for index in range(words):
        weight = distance if index else np.ones(count)
        if not weight.any():
            # the sample has too few distinct descriptors, for example of blank walls
            return _kmeans_seeds(descriptors[_find_distinct(descriptors, words)], words, rng)
        seeds[index] = sample[rng.choice(count, p=weight / weight.sum())]
        difference = sample - seeds[index]
        distance = np.minimum(distance, np.einsum('ij,ij->i', difference, difference))
    return seeds


def _find_distinct(descriptors: Float32Array, words: int) -> NDArray[np.intp]:
    """Return the index of one of each group of equal descriptors; VisionError if too few."""
    distinct = np.asarray(np.unique(descriptors, axis=0, return_index=True)[1])
    if len(distinct) < words:
        raise VisionError(
            f'vocabulary of {words} words: the images have {len(distinct)} distinct patches only; '
            'use more images or fewer words'
        )
    return distinct


def _allocate_words(
    spread: NDArray[np.float64], words: int, limit: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Allocate words to branches by their spread (b,), to each at least 1 and at most `limit`."""
    rest = words - len(spread)
    wanted = 1 + np.floor(rest * spread / max(spread.sum(), np.finfo(float).tiny)).astype(np.int64)
    sizes: NDArray[np.int64] = np.minimum(wanted, limit)
    while sizes.sum() < words:
        # add a word to the branch with the largest spread per word that is below its limit
        sizes[np.argmax(np.where(sizes < limit, spread / sizes, -1.0))] += 1
    return sizes
