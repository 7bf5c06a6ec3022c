"""From a camera image to the grey image that is described."""

from __future__ import annotations

from typing import Any

import cv2
from kbr_localization.errors import VisionError
import numpy as np
from numpy.typing import NDArray

_COLOUR_CHANNELS = 3


def check_image(image: NDArray[Any]) -> None:
    """Raise VisionError unless it is a non-empty uint8 image, grey (h, w) or BGR (h, w, 3)."""
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8:
        found = getattr(image, 'dtype', type(image).__name__)
        raise VisionError(f'image of type {found}: expected uint8; convert it to 8 bits a channel')
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] not in (1, 3)):
        raise VisionError(
            f'image of shape {image.shape}: expected (height, width) or (height, width, 3); '
            f'convert it to grey or BGR'
        )
    if image.size == 0:
        raise VisionError(f'image of shape {image.shape} is empty: expected at least one pixel')


def to_grey(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Grey image (h, w) of a grey (h, w), (h, w, 1) or BGR (h, w, 3) image."""
    if image.ndim == _COLOUR_CHANNELS and image.shape[2] == _COLOUR_CHANNELS:
        return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY), dtype=np.uint8)
    return np.ascontiguousarray(image.reshape(image.shape[:2]))


def check_size(image: NDArray[np.uint8], fitted: tuple[int, int]) -> None:
    """Raise VisionError unless the image has the height and width of the map's images."""
    if image.shape[:2] != fitted:
        raise VisionError(
            f'image of {image.shape[1]}x{image.shape[0]} pixels: the map was built from '
            f'{fitted[1]}x{fitted[0]}; set the camera to that size or build the map again'
        )
