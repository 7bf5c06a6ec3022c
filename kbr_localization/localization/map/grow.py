"""Images that join a finished map: added while a robot localizes on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kbr_localization.errors import MapError
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.mapping_record import MappingRecord
from kbr_localization.se2 import FloatArray
import numpy as np

GROWN_RUN = 'added while localizing'
"""Name of the run that the added images belong to."""

GROWN_ENDING = '_grown'
"""Of the name of the file beside a map that has the added images as well."""

LARGEST_TO_GROW = 10_000
"""Images; every added one copies the map, and a large one lies in its file, not in memory."""
_COMPARED = 50  # descriptors that tell whether two maps describe images in the same way


@dataclass(frozen=True)
class NewImage:
    """An image for the map: stamp, pose (3,) in the map frame, descriptor (d,), JPEG file."""

    stamp_ns: int
    pose: FloatArray
    descriptor: np.ndarray
    thumbnail: bytes = b''


def with_images(kernel_map: KernelMap, images: Sequence[NewImage]) -> KernelMap:
    """
    Return the map with more images at its end, as a run called `GROWN_RUN`.

    Poses, descriptors and parameters of the images that were there stay as they are. The added
    ones are no steps of a drive: their controls are NaN. Raises MapError for a descriptor that
    is not one of the map's, a pose that is not finite, or a map beyond
    `LARGEST_TO_GROW`.
    """
    if len(kernel_map) > LARGEST_TO_GROW:
        raise MapError(
            f'a map of {len(kernel_map)} images cannot grow, only one of up to '
            f'{LARGEST_TO_GROW}: record a run and build the map again'
        )
    names = kernel_map.run_names
    names = names if GROWN_RUN in names else (*names, GROWN_RUN)
    for image in images:
        _check(kernel_map, image)
    nowhere = np.full((len(images), 3), np.nan)
    shown = tuple(image.thumbnail for image in images) if kernel_map.thumbnails else ()
    descriptors = _joined(kernel_map.descriptors, [image.descriptor for image in images])
    index = None if images else kernel_map.index
    if kernel_map.is_large and images:
        index = kernel_map.search_index.extended(np.split(descriptors, [len(kernel_map)])[1])
    return replace(
        kernel_map,
        poses=_joined(kernel_map.poses, [image.pose for image in images]),
        descriptors=descriptors,
        index=index,
        means=None if images else kernel_map.means,
        stamps_ns=_joined(kernel_map.stamps_ns, [image.stamp_ns for image in images]),
        run_index=_joined(kernel_map.run_index, [names.index(GROWN_RUN)] * len(images)),
        run_names=names,
        controls=np.concatenate([kernel_map.controls, nowhere]),
        next_poses=np.concatenate([kernel_map.next_poses, nowhere]),
        thumbnails=(*kernel_map.thumbnails, *shown),
        mapping=_recorded(kernel_map, images),
    )


def grown_path(path: Path) -> Path:
    """Return the file beside a map that has the images added to it as well."""
    return path.with_name(f'{path.stem}{GROWN_ENDING}.h5')


def grown_form(base: KernelMap, kernel_map: KernelMap) -> KernelMap:
    """
    Return a map that was grown from another with the parameters that this has now.

    Raises MapError when it was not grown from that one.
    """
    if not is_grown_from(kernel_map, base):
        raise MapError(
            'the added images are not those of this map, which was built anew: delete the file '
            'that has them, or use the map that they were added to'
        )
    # the map may have been tuned, or measured, since it grew
    return replace(
        kernel_map,
        filter_config=base.filter_config,
        motion_noise=base.motion_noise,
        calibration=base.calibration,
        baselines=base.baselines,
        statistics=base.statistics,
    )


def _recorded(kernel_map: KernelMap, images: Sequence[NewImage]) -> MappingRecord | None:
    """Return the record with images that are as uncertain as the map is where they were taken."""
    record = kernel_map.mapping
    if record is None or not images:
        return record
    poses = np.array([image.pose for image in images])
    return record.extended(poses, kernel_map.uncertainty_at(poses))


def grown(kernel_map: KernelMap) -> np.ndarray:
    """Which images (n,) of a map were added while localizing."""
    if GROWN_RUN not in kernel_map.run_names:
        return np.zeros(len(kernel_map), dtype=bool)
    return np.asarray(kernel_map.run_index == kernel_map.run_names.index(GROWN_RUN))


def is_grown_from(kernel_map: KernelMap, base: KernelMap) -> bool:
    """
    Whether a map is another one with more images at its end.

    A run that is described anew gives the same poses and other descriptors: some are compared.
    """
    n = len(base)
    if len(kernel_map) < n or not np.array_equal(kernel_map.poses[:n], base.poses):
        return False
    some = np.unique(np.linspace(0, n - 1, _COMPARED).astype(np.intp))
    return bool(np.array_equal(kernel_map.descriptors[some], base.descriptors[some]))


def _joined(rows: np.ndarray, new: Sequence[object]) -> np.ndarray:
    added = np.asarray(new, dtype=rows.dtype).reshape(len(new), *rows.shape[1:])
    return np.concatenate([rows, added])


def _check(kernel_map: KernelMap, image: NewImage) -> None:
    if image.descriptor.shape != kernel_map.descriptors.shape[1:]:
        raise MapError(
            f'descriptor of shape {image.descriptor.shape}: expected '
            f"{kernel_map.descriptors.shape[1:]}; describe the image with the map's describer"
        )
    if not np.isfinite(image.pose).all():
        raise MapError(f'pose {image.pose} of an image for the map: expected finite numbers')
