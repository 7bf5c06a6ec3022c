"""From runs without known poses to a map: `kbr map build --poses odometry`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kbr_localization import se2
from kbr_localization.datasets import Dataset, Frame, OdometryTrack
from kbr_localization.errors import MapError
from kbr_localization.localization.config import KbrConfig, suited_config
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.mapping_record import MappingRecord
from kbr_localization.localization.map.prune import cover
from kbr_localization.localization.mapping.align import move_map
from kbr_localization.localization.mapping.base_frame import at_base
from kbr_localization.localization.mapping.headings import (
    correct_headings,
    CorrectedOdometry,
    watch,
    Watched,
)
from kbr_localization.localization.mapping.looking import look, Pictures
from kbr_localization.localization.mapping.pieces import (
    carried_places,
    Cut,
    odometry_leaps,
    piece_numbers,
)
from kbr_localization.localization.mapping.relating import relate, Related
from kbr_localization.localization.mapping.solving import settle, Solved
from kbr_localization.localization.mapping.summary import largest_group, summary
from kbr_localization.localization.mapping.trajectories import Indices, Trajectories
from kbr_localization.localization.motion import estimate_noise, MotionNoise
from kbr_localization.progress import Progress, silent
from kbr_localization.vision import VisionConfig
from kbr_localization.workers import Workers
import numpy as np

SHORTEST = 3.0
"""Metres that a run has to have: less is one place."""


@dataclass(frozen=True)
class Mapped:
    """
    A map made of odometry and images, and what to say about it, a line each.

    `growth`: deviations (3,) in metres and radians of the last image against the first one.
    `joined`: whether closures were used.
    """

    kernel_map: KernelMap
    notes: tuple[str, ...]
    growth: se2.FloatArray
    joined: bool


class WithoutPoses(Dataset):
    """A run whose odometry stands for the poses, until these are known."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.name, self.skipped = dataset.name, dataset.skipped
        # beside itself it has no delay, and none is to be measured
        self.odometry = OdometryTrack(np.zeros(0, dtype=np.int64), np.zeros((0, 3)))
        self.cameras = dataset.cameras

    def __len__(self) -> int:
        """Count the frames."""
        return len(self._dataset)

    def __getitem__(self, index: int) -> Frame:
        """Return one frame, with its odometry for a reference pose."""
        frame = self._dataset[index]
        return replace(frame, reference=frame.odometry)


def map_from_odometry(
    datasets: Sequence[Dataset],
    vision: VisionConfig | None = None,
    filter_config: KbrConfig | Mapping[str, Any] | None = None,
    max_images: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    workers: Workers | None = None,
    base: bool = False,
) -> Mapped:
    """
    Build a map of runs by their odometry and the places that their images show again.

    The map frame is that of the first image: its pose is zero. Reference poses of the runs are
    not looked at. `base`: the poses are those of the point whose way the odometry tells, else
    those of the camera. See `build_map` for the other arguments. Raises MapError for runs that
    share no place, and for a run that stays in one place.
    """
    for dataset in datasets:
        _check_way(dataset)
    runs = [WithoutPoses(dataset) for dataset in datasets]
    described = build_map(runs, vision, filter_config, None, seed, progress, workers)
    watched = watch(datasets, described, progress, workers)
    tracks = [dataset.odometry for dataset in datasets]
    mapped = map_described(described, tracks, watched, filter_config, progress, base)
    whole = mapped.kernel_map
    if max_images is not None and max_images < len(whole):
        rng = np.random.default_rng(seed)
        whole = whole.subset(cover(whole.poses, max_images, rng))
    return replace(mapped, kernel_map=whole)


def map_described(
    described: KernelMap,
    tracks: Sequence[OdometryTrack],
    watched: Watched | None,
    filter_config: KbrConfig | Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    base: bool = False,
) -> Mapped:
    """
    Give a map of n images, whose poses (n, 3) are those of the odometry, those its images tell.

    `tracks`: the odometry of each run at full rate. `watched`: what its images show (`watch`), if
    that is looked at. `base`: see `map_from_odometry`.
    """
    cuts = _cuts(described, tracks)
    run = described.run_index.astype(np.intp)
    piece, run_of_piece = piece_numbers(run, cuts)
    points = None if watched is None else watched.followed
    corrected = correct_headings(described.poses, run, points)
    trajectories = Trajectories.of(corrected.odometry, piece, run_of_piece)
    report = progress or silent
    found = relate(
        described.describer, described.descriptors[:], trajectories, report, corrected.prior
    )
    if watched is not None and corrected.view is not None:
        pictures = Pictures(watched.images, corrected.view, watched.workers)
        parameters = corrected.prior.belief.mean
        found = replace(
            found, believed=look(trajectories, found.believed, parameters, pictures, report)
        )
    members, notes = largest_group(described, trajectories, found, cuts)
    solved = _solve(trajectories, found, members, corrected)
    whole = _with_poses(described, trajectories, found, solved, members)
    if base:
        whole = at_base(whole)
        whole = move_map(whole, se2.inverse(whole.poses[0]), aligned=False)
    suited = suited_config(filter_config, whole.poses, described.cameras)
    used = bool(solved.kept.any())
    notes += corrected.summary(base) + summary(solved, used, found)
    return Mapped(replace(whole, filter_config=suited), tuple(notes), solved.growth, used)


def _check_way(dataset: Dataset) -> None:
    if not len(dataset):
        raise MapError(f'{dataset.name} has no images: expected some with odometry')
    metres = float(se2.travelled(dataset.odometry.poses).max(initial=0.0))
    if metres < SHORTEST:
        raise MapError(
            f'{dataset.name} stays in one place: its odometry has {metres:.2f} m of way, expected '
            f'at least {SHORTEST:g} m; drive where the robot is to localize'
        )


def _cuts(described: KernelMap, tracks: Sequence[OdometryTrack]) -> list[Cut]:
    """Find breaks of the odometry between the images of all runs, in order."""
    found = carried_places(
        described.describer,
        described.descriptors,
        described.poses,
        described.run_index.astype(np.intp),
    )
    for run, track in enumerate(tracks):
        members = np.flatnonzero(described.run_index == run)
        if members.size:
            found += odometry_leaps(track, described.stamps_ns[members], int(members[0]))
    by_image = {cut.image: cut for cut in found}
    return [by_image[image] for image in sorted(by_image)]


def _solve(
    trajectories: Trajectories, found: Related, members: Indices, corrected: CorrectedOdometry
) -> Solved:
    """Solve for the images of one group, renumbered; the odometry's errors are the wheels'."""
    place = np.full(len(trajectories), -1)
    place[members] = np.arange(len(members))
    pieces, piece = np.unique(trajectories.piece[members], return_inverse=True)
    part = Trajectories(
        trajectories.odometry[members],
        piece,
        trajectories.run_of_piece[pieces],
        trajectories.way[members],
        trajectories.fixed[pieces],
    )
    anchors = place[found.anchors]
    inside = found.believed.some(place[found.believed.first] >= 0)
    closures = replace(inside, first=place[inside.first], second=place[inside.second])
    parameters = found.agreement.parameters
    solved = settle(part, anchors[anchors >= 0], closures, parameters, corrected.prior)
    of_wheels = solved.parameters.copy()
    of_wheels[:, -1] += corrected.drift[: len(of_wheels)]
    common = solved.common.copy()
    common[-1] += float(np.mean(corrected.drift))
    return replace(solved, parameters=of_wheels, common=common)


def _with_poses(
    described: KernelMap,
    trajectories: Trajectories,
    found: Related,
    solved: Solved,
    members: Indices,
) -> KernelMap:
    """Put the poses that were solved for into the map of the described images."""
    part = described.subset(members)
    following = np.concatenate([solved.poses[1:], np.full((1, 3), np.nan)])
    ends = np.concatenate([np.diff(trajectories.piece[members]) != 0, [True]])
    ends |= np.isnan(part.controls[:, 0])
    following[ends] = np.nan
    pieces = trajectories.piece[members]
    tracks = [
        (part.poses[pieces == piece], solved.poses[pieces == piece]) for piece in np.unique(pieces)
    ]
    return replace(
        part,
        poses=solved.poses,
        next_poses=following,
        controls=np.where(ends[:, np.newaxis], np.nan, part.controls),
        motion_noise=_at_least_usual(estimate_noise(tracks)),
        calibration=solved.calibration(),
        mapping=_record(part, found, solved, members, len(described)),
    )


def _at_least_usual(noise: MotionNoise) -> MotionNoise:
    """Noise that is not smaller because the poses were made from the odometry itself."""
    usual = MotionNoise.default()
    return replace(
        noise,
        per_metre=np.maximum(noise.per_metre, usual.per_metre),
        per_radian=np.maximum(noise.per_radian, usual.per_radian),
        step=np.maximum(noise.step, usual.step),
    )


def _record(
    part: KernelMap, found: Related, solved: Solved, members: Indices, images: int
) -> MappingRecord:
    """Record the closures that were used, and those that contradict them."""
    place = np.full(images, -1)
    place[members] = np.arange(len(members))
    proposed = found.proposed
    pairs = np.stack([place[proposed.first], place[proposed.second]], axis=1)
    among = np.all(pairs >= 0, axis=1)
    pairs = pairs[among].reshape(-1, 2)
    ends = zip(solved.closures.first.tolist(), solved.closures.second.tolist(), strict=True)
    number = {pair: at for at, pair in enumerate(ends)}
    believed = np.array([number.get((int(a), int(b)), -1) for a, b in pairs], dtype=np.intp)
    kept = np.zeros(len(pairs), dtype=np.uint8)
    kept[believed >= 0] = solved.kept[believed[believed >= 0]]
    relative = proposed.relative[among].reshape(-1, 3)
    relative[believed >= 0] = solved.closures.relative[believed[believed >= 0]]
    poses = solved.poses
    misses = se2.between(relative, se2.between(poses[pairs[:, 1]], poses[pairs[:, 0]]))
    return MappingRecord(
        part.poses,
        solved.covariances,
        solved.parameters,
        pairs,
        proposed.chain[among],
        relative,
        misses,
        proposed.score[among],
        kept,
        aligned=False,
    )
