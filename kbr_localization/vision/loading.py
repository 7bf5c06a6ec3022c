"""Images, or functions that load them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kbr_localization.errors import DatasetError
import numpy as np
from numpy.typing import NDArray

LoadableImage = NDArray[np.uint8] | Callable[[], NDArray[np.uint8]]


def load(image: LoadableImage) -> NDArray[np.uint8]:
    """Return the image; raises DatasetError when its function cannot read it."""
    return image() if callable(image) else image


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
        of_camera = getattr(self.images, 'of_camera', None)
        found = of_camera(self.index) if of_camera else self.images
        found = found() if callable(found) else found
        return found if of_camera or found is None else found[self.index]
