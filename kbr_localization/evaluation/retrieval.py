"""How well the images alone find their place: recall of the k most similar map images."""

from __future__ import annotations

from kbr_localization import se2
from kbr_localization.errors import EvaluationError
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray

RECALL_RANKS = (1, 5, 10)
SAME_PLACE_M = 1.0
SAME_PLACE_DEG = 30.0


def recall_at(
    similarities: FloatArray, map_poses: FloatArray, reference: FloatArray
) -> dict[str, float | int]:
    """
    Fraction of the query images of which one of the k most similar map images is the same place.

    Shapes: (q, n) kernel values, (n, 3), (q, 3). The same place is within `SAME_PLACE_M` and
    `SAME_PLACE_DEG`. Only queries with such a map image count, `recall_frames` of them; raises
    EvaluationError when there is none.
    """
    same_place = _same_place(map_poses, reference)
    possible = np.any(same_place, axis=1)
    if not np.any(possible):
        raise EvaluationError(
            f'recall: no map image lies within {SAME_PLACE_M:g} m and {SAME_PLACE_DEG:g} degrees '
            'of any frame; does the map show the same building in the same frame?'
        )
    ranked = np.argsort(-similarities[possible], axis=1, kind='stable')
    found = np.take_along_axis(same_place[possible], ranked, axis=1)
    recalls = {f'recall_at_{k}': float(np.mean(found[:, :k].any(axis=1))) for k in RECALL_RANKS}
    return {'recall_frames': int(np.count_nonzero(possible)), **recalls}


def _same_place(map_poses: FloatArray, reference: FloatArray) -> NDArray[np.bool_]:
    offset = reference[:, np.newaxis] - map_poses[np.newaxis]
    near = np.hypot(offset[..., 0], offset[..., 1]) <= SAME_PLACE_M
    aligned = np.abs(se2.wrap_angle(offset[..., 2])) <= np.radians(SAME_PLACE_DEG)
    return np.asarray(near & aligned)
