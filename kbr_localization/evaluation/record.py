"""A run with everything that one may want to look at afterwards."""

from __future__ import annotations

from dataclasses import dataclass

from kbr_localization.datasets import Dataset
from kbr_localization.errors import DatasetError, VisionError
from kbr_localization.evaluation.association import reference_trajectory
from kbr_localization.evaluation.matches import best_match, ImagePair
from kbr_localization.evaluation.metrics import run_errors, RunErrors, THRESHOLDS
from kbr_localization.localization.localizer import Localizer, PoseEstimate
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.pipeline import localize
from kbr_localization.progress import Progress
from kbr_localization.se2 import FloatArray
from kbr_localization.trajectory import Trajectory
import numpy as np

BELIEF_POINTS = 60
PICTURED = 60
"""Frames with pictures, spread over the run."""
WORST, GOOD_M = 12, THRESHOLDS[0][0]
WORST_APART = 5
"""Frames between two of the worst ones, which would otherwise all show one place."""


@dataclass(frozen=True)
class RunRecord:
    """
    A localized run.

    `errors`: None for a run without reference poses. `beliefs`: for every frame, poses (k, 3)
    drawn from the belief, for localizers that have one. `reasons`: for every frame, the numbers
    behind the status. `pairs`: images by frame number. `worst`: numbers of the frame with the
    largest error and of others that are not good, apart from each other.
    """

    kernel_map: KernelMap
    dataset: Dataset
    method: str
    trajectory: Trajectory
    reference: Trajectory
    errors: RunErrors | None
    beliefs: tuple[FloatArray, ...]
    reasons: tuple[dict[str, float], ...]
    pairs: dict[int, ImagePair]
    worst: tuple[int, ...]


def record_run(
    kernel_map: KernelMap,
    dataset: Dataset,
    method: str = 'kbr',
    init: str = 'global',
    seed: int = 0,
    progress: Progress | None = None,
) -> RunRecord:
    """Localize a run and keep what happened; raises what `localize` raises."""
    beliefs: list[FloatArray] = []
    reasons: list[dict[str, float]] = []

    def observe(localizer: Localizer, estimate: PoseEstimate) -> None:
        beliefs.append(localizer.particles(BELIEF_POINTS))
        reasons.append(dict(estimate.diagnostics))

    trajectory = localize(kernel_map, dataset, method, init, seed, progress, observe)
    reference = reference_trajectory(dataset)
    errors = run_errors(reference, trajectory) if len(reference) else None
    worst = _worst(errors, [frame.stamp_ns for frame in dataset])
    spread = np.linspace(0, len(dataset) - 1, min(PICTURED, len(dataset))).round().astype(int)
    pictured = sorted({*spread.tolist(), *worst})
    return RunRecord(
        kernel_map,
        dataset,
        method,
        trajectory,
        reference,
        errors,
        tuple(beliefs),
        tuple(reasons),
        _pairs(kernel_map, dataset, pictured, progress),
        worst,
    )


def _worst(errors: RunErrors | None, stamps_ns: list[int]) -> tuple[int, ...]:
    """Return the numbers of the worst frame and of others that are not good, the worst first."""
    if errors is None:
        return ()
    number = {stamp: index for index, stamp in enumerate(stamps_ns)}
    chosen: list[int] = []
    for entry in np.argsort(-errors.position_m, kind='stable'):
        if chosen and errors.position_m[entry] <= GOOD_M:
            break
        frame = number[int(errors.stamps_ns[entry])]
        if all(abs(frame - other) >= WORST_APART for other in chosen):
            chosen.append(frame)
        if len(chosen) == WORST:
            break
    return tuple(chosen)


def _pairs(
    kernel_map: KernelMap, dataset: Dataset, frames: list[int], progress: Progress | None
) -> dict[int, ImagePair]:
    pairs = {}
    for done, number in enumerate(frames, start=1):
        try:
            pairs[number] = best_match(kernel_map, dataset[number])
        except (DatasetError, VisionError):
            continue  # a broken image has no picture
        if progress is not None:
            progress('looking up best matches', done, len(frames))
    return pairs
