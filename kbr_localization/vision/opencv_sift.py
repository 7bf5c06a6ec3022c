"""
Dense SIFT as OpenCV computes it: the reference, and the descriptor of [MbKSR] section 6.3.

OpenCV describes a window of six times the keypoint's size (4 x 4 bins of 3 * size / 2 pixels), so
patches of p pixels need keypoints of size p / 6.
"""

from __future__ import annotations

from typing import Any, cast

import cv2
from kbr_localization.errors import VisionError
from kbr_localization.vision.patch_grid import PatchGrid
import numpy as np
from numpy.typing import NDArray

_WINDOW_PER_KEYPOINT_SIZE = 6.0


class OpenCvSift:
    """Dense SIFT of the images that a grid is made for, by OpenCV's keypoint descriptor."""

    size = 128

    def __init__(self, grid: PatchGrid) -> None:
        self.grid = grid
        size = grid.patch_size / _WINDOW_PER_KEYPOINT_SIZE
        # made once: building thousands of keypoint objects costs as much as describing them
        self._keypoints = [cv2.KeyPoint(float(x), float(y), size, 0.0) for x, y in grid.centres]
        self._sift = cast(Any, cv2).SIFT_create()  # the type stubs of some versions lack it

    def describe(self, grey: NDArray[np.uint8]) -> NDArray[np.float32]:
        """
        Describe the patches of an image (height, width): (k, 128), values 0 to 255.

        Raises VisionError for an image of another size.
        """
        if grey.shape != self.grid.shape:
            raise VisionError(f'image of shape {grey.shape}: expected {self.grid.shape}')
        _, descriptors = self._sift.compute(grey, self._keypoints)
        return np.asarray(descriptors, dtype=np.float32)
