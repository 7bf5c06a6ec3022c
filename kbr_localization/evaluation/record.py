"""A localized run with everything that one may want to look at afterwards."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from kbr_localization.datasets import Dataset, Frame
from kbr_localization.datasets.images import decode_image
from kbr_localization.datasets.multi_camera import one_picture
from kbr_localization.errors import DatasetError, VisionError
from kbr_localization.evaluation.metrics import (
    reference_trajectory,
    run_errors,
    RunErrors,
    THRESHOLDS,
)
from kbr_localization.localization.localizer import Localizer, PoseEstimate
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.pipeline import localize
from kbr_localization.progress import Progress, silent
from kbr_localization.se2 import FloatArray
from kbr_localization.trajectory import Trajectory
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ImagePair:
    """
    A frame of a run and the map image that is most similar to it.

    `frame`, `match`: grey or BGR images; the match is the map's thumbnail, None in a map without.
    `pose`: (3,) true pose of the frame, or None. `map_pose`: (3,) of the match. `similarity`:
    their kernel value.
    """

    frame: NDArray[np.uint8]
    match: NDArray[np.uint8] | None
    pose: FloatArray | None
    map_pose: FloatArray
    similarity: float

    @property
    def distance_m(self) -> float:
        """Distance of the match from the frame's true position; NaN where that is unknown."""
        if self.pose is None:
            return float('nan')
        return float(np.hypot(*(self.pose - self.map_pose)[:2]))


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
    report = progress or silent
    beliefs: list[FloatArray] = []
    reasons: list[dict[str, float]] = []

    def observe(localizer: Localizer, estimate: PoseEstimate) -> None:
        beliefs.append(localizer.particles(60))
        reasons.append(dict(estimate.diagnostics))

    trajectory = localize(kernel_map, dataset, method, init, seed, report, observe)
    reference = reference_trajectory(dataset)
    errors = run_errors(reference, trajectory) if len(reference) else None
    worst = _worst(errors, [frame.stamp_ns for frame in dataset])
    spread = np.linspace(0, len(dataset) - 1, min(60, len(dataset))).round().astype(int)
    pictured, pairs = sorted({*spread.tolist(), *worst}), {}
    for done, number in enumerate(pictured, start=1):
        with suppress(DatasetError, VisionError):  # a broken image has no picture
            pairs[number] = best_match(kernel_map, dataset[number])
        report('looking up best matches', done, len(pictured))
    return RunRecord(
        kernel_map,
        dataset,
        method,
        trajectory,
        reference,
        errors,
        tuple(beliefs),
        tuple(reasons),
        pairs,
        worst,
    )


def best_match(kernel_map: KernelMap, frame: Frame) -> ImagePair:
    """Compare a frame with all of the map; raises what reading and describing it raise."""
    image = frame.load_image()
    index, similarity = kernel_map.best_match(kernel_map.describer.describe(image))
    match = None
    if kernel_map.thumbnails:
        match = decode_image(kernel_map.thumbnails[index], f'{index} of the map')
    pose = kernel_map.poses[index]
    return ImagePair(one_picture(image), match, frame.reference, pose, similarity)


def _worst(errors: RunErrors | None, stamps_ns: list[int]) -> tuple[int, ...]:
    """Return the worst frame and up to 11 others that are not good and 5 or more frames apart."""
    if errors is None:
        return ()
    number = {stamp: index for index, stamp in enumerate(stamps_ns)}
    chosen: list[int] = []
    for entry in np.argsort(-errors.position_m, kind='stable'):
        good = errors.position_m[entry] <= THRESHOLDS[0][0]
        if len(chosen) == 12 or (chosen and good):
            break
        frame = number[int(errors.stamps_ns[entry])]
        if all(abs(frame - other) >= 5 for other in chosen):
            chosen.append(frame)
    return tuple(chosen)
