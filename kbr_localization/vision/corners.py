"""SIFT keypoints, matched one to one between images of different light."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
from kbr_localization.se2 import FloatArray
from kbr_localization.vision.turning import Pixels, WIDTH
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Corners:
    """
    Keypoints of an image and their descriptors.

    `places`: (k, 2) from its middle, in widths of the image. `looks`: (k, 128) SIFT descriptors.
    """

    places: NDArray[np.float32]
    looks: NDArray[np.uint8]

    @staticmethod
    def none() -> Corners:
        """Return the corners of a blank image."""
        return Corners(np.zeros((0, 2), np.float32), np.zeros((0, 128), np.uint8))


def find_corners(image: Pixels) -> Corners:
    """Detect keypoints of a small grey image (see `turning.small`)."""
    sift = cv2.SIFT.create(300, contrastThreshold=0.02)
    points, looks = sift.detectAndCompute(image, None)
    if looks is None:
        return Corners.none()
    middle = 0.5 * np.array(image.shape[::-1])
    places = (np.array([point.pt for point in points]) - middle) / WIDTH
    # whole numbers up to 255, which OpenCV gives as floating point
    return Corners(places.astype(np.float32), looks.astype(np.uint8))


def matched(first: Corners, second: Corners) -> FloatArray:
    """Places (m, 4) in both images of points that are each other's nearest and unlike others."""
    if len(first.looks) < 2 or len(second.looks) < 2:
        return np.zeros((0, 4))
    alike = _rooted(first.looks) @ _rooted(second.looks).T
    rows = np.arange(len(alike))
    best = np.argmax(alike, axis=1)
    nearest = alike[rows, best]
    mutual = np.argmax(alike, axis=0)[best] == rows
    alike[rows, best] = -1.0
    # the ratio test (Lowe, IJCV 2004) on squared distances of unit vectors
    clear = 1.0 - nearest < 0.8**2 * (1.0 - alike.max(axis=1))
    kept = mutual & clear
    both = np.concatenate([first.places[kept], second.places[best[kept]]], axis=1)
    return np.asarray(both, dtype=np.float64)


def _rooted(looks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return RootSIFT (Arandjelovic and Zisserman, CVPR 2012), of unit length."""
    values = looks.astype(np.float32)
    return np.asarray(np.sqrt(values / np.maximum(values.sum(axis=1, keepdims=True), 1e-9)))
