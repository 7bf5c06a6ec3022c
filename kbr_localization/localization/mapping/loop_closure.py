"""
Loop closures: pairs of images of one place, proposed by sequences of images.

A single image has look-alikes. A sequence is compared with another one that was taken along as
much travel (SeqSLAM, Milford and Wyeth, ICRA 2012, with travel by the odometry in place of its
range of speeds): the score of images a and j is the mean over images a_d, d metres further, of the
standardised kernel value of a_d and the best image within half a step of j_d.

A closure says where its first image was taken in the frame of its second one. Along the way that
is where the sequences fit best as one is shifted against the other. To the side and in heading the
image kernel says no more than that the two are similar: there the images themselves are matched.

Image a of one visit is matched with images b_k before and behind image b of the other. A point
that b_k sees along u and a along v keeps t_k . (u x R v) = 0, whatever its distance, t_k being the
way from b_k to a and R the turn between them (the essential matrix of a camera that moves in the
plane). All t_k follow from the pose of a in the frame of b, which is what is sought, and from the
odometry between the b_k, which gives the metres. Along the way the image kernel knows more; aside
and in heading it knows nothing, and this does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

from kbr_localization import se2
from kbr_localization.localization.mapping.odometry_model import tracks
from kbr_localization.localization.mapping.trajectories import Indices, Trajectories
from kbr_localization.progress import Progress
from kbr_localization.se2 import FloatArray
from kbr_localization.vision import Describer
from kbr_localization.vision.preparation import LoadableImage
from kbr_localization.vision.turning import Corners, find_corners, load_small, matched, View, WIDTH
from kbr_localization.workers import batches, gathered, Workers
import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float32]
REACH = 5
"""Steps to either side that a sequence has."""
MIN_LOOP = 10.0
"""Metres of travel within which images of one segment are neighbours, and no closure."""
_FEWEST = 7  # steps of a sequence that both sides must have
_NOISE = 0.5 / WIDTH  # of a matched point
_GUESS = np.array([0.1, 0.3, 0.15])  # deviations of what the image kernel and the place say
_FEWEST_MATCHES = 25  # matches that agree


@dataclass(frozen=True)
class Closures:
    """
    Places shown again.

    `first`, `second`: (m,) images. `relative`: (m, 3) pose of the first in the frame of the
    second. `score`: (m,) of the sequences. `chain`: (m,) number of the chain of each: closures of
    neighbouring images that advance by the same distance on both sides. `seen`: (m,) whether
    matched points told `relative` (see `measure_closures`).
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
    kept = np.flatnonzero(np.bincount(chain, minlength=1)[chain] >= 3)
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
        # unrelated sequences have 0 and a spread of about 1
        if not usable[best] > 1.5 or (number is not None and number in segment[found]):
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


@dataclass(frozen=True)
class Pictures:
    """The images (n,) of a map, and the view of the camera that took them."""

    images: Sequence[LoadableImage]
    view: View
    workers: Workers


def measure_closures(
    trajectories: Trajectories,
    closures: Closures,
    parameters: FloatArray,
    pictures: Pictures,
    progress: Progress,
) -> Closures:
    """
    Measure the relative poses of closures, where their images show enough; these are `seen`.

    `parameters`: (6,) of the odometry, as far as they are known.
    """
    if not len(closures):
        return closures
    chosen = np.unique(np.linspace(0, len(closures) - 1, 1500).astype(np.intp))
    beside = [_beside(trajectories, int(closures.second[number])) for number in chosen]
    needed = np.unique(np.concatenate([closures.first[chosen], *beside]))
    images = [pictures.images[int(image)] for image in needed]
    detected: list[Corners] = gathered(
        pictures.workers,
        _all_corners,
        batches(images, 32),
        lambda done: progress('finding points', done, len(images)),
    )
    corners = dict(zip(needed.tolist(), detected, strict=True))
    poses = tracks(trajectories, parameters)
    relative, seen = closures.relative.copy(), np.zeros(len(closures), dtype=bool)
    for done, (number, about) in enumerate(zip(chosen, beside, strict=True)):
        ours = corners[int(closures.first[number])]
        matches = [matched(corners[int(image)], ours) for image in about]
        ways = se2.between(poses[about], poses[closures.second[number]])
        found = find_pose(matches, ways, pictures.view, relative[number])
        if found is not None:
            relative[number], seen[number] = found, True
        progress('looking at closures', done + 1, len(chosen))
    return replace(closures, relative=relative, seen=seen)


def find_pose(
    matches: Sequence[FloatArray], ways: FloatArray, view: View, guess: FloatArray
) -> FloatArray | None:
    """
    Find the pose (3,) of an image in the frame of another one, from a guess of it.

    `matches`: places (m, 4) of points in each of the images about the other one, and in the image.
    `ways`: (k, 3) poses of the other one in the frames of these. None where too little agrees.
    """
    which = np.repeat(np.arange(len(matches)), [len(each) for each in matches])
    if len(which) < _FEWEST_MATCHES:
        return None
    rays = (np.concatenate(list(matches)) - np.tile(view.ahead, 2)) / view.focal
    noise = _NOISE / view.focal
    # there are local optima aside
    starts = guess + np.outer([0.0, -0.25, 0.25], [0.0, 1.0, 0.0])
    poses = [_refined(guess, start, rays, ways[which], noise) for start in starts]
    agreeing = [np.abs(_missed(pose, rays, ways[which])) < 4.0 * noise for pose in poses]
    best = int(np.argmax([each.sum() for each in agreeing]))
    enough = agreeing[best].sum() >= _FEWEST_MATCHES and agreeing[best].mean() > 0.35
    near = np.all(np.abs(poses[best] - guess) < 3.0 * _GUESS)
    return poses[best] if enough and near else None


def _refined(
    guess: FloatArray, start: FloatArray, rays: FloatArray, ways: FloatArray, noise: float
) -> FloatArray:
    """Pose (3,) that points agree on best near a start, by Cauchy's law that becomes sharper."""
    pose, prior, step = start.copy(), np.diag(1.0 / _GUESS**2), 1e-4 * np.eye(3)
    each = 5.0 / len(rays) / noise**2  # errors of matches are correlated: they count as five
    for sharp in np.repeat([8.0, 4.0, 2.0, 1.0], 4):
        missed = _missed(pose, rays, ways)
        sides = [_missed(pose + d, rays, ways) - _missed(pose - d, rays, ways) for d in step]
        slope = np.stack(sides, axis=1) / 2e-4
        weighted = slope.T * (each / (1.0 + (missed / noise / sharp) ** 2))
        right = weighted @ missed + prior @ (pose - guess)
        pose = pose - np.linalg.solve(weighted @ slope + prior, right)
    return pose


def _missed(pose: FloatArray, rays: FloatArray, ways: FloatArray) -> FloatArray:
    """
    Distances (m,) of points from where they may be, in focal lengths (Sampson).

    `rays`: (m, 4) right and down in an image and in ours; `ways`: (m, 3) of the image that `pose`
    is in the frame of, in the frame of the first.
    """
    ahead, left, turn = se2.compose(ways, pose).T
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


def _beside(trajectories: Trajectories, image: int) -> Indices:
    """Images of the same segment before and behind an image."""
    travel = trajectories.travel[image] + trajectories.step * np.array([-2.0, -1.0, 1.0, 2.0])
    found = trajectories.at_travel(int(trajectories.segment[image]), travel)
    return found[found >= 0]


def _all_corners(images: Sequence[LoadableImage]) -> list[Corners]:
    """Find the points (k, 2) of each of some images; a broken one has none."""
    return [find_corners(load_small(image)) for image in images]
