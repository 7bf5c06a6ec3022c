"""Errors of poses, seen from other frames."""

from __future__ import annotations

from kbr_localization import se2
from kbr_localization.se2 import FloatArray
import numpy as np


def turns(heading: FloatArray) -> FloatArray:
    """Rotations (m, 3, 3) of errors of poses by headings (m,)."""
    result = np.zeros((len(heading), 3, 3))
    result[:, 0, 0] = result[:, 1, 1] = np.cos(heading)
    result[:, 1, 0] = np.sin(heading)
    result[:, 0, 1], result[:, 2, 2] = -result[:, 1, 0], 1.0
    return result


def transports(onward: FloatArray) -> FloatArray:
    """Matrices (m, 3, 3) that carry errors before motions (m, 3) to the frames after them."""
    x, y, heading = se2.inverse(onward).T
    result = turns(heading)
    result[:, 0, 2], result[:, 1, 2] = y, -x
    return result
