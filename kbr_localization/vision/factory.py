"""
Make a describer from training images, or from what a map file kept of it.

HOG and network outputs describe the whole image by one vector of unit length. Their kernel is the
cosine moved into [0, 1], k(a, b) = (1 + a . b) / 2: an inner product plus a constant, so positive
definite, and 1 between equal vectors.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
from typing import Any

from kbr_localization.configuration import from_mapping
from kbr_localization.errors import DatasetError, VisionError
from kbr_localization.vision.config import LEARNED, VisionConfig
from kbr_localization.vision.describer import (
    CameraDescriber,
    Describer,
    MultiCameraDescriber,
    sections_of,
    State,
)
from kbr_localization.vision.network import Network, NETWORK_ENTRIES, read_network
from kbr_localization.vision.preparation import Image, load, LoadableImage, Preparation
from kbr_localization.vision.pyramid_describer import learn_pyramid, PyramidDescriber
import numpy as np
from numpy.typing import NDArray
import skimage.feature

_FIXED = {'levels': 1, 'strips': 2, 'root_counts': True}  # maps of earlier versions had choices
OMNI = 'omni'
"""Name of a camera whose images are unwrapped whatever the configuration says: COLD's."""


def fit_describer(
    config: VisionConfig,
    images: Sequence[LoadableImage],
    rng: np.random.Generator,
    cameras: Sequence[str] = (),
) -> Describer:
    """
    Learn from training images what the descriptor needs: a vocabulary, a camera's mirror.

    A few hundred images spread over the runs are enough, or functions that load them. Images that
    cannot be read, or of an uncommon size, are left out. The same images and generator give the
    same describer, whoever the workers are. `cameras`: names of several, each of which has an
    image in each of `images`. Raises VisionError for no images or a bad one.
    """
    if cameras:
        describers = []
        for index, camera in enumerate(cameras):
            own = [functools.partial(_load_camera, image, index) for image in images]
            projection = 'omnidirectional' if camera == OMNI else config.projection
            describers.append(
                fit_describer(dataclasses.replace(config, projection=projection), own, rng)
            )
        return MultiCameraDescriber(cameras, describers)
    preparation, describer = Preparation.fit(config, images), DESCRIBERS[config.descriptor]
    learnt = read_network(config) if config.descriptor in (LEARNED, 'onnx') else {}
    if describer is PyramidDescriber:
        learnt |= learn_pyramid(config, preparation, learnt, images, rng)
    return describer(config, preparation, learnt)


def describer_from_state(state: State) -> Describer:
    """Build a describer from its `state()`, as a file gives it back; raises VisionError."""
    try:
        if 'cameras' in state:
            sections = sections_of(state)
            describers = [describer_from_state(section) for section in sections.values()]
            return MultiCameraDescriber(tuple(sections), describers)
        state = {'pyramid': 'roots', **state}  # which maps of earlier versions do not say
        defaults = vars(VisionConfig())
        values = {name: type(default)(state[name]) for name, default in defaults.items()}
        config = from_mapping(VisionConfig, values)
        for name, only in _FIXED.items():
            if state.get(name, only) != only:
                raise VisionError(
                    f'vision.{name}={state[name]}: expected {only}; build the map again'
                )
        return DESCRIBERS[config.descriptor](config, Preparation.from_state(config, state), state)
    except KeyError as error:
        raise VisionError(
            f'state of the describer: {error} is missing; build the map again'
        ) from error


def _load_camera(images: Any, index: int) -> Image:
    # without the images of the other cameras where they can be loaded alone
    sources = getattr(images, 'sources', None)
    image = sources[index] if sources else load(images)[index]
    if image is None:
        raise DatasetError(f'camera {index} has no image at that moment')
    return load(image)


class VectorDescriber(CameraDescriber):
    """Base class of describers whose descriptors are vectors of unit length."""

    dtype: np.dtype[Any] = np.dtype(np.float32)

    def cross_gram(self, left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.float64]:
        """Cosine kernel (n, m) in [0, 1] of descriptors (n, size) and (m, size)."""
        cosine = np.asarray(left, np.float32) @ np.asarray(right, np.float32).T
        return np.clip((1.0 + cosine.astype(np.float64)) / 2.0, 0.0, 1.0)


class HogDescriber(VectorDescriber):
    """Gradients of 9 directions in cells of `patch_size`, in blocks of 2 x 2, by scikit-image."""

    def __init__(self, config: VisionConfig, preparation: Preparation, learnt: State) -> None:
        super().__init__(config, preparation, learnt)
        rows, columns = (side // config.patch_size for side in preparation.shape)
        if min(rows, columns) < 2:
            raise VisionError(
                f'image of {preparation.shape[1]}x{preparation.shape[0]} pixels (after scaling): '
                f'expected at least two patches of {config.patch_size} each way; use a larger '
                'vision.working_width or a smaller vision.patch_size'
            )
        self.size = (rows - 1) * (columns - 1) * 2 * 2 * 9

    def describe(self, image: Image) -> NDArray[np.float32]:
        """Describe a grey (h, w) or BGR (h, w, 3) image by (size,); raises VisionError."""
        cell = (self.config.patch_size, self.config.patch_size)
        grey = self.preparation.grey(image)
        return _unit(
            skimage.feature.hog(grey, orientations=9, pixels_per_cell=cell, cells_per_block=(2, 2))
        )


class NetworkDescriber(VectorDescriber):
    """The output of a network, flattened; raises VisionError for one that returns zeros."""

    kept = NETWORK_ENTRIES

    def __init__(self, config: VisionConfig, preparation: Preparation, learnt: State) -> None:
        super().__init__(config, preparation, learnt)
        self._network = Network(config, learnt, 2 * (config.network_size,))
        answer, *_ = self._network.tried
        self.size = answer.size
        if not answer.any():
            raise self._network.unusable('it returns zeros only: check network_input')

    def describe(self, image: Image) -> NDArray[np.float32]:
        """Describe a grey (h, w) or BGR (h, w, 3) image by (size,); raises VisionError."""
        answer, *_ = self._network.run(self.preparation.colour(image))
        return _unit(answer)


def _unit(vector: NDArray[Any]) -> NDArray[np.float32]:
    """Scale an array, flattened, to unit length; zero stays zero."""
    values = np.asarray(vector, dtype=np.float64).ravel()
    return (values / max(float(np.linalg.norm(values)), 1e-12)).astype(np.float32)


DESCRIBERS: dict[str, Callable[[VisionConfig, Preparation, State], Describer]] = {
    'sift_pyramid': PyramidDescriber,
    'daisy': PyramidDescriber,
    LEARNED: PyramidDescriber,
    'hog': HogDescriber,
    'onnx': NetworkDescriber,
}
"""By `VisionConfig.descriptor`: made of a configuration, a preparation and what was learnt."""
