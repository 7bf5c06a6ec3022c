"""Images that are added to a map while a robot localizes on it, and the file with them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
from kbr_localization.datasets.multi_camera import side_by_side
from kbr_localization.errors import MapError
from kbr_localization.files import FileLock
from kbr_localization.localization.map.kernel_map import KernelMap, PER_IMAGE
from kbr_localization.se2 import FloatArray
from kbr_localization.vision.preparation import resize_to_width, select_evenly
import numpy as np

GROWN_RUN = 'added while localizing'
"""Name of the run of the added images."""
THUMBNAIL_WIDTH = 160
MAX_IMAGES_TO_GROW = 10_000
"""Every added image copies the map; a larger map is not in memory but mapped from its file."""


@dataclass(frozen=True)
class NewImage:
    """An image to add: stamp, pose (3,) in the map frame, descriptor (d,), JPEG file."""

    stamp_ns: int
    pose: FloatArray
    descriptor: np.ndarray
    thumbnail: bytes = b''


def make_thumbnail(image: np.ndarray) -> bytes:
    """Make a small JPEG file of an image (h, w) or (h, w, 3)."""
    return bytes(cv2.imencode('.jpg', resize_to_width(side_by_side(image), THUMBNAIL_WIDTH))[1])


def with_images(kernel_map: KernelMap, images: Sequence[NewImage]) -> KernelMap:
    """
    Append images to a map as a run called `GROWN_RUN`.

    Poses, descriptors and parameters of the map's images do not change. The controls of the added
    images are NaN, because they are not consecutive images of a drive. Their covariances are those
    of the map's nearest poses. Raises MapError for a map beyond `MAX_IMAGES_TO_GROW`.
    """
    if len(kernel_map) > MAX_IMAGES_TO_GROW:
        raise MapError(
            f'a map of {len(kernel_map)} images cannot grow, only one of up to '
            f'{MAX_IMAGES_TO_GROW}: record a run and build the map again'
        )
    poses = np.array([image.pose for image in images])
    more = replace(
        kernel_map,
        poses=poses,
        controls=np.full(poses.shape, np.nan),
        next_poses=np.full(poses.shape, np.nan),
        stamps_ns=np.array([image.stamp_ns for image in images]),
        run_index=np.zeros_like(kernel_map.run_index, shape=len(images)),
        descriptors=np.array([image.descriptor for image in images]),
        run_names=(GROWN_RUN,),
        thumbnails=tuple(image.thumbnail for image in images),
    )
    index, record = None, kernel_map.mapping
    if kernel_map.is_large:
        index = kernel_map.search_index.extended(more.descriptors)
    if record is not None:
        record = record.extended(poses, kernel_map.uncertainty_at(poses))
    return replace(kernel_map.appended(more), index=index, mapping=record)


def added_images(kernel_map: KernelMap) -> np.ndarray:
    """Return a mask (n,) of the images that were added while localizing."""
    return np.asarray(np.isin(kernel_map.run_names, GROWN_RUN)[kernel_map.run_index])


def grown_path(path: Path) -> Path:
    """Return the default path of a map with its added images, next to the map."""
    return path.with_name(f'{path.stem}_grown.h5')


def with_settings_of(base: KernelMap, kernel_map: KernelMap) -> KernelMap:
    """
    Return `kernel_map`, which was grown from `base`, with the present settings of `base`.

    Raises MapError unless it is `base` with more images at its end. Some descriptors are compared
    as well, because a map that is built again may have the same poses and other descriptors.
    """
    n, rows = len(base), select_evenly(np.arange(len(base)), 50)
    same = len(kernel_map) >= n and np.array_equal(kernel_map.poses[:n], base.poses)
    if not same or not np.array_equal(kernel_map.descriptors[rows], base.descriptors[rows]):
        raise MapError(
            'the added images are not those of this map, which was built again: delete the file '
            'with them, or use the map that they were added to'
        )
    # the base may have been tuned or measured since the map grew
    of_growth = (*PER_IMAGE, 'run_names', 'thumbnails', 'index', 'means', 'mapping')
    return replace(base, **{name: getattr(kernel_map, name) for name in of_growth})


class GrownFile:
    """
    The file of a map with added images, which only one process may write.

    Construct it before reading the file, so that changes by other processes are noticed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: FileLock | None = None
        self._seen = _state(path)

    def claim(self) -> None:
        """
        Lock the file until `release` or the end of this process.

        If the folder is not writable there is no lock, and `write` fails later. Raises MapError
        if another process has locked the file, or has changed it since it was read.
        """
        if self._lock is None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._lock = FileLock(self.path)
            except BlockingIOError as error:
                raise MapError(
                    f'{self.path} is being added to by {error.strerror}: end that one first, or '
                    'give each a folder of its own (grow_into)'
                ) from error
            except OSError:
                pass
        # a file that was deleted may be written again
        if _state(self.path) not in (None, self._seen):
            self.release()
            raise MapError(
                f'{self.path} was changed by another process since it was read, and is not '
                'overwritten: load the map again'
            )

    def write(self, kernel_map: KernelMap) -> None:
        """Lock and write the file; raises MapError as `claim`, and if it cannot be written."""
        self.claim()
        kernel_map.save(self.path)
        self._seen = _state(self.path)

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _state(path: Path) -> tuple[int, int, int] | None:
    """Return what changes with the content of a file; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
