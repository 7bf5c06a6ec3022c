"""How place recognition is reported, of images alone and of filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kbr_localization.evaluation import reference_trajectory, run_errors
from kbr_localization.evaluation.described import DescribedRun
from kbr_localization.evaluation.metrics import RunErrors
from kbr_localization.localization.localizer import sigma_region
from kbr_localization.trajectory import Trajectory
import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

RANKS = (1, 5, 10)
SETTLED_M = 5.0
"""Metres after which what is said of being localized counts."""


def recalls(similarity: FloatArray, distance: FloatArray, tolerance: float) -> list[float]:
    """
    Fraction of the images of which one of the 1, 5, 10 most similar map images is the same place.

    `similarity`, `distance`: (q, n). The same place is within `tolerance`; an image without such
    a map image does not count.
    """
    order = np.argsort(-similarity, axis=1, kind='stable')
    right = np.take_along_axis(distance <= tolerance, order, axis=1)
    right = right[right.any(axis=1)]
    return [float(right[:, :rank].any(axis=1).mean()) for rank in RANKS]


def area_under_precision_recall(
    similarity: FloatArray, distance: FloatArray, tolerance: float, score: FloatArray | None = None
) -> float:
    """
    Area under the curve of precision over recall of the best matches, as their score is lowered.

    `score`: (q,) how sure each best match is, by default its similarity. The recall is over the
    images that have a map image within `tolerance`.
    """
    best = similarity.argmax(axis=1)
    sure = similarity.max(axis=1) if score is None else score
    order = np.argsort(-sure, kind='stable')
    right = np.take_along_axis(distance, best[:, np.newaxis], axis=1)[order, 0] <= tolerance
    found = np.cumsum(right)
    precision = found / np.arange(1, len(right) + 1)
    relevant = np.sum((distance <= tolerance).any(axis=1))
    return float(np.sum(precision[right]) / max(relevant, 1))


def statuses_at(errors: RunErrors, trajectory: Trajectory) -> NDArray[np.str_]:
    """Statuses (n,) of the estimates at the frames of a run; empty where there is none."""
    return np.array([*trajectory.statuses, ''])[errors.estimate]


def answers(run: DescribedRun, trajectory: Trajectory, right_m: float) -> dict[str, float]:
    """
    Score a localized run.

    `right`: fraction of the frames within `right_m` metres. `said`: fraction of these that are
    called localized. `wrong`: fraction of those called localized that are not right, after
    `SETTLED_M` metres. `misled`: fraction of all frames after these that are called localized and
    not right. `covered`: fraction of those called localized whose truth is inside of 2 sigma. NaN
    where there is no such frame.
    """
    errors = run_errors(reference_trajectory(run), trajectory)
    said = statuses_at(errors, trajectory) == 'localized'
    right = errors.position_m <= right_m
    late = errors.travel_m > SETTLED_M
    surprise = errors.position_surprise[said & np.isfinite(errors.position_surprise)]
    return {
        'right': float(right.mean()),
        'said': _mean(said[right]),
        'wrong': _mean(~right[said & late]),
        'misled': _mean((said & ~right)[late]),
        'covered': _mean(surprise <= sigma_region(2.0, 2)),
    }


def mean_of(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means over runs by name, of those that have the number."""
    return {
        name: _mean(np.array([row[name] for row in rows if np.isfinite(row[name])]))
        for name in rows[0]
    }


def _mean(values: NDArray[Any]) -> float:
    return float(np.mean(values)) if values.size else float('nan')
