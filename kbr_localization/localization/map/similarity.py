"""
Kernel values of an image and the images of a map, and the image kernel centred by the map's mean.

On a small map the whole kernel vector is computed. On a large one an approximate search proposes
candidates (see `index`), and exact values are computed only for them and for the poses that a
belief can reach: the cost of an update does not depend on the size of the map.

With the image kernel k and the kernel mean m = sum_j k(., Z_j) / l of l images Z_j of the map,

    k~(a, b) = <k(., a) - m, k(., b) - m> / (|k(., a) - m| |k(., b) - m|)
    <k(., a) - m, k(., b) - m> = k(a, b) - m(a) - m(b) + |m|^2
    |k(., a) - m|^2 = k(a, a) - 2 m(a) + |m|^2,   m(a) = sum_j k(a, Z_j) / l,
    |m|^2 = sum_j m(Z_j) / l

(Schoelkopf, Smola, Mueller 1998, appendix B). Centring removes what all images of a building have
in common, such as light and walls, which is no evidence of a place. An image that resembles all
others is no longer the best match of all images (Jegou, Chum 2012, on words of images). The cosine
k~ is in [-1, 1], in practice from -0.5 to 1, and uses this range on every map, so that one
bandwidth suits all cameras and descriptors. |k(., a) - m|^2 is taken as at least 0.01.
"""

from __future__ import annotations

from collections.abc import Callable

from kbr_localization.se2 import FloatArray
from kbr_localization.vision.describer import Describer
from kbr_localization.workers import batches
import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]


class Similarity:
    """
    Kernel values of an image and the n images of a map, computed on demand.

    `size`: n. `initial`: increasing indices (l,), l > 0, and their values (l,). `compute` returns
    the values (m,) of increasing indices (m,). `candidates`: (k,) increasing indices of the images
    that may be the most similar ones. `nearby`: (k,) indices whose values will be needed as well;
    it is faster to compute them together. `missing`: number of the map's cameras without an image.
    `evaluated`: increasing indices of the values that were given to the constructor or computed by
    it, `best` the largest of these values.
    """

    def __init__(
        self,
        size: int,
        initial: tuple[Indices, FloatArray],
        compute: Callable[[Indices], FloatArray],
        candidates: Indices,
        nearby: Indices | None = None,
        missing: int = 0,
    ) -> None:
        self.size, self.candidates, self.missing = size, candidates, missing
        self._compute = compute
        self._computed, self._values = initial
        if len(self._computed) < size:
            self.values_at(candidates if nearby is None else np.union1d(candidates, nearby))
        self.evaluated, self.best = self._computed, float(self._values.max())

    @classmethod
    def from_vector(cls, values: FloatArray, missing: int = 0) -> Similarity:
        """Make it from the whole kernel vector (n,); every image is a candidate."""
        every = np.arange(len(values))
        return cls(len(values), (every, values), values.take, every, missing=missing)

    def values_at(self, indices: Indices) -> FloatArray:
        """Return exact values (m,) at increasing indices (m,); each is computed only once."""
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

    def transformed(self, transform: Callable[[FloatArray, Indices], FloatArray]) -> Similarity:
        """Return a copy with the values `transform(values, indices)`, arrays (m,)."""

        def compute(indices: Indices) -> FloatArray:
            return transform(self.values_at(indices), indices)

        initial = self.evaluated, compute(self.evaluated)
        return Similarity(self.size, initial, compute, self.candidates, missing=self.missing)


class Centring:
    """
    The kernel mean m of a map's images, and the centred kernel k~.

    `describer`: gives k. `descriptors`: (n, d) of the map's images. The Z_j are at most 128 of
    them, evenly spread, with the indices `references`; `reference_values` returns k (l,) of a
    descriptor (d,) and the Z_j. `means`: values of m at all images (n,) from a map file; they are
    ignored if they do not fit the kernel and the images.
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
        self.reference_values = describer.comparer(descriptors[self.references])
        self._means = np.full(n, np.nan)  # NaN: not computed yet
        found = self._means_of(self.references)
        self._squared_norm = float(found.mean())
        if means is not None and np.allclose(means[self.references], found, rtol=0.0, atol=1e-9):
            self._means = means

    def extended(self, descriptors: NDArray[np.generic]) -> Centring:
        """Return the same kernel for a map with more images at its end, (n + k, d)."""
        other = object.__new__(Centring)
        other.__dict__.update(self.__dict__)
        other._descriptors = descriptors
        added = np.full(len(descriptors) - len(self._means), np.nan)
        other._means = np.concatenate([self._means, added])
        return other

    @property
    def means(self) -> FloatArray:
        """Values of m at all images (n,); computing them takes 5 s for 100,000 images."""
        return self._means_of(np.arange(len(self._means)))

    def centre(self, similarity: Similarity) -> Similarity:
        """Return k~ of an image and the map from its values of k."""
        mean = float(similarity.values_at(self.references).mean())

        def centred(values: FloatArray, indices: Indices) -> FloatArray:
            return self._cosine(values, self._means_of(indices), mean)

        return similarity.transformed(centred)

    def gram(self, left: Indices, right: Indices) -> FloatArray:
        """Return the kernel matrix k~ (m, p) of images of the map, by indices (m,) and (p,)."""
        values = self._describer.cross_gram(self._descriptors[left], self._descriptors[right])
        return self._cosine(values, self._means_of(left)[:, np.newaxis], self._means_of(right))

    def compare_pair(self, images: NDArray[np.generic], means: FloatArray) -> float:
        """Return k~ of two images (2, d) that are not in the map; `means`: their m (2,)."""
        value = self._describer.cross_gram(images[:1], images[1:])[0]
        return float(self._cosine(value, means[0], means[1])[0])

    def _cosine(
        self, values: FloatArray, means: FloatArray, others: FloatArray | float
    ) -> FloatArray:
        """Return k~(a, b) from k(a, b), m(a) and m(b); k(a, a) is 1."""
        lengths = np.maximum(1.0 - 2.0 * means + self._squared_norm, 0.01)
        lengths = lengths * np.maximum(1.0 - 2.0 * others + self._squared_norm, 0.01)
        return np.asarray((values - means - others + self._squared_norm) / np.sqrt(lengths))

    def _means_of(self, indices: Indices) -> FloatArray:
        """Return m (m,) at images of the map; compute it where it is not known yet."""
        unknown = indices[np.isnan(self._means[indices])]
        for block in batches(unknown, 1024):
            values = self.reference_values(self._descriptors[block])
            self._means[block] = values.mean(axis=0)
        return np.asarray(self._means[indices])
