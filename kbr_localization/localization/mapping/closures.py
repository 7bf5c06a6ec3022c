"""
Closures: pairs of images of one place, proposed by sequences of images.

A closure says where its first image was taken in the frame of its second one. Forward, that is
where the sequences fit best: the sum of kernel values along both ways, as one is moved against
the other, has its peak there. To the side and in heading the image kernel says no more than that
the two are alike, so zero is taken, with a deviation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kbr_localization import se2
from kbr_localization.localization.mapping.sequences import FEWEST, REACH, Scores
from kbr_localization.localization.mapping.trajectories import Indices, Trajectories
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray

OWN_WAY = 10.0
"""Metres of way within which images of one piece are neighbours, and no closure."""
_PEAKS = 3  # proposals of an anchor, besides the best of each piece
_LEAST = 1.5  # score of a proposal: unrelated sequences have 0 and a spread of about 1
_SAME_HEADING = 0.35  # rad by which the ways may turn otherwise, within a sequence
_SAME_PLACE = 0.6  # steps by which they may lie apart, and a share of the way for the scales
_SAME_SHARE = 0.12
_SHIFTS = np.arange(-6, 7) / 4.0  # steps by which sequences are moved against each other
_CHAIN_SLACK = 0.75  # steps by which neighbours of a chain may advance otherwise
_FEWEST_CHAINED = 3


@dataclass(frozen=True)
class Closures:
    """
    Places shown again.

    `first`, `second`: (m,) images. `relative`: (m, 3) pose of the first in the frame of the
    second. `score`: (m,) of the sequences. `chain`: (m,) number of the chain that each belongs to:
    closures of neighbouring images that advance alike on both ways. `seen`: (m,) those whose
    images told how they lie beside each other (see `looking`), None for none.
    """

    first: Indices
    second: Indices
    relative: FloatArray
    score: FloatArray
    chain: Indices
    seen: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        """Count the closures."""
        return len(self.first)

    def some(self, which: np.ndarray) -> Closures:
        """Return those of indices (k,), or of a mask (m,)."""
        return Closures(
            self.first[which], self.second[which], self.relative[which], self.score[which],
            self.chain[which], None if self.seen is None else self.seen[which],
        )  # fmt: skip


def propose(
    trajectories: Trajectories, anchors: Indices, rows: Scores, scores: Scores
) -> Closures:
    """Find closures of anchors (a,) with kernel rows and sequence scores (a, n), in chains."""
    found = [
        (row, image, float(scores[row, image]))
        for row in range(len(anchors))
        for image in _peaks(trajectories, int(anchors[row]), scores[row])
        if _same_shape(trajectories, int(anchors[row]), image)
    ]
    chain = _chained(trajectories, anchors, found)
    kept = (
        [
            number
            for number, size in enumerate(np.bincount(chain)[chain])
            if size >= _FEWEST_CHAINED
        ]
        if found
        else []
    )
    relative = [_aligned(trajectories, anchors, rows, *found[number][:2]) for number in kept]
    _, names = np.unique(chain[kept], return_inverse=True)
    return Closures(
        np.array([anchors[found[number][0]] for number in kept], dtype=np.intp),
        np.array([found[number][1] for number in kept], dtype=np.intp),
        np.array(relative).reshape(-1, 3),
        np.array([found[number][2] for number in kept]),
        names,
    )


def ways_apart(trajectories: Trajectories, closures: Closures) -> FloatArray:
    """Metres (c,) by which the ways before the two sides of each chain differ in length."""
    metres = np.abs(trajectories.way[closures.first] - trajectories.way[closures.second])
    size = np.maximum(np.bincount(closures.chain), 1)
    return np.asarray(np.bincount(closures.chain, metres) / size)


def _peaks(trajectories: Trajectories, anchor: int, scores: np.ndarray) -> Iterator[int]:
    """
    Yield earlier images where the score of an anchor has its highest local maxima.

    Those are the highest of all, and the highest of each piece: many runs along one way are not to
    hide what a run along another one says.
    """
    near = (trajectories.piece == trajectories.piece[anchor]) & (
        np.abs(trajectories.way - trajectories.way[anchor]) < OWN_WAY * max(1.0, trajectories.step)
    )
    usable = np.where(near, -np.inf, scores)
    usable[anchor:] = -np.inf
    room = 3.0 * trajectories.step
    found: list[int] = []
    for piece in (None,) * _PEAKS + tuple(range(trajectories.piece[anchor] + 1)):
        members = slice(None) if piece is None else trajectories.span(piece)
        best = int(np.argmax(usable[members])) + (members.start or 0)
        if not usable[best] > _LEAST or (piece is not None and piece in trajectories.piece[found]):
            continue
        close = (trajectories.piece == trajectories.piece[best]) & (
            np.abs(trajectories.way - trajectories.way[best]) < room
        )
        if scores[close & ~near].max() <= usable[best]:
            found.append(best)
        usable[close] = -np.inf
    yield from found


def _same_shape(trajectories: Trajectories, first: int, second: int) -> bool:
    """Whether the ways about two images turn and go alike, by the odometry."""
    steps = trajectories.step * np.arange(-REACH, REACH + 1)
    ours, theirs = (
        trajectories.at_way(int(trajectories.piece[image]), trajectories.way[image] + steps)
        for image in (first, second)
    )
    both = (ours >= 0) & (theirs >= 0)
    if both.sum() < FEWEST:
        return False
    poses = trajectories.odometry
    apart = se2.between(
        se2.between(poses[first], poses[ours[both]]),
        se2.between(poses[second], poses[theirs[both]]),
    )
    room = _SAME_PLACE * trajectories.step + _SAME_SHARE * np.abs(steps[both])
    heading = np.abs(apart[:, 2] - np.median(apart[:, 2]))
    near = np.hypot(apart[:, 0], apart[:, 1]) < room
    return bool(np.mean(near & (heading < _SAME_HEADING)) > 0.8)


def _chained(
    trajectories: Trajectories, anchors: Indices, found: list[tuple[int, int, float]]
) -> Indices:
    """Name (m,) the chain of each proposal (row, image, score)."""
    names, last = np.arange(len(found)), -1
    before: list[int] = []
    now: list[int] = []
    for number, (row, image, _) in enumerate(found):
        if row != last:
            before = now if row == last + 1 else []
            now, last = [], row
        now.append(number)
        anchor = anchors[row]
        for other in before:
            earlier, place = anchors[found[other][0]], found[other][1]
            if trajectories.piece[earlier] != trajectories.piece[anchor]:
                continue
            if trajectories.piece[place] != trajectories.piece[image]:
                continue
            ours = trajectories.way[anchor] - trajectories.way[earlier]
            theirs = trajectories.way[image] - trajectories.way[place]
            if abs(ours - theirs) < _CHAIN_SLACK * trajectories.step:
                names[number] = names[other]
                break
    return np.asarray(names)


def _aligned(
    trajectories: Trajectories, anchors: Indices, rows: Scores, row: int, image: int
) -> FloatArray:
    """Pose (3,) of an anchor in the frame of an image, where their sequences fit best."""
    piece, anchor = int(trajectories.piece[image]), int(anchors[row])
    steps = trajectories.step * np.arange(-REACH, REACH + 1)
    ours = trajectories.at_way(int(trajectories.piece[anchor]), trajectories.way[anchor] + steps)
    at = trajectories.nearest_of(anchors, ours)
    at = at[at >= 0]
    members = trajectories.members(piece)
    ways, known = (
        trajectories.way[members],
        trajectories.way[anchors[at]] - trajectories.way[anchor],
    )
    shifts = _SHIFTS * trajectories.step
    fits = np.zeros(len(shifts))
    for number, way in zip(at, known, strict=True):
        fits += np.interp(trajectories.way[image] + way + shifts, ways, rows[number, members])
    shift = _peak_of(shifts, fits)
    target = float(np.clip(trajectories.way[image] + shift, ways[0], ways[-1]))
    return se2.between(trajectories.odometry[image], _pose_at(trajectories, members, target))


def _peak_of(shifts: FloatArray, fits: FloatArray) -> float:
    """Where the parabola through the largest value and its neighbours is highest."""
    best = int(np.clip(np.argmax(fits), 1, len(fits) - 2))
    left, middle, right = fits[best - 1], fits[best], fits[best + 1]
    curvature = left - 2.0 * middle + right
    offset = 0.5 * (left - right) / curvature if curvature < 0.0 else 0.0
    return float(shifts[best] + np.clip(offset, -1.0, 1.0) * (shifts[1] - shifts[0]))


def _pose_at(trajectories: Trajectories, members: Indices, way: float) -> FloatArray:
    """Odometry pose (3,) at a length of way of a piece, between its images."""
    ways = trajectories.way[members]
    after = int(np.clip(np.searchsorted(ways, way), 1, len(ways) - 1))
    span = ways[after] - ways[after - 1]
    share = (way - ways[after - 1]) / span if span > 0.0 else 0.0
    start, end = trajectories.odometry[members[after - 1]], trajectories.odometry[members[after]]
    step = se2.between(start, end)
    return se2.compose(start, np.clip(share, 0.0, 1.0) * step)
