"""
The relative pose of two visits of a place, by points that the images of both show.

Image a of one visit is matched with images b_k before and behind image b of the other. A point
that b_k sees along u and a along v keeps t_k . (u x R v) = 0, whatever its distance, t_k being the
way from b_k to a and R the turn between them (the essential matrix of a camera that moves in the
plane). All t_k follow from the pose of a in the frame of b, which is what is sought, and from the
odometry between the b_k, which gives the metres. Along the way the image kernel knows more; aside
and in heading it knows nothing, and this does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kbr_localization import se2
from kbr_localization.localization.mapping.loop_closure import Closures
from kbr_localization.localization.mapping.odometry_model import tracks
from kbr_localization.localization.mapping.trajectories import Indices, Trajectories
from kbr_localization.progress import Progress
from kbr_localization.se2 import FloatArray
from kbr_localization.vision.preparation import LoadableImage
from kbr_localization.vision.turning import Corners, find_corners, load_small, matched, View, WIDTH
from kbr_localization.workers import gathered, Workers
import numpy as np

_STEPS = np.array([-2.0, -1.0, 1.0, 2.0])  # steps of travel between b and the images b_k
_LOOKS = 1500  # closures that are looked at, spread over all
_BATCH = 32  # images of a task
_NOISE = 0.5 / WIDTH  # of a matched point
_COUNT = 5.0  # points that the matches of a closure count as: their errors are correlated
_GUESS = np.array([0.1, 0.3, 0.15])  # deviations of what the image kernel and the place say
_STARTS = np.outer([0.0, -0.25, 0.25], [0.0, 1.0, 0.0])  # metres aside: there are local optima
_FEWEST = 25  # matches that agree


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
    chosen = np.unique(np.linspace(0, len(closures) - 1, _LOOKS).astype(np.intp))
    beside = [_beside(trajectories, int(closures.second[number])) for number in chosen]
    needed = np.unique(np.concatenate([closures.first[chosen], *beside]))
    corners = dict(zip(needed.tolist(), _corners_of(pictures, needed, progress), strict=True))
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
    if len(which) < _FEWEST:
        return None
    rays = (np.concatenate(list(matches)) - np.tile(view.ahead, 2)) / view.focal
    noise = _NOISE / view.focal
    poses = [_refined(guess, start, rays, ways[which], noise) for start in guess + _STARTS]
    agreeing = [np.abs(_missed(pose, rays, ways[which])) < 4.0 * noise for pose in poses]
    best = int(np.argmax([each.sum() for each in agreeing]))
    enough = agreeing[best].sum() >= _FEWEST and agreeing[best].mean() > 0.35
    near = np.all(np.abs(poses[best] - guess) < 3.0 * _GUESS)
    return poses[best] if enough and near else None


def _refined(
    guess: FloatArray, start: FloatArray, rays: FloatArray, ways: FloatArray, noise: float
) -> FloatArray:
    """Pose (3,) that points agree on best near a start, by Cauchy's law that becomes sharper."""
    pose, prior, step = start.copy(), np.diag(1.0 / _GUESS**2), 1e-4 * np.eye(3)
    each = _COUNT / len(rays) / noise**2
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
    travel = trajectories.travel[image] + trajectories.step * _STEPS
    found = trajectories.at_travel(int(trajectories.segment[image]), travel)
    return found[found >= 0]


def _corners_of(pictures: Pictures, needed: Indices, progress: Progress) -> list[Corners]:
    """Find the points of some images (k,)."""
    images = [(int(image), pictures.images[int(image)]) for image in needed]
    tasks = [images[slice(start, start + _BATCH)] for start in range(0, len(images), _BATCH)]

    def report(done: int) -> None:
        progress('finding points', done, len(images))

    return gathered(pictures.workers, all_corners, tasks, report)


def all_corners(images: Sequence[tuple[int, LoadableImage]]) -> list[Corners]:
    """Find the points (k, 2) of each of some numbered images; a broken one has none."""
    return [find_corners(load_small(image)) for _, image in images]
