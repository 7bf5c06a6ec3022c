"""Runs of several cameras: at each moment one image of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
import itertools
from typing import Any

import cv2
from kbr_localization.datasets.frame import Dataset, Frame, Image, OdometryTrack
from kbr_localization.datasets.synchronizer import Synchronizer, TOLERANCE
from kbr_localization.errors import DatasetError
import numpy as np

Source = Image | Callable[[], Image]


class MultiImage(tuple[Image | None, ...]):
    """One image for each camera at one moment, None for a camera that has none."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first camera's image."""
        return next(image.shape for image in self if image is not None)

    def side_by_side(self) -> Image:
        """Return all images in one, as high as the first: BGR, or grey where all are grey."""
        present = [image for image in self if image is not None]
        colour = any(image.ndim == 3 for image in present)
        height = present[0].shape[0]
        parts = [_as_high_as(_in_colour(image) if colour else image, height) for image in present]
        return np.asarray(np.concatenate(parts, axis=1), dtype=np.uint8)


@dataclass(frozen=True)
class LazyImages:
    """Images of one moment that are loaded when asked for: one source for each camera, or None."""

    sources: tuple[Source | None, ...]

    def __call__(self) -> Any:
        """
        Load a `MultiImage`; a camera whose image is broken has none.

        Raises the first DatasetError when no image can be read.
        """
        errors, images = list[DatasetError](), list[Image | None]()
        for source in self.sources:
            try:
                images.append(source() if callable(source) else source)
            except DatasetError as error:
                errors.append(error)
                images.append(None)
        if all(image is None for image in images):
            raise errors[0] if errors else DatasetError('no camera has an image')
        return MultiImage(images)

    def of_camera(self, index: int) -> Source | None:
        """Return the source of one camera's image, None where there is none."""
        return self.sources[index]


class MultiCameraRun(Dataset):
    """
    A run of several cameras, made of a run for each: a dataset whose images are `MultiImage`s.

    `cameras`: their names. `runs`: in the same order; odometry and reference poses are those of
    the first one. Images belong together when their stamps differ by at most `tolerance` seconds;
    a camera that falls silent for a second is left out until it sends again. `sources`: what the
    runs say of the topics that they use. `skipped` counts what the runs left out, and the images
    that found no others. Raises DatasetError when no images belong together.
    """

    def __init__(
        self, cameras: Sequence[str], runs: Sequence[Dataset], tolerance: float = TOLERANCE
    ) -> None:
        self.cameras, self._runs = tuple(cameras), tuple(runs)
        self.name, self.odometry = runs[0].name, runs[0].odometry
        parts = (run.sources for run in runs)
        self.sources = tuple(dict.fromkeys(itertools.chain(*zip(*parts, strict=True))))
        self.notes, self.reference_frame = runs[0].notes, runs[0].reference_frame
        self._sets, dropped = _matched(self.cameras, self._runs, tolerance)
        self.skipped = {
            f'{camera}: {reason}': count
            for camera, run in zip(cameras, runs, strict=True)
            for reason, count in run.skipped.items()
        } | dropped
        if not any(None not in indices for indices in self._sets):
            raise DatasetError(
                f'{self.name}: no images of {", ".join(cameras)} within {tolerance} s of each '
                'other: are their stamps of one clock?'
            )

    @property
    def fixes(self) -> OdometryTrack | None:
        """Return the known poses of the first run, or None."""
        return self._runs[0].fixes

    def __len__(self) -> int:
        """Count the frames."""
        return len(self._sets)

    def __getitem__(self, index: int) -> Frame:
        """Return one frame; its images are read when asked for."""
        frames = [
            None if at is None else run[at]
            for run, at in zip(self._runs, self._sets[index], strict=True)
        ]
        first = next(frame for frame in frames if frame is not None)
        images = LazyImages(tuple(None if frame is None else frame.image for frame in frames))
        return replace(first, image=images)


def one_picture(image: Image | MultiImage) -> Image:
    """Return an image, those of several cameras side by side."""
    return image.side_by_side() if isinstance(image, MultiImage) else image


def sources_of(frame: Frame) -> tuple[Source | None, ...]:
    """Return the images of a frame, or what loads them: one for each camera, None for none."""
    return frame.image.sources if isinstance(frame.image, LazyImages) else (frame.image,)


def _matched(
    cameras: tuple[str, ...], runs: tuple[Dataset, ...], tolerance: float
) -> tuple[list[tuple[int | None, ...]], dict[str, int]]:
    """Find the frames that belong together by their indices; count the others by reason."""
    synchronizer: Synchronizer[int] = Synchronizer(cameras, tolerance)
    arrivals = sorted(
        (run[index].stamp_ns, camera, index)
        for camera, run in enumerate(runs)
        for index in range(len(run))
    )
    sets = []
    for stamp_ns, camera, index in arrivals:
        sets += synchronizer.add(camera, stamp_ns, index)
    sets += synchronizer.finish()
    return [indices for _, indices in sets], dict(synchronizer.dropped)


def _in_colour(image: Image) -> Image:
    if image.ndim == 3 and image.shape[2] == 3:
        return image
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_GRAY2BGR), dtype=np.uint8)


def _as_high_as(image: Image, height: int) -> Image:
    width = max(1, round(image.shape[1] * height / image.shape[0]))
    return np.asarray(cv2.resize(image, (width, height)), dtype=np.uint8)
