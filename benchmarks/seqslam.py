"""
Sequence matching as published: Milford and Wyeth, *SeqSLAM*, ICRA 2012.

Thumbnails are normalised patch by patch and compared by their mean absolute difference; the
differences are contrasted with those of neighbouring map images; a place is where a straight line
of such differences through the last images, at some speed, has the least sum. The search of lines
takes any differences: those of an image kernel too.
"""

from __future__ import annotations

from collections.abc import Iterable

import cv2
import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

WIDTH, HEIGHT, PATCH = 64, 32, 8
"""Pixels of a thumbnail and of a patch in it."""
LENGTH, WINDOW = 20, 10
"""Images of a sequence; map images beside which a difference is contrasted."""
SPEEDS = tuple(np.linspace(0.8, 1.2, 5))
"""Map images per image."""


def thumbnail(image: NDArray[np.uint8]) -> FloatArray:
    """Small grey image (HEIGHT, WIDTH) whose patches have mean 0 and deviation 1."""
    grey = image if image.ndim == 2 else cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
    small = cv2.resize(grey, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA).astype(np.float64)
    patches = small.reshape(HEIGHT // PATCH, PATCH, WIDTH // PATCH, PATCH)
    centred = patches - patches.mean(axis=(1, 3), keepdims=True)
    deviation = patches.std(axis=(1, 3), keepdims=True)
    return np.asarray((centred / np.maximum(deviation, 1e-6)).reshape(HEIGHT, WIDTH))


def differences(
    mapped: Iterable[NDArray[np.uint8]], images: Iterable[NDArray[np.uint8]]
) -> FloatArray:
    """Compare the thumbnails of q images and of n map images by mean absolute error: (q, n)."""
    left, right = (np.array([thumbnail(one) for one in some]) for some in (images, mapped))
    return np.array([np.abs(one - right).mean(axis=(1, 2)) for one in left])


def contrasted(difference: FloatArray) -> FloatArray:
    """Differences (q, n) less the mean and over the deviation of those around them; from 0 up."""
    count = difference.shape[1]
    result = np.empty_like(difference)
    for column in range(count):
        around = slice(max(0, column - WINDOW // 2), column + WINDOW // 2 + 1)
        near = difference[:, around]
        spread = np.maximum(near.std(axis=1), 1e-9)
        result[:, column] = (difference[:, column] - near.mean(axis=1)) / spread
    return np.asarray(result - result.min())


def sequence_scores(contrast: FloatArray) -> FloatArray:
    """
    Return mean contrasts (q, n) along the best line that ends at each map image.

    Less is better; infinite where every line leaves the map. The first images have shorter
    sequences behind them.
    """
    queries, count = contrast.shape
    scores = np.full((queries, count), np.inf)
    ends = np.arange(count)
    for query in range(queries):
        back = np.arange(min(LENGTH, query + 1))
        for speed in SPEEDS:
            line = ends[:, np.newaxis] - np.rint(speed * back).astype(int)
            inside = line[:, -1] >= 0
            mean = contrast[query - back, np.maximum(line, 0)].mean(axis=1)
            scores[query] = np.where(inside, np.minimum(scores[query], mean), scores[query])
    return scores


def distinctness(scores: FloatArray) -> FloatArray:
    """How far (q,) the best place of each image is ahead of the best elsewhere, in [0, 1]."""
    best = scores.argmin(axis=1)
    apart = np.abs(np.arange(scores.shape[1]) - best[:, np.newaxis]) > WINDOW // 2
    elsewhere = np.where(apart, scores, np.inf).min(axis=1)
    least = scores.min(axis=1)
    ratio = least / np.maximum(elsewhere, 1e-9)
    return np.asarray(np.where(np.isfinite(ratio), 1.0 - ratio, 0.0))
