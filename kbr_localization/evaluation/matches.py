"""Which image of the map a frame is taken for, as a pair of pictures to look at."""

from __future__ import annotations

from dataclasses import dataclass

from kbr_localization.datasets import Frame
from kbr_localization.datasets.images import decode_image
from kbr_localization.datasets.multi_camera import one_picture
from kbr_localization.errors import DatasetError
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ImagePair:
    """
    A frame of a run and the map image that is most similar to it.

    `frame`, `match`: grey or BGR images; the match is the map's thumbnail, or None in a map
    without thumbnails. `pose`: (3,) true pose of the frame, or None. `index` into the map,
    `map_pose`: (3,) of the match. `similarity`: their kernel value.
    """

    frame: NDArray[np.uint8]
    match: NDArray[np.uint8] | None
    pose: FloatArray | None
    index: int
    map_pose: FloatArray
    similarity: float

    @property
    def distance_m(self) -> float:
        """How far the match was taken from the frame's true position; NaN where unknown."""
        if self.pose is None:
            return float('nan')
        return float(np.hypot(*(self.pose - self.map_pose)[:2]))


def best_match(kernel_map: KernelMap, frame: Frame) -> ImagePair:
    """Compare a frame with all of the map; raises what reading and describing it raise."""
    image = frame.load_image()
    index, similarity = kernel_map.best_match(kernel_map.describer.describe(image))
    return ImagePair(
        frame=one_picture(image),
        match=thumbnail(kernel_map, index),
        pose=frame.reference,
        index=index,
        map_pose=kernel_map.poses[index],
        similarity=similarity,
    )


def thumbnail(kernel_map: KernelMap, index: int) -> NDArray[np.uint8] | None:
    """Small picture of a map image, where the map keeps them."""
    if not kernel_map.thumbnails:
        return None
    try:
        return decode_image(kernel_map.thumbnails[index], f'{index} of the map')
    except DatasetError:
        return None
