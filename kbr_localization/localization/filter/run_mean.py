"""
What the images of a run have in common with each image of the map, wherever they are taken.

To a map of another building, or in a light that the map does not show, all images of a run may
resemble the same few places. So take an image's kernel values relative to the mean of those that
the run itself took elsewhere, as odometry says (adaptive score normalisation of speaker
verification: Auckenthaler, Carey and Lloyd-Thomas, 2000):

    k~(y, Y_i) - sum_t k~(y_t, Y_i) / (N + N_0),   y_t taken elsewhere than y, or long before.
"""

from kbr_localization.localization.filter.points import MAX_HEADING_DIFF
from kbr_localization.localization.map.similarity import Similarity
from kbr_localization.se2 import FloatArray, within
import numpy as np
from numpy.typing import NDArray

PRIOR = 4.0
"""N_0: images of similarity zero that a run begins with."""


class RunMean:
    """Sums of the kernel values (n,) of a run's images; `radius`: metres of one place."""

    def __init__(self, size: int, radius: float) -> None:
        self._radius = radius
        self._sums, self._counts = np.zeros(size), np.full(size, PRIOR)
        self._pending: list[tuple[FloatArray, NDArray[np.intp], FloatArray]] = []

    def grow(self, size: int) -> None:
        """Continue with a map that has more images at its end."""
        more = size - len(self._sums)
        self._sums = np.append(self._sums, np.zeros(more))
        self._counts = np.append(self._counts, np.full(more, PRIOR))

    def subtract(self, seen: Similarity, here: FloatArray) -> Similarity:
        """
        Return an image's values less the mean of images taken elsewhere; remember the image.

        `here`: the pose (3,) where the odometry has it.
        """
        poses = np.array([pose for pose, _, _ in self._pending]).reshape(-1, 3)
        near = within(poses, here, self._radius, MAX_HEADING_DIFF)
        near[:-64] = False
        for elsewhere in np.flatnonzero(~near):
            _, known, values = self._pending[elsewhere]
            self._sums[known] += values
            self._counts[known] += 1.0
        kept = [self._pending[there] for there in np.flatnonzero(near)]
        self._pending = [*kept, (here, seen.known, seen.at(seen.known))]

        def relative(values: FloatArray, indices: NDArray[np.intp]) -> FloatArray:
            return np.asarray(values - self._sums.take(indices) / self._counts.take(indices))

        return seen.mapped(relative)
