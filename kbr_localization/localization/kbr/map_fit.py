"""Whether the images are of the map's building at all."""

from __future__ import annotations

from kbr_localization.localization.kbr.confirmation import Compared, Confirmation, MEMORY
from kbr_localization.localization.map.map_statistics import MapStatistics

_ENOUGH = 0.5 * MEMORY  # weight of the images, at least, to speak against the map


class MapFit:
    """
    The evidence of many images, wherever the belief has been meanwhile.

    It is that with an odometry that may be wrong (`OdometryCheck`): one that leads the belief
    astray is no fault of the map.

    A drive whose places are left out of the map is likely all the same, because a belief finds
    what looks alike; the map knows how likely such a drive is as a rule
    (`MapStatistics.typical_log_likelihood`). Less than that over a long way is proof against the
    map: in a light that the map does not know the likelihood falls as well, but not below that of
    images of other places. An image whose best match is that of the image before counts for
    nothing: a camera that is covered or broken says nothing about the building. What impostors
    have, too, is no proof of the map (`Confirmation`); against it only the likelihood counts. It
    is not forgotten when the belief is found elsewhere on the map.
    """

    def __init__(self, statistics: MapStatistics) -> None:
        self._typical = statistics.typical_log_likelihood
        self.evidence = Confirmation(statistics)
        self.forget()

    def forget(self) -> None:
        """Let no image have been seen."""
        self.evidence.forget()
        self._last = -1

    def see(
        self, log_likelihood: float, weight: float, best: int, compared: Compared | None = None
    ) -> None:
        """Take in the log likelihood of an image with its weight (`Confirmation.see`)."""
        repeated, self._last = best == self._last, best
        if not repeated:
            self.evidence.see(log_likelihood, weight, compared)

    @property
    def mean(self) -> float:
        """Return the mean log likelihood; 0 before the first image."""
        return self.evidence.mean

    @property
    def confirmed(self) -> bool:
        """Whether the images are clear proof of the map: more than a wrong place ever gives."""
        return self.evidence.confirmed

    @property
    def refuted(self) -> bool:
        """Whether the images are clear proof against the map."""
        return self.evidence.weight >= _ENOUGH and self.mean < self._typical
