"""
Approximate search for the most similar map images: small sketches in an inverted file.

The sketch of a descriptor is the projection of its square-rooted, normalised counts on the leading
principal axes of the map, rounded to a byte per axis. (The Euclidean distance of square roots of
histograms is their Hellinger distance, which bounds the histogram intersection from both sides.)
Sketches are sorted by the nearest of about sqrt(n) k-means centres, one list for each; a search
reads the lists of the nearest centres. It only proposes candidates, whose kernel values are then
computed exactly from the descriptors.
"""

from __future__ import annotations

from collections.abc import Mapping
import functools

from kbr_localization.errors import MapError
from kbr_localization.vision.vocabulary import learn_vocabulary, nearest_words
from kbr_localization.workers import batches, one_thread
import numpy as np
from numpy.typing import NDArray

Float32Array = NDArray[np.float32]
Indices = NDArray[np.intp]
_BATCH = 8192  # rows computed at a time
_QUICK = 8192  # sketches that a quick search reads
_NAMES = ('centre', 'axes', 'scale', 'codes', 'order', 'starts', 'lists')


class SketchIndex:
    """
    Sketches of the descriptors of a map, which propose similar images.

    `centre`: (d,), `axes`: (d, k), `scale`: (1,) float32, one unit of the codes. `codes`: (n, k)
    int8 sketches, list after list; `order`: (n,) the image of each. `starts`: (l + 1,) where the
    lists begin, `lists`: (l, k) float32 their centres in units of the codes. Raises MapError for
    arrays that do not fit each other.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays = {name: arrays[name] for name in _NAMES}
        self.codes, self.order = arrays['codes'], arrays['order']
        self.starts, self.lists = arrays['starts'], arrays['lists']
        n = len(self.codes)
        ends = len(self.starts) == len(self.lists) + 1 and [*self.starts[[0, -1]]] == [0, n]
        if not ends or np.any(np.diff(self.starts) < 0) or self.order.max() >= n:
            raise MapError(f'the index of {n} images is inconsistent: build the map again')
        self._list_squares = _squares(self.lists)

    @classmethod
    def fit(cls, descriptors: np.ndarray, rng: np.random.Generator) -> SketchIndex:
        """Learn axes and lists from descriptors (n, d), which may be mapped, and sketch all."""
        n = len(descriptors)
        with one_thread():  # on a busy machine several threads wait for each other
            learnt = _principal_axes(_features(descriptors[_sample(n, 2048, rng)]))
        codes = _codes(descriptors, learnt)
        some = np.unique(codes[_sample(n, 32768, rng)], axis=0).astype(np.float32)
        count = max(1, min(1024, round(np.sqrt(n)), len(some) // 8))
        learnt['lists'] = learn_vocabulary(some, count, rng, iterations=8)
        return cls._sorted(learnt, codes, np.arange(n))

    @classmethod
    def _sorted(
        cls, learnt: Mapping[str, np.ndarray], codes: NDArray[np.int8], images: Indices
    ) -> SketchIndex:
        """Sort sketches (n, k) of images (n,) into the lists."""
        lists = learnt['lists']
        parts = batches(codes, _BATCH)
        member = np.concatenate([nearest_words(p.astype(np.float32), lists) for p in parts])
        order = np.argsort(member, kind='stable')
        starts = np.searchsorted(member[order], np.arange(len(lists) + 1)).astype(np.int64)
        order32 = images[order].astype(np.int32)
        return cls({**learnt, 'codes': codes[order], 'order': order32, 'starts': starts})

    def extended(self, descriptors: np.ndarray) -> SketchIndex:
        """Return the index with descriptors (m, d) of images at the end of the map."""
        codes = np.concatenate([self.codes, _codes(descriptors, self.arrays)])
        new = np.arange(len(self), len(codes))
        return self._sorted(self.arrays, codes, np.concatenate([self.order, new]))

    def __len__(self) -> int:
        return len(self.codes)

    def candidates(self, descriptor: np.ndarray, count: int, thorough: bool = False) -> Indices:
        """
        Propose the `count` images most similar to a descriptor (d,), in no order.

        A quick search reads about `_QUICK` sketches of the nearest lists, for a map of any size; a
        `thorough` one reads all.
        """
        query = _projected(descriptor[np.newaxis], self.arrays)[0]
        rows = np.arange(len(self)) if thorough else self._nearest_lists(query)
        parts = batches(rows, _BATCH)
        products = [self.codes[part].astype(np.float32) @ query for part in parts]
        closeness = 2.0 * np.concatenate(products) - self._code_squares[rows]
        if len(rows) > count:
            rows = rows[np.argpartition(-closeness, count)[:count]]
        return np.asarray(self.order[rows], dtype=np.intp)

    @functools.cached_property
    def _code_squares(self) -> Float32Array:
        parts = batches(self.codes, _BATCH)
        return np.concatenate([_squares(part.astype(np.float32)) for part in parts])

    def _nearest_lists(self, query: Float32Array) -> Indices:
        """Return the rows (m,) of the lists nearest to a sketch (k,)."""
        nearest = np.argsort(self._list_squares - 2.0 * (self.lists @ query))
        read = np.cumsum(np.diff(self.starts)[nearest])
        enough = int(np.searchsorted(read, min(_QUICK, len(self)))) + 1
        lists = np.sort(nearest[:enough])
        return np.concatenate([np.arange(self.starts[i], self.starts[i + 1]) for i in lists])


def _squares(points: Float32Array) -> Float32Array:
    return np.asarray(np.einsum('ij,ij->i', points, points))


def _sample(n: int, size: int, rng: np.random.Generator) -> Indices:
    return np.sort(rng.choice(n, size=min(n, size), replace=False))


def _features(descriptors: np.ndarray) -> Float32Array:
    """Return square roots of the fractions of counts (m, d); keep vectors of other types."""
    if descriptors.dtype.kind != 'u':
        return np.asarray(descriptors, dtype=np.float32)
    totals = np.maximum(descriptors.sum(axis=1, dtype=np.float32), 1.0)
    features: Float32Array = np.sqrt(descriptors, dtype=np.float32)
    features /= np.sqrt(totals)[:, np.newaxis]
    return features


def _principal_axes(features: Float32Array) -> dict[str, np.ndarray]:
    """Return centre (d,), leading axes (d, k) and unit of the codes (1,) of features (m, d)."""
    centre = features.mean(axis=0)
    centred = features - centre
    count = min(64, *centred.shape)
    # randomised range finder with a power iteration (Halko et al. 2011)
    basis = np.random.default_rng(0).standard_normal((len(centred), count + 16), dtype=np.float32)
    basis = centred @ np.linalg.qr(centred.T @ basis)[0]
    projected = np.linalg.qr(basis)[0].T @ centred
    # right singular vectors, from the eigenvectors of the smaller Gram matrix
    leading = np.linalg.eigh(projected @ projected.T)[1][:, ::-1][:, :count]
    axes = projected.T @ leading
    axes = np.ascontiguousarray(axes / np.maximum(np.linalg.norm(axes, axis=0), 1e-12))
    scale = max(float(np.abs(centred @ axes).max()) / 127.0, 1e-12)
    return {'centre': centre, 'axes': axes, 'scale': np.array([scale], dtype=np.float32)}


def _codes(descriptors: np.ndarray, learnt: Mapping[str, np.ndarray]) -> NDArray[np.int8]:
    """Return sketches (m, k) of descriptors (m, d)."""
    parts = (np.rint(_projected(part, learnt)) for part in batches(descriptors, _BATCH))
    return np.concatenate([np.clip(part, -127, 127).astype(np.int8) for part in parts])


def _projected(descriptors: np.ndarray, learnt: Mapping[str, np.ndarray]) -> Float32Array:
    return np.asarray(
        (_features(descriptors) - learnt['centre']) @ learnt['axes'] / learnt['scale']
    )
