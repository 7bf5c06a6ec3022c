"""
An image compared with the map: its kernel values, as far as anybody asks for them.

On a small map all of the kernel vector is computed. On a large one an approximate search proposes
candidates (see `index`), and exact values are computed for them and for the poses that a
belief can reach: the cost of an update does not depend on the size of the map.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]


class Similarity(Protocol):
    """
    Kernel values of an image and the images of a map.

    `candidates`: (k,) indices of the map images that may be the most similar ones. `known`:
    increasing indices of those whose values are known from the beginning, and `best` the largest
    of these. `size`: n. `missing`: how many of the map's cameras had no image.
    """

    candidates: Indices
    known: Indices
    best: float
    size: int
    missing: int

    def at(self, indices: Indices) -> FloatArray:
        """Kernel values (m,) of map images, exact; indices (m,) increasing."""
        ...


class FullSimilarity:
    """All of the kernel vector (n,); every image is a candidate."""

    def __init__(self, similarities: FloatArray, missing: int = 0) -> None:
        self.similarities, self.missing = similarities, missing
        self.size = len(similarities)
        self.candidates = self.known = np.arange(self.size)
        self.best = float(similarities.max())

    def at(self, indices: Indices) -> FloatArray:
        """Look values (m,) up at indices (m,)."""
        return np.asarray(self.similarities[indices])


class LocalSimilarity:
    """
    Values computed where they are asked for, each of them once.

    `compute` gives the values (m,) of increasing indices (m,); `size`: n of the map. `given`:
    increasing indices (l,), l > 0, and values (l,) that are known already. `nearby`: (k,) indices
    whose values are going to be needed as well: computing them at once is faster.
    """

    def __init__(
        self,
        compute: Callable[[Indices], FloatArray],
        candidates: Indices,
        size: int,
        given: tuple[Indices, FloatArray],
        nearby: Indices | None = None,
        missing: int = 0,
    ) -> None:
        self.size, self.missing = size, missing
        self.candidates = np.unique(candidates)
        self._compute = compute
        self._computed, self._values = given
        self.at(self.candidates if nearby is None else np.union1d(candidates, nearby))
        self.known, self.best = self._computed, float(self._values.max())

    @property
    def computed(self) -> int:
        """Count the values that were computed."""
        return len(self._computed)

    def at(self, indices: Indices) -> FloatArray:
        """Look values (m,) up at increasing indices (m,); compute those that were not yet."""
        place = np.searchsorted(self._computed, indices)
        missing = indices[self._computed.take(place, mode='clip') != indices]
        if missing.size:
            computed = np.concatenate([self._computed, missing])
            values = np.concatenate([self._values, self._compute(missing)])
            order = np.argsort(computed)
            self._computed, self._values = computed[order], values[order]
            place = np.searchsorted(self._computed, indices)
        return np.asarray(self._values[place])
