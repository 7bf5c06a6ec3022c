"""
Dense local descriptors as libraries compute them: SIFT of OpenCV, DAISY of scikit-image.

OpenCV's SIFT is the reference, and the descriptor of [MbKSR] section 6.3. It describes a window of
six times the keypoint's size (4 x 4 bins of 3 * size / 2 pixels), so patches of p pixels need
keypoints of size p / 6. DAISY samples blurred gradient maps on rings.
"""

from __future__ import annotations

from typing import Any, cast

import cv2
from kbr_localization.errors import VisionError
from kbr_localization.vision.patch_grid import PatchGrid
import numpy as np
from numpy.typing import NDArray
import skimage.feature

_RINGS, _POINTS, _DIRECTIONS = 2, 6, 8
_WINDOW_PER_KEYPOINT_SIZE = 6.0


class DenseDaisy:
    """Dense DAISY of the images that a grid is made for; the rings fill a patch."""

    size = (_RINGS * _POINTS + 1) * _DIRECTIONS

    def __init__(self, grid: PatchGrid) -> None:
        self.grid = grid

    def describe(self, grey: NDArray[np.uint8]) -> NDArray[np.float32]:
        """
        Describe the patches of an image (height, width): (k, size).

        Raises VisionError for an image of another size.
        """
        radius = self.grid.patch_size // 2
        rows, columns = self.grid.counts
        # a margin of whole patches, so that its blur does not end at the image's edge
        extra = -(-self.grid.patch_size // self.grid.spacing)
        extended = self.grid.crop(grey, extra * self.grid.spacing)
        describe = cast(Any, skimage.feature.daisy)
        descriptors = describe(
            extended,
            step=self.grid.spacing,
            radius=radius,
            rings=_RINGS,
            histograms=_POINTS,
            orientations=_DIRECTIONS,
        )
        wanted = descriptors[slice(extra, extra + rows), slice(extra, extra + columns)]
        return np.asarray(wanted.reshape(-1, self.size), dtype=np.float32)


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
