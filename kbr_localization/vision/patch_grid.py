"""The regular grid of patches that local descriptors are taken from."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import Any

import cv2
from kbr_localization.errors import VisionError
import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]
MOST_PATCHES = 1_000_000
"""Of an image; their descriptors take half a gigabyte."""


@dataclass(frozen=True)
class PatchGrid:
    """
    Square patches, row after row, that lie wholly inside of an image.

    `shape`: (height, width) of the image. `patch_size`, `spacing`: in pixels. `wraps`: the first
    and last columns of the image are neighbours, as in a panorama, and patches go across.
    Raises VisionError when no patch fits.
    """

    shape: tuple[int, int]
    patch_size: int
    spacing: int
    wraps: bool = False

    def __post_init__(self) -> None:
        """Refuse an image smaller than a patch, and more patches than memory is for."""
        if min(self.shape) < self.patch_size:
            raise VisionError(
                f'image of {self.shape[1]}x{self.shape[0]} pixels (after scaling): expected at '
                f'least the patch size {self.patch_size} each way; use larger images, a larger '
                'vision.working_width (of a wide panorama) or a smaller vision.patch_size'
            )
        rows, columns = self.counts
        if rows * columns > MOST_PATCHES:
            raise VisionError(
                f'image of {self.shape[1]}x{self.shape[0]} pixels (after scaling) with {rows} x '
                f'{columns} patches: expected at most {MOST_PATCHES}; use a larger '
                'vision.spacing or a smaller vision.working_width'
            )

    @property
    def counts(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        rows, columns = ((side - self.patch_size) // self.spacing + 1 for side in self.shape)
        return rows, math.ceil(self.shape[1] / self.spacing) if self.wraps else columns

    @property
    def corner(self) -> tuple[int, int]:
        """Row and column of the first patch's first pixel; what is left over is cut evenly."""
        top, left = ((side - self.patch_size) % self.spacing // 2 for side in self.shape)
        return top, 0 if self.wraps else left

    @property
    def centres(self) -> NDArray[np.int64]:
        """Points x, y (k, 2) in the image, in pixels."""
        rows, columns = (
            start + self.patch_size // 2 + self.spacing * np.arange(count)
            for start, count in zip(self.corner, self.counts, strict=True)
        )
        return np.stack(np.meshgrid(columns % self.shape[1], rows), axis=-1).reshape(-1, 2)

    def crop(self, image: Image, margin: int) -> Image:
        """
        Cut out the patches with `margin` pixels around them.

        Where the image ends it is continued by its edge, or by its other side if it wraps.
        Raises VisionError for an image of another size.
        """
        if image.shape != self.shape:
            raise VisionError(f'image of shape {image.shape}: expected {self.shape}')
        sides = 0 if self.wraps else margin
        extended: NDArray[Any] = image
        if self.wraps:
            columns = np.arange(-margin, self.shape[1] + self.patch_size + margin)
            extended = image[:, columns % self.shape[1]]
        extended = cv2.copyMakeBorder(extended, margin, margin, sides, sides, cv2.BORDER_REPLICATE)
        top, left = self.corner
        return np.asarray(extended[top:, left:], dtype=np.uint8)
