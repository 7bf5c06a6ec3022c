"""Images, or functions that load them."""

from __future__ import annotations

from collections.abc import Callable

from kbr_localization.errors import DatasetError
import numpy as np
from numpy.typing import NDArray

LoadableImage = NDArray[np.uint8] | Callable[[], NDArray[np.uint8]]


def load(image: LoadableImage) -> NDArray[np.uint8] | None:
    """Return the image, None when its function cannot read it."""
    try:
        return image() if callable(image) else image
    except DatasetError:
        return None
