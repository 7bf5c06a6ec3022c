"""Histograms of oriented gradients of the whole image, by scikit-image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kbr_localization.configuration import to_mapping
from kbr_localization.errors import VisionError
from kbr_localization.progress import Progress
from kbr_localization.vision import vector_kernel
from kbr_localization.vision.config import VisionConfig
from kbr_localization.vision.describer import SelectableDescriber
from kbr_localization.vision.loading import LoadableImage
from kbr_localization.vision.preparation import Preparation
from kbr_localization.workers import Workers
import numpy as np
from numpy.typing import NDArray
import skimage.feature

_DIRECTIONS, _CELLS_PER_BLOCK = 9, 2


class HogDescriber(SelectableDescriber):
    """
    Describer by one HOG vector: gradients in cells of `patch_size`, in blocks of 2 x 2 cells.

    There is nothing to learn, so `fit` takes the images for their size only.
    """

    kind = 'hog'
    dtype: np.dtype[Any] = np.dtype(np.float32)

    def __init__(self, config: VisionConfig, preparation: Preparation) -> None:
        self.config, self.preparation = config, preparation
        rows, columns = (side // config.patch_size for side in preparation.shape)
        blocks = (rows - _CELLS_PER_BLOCK + 1) * (columns - _CELLS_PER_BLOCK + 1)
        if min(rows, columns) < _CELLS_PER_BLOCK:
            raise VisionError(
                f'image of {preparation.shape[1]}x{preparation.shape[0]} pixels (after scaling): '
                f'expected at least two patches of {config.patch_size} each way; use a larger '
                'vision.working_width or a smaller vision.patch_size'
            )
        self.size = blocks * _CELLS_PER_BLOCK**2 * _DIRECTIONS

    def describe(self, image: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Describe a grey (h, w) or BGR (h, w, 3) image by (size,); raises VisionError."""
        histogram = skimage.feature.hog(
            self.preparation.grey(image),
            orientations=_DIRECTIONS,
            pixels_per_cell=(self.config.patch_size, self.config.patch_size),
            cells_per_block=(_CELLS_PER_BLOCK, _CELLS_PER_BLOCK),
        )
        return vector_kernel.unit(histogram)

    def cross_gram(self, left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.float64]:
        """Cosine kernel (n, m) in [0, 1] of descriptors (n, size) and (m, size)."""
        return vector_kernel.cross_gram(left, right)

    def state(self) -> Mapping[str, Any]:
        """Return configuration and camera by name: what `from_state` needs."""
        return {**to_mapping(self.config), **self.preparation.state()}

    @classmethod
    def from_state(
        cls, config: VisionConfig, preparation: Preparation, state: Mapping[str, Any]
    ) -> HogDescriber:
        """Build again from `state()`."""
        return cls(config, preparation)

    @classmethod
    def fit(
        cls,
        config: VisionConfig,
        preparation: Preparation,
        images: Sequence[LoadableImage],
        rng: np.random.Generator,
        workers: Workers,
        progress: Progress,
    ) -> HogDescriber:
        """Check the images' size; see `fit_describer`."""
        return cls(config, preparation)
