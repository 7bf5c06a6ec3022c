"""
Prepare camera images for description: load, check, unwrap, scale and equalise them.

A catadioptric camera sees all around through a mirror, as a ring about the mirror's centre. Its
unwrapped panorama has one column per direction, and its rows are parallel to the horizon. A turn
of the robot shifts the columns in proportion to the angle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import cv2
from kbr_localization.errors import DatasetError, VisionError
from kbr_localization.vision.config import LEARNED, VisionConfig
from kbr_localization.workers import batches
import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]
LoadableImage = Image | Callable[[], Image]
"""An image, or a function that loads it or raises DatasetError."""


def load(image: LoadableImage) -> Image:
    """Return the image; raises DatasetError if it cannot be read."""
    return image() if callable(image) else image


def select_evenly(items: NDArray[Any], limit: int) -> NDArray[Any]:
    """Return at most `limit` rows of an array (n, ...), evenly spaced from first to last."""
    spread = np.linspace(0, len(items) - 1, min(limit, len(items)))
    return items[np.unique(spread.astype(np.intp))]


def load_examples(images: Sequence[LoadableImage], count: int) -> list[Image]:
    """Load up to `count` readable images, evenly spaced; drop those not of the commonest size."""
    indices, loaded, reason = np.arange(len(images)), list[Image](), 'give at least one'
    for index in dict.fromkeys([*select_evenly(indices, count).tolist(), *indices.tolist()]):
        try:
            loaded.append(load(images[index]))
        except DatasetError as error:
            reason = str(error)
        if len(loaded) == count:
            break
    if not loaded:
        raise VisionError(f'no images to learn the vocabulary from: {reason}')
    (common, _), *_ = Counter(image.shape[:2] for image in loaded).most_common()
    return [image for image in loaded if image.shape[:2] == common]


class Mirror(NamedTuple):
    """Ring of the image that shows the surroundings: centre, inner and outer radius, in pixels."""

    x: float
    y: float
    inner: float
    outer: float


def panorama_maps(mirror: Mirror, width: int) -> tuple[Any, Any]:
    """
    Return the image column and row of each pixel of a panorama, (height, width) each.

    The height preserves the aspect ratio at the mean radius. The first column looks to the right
    of the image, the next ones follow clockwise; the top row lies at the outer radius.
    """
    circumference = np.pi * (mirror.inner + mirror.outer)
    height = max(1, round((mirror.outer - mirror.inner) * width / circumference))
    angle = (np.arange(width) + 0.5) * (2 * np.pi / width)
    fraction = (np.arange(height) + 0.5) / height
    radius = (mirror.outer - fraction * (mirror.outer - mirror.inner))[:, np.newaxis]
    columns, rows = mirror.x + radius * np.cos(angle), mirror.y + radius * np.sin(angle)
    return columns.astype(np.float32), rows.astype(np.float32)


def find_mirror(images: Sequence[Image]) -> Mirror:
    """
    Find the ring of pixels that change while the robot moves, from grey images (h, w).

    Pixels outside the mirror and on the reflection of the robot do not change. With fewer than
    five images, a robot that stands still, or changes that form no ring, a ring about the image
    centre is returned that is as large as fits.
    """
    height, width = images[0].shape
    rim = 0.48 * min(height, width)
    assumed = Mirror(width / 2, height / 2, 0.3 * rim, rim)
    # work in bands of rows: the whole images would take eight times their memory
    parts = zip(*(batches(image, 32) for image in images), strict=True)
    deviations = np.concatenate(
        [np.std(np.stack(part).astype(np.float32), axis=0) for part in parts]
    )
    change = cv2.GaussianBlur(deviations, (0, 0), 2.0)
    moving = change > 0.35 * np.percentile(change, 95)
    if len(images) < 5 or not 0.05 < moving.mean() < 0.95:
        return assumed
    # the middle of the extent is the centre, however much of the inside changes
    y, x = (
        float(np.percentile(indices, 0.5) + np.percentile(indices, 99.5)) / 2
        for indices in np.nonzero(moving)
    )
    rows, columns = np.indices(moving.shape)
    bins = np.hypot(rows - y, columns - x).astype(int).ravel()
    fraction = np.bincount(bins, moving.ravel()) / np.maximum(np.bincount(bins), 1)
    inside = np.flatnonzero(fraction > 0.5)
    if not inside.size:
        return assumed
    return Mirror(x, y, float(inside[0]), float(inside[-1] + 1))


def check_image(image: Any) -> None:
    """Raise VisionError unless this is a non-empty uint8 image, grey (h, w) or BGR (h, w, 3)."""
    found = f'images of {len(image)} cameras' if isinstance(image, tuple) else f'{type(image)}'
    if isinstance(image, np.ndarray):
        usual = image.ndim == 2 or (image.ndim == 3 and image.shape[2] in (1, 3))
        if usual and image.size and image.dtype == np.uint8:
            return
        found = f'{image.dtype} {image.shape}'
    raise VisionError(
        f'image: expected uint8 (height, width) or (height, width, 3) of one camera, not empty, '
        f'got {found}; convert it to 8-bit grey or BGR'
    )


def to_grey(image: Image) -> Image:
    """Convert a grey (h, w), (h, w, 1) or BGR (h, w, 3) image to grey (h, w)."""
    if image.ndim == 3 and image.shape[2] == 3:
        return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY), dtype=np.uint8)
    return np.ascontiguousarray(image.reshape(image.shape[:2]))


def equalise(grey: Image) -> Image:
    """Equalise the local contrast of a grey image (h, w)."""
    # make a new object each time: its buffers are not thread-safe
    return np.asarray(cv2.createCLAHE(2.0, (8, 8)).apply(grey), dtype=np.uint8)


class Preparation:
    """
    Prepare all images of one camera in the same way.

    `image_shape`: (height, width) of the camera images. `shape`: (height, width) when prepared.
    Map and query images must have the same size in pixels, since another size usually means
    another camera or crop; with `any_scale` only the aspect ratio must agree. `wraps`: the first
    and last columns of a prepared image are neighbours, as in a panorama.
    """

    def __init__(
        self, config: VisionConfig, image_shape: tuple[int, int], mirror: Mirror | None = None
    ) -> None:
        self.image_shape, self.mirror, self.wraps = image_shape, mirror, mirror is not None
        self.any_scale, self._equalises = config.any_scale, config.illumination == 'clahe'
        learned = config.descriptor == LEARNED
        width = config.network_width if learned else config.working_width
        height, columns = image_shape
        if mirror is not None:
            inside = mirror.x <= columns and mirror.y <= height
            if not (0 <= mirror.inner < mirror.outer and inside):
                raise VisionError(
                    f'{mirror}: expected a ring with its centre in the image of '
                    f'{columns}x{height} pixels; build the map again'
                )
            self._maps = panorama_maps(mirror, width)
            self.shape: tuple[int, int] = self._maps[0].shape
            return
        # scale small images up by their longer side
        least = width if config.scale_up and not learned else 0
        width = max(1, min(round(columns * max(1.0, least / max(image_shape))), width))
        self.shape = (max(1, round(height * width / columns)), width)

    @classmethod
    def fit(cls, config: VisionConfig, images: Sequence[LoadableImage]) -> Preparation:
        """Find the image size and the mirror from training images; raises VisionError."""
        # five images, so that a single odd one does not determine the size
        examples = load_examples(images, 5 if config.projection == 'perspective' else 40)
        check_image(examples[0])
        height, width = examples[0].shape[:2]
        if config.projection == 'perspective':
            return cls(config, (height, width))
        greys = [to_grey(one) for one in examples]
        if config.illumination == 'clahe':
            greys = [equalise(one) for one in greys]
        return cls(config, (height, width), find_mirror(greys))

    @classmethod
    def from_state(cls, config: VisionConfig, state: Mapping[str, Any]) -> Preparation:
        shape = (int(state['image_height']), int(state['image_width']))
        if config.projection == 'perspective':
            return cls(config, shape)
        return cls(config, shape, Mirror(*(float(value) for value in state['mirror'])))

    def state(self) -> dict[str, Any]:
        """Return the image size, and the mirror if there is one, by name."""
        height, width = self.image_shape
        state: dict[str, Any] = {'image_height': height, 'image_width': width}
        return state if self.mirror is None else state | {'mirror': np.array(self.mirror)}

    def grey(self, image: Image) -> Image:
        """Return a grey image of `shape`; raises VisionError."""
        prepared = self._resample(to_grey(self._checked(image)))
        return equalise(prepared) if self._equalises else prepared

    def colour(self, image: Image) -> Image:
        """Return a BGR image of `shape`, not equalised; raises VisionError."""
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
            required = 'aspect ratio' if self.any_scale else 'size'
            raise VisionError(
                f'image of {width}x{height} pixels: expected the {required} of the map, '
                f'{columns}x{rows}; set the camera to that size or build the map again'
            )
        return _resized(image, self.image_shape)

    def _resample(self, image: Image) -> Image:
        if self.mirror is not None:
            return np.asarray(cv2.remap(image, *self._maps, cv2.INTER_LINEAR), dtype=np.uint8)
        return image if image.shape[:2] == self.shape else _resized(image, self.shape)


def resize_to_width(image: Image, width: int) -> Image:
    """Scale an image (h, w) or (h, w, 3) to `width` columns by area averaging."""
    height = max(1, round(image.shape[0] * width / image.shape[1]))
    return np.asarray(cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA), np.uint8)


def _resized(image: Image, shape: tuple[int, int]) -> Image:
    method = cv2.INTER_AREA if image.shape[1] > shape[1] else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(image, shape[::-1], interpolation=method), dtype=np.uint8)
