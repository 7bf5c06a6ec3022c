"""How well the images alone find their place: recall of the k most similar map images."""

from __future__ import annotations

from collections.abc import Iterable

from kbr_localization import se2
from kbr_localization.errors import EvaluationError
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray

RECALL_RANKS = (1, 5, 10)
SAME_PLACE_M = 1.0
SAME_PLACE_DEG = 30.0


def recall_at(
    similarities: Iterable[FloatArray], map_poses: FloatArray, reference: FloatArray
) -> dict[str, float | int]:
    """
    Fraction of the query images of which one of the k most similar map images is the same place.

    `similarities`: the kernel values (n,) of each query, one after the other, so that they need
    not be held at once; (n, 3), (q, 3). The same place is within `SAME_PLACE_M` and
    `SAME_PLACE_DEG`. Only queries with such a map image count, `recall_frames` of them; raises
    EvaluationError when there is none.
    """
    ranks = []
    for values, pose in zip(similarities, reference, strict=True):
        same_place = _same_place(map_poses, pose)
        if same_place.any():
            ranks.append(_first_rank(values, same_place))
    if not ranks:
        raise EvaluationError(
            f'recall: no map image lies within {SAME_PLACE_M:g} m and {SAME_PLACE_DEG:g} degrees '
            'of any frame; does the map show the same building in the same frame?'
        )
    recalls = {f'recall_at_{k}': float(np.mean(np.array(ranks) < k)) for k in RECALL_RANKS}
    return {'recall_frames': len(ranks), **recalls}


def _first_rank(values: FloatArray, same_place: NDArray[np.bool_]) -> int:
    """How many images are more similar than the most similar one of the same place."""
    best = values[same_place].max()
    first = int(np.argmax(same_place & (values == best)))
    # of equal values the first counts
    return int(np.count_nonzero(values > best) + np.count_nonzero(values[:first] == best))


def _same_place(map_poses: FloatArray, pose: FloatArray) -> NDArray[np.bool_]:
    offset = pose - map_poses
    near = np.hypot(offset[:, 0], offset[:, 1]) <= SAME_PLACE_M
    aligned = np.abs(se2.wrap_angle(offset[:, 2])) <= np.radians(SAME_PLACE_DEG)
    return np.asarray(near & aligned)
