"""Dense DAISY: scikit-image's descriptor of blurred gradient maps sampled on rings."""

from __future__ import annotations

from typing import Any, cast

from kbr_localization.vision.patch_grid import PatchGrid
import numpy as np
from numpy.typing import NDArray
import skimage.feature

_RINGS, _POINTS, _DIRECTIONS = 2, 6, 8


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
