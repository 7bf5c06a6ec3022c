"""An odometry that stands still while the camera moves: its driver or its sensors have failed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
import math

import cv2
from kbr_localization import se2
from kbr_localization.datasets.frame import Image
from kbr_localization.datasets.multi_camera import MultiImage, one_picture
from kbr_localization.errors import KbrError
import numpy as np

SECOND = 1_000_000_000
PERIOD_NS, APART = SECOND, 3
"""One image in that time is looked at, and compared with the one that was so many before."""
LOOKED_AT, CHANGED = 10, 8
"""Of so many images in a row so many must have changed."""
STILL = 0.01
"""Metres and radians within which the odometry stands still."""
ALIKE = 0.6
"""Correlation of two strips; of images 3 s apart in COLD's corridors 96% have changed by that."""
FLAT = 5.0
"""Grey levels of deviation below which a strip shows nothing."""
ROWS, COLUMNS, STRIPS = 24, 32, 4


class Standstill:
    """
    Looks at an image a second for as long as the odometry does not move.

    `seconds`: for how long the odometry has stood still while the images changed, else 0.
    """

    def __init__(self) -> None:
        self._begin(0, None)

    def _begin(self, stamp_ns: int, odometry: se2.FloatArray | None) -> None:
        self._since_ns, self._at = stamp_ns, odometry
        self._looked_ns = stamp_ns - PERIOD_NS
        self._pictures: deque[np.ndarray] = deque(maxlen=APART + 1)
        self._changed: deque[bool] = deque(maxlen=LOOKED_AT)
        self.seconds = 0.0

    def look(
        self, stamp_ns: int, load: Callable[[], Image | MultiImage], odometry: se2.FloatArray
    ) -> None:
        """Take in an image with the odometry (3,) at its stamp, as if that was never reset."""
        if self._at is None or stamp_ns < self._looked_ns or not _is_still(self._at, odometry):
            self._begin(stamp_ns, odometry)
        if stamp_ns < self._looked_ns + PERIOD_NS:
            return
        self._looked_ns = stamp_ns
        try:
            picture = _strips(one_picture(load()))
        except KbrError:
            return  # counted where it is used
        self._pictures.append(picture)
        if len(self._pictures) > APART:
            self._changed.append(_has_changed(self._pictures[0], picture))
        changed = sum(self._changed) >= CHANGED
        self.seconds = (stamp_ns - self._since_ns) / SECOND if changed else 0.0


def _is_still(start: se2.FloatArray, end: se2.FloatArray) -> bool:
    step = se2.between(start, end)
    return math.hypot(step[0], step[1]) <= STILL and abs(float(step[2])) <= STILL


def _strips(image: Image) -> np.ndarray:
    """Coarse strips (4, n) of length 1 about their means; all that show nothing are alike."""
    size = (COLUMNS, ROWS)
    small = cv2.resize(np.asarray(image, np.float32), size, interpolation=cv2.INTER_AREA)
    grey = small.reshape(ROWS, STRIPS, COLUMNS // STRIPS, -1).mean(axis=3)
    relative = grey.swapaxes(0, 1).reshape(STRIPS, -1)
    relative = relative - relative.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(relative, axis=1, keepdims=True)
    cells = relative.shape[1]
    flat = lengths < FLAT * cells**0.5
    return np.asarray(np.where(flat, cells**-0.5, relative / np.maximum(lengths, 1e-9)))


def _has_changed(before: np.ndarray, after: np.ndarray) -> bool:
    """Whether all strips but one show something else: more than people who pass by cover."""
    alike = np.einsum('ij,ij->i', before, after) >= ALIKE
    return int(np.count_nonzero(alike)) <= 1
