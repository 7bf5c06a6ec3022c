"""
Approximate search for the most similar map images: small sketches in an inverted file.

The sketch of a descriptor is the projection of its square-rooted, normalised counts (the Hellinger
map: the Euclidean distance of square roots of histograms is their Hellinger distance, which bounds
the histogram intersection from both sides) on the leading principal axes of the map, rounded to a
byte per axis. Sketches are kept sorted by the nearest of about sqrt(n) k-means centres; a search
reads the lists of the nearest centres. It only proposes: the kernel of what it proposes is then
computed exactly from the descriptors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import functools

from kbr_localization.errors import MapError
from kbr_localization.vision.vocabulary import learn_vocabulary, nearest_words
from kbr_localization.workers import one_thread
import numpy as np
from numpy.typing import NDArray

Float32Array = NDArray[np.float32]
Indices = NDArray[np.intp]
AXES = 64
_SAMPLE = 2048  # descriptors that the axes are learnt from
_LISTS_SAMPLE = 32768
_MOST_LISTS = 1024
_BLOCK = 8192
_PROBED = 8192  # sketches that a quick search reads
_ITERATIONS = 8
_NAMES = ('centre', 'axes', 'scale', 'codes', 'order', 'starts', 'lists')


class SketchIndex:
    """
    Sketches of the descriptors of a map, for proposals of similar images.

    `centre`: (d,), `axes`: (d, k), `scale`: (1,) float32 of a unit of the codes. `codes`: (n, k)
    int8, list after list; `order`: (n,) the index of the image that each belongs to. `starts`:
    (l + 1,) where the lists begin, `lists`: (l, k) float32 their centres in units of the codes.
    Made of the arrays of a file, it raises MapError for those that do not fit each other.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        missing = [name for name in _NAMES if name not in arrays]
        if missing:
            raise MapError(f'the index has no {missing[0]}')
        self.arrays = {name: arrays[name] for name in _NAMES}
        self.centre, self.axes = arrays['centre'], arrays['axes']
        self.scale = float(arrays['scale'][0])
        self.codes, self.order = arrays['codes'], arrays['order']
        self.starts, self.lists = np.asarray(arrays['starts']), arrays['lists']
        self._check()
        self._sizes = np.diff(self.starts)
        self._list_squares = _squares(np.asarray(self.lists))

    @classmethod
    def fit(cls, descriptors: np.ndarray, rng: np.random.Generator) -> SketchIndex:
        """
        Learn axes and lists from descriptors (n, d) and sketch all of them.

        They are read block by block, so they may lie in a file.
        """
        n = len(descriptors)
        sample = _features(descriptors[_sample(n, _SAMPLE, rng)])
        with one_thread():  # several wait for each other on a machine that is busy
            centre, axes, scale = _principal_axes(sample)
        codes = np.empty((n, axes.shape[1]), dtype=np.int8)
        for block in _blocks(n):
            codes[block] = _codes((_features(descriptors[block]) - centre) @ axes, scale)
        learnt = {'centre': centre, 'axes': axes, 'scale': np.array([scale], dtype=np.float32)}
        return cls._sorted(learnt | {'lists': _list_centres(codes, rng)}, codes, np.arange(n))

    @classmethod
    def _sorted(
        cls, learnt: Mapping[str, np.ndarray], codes: NDArray[np.int8], images: Indices
    ) -> SketchIndex:
        """Put sketches (n, k) of images (n,) into the lists."""
        lists = learnt['lists']
        nearest = [nearest_words(codes[b].astype(np.float32), lists) for b in _blocks(len(codes))]
        member = np.concatenate(nearest)
        order = np.argsort(member, kind='stable')
        starts = np.searchsorted(member[order], np.arange(len(lists) + 1)).astype(np.int64)
        placed: dict[str, np.ndarray] = {'codes': codes[order], 'starts': starts}
        placed['order'] = images[order].astype(np.int32)
        return cls({**learnt, **placed})

    def extended(self, descriptors: np.ndarray) -> SketchIndex:
        """Return the index with the images of descriptors (m, d) after those that it has."""
        projected = (_features(descriptors) - self.centre) @ self.axes
        codes = np.concatenate([self.codes, _codes(projected, self.scale)])
        new = np.arange(len(self), len(codes))
        return self._sorted(self.arrays, codes, np.concatenate([self.order, new]))

    def __len__(self) -> int:
        """Count the images."""
        return len(self.codes)

    def fits(self, descriptors: np.ndarray) -> bool:
        """Whether the index can be one of descriptors (n, d)."""
        return descriptors.shape == (len(self.codes), len(self.centre))

    def candidates(self, descriptor: np.ndarray, count: int, thorough: bool = False) -> Indices:
        """
        Propose the `count` images most similar to a descriptor (d,), in no order.

        A quick search reads a fixed number of sketches, whatever the size of the map; a thorough
        one reads all.
        """
        feature = _features(descriptor[np.newaxis])[0]
        query = ((feature - self.centre) @ self.axes / self.scale).astype(np.float32)
        lists = np.arange(len(self.lists)) if thorough else self._nearest_lists(query)
        return self._best_of(lists, query, count)

    def _check(self) -> None:
        n, axes = self.codes.shape
        shapes = {
            'axes': (len(self.centre), axes),
            'order': (n,),
            'lists': (len(self.lists), axes),
        }
        wrong = [name for name, shape in shapes.items() if self.arrays[name].shape != shape]
        ends = self.starts[[0, -1]].tolist() if self.starts.ndim == 1 and self.starts.size else []
        if wrong or ends != [0, n] or len(self.starts) != len(self.lists) + 1:
            raise MapError(f'the index of {n} images is at odds with itself: build the map again')
        if np.any(np.diff(self.starts) < 0) or self.order.min() < 0 or self.order.max() >= n:
            raise MapError(f'the index of {n} images points elsewhere: build the map again')

    @functools.cached_property
    def _code_squares(self) -> Float32Array:
        """Squared lengths (n,) of the sketches."""
        blocks = [_squares(self.codes[b].astype(np.float32)) for b in _blocks(len(self))]
        return np.concatenate(blocks)

    def _nearest_lists(self, query: Float32Array) -> Indices:
        order = np.argsort(self._list_squares - 2.0 * (self.lists @ query))
        read = np.cumsum(self._sizes[order])
        return np.sort(order[: int(np.searchsorted(read, min(_PROBED, len(self)))) + 1])

    def _best_of(self, lists: Indices, query: Float32Array, count: int) -> Indices:
        scores, places = [], []
        for runs in self._batches(lists):
            read = [self.codes[first:last] for first, last in runs]
            places.append(np.concatenate([np.arange(first, last) for first, last in runs]))
            scores.append(2.0 * (np.concatenate(read, dtype=np.float32) @ query))
        closeness = np.concatenate(scores) - self._code_squares[np.concatenate(places)]
        best = _largest(closeness, count)
        return np.asarray(self.order[np.concatenate(places)[best]], dtype=np.intp)

    def _batches(self, lists: Indices) -> Iterator[list[tuple[int, int]]]:
        """Ranges of sketches that cover lists, so many at a time as are worth one product."""
        runs: list[tuple[int, int]] = []
        held = 0
        for first, last in zip(
            self.starts[lists].tolist(), self.starts[lists + 1].tolist(), strict=True
        ):
            runs.append((first, last))
            held += last - first
            if held >= _BLOCK:
                yield runs
                runs, held = [], 0
        if runs:
            yield runs


def _squares(points: Float32Array) -> Float32Array:
    return np.asarray(np.einsum('ij,ij->i', points, points))


def _blocks(n: int) -> list[slice]:
    return [slice(start, start + _BLOCK) for start in range(0, n, _BLOCK)]


def _largest(values: np.ndarray, count: int) -> Indices:
    if len(values) <= count:
        return np.arange(len(values))
    return np.argpartition(-values, count)[:count]


def _sample(n: int, size: int, rng: np.random.Generator) -> Indices:
    return np.sort(rng.choice(n, size=min(n, size), replace=False))


def _features(descriptors: np.ndarray) -> Float32Array:
    """Square roots of the fractions of counts (m, d); vectors of other kinds are left alone."""
    if descriptors.dtype.kind != 'u':
        return np.asarray(descriptors, dtype=np.float32)
    totals = np.maximum(descriptors.sum(axis=1, dtype=np.float32), 1.0)
    features: Float32Array = np.sqrt(descriptors, dtype=np.float32)
    features /= np.sqrt(totals)[:, np.newaxis]
    return features


def _principal_axes(features: Float32Array) -> tuple[Float32Array, Float32Array, float]:
    """Centre (d,), leading axes (d, k) and the unit of their codes, from a sample (m, d)."""
    centre = features.mean(axis=0)
    centred = features - centre
    count = min(AXES, *centred.shape)
    # randomised range finder with a power iteration (Halko et al. 2011)
    basis = np.random.default_rng(0).standard_normal((len(centred), count + 16), dtype=np.float32)
    basis = centred @ np.linalg.qr(centred.T @ basis)[0]
    projected = np.linalg.qr(basis)[0].T @ centred
    # its right singular vectors, by way of the small side
    leading = np.linalg.eigh(projected @ projected.T)[1][:, ::-1][:, :count]
    axes = projected.T @ leading
    axes = np.ascontiguousarray(axes / np.maximum(np.linalg.norm(axes, axis=0), 1e-12))
    scale = float(np.abs(centred @ axes).max()) / 127.0
    return centre, axes, max(scale, 1e-12)


def _codes(projected: NDArray[np.floating], scale: float) -> NDArray[np.int8]:
    return np.asarray(np.clip(np.rint(projected / scale), -127, 127), dtype=np.int8)


def _list_centres(codes: NDArray[np.int8], rng: np.random.Generator) -> Float32Array:
    sample = np.unique(codes[_sample(len(codes), _LISTS_SAMPLE, rng)], axis=0).astype(np.float32)
    count = max(1, min(_MOST_LISTS, round(np.sqrt(len(codes))), len(sample) // 8))
    return learn_vocabulary(sample, count, rng, _ITERATIONS)
