"""
Loop closures: pairs of images of one place, proposed by sequences of images.

A single image has look-alikes. A sequence is compared with another one that was taken along as
much travel (SeqSLAM, Milford and Wyeth, ICRA 2012, with travel by the odometry in place of its
range of speeds): the score of images a and j is the mean over images a_d, d metres further, of the
standardised kernel value of a_d and the best image within half a step of j_d.

A closure says where its first image was taken in the frame of its second one. Along the way that
is where the sequences fit best as one is shifted against the other. To the side and in heading the
image kernel says no more than that the two are similar, so zero is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

from kbr_localization import se2
from kbr_localization.localization.mapping.trajectories import Indices, Trajectories
from kbr_localization.se2 import FloatArray
from kbr_localization.vision import Describer
import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float32]
REACH = 5
"""Steps to either side that a sequence has."""
MIN_LOOP = 10.0
"""Metres of travel within which images of one segment are neighbours, and no closure."""
_FEWEST = 7  # steps of a sequence that both sides must have
_LEAST_SCORE = 1.5  # of a proposal: unrelated sequences have 0 and a spread of about 1
_FEWEST_CHAINED = 3


@dataclass(frozen=True)
class Closures:
    """
    Places shown again.

    `first`, `second`: (m,) images. `relative`: (m, 3) pose of the first in the frame of the
    second. `score`: (m,) of the sequences. `chain`: (m,) number of the chain of each: closures of
    neighbouring images that advance by the same distance on both sides. `seen`: (m,) whether
    matched points told `relative` (see `relative_pose`).
    """

    first: Indices
    second: Indices
    relative: FloatArray
    score: FloatArray
    chain: Indices
    seen: NDArray[np.bool_]

    def __len__(self) -> int:
        """Count the closures."""
        return len(self.first)

    def select(self, which: np.ndarray) -> Closures:
        """Select by indices (k,) or a mask (m,)."""
        return Closures(*(getattr(self, field.name)[which] for field in fields(self)))

    def renumbered(self, place: Indices) -> Closures:
        """Return those between images that have a place >= 0, with their places as numbers."""
        inside = self.select((place[self.first] >= 0) & (place[self.second] >= 0))
        return replace(inside, first=place[inside.first], second=place[inside.second])


def propose(
    describer: Describer,
    descriptors: np.ndarray,
    trajectories: Trajectories,
    report: Callable[[int, int], None],
) -> Closures:
    """Find closures of the anchors of trajectories, of images with descriptors (n, d)."""
    anchors = trajectories.anchors()
    rows = _kernel_rows(describer, descriptors, anchors, report)
    scores = _sequence_scores(trajectories, anchors, rows)
    found = [
        (row, image, float(scores[row, image]))
        for row, anchor in enumerate(anchors.tolist())
        for image in _peaks(trajectories, anchor, scores[row])
        if _same_shape(trajectories, anchor, image)
    ]
    chain = _chains(trajectories, anchors, found)
    kept = np.flatnonzero(np.bincount(chain, minlength=1)[chain] >= _FEWEST_CHAINED)
    relative = [_aligned(trajectories, anchors, rows, *found[number][:2]) for number in kept]
    return Closures(
        np.array([anchors[found[number][0]] for number in kept], dtype=np.intp),
        np.array([found[number][1] for number in kept], dtype=np.intp),
        np.array(relative).reshape(-1, 3),
        np.array([found[number][2] for number in kept]),
        np.unique(chain[kept], return_inverse=True)[1],
        np.zeros(len(kept), dtype=bool),
    )


def _kernel_rows(
    describer: Describer,
    descriptors: np.ndarray,
    anchors: Indices,
    report: Callable[[int, int], None],
) -> Scores:
    """Kernel values (a, n) of the anchors and all images."""
    rows = np.empty((len(anchors), len(descriptors)), dtype=np.float32)
    prepared = describer.prepared(descriptors)
    for start in range(0, len(anchors), 32):
        block = slice(start, start + 32)
        rows[block] = prepared.compared_with(descriptors[anchors[block]]).T
        report(min(start + 32, len(anchors)), len(anchors))
    return rows


def _sequence_scores(trajectories: Trajectories, anchors: Indices, rows: Scores) -> Scores:
    """Scores (a, n) of the sequences about anchors and about all images; -inf where too short."""
    values = _standardised(rows)
    best = values.copy()
    for half in (-0.5, 0.5):
        near = trajectories.shifted(half * trajectories.step)
        have = near >= 0
        best[:, have] = np.maximum(best[:, have], values[:, near[have]])
    total = np.zeros_like(best)
    count = np.zeros(best.shape, dtype=np.uint8)
    for steps in range(-REACH, REACH + 1):
        theirs = trajectories.shifted(steps * trajectories.step)
        ours = trajectories.nearest_of(anchors, theirs[anchors])
        use, have = ours >= 0, theirs >= 0
        total[np.ix_(use, have)] += best[np.ix_(ours[use], theirs[have])]
        count[np.ix_(use, have)] += 1
    scores = np.where(count >= _FEWEST, total / np.maximum(count, 1), -np.inf)
    return np.asarray(scores, dtype=np.float32)


def _standardised(rows: Scores) -> Scores:
    """Standardise by median and spread of each row, less the median of each column."""
    middle = np.median(rows, axis=1, keepdims=True)
    spread = 1.4826 * np.median(np.abs(rows - middle), axis=1, keepdims=True)
    standard = (rows - middle) / np.maximum(spread, 1e-6)
    return np.asarray(standard - np.median(standard, axis=0), dtype=np.float32)


def _peaks(trajectories: Trajectories, anchor: int, scores: np.ndarray) -> Iterator[int]:
    """
    Yield earlier images where the score of an anchor has its highest local maxima.

    Those are the three highest of all, and the highest of each segment: many runs along one way
    must not hide what a run along another one says.
    """
    segment, travel = trajectories.segment, trajectories.travel
    near = (segment == segment[anchor]) & (
        np.abs(travel - travel[anchor]) < MIN_LOOP * max(1.0, trajectories.step)
    )
    usable = np.where(near, -np.inf, scores)
    usable[anchor:] = -np.inf
    found: list[int] = []
    for number in (None, None, None, *range(segment[anchor] + 1)):
        members = slice(0, None) if number is None else trajectories.span(number)
        best = int(np.argmax(usable[members])) + members.start
        if not usable[best] > _LEAST_SCORE or (number is not None and number in segment[found]):
            continue
        close = (segment == segment[best]) & (
            np.abs(travel - travel[best]) < 3.0 * trajectories.step
        )
        if scores[close & ~near].max() <= usable[best]:
            found.append(best)
        usable[close] = -np.inf
    yield from found


def _same_shape(trajectories: Trajectories, first: int, second: int) -> bool:
    """Whether the trajectories about two images have the same shape, by the odometry."""
    steps = trajectories.step * np.arange(-REACH, REACH + 1)
    ours, theirs = (
        trajectories.at_travel(
            int(trajectories.segment[image]), trajectories.travel[image] + steps
        )
        for image in (first, second)
    )
    both = (ours >= 0) & (theirs >= 0)
    if both.sum() < _FEWEST:
        return False
    poses = trajectories.odometry
    apart = se2.between(
        se2.between(poses[first], poses[ours[both]]),
        se2.between(poses[second], poses[theirs[both]]),
    )
    # a part of a step, and a share of the travel for the scales of the two odometries
    room = 0.6 * trajectories.step + 0.12 * np.abs(steps[both])
    heading = np.abs(apart[:, 2] - np.median(apart[:, 2]))
    return bool(np.mean((np.hypot(*apart[:, :2].T) < room) & (heading < 0.35)) > 0.8)


def _chains(
    trajectories: Trajectories, anchors: Indices, found: list[tuple[int, int, float]]
) -> Indices:
    """Return the chain (m,) of each proposal (row, image, score)."""
    segment, travel = trajectories.segment, trajectories.travel
    names = np.arange(len(found))
    of_row: dict[int, list[int]] = {}
    for number, (row, image, _) in enumerate(found):
        of_row.setdefault(row, []).append(number)
        for other in of_row.get(row - 1, ()):
            before, place = anchors[row - 1], found[other][1]
            advance = travel[[anchors[row], image]] - travel[[before, place]]
            same = segment[before] == segment[anchors[row]] and segment[place] == segment[image]
            if same and abs(advance[0] - advance[1]) < 0.75 * trajectories.step:
                names[number] = names[other]
                break
    return names


def _aligned(
    trajectories: Trajectories, anchors: Indices, rows: Scores, row: int, image: int
) -> FloatArray:
    """Pose (3,) of an anchor in the frame of an image, where their sequences fit best."""
    travel, anchor = trajectories.travel, int(anchors[row])
    span = trajectories.span(int(trajectories.segment[image]))
    steps = trajectories.step * np.arange(-REACH, REACH + 1)
    ours = trajectories.at_travel(int(trajectories.segment[anchor]), travel[anchor] + steps)
    at = trajectories.nearest_of(anchors, ours)
    at = at[at >= 0]
    shifts = np.asarray(trajectories.step * np.arange(-6, 7) / 4.0, dtype=np.float64)
    fits = np.zeros(len(shifts))
    for number, ahead in zip(at, travel[anchors[at]] - travel[anchor], strict=True):
        fits += np.interp(travel[image] + ahead + shifts, travel[span], rows[number, span])
    target = travel[image] + _peak_of(shifts, fits)
    place = _pose_at(travel[span], trajectories.odometry[span], target)
    return se2.between(trajectories.odometry[image], place)


def _peak_of(shifts: FloatArray, fits: FloatArray) -> float:
    """Return the maximum of the parabola through the largest value and its neighbours."""
    best = int(np.clip(np.argmax(fits), 1, len(fits) - 2))
    left, middle, right = fits[best - 1], fits[best], fits[best + 1]
    curvature = left - 2.0 * middle + right
    offset = 0.5 * (left - right) / curvature if curvature < 0.0 else 0.0
    return float(shifts[best] + np.clip(offset, -1.0, 1.0) * (shifts[1] - shifts[0]))


def _pose_at(travel: FloatArray, poses: FloatArray, wanted: float) -> FloatArray:
    """Pose (3,) at a value of travel between those (k,) of poses (k, 3)."""
    after = int(np.clip(np.searchsorted(travel, wanted), 1, len(travel) - 1))
    gap = travel[after] - travel[after - 1]
    share = np.clip((wanted - travel[after - 1]) / gap, 0.0, 1.0) if gap > 0.0 else 0.0
    return se2.compose(poses[after - 1], share * se2.between(poses[after - 1], poses[after]))
