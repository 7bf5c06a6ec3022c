"""
The image kernel centred in its feature space by the mean of the map, and scaled to one.

With the image kernel k and the kernel mean m = sum_j k(., Z_j) / l of l images Z_j of the map,

    k~(a, b) = <k(., a) - m, k(., b) - m> / (|k(., a) - m| |k(., b) - m|)
    <k(., a) - m, k(., b) - m> = k(a, b) - m(a) - m(b) + |m|^2
    |k(., a) - m|^2 = k(a, a) - 2 m(a) + |m|^2,   m(a) = sum_j k(a, Z_j) / l,
    |m|^2 = sum_j m(Z_j) / l

(Schoelkopf, Smola, Mueller 1998, appendix B). What all images of a building have in common, its
light and its walls, says nothing of the place and is taken out; an image that resembles every
other one stops being the best match of all (Jegou, Chum 2012, on words of images). The remaining
cosine k~ is in [-1, 1], 1 between equal images, and uses all of its range on every map, so that
one bandwidth sigma suits cameras and descriptors of all kinds: the filter's kernel of images is
k_Y = exp((k~ - 1) / sigma^2), the Gaussian one of the centred features (`kbr.likelihood`). Of an
image that m all but equals next to nothing is left to compare: its |k(., a) - m|^2 counts as 0.01
at least, and k~ with itself is less than 1; on a map of one image it is 0.
"""

from __future__ import annotations

from kbr_localization.localization.map.similarity import (
    FullSimilarity,
    LocalSimilarity,
    Similarity,
)
from kbr_localization.se2 import FloatArray
from kbr_localization.vision.describer import Describer
import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]
_REFERENCES = 128  # images whose mean is taken: its standard error is 9% of the deviation of k
_LEAST_VARIANCE = 0.01  # |k(., a) - m|^2 of an image that the mean is all but equal to
_AT_ONCE = 1024  # images that are compared with the references in one go


class Centring:
    """
    The kernel mean m of a map's images, and k~.

    `describer`, `descriptors`: k and the images (n, d). The Z_j are at most 128 of them,
    evenly spread, whose indices are `references`. What k~ needs of each image is computed when it
    is asked for, and kept; `means`: m at all images (n,) where it is known from before, which is
    forgotten if it is that of another k or of other images.
    """

    def __init__(
        self,
        describer: Describer,
        descriptors: NDArray[np.generic],
        means: FloatArray | None = None,
    ) -> None:
        self._describer, self._descriptors = describer, descriptors
        n = len(descriptors)
        evenly = np.linspace(0, n - 1, min(n, _REFERENCES)).round()
        self.references = np.unique(evenly.astype(np.intp))
        self._prepared = describer.prepared(descriptors[self.references])
        self._means = np.full(n, np.nan)
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

    def with_references(self, descriptor: NDArray[np.generic]) -> FloatArray:
        """Return the values k (l,), not centred, of a descriptor (d,) and the references."""
        return self._prepared.compared_with(descriptor)

    def of(self, similarity: Similarity) -> Similarity:
        """Centre the kernel values of an image and the map."""
        mean = float(similarity.at(self.references).mean())

        def centred(indices: Indices) -> FloatArray:
            return self.centred(similarity.at(indices), indices, mean)

        known, size = similarity.known, similarity.size
        if len(known) == size:
            return FullSimilarity(centred(known), similarity.missing)
        given = known, centred(known)
        return LocalSimilarity(
            centred, similarity.candidates, size, given, missing=similarity.missing
        )

    def gram(self, left: Indices, right: Indices) -> FloatArray:
        """Kernel matrix k~ (m, p) of images of the map, by their indices (m,) and (p,)."""
        rows, columns = self._descriptors[left], self._descriptors[right]
        values = np.asarray(self._describer.cross_gram(rows, columns), dtype=np.float64)
        means, others = self._means_of(left), self._means_of(right)
        scale = np.outer(self._length(means), self._length(others))
        return np.asarray((values - means[:, np.newaxis] - others + self._squared_norm) / scale)

    def centred(self, values: FloatArray, indices: Indices, mean: float) -> FloatArray:
        """Centre values (m,) of an image y and images of the map, indices (m,); `mean`: m(y)."""
        means = self._means_of(indices)
        scale = self._length(means) * self._length(np.float64(mean))
        return np.asarray((values - means - mean + self._squared_norm) / scale)

    def between(self, images: NDArray[np.generic], means: FloatArray) -> float:
        """Return k~ of two images (2, d), not of the map, whose values m are `means` (2,)."""
        value = float(self._describer.cross_gram(images[:1], images[1:])[0, 0])
        scale = float(np.prod(self._length(means)))
        return (value - float(means.sum()) + self._squared_norm) / scale

    def squared_length(self, means: FloatArray) -> FloatArray:
        """Return |k(., a) - m|^2 of images with values m(a): how far they are from the mean."""
        return self._length(means) ** 2

    def _length(self, means: NDArray[np.float64] | np.float64) -> FloatArray:
        """Return |k(., a) - m| for values m(a); k of an image with itself is 1."""
        squared = 1.0 - 2.0 * np.asarray(means) + self._squared_norm
        return np.sqrt(np.maximum(squared, _LEAST_VARIANCE))

    def _means_of(self, indices: Indices) -> FloatArray:
        """Values (m,) of m at images of the map."""
        unknown = indices[np.isnan(self._means[indices])]
        for start in range(0, len(unknown), _AT_ONCE):
            stop = start + _AT_ONCE
            block = unknown[start:stop]
            values = self._prepared.compared_with(self._descriptors[block])
            self._means[block] = values.mean(axis=0)
        return np.asarray(self._means[indices])
