"""From a camera image to the image that is described: checked, unwrapped, scaled, equalised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import cv2
from kbr_localization.errors import VisionError
from kbr_localization.vision.config import VisionConfig
from kbr_localization.vision.panorama import find_mirror, Mirror, Panorama
import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]

_COLOUR_AXES = 3
_ASPECT_TOLERANCE = 0.01
_CLAHE_CLIP, _CLAHE_TILES = 2.0, 8
MIRROR_IMAGES = 40
_WIDEST = 8192


def check_image(image: NDArray[Any]) -> None:
    """Raise VisionError unless it is a non-empty uint8 image, grey (h, w) or BGR (h, w, 3)."""
    if isinstance(image, tuple):
        raise VisionError(f'images of {len(image)} cameras at once: expected that of one camera')
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8:
        found = getattr(image, 'dtype', type(image).__name__)
        raise VisionError(f'image of type {found}: expected uint8; convert it to 8 bits a channel')
    if image.ndim not in (2, 3) or (image.ndim == _COLOUR_AXES and image.shape[2] not in (1, 3)):
        raise VisionError(
            f'image of shape {image.shape}: expected (height, width) or (height, width, 3); '
            f'convert it to grey or BGR'
        )
    if image.size == 0:
        raise VisionError(f'image of shape {image.shape} is empty: expected at least one pixel')


def to_grey(image: Image) -> Image:
    """Grey image (h, w) of a grey (h, w), (h, w, 1) or BGR (h, w, 3) image."""
    if image.ndim == _COLOUR_AXES and image.shape[2] == _COLOUR_AXES:
        return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY), dtype=np.uint8)
    return np.ascontiguousarray(image.reshape(image.shape[:2]))


def to_bgr(image: Image) -> Image:
    """BGR image (h, w, 3) of a grey or BGR image."""
    if image.ndim == _COLOUR_AXES and image.shape[2] == _COLOUR_AXES:
        return image
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_GRAY2BGR), dtype=np.uint8)


class Preparation:
    """
    Bring every image of one camera into the same working form.

    `image_shape`: (height, width) of the camera's images. `shape`: of the prepared images. Map
    and query images must share the size in pixels, since another size mostly means another
    camera or crop; with `any_scale` they need to share the aspect ratio only. An omnidirectional
    image becomes a panorama whose first and last columns are neighbours: turning the robot
    shifts the columns.
    """

    def __init__(
        self, config: VisionConfig, image_shape: tuple[int, int], mirror: Mirror | None = None
    ) -> None:
        self.image_shape, self.mirror = image_shape, mirror
        self.any_scale = config.any_scale
        self.wraps = mirror is not None
        self._panorama = None if mirror is None else Panorama(mirror, config.prepared_width)
        self.shape = _scaled(image_shape, config)
        if self._panorama is not None:
            self.shape = self._panorama.shape
        self._equalises = config.illumination == 'clahe'

    @classmethod
    def fit(cls, config: VisionConfig, images: Sequence[Image]) -> Preparation:
        """
        Take the size from the first image, and from some where the camera's mirror lies.

        Raises VisionError for a bad image, and for a mirror beside it.
        """
        check_image(images[0])
        shape = (images[0].shape[0], images[0].shape[1])
        if config.projection == 'perspective':
            return cls(config, shape)
        mirror = _mirror(config, shape, images)
        _check_inside(mirror, shape)
        return cls(config, shape, mirror)

    @classmethod
    def from_state(cls, config: VisionConfig, state: Mapping[str, Any]) -> Preparation:
        """Build again from `state()`."""
        shape = (int(state['image_height']), int(state['image_width']))
        if config.projection == 'perspective':
            return cls(config, shape)
        return cls(config, shape, Mirror(*(float(value) for value in state['mirror'])))

    def state(self) -> dict[str, Any]:
        """Return the camera's size, and its mirror if it has one, by name."""
        height, width = self.image_shape
        state: dict[str, Any] = {'image_height': height, 'image_width': width}
        if self.mirror is not None:
            state['mirror'] = np.array(dataclasses.astuple(self.mirror))
        return state

    def grey(self, image: Image) -> Image:
        """Prepare a grey image of `shape`; raises VisionError."""
        prepared = self._resample(to_grey(self._checked(image)))
        if not self._equalises:
            return prepared
        # one that is kept has buffers of its own, which threads would share
        clahe = cv2.createCLAHE(_CLAHE_CLIP, (_CLAHE_TILES, _CLAHE_TILES))
        return np.asarray(clahe.apply(prepared), dtype=np.uint8)

    def colour(self, image: Image) -> Image:
        """Prepare a BGR image of `shape`, its light as it is; raises VisionError."""
        return self._resample(to_bgr(self._checked(image)))

    def _checked(self, image: Image) -> Image:
        check_image(image)
        height, width = image.shape[:2]
        if (height, width) == self.image_shape:
            return image
        fitted = self.image_shape
        distortion = abs(height * fitted[1] / (width * fitted[0]) - 1)
        if not self.any_scale or distortion > _ASPECT_TOLERANCE:
            shared = 'aspect ratio' if self.any_scale else 'size'
            raise VisionError(
                f'image of {width}x{height} pixels: expected the {shared} of the map, '
                f'{fitted[1]}x{fitted[0]}; set the camera to that size or build the map again'
            )
        return _resized(image, fitted)

    def _resample(self, image: Image) -> Image:
        if self._panorama is not None:
            return self._panorama.unwrap(image)
        if image.shape[:2] == self.shape:
            return image
        return _resized(image, self.shape)


def _resized(image: Image, shape: tuple[int, int]) -> Image:
    """Scale an image to a shape (height, width)."""
    method = cv2.INTER_AREA if image.shape[1] > shape[1] else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(image, shape[::-1], interpolation=method), dtype=np.uint8)


def _scaled(shape: tuple[int, int], config: VisionConfig) -> tuple[int, int]:
    """Working shape of an image: what is too small is scaled up by its longer side."""
    grown = round(shape[1] * max(1.0, config.least_side / max(shape)))
    width = max(1, min(grown, config.prepared_width))
    return max(1, round(shape[0] * width / shape[1])), width


def _mirror(config: VisionConfig, shape: tuple[int, int], images: Sequence[Image]) -> Mirror:
    set_by_user = {
        'x': config.mirror_x,
        'y': config.mirror_y,
        'inner': config.mirror_inner,
        'outer': config.mirror_outer,
    }
    if all(set_by_user.values()):
        return Mirror(**set_by_user)
    spread = np.unique(np.linspace(0, len(images) - 1, MIRROR_IMAGES).astype(int))
    wide = dataclasses.replace(
        config, working_width=_WIDEST, network_width=_WIDEST, scale_up=False
    )
    whole = Preparation(wide, shape)
    grey = [whole.grey(images[index]) for index in spread]
    found = find_mirror(grey, config.mirror_x, config.mirror_y)
    return dataclasses.replace(found, **{name: v for name, v in set_by_user.items() if v})


def _check_inside(mirror: Mirror, shape: tuple[int, int]) -> None:
    """Raise VisionError for a mirror centred beside the image, whose panorama would be black."""
    if mirror.x > shape[1] or mirror.y > shape[0]:
        raise VisionError(
            f'mirror centred at column {mirror.x:g}, row {mirror.y:g}: expected it in the image '
            f'of {shape[1]}x{shape[0]} pixels; set mirror_x and mirror_y in pixels of that size'
        )
