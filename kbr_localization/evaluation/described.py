"""
Runs whose images were described once, so that many localizers can be tried on them.

The image of a frame of such a run is its descriptor. Everything else is as in a real run: the
kernel vectors are computed anew by every localizer.
"""

from dataclasses import replace
import functools
import logging

from kbr_localization.datasets import Dataset
from kbr_localization.errors import DatasetError, EvaluationError
from kbr_localization.localization.map.build import describe_images
from kbr_localization.vision import Describer
import numpy as np

logger = logging.getLogger(__name__)


class DescribedRun(Dataset):
    """A run with the descriptors (m, d) of its frames, and the mean time of describing one."""

    descriptors: np.ndarray
    seconds_per_image: float


def describe_run(describer: Describer, dataset: Dataset) -> DescribedRun:
    """Describe every image of a run once; raises EvaluationError when none can be used."""
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
