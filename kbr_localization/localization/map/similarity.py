"""
An image compared with the map, and the image kernel centred by the mean of the map.

On a small map all of the kernel vector is computed. On a large one an approximate search proposes
candidates (see `index`), and exact values are computed for them and for the poses that a
belief can reach: the cost of an update does not depend on the size of the map.

With the image kernel k and the kernel mean m = sum_j k(., Z_j) / l of l images Z_j of the map,

    k~(a, b) = <k(., a) - m, k(., b) - m> / (|k(., a) - m| |k(., b) - m|)
    <k(., a) - m, k(., b) - m> = k(a, b) - m(a) - m(b) + |m|^2
    |k(., a) - m|^2 = k(a, a) - 2 m(a) + |m|^2,   m(a) = sum_j k(a, Z_j) / l,
    |m|^2 = sum_j m(Z_j) / l

(Schoelkopf, Smola, Mueller 1998, appendix B). What all images of a building have in common, its
light and its walls, says nothing of the place and is taken out; an image that resembles every
other one stops being the best match of all (Jegou, Chum 2012, on words of images). The remaining
cosine k~ is in [-1, 1], 1 between equal images, and uses all of its range on every map, so that
one bandwidth suits cameras and descriptors of all kinds. |k(., a) - m|^2 counts as 0.01 at least.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kbr_localization.se2 import FloatArray
from kbr_localization.vision.describer import Describer
from kbr_localization.workers import batches
import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]


class Similarity:
    """
    Kernel values of an image and the n images of a map, computed where they are asked for.

    `size`: n. `given`: increasing indices (l,), l > 0, and values (l,) that are known already.
    `compute` gives the values (m,) of increasing indices (m,). `candidates`: (k,) increasing
    indices of the images that may be the most similar ones. `nearby`: (k,) indices whose values
    are going to be needed as well: computing them at once is faster. `missing`: how many of the
    map's cameras had no image. `known`: increasing indices whose values are known from the
    beginning, and `best` the largest of these.
    """

    def __init__(
        self,
        size: int,
        given: tuple[Indices, FloatArray],
        compute: Callable[[Indices], FloatArray],
        candidates: Indices,
        nearby: Indices | None = None,
        missing: int = 0,
    ) -> None:
        self.size, self.candidates, self.missing = size, candidates, missing
        self._compute = compute
        self._computed, self._values = given
        if len(self._computed) < size:
            self.at(candidates if nearby is None else np.union1d(candidates, nearby))
        self.known, self.best = self._computed, float(self._values.max())

    @classmethod
    def of_all(cls, values: FloatArray, missing: int = 0) -> Similarity:
        """Take all of the kernel vector (n,); every image is a candidate."""
        every = np.arange(len(values))
        return cls(len(values), (every, values), values.take, every, missing=missing)

    def at(self, indices: Indices) -> FloatArray:
        """Look exact values (m,) up at increasing indices (m,); compute each of them once."""
        if len(self._computed) == self.size:
            return np.asarray(self._values[indices])
        place = np.searchsorted(self._computed, indices)
        missing = indices[self._computed.take(place, mode='clip') != indices]
        if missing.size:
            computed = np.concatenate([self._computed, missing])
            values = np.concatenate([self._values, self._compute(missing)])
            order = np.argsort(computed)
            self._computed, self._values = computed[order], values[order]
            place = np.searchsorted(self._computed, indices)
        return np.asarray(self._values[place])

    def mapped(self, change: Callable[[FloatArray, Indices], FloatArray]) -> Similarity:
        """Return the same with other values: `change` of values (m,) at indices (m,)."""

        def compute(indices: Indices) -> FloatArray:
            return change(self.at(indices), indices)

        given = self.known, compute(self.known)
        return Similarity(self.size, given, compute, self.candidates, missing=self.missing)


class Centring:
    """
    The kernel mean m of a map's images, and k~.

    `describer`, `descriptors`: k and the images (n, d). The Z_j are at most 128 of them,
    evenly spread, whose indices are `references`; `with_references` gives the values k (l,) of a
    descriptor (d,) and these. `means`: m at all images (n,) where it is known
    from before, which is forgotten if it is that of another k or of other images.
    """

    def __init__(
        self,
        describer: Describer,
        descriptors: NDArray[np.generic],
        means: FloatArray | None = None,
    ) -> None:
        self._describer, self._descriptors = describer, descriptors
        n = len(descriptors)
        # the standard error of the mean of 128 is 9% of the deviation of k
        evenly = np.linspace(0, n - 1, min(n, 128)).round()
        self.references = np.unique(evenly.astype(np.intp))
        self.with_references = describer.prepared(descriptors[self.references])
        self._means = np.full(n, np.nan)  # computed when they are asked for
        found = self._means_of(self.references)
        self._squared_norm = float(found.mean())
        if means is not None and np.allclose(means[self.references], found, rtol=0.0, atol=1e-9):
            self._means = means

    def extended(self, descriptors: NDArray[np.generic]) -> Centring:
        """Return the same kernel for a map that has more images at its end, (n + k, d)."""
        other = object.__new__(Centring)
        other.__dict__.update(self.__dict__)
        other._descriptors = descriptors
        added = np.full(len(descriptors) - len(self._means), np.nan)
        other._means = np.concatenate([self._means, added])
        return other

    @property
    def means(self) -> FloatArray:
        """Return m at all images (n,): 5 s for 100,000 where it is not known."""
        return self._means_of(np.arange(len(self._means)))

    def of(self, similarity: Similarity) -> Similarity:
        """Centre the kernel values of an image and the map."""
        mean = float(similarity.at(self.references).mean())

        def centred(values: FloatArray, indices: Indices) -> FloatArray:
            return self._cosine(values, self._means_of(indices), mean)

        return similarity.mapped(centred)

    def gram(self, left: Indices, right: Indices) -> FloatArray:
        """Kernel matrix k~ (m, p) of images of the map, by their indices (m,) and (p,)."""
        values = self._describer.cross_gram(self._descriptors[left], self._descriptors[right])
        return self._cosine(values, self._means_of(left)[:, np.newaxis], self._means_of(right))

    def between(self, images: NDArray[np.generic], means: FloatArray) -> float:
        """Return k~ of two images (2, d), not of the map, whose values m are `means` (2,)."""
        value = self._describer.cross_gram(images[:1], images[1:])[0]
        return float(self._cosine(value, means[0], means[1])[0])

    def _cosine(
        self, values: FloatArray, means: FloatArray, others: FloatArray | float
    ) -> FloatArray:
        """Return k~ of images by their values k, m(a) and m(b); k of equal images is 1."""
        lengths = np.maximum(1.0 - 2.0 * means + self._squared_norm, 0.01)
        lengths = lengths * np.maximum(1.0 - 2.0 * others + self._squared_norm, 0.01)
        return np.asarray((values - means - others + self._squared_norm) / np.sqrt(lengths))

    def _means_of(self, indices: Indices) -> FloatArray:
        """Values (m,) of m at images of the map."""
        unknown = indices[np.isnan(self._means[indices])]
        for block in batches(unknown, 1024):
            values = self.with_references(self._descriptors[block])
            self._means[block] = values.mean(axis=0)
        return np.asarray(self._means[indices])


class GramDescriber(Describer):
    """A describer whose images and descriptors are row numbers of a known kernel matrix."""

    kind, size, dtype = 'gram', 1, np.dtype(np.int64)

    def __init__(self, gram: np.ndarray) -> None:
        self.gram = gram

    def describe(self, image: np.ndarray) -> np.ndarray:
        """Return the row number (1,) unchanged."""
        return image

    def cross_gram(self, left: np.ndarray, right: np.ndarray) -> FloatArray:
        """Kernel matrix (n, m) of row numbers (n, 1) and (m, 1)."""
        return np.asarray(self.gram[np.ix_(left[:, 0], right[:, 0])], dtype=np.float64)

    def state(self) -> Mapping[str, Any]:
        """Nothing that a map file could keep."""
        return {}
