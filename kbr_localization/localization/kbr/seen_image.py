"""Places of beliefs and images of a run, kept to ask later how likely these are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kbr_localization.localization.kbr.pose_search import Indices
from kbr_localization.se2 import FloatArray
import numpy as np

_SMALLEST = 1e-100  # mean k_Y of an image relative to its best match


@dataclass(frozen=True)
class Place:
    """
    A belief sum_j gamma_j k_X(., U_j) as weights `values` (k,) of map images `images` (k,).

    On a map that is solved as a whole they are K gamma and weigh A^-1 k_Y; on one that is solved
    in parts A^-1 K gamma, and weigh k_Y. The indices increase.
    """

    images: Indices
    values: FloatArray

    @staticmethod
    def joined(parts: Sequence[tuple[Indices, FloatArray]]) -> Place:
        """Add up weights (k,) of images (k,), which increase in each of the parts."""
        if len(parts) == 1:
            return Place(*parts[0])
        images, values = (np.concatenate(each) for each in zip(*parts, strict=True))
        images, at = np.unique(images, return_inverse=True)
        return Place(images, _added_up(at, values, len(images)))

    def ratios_of(self, images: Sequence[SeenImage]) -> FloatArray:
        """Return how many times as likely images are here as under the uniform law (i,)."""
        if images[0].known is None:
            rows = [image.values.take(self.images, mode='clip') for image in images]
            return _over_uniform(np.array(rows) @ self.values, images)
        if not self.images.size:
            return np.zeros(len(images))
        known = [image.known for image in images if image.known is not None]
        every, of = np.concatenate(known), _owners(known)
        at = self.images.searchsorted(every)
        hit = np.flatnonzero(self.images.take(at, mode='clip') == every)
        values = np.concatenate([image.values[:-1] for image in images])
        weighed = values[hit] * self.values[at[hit]]
        return _over_uniform(_added_up(of[hit], weighed, len(images)), images)


@dataclass(frozen=True)
class SeenImage:
    """
    What an image says of all places.

    `values`: what a `Place` weighs, and a zero at the end for images that the map got since then.
    `known`: increasing indices of the images that have these (k,), None for all. Of a large map
    only the likeliest and those near the belief of then are known; the others count as zero.
    `uniform`: the mean under the uniform law on the map.
    """

    values: FloatArray
    known: Indices | None
    uniform: float

    def ratios_at(self, places: Sequence[Place]) -> FloatArray:
        """Return how many times as likely it is at places as under the uniform law (p,)."""
        images = [place.images for place in places]
        every, weights = np.concatenate(images), np.concatenate([place.values for place in places])
        if self.known is not None:
            at = self.known.searchsorted(every)
            every = np.where(self.known.take(at, mode='clip') == every, at, len(self.known))
        weighed = self.values.take(every, mode='clip') * weights
        return _over_uniform(_added_up(_owners(images), weighed, len(places)), [self])


def _over_uniform(sums: FloatArray, images: Sequence[SeenImage]) -> FloatArray:
    uniform = np.maximum([image.uniform for image in images], _SMALLEST)
    return np.asarray(np.maximum(sums, 0.0) / uniform)


def _added_up(of: Indices, values: FloatArray, count: int) -> FloatArray:
    return np.asarray(np.bincount(of, weights=values, minlength=count), dtype=np.float64)


def _owners(parts: Sequence[Indices]) -> Indices:
    """Return the number of the part that each element of parts is of."""
    return np.repeat(np.arange(len(parts)), [len(part) for part in parts])
