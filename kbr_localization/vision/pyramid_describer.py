"""The descriptor of [MbKSR] section 6.3: a spatial pyramid of dense SIFT words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kbr_localization.configuration import to_mapping
from kbr_localization.errors import VisionError
from kbr_localization.vision import spatial_pyramid
from kbr_localization.vision.config import VisionConfig
from kbr_localization.vision.dense_sift import DenseSift
from kbr_localization.vision.preparation import check_image, check_size, to_grey
from kbr_localization.vision.vocabulary import learn_vocabulary, nearest_words
import numpy as np
from numpy.typing import NDArray


class PyramidDescriber:
    """
    Describer whose descriptors are the word counts of the pyramid's finest level.

    `vocabulary`: (words, 128) float32. `image_shape`: (height, width) of every image that it
    describes. See `spatial_pyramid` for the kernel.
    """

    kind = 'sift_pyramid'

    def __init__(
        self, config: VisionConfig, image_shape: tuple[int, int], vocabulary: NDArray[np.float32]
    ) -> None:
        self.config, self.image_shape, self.vocabulary = config, image_shape, vocabulary
        self.size = 4**config.levels * len(vocabulary)
        self._sift = DenseSift(image_shape, config.patch_size, config.spacing)
        self._cells = spatial_pyramid.cell_of(self._sift.centres, image_shape, config.levels)
        largest = int(np.bincount(self._cells).max())
        self.dtype: np.dtype[Any] = np.min_scalar_type(largest)

    def describe(self, image: NDArray[np.uint8]) -> NDArray[np.unsignedinteger]:
        """Count the words (size,) of a grey (h, w) or BGR (h, w, 3) image; raises VisionError."""
        check_image(image)
        check_size(image, self.image_shape)
        words = nearest_words(self._sift.describe(to_grey(image)), self.vocabulary)
        return spatial_pyramid.count_words(
            words, self._cells, len(self.vocabulary), self.config.levels, self.dtype
        )

    def cross_gram(self, left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.float64]:
        """Spatial pyramid kernel (n, m) in [0, 1] of counts (n, size) and (m, size)."""
        return spatial_pyramid.cross_gram(left, right, len(self.vocabulary), self.config.levels)

    def state(self) -> Mapping[str, Any]:
        """Return configuration, image size and vocabulary by name: what `from_state` needs."""
        height, width = self.image_shape
        return {
            **to_mapping(self.config),
            'image_height': height,
            'image_width': width,
            'vocabulary': self.vocabulary,
        }

    @classmethod
    def from_state(cls, config: VisionConfig, state: Mapping[str, Any]) -> PyramidDescriber:
        """Build again from `state()`; raises VisionError when something is missing or wrong."""
        vocabulary = np.ascontiguousarray(state['vocabulary'], dtype=np.float32)
        if vocabulary.shape != (config.words, 128) or not np.isfinite(vocabulary).all():
            raise VisionError(
                f'vocabulary of shape {vocabulary.shape}: expected ({config.words}, 128) finite '
                f'numbers; build the map again'
            )
        return cls(config, (int(state['image_height']), int(state['image_width'])), vocabulary)

    @classmethod
    def fit(
        cls,
        config: VisionConfig,
        images: Sequence[NDArray[np.uint8]],
        rng: np.random.Generator,
    ) -> PyramidDescriber:
        """Learn the vocabulary from images of one size; see `fit_describer`."""
        share = max(1, config.vocabulary_samples // len(images))
        samples: list[NDArray[np.float32]] = []
        for image in images:
            check_image(image)
            if not samples:
                sift = DenseSift(image.shape[:2], config.patch_size, config.spacing)
            samples.append(_sample(sift, image, share, rng))
        vocabulary = learn_vocabulary(np.concatenate(samples), config.words, rng)
        return cls(config, sift.shape, vocabulary)


def _sample(
    sift: DenseSift, image: NDArray[np.uint8], share: int, rng: np.random.Generator
) -> NDArray[np.float32]:
    check_size(image, sift.shape)
    descriptors = sift.describe(to_grey(image))
    count = min(share, len(descriptors))
    return descriptors[rng.choice(len(descriptors), size=count, replace=False)]
