"""
A map moved onto another one of the same place, by the images that both have.

The maps may have been made with other vocabularies and cameras of other sizes: their small
pictures are described anew, by one vocabulary.
"""

from __future__ import annotations

from functools import partial

import cv2
from kbr_localization import se2
from kbr_localization.datasets.images import decode_image
from kbr_localization.errors import MapError
from kbr_localization.localization.map.describing import THUMBNAIL_WIDTH
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.mapping.align import (
    Alignment,
    fit,
    fitted,
    move_map,
    moved,
)
from kbr_localization.localization.mapping.base_frame import camera_poses, point_of
from kbr_localization.localization.mapping.extend import map_pieces
from kbr_localization.localization.mapping.relating import relate
from kbr_localization.localization.mapping.trajectories import Indices, Trajectories
from kbr_localization.progress import Progress, silent
from kbr_localization.vision import fit_describer, VisionConfig
import numpy as np

_VOCABULARY_IMAGES = 200
_ENOUGH = 10  # images of the same stamp, which need no comparing
_SAME_PICTURE = 8.0  # grey levels by which pictures of one image may differ, at the median
_TRIMMED = 3.0  # medians of what the closures miss, beyond which they do not count


def align_onto(
    kernel_map: KernelMap,
    other: KernelMap,
    scaled: bool = False,
    progress: Progress | None = None,
) -> tuple[KernelMap, Alignment]:
    """
    Move a map of n images into the frame of another one.

    Images that both have, by their stamps, are the known poses (k, 3); else images of the same
    places, also where stamps are the same by chance, of a clock that began anew. `scaled`: also
    take over the metres of the other map. Poses are of one point of the robot in both: those of
    the other map are carried to the point of this one, where it is known.
    Raises MapError for maps that show no common place, or have no pictures.
    """
    shared, ours, theirs = np.intersect1d(
        kernel_map.stamps_ns, other.stamps_ns, return_indices=True
    )
    if len(shared) >= _ENOUGH:
        known = se2.compose(camera_poses(other)[theirs], point_of(kernel_map))
        found = fitted(shared, kernel_map.poses[ours], known, scaled)
        if found.fits or not _other_pictures(kernel_map, other, ours, theirs):
            return move_map(kernel_map, found.motion, found.scale, other.aligned), found
    return _by_images(kernel_map, other, scaled, progress or silent)


def _other_pictures(
    kernel_map: KernelMap, other: KernelMap, ours: Indices, theirs: Indices
) -> bool:
    """Whether images of the same cameras and stamps, (k,) of each map, are seen to differ."""
    if kernel_map.cameras != other.cameras:
        return False
    if not (len(kernel_map.thumbnails) and len(other.thumbnails)):
        return False
    apart = [
        float(np.mean(cv2.absdiff(a, b)))
        for a, b in zip(
            _pictures(kernel_map, 'the map', ours),
            _pictures(other, 'the other map', theirs),
            strict=True,
        )
    ]
    return float(np.median(apart)) > _SAME_PICTURE


def _by_images(
    kernel_map: KernelMap, other: KernelMap, scaled: bool, progress: Progress
) -> tuple[KernelMap, Alignment]:
    pictures = _pictures(other, 'the other map') + _pictures(kernel_map, 'the map')
    spread = np.linspace(0, len(pictures) - 1, min(len(pictures), _VOCABULARY_IMAGES))
    examples = [pictures[index] for index in np.unique(spread.astype(int))]
    describer = fit_describer(VisionConfig(), examples, np.random.default_rng(0))
    report = partial(progress, 'describing pictures')
    descriptors = []
    for number, picture in enumerate(pictures, start=1):
        descriptors.append(describer.describe(picture))
        report(number, len(pictures))
    n = len(other)
    piece, runs = map_pieces(other)
    own, own_runs = map_pieces(kernel_map)
    fixed = np.arange(len(runs) + len(own_runs)) < len(runs)
    trajectories = Trajectories.of(
        np.concatenate([camera_poses(other), camera_poses(kernel_map)]),
        np.concatenate([piece, own + piece[-1] + 1]),
        np.concatenate([runs, own_runs + len(other.run_names)]),
        fixed,
    )
    found = relate(describer, np.array(descriptors), trajectories, progress).believed
    found = found.some(found.second < n)
    if not len(found):
        raise MapError(
            'the maps show no common place for certain: expected two maps of one place, driven '
            'in the same direction for 20 m'
        )
    ours = kernel_map.poses[found.first - n]
    theirs = se2.compose(camera_poses(other)[found.second], found.relative)
    known = se2.compose(theirs, point_of(kernel_map))
    motion, scale = _trimmed(ours, known, scaled)
    alignment = Alignment(
        motion,
        scale,
        kernel_map.stamps_ns[found.first - n],
        known,
        moved(ours, motion, scale),
        fit(ours, known, True)[1],
    )
    return move_map(kernel_map, motion, scale, other.aligned), alignment


def _trimmed(
    ours: se2.FloatArray, known: se2.FloatArray, scaled: bool
) -> tuple[se2.FloatArray, float]:
    """Fit, leave out what misses most, and fit again."""
    motion, scale = fit(ours, known, scaled)
    missed = np.hypot(*(moved(ours, motion, scale) - known)[:, :2].T)
    near = missed <= _TRIMMED * np.median(missed)
    return fit(ours[near], known[near], scaled)


def _pictures(kernel_map: KernelMap, name: str, which: Indices | None = None) -> list[np.ndarray]:
    """Grey pictures of the images of a map, or of some (k,), all of one size."""
    if not len(kernel_map.thumbnails):
        raise MapError(f'{name} has no pictures of its images: build it again')
    size = (THUMBNAIL_WIDTH, round(0.75 * THUMBNAIL_WIDTH))
    found = []
    for number in range(len(kernel_map)) if which is None else which.tolist():
        data = kernel_map.thumbnails[number]
        picture = decode_image(data, f'picture {number} of {name}')
        grey = picture if picture.ndim == 2 else cv2.cvtColor(picture, cv2.COLOR_BGR2GRAY)
        found.append(cv2.resize(grey, size, interpolation=cv2.INTER_AREA))
    return found
