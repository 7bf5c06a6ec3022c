"""Views that are worth adding to a map, until the map is recognised again behind them."""

from __future__ import annotations

from dataclasses import dataclass, field

from kbr_localization.datasets.frame import Image
from kbr_localization.localization.filter.points import Points
from kbr_localization.localization.map.grow import NewImage
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray

_COMPARED = 300  # images of a map that tell how alike its places are


@dataclass
class Candidates:
    """
    Images that join the map once the robot has come out behind them.

    A view that matches badly is that of a changed place, or of a camera that is covered or
    stuck, and the pose is sure for some metres in both cases. Where the map is recognised again
    the camera was alive: until then no image joins.
    """

    images: list[NewImage] = field(default_factory=list)

    @property
    def poses(self) -> FloatArray:
        """Poses (n, 3) that the images were taken at."""
        return np.array([image.pose for image in self.images]).reshape(-1, 3)

    def settle(self, kernel_map: KernelMap, alike: float) -> tuple[list[NewImage], int]:
        """
        Give away the images that show a place each, and tell how many do not.

        Those that have a kernel value of `alike`, that of views of one place, with one that was
        taken elsewhere show what moves along with the robot.
        """
        images, self.images = self.images, []
        if not images:
            return [], 0
        rows = np.stack([image.descriptor for image in images])
        gram = kernel_map.per_camera(kernel_map.describer.cross_gram(rows, rows))
        poses = np.array([image.pose for image in images])
        elsewhere = _elsewhere(kernel_map, poses)
        moves_along = np.any(elsewhere & (gram >= alike), axis=1).tolist()
        kept = [image for image, bad in zip(images, moves_along, strict=True) if not bad]
        return kept, len(images) - len(kept)


def least_similarity(kernel_map: KernelMap, image: Image) -> float:
    """
    Similarity of its best match below which an image shows nothing of a building.

    It lies halfway between that of noise of the image's size and the least that an image of the
    map has with another place of it; 0 for a map of one place.
    """
    count = len(kernel_map)
    some = np.unique(np.linspace(0, count - 1, min(count, _COMPARED)).astype(np.intp))
    poses, rows = kernel_map.poses[some], kernel_map.descriptors[some]
    elsewhere = _elsewhere(kernel_map, poses)
    known = elsewhere.any(axis=1)
    if not known.any():
        return 0.0
    describer = kernel_map.describer
    gram = np.where(elsewhere, describer.cross_gram(rows, rows), -np.inf)
    noise = describer.describe(_noise_like(image, np.random.default_rng(0)))[np.newaxis]
    values = np.array([gram.max(axis=1)[known].min(), describer.cross_gram(noise, rows).max()])
    return float(kernel_map.per_camera(values).mean())


def _elsewhere(kernel_map: KernelMap, poses: FloatArray) -> NDArray[np.bool_]:
    """Which of the poses (n, 3) are other places than each of them (n, n)."""
    radius = 2.0 * kernel_map.filter_config.localized_radius
    points = Points(poses, np.ones(len(poses)))
    return np.array([~points.within(pose, radius) for pose in poses])


def _noise_like(image: Image, rng: np.random.Generator) -> Image:
    if isinstance(image, tuple):
        return tuple(_noise_like(one, rng) for one in image)
    return rng.integers(0, 256, image.shape, dtype=np.uint8)
