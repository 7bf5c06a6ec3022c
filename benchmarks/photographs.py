"""
Place recognition on real photographs: `python -m benchmarks.photographs DATA`.

DATA holds the traverses `day_left`, `day_right` and `night_right` of Gardens Point (QUT), folders
of images in which image i shows place i. The program prints the recall: the fraction of images
whose most similar map image shows a place at most 1 or 3 places away.
Besides single images it evaluates sequences as in Milford and Wyeth, *SeqSLAM*, ICRA 2012: the
best match is the end of the straight line, at some speed, with the least sum of differences
between the last 20 images and map images, by thumbnails or by the image kernel.
`python -m benchmarks.acceptance` evaluates the filters on the same photographs.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks import results
from benchmarks.acceptance_places import GARDENS_POINT
import cv2
from kbr_localization.cli.options import parse_settings
from kbr_localization.datasets import open_dataset
from kbr_localization.evaluation import reference_trajectory
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.similarity import Similarity
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from threadpoolctl import threadpool_limits

Image = NDArray[np.uint8]
TOLERANCES = (1.5, 3.5)
"""In places, plus half a place."""
WIDTH, HEIGHT, PATCH = 64, 32, 8
"""Pixels of a thumbnail and of a patch in it."""
LENGTH, WINDOW = 20, 10
"""Images of a sequence; map images in the window of contrast normalisation."""
SPEEDS = tuple(np.linspace(0.8, 1.2, 5))
"""Map images per query image."""


def recall(difference: FloatArray, distance: FloatArray, tolerance: float) -> float:
    """
    Return the fraction of queries whose most similar map image is within the tolerance.

    `difference` of images, `distance` of places: (q, n). Queries without any map image within the
    tolerance are excluded.
    """
    best = np.take_along_axis(distance, difference.argmin(axis=1)[:, np.newaxis], axis=1)[:, 0]
    return float(np.mean(best[(distance <= tolerance).any(axis=1)] <= tolerance))


def thumbnail(image: Image) -> FloatArray:
    """Return a small grey image (HEIGHT, WIDTH) whose patches have mean 0 and deviation 1."""
    grey = image if image.ndim == 2 else cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
    small = cv2.resize(grey, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA).astype(np.float64)
    patches = small.reshape(HEIGHT // PATCH, PATCH, WIDTH // PATCH, PATCH)
    centred = patches - patches.mean(axis=(1, 3), keepdims=True)
    deviation = np.maximum(patches.std(axis=(1, 3), keepdims=True), 1e-6)
    return np.asarray((centred / deviation).reshape(HEIGHT, WIDTH))


def contrast_errors(images: Iterable[Image], mapped: Iterable[Image]) -> FloatArray:
    """
    Return mean absolute errors of thumbnails of q images and n map images, (q, n).

    Each is standardised by mean and deviation of the errors of neighbouring map images.
    """
    left, right = ([thumbnail(one).ravel() for one in some] for some in (images, mapped))
    difference = cdist(left, right, 'cityblock') / (WIDTH * HEIGHT)
    result = np.empty(difference.shape)
    for column in range(difference.shape[1]):
        around = slice(max(0, column - WINDOW // 2), column + WINDOW // 2 + 1)
        near = difference[:, around]
        spread = np.maximum(near.std(axis=1), 1e-9)
        result[:, column] = (difference[:, column] - near.mean(axis=1)) / spread
    return result


def sequence_scores(difference: FloatArray) -> FloatArray:
    """
    Return mean differences (q, n) along the best line that ends at each map image.

    Infinite where every line leaves the map. The sequences of the first images are shorter.
    """
    queries, count = difference.shape
    scores = np.full((queries, count), np.inf)
    for query in range(queries):
        back = np.arange(min(LENGTH, query + 1))
        for speed in SPEEDS:
            line = np.arange(count)[:, np.newaxis] - np.rint(speed * back).astype(int)
            inside = line[:, -1] >= 0
            mean = difference[query - back, np.maximum(line, 0)].mean(axis=1)
            scores[query] = np.where(inside, np.minimum(scores[query], mean), scores[query])
    return scores


def rows_of(mapped: Path, test: Path, settings: Sequence[str]) -> list[list[str]]:
    """Return the table rows of a map and a test run."""
    training, images = (open_dataset(path, spacing=1.0) for path in (mapped, test))
    kernel_map = build_map([training], *parse_settings(settings), seed=0)
    pictures = [frame.load_image() for frame in images]
    described = [kernel_map.describer.describe(picture) for picture in pictures]
    seen = [
        kernel_map.centring.centre(Similarity.from_vector(kernel_map.similarities(d)))
        for d in described
    ]
    kernel = 1.0 - np.array([row.values_at(row.candidates) for row in seen])
    thumbnails = contrast_errors(pictures, [frame.load_image() for frame in training])
    scored = {
        'image kernel': (kernel, kernel_map.poses),
        'its sequences': (sequence_scores(kernel), kernel_map.poses),
        'SeqSLAM': (sequence_scores(thumbnails), reference_trajectory(training).poses),
    }
    places, rows = reference_trajectory(images).poses[:, 0], []
    for name, (scores, poses) in scored.items():
        distance = np.abs(np.subtract.outer(places, poses[:, 0]))
        found = [f'{recall(scores, distance, within):.2f}' for within in TOLERANCES]
        rows.append([f'{mapped.name} → {test.name}', name, *found])
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = results.parser_of(__doc__)
    add = parser.add_argument
    add('data', type=Path, help='folder of the three traverses')
    add('--set', action='append', default=[], metavar='NAME=VALUE', help='as in `kbr map build`')
    options = parser.parse_args(arguments)
    threadpool_limits(1, 'blas')
    pairs = [(options.data / mapped, options.data / test) for mapped, test in GARDENS_POINT]
    rows = [row for pair in pairs for row in rows_of(*pair, options.set)]
    header = ['map → test', 'images by', *(f'recall within {int(t)}' for t in TOLERANCES)]
    print(results.table(header, rows))


if __name__ == '__main__':
    main()
