"""The interface of describers: they turn images into descriptors and compare these by a kernel."""

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
"""Pyramid kernel of two images of one place in different light."""
Comparer = Callable[[Descriptors], NDArray[np.float64]]
"""Kernel values of n stored descriptors and queries: (size,) -> (n,), (m, size) -> (n, m)."""


class Describer(Protocol):
    """
    Turn images into vectors and compare them with a kernel k in [0, 1], 1 for equal images.

    `kind`: its name in `VisionConfig.descriptor`. `size`, `dtype`: length and type of a descriptor
    (small integers for counts of visual words). `cameras`: names of the cameras if there are
    several, else empty.
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
        """Arrays and scalars, stored in the map, from which the describer is built again."""

    def comparer(self, descriptors: Descriptors) -> Comparer:
        """Prepare for repeated comparison with descriptors (n, size), which must not change."""
        return partial(kernel_vectors, self, descriptors)


def kernel_vectors(
    describer: Describer, stored: Descriptors, queries: Descriptors
) -> NDArray[np.float64]:
    """Compare queries with stored descriptors (n, size), as an unprepared `Comparer`."""
    rows = describer.cross_gram(np.atleast_2d(queries), stored)
    values = np.asarray(rows, dtype=np.float64).T
    return values if queries.ndim > 1 else values[:, 0]


class CameraDescriber(Describer):
    """Describer of one camera; `learnt_entries`: names of the learnt arrays that a map stores."""

    learnt_entries: tuple[str, ...] = ()

    def __init__(self, config: VisionConfig, preparation: Preparation, learnt: State) -> None:
        self.kind, self.config, self.preparation = config.descriptor, config, preparation
        self.learnt = {name: learnt[name] for name in self.learnt_entries if name in learnt}

    def __reduce__(self) -> tuple[Any, ...]:
        # the onnxruntime session of a network cannot be pickled
        return type(self), (self.config, self.preparation, self.learnt)

    def state(self) -> State:
        return {**vars(self.config), **self.preparation.state(), **self.learnt}


class MultiCameraDescriber(Describer):
    """
    Describer of simultaneous images of several cameras.

    A descriptor concatenates the descriptors of the cameras, zeros for a camera without an image.
    The kernel is the product of the kernels of the cameras, so it is positive definite. Where
    either side lacks the image of a camera, `TYPICAL_SIMILARITY` replaces that camera's kernel,
    so that the product stays on the same scale.
    """

    kind = 'multi_camera'

    def __init__(self, cameras: Sequence[str], describers: Sequence[Describer]) -> None:
        self.cameras, self.describers = tuple(cameras), tuple(describers)
        ends = np.cumsum([describer.size for describer in describers]).tolist()
        self.sections = tuple(map(slice, [0, *ends[:-1]], ends))
        self.size: int = ends[-1]
        self.dtype: np.dtype[Any] = np.result_type(*(d.dtype for d in describers))

    def describe(self, image: Any) -> Descriptors:
        """Describe one image per camera, None where it is missing; raises VisionError."""
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
        """Return the names of the cameras and a group with the state of each."""
        sections = {f'camera{i}': dict(d.state()) for i, d in enumerate(self.describers)}
        return {'cameras': ','.join(self.cameras), **sections}


def missing_cameras(describer: Describer, descriptor: Descriptors) -> int:
    """Count the cameras without an image in a descriptor (d,); 0 if the map has one camera."""
    if not isinstance(describer, MultiCameraDescriber):
        return 0
    return sum(not descriptor[section].any() for section in describer.sections)


def camera_states(state: State) -> dict[str, State]:
    """Split the state of a MultiCameraDescriber into the states of its cameras, by name."""
    names = state['cameras'].split(',')
    return {name: state[f'camera{index}'] for index, name in enumerate(names)}
