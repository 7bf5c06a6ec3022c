"""Whether the images are of the map's building at all."""

from __future__ import annotations

from kbr_localization.localization.kbr.confirmation import CONFIRMED_AFTER
from kbr_localization.localization.map.map_statistics import (
    MapStatistics,
    MEMORIES,
    SAFETY_FACTOR,
)

_MEMORY = MEMORIES[-1]  # covered images of which the mean log likelihood is taken
_ENOUGH = CONFIRMED_AFTER[-1]  # of them, at least, to speak for the map or against it


class MapFit:
    """
    The mean log likelihood of many images, wherever the belief has been meanwhile.

    It is that with an odometry that may be wrong (`OdometryCheck`): one that leads the belief
    astray is no fault of the map.

    A drive whose places are left out of the map is likely all the same, because a belief finds
    what looks alike; the map knows how likely such a drive is as a rule
    (`MapStatistics.typical_log_likelihood`). Less than that over a long way is proof against the
    map: in a light that the map does not know the likelihood falls as well, but not below that of
    images of other places. An image whose best match is that of the image before counts for
    nothing: a camera that is covered or broken says nothing about the building. It is not
    forgotten when the belief is found elsewhere on the map.
    """

    def __init__(self, statistics: MapStatistics) -> None:
        self._typical, self._largest = (
            statistics.typical_log_likelihood,
            statistics.log_likelihood_limit_40 / SAFETY_FACTOR,
        )
        self.forget()

    def forget(self) -> None:
        """Let no image have been seen."""
        self._sum, self._weight = 0.0, 0.0
        self._last = -1

    def see(self, log_likelihood: float, coverage: float, best: int) -> None:
        """Take in the log likelihood of an image, by the map's coverage of the belief's place."""
        repeated, self._last = best == self._last, best
        if repeated:
            return
        keep = (1.0 - 1.0 / _MEMORY) ** coverage
        self._sum = keep * self._sum + coverage * log_likelihood
        self._weight = keep * self._weight + coverage

    @property
    def mean(self) -> float:
        """Return the mean log likelihood; 0 before the first image."""
        return self._sum / self._weight if self._weight > 0.0 else 0.0

    @property
    def confirmed(self) -> bool:
        """Whether the images are clear proof of the map: more than a wrong place ever gives."""
        return self._weight >= _ENOUGH and self.mean > self._largest

    @property
    def refuted(self) -> bool:
        """Whether the images are clear proof against the map."""
        return self._weight >= _ENOUGH and self.mean < self._typical
