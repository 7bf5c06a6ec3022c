"""Whether the images speak for the place of a belief."""

from __future__ import annotations

from kbr_localization.localization.map.map_statistics import MapStatistics, MEMORIES
from kbr_localization.se2 import FloatArray
import numpy as np

CONFIRMED_AFTER = np.array([3.0, 10.0, 20.0])
"""Covered images, at least, of each of `MEMORIES`, before a belief is confirmed by them."""


class Confirmation:
    """
    Whether the images speak for the belief's place more than they do for a wrong one.

    A belief that follows images of what the map does not show finds look-alike places and has
    likelihoods above one for them; how high at most, the map tells by leaving out the places of a
    drive of its own. The mean log E is taken over some ten, twenty and forty of the last images,
    each weighed by the map's coverage of the belief, and compared with a limit for each: a high
    likelihood over a few images confirms a belief as well as a lower one over many.

    `sums`, `weights`: (3,) of log E and of the coverage, older images counting less.
    """

    def __init__(self, statistics: MapStatistics) -> None:
        self._limits = np.array(statistics.log_likelihood_limits)
        self.forget()

    def forget(self) -> None:
        """Let no image have been seen."""
        self.sums, self.weights = np.zeros(len(MEMORIES)), np.zeros(len(MEMORIES))

    def go_on(self) -> None:
        """Go on from a belief that was confirmed, which counts as a few images."""
        self.weights[0] = CONFIRMED_AFTER[0]
        self.sums[0] = self.weights[0] * (self._limits[0] + 1.0)

    def see(self, log_likelihood: float, coverage: float) -> None:
        """Take in an image."""
        keep = (1.0 - 1.0 / np.array(MEMORIES)) ** coverage
        self.sums = keep * self.sums + coverage * log_likelihood
        self.weights = keep * self.weights + coverage

    @property
    def means(self) -> FloatArray:
        """Mean log likelihood over each number (3,) of images, NaN before it is known."""
        known = self.weights >= CONFIRMED_AFTER - 1e-9
        return np.where(known, self.sums / np.maximum(self.weights, 1e-9), np.nan)

    @property
    def mean(self) -> float:
        """Return the mean log likelihood over the last images; 0 before the first."""
        return float(self.sums[0] / max(self.weights[0], 1e-9))

    @property
    def confirmed(self) -> bool:
        """Whether the belief may be called localized."""
        return bool(np.any(self.means > self._limits))
