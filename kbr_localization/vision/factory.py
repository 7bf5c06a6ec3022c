"""
Make a describer from training images, or from what a map file kept of it.

HOG and network outputs describe the whole image by one vector of unit length. Their kernel is the
cosine moved into [0, 1], k(a, b) = (1 + a . b) / 2: an inner product plus a constant, so positive
definite, and 1 between equal vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import itertools
from typing import Any

from kbr_localization.configuration import from_mapping, to_mapping
from kbr_localization.errors import VisionError
from kbr_localization.progress import Progress, silent
from kbr_localization.vision.config import BEFORE, MOST_SAMPLES, VisionConfig
from kbr_localization.vision.describer import Describer
from kbr_localization.vision.loading import load_camera, load_examples, LoadableImage
from kbr_localization.vision.multi_camera import MultiCameraDescriber, sections_of
from kbr_localization.vision.network import (
    as_input,
    Network,
    network_of,
    network_state,
    read_network,
)
from kbr_localization.vision.preparation import MIRROR_IMAGES, Preparation
from kbr_localization.vision.pyramid_describer import fit_pyramid, PyramidDescriber
from kbr_localization.workers import Workers
import numpy as np
from numpy.typing import NDArray
import skimage.feature

Float32Array = NDArray[np.float32]


class VectorDescriber(Describer):
    """Base class of describers whose descriptors are vectors of unit length."""

    dtype: np.dtype[Any] = np.dtype(np.float32)

    def __init__(self, config: VisionConfig, preparation: Preparation) -> None:
        self.kind, self.config, self.preparation = config.descriptor, config, preparation

    def cross_gram(self, left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.float64]:
        """Cosine kernel (n, m) in [0, 1] of descriptors (n, size) and (m, size)."""
        cosine = np.asarray(left, np.float32) @ np.asarray(right, np.float32).T
        return np.clip((1.0 + cosine.astype(np.float64)) / 2.0, 0.0, 1.0)

    def state(self) -> Mapping[str, Any]:
        """Return configuration and camera by name: what `from_state` needs."""
        return {**to_mapping(self.config), **self.preparation.state()}


class HogDescriber(VectorDescriber):
    """Gradients of 9 directions in cells of `patch_size`, in blocks of 2 x 2, by scikit-image."""

    def __init__(self, config: VisionConfig, preparation: Preparation) -> None:
        super().__init__(config, preparation)
        rows, columns = (side // config.patch_size for side in preparation.shape)
        if min(rows, columns) < 2:
            raise VisionError(
                f'image of {preparation.shape[1]}x{preparation.shape[0]} pixels (after scaling): '
                f'expected at least two patches of {config.patch_size} each way; use a larger '
                'vision.working_width or a smaller vision.patch_size'
            )
        self.size = (rows - 1) * (columns - 1) * 2 * 2 * 9

    def describe(self, image: NDArray[np.uint8]) -> Float32Array:
        """Describe a grey (h, w) or BGR (h, w, 3) image by (size,); raises VisionError."""
        histogram = skimage.feature.hog(
            self.preparation.grey(image),
            orientations=9,
            pixels_per_cell=(self.config.patch_size, self.config.patch_size),
            cells_per_block=(2, 2),
        )
        return _unit(histogram)


class NetworkDescriber(VectorDescriber):
    """
    The output of a network on an image of `network_size`, flattened.

    `network`: the bytes of the ONNX file (uint8), which the map keeps. Raises VisionError for one
    that does not take such images.
    """

    def __init__(
        self, config: VisionConfig, preparation: Preparation, network: NDArray[np.uint8]
    ) -> None:
        super().__init__(config, preparation)
        self.network, self._network = network, Network(config, network)
        side, channels = config.network_size, 1 if config.network_input == 'grey' else 3
        wanted, declared = (1, channels, side, side), self._network.input_shape
        pairs = itertools.zip_longest(declared, wanted)
        if any(size not in (0, other) for size, other in pairs):
            raise self._network.unusable(
                f'its input is {declared}, but network_size and network_input say {wanted}'
            )
        # the size of the output is known only after a run
        self.size = len(self._run(np.zeros((side, side, 3), dtype=np.uint8)))

    def describe(self, image: NDArray[np.uint8]) -> Float32Array:
        """Describe a grey (h, w) or BGR (h, w, 3) image by (size,); raises VisionError."""
        answer = self._run(self.preparation.colour(image))
        self._network.check_finite(answer)
        return _unit(answer)

    def state(self) -> Mapping[str, Any]:
        """Return configuration, camera and network by name: what `from_state` needs."""
        return {**super().state(), **network_state(self.network)}

    def _run(self, image: NDArray[np.uint8]) -> Float32Array:
        side = self.config.network_size
        answer, *_ = self._network.run(as_input(image, self.config.network_input, (side, side)))
        return answer.ravel()


def fit_network(
    config: VisionConfig, preparation: Preparation, images: Sequence[LoadableImage]
) -> NetworkDescriber:
    """Read the network's file and try it on five images; see `fit_describer`."""
    describer = NetworkDescriber(config, preparation, read_network(config))
    if not any(describer.describe(image).any() for image in load_examples(images, 5)):
        raise VisionError(
            f'network {config.network_file} returns zeros only: check network_input, or give '
            'another network'
        )
    return describer


def _unit(vector: NDArray[Any]) -> Float32Array:
    """Scale a vector (d,) to unit length; zero stays zero."""
    values = np.asarray(vector, dtype=np.float64).ravel()
    return (values / max(float(np.linalg.norm(values)), 1e-12)).astype(np.float32)


OMNI = 'omni'
"""Name of a camera whose images are unwrapped whatever the configuration says: COLD's."""


def fit_describer(
    config: VisionConfig,
    images: Sequence[LoadableImage],
    rng: np.random.Generator,
    workers: Workers | None = None,
    progress: Progress | None = None,
) -> Describer:
    """
    Learn from training images what the descriptor needs: a vocabulary, a camera's mirror.

    A few hundred images spread over the runs are enough, or functions that load them. Images that
    cannot be read, or of an uncommon size, are left out. The same images and generator give the
    same describer, whoever the workers are. Raises VisionError for no images or a bad one.
    """
    # five, so that a single odd image does not set the camera's size
    count = 5 if config.projection == 'perspective' else MIRROR_IMAGES
    preparation = Preparation.fit(config, load_examples(images, count))
    if config.descriptor == 'hog':
        return HogDescriber(config, preparation)
    if config.descriptor == 'onnx':
        return fit_network(config, preparation, images)
    return fit_pyramid(config, preparation, images, rng, workers or Workers(), progress or silent)


def fit_cameras(
    config: VisionConfig,
    cameras: Sequence[str],
    images: Sequence[Any],
    rng: np.random.Generator,
    workers: Workers | None = None,
    progress: Progress | None = None,
) -> MultiCameraDescriber:
    """
    Learn a describer for each of several cameras; see `fit_describer`.

    `images`: tuples with an image for each camera, or functions that load them.
    """
    describers = []
    for index, camera in enumerate(cameras):
        own = [functools.partial(load_camera, image, index) for image in images]
        projection = 'omnidirectional' if camera == OMNI else config.projection
        camera_config = dataclasses.replace(config, projection=projection)
        describers.append(fit_describer(camera_config, own, rng, workers, progress))
    return MultiCameraDescriber(cameras, describers)


def describer_from_state(state: Mapping[str, Any]) -> Describer:
    """
    Build a describer from the arrays and scalars of its `state()`.

    NumPy scalars and bytes, as a file gives them back, are accepted. Raises VisionError naming
    the entry that is missing, and ConfigurationError for a value out of range.
    """
    try:
        if 'cameras' in state:
            sections = sections_of(state)
            describers = [describer_from_state(section) for section in sections.values()]
            return MultiCameraDescriber(tuple(sections), describers)
        whole = {**BEFORE, **state}
        values: dict[str, Any] = {}
        for name, default in to_mapping(VisionConfig()).items():
            value = whole[name]
            values[name] = value.decode() if isinstance(value, bytes) else type(default)(value)
        # old maps had no limit; nothing is learnt any more
        values['vocabulary_samples'] = min(values['vocabulary_samples'], MOST_SAMPLES)
        config = from_mapping(VisionConfig, values)
        preparation = Preparation.from_state(config, state)
        if config.descriptor == 'hog':
            return HogDescriber(config, preparation)
        if config.descriptor == 'onnx':
            return NetworkDescriber(config, preparation, network_of(state))
        return PyramidDescriber.from_state(config, preparation, state)
    except KeyError as error:
        raise VisionError(
            f'state of the describer: {error} is missing; build the map again'
        ) from error
