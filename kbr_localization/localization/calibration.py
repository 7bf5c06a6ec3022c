"""
How far the spread of a belief can be trusted.

A belief is as narrow as its images are many, not as they are right: neighbouring images err in
the same way. `covariance_scale` makes up for that on a map without gaps, and was measured. Two
things are known of every map and image besides: a map with gaps knows less than the belief says,
and so does one whose images are less like the robot's than like each other, because nobody has
mapped what the camera sees here.
"""

from __future__ import annotations

from kbr_localization.localization.kernel_map import KernelMap
from kbr_localization.localization.observation import ObservationModel
import numpy as np

_LEAST_DENSITY = 0.1
_SAMPLES = 100  # map images that are compared with their neighbours
_APART = 0.8  # k_X of neighbours that count: nearer ones may be almost the same photograph
_USUAL_SHORTFALL = 0.05  # of the best match, behind what map images have with their neighbours
_SHORTFALL_SCALE = 0.04
_LARGEST_EXCESS = 2.15  # a factor of 100
_MEMORY = 0.7


class Calibration:
    """
    The factor on the covariance of a belief, beside the configuration's `covariance_scale`.

    `likeness`: kernel value k_Y that an image of the map usually has with the best of those
    around it, NaN when none has another one around it.
    """

    def __init__(self, kernel_map: KernelMap, observation: ObservationModel) -> None:
        self._gaps = 1.0 / max(observation.density, _LEAST_DENSITY)
        self.likeness = _likeness(kernel_map, observation)
        self.forget()

    def forget(self) -> None:
        """Let no image have been seen."""
        self._shortfall: float | None = None

    def see(self, best: float) -> None:
        """Take in the value (k_Y) of the map image that is most like the robot's."""
        shortfall = self.likeness - best
        before = shortfall if self._shortfall is None else self._shortfall
        self._shortfall = _MEMORY * before + (1.0 - _MEMORY) * shortfall

    @property
    def widening(self) -> float:
        """Return the factor, at least 1."""
        shortfall = self._shortfall
        if shortfall is None or not np.isfinite(shortfall):
            return self._gaps
        excess = max(0.0, shortfall - _USUAL_SHORTFALL) / _SHORTFALL_SCALE
        return float(self._gaps * np.exp(min(excess, _LARGEST_EXCESS) ** 2))


def _likeness(kernel_map: KernelMap, observation: ObservationModel) -> float:
    """Median over a sample of the map's images of the best value in their neighbourhoods."""
    found = []
    for index in range(0, len(kernel_map), max(1, len(kernel_map) // _SAMPLES)):
        pose = kernel_map.poses[[index]]
        near = observation.in_reach(pose)
        near = near[observation.kernel.cross_gram(pose, kernel_map.poses[near])[0] <= _APART]
        if near.size:
            image = kernel_map.descriptors[[index]]
            row = kernel_map.describer.cross_gram(image, kernel_map.descriptors[near])
            found.append(float(row.max()))
    return float(np.median(found)) if found else float('nan')
