"""
How far the spread of a belief can be trusted.

A belief is as narrow as its images are many, not as they are right: neighbouring images err in
the same way. `covariance_scale` makes up for that on a map without gaps, and was measured. Two
things are known of every map and image besides: a map with gaps knows less than the belief says,
and so does one whose images are less like the robot's than like each other, because nobody has
mapped what the camera sees here.
"""

from __future__ import annotations

from kbr_localization.localization.kbr.map_density import LEAST_DENSITY
from kbr_localization.localization.kbr.observation import ObservationModel
import numpy as np

_DENSITY_POWER = 0.5
_USUAL_SHORTFALL = -0.027  # of the best match, behind what map images have with their neighbours
_SHORTFALL_SCALE = 0.03
_LARGEST_EXCESS = 4.6  # a factor of 100
_MEMORY = 0.7


class Calibration:
    """The factor on the covariance of a belief, beside the configuration's `covariance_scale`."""

    def __init__(self, observation: ObservationModel) -> None:
        self.observation = observation
        self.forget()

    def forget(self) -> None:
        """Let no image have been seen."""
        self._best: float | None = None

    def see(self, best: float) -> None:
        """Take in the value (k_Y) of the map image that is most like the robot's."""
        before = best if self._best is None else self._best
        self._best = _MEMORY * before + (1.0 - _MEMORY) * best

    @property
    def widening(self) -> float:
        """Return the factor, at least 1."""
        gaps = float(max(self.observation.density, LEAST_DENSITY) ** -_DENSITY_POWER)
        if self._best is None:
            return gaps
        shortfall = self.observation.shortfall(self._best)
        excess = max(0.0, shortfall - _USUAL_SHORTFALL) / _SHORTFALL_SCALE
        return float(gaps * np.exp(min(excess, _LARGEST_EXCESS)))
