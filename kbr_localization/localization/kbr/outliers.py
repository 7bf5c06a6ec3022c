"""
How likely an image is to say nothing about the pose.

On a map with gaps most of such images show a place that nobody has mapped. Their best match is
somewhere else, not as good as that of a place which the map knows, and hardly better than matches
at other places (the ratio test of Lowe, 2004, section 7.1, asks the same of local features). Both
count relative to what is usual in the run, so that light which makes all images less like the map
changes nothing. The odds that the true pose explains an image are exponential in both. Even odds
lie lower on a map with larger gaps, where a good match is rare. A map without gaps explains what
it is shown: there the rate does not change, and a robot that was carried away is noticed sooner.
"""

from __future__ import annotations

from kbr_localization.localization.config import FilterConfig
from kbr_localization.localization.kbr.map_density import LEAST_DENSITY
from kbr_localization.localization.kbr.observation import ObservationModel
from kbr_localization.localization.map.similarity import Similarity
import numpy as np

_ELSEWHERE = 1.5  # from the best match, as a multiple of `localized_radius`
_USUAL = -0.05  # doubt before an image has been seen
_PRIOR = 3.0  # images that this counts for
_MEMORY = 50.0  # images after which what is usual may have changed
_MOST_USUAL = 0.3  # doubt: light takes no more from images, other things do
_EVEN, _EVEN_PER_DENSITY = -0.08, 0.175  # beyond the usual doubt: the configuration's rate
_SCARCE = 0.5  # of the map is gaps: from here on the odds change less
_LARGEST = 1.0  # rate: as much as the best place on the map gains
_LARGEST_EXCESS = 50.0


class OutlierRate:
    """The configuration's `outlier_rate`, changed by how good the best match of an image is."""

    def __init__(self, observation: ObservationModel, config: FilterConfig) -> None:
        self.observation, self.config = observation, config
        self.forget()

    def forget(self) -> None:
        """Let no image have been seen."""
        self._usual, self._seen = _USUAL, _PRIOR

    def take_in(self, similarity: Similarity) -> float:
        """Return the rate for an image, and count the image among the usual ones."""
        rate, growth = self.config.outlier_rate, self.config.outlier_growth
        if growth == 0.0 or np.isnan(self.observation.likeness):
            return rate
        doubt, usual = self._doubt(similarity), self._usual
        self._seen = min(self._seen + 1.0, _MEMORY)
        self._usual = min(usual + (doubt - usual) / self._seen, _MOST_USUAL)
        density = max(self.observation.density, LEAST_DENSITY)
        growth *= min(1.0, (1.0 - density) / _SCARCE)
        excess = growth * (doubt - usual - _EVEN - _EVEN_PER_DENSITY * density)
        changed = rate * max(density, float(np.exp(min(excess, _LARGEST_EXCESS))))
        return min(changed, max(rate, _LARGEST))

    def _doubt(self, similarity: Similarity) -> float:
        """How far the best match stays behind the map's own, less its lead over other places."""
        shortfall = self.observation.shortfall(self.observation.whole_best(similarity))
        values = similarity.at(similarity.candidates)
        places = self.observation.poses[similarity.candidates, :2]
        distance = np.hypot(*(places - places[np.argmax(values)]).T)
        apart = distance > _ELSEWHERE * self.config.localized_radius
        if not apart.any():
            # a small map, where there is no other place, or candidates that are all at one
            whole = len(values) == similarity.size
            return shortfall if whole else shortfall - float(np.ptp(values))
        return shortfall - float(values.max() - values[apart].max())
