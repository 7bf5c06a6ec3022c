"""How far apart the runs of a map pass the same place."""

from __future__ import annotations

from collections.abc import Iterable

from kbr_localization import se2
from kbr_localization.localization.kbr.belief import OTHER_WAY
from kbr_localization.localization.kbr.pose_search import Indices
from kbr_localization.localization.map.kernel_map import KernelMap
import numpy as np


def cross_track(
    kernel_map: KernelMap, places: Iterable[tuple[int, Indices]], reach: float
) -> float:
    """
    Return the root mean square of the metres across between two runs that pass a place.

    Of each place, an image's index with the indices (k,) of those about it, the nearest image of
    another run counts that faces as it does and lies within `reach` metres. 0 without any.
    """
    poses, runs = kernel_map.poses, kernel_map.run_index
    squares = []
    for index, near in places:
        offsets = se2.between(poses[index], poses[near[runs[near] != runs[index]]])
        offsets = offsets[np.abs(offsets[:, 2]) < OTHER_WAY]
        distances = np.hypot(*offsets[:, :2].T)
        if distances.size and distances.min() < reach:
            along, aside, turn = offsets[np.argmin(distances)]
            # across the direction in between: two places of one bend have nothing across
            squares.append((aside * np.cos(0.5 * turn) - along * np.sin(0.5 * turn)) ** 2)
    return float(np.sqrt(np.mean(squares))) if squares else 0.0
