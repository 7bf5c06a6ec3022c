"""When an image is worth an update."""

from __future__ import annotations

from kbr_localization import se2
from kbr_localization.se2 import FloatArray
import numpy as np

_JITTER = 0.1  # of the wanted way: two centimetres of the usual 0.2 m


class UpdateGate:
    """
    Opens after `min_distance` metres of way or `min_angle` radians of turning.

    Images taken nearly at one place share their errors; counting each as independent makes a
    belief too sure ([PR] section 8.3 and AMCL do the same). Where images are rare the nearest one
    counts, which may come a little before the distance is reached.

    A pose that jitters about one place (visual odometry, a Kalman filter) does not move: motion
    counts from `_JITTER` of the wanted distance on. Else a robot that stands still would count one
    view again and again.
    """

    def __init__(self, min_distance: float, min_angle: float) -> None:
        self.wanted = np.array([min_distance, min_angle])
        self.reopen()

    @property
    def metres(self) -> float:
        """Return the way since the last update, or since it was reopened."""
        return float(self._way[0] + _size(self._moved)[0])

    def reopen(self) -> None:
        """Let the next image in."""
        self.restart()
        self._open = True

    def open(self) -> None:  # noqa: A003
        """Let the next image in, whatever the way."""
        self._open = True

    def restart(self) -> None:
        """Start counting again after an update."""
        self._open, self._way, self._step = False, np.zeros(2), np.zeros(2)
        self._moved = np.zeros(3)

    def add(self, increment: FloatArray) -> None:
        """Count the odometry increment (3,) between two images."""
        self._step = _size(increment)
        self._moved = se2.compose(self._moved, increment)
        size = _size(self._moved)
        if np.any(size > _JITTER * self.wanted):
            self._way, self._moved = self._way + size, np.zeros(3)

    def due(self) -> bool:
        """Whether the next image should update the belief."""
        return self._suffices(self._moved, self._step)

    def would_be_due(self, increment: FloatArray) -> bool:
        """Whether it would be due after a further increment (3,)."""
        return self._suffices(se2.compose(self._moved, increment), _size(increment))

    def _suffices(self, moved: FloatArray, step: FloatArray) -> bool:
        """Whether a motion (3,) that ends in a step makes the way as near as any to the wanted."""
        way = self._way + _size(moved)
        return self._open or bool(np.any(way + 0.5 * step >= self.wanted))


def _size(increment: FloatArray) -> FloatArray:
    """Metres and radians (2,) of an increment (3,)."""
    return np.array([np.hypot(increment[0], increment[1]), abs(increment[2])])
