"""From runs without known poses to a map: `kbr map build --poses odometry`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kbr_localization import se2
from kbr_localization.datasets import Dataset, Frame, OdometryTrack
from kbr_localization.errors import MapError
from kbr_localization.localization.config import KbrConfig, suited_config
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.kernel_map import KernelMap, MappingRecord
from kbr_localization.localization.map.prune import cover
from kbr_localization.localization.mapping.align import at_base, move_map
from kbr_localization.localization.mapping.consistency import relate, Related
from kbr_localization.localization.mapping.graph import settle, Solved
from kbr_localization.localization.mapping.headings import (
    correct_headings,
    CorrectedOdometry,
    watch,
    Watched,
)
from kbr_localization.localization.mapping.loop_closure import propose
from kbr_localization.localization.mapping.relative_pose import measure_closures, Pictures
from kbr_localization.localization.mapping.segments import (
    carried_places,
    Cut,
    odometry_leaps,
    segment_numbers,
)
from kbr_localization.localization.mapping.trajectories import Indices, Trajectories
from kbr_localization.localization.motion import measure_odometry, MotionNoise
from kbr_localization.progress import Progress, silent
from kbr_localization.vision import Describer, VisionConfig
from kbr_localization.workers import Workers
import numpy as np

SHORTEST = 3.0
"""Metres that a run must travel."""


@dataclass(frozen=True)
class Mapped:
    """A map made of odometry and images, and what to say about it, a line each."""

    kernel_map: KernelMap
    notes: tuple[str, ...]


class WithoutPoses(Dataset):
    """A run whose odometry stands for the poses, until these are known."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.name, self.skipped = dataset.name, dataset.skipped
        # empty: compared with itself it has no delay
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

    The map frame is the frame of the first image. Reference poses of the runs are ignored. `base`:
    poses of the point that the odometry follows, else of the camera. See `build_map` for the other
    arguments. Raises MapError for runs that share no place, and for a run that stays in one place.
    """
    for dataset in datasets:
        _check_travel(dataset)
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
    Replace the odometry poses (n, 3) of a map by poses that fit its images.

    `tracks`: the odometry of each run at full rate. `watched`: what its images show (`watch`), if
    that is looked at. `base`: see `map_from_odometry`.
    """
    cuts = _cuts(described, tracks)
    run = described.run_index.astype(np.intp)
    segment, run_of_segment = segment_numbers(run, cuts)
    points = None if watched is None else watched.followed
    corrected = correct_headings(described.poses, run, points)
    fixed = np.zeros(len(run_of_segment), dtype=bool)
    trajectories = Trajectories(corrected.odometry, segment, run_of_segment, fixed)
    pictures = None
    if watched is not None and corrected.view is not None:
        pictures = Pictures(watched.images, corrected.view, watched.workers)
    found = find_closures(
        described.describer, described.descriptors, trajectories, corrected, pictures, progress
    )
    members, notes = _largest_group(described, trajectories, found, cuts)
    solved, record = solve_group(trajectories, found, members, corrected)
    whole = _with_poses(described.subset(members), segment[members], solved, record)
    if base:
        whole = at_base(whole)
        whole = move_map(whole, se2.inverse(whole.poses[0]), aligned=False)
    suited = suited_config(filter_config, whole.poses, described.cameras)
    notes += corrected.summary(base) + _summary(solved, found)
    return Mapped(replace(whole, filter_config=suited), tuple(notes))


def find_closures(
    describer: Describer,
    descriptors: np.ndarray,
    trajectories: Trajectories,
    corrected: CorrectedOdometry,
    pictures: Pictures | None,
    progress: Progress | None,
) -> Related:
    """Find the closures of images with descriptors (n, d), measured by `pictures` if given."""
    report = progress or silent
    proposed = propose(describer, descriptors, trajectories, partial(report, 'comparing images'))
    found = relate(trajectories, proposed, corrected.prior)
    if pictures is None:
        return found
    believed = measure_closures(
        trajectories, found.believed, corrected.prior.mean, pictures, report
    )
    return replace(found, believed=believed)


def solve_group(
    trajectories: Trajectories, found: Related, members: Indices, corrected: CorrectedOdometry
) -> tuple[Solved, MappingRecord]:
    """
    Solve for images (m,) of the segments that closures join.

    The odometry's errors are of the wheels, before the camera corrected its headings. The
    record has the closures that were used, and those that contradict them.
    """
    place = np.full(len(trajectories), -1)
    place[members] = np.arange(len(members))
    segments, segment = np.unique(trajectories.segment[members], return_inverse=True)
    part = Trajectories(
        trajectories.odometry[members],
        segment,
        trajectories.run_of_segment[segments],
        trajectories.fixed[segments],
    )
    closures = found.believed.renumbered(place)
    known_ends = closures.second[part.known[closures.second]]
    nodes = np.union1d(part.anchors(), known_ends)
    solved = settle(part, nodes, closures, found.parameters, corrected.prior)
    solved.parameters[-len(corrected.drift) :, -1] += corrected.drift  # noqa: E203
    solved.common[-1] += float(np.mean(corrected.drift))
    proposed = found.proposed.renumbered(place)
    ends = zip(closures.first.tolist(), closures.second.tolist(), strict=True)
    number = {pair: at for at, pair in enumerate(ends)}
    pairs = np.stack([proposed.first, proposed.second], axis=1)
    at = np.array([number.get((a, b), -1) for a, b in pairs.tolist()], dtype=np.intp)
    relative, kept = proposed.relative.copy(), np.zeros(len(pairs), dtype=np.uint8)
    relative[at >= 0] = closures.relative[at[at >= 0]]
    kept[at >= 0] = solved.kept[at[at >= 0]]
    moved = se2.between(solved.poses[proposed.second], solved.poses[proposed.first])
    return solved, MappingRecord(
        part.odometry,
        solved.covariances,
        solved.parameters,
        pairs,
        proposed.chain,
        relative,
        se2.between(relative, moved),
        proposed.score,
        kept,
        aligned=False,
    )


def _check_travel(dataset: Dataset) -> None:
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
    run = described.run_index.astype(np.intp)
    found = carried_places(described.describer, described.descriptors, described.poses, run)
    for number, track in enumerate(tracks):
        members = np.flatnonzero(run == number)
        if members.size:
            found += odometry_leaps(track, described.stamps_ns[members], int(members[0]))
    by_image = {cut.image: cut for cut in found}
    return [by_image[image] for image in sorted(by_image)]


def _with_poses(
    part: KernelMap, segment: Indices, solved: Solved, record: MappingRecord
) -> KernelMap:
    """Put the poses that were solved for into a map of the odometry, images of segments (m,)."""
    following = np.concatenate([solved.poses[1:], np.full((1, 3), np.nan)])
    ends = np.concatenate([np.diff(segment) != 0, [True]]) | np.isnan(part.controls[:, 0])
    following[ends] = np.nan
    tracks = [(part.poses[segment == n], solved.poses[segment == n]) for n in np.unique(segment)]
    # the poses were made from the odometry itself: its noise is not smaller than is usual
    (_, noise), usual = measure_odometry(tracks), MotionNoise.default()
    noise = replace(
        noise,
        per_metre=np.maximum(noise.per_metre, usual.per_metre),
        per_radian=np.maximum(noise.per_radian, usual.per_radian),
        step=np.maximum(noise.step, usual.step),
    )
    return replace(
        part,
        poses=solved.poses,
        next_poses=following,
        controls=np.where(ends[:, np.newaxis], np.nan, part.controls),
        motion_noise=noise,
        calibration=solved.calibration(),
        mapping=replace(record, odometry=part.poses),
    )


def _largest_group(
    described: KernelMap, trajectories: Trajectories, found: Related, cuts: Sequence[Cut]
) -> tuple[Indices, list[str]]:
    """
    Find images (m,) of the largest group of segments; also say what is cut and what is left out.

    Raises MapError when a run has no image among them.
    """
    names, segment = described.run_names, trajectories.segment
    group, run = found.group[segment], trajectories.run
    largest = int(np.argmax(np.bincount(group)))
    members = np.flatnonzero(group == largest)
    kept = np.unique(run[members])
    lost = np.setdiff1d(run, kept)
    if lost.size:
        raise MapError(
            f'{", ".join(names[r] for r in lost)} and {", ".join(names[r] for r in kept)} share '
            'no place that their images show: nothing is built of them together; build a map of '
            'each, or drive where both have been, in the same direction, for 20 m'
        )
    notes, begun = [], set()
    for cut in cuts:
        name, start = names[run[cut.image]], np.searchsorted(run, run[cut.image])
        seconds = (described.stamps_ns[cut.image] - described.stamps_ns[start]) * 1e-9
        begun.add(int(segment[cut.image]))
        fate = 'images join what follows to the rest'
        if group[cut.image] != largest:
            count = int(np.sum(segment == segment[cut.image]))
            fate = f'{count} images after it are left out: no place of the rest is shown again'
        notes.append(f'{name} is cut at {seconds:.1f} s, {cut.why}; {fate}')
    for number in sorted(set(np.flatnonzero(found.group != largest).tolist()) - begun):
        name, count = names[trajectories.run_of_segment[number]], int(np.sum(segment == number))
        first = 'its first image is' if count == 1 else f'its first {count} images are'
        notes.append(f'{name}: {first} left out')
    return members, notes


def _summary(solved: Solved, found: Related) -> list[str]:
    """Say how many closures hold and what they miss, and how far the map can be relied on."""
    proposed = len(np.unique(found.proposed.chain))
    growth = float(np.hypot(*solved.growth[:2]))
    uncertain = f'uncertain by {growth:.1f} m and {np.degrees(solved.growth[2]):.0f} degrees'
    if not solved.kept.any():
        beside = (
            f' ({proposed} sequences of images look alike, none of them more than others do)'
            if proposed
            else ''
        )
        return [
            f'warning: no place is shown again{beside}: the poses are those of the odometry, the '
            f'last one {uncertain} against the first; drive every way twice in the same direction'
        ]
    missed = np.median(np.abs(solved.misses[solved.kept]), axis=0)
    sequences = len(np.unique(solved.closures.chain[solved.kept]))
    return [
        f'{int(solved.kept.sum())} closures in {sequences} sequences, which miss '
        f'{missed[0]:.2f} m along, {missed[1]:.2f} m across and {np.degrees(missed[2]):.1f} '
        f'degrees (medians); {proposed - sequences} sequences that contradict them are left out',
        f'the last image is {uncertain} against the first; '
        'the scale of all metres is that of the odometry',
    ]
