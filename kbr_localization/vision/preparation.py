"""
From a camera image to the image that is described: loaded, checked, unwrapped, scaled, equalised.

A catadioptric camera sees all around through a mirror, as a ring about the mirror's centre. Its
panorama has one column per direction and the horizon along its rows: turning the robot by an angle
shifts the columns by that fraction of the full turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
import dataclasses
from dataclasses import dataclass
import logging
from typing import Any

import cv2
from kbr_localization.errors import DatasetError, VisionError
from kbr_localization.vision.config import LEARNED, VisionConfig
import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]
LoadableImage = Image | Callable[[], Image]
"""An image, or a function that loads it or raises DatasetError."""

logger = logging.getLogger(__name__)


def load(image: LoadableImage) -> Image:
    """Return the image; raises DatasetError when its function cannot read it."""
    return image() if callable(image) else image


def load_examples(images: Sequence[LoadableImage], count: int) -> list[Image]:
    """
    Load `count` images spread over all; keep the ones of the commonest size.

    Others take the place of images that cannot be read. Raises VisionError when none can.
    """
    spread = np.linspace(0, len(images) - 1, min(count, len(images))).astype(int).tolist()
    loaded, trouble = list[Image](), 'give at least one'
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


@dataclass(frozen=True)
class Mirror:
    """
    Ring of an omnidirectional image that shows the surroundings, in pixels.

    `x`, `y`: centre. `inner`, `outer`: radii where the robot's own image and the mirror end.
    """

    x: float
    y: float
    inner: float
    outer: float

    def __post_init__(self) -> None:
        """Refuse a ring that is none."""
        if not 0 <= self.inner < self.outer:
            raise VisionError(
                f'mirror radii: expected 0 <= inner < outer, got {self.inner:.1f} and '
                f'{self.outer:.1f}; set vision.mirror_inner and vision.mirror_outer'
            )


class Panorama:
    """
    Unwrap the ring of a mirror into a panorama `width` columns wide.

    `shape`: (height, width) of the panorama; its scale is right in the ring's middle. The first
    column looks to the right of the image, the following ones turn clockwise in the image; the
    top row lies at the outer radius.
    """

    def __init__(self, mirror: Mirror, width: int) -> None:
        middle = np.pi * (mirror.inner + mirror.outer)
        height = max(1, round((mirror.outer - mirror.inner) * width / middle))
        self.shape = (height, width)
        angle = (np.arange(width) + 0.5) * (2 * np.pi / width)
        fraction = (np.arange(height) + 0.5) / height
        radius = (mirror.outer - fraction * (mirror.outer - mirror.inner))[:, np.newaxis]
        self._columns = (mirror.x + radius * np.cos(angle)).astype(np.float32)
        self._rows = (mirror.y + radius * np.sin(angle)).astype(np.float32)

    def unwrap(self, image: Image) -> Image:
        """Panorama of an omnidirectional image (h, w) or (h, w, 3)."""
        unwrapped = cv2.remap(image, self._columns, self._rows, cv2.INTER_LINEAR)
        return np.asarray(unwrapped, dtype=np.uint8)


def find_mirror(images: Sequence[Image], x: float = 0.0, y: float = 0.0) -> Mirror:
    """
    Find the ring that changes between the images of a moving robot.

    Grey images (h, w) of one size; outside of the mirror and on the robot's own image they do
    not change. `x`, `y`: its centre where that is known, otherwise 0. Of fewer than five images,
    of a robot that stood still, or where what changes is no ring, it is assumed in the middle of
    the image, as large as fits. Images that change up to their corners are reported.
    """
    height, width = images[0].shape
    outer = 0.48 * min(height, width)
    assumed = Mirror(x or width / 2, y or height / 2, 0.3 * outer, outer)
    if len(images) < 5:
        return assumed
    # in bands of rows: all at once take eight times the memory of the images
    bands = (slice(top, top + 32) for top in range(0, height, 32))
    parts = (np.stack([image[band] for image in images]).astype(np.float32) for band in bands)
    deviations = np.concatenate([np.std(part, axis=0) for part in parts])
    change = cv2.GaussianBlur(deviations, (0, 0), 2.0)
    moving = change > 0.35 * np.percentile(change, 95)
    down, right = max(1, height // 10), max(1, width // 10)
    halves = moving[:down], moving[-down:]
    if all(np.mean(half[:, side]) > 0.5 for half in halves for side in np.s_[:right, -right:]):
        logger.warning(
            'the images change up to their corners, where no mirror reaches: expected those of an '
            'omnidirectional camera; otherwise set vision.projection=perspective'
        )
    if not 0.05 < moving.mean() < 0.95:
        return assumed
    # each row's and column's extent is a chord: their middles give the centre whatever is inside
    rows, columns = np.nonzero(moving)
    x = x or float(np.percentile(columns, 0.5) + np.percentile(columns, 99.5)) / 2
    y = y or float(np.percentile(rows, 0.5) + np.percentile(rows, 99.5)) / 2
    radius = np.hypot(*(np.indices(moving.shape) - np.array([y, x])[:, np.newaxis, np.newaxis]))
    bins = radius.astype(int).ravel()
    fraction = np.bincount(bins, moving.ravel()) / np.maximum(np.bincount(bins), 1)
    inside = np.flatnonzero(fraction > 0.5)
    return Mirror(x, y, float(inside[0]), float(inside[-1] + 1)) if inside.size else assumed


def check_image(image: NDArray[Any]) -> None:
    """Raise VisionError unless it is a non-empty uint8 image, grey (h, w) or BGR (h, w, 3)."""
    if isinstance(image, tuple):
        raise VisionError(f'images of {len(image)} cameras at once: expected that of one camera')
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8:
        found = getattr(image, 'dtype', type(image).__name__)
        raise VisionError(f'image of type {found}: expected uint8; convert it to 8 bits a channel')
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] not in (1, 3)):
        raise VisionError(
            f'image of shape {image.shape}: expected (height, width) or (height, width, 3); '
            f'convert it to grey or BGR'
        )
    if image.size == 0:
        raise VisionError(f'image of shape {image.shape} is empty: expected at least one pixel')


def to_grey(image: Image) -> Image:
    """Grey image (h, w) of a grey (h, w), (h, w, 1) or BGR (h, w, 3) image."""
    if image.ndim == 3 and image.shape[2] == 3:
        return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY), dtype=np.uint8)
    return np.ascontiguousarray(image.reshape(image.shape[:2]))


class Preparation:
    """
    Bring every image of one camera into the same working form.

    `image_shape`: (height, width) of the camera's images. `shape`: of the prepared images. Map
    and query images must share the size in pixels, since another size mostly means another
    camera or crop; with `any_scale` they need to share the aspect ratio only. The first and last
    columns of a panorama are neighbours (`wraps`).
    """

    def __init__(
        self, config: VisionConfig, image_shape: tuple[int, int], mirror: Mirror | None = None
    ) -> None:
        self.image_shape, self.mirror, self.wraps = image_shape, mirror, mirror is not None
        self.any_scale, self._equalises = config.any_scale, config.illumination == 'clahe'
        learned = config.descriptor == LEARNED
        width = config.network_width if learned else config.working_width
        self._panorama = Panorama(mirror, width) if mirror else None
        if self._panorama:
            self.shape = self._panorama.shape
            return
        # what is too small is scaled up by its longer side
        height, columns = image_shape
        least = width if config.scale_up and not learned else 0
        width = max(1, min(round(columns * max(1.0, least / max(image_shape))), width))
        self.shape = (max(1, round(height * width / columns)), width)

    @classmethod
    def fit(cls, config: VisionConfig, images: Sequence[LoadableImage]) -> Preparation:
        """
        Take the size from some of the images, and from more where the camera's mirror lies.

        Raises VisionError for a bad image, and for a mirror outside of it.
        """
        # five, so that a single odd image does not set the camera's size
        examples = load_examples(images, 5 if config.projection == 'perspective' else 40)
        check_image(examples[0])
        height, width = examples[0].shape[:2]
        if config.projection == 'perspective':
            return cls(config, (height, width))
        given = {name: getattr(config, f'mirror_{name}') for name in ('x', 'y', 'inner', 'outer')}
        if all(given.values()):
            mirror = Mirror(**given)
        else:
            wide = dataclasses.replace(config, working_width=8192, network_width=8192)
            whole = cls(dataclasses.replace(wide, scale_up=False), (height, width))
            found = find_mirror([whole.grey(one) for one in examples], given['x'], given['y'])
            known = {name: value for name, value in given.items() if value}
            mirror = dataclasses.replace(found, **known)
        if mirror.x > width or mirror.y > height:
            raise VisionError(
                f'mirror centred at column {mirror.x:g}, row {mirror.y:g}: expected it in the '
                f'image of {width}x{height} pixels; set mirror_x and mirror_y in its pixels'
            )
        return cls(config, (height, width), mirror)

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
        # a kept object has buffers, which threads would share
        return np.asarray(cv2.createCLAHE(2.0, (8, 8)).apply(prepared), dtype=np.uint8)

    def colour(self, image: Image) -> Image:
        """Prepare a BGR image of `shape` without equalisation; raises VisionError."""
        image = self._checked(image)
        if image.ndim == 2 or image.shape[2] == 1:
            image = np.asarray(cv2.cvtColor(image, cv2.COLOR_GRAY2BGR), dtype=np.uint8)
        return self._resample(image)

    def _checked(self, image: Image) -> Image:
        check_image(image)
        (height, width), (rows, columns) = image.shape[:2], self.image_shape
        if (height, width) == (rows, columns):
            return image
        if not self.any_scale or abs(height * columns / (width * rows) - 1) > 0.01:
            shared = 'aspect ratio' if self.any_scale else 'size'
            raise VisionError(
                f'image of {width}x{height} pixels: expected the {shared} of the map, '
                f'{columns}x{rows}; set the camera to that size or build the map again'
            )
        return _resized(image, self.image_shape)

    def _resample(self, image: Image) -> Image:
        if self._panorama is not None:
            return self._panorama.unwrap(image)
        return image if image.shape[:2] == self.shape else _resized(image, self.shape)


def _resized(image: Image, shape: tuple[int, int]) -> Image:
    method = cv2.INTER_AREA if image.shape[1] > shape[1] else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(image, shape[::-1], interpolation=method), dtype=np.uint8)
