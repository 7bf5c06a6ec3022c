"""Several cameras at once: a section of the descriptor for each, their kernels multiplied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kbr_localization.errors import VisionError
from kbr_localization.vision.describer import Describer
import numpy as np
from numpy.typing import NDArray

KIND = 'multi_camera'
TYPICAL_SIMILARITY = 0.55
"""Kernel value of two images of one place under different lights, as spatial pyramids have it."""


class MultiCameraDescriber(Describer):
    """
    Describer of what several cameras see at one moment.

    `cameras`: their names, `describers`: one for each. A descriptor concatenates the
    cameras' descriptors, zeros for a camera that has no image. The kernel is the product of the
    cameras' kernels, which is positive definite as they are; a camera without an image on either
    side is left out of it: `TYPICAL_SIMILARITY` stands for its kernel, the same for all, so that
    the product keeps its size.
    """

    kind = KIND

    def __init__(self, cameras: Sequence[str], describers: Sequence[Describer]) -> None:
        self.cameras, self.describers = tuple(cameras), tuple(describers)
        ends = np.cumsum([describer.size for describer in describers]).tolist()
        starts = [0, *ends[:-1]]
        self.sections = tuple(slice(*ends_of) for ends_of in zip(starts, ends, strict=True))
        self.size: int = ends[-1]
        self.dtype: np.dtype[Any] = np.result_type(*(d.dtype for d in describers))

    def describe(self, image: Any) -> NDArray[Any]:
        """
        Describe one image for each camera, None where there is none, by (size,).

        Raises VisionError for another number of images, and when a camera's image is bad.
        """
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

    def cross_gram(self, left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.float64]:
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

    def state(self) -> Mapping[str, Any]:
        """Return the names and a group for each camera: what `from_state` needs."""
        sections = {_group(i): dict(d.state()) for i, d in enumerate(self.describers)}
        return {'cameras': ','.join(self.cameras), **sections}


def missing_cameras(describer: Describer, descriptor: NDArray[Any]) -> int:
    """Count the cameras of a descriptor (d,) that had no image; 0 for a map of one camera."""
    if not isinstance(describer, MultiCameraDescriber):
        return 0
    return sum(not descriptor[section].any() for section in describer.sections)


def sections_of(state: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """States of the describers by camera, of the state of a describer of several."""
    names = state['cameras']
    names = names.decode() if isinstance(names, bytes) else str(names)
    return {name: state[_group(index)] for index, name in enumerate(names.split(','))}


def _group(index: int) -> str:
    return f'camera{index}'
