"""Images, or functions that load them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from kbr_localization.errors import DatasetError, VisionError
import numpy as np
from numpy.typing import NDArray

LoadableImage = NDArray[np.uint8] | Callable[[], NDArray[np.uint8]]


def load(image: LoadableImage) -> NDArray[np.uint8]:
    """Return the image; raises DatasetError when its function cannot read it."""
    return image() if callable(image) else image


def load_examples(images: Sequence[LoadableImage], count: int) -> list[NDArray[np.uint8]]:
    """
    Load `count` images spread over all; keep the ones of the commonest size.

    Others take the place of images that cannot be read. Raises VisionError when none can.
    """
    spread = np.linspace(0, len(images) - 1, min(count, len(images))).astype(int).tolist()
    loaded, trouble = list[NDArray[np.uint8]](), 'give at least one'
    for index in dict.fromkeys([*spread, *range(len(images))]):
        try:
            loaded.append(load(images[index]))
        except DatasetError as error:
            trouble = str(error)
        if len(loaded) == count:
            break
    if not loaded:
        raise VisionError(f'no images to learn the vocabulary from: {trouble}')
    (common, _), *_ = Counter(image.shape[:2] for image in loaded).most_common()
    return [image for image in loaded if image.shape[:2] == common]


@runtime_checkable
class LoadableCameras(Protocol):
    """Images of several cameras, each of which can be loaded alone."""

    def of_camera(self, index: int) -> LoadableImage | None:
        """Return a camera's image, or a function that loads it; None if it has none."""
        ...


def load_camera(images: Any, index: int) -> NDArray[np.uint8]:
    """
    Load the image of one camera.

    `images`: a tuple with an image for each camera, a function that loads such a tuple, or
    `LoadableCameras`. Raises DatasetError where the camera has no image.
    """
    alone = isinstance(images, LoadableCameras)
    image = images.of_camera(index) if alone else load(images)[index]
    if image is None:
        raise DatasetError(f'camera {index} has no image at that moment')
    return load(image)
