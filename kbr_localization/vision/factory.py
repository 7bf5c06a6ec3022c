"""Make a describer from training images, or from what a map file kept of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import functools
from typing import Any

from kbr_localization.configuration import from_mapping, to_mapping
from kbr_localization.errors import VisionError
from kbr_localization.progress import Progress, silent
from kbr_localization.vision.config import BEFORE, MOST_SAMPLES, VisionConfig
from kbr_localization.vision.describer import Describer
from kbr_localization.vision.loading import load_camera, load_examples, LoadableImage
from kbr_localization.vision.multi_camera import MultiCameraDescriber, sections_of
from kbr_localization.vision.network import network_of
from kbr_localization.vision.preparation import MIRROR_IMAGES, Preparation
from kbr_localization.vision.pyramid_describer import fit_pyramid, PyramidDescriber
from kbr_localization.vision.whole_image import fit_network, HogDescriber, NetworkDescriber
from kbr_localization.workers import Workers
import numpy as np

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
