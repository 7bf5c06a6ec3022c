"""Read and describe many images, by workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
import functools
import time
from typing import Any
import uuid

import cv2
from kbr_localization import conversions
from kbr_localization.datasets.multi_camera import one_picture
from kbr_localization.errors import DatasetError, VisionError
from kbr_localization.vision import Describer, describer_from_state
from kbr_localization.vision.preparation import LoadableImage
from kbr_localization.workers import gathered, shrinking_batches, Workers
import numpy as np

THUMBNAIL_WIDTH = 160
_BATCH = 64  # images of a task: few enough for a bar that moves, many enough to hand over


@dataclass(frozen=True)
class DescribedImage:
    """
    What became of an image.

    `descriptor` (d,), or None with the `error` that says why. `thumbnail`: a JPEG file, empty
    unless wanted. `shape`: (height, width). `seconds`: time that reading and describing took.
    `converted`: names and kinds of what was converted to be read, see `conversions`.
    """

    descriptor: np.ndarray | None
    shape: tuple[int, ...] = ()
    thumbnail: bytes = b''
    seconds: float = 0.0
    error: DatasetError | VisionError | None = None
    converted: tuple[tuple[str, str], ...] = ()


class SentDescriber:
    """A describer that can go to other processes; each makes it once, of its state."""

    _known: dict[str, Describer] = {}  # noqa: RUF012

    def __init__(self, describer: Describer) -> None:
        self.describer = describer
        self._name = uuid.uuid4().hex

    def __getstate__(self) -> tuple[str, dict[str, Any]]:
        return self._name, dict(self.describer.state())

    def __setstate__(self, state: tuple[str, dict[str, Any]]) -> None:
        self._name, values = state
        if self._name not in self._known:
            self._known.clear()  # whatever was sent before is done with
            self._known[self._name] = describer_from_state(values)
        self.describer = self._known[self._name]


def describe_images(
    describer: Describer,
    images: Sequence[LoadableImage],
    workers: Workers,
    report: Callable[[int, int], None],
    thumbnails: bool = False,
) -> list[DescribedImage]:
    """
    Describe images, or what functions load, in their order; a bad one has an error.

    `report` is called with the images done and their number.
    """
    tasks = shrinking_batches(images, _BATCH, workers.jobs)
    work = functools.partial(_describe_all, SentDescriber(describer), thumbnails)
    described: list[DescribedImage] = gathered(
        workers, work, tasks, lambda done: report(done, len(images))
    )
    for name, kind in (pair for image in described for pair in image.converted):
        conversions.notice(name, kind)
    return described


def _describe_all(
    sent: SentDescriber, thumbnails: bool, images: Sequence[LoadableImage]
) -> list[DescribedImage]:
    return [_describe(sent.describer, image, thumbnails) for image in images]


def _describe(describer: Describer, source: LoadableImage, thumbnail: bool) -> DescribedImage:
    start = time.perf_counter()
    try:
        with conversions.noticed() as converted:
            image = source() if callable(source) else source
        descriptor = describer.describe(image)
    except (DatasetError, VisionError) as error:
        return DescribedImage(None, seconds=time.perf_counter() - start, error=error)
    seconds = time.perf_counter() - start
    small = make_thumbnail(image) if thumbnail else b''
    shape = image.shape[:2]
    return DescribedImage(descriptor, shape, small, seconds, converted=tuple(converted))


def make_thumbnail(image: np.ndarray) -> bytes:
    """Make a small JPEG file of an image (h, w) or (h, w, 3), for people to look at."""
    image = one_picture(image)
    height = max(1, round(image.shape[0] * THUMBNAIL_WIDTH / image.shape[1]))
    small = cv2.resize(image, (THUMBNAIL_WIDTH, height), interpolation=cv2.INTER_AREA)
    return bytes(cv2.imencode('.jpg', small)[1])
