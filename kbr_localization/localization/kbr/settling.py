"""
How the points of a start find their place.

Points drawn all over a map are few at any one place. Images leave the best of these, and all that
descend from it are where it happened to be, which may be half a metre off; noise of the size that
odometry has would take them tens of metres of way to the truth. So they are spread anew before
each update, as a kernel density would be drawn from (the regularised particle filter of Musso,
Oudjane and Le Gland, 2001), and less with each update once the filter is sure of the place.
"""

from __future__ import annotations

from kbr_localization.localization.config import FilterConfig
from kbr_localization.se2 import FloatArray
import numpy as np

_CALMING = 0.85  # of the spread, from update to update
_CALM = 0.05  # of it: no more is spread


class Settling:
    """The spread of the points after a start, in bandwidths of k_X."""

    def __init__(self, config: FilterConfig) -> None:
        h, a = config.position_bandwidth, config.heading_bandwidth
        self._most = config.start_spread * np.array([h, h, a])
        self.stop()

    def begin(self) -> None:
        """Spread the points from now on: they were drawn from an image."""
        self._share = 1.0

    def stop(self) -> None:
        """Spread them no more, as after a pose that somebody gave."""
        self._share = 0.0

    def calm(self) -> None:
        """Spread them less: an update left the belief at one place."""
        self._share = self._share * _CALMING if self._share > _CALM else 0.0

    @property
    def variances(self) -> FloatArray:
        """Return the variances along, across and in heading (3,): zero for a settled belief."""
        return np.asarray((self._share * self._most) ** 2)
