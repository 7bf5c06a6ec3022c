"""
Loop closures: pairs of images of one place, found by comparing sequences of images.

A single image has look-alikes, so sequences over equal travel are compared (SeqSLAM, Milford and
Wyeth, ICRA 2012, with travel by the odometry instead of a range of speeds). The score of images a
and j is the mean over images a_d, d metres further, of the standardised kernel value of a_d and
the best image within half a step of j_d.

A closure measures the pose of its first image in the frame of its second one. The position along
the path is the shift at which the sequences fit best. The lateral offset and the heading are not
observable from the image kernel: they are measured by matching points of the images.

Image a of one visit is matched with images b_k before and after image b of the other. A point that
b_k sees in direction u and a in direction v satisfies t_k . (u x R v) = 0 at any distance, where
t_k is the translation from b_k to a and R the rotation between them (the essential matrix of a
camera that moves in the plane). All t_k follow from the unknown pose of a in the frame of b and
from the odometry between the b_k, which determines the scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kbr_localization import se2
from kbr_localization.localization.mapping.odometry_model import corrected_poses
from kbr_localization.localization.mapping.trajectories import Indices, Trajectories
from kbr_localization.progress import tracked
from kbr_localization.se2 import FloatArray
from kbr_localization.vision import Describer, turning
from kbr_localization.vision.preparation import LoadableImage, select_evenly
from kbr_localization.workers import blocks, run_batches
import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import maximum_filter1d

Scores = NDArray[np.float32]
REACH = 5
"""Steps of a sequence before and after its image."""
MIN_LOOP = 10.0
"""Metres of travel between two images of one segment below which they are no closure."""
_STEPS = np.arange(-REACH, REACH + 1)
_MIN_STEPS = 7  # of a sequence, in both segments
_NOISE = 0.5 / turning.WIDTH  # deviation of a matched point, in image widths
_GUESS_SD = np.array([0.1, 0.3, 0.15])  # along, across, heading before points are matched
_MIN_MATCHES = 25  # that agree on a pose


@dataclass(frozen=True)
class Closures:
    """
    Loop closures.

    `first`, `second`: (m,) images. `relative`: (m, 3) pose of the first in the frame of the
    second. `score`: (m,) of the sequences. `chain`: (m,) number of the chain: closures of
    neighbouring images that advance by the same distance on both sides. `matched`: (m,) whether
    `relative` was measured by matched points (see `measure_closures`).
    """

    first: Indices
    second: Indices
    relative: FloatArray
    score: FloatArray
    chain: Indices
    matched: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.first)

    def select(self, which: np.ndarray) -> Closures:
        """Select by indices (k,) or a mask (m,)."""
        return Closures(*(column[which] for column in vars(self).values()))


def find_closures(
    describer: Describer, descriptors: np.ndarray, trajectories: Trajectories
) -> Closures:
    """Find closures of images with descriptors (n, d), at most one per step of travel."""
    anchors, step = trajectories.anchors(), trajectories.step
    segment = trajectories.segment[anchors]
    own = np.flatnonzero(~trajectories.fixed[segment])
    values = np.empty((len(own), len(descriptors)), dtype=np.float32)
    compare = describer.comparer(descriptors)
    for block in tracked('comparing images', blocks(len(own), 32)):
        values[block] = compare(descriptors[anchors[own[block]]]).T
    standard = _standardised(values)
    best = standard[:, anchors]
    for half in (-0.5 * step, 0.5 * step):
        best = np.maximum(best, standard[:, trajectories.anchors(half)])
    scores = _sequence_scores(segment, own, best)
    rows, second = _peaks(segment, own, scores, MIN_LOOP * max(1.0 / step, 1.0))
    similar = _same_shape(trajectories, anchors, own[rows], second)
    rows, second = rows[similar], second[similar]
    chain = _chains(segment, own[rows], second)
    kept = np.bincount(chain, minlength=1)[chain] >= 3
    rows, second, first = rows[kept], second[kept], own[rows[kept]]
    relative = [
        _align_sequences(trajectories, anchors, values, row, pair)
        for row, *pair in zip(rows, first, second, strict=True)
    ]
    return Closures(
        anchors[first],
        anchors[second],
        np.array(relative).reshape(-1, 3),
        scores[rows, second].astype(np.float64),
        np.unique(chain[kept], return_inverse=True)[1],
        np.zeros(len(rows), dtype=bool),
    )


def _standardised(values: Scores) -> Scores:
    """Standardise rows by median and spread, then subtract the median of each column."""
    middle = np.median(values, axis=1, keepdims=True)
    spread = 1.4826 * np.median(np.abs(values - middle), axis=1, keepdims=True)
    standard = (values - middle) / np.maximum(spread, 1e-6)
    return np.asarray(standard - np.median(standard, axis=0), dtype=np.float32)


def _along(segment: Indices, at: Indices) -> tuple[Indices, NDArray[np.bool_]]:
    """Return anchors (q, k) `_STEPS` (k,) away from anchors (q,); mask those in their segment."""
    there = at[:, np.newaxis] + _STEPS
    inside = np.clip(there, 0, len(segment) - 1)
    return inside, (inside == there) & (segment[inside] == segment[at][:, np.newaxis])


def _sequence_scores(segment: Indices, own: Indices, best: Scores) -> Scores:
    """Return scores (r, a) of sequences about anchors `own` (r,) and all; -inf if too short."""
    total, count = np.zeros_like(best), np.zeros(best.shape, dtype=np.uint8)
    theirs, inside = _along(segment, np.arange(len(segment)))
    for column, steps in enumerate(_STEPS):
        have = np.flatnonzero(inside[:, column])
        rows = np.flatnonzero(inside[own, column])
        total[np.ix_(rows, have)] += best[np.ix_(rows + steps, theirs[have, column])]
        count[np.ix_(rows, have)] += 1
    scores = np.where(count >= _MIN_STEPS, total / np.maximum(count, 1), -np.inf)
    return np.asarray(scores, dtype=np.float32)


def _peaks(
    segment: Indices, own: Indices, scores: Scores, apart: float
) -> tuple[Indices, Indices]:
    """
    Find local maxima of scores (r, a) at earlier anchors, at least `apart` steps away.

    Return rows (m,) and anchors (m,) of the three highest maxima of each row and of the highest of
    each segment: many runs along one way must not hide a run along another way.
    """
    # scores of unrelated sequences have mean 0 and a spread of about 1
    peak = (scores > 1.5) & (scores == maximum_filter1d(scores, 5, axis=1))
    rows, columns = [np.zeros(0, dtype=np.intp)], [np.zeros(0, dtype=np.intp)]
    for row, here in enumerate(own):
        found = np.flatnonzero(peak[row, :here])
        found = found[(segment[found] != segment[here]) | (here - found >= apart)]
        found = found[np.argsort(-scores[row, found], kind='stable')]
        of_segments = np.unique(segment[found], return_index=True)[1]
        columns.append(found[np.union1d(of_segments, np.arange(min(3, len(found))))])
        rows.append(np.full(len(columns[-1]), row))
    return np.concatenate(rows), np.concatenate(columns)


def _same_shape(
    trajectories: Trajectories, anchors: Indices, first: Indices, second: Indices
) -> NDArray[np.bool_]:
    """Return whether the odometry about pairs of anchors (m,) has similar shapes."""
    poses, segment = trajectories.odometry[anchors], trajectories.segment[anchors]
    (ours, have), (theirs, also) = (_along(segment, at) for at in (first, second))
    both = have & also
    apart = se2.between(
        se2.between(poses[first][:, np.newaxis], poses[ours]),
        se2.between(poses[second][:, np.newaxis], poses[theirs]),
    )
    # tolerate a part of a step, and a share of the travel for different scales
    room = trajectories.step * (0.6 + 0.12 * np.abs(_STEPS))
    turned = np.where(both, apart[..., 2], np.nan)
    turned -= np.nanmedian(turned, axis=1, keepdims=True)
    fits = both & (np.hypot(apart[..., 0], apart[..., 1]) < room) & (np.abs(turned) < 0.35)
    return np.asarray(fits.sum(axis=1) > 0.8 * both.sum(axis=1))


def _chains(segment: Indices, first: Indices, second: Indices) -> Indices:
    """Return the chain (m,) of each pair of anchors; the pairs are sorted by `first`."""
    names, known = np.arange(len(first)), dict[tuple[int, ...], int]()
    for number, (a, b) in enumerate(zip(first.tolist(), second.tolist(), strict=True)):
        of = int(segment[a]), int(segment[b])
        # both sides advance by the same distance, except for rounding to steps
        for before in (b - 1, b - 2, b):
            if (*of, a - 1, before) in known:
                names[number] = known[(*of, a - 1, before)]
                break
        known[(*of, a, b)] = int(names[number])
    return names


def _align_sequences(
    trajectories: Trajectories, anchors: Indices, values: Scores, row: int, pair: list[int]
) -> FloatArray:
    """Return the pose (3,) of the first anchor, that of `row`, in the frame of the second one."""
    travel, odometry = trajectories.travel, trajectories.odometry
    first, second = anchors[list(pair)]
    span = trajectories.span(int(trajectories.segment[second]))
    along, have = _along(trajectories.segment[anchors], np.array(pair[:1]))
    shifts = trajectories.step * np.arange(-6, 7) / 4.0
    fits = np.zeros(len(shifts))
    for steps, image in zip(_STEPS[have[0]], anchors[along[have]], strict=True):
        wanted = travel[second] + travel[image] - travel[first] + shifts
        fits += np.interp(wanted, travel[span], values[row + steps, span])
    # maximum of the parabola through the largest value and its neighbours
    best = int(np.clip(np.argmax(fits), 1, len(fits) - 2))
    left, middle, right = fits[best - 1 : best + 2]  # noqa: E203
    curvature = left - 2.0 * middle + right
    offset = 0.5 * (left - right) / curvature if curvature < 0.0 else 0.0
    shift = shifts[best] + np.clip(offset, -1.0, 1.0) * (shifts[1] - shifts[0])
    away = se2.between(odometry[second], odometry[span])
    return np.array([np.interp(travel[second] + shift, travel[span], one) for one in away.T])


def measure_closures(
    trajectories: Trajectories,
    closures: Closures,
    parameters: FloatArray,
    images: Sequence[LoadableImage],
    view: turning.View,
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return `relative` and `matched` of closures by points of images (n,) of a camera."""
    relative, matched = closures.relative.copy(), np.zeros(len(closures), dtype=bool)
    if not len(closures):
        return relative, matched
    chosen = select_evenly(np.arange(len(closures)), 1500)
    neighbours = [_neighbours(trajectories, int(closures.second[number])) for number in chosen]
    needed = np.unique(np.concatenate([closures.first[chosen], *neighbours]))
    shown = [images[int(image)] for image in needed]
    detected: list[turning.Keypoints] = run_batches('finding points', _detect_all, shown, 32)
    keypoints = dict(zip(needed.tolist(), detected, strict=True))
    poses = corrected_poses(trajectories, parameters)
    pairs = []
    for number, about in zip(chosen, neighbours, strict=True):
        ours = keypoints[closures.first[number]]
        offsets = se2.between(poses[about], poses[closures.second[number]])
        pairs.append(([keypoints[n] for n in about], ours, offsets, relative[number]))
    found = run_batches('matching points of closures', partial(_find_poses, view), pairs, 8)
    for number, pose in zip(chosen, found, strict=True):
        if pose is not None:
            relative[number], matched[number] = pose, True
    return relative, matched


def _find_poses(view: turning.View, pairs: Sequence[tuple[Any, ...]]) -> list[FloatArray | None]:
    return [
        find_pose([turning.match_keypoints(other, ours) for other in others], offsets, view, guess)
        for others, ours, offsets, guess in pairs
    ]


def find_pose(
    matches: Sequence[FloatArray], offsets: FloatArray, view: turning.View, guess: FloatArray
) -> FloatArray | None:
    """
    Find the pose (3,) of image a in the frame of image b, from a guess; None if few points agree.

    `matches`: places (m, 4) of points in each of k images about b, and in a. `offsets`: (k, 3)
    poses of b in the frames of these images.
    """
    which = np.repeat(np.arange(len(matches)), [len(each) for each in matches])
    if len(which) < _MIN_MATCHES:
        return None
    rays = (np.concatenate(list(matches)) - np.tile(view.ahead, 2)) / view.focal
    noise = _NOISE / view.focal
    # start also from the sides, as there are local optima
    starts = guess + np.outer([0.0, -0.25, 0.25], [0.0, 1.0, 0.0])
    poses = [_refine_pose(guess, start, rays, offsets[which], noise) for start in starts]
    inliers = [
        np.abs(_epipolar_errors(pose, rays, offsets[which])) < 4.0 * noise for pose in poses
    ]
    best = int(np.argmax([each.sum() for each in inliers]))
    enough = inliers[best].sum() >= _MIN_MATCHES and inliers[best].mean() > 0.35
    near = np.all(np.abs(poses[best] - guess) < 3.0 * _GUESS_SD)
    return poses[best] if enough and near else None


def _refine_pose(
    guess: FloatArray, start: FloatArray, rays: FloatArray, offsets: FloatArray, noise: float
) -> FloatArray:
    """Fit a pose (3,) to points from a start, with a Cauchy loss that narrows in steps."""
    pose, prior, step = start.copy(), np.diag(1.0 / _GUESS_SD**2), 1e-4 * np.eye(3)
    each = 5.0 / len(rays) / noise**2  # errors are correlated: all matches count as five
    for width in np.repeat([8.0, 4.0, 2.0, 1.0], 4):
        errors = _epipolar_errors(pose, rays, offsets)
        sides = [
            _epipolar_errors(pose + d, rays, offsets) - _epipolar_errors(pose - d, rays, offsets)
            for d in step
        ]
        slope = np.stack(sides, axis=1) / 2e-4
        weighted = slope.T * (each / (1.0 + (errors / noise / width) ** 2))
        right = weighted @ errors + prior @ (pose - guess)
        pose = pose - np.linalg.solve(weighted @ slope + prior, right)
    return pose


def _epipolar_errors(pose: FloatArray, rays: FloatArray, offsets: FloatArray) -> FloatArray:
    """
    Return the Sampson distances (m,) of points from their epipolar lines, in focal lengths.

    `rays`: (m, 4) right and down in another image and in ours; `offsets`: (m, 3), see `find_pose`.
    """
    ahead, left, turn = se2.compose(offsets, pose).T
    x, y, x_ours, y_ours = rays.T
    cosine, sine = np.cos(turn), np.sin(turn)
    right, away = x_ours * cosine - sine, x_ours * sine + cosine
    error = ahead * (x * y_ours - y * right) - left * (y * away - y_ours)
    squared = (
        (ahead * y_ours) ** 2
        + (ahead * right + left * away) ** 2
        + (ahead * y * cosine + left * y * sine) ** 2
        + (ahead * x + left) ** 2
    )
    return np.asarray(error / np.sqrt(np.maximum(squared, 1e-12)))


def _neighbours(trajectories: Trajectories, image: int) -> Indices:
    """Return images of the same segment, up to two steps before and after an image."""
    travel = trajectories.travel[image] + trajectories.step * np.array([-2.0, -1.0, 1.0, 2.0])
    found = np.unique(trajectories.images_at(int(trajectories.segment[image]), travel))
    return np.asarray(found[found != image])


def _detect_all(images: Sequence[LoadableImage]) -> list[turning.Keypoints]:
    return [turning.detect_keypoints(turning.load_small(image)) for image in images]
