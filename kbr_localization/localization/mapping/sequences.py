"""
Where a sequence of images shows a place again: the image kernel along two ways.

A single image has look-alikes. A sequence is compared with another one that was taken along as
much way (SeqSLAM, Milford and Wyeth, ICRA 2012, with the way of the odometry in place of its
range of speeds): the score of images a and j is the mean over images a_d at way s_a + d, |d| up
to `REACH` steps, of the standardised kernel value of a_d and the best image within half a step of
way s_j + d. Values are standardised by median and spread of each row, less the median of the
column: images that are like everything say little.
"""

from __future__ import annotations

from collections.abc import Callable

from kbr_localization.localization.mapping.trajectories import Indices, Trajectories
from kbr_localization.vision import Describer
import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float32]
REACH = 5
"""Steps of way to either side that a sequence has."""
FEWEST = 7
"""Steps of the sequence that both ways must have."""
_BATCH = 32


def kernel_rows(
    describer: Describer,
    descriptors: np.ndarray,
    anchors: Indices,
    report: Callable[[int, int], None],
) -> Scores:
    """Kernel values (a, n) of the anchors and all images, in single precision."""
    rows = np.empty((len(anchors), len(descriptors)), dtype=np.float32)
    prepared = describer.prepared(descriptors)
    for start in range(0, len(anchors), _BATCH):
        block = slice(start, start + _BATCH)
        rows[block] = prepared.compared_with(descriptors[anchors[block]]).T
        report(min(start + _BATCH, len(anchors)), len(anchors))
    return rows


def sequence_scores(trajectories: Trajectories, anchors: Indices, rows: Scores) -> Scores:
    """Scores (a, n) of the sequences about anchors and about all images; -inf where too short."""
    best = _best_nearby(trajectories, _standardised(rows))
    total = np.zeros_like(best)
    count = np.zeros(best.shape, dtype=np.uint8)
    for steps in range(-REACH, REACH + 1):
        theirs = trajectories.shifted(steps * trajectories.step)
        ours = trajectories.nearest_of(anchors, theirs[anchors])
        use, have = ours >= 0, theirs >= 0
        total[np.ix_(use, have)] += best[np.ix_(ours[use], theirs[have])]
        count[np.ix_(use, have)] += 1
    scores = np.where(count >= FEWEST, total / np.maximum(count, 1), -np.inf)
    return np.asarray(scores, dtype=np.float32)


def _standardised(rows: Scores) -> Scores:
    middle = np.median(rows, axis=1, keepdims=True)
    spread = 1.4826 * np.median(np.abs(rows - middle), axis=1, keepdims=True)
    standard = (rows - middle) / np.maximum(spread, 1e-6)
    return np.asarray(standard - np.median(standard, axis=0), dtype=np.float32)


def _best_nearby(trajectories: Trajectories, values: Scores) -> Scores:
    """Largest value (a, n) within half a step of way of each image."""
    best = values.copy()
    for metres in (-0.5, 0.5):
        near = trajectories.shifted(metres * trajectories.step)
        have = near >= 0
        best[:, have] = np.maximum(best[:, have], values[:, near[have]])
    return best
