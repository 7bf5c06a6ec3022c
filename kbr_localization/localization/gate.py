"""When an image is worth an update."""

from __future__ import annotations

from kbr_localization.se2 import FloatArray
import numpy as np

_OVERDUE = 2.0


class UpdateGate:
    """
    Opens after `min_distance` metres of way or `min_angle` radians of turning.

    Images taken nearly at the same place share their errors; counting each as new evidence makes
    a belief too sure ([PR] section 8.3 and AMCL do the same). `share`: of both, that suffices for
    now.
    """

    def __init__(self, min_distance: float, min_angle: float) -> None:
        self.min_distance, self.min_angle = min_distance, min_angle
        self.share = 1.0
        self.reopen()

    def reopen(self) -> None:
        """Let the next image in."""
        self._distance, self._angle = np.inf, np.inf

    def restart(self) -> None:
        """Start counting again after an update."""
        self._distance, self._angle = 0.0, 0.0

    def add(self, increment: FloatArray) -> None:
        """Count an odometry increment (3,)."""
        self._distance += float(np.hypot(increment[0], increment[1]))
        self._angle += abs(float(increment[2]))

    def due(self) -> bool:
        """Whether the next image should update the belief."""
        return self.would_be_due(np.zeros(3))

    def would_be_due(self, increment: FloatArray) -> bool:
        """Whether it would be due after a further increment (3,)."""
        distance = self._distance + float(np.hypot(increment[0], increment[1]))
        angle = self._angle + abs(float(increment[2]))
        enough = distance >= self.share * self.min_distance
        return enough or angle >= self.share * self.min_angle

    def overdue(self) -> bool:
        """Whether the way since the last update is long, so that images seem to be missing."""
        return self._distance >= _OVERDUE * max(
            self.min_distance, 0.1
        ) or self._angle >= _OVERDUE * max(self.min_angle, 0.1)
