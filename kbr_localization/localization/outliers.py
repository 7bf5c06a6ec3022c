"""
How likely an image is to say nothing about the pose.

On a map with gaps most of such images show a place that nobody has mapped. Their best match is
somewhere else, and it is not as good as the best match of a place that the map knows: whether the
true pose explains an image is a matter of how far that match stays behind what images of the map
have with their neighbours. Even odds lie lower on a map with larger gaps, where a good match is
rare, and from there the odds change exponentially. A map without gaps explains what it is shown,
so there the rate does not change.
"""

from __future__ import annotations

from kbr_localization.localization.config import FilterConfig
from kbr_localization.localization.observation import ObservationModel
import numpy as np

_USUAL = -0.02  # shortfall of an image before any has been seen
_PRIOR = 3.0  # images that this counts for
_MEMORY = 50.0  # images after which what is usual may have changed
_EVEN, _EVEN_PER_DENSITY = -0.08, 0.175  # beyond the usual shortfall: the configuration's rate
_LARGEST = 1.0  # rate: as much as the best place on the map gains
_LARGEST_EXCESS = 50.0
_LEAST_DENSITY = 0.1


class OutlierRate:
    """The configuration's `outlier_rate`, changed by how good the best match of an image is."""

    def __init__(self, observation: ObservationModel, config: FilterConfig) -> None:
        self.observation, self.config = observation, config
        self.forget()

    def forget(self) -> None:
        """Let no image have been seen."""
        self._usual, self._seen = _USUAL, _PRIOR

    def see(self, best: float) -> None:
        """Take in the value (k_Y) of the map image that is most like the robot's."""
        self._seen = min(self._seen + 1.0, _MEMORY)
        self._usual += (self.observation.shortfall(best) - self._usual) / self._seen

    def of(self, best: float) -> float:
        """Return the rate for an image whose best match has that value (k_Y)."""
        usual, growth = self.config.outlier_rate, self.config.outlier_growth
        if growth == 0.0 or np.isnan(self.observation.likeness):
            return usual
        density = max(min(1.0, self.observation.density), _LEAST_DENSITY)
        even = self._usual + _EVEN + _EVEN_PER_DENSITY * density
        excess = growth * (self.observation.shortfall(best) - even)
        changed = usual * max(density, float(np.exp(min(excess, _LARGEST_EXCESS))))
        return min(changed, max(usual, _LARGEST))
