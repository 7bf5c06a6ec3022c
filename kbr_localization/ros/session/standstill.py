"""How long the odometry has stood still: without a motion, one image does not tell where."""

from __future__ import annotations

import math

from kbr_localization import se2

SECOND = 1_000_000_000
STILL = 0.01
"""Metres and radians within which the odometry stands still."""


class Standstill:
    """
    Follows the odometry at the stamps of images.

    `seconds`: for how long it has stood still.
    """

    def __init__(self) -> None:
        self._since_ns = 0
        self._at: se2.FloatArray | None = None
        self.seconds = 0.0

    def look(self, stamp_ns: int, odometry: se2.FloatArray) -> None:
        """Take in the odometry (3,) at the stamp of an image, as if it was never reset."""
        if self._at is None or stamp_ns < self._since_ns or not _is_still(self._at, odometry):
            self._since_ns, self._at = stamp_ns, odometry
        self.seconds = (stamp_ns - self._since_ns) / SECOND


def _is_still(start: se2.FloatArray, end: se2.FloatArray) -> bool:
    step = se2.between(start, end)
    return math.hypot(step[0], step[1]) <= STILL and abs(float(step[2])) <= STILL
