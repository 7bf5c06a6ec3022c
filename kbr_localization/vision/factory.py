"""
Make a describer from training images or from its state in a map file.

HOG and networks describe the whole image by one vector of unit length. The kernel maps the cosine
to [0, 1], k(a, b) = (1 + a . b) / 2. It is an inner product plus a constant, so it is positive
definite, and it is 1 for equal vectors.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
from typing import Any

from kbr_localization.configuration import from_mapping
from kbr_localization.errors import DatasetError, VisionError
from kbr_localization.vision.config import LEARNED, VisionConfig
from kbr_localization.vision.describer import (
    camera_states,
    CameraDescriber,
    Describer,
    MultiCameraDescriber,
    State,
)
from kbr_localization.vision.network import NETWORK, Network, read_network
from kbr_localization.vision.preparation import Image, load, LoadableImage, Preparation
from kbr_localization.vision.pyramid_describer import learn_pyramid, PyramidDescriber
import numpy as np
from numpy.typing import NDArray
import skimage.feature

_FIXED = {'levels': 1, 'strips': 2, 'root_counts': True}  # were parameters in earlier versions
OMNI = 'omni'
"""Images of a camera of this name, which COLD uses, are always unwrapped."""


def fit_describer(
    config: VisionConfig,
    images: Sequence[LoadableImage],
    rng: np.random.Generator,
    cameras: Sequence[str] = (),
) -> Describer:
    """
    Learn the vocabulary and the mirror from training images, as far as the descriptor needs them.

    A few hundred images spread over the runs are enough, or functions that load them. Images that
    cannot be read, or that differ from the most common size, are skipped. The result depends on
    the images and the generator, not on the number of workers. `cameras`: names of the cameras if
    there are several; each of `images` then holds one image per camera. Raises VisionError for no
    images or a bad one.
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
    """Build a describer from its `state()`, as read from a map file; raises VisionError."""
    try:
        if 'cameras' in state:
            sections = camera_states(state)
            describers = [describer_from_state(section) for section in sections.values()]
            return MultiCameraDescriber(tuple(sections), describers)
        state = {'pyramid': 'roots', **state}  # maps of earlier versions lack this entry
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
    # load this camera's image alone where that is possible
    sources = getattr(images, 'sources', None)
    image = sources[index] if sources else load(images)[index]
    if image is None:
        raise DatasetError(f'camera {index} has no image at that moment')
    return load(image)


class VectorDescriber(CameraDescriber):
    """Describer whose descriptors are vectors of unit length."""

    dtype: np.dtype[Any] = np.dtype(np.float32)

    def cross_gram(self, left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.float64]:
        """Cosine kernel (n, m) in [0, 1] of descriptors (n, size) and (m, size)."""
        cosine = np.asarray(left, np.float32) @ np.asarray(right, np.float32).T
        return np.clip((1.0 + cosine.astype(np.float64)) / 2.0, 0.0, 1.0)


class HogDescriber(VectorDescriber):
    """HOG of scikit-image: 9 directions in cells of `patch_size` pixels, blocks of 2 x 2 cells."""

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
        cell = (self.config.patch_size, self.config.patch_size)
        grey = self.preparation.grey(image)
        return _unit(
            skimage.feature.hog(grey, orientations=9, pixels_per_cell=cell, cells_per_block=(2, 2))
        )


class NetworkDescriber(VectorDescriber):
    """First output of a network, flattened; raises VisionError if that is all zeros for noise."""

    learnt_entries = (NETWORK,)

    def __init__(self, config: VisionConfig, preparation: Preparation, learnt: State) -> None:
        super().__init__(config, preparation, learnt)
        self._network = Network(config, learnt, 2 * (config.network_size,))
        output, *_ = self._network.probe_outputs
        self.size = output.size
        if not output.any():
            raise self._network.error('it returns zeros only: check network_input')

    def describe(self, image: Image) -> NDArray[np.float32]:
        output, *_ = self._network.run(self.preparation.colour(image))
        return _unit(output)


def _unit(vector: NDArray[Any]) -> NDArray[np.float32]:
    """Flatten an array and scale it to unit length; zeros stay zeros."""
    values = np.asarray(vector, dtype=np.float64).ravel()
    return (values / max(float(np.linalg.norm(values)), 1e-12)).astype(np.float32)


DESCRIBERS: dict[str, Callable[[VisionConfig, Preparation, State], Describer]] = {
    'sift_pyramid': PyramidDescriber,
    'daisy': PyramidDescriber,
    LEARNED: PyramidDescriber,
    'hog': HogDescriber,
    'onnx': NetworkDescriber,
}
"""Classes by `VisionConfig.descriptor`; arguments: configuration, preparation, learnt arrays."""
