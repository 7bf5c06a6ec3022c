"""
Runs whose images were described once, so that many localizers can be tried on them.

A frame of such a run carries its number in place of an image, and the map's describer is replaced
by one that looks the descriptor of that number up. Everything else is as in a real run: the
kernel vectors are computed anew by every localizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import dataclasses
from dataclasses import dataclass
import functools
from typing import Any

from kbr_localization.datasets import Dataset, Frame, OdometryTrack
from kbr_localization.datasets.frame import Image
from kbr_localization.errors import DatasetError
from kbr_localization.localization.map.describing import describe_images
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.progress import Progress, silent
from kbr_localization.vision import Describer, describer_from_state
from kbr_localization.vision.describer import Prepared
from kbr_localization.workers import Workers
import numpy as np


@dataclass
class DescribedRun(Dataset):
    """
    A run as a dataset, with the descriptors (m, d) of its frames.

    `seconds_per_image`: mean time that reading and describing an image took.
    """

    name: str
    odometry: OdometryTrack
    skipped: dict[str, int]
    frames: tuple[Frame, ...]
    descriptors: np.ndarray
    seconds_per_image: float

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def unusable(self) -> dict[int, str]:
        """Say what was wrong with unusable images, by the number of their frame."""
        images = [frame.image for frame in self.frames]
        return {i.number: i.error for i in images if isinstance(i, NumberedImage) and i.error}

    def __getitem__(self, index: int) -> Frame:
        return self.frames[index]

    def __iter__(self) -> Iterator[Frame]:
        return iter(self.frames)


@dataclass(frozen=True)
class NumberedImage:
    """Stands for the image of a frame; raises what reading the image raised."""

    number: int
    error: str = ''

    def __call__(self) -> Image:
        """Return the number as an array; raises DatasetError."""
        if self.error:
            raise DatasetError(self.error)
        return np.array([self.number])


class LookupDescriber(Describer):
    """
    A describer that knows the descriptors of a run's frames by their numbers.

    It can be sent to another process, whatever the describer itself is made of.
    """

    def __init__(self, describer: Describer, descriptors: np.ndarray) -> None:
        self.kind, self.size, self.dtype = describer.kind, describer.size, describer.dtype
        self._describer, self._descriptors = describer, descriptors

    def __getstate__(self) -> tuple[dict[str, Any], np.ndarray]:
        return dict(self._describer.state()), self._descriptors

    def __setstate__(self, state: tuple[dict[str, Any], np.ndarray]) -> None:
        LookupDescriber.__init__(self, describer_from_state(state[0]), state[1])

    def knowing(self, descriptors: np.ndarray) -> LookupDescriber:
        """Return a describer for the descriptors (m, size) of another run."""
        return LookupDescriber(self._describer, descriptors)

    def describe(self, image: np.ndarray) -> np.ndarray:
        """Descriptor (size,) of a numbered image."""
        descriptor: np.ndarray = self._descriptors[int(image[0])]
        return descriptor

    def cross_gram(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Kernel matrix (n, m), computed by the describer."""
        return self._describer.cross_gram(left, right)

    def prepared(self, descriptors: np.ndarray) -> Prepared:
        """Prepare descriptors (n, size) for repeated comparison, as the describer does."""
        return self._describer.prepared(descriptors)

    def state(self) -> Mapping[str, Any]:
        """State of the describer itself."""
        return self._describer.state()


def describe_run(
    describer: Describer,
    dataset: Dataset,
    progress: Progress | None = None,
    workers: Workers | None = None,
) -> DescribedRun:
    """Read and describe every image of a run once; a broken one stays broken."""
    report = functools.partial(progress or silent, f'describing {dataset.name}')
    images = [frame.image for frame in dataset]
    described = describe_images(describer, images, workers or Workers(), report)
    unknown = np.zeros(describer.size, dtype=describer.dtype)
    frames, descriptors = [], []
    for number, (frame, found) in enumerate(zip(dataset, described, strict=True)):
        descriptors.append(unknown if found.descriptor is None else found.descriptor)
        error = '' if found.error is None else str(found.error)
        frames.append(dataclasses.replace(frame, image=NumberedImage(number, error)))
    seconds = sum(found.seconds for found in described) / max(len(frames), 1)
    skipped, odometry = dict(dataset.skipped), dataset.odometry
    return DescribedRun(
        dataset.name, odometry, skipped, tuple(frames), np.array(descriptors), seconds
    )


def on_described_run(kernel_map: KernelMap, run: DescribedRun) -> KernelMap:
    """Return the map with a describer that knows the run's descriptors."""
    describer = kernel_map.describer
    known = (
        describer
        if isinstance(describer, LookupDescriber)
        else LookupDescriber(describer, run.descriptors)
    )
    return dataclasses.replace(kernel_map, describer=known.knowing(run.descriptors))
