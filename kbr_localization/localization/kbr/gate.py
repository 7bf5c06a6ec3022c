"""When an image is worth an update."""

from __future__ import annotations

from kbr_localization.localization.localizer import Localizer
from kbr_localization.se2 import FloatArray
import numpy as np


class UpdateGate:
    """
    Opens after `min_distance` metres of way or `min_angle` radians of turning.

    Images taken nearly at the same place share their errors; counting each as independent makes
    a belief too sure ([PR] section 8.3 and AMCL do the same). Where images are rare the nearest
    one counts: one a little before the way is full, rather than the next, which may come as much
    as a whole step later.
    """

    def __init__(self, min_distance: float, min_angle: float) -> None:
        self.min_distance, self.min_angle = min_distance, min_angle
        self.reopen()

    def reopen(self) -> None:
        """Let the next image in."""
        self._way, self._step = np.full(2, np.inf), np.zeros(2)

    def restart(self) -> None:
        """Start counting again after an update."""
        self._way, self._step = np.zeros(2), np.zeros(2)

    def add(self, increment: FloatArray) -> None:
        """Count the odometry increment (3,) between two images."""
        self._step = _size(increment)
        self._way = self._way + self._step

    def due(self) -> bool:
        """Whether the next image should update the belief."""
        return self._suffices(self._way, self._step)

    def would_be_due(self, increment: FloatArray) -> bool:
        """Whether it would be due after a further increment (3,)."""
        step = _size(increment)
        return self._suffices(self._way + step, step)

    def _suffices(self, way: FloatArray, step: FloatArray) -> bool:
        """Whether a way, at the end of a step, is as near to the wanted one as any will be."""
        wanted = np.array([self.min_distance, self.min_angle])
        return bool(np.any(way + 0.5 * step >= wanted))


class GatedLocalizer(Localizer):
    """A localizer that takes in an image when its `gate` is open."""

    gate: UpdateGate

    def wants_image(self) -> bool:
        """Whether the robot has moved enough since the last update, or there was none."""
        return self.gate.due()

    def wants_image_after(self, odometry_increment: FloatArray) -> bool:
        """Whether the robot will have moved enough after a further increment (3,)."""
        return self.gate.would_be_due(odometry_increment)


def _size(increment: FloatArray) -> FloatArray:
    """Metres and radians (2,) of an increment (3,)."""
    return np.array([np.hypot(increment[0], increment[1]), abs(increment[2])])
