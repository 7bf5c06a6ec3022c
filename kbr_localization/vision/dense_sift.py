"""
Dense SIFT: one descriptor for every patch of a regular grid, upright and of one scale.

OpenCV's SIFT describes a window of six times the keypoint's size (4 x 4 bins of 3 * size / 2
pixels), so patches of p pixels need keypoints of size p / 6.
"""

from __future__ import annotations

from typing import Any, cast

import cv2
from kbr_localization.errors import VisionError
import numpy as np
from numpy.typing import NDArray

DESCRIPTOR_SIZE = 128
_WINDOW_PER_KEYPOINT_SIZE = 6.0


def grid_axis(length: int, patch_size: int, spacing: int) -> NDArray[np.int64]:
    """
    Centres along one image axis of the patches that lie wholly inside.

    `length`, `patch_size` and `spacing` are in pixels. Raises VisionError when no patch fits.
    """
    if length < patch_size:
        raise VisionError(
            f'image side of {length} pixels: expected at least the patch size {patch_size}; '
            f'use larger images or a smaller patch_size'
        )
    return np.arange(patch_size // 2, length - (patch_size + 1) // 2 + 1, spacing)


class DenseSift:
    """
    Dense SIFT of images of one size.

    `centres`: (k, 2) x, y of the patches in pixels, row after row.
    """

    def __init__(self, shape: tuple[int, int], patch_size: int = 16, spacing: int = 8) -> None:
        rows = grid_axis(shape[0], patch_size, spacing)
        columns = grid_axis(shape[1], patch_size, spacing)
        self.shape = shape
        self.centres = np.stack(np.meshgrid(columns, rows), axis=-1).reshape(-1, 2)
        size = patch_size / _WINDOW_PER_KEYPOINT_SIZE
        # made once: building thousands of keypoint objects costs as much as describing them
        self._keypoints = [cv2.KeyPoint(float(x), float(y), size, 0.0) for x, y in self.centres]
        self._sift = cast(Any, cv2).SIFT_create()  # the type stubs of some versions lack it

    def describe(self, grey: NDArray[np.uint8]) -> NDArray[np.float32]:
        """
        Descriptors (k, 128), values 0 to 255, of a grey image (height, width).

        Raises VisionError for an image of another size than the grid was made for.
        """
        if grey.shape != self.shape:
            raise VisionError(f'image of shape {grey.shape}: expected {self.shape}')
        _, descriptors = self._sift.compute(grey, self._keypoints)
        return np.asarray(descriptors, dtype=np.float32)
