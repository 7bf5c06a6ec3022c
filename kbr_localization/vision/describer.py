"""
The interface between images and mathematics: descriptors that have a kernel.

A descriptor of several cameras has a section for each; its kernel is the product of the cameras'.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from kbr_localization.errors import VisionError
from kbr_localization.vision.config import VisionConfig
from kbr_localization.vision.preparation import Preparation
import numpy as np
from numpy.typing import NDArray

Descriptors = NDArray[Any]
State = Mapping[str, Any]
"""Arrays and scalars by name."""
TYPICAL_SIMILARITY = 0.55
"""Kernel value of two images of one place under different lights, as spatial pyramids have it."""


Compare = Callable[[Descriptors], NDArray[np.float64]]
"""Kernel values of kept descriptors and others: (size,) -> (n,), (m, size) -> (n, m)."""


class Describer(Protocol):
    """
    Turn images into vectors and compare them with a kernel k in [0, 1], 1 for equal images.

    `kind`: the name under which `VisionConfig.descriptor` selects it. `size`, `dtype`: length and
    type of a descriptor (small integers for visual-word counts). `cameras`: names of several
    cameras, empty for one.
    """

    kind: str
    size: int
    dtype: np.dtype[Any]
    cameras: tuple[str, ...] = ()

    def describe(self, image: NDArray[np.uint8]) -> Descriptors:
        """Descriptor (size,) of a grey (h, w) or BGR (h, w, 3) image; raises VisionError."""

    def cross_gram(self, left: Descriptors, right: Descriptors) -> NDArray[np.float64]:
        """Kernel matrix (n, m) in [0, 1] of descriptors (n, size) and (m, size)."""

    def state(self) -> State:
        """Arrays and scalars from which the describer can be built again; kept in the map."""

    def prepared(self, descriptors: Descriptors) -> Compare:
        """Prepare descriptors (n, size), which must not change, for repeated comparison."""
        return partial(compare, self, descriptors)


def compare(describer: Describer, kept: Descriptors, queries: Descriptors) -> NDArray[np.float64]:
    """Compare descriptors (n, size) as they are, as a `Compare` does."""
    rows = describer.cross_gram(np.atleast_2d(queries), kept)
    values = np.asarray(rows, dtype=np.float64).T
    return values if queries.ndim > 1 else values[:, 0]


class CameraDescriber(Describer):
    """Describer of one camera; a map keeps the entries `kept` of what it has learnt."""

    kept: tuple[str, ...] = ()

    def __init__(self, config: VisionConfig, preparation: Preparation, learnt: State) -> None:
        self.kind, self.config, self.preparation = config.descriptor, config, preparation
        self.learnt = {name: learnt[name] for name in self.kept if name in learnt}

    def __reduce__(self) -> tuple[Any, ...]:
        # the session of a network cannot be sent to another process
        return type(self), (self.config, self.preparation, self.learnt)

    def state(self) -> State:
        """Return configuration, camera and what was learnt by name."""
        return {**vars(self.config), **self.preparation.state(), **self.learnt}


class MultiCameraDescriber(Describer):
    """
    Describer of what several cameras see at one moment.

    `cameras`: their names, `describers`: one for each. A descriptor concatenates the
    cameras' descriptors, zeros for a camera that has no image. The kernel is the product of the
    cameras' kernels, which is positive definite as they are; for a camera without an image on
    either side `TYPICAL_SIMILARITY` stands for its kernel, so that the product keeps its size.
    """

    kind = 'multi_camera'

    def __init__(self, cameras: Sequence[str], describers: Sequence[Describer]) -> None:
        self.cameras, self.describers = tuple(cameras), tuple(describers)
        ends = np.cumsum([describer.size for describer in describers]).tolist()
        self.sections = tuple(map(slice, [0, *ends[:-1]], ends))
        self.size: int = ends[-1]
        self.dtype: np.dtype[Any] = np.result_type(*(d.dtype for d in describers))

    def describe(self, image: Any) -> Descriptors:
        """Describe an image for each camera, None where there is none; raises VisionError."""
        images = image if isinstance(image, tuple) else (image,)
        if len(images) != len(self.cameras):
            raise VisionError(
                f'{len(images)} images at once: expected one for each camera of the map '
                f'({", ".join(self.cameras)})'
            )
        if all(one is None for one in images):
            raise VisionError('no camera has an image: expected at least one')
        descriptor = np.zeros(self.size, dtype=self.dtype)
        parts = zip(self.cameras, self.describers, self.sections, images, strict=True)
        for camera, describer, section, one in parts:
            if one is None:
                continue
            try:
                descriptor[section] = describer.describe(one)
            except VisionError as error:
                raise VisionError(f'camera {camera}: {error}') from error
        return descriptor

    def cross_gram(self, left: Descriptors, right: Descriptors) -> NDArray[np.float64]:
        """Product (n, m) in [0, 1] of the cameras' kernels of (n, size) and (m, size)."""
        result = np.ones((len(left), len(right)))
        for describer, section in zip(self.describers, self.sections, strict=True):
            rows, columns = (
                np.ascontiguousarray(side[:, section], dtype=describer.dtype)
                for side in (left, right)
            )
            factor = describer.cross_gram(rows, columns)
            factor[~rows.any(axis=1)] = TYPICAL_SIMILARITY
            factor[:, ~columns.any(axis=1)] = TYPICAL_SIMILARITY
            result *= factor
        return result

    def state(self) -> State:
        """Return the names and a group for each camera."""
        sections = {f'camera{i}': dict(d.state()) for i, d in enumerate(self.describers)}
        return {'cameras': ','.join(self.cameras), **sections}


def missing_cameras(describer: Describer, descriptor: Descriptors) -> int:
    """Count the cameras of a descriptor (d,) that had no image; 0 for a map of one camera."""
    if not isinstance(describer, MultiCameraDescriber):
        return 0
    return sum(not descriptor[section].any() for section in describer.sections)


def sections_of(state: State) -> dict[str, State]:
    """States of the describers by camera, of the state of a describer of several."""
    names = state['cameras'].split(',')
    return {name: state[f'camera{index}'] for index, name in enumerate(names)}
