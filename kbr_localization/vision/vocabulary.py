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

from itertools import pairwise
import math

from kbr_localization.errors import VisionError
from kbr_localization.vision.local_descriptors import rounded
from kbr_localization.workers import blocks
import numpy as np
from numpy.typing import NDArray

Float32Array = NDArray[np.float32]
_BLOCK = 1024  # descriptors per product, so that its result stays in the cache


class Vocabulary:
    """Visual words (words, d) by branch, centres (b, d) and numbers of words (b,) of branches."""

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


def nearest_words(descriptors: Float32Array, vocabulary: Float32Array) -> NDArray[np.intp]:
    """Index of the nearest word: (k, d) and (words, d) float32 -> (k,)."""
    transposed = np.ascontiguousarray(vocabulary.T)
    offset = 0.5 * np.einsum('ij,ij->i', vocabulary, vocabulary)
    result = np.empty(len(descriptors), dtype=np.intp)
    for block in blocks(len(descriptors), _BLOCK):
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

    Seeded by k-means++ on `rng`, then at most `iterations` of Lloyd's; the same generator and data
    give the same vocabulary. `step`: words are multiples of it. `seeds_from`: (s, d) descriptors
    that the seeds are taken from, in place of all. Raises VisionError when there are fewer
    distinct descriptors than words.
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
        # what the last patches to change their word would gain is 0.5%
        if np.mean(assigned != before) < 0.02:
            break
    return centres


def learn_tree(
    descriptors: Float32Array, words: int, rng: np.random.Generator, step: float = 2**-11
) -> Vocabulary:
    """Cluster descriptors (k, d) into sqrt(words) branches and these into words, by k-means."""
    distinct = _find_distinct(descriptors, words)
    count = math.isqrt(words)
    sample = rng.permutation(distinct)[: 256 * count]  # few centres need no more
    branches = learn_vocabulary(descriptors[sample], count, rng, step)
    found = nearest_words(descriptors, branches)
    members = [descriptors[found == branch] for branch in range(count)]
    # a branch without descriptors keeps one word: its centre
    different = [descriptors[distinct[found[distinct] == branch]] for branch in range(count)]
    seeds = [own if len(own) else branches[[n]] for n, own in enumerate(different)]
    pairs = zip(members, branches, strict=True)
    spread = [((own - centre) ** 2).sum(dtype=np.float64) for own, centre in pairs]
    sizes = _share_words(np.array(spread), words, np.array([len(own) for own in seeds]))
    leaves = [
        learn_vocabulary(own, size, rng, step, start) if len(start) > size else start
        for own, start, size in zip(members, seeds, sizes, strict=True)
    ]
    return Vocabulary(np.concatenate(leaves), branches, sizes)


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
            return _spread_seeds(descriptors[_find_distinct(descriptors, words)], words, rng)
        seeds[index] = sample[rng.choice(count, p=weight / weight.sum())]
        difference = sample - seeds[index]
        distance = np.minimum(distance, np.einsum('ij,ij->i', difference, difference))
    return seeds


def _find_distinct(descriptors: Float32Array, words: int) -> NDArray[np.intp]:
    """Index of the first of each group of equal descriptors (k, d), at least as many as words."""
    distinct = np.asarray(np.unique(descriptors, axis=0, return_index=True)[1])
    if len(distinct) < words:
        raise VisionError(
            f'vocabulary of {words} words: the images have {len(distinct)} distinct patches only; '
            'use more images or fewer words'
        )
    return distinct


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
