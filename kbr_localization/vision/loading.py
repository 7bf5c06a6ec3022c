"""Images, or functions that load them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from kbr_localization.errors import DatasetError
import numpy as np
from numpy.typing import NDArray

LoadableImage = NDArray[np.uint8] | Callable[[], NDArray[np.uint8]]


def load(image: LoadableImage) -> NDArray[np.uint8]:
    """Return the image; raises DatasetError when its function cannot read it."""
    return image() if callable(image) else image


@runtime_checkable
class LoadableCameras(Protocol):
    """Images of several cameras of which each can be loaded alone."""

    def of_camera(self, index: int) -> LoadableImage | None:
        """Return the image of a camera or what loads it, None where there is none."""
        ...


@dataclass(frozen=True)
class OneOfSeveral:
    """The image of one camera out of a tuple of images, or out of what loads such a tuple."""

    images: Any
    index: int

    def __call__(self) -> NDArray[np.uint8]:
        """Load the image; raises DatasetError where the camera has none."""
        image: NDArray[np.uint8] | None = self._find()
        if image is None:
            raise DatasetError(f'camera {self.index} has no image at that moment')
        return image

    def _find(self) -> Any:
        # what can load one camera alone does so
        alone = isinstance(self.images, LoadableCameras)
        found = self.images.of_camera(self.index) if alone else self.images
        found = found() if callable(found) else found
        return found if alone or found is None else found[self.index]
