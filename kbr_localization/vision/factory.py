"""Make a describer from training images, or from what a map file kept of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
import dataclasses
import importlib
from typing import Any, cast

from kbr_localization.configuration import from_mapping
from kbr_localization.errors import DatasetError, VisionError
from kbr_localization.progress import Progress, silent
from kbr_localization.vision.config import BEFORE, DESCRIBERS, MOST_SAMPLES, VisionConfig
from kbr_localization.vision.describer import Describer, SelectableDescriber
from kbr_localization.vision.loading import load, LoadableImage, OneOfSeveral
from kbr_localization.vision.multi_camera import MultiCameraDescriber, sections_of
from kbr_localization.vision.preparation import MIRROR_IMAGES, Preparation
from kbr_localization.workers import ThisProcess, Workers
import numpy as np
from numpy.typing import NDArray

OMNI = 'omni'
SIZED_IMAGES = 5
"""Images that are asked for the camera's size: a single odd one does not set it."""


def fit_describer(
    config: VisionConfig,
    images: Sequence[LoadableImage],
    rng: np.random.Generator,
    workers: Workers | None = None,
    progress: Progress | None = None,
) -> Describer:
    """
    Learn from training images what the descriptor needs: a vocabulary, a camera's mirror.

    A few hundred images spread over the runs are enough, or functions that load them, of which
    those that fail are left out, as are images of an uncommon size. The same images and generator
    give the same describer, whoever the workers are. Raises VisionError for no images or a bad
    one.
    """
    few = SIZED_IMAGES if config.projection == 'perspective' else MIRROR_IMAGES
    preparation = Preparation.fit(config, _examples(images, few))
    workers, progress = workers or ThisProcess(), progress or silent
    kind = describer_class(config.descriptor)
    return kind.fit(config, preparation, images, rng, workers, progress)


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

    `images`: tuples with an image for each camera, or functions that load them. The images of a
    camera called `OMNI`, as COLD's is, are unwrapped whatever the others are.
    """
    describers = []
    for index, camera in enumerate(cameras):
        own = [OneOfSeveral(image, index) for image in images]
        projection = 'omnidirectional' if camera == OMNI else config.projection
        camera_config = dataclasses.replace(config, projection=projection)
        describers.append(fit_describer(camera_config, own, rng, workers, progress))
    return MultiCameraDescriber(cameras, describers)


def describer_class(name: str) -> type[SelectableDescriber]:
    """Look up the class of a descriptor; raises VisionError for one that is not registered."""
    if name not in DESCRIBERS:
        raise VisionError(f'descriptor {name!r}: expected one of {", ".join(DESCRIBERS)}')
    module, _, found = DESCRIBERS[name].rpartition('.')
    kind = getattr(importlib.import_module(f'kbr_localization.vision.{module}'), found)
    return cast('type[SelectableDescriber]', kind)


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
        values = {
            field.name: _plain(state[field.name], type(field.default))
            if field.name in state or field.name not in BEFORE
            else BEFORE[field.name]
            for field in dataclasses.fields(VisionConfig)
        }
        # a map may be of a time when there was no limit; nothing is learnt any more
        values['vocabulary_samples'] = min(values['vocabulary_samples'], MOST_SAMPLES)
        config = from_mapping(VisionConfig, values)
        kind = describer_class(config.descriptor)
        return kind.from_state(config, Preparation.from_state(config, state), state)
    except KeyError as error:
        raise VisionError(
            f'state of the describer: {error} is missing; build the map again'
        ) from error


def _examples(images: Sequence[LoadableImage], count: int) -> list[NDArray[np.uint8]]:
    """Load images spread over all of them, and keep those of the size that most of them have."""
    spread = np.linspace(0, len(images) - 1, min(count, len(images))).astype(int).tolist()
    loaded, trouble = list[NDArray[np.uint8]](), 'give at least one'
    # where one cannot be read another takes its place
    for index in dict.fromkeys([*spread, *range(len(images))]):
        try:
            loaded.append(load(images[index]))
        except DatasetError as error:
            trouble = str(error)
        if len(loaded) == count:
            break
    if not loaded:
        raise VisionError(f'no images to learn the vocabulary from: {trouble}')
    (common, _), *_ = Counter(image.shape[:2] for image in loaded).most_common()
    return [image for image in loaded if image.shape[:2] == common]


def _plain(value: Any, expected: type) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return expected(value)
