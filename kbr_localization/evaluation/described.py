"""
Runs whose images were described once, so that many localizers can be tried on them.

The image of a frame of such a run is its descriptor. Everything else is as in a real run: the
kernel vectors are computed anew by every localizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
import functools
import logging
from typing import Any

from kbr_localization.datasets import Dataset
from kbr_localization.errors import DatasetError, EvaluationError
from kbr_localization.localization.map.build import describe_images
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.vision import Describer, describer_from_state
from kbr_localization.vision.describer import Compare
import numpy as np

logger = logging.getLogger(__name__)


class DescribedRun(Dataset):
    """
    A run with the descriptors (m, d) of its frames.

    `seconds_per_image`: mean processor time of reading and describing an image.
    """

    descriptors: np.ndarray
    seconds_per_image: float


class GivenDescriptors(Describer):
    """
    A describer for images that are descriptors already, compared as another describer does.

    It can be sent to another process, whatever the describer itself is made of.
    """

    def __init__(self, describer: Describer) -> None:
        self.kind, self.size, self.dtype = describer.kind, describer.size, describer.dtype
        self.describer = describer

    def __reduce__(self) -> tuple[Callable[..., GivenDescriptors], tuple[dict[str, Any]]]:
        return _given_by_state, (dict(self.state()),)

    def describe(self, image: np.ndarray) -> np.ndarray:
        """Return the descriptor (d,) that was given."""
        return image

    def cross_gram(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Kernel matrix (n, m), computed by the describer."""
        return self.describer.cross_gram(left, right)

    def prepared(self, descriptors: np.ndarray) -> Compare:
        """Prepare descriptors (n, size) for repeated comparison, as the describer does."""
        return self.describer.prepared(descriptors)

    def state(self) -> Mapping[str, Any]:
        """State of the describer itself."""
        return self.describer.state()


def _given_by_state(state: dict[str, Any]) -> GivenDescriptors:
    return GivenDescriptors(describer_from_state(state))


def describe_run(describer: Describer, dataset: Dataset) -> DescribedRun:
    """
    Read and describe every image of a run once; a broken one stays broken, with a warning.

    Raises EvaluationError when no image can be used.
    """
    images = [frame.image for frame in dataset]
    described = describe_images(describer, images, f'describing {dataset.name}')
    unusable = {number: str(found.error) for number, found in enumerate(described) if found.error}
    if len(unusable) == len(images):
        reason = unusable.get(0, 'it has none')
        raise EvaluationError(f'no image of {dataset.name} could be used: {reason}')
    if unusable:
        text = '%s: skipped %d of %d images that cannot be used'
        logger.warning(text, dataset.name, len(unusable), len(images))
    unknown = np.zeros(describer.size, dtype=describer.dtype)
    descriptors = np.array([unknown if d.descriptor is None else d.descriptor for d in described])
    frames = tuple(
        replace(frame, image=functools.partial(_given, descriptors[number], unusable.get(number)))
        for number, frame in enumerate(dataset)
    )
    run = DescribedRun(dataset.name, dataset.odometry, dict(dataset.skipped), frames)
    run.descriptors = descriptors
    run.seconds_per_image = float(np.mean([found.seconds for found in described]))
    return run


def _given(descriptor: np.ndarray, error: str | None) -> np.ndarray:
    if error is not None:
        raise DatasetError(error)
    return descriptor


def on_given_descriptors(kernel_map: KernelMap) -> KernelMap:
    """Return the map with a describer for described runs."""
    return replace(kernel_map, describer=GivenDescriptors(kernel_map.describer))
