"""From frames of runs to a map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
from kbr_localization import se2
from kbr_localization.datasets import Dataset, Frame
from kbr_localization.errors import DatasetError, MapError, VisionError
from kbr_localization.localization.config import FilterConfig, sensible_config
from kbr_localization.localization.kernel_map import KernelMap
from kbr_localization.localization.motion import estimate_noise
from kbr_localization.progress import Progress, silent
from kbr_localization.se2 import FloatArray
from kbr_localization.vision import Describer, fit_describer, VisionConfig
import numpy as np

_VOCABULARY_IMAGES = 200
_THUMBNAIL_WIDTH = 160


@dataclass(frozen=True)
class _Candidate:
    """A frame that may enter the map, with what leads to the next one of its run."""

    frame: Frame
    run: int
    control: FloatArray
    next_pose: FloatArray

    @property
    def pose(self) -> FloatArray:
        assert self.frame.reference is not None
        return self.frame.reference


def build_map(
    datasets: Sequence[Dataset],
    vision: VisionConfig | None = None,
    filter_config: FilterConfig | None = None,
    max_images: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> KernelMap:
    """
    Build a map from runs with reference poses.

    `max_images` keeps that many images, chosen to cover the runs. An image that cannot be read is
    left out and counted in its dataset's `skipped`. `progress` is called with what is being done,
    the steps done and their number. Raises MapError when no image is left.
    """
    rng = np.random.default_rng(seed)
    report = progress or silent
    chosen = _choose(_candidates(datasets), max_images, rng)
    describer = _fit(chosen, vision or VisionConfig(), rng, report)
    kept, descriptors, thumbnails = _describe(chosen, describer, datasets, report)
    poses = np.array([c.pose for c in kept])
    noise = estimate_noise([_track(dataset) for dataset in datasets])
    return KernelMap(
        poses=poses,
        descriptors=np.array(descriptors),
        stamps_ns=np.array([c.frame.stamp_ns for c in kept], dtype=np.int64),
        run_index=np.array([c.run for c in kept], dtype=np.int32),
        run_names=tuple(dataset.name for dataset in datasets),
        describer=describer,
        image_shape=kept[0].frame.load_image().shape[:2],
        controls=np.array([c.control for c in kept]),
        next_poses=np.array([c.next_pose for c in kept]),
        filter_config=filter_config or sensible_config(poses),
        motion_noise=noise,
        thumbnails=tuple(thumbnails),
    )


def cover(poses: FloatArray, count: int, rng: np.random.Generator) -> np.ndarray:
    """
    Choose poses that cover all of them: each next one is the farthest from those chosen.

    The distance is that of (x, y, cos, sin). Shapes: (n, 3) -> (min(count, n),) sorted indices.
    """
    if count >= len(poses):
        return np.arange(len(poses))
    points = se2.to_plane_and_circle(poses)
    chosen = [int(rng.integers(len(points)))]
    distance = np.sum((points - points[chosen[0]]) ** 2, axis=1)
    while len(chosen) < count:
        chosen.append(int(np.argmax(distance)))
        distance = np.minimum(distance, np.sum((points - points[chosen[-1]]) ** 2, axis=1))
    return np.sort(chosen)


def _candidates(datasets: Sequence[Dataset]) -> list[_Candidate]:
    found: list[_Candidate] = []
    for run, dataset in enumerate(datasets):
        frames = [frame for frame in dataset if frame.reference is not None]
        for frame, following in zip(frames, [*frames[1:], None], strict=False):
            found.append(_candidate(run, frame, following))
    if not found:
        names = ', '.join(dataset.name for dataset in datasets) or 'no runs'
        raise MapError(f'no image with a reference pose in {names}: nothing to build a map from')
    return found


def _candidate(run: int, frame: Frame, following: Frame | None) -> _Candidate:
    nowhere = np.full(3, np.nan)
    if following is None or following.reference is None:
        return _Candidate(frame, run, nowhere, nowhere)
    control = se2.between(frame.odometry, following.odometry)
    return _Candidate(frame, run, control, following.reference)


def _choose(
    candidates: list[_Candidate], max_images: int | None, rng: np.random.Generator
) -> list[_Candidate]:
    if max_images is None:
        return candidates
    if max_images < 1:
        raise MapError(f'max_images: expected at least 1, got {max_images}')
    chosen = cover(np.array([c.pose for c in candidates]), max_images, rng)
    return [candidates[index] for index in chosen]


def _fit(
    candidates: list[_Candidate], vision: VisionConfig, rng: np.random.Generator, report: Progress
) -> Describer:
    spread = np.linspace(0, len(candidates) - 1, min(len(candidates), _VOCABULARY_IMAGES))
    images = []
    for done, index in enumerate(np.unique(spread.astype(int)), start=1):
        report('reading images for the vocabulary', done, len(spread))
        try:
            images.append(candidates[index].frame.load_image())
        except DatasetError:
            continue  # counted when it is described
    report('learning the vocabulary', 0, 1)
    describer = fit_describer(vision, images, rng)
    report('learning the vocabulary', 1, 1)
    return describer


def _describe(
    candidates: list[_Candidate],
    describer: Describer,
    datasets: Sequence[Dataset],
    report: Progress,
) -> tuple[list[_Candidate], list[np.ndarray], list[bytes]]:
    kept, descriptors, thumbnails = [], [], []
    for done, candidate in enumerate(candidates, start=1):
        report('describing images', done, len(candidates))
        try:
            image = candidate.frame.load_image()
            descriptors.append(describer.describe(image))
        except (DatasetError, VisionError) as error:
            skipped = datasets[candidate.run].skipped
            reason = 'broken image' if isinstance(error, DatasetError) else 'unusable image'
            skipped[reason] = skipped.get(reason, 0) + 1
            continue
        kept.append(candidate)
        thumbnails.append(_thumbnail(image))
    if not kept:
        raise MapError('none of the images can be used: check the runs, or the size of the images')
    return kept, descriptors, thumbnails


def _thumbnail(image: np.ndarray) -> bytes:
    height = max(1, round(image.shape[0] * _THUMBNAIL_WIDTH / image.shape[1]))
    small = cv2.resize(image, (_THUMBNAIL_WIDTH, height), interpolation=cv2.INTER_AREA)
    return bytes(cv2.imencode('.jpg', small)[1])


def _track(dataset: Dataset) -> tuple[FloatArray, FloatArray]:
    frames = [frame for frame in dataset if frame.reference is not None]
    odometry = np.array([frame.odometry for frame in frames]).reshape(-1, 3)
    reference = np.array([frame.reference for frame in frames]).reshape(-1, 3)
    return odometry, reference
