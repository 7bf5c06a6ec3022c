"""
From runs without known poses to a map, `kbr map build --poses odometry`, and more runs for a map.

Another drive joins a finished map, whose poses stay (`extend`): its images are solved for together
with the map's, as segments whose poses are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from kbr_localization import se2
from kbr_localization.datasets import Dataset, Frame, OdometryTrack
from kbr_localization.datasets.images import decode_image
from kbr_localization.errors import MapError
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.map.build import describe_runs
from kbr_localization.localization.map.decay import with_suited_config
from kbr_localization.localization.map.kernel_map import KernelMap, MappingRecord
from kbr_localization.localization.map.prune import cover
from kbr_localization.localization.mapping.align import (
    at_base,
    camera_poses,
    move_map,
    parameters_about,
    point_of,
)
from kbr_localization.localization.mapping.consistency import relate, Related
from kbr_localization.localization.mapping.graph import settle, Solved
from kbr_localization.localization.mapping.loop_closure import (
    measure_closures,
    Pictures,
    propose,
)
from kbr_localization.localization.mapping.odometry_model import (
    correct_headings,
    CorrectedOdometry,
    PARAMETERS,
    watch,
    Watched,
)
from kbr_localization.localization.mapping.trajectories import (
    beside_map,
    carried_places,
    Cut,
    Indices,
    odometry_leaps,
    segment_numbers,
    Trajectories,
)
from kbr_localization.localization.motion import measure_odometry, MotionNoise
from kbr_localization.progress import Progress, silent
from kbr_localization.se2 import FloatArray
from kbr_localization.vision import Describer, VisionConfig
from kbr_localization.workers import Workers
import numpy as np


class Mapped(NamedTuple):
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
        if not len(dataset):
            raise MapError(f'{dataset.name} has no images: expected some with odometry')
        metres = float(se2.travelled(dataset.odometry.poses).max(initial=0.0))
        if metres < 3.0:
            raise MapError(
                f'{dataset.name} stays in one place: its odometry has {metres:.2f} m of way, '
                'expected at least 3 m; drive where the robot is to localize'
            )
    runs = [WithoutPoses(dataset) for dataset in datasets]
    described = describe_runs(runs, vision, None, seed, progress, workers)
    watched = watch(datasets, described, progress, workers)
    tracks = [dataset.odometry for dataset in datasets]
    whole, notes = map_described(described, tracks, watched, filter_config, progress, base)
    if max_images is not None and max_images < len(whole):
        rng = np.random.default_rng(seed)
        whole = whole.subset(cover(whole.poses, max_images, rng))
    return Mapped(whole, notes)


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
    run = described.run_index.astype(np.intp)
    breaks = carried_places(described.describer, described.descriptors, described.poses, run)
    for number, track in enumerate(tracks):
        members = np.flatnonzero(run == number)
        if members.size:
            breaks += odometry_leaps(track, described.stamps_ns[members], int(members[0]))
    by_image = {cut.image: cut for cut in breaks}
    cuts = [by_image[image] for image in sorted(by_image)]
    segment, run_of_segment = segment_numbers(run, [cut.image for cut in cuts])
    corrected = correct_headings(described.poses, run, watched.followed if watched else None)
    fixed = np.zeros(len(run_of_segment), dtype=bool)
    trajectories = Trajectories(corrected.odometry, segment, run_of_segment, fixed)
    pictures = None
    if watched is not None and corrected.view is not None:
        pictures = Pictures(watched.images, corrected.view, watched.workers)
    found = _find_closures(
        described.describer, described.descriptors, trajectories, corrected, pictures, progress
    )
    members, notes = _largest_group(described, trajectories, found, cuts)
    solved, record = _solve_group(trajectories, found, members, corrected)
    part, segment = described.subset(members), segment[members]
    own = [(part.poses[segment == n], solved.poses[segment == n]) for n in np.unique(segment)]
    # the poses were made from the odometry itself: its noise is not smaller than is usual
    (_, noise), usual = measure_odometry(own), MotionNoise.default()
    whole = replace(
        _with_poses(part, segment, solved.poses),
        motion_noise=replace(
            noise,
            per_metre=np.maximum(noise.per_metre, usual.per_metre),
            per_radian=np.maximum(noise.per_radian, usual.per_radian),
            step=np.maximum(noise.step, usual.step),
        ),
        calibration=solved.calibration(),
        mapping=replace(record, odometry=part.poses),
    )
    if base:
        whole = at_base(whole)
        whole = move_map(whole, se2.inverse(whole.poses[0]), aligned=False)
    notes += corrected.summary(base) + _summary(solved, found)
    return Mapped(with_suited_config(whole, filter_config), tuple(notes))


def _find_closures(
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


def _solve_group(
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
    used = np.isin(proposed.chain, closures.chain)  # whole chains are believed
    relative, kept = proposed.relative.copy(), np.zeros(len(proposed), dtype=np.uint8)
    relative[used], kept[used] = closures.relative, solved.kept
    moved = se2.between(solved.poses[proposed.second], solved.poses[proposed.first])
    return solved, MappingRecord(
        part.odometry,
        solved.covariances,
        solved.parameters,
        np.stack([proposed.first, proposed.second], axis=1),
        proposed.chain,
        relative,
        se2.between(relative, moved),
        proposed.score,
        kept,
        aligned=False,
    )


def _with_poses(part: KernelMap, segment: Indices, poses: FloatArray) -> KernelMap:
    """Replace the odometry poses (m, 3) of a map; steps are those within segments (m,)."""
    ends = np.append(np.diff(segment) != 0, True)[:, np.newaxis]
    controls = se2.between(part.poses, np.roll(part.poses, -1, axis=0))
    return replace(
        part,
        poses=poses,
        next_poses=np.where(ends, np.nan, np.roll(poses, -1, axis=0)),
        controls=np.where(ends, np.nan, controls),
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
    notes = []
    seconds = 1e-9 * (described.stamps_ns - described.stamps_ns[np.searchsorted(run, run)])
    for cut in cuts:
        notes.append(f'{names[run[cut.image]]} is cut at {seconds[cut.image]:.1f} s, {cut.why}')
    for number in np.flatnonzero(found.group != largest):
        images = np.flatnonzero(segment == number)
        notes.append(
            f'{names[run[images[0]]]}: {len(images)} images from {seconds[images[0]]:.1f} s on '
            'are left out: no place of the rest is shown again'
        )
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


def extend(
    kernel_map: KernelMap,
    dataset: Dataset,
    known: bool = False,
    progress: Progress | None = None,
    workers: Workers | None = None,
) -> tuple[KernelMap, list[str]]:
    """
    Add the images of another run to a map, whose own poses stay to the last bit: `kbr map extend`.

    `known`: by the reference poses of the run, which are in the map's frame. Otherwise the run is
    joined by its odometry and the places that both show. Also returns what to say, a line each.
    Raises MapError for a run whose images show no place of the map.
    """
    if dataset.cameras != kernel_map.cameras:
        raise MapError(
            f'{dataset.name} has cameras {", ".join(dataset.cameras) or "one"}, the map '
            f'{", ".join(kernel_map.cameras) or "one"}: choose the same by --cameras'
        )
    if dataset.name in kernel_map.run_names:
        raise MapError(
            f'the map has a run {dataset.name} already: expected another one; if this is another '
            'one of the same name, rename the folder'
        )
    run, n = dataset if known else WithoutPoses(dataset), len(kernel_map)
    own = describe_runs([run], progress=progress, workers=workers, describer=kernel_map.describer)
    if known:
        exact = np.zeros((len(own), 3, 3))
        note = f'{len(own)} images of {dataset.name} at their known poses'
        return _appended(kernel_map, own, own.poses, exact, None), [note]
    watched = watch([dataset], own, progress, workers)
    corrected = correct_headings(
        own.poses, np.zeros(len(own), np.intp), watched.followed if watched else None
    )
    cuts = [cut.image for cut in odometry_leaps(dataset.odometry, own.stamps_ns, 0)]
    segment, run_of_segment = segment_numbers(np.zeros(len(own), np.intp), cuts)
    trajectories = beside_map(
        kernel_map, camera_poses(kernel_map), corrected.odometry, segment, run_of_segment
    )
    pictures = None
    if watched is not None and corrected.view is not None and len(kernel_map.thumbnails):
        # points that the map's small pictures and the run's images show
        small = [partial(decode_image, data, 'a picture') for data in kernel_map.thumbnails]
        pictures = Pictures([*small, *watched.images], corrected.view, watched.workers)
    descriptors = np.concatenate([kernel_map.descriptors, own.descriptors])
    found = _find_closures(
        kernel_map.describer, descriptors, trajectories, corrected, pictures, progress
    )
    members = _joined(dataset, trajectories, found)
    solved, record = _solve_group(trajectories, found, members, corrected)
    point, kept = point_of(kernel_map), members[n:] - n
    poses = se2.compose(solved.poses[n:], point)
    covariances = solved.covariances[n:] + kernel_map.uncertainty_at(poses)
    record = replace(record, parameters=parameters_about(solved.parameters[-1:], point))
    part = own.subset(kept)
    whole = _appended(
        kernel_map, _with_poses(part, segment[kept], poses), part.poses, covariances, record
    )
    used = solved.closures.select(solved.kept)
    missed = np.median(np.abs(solved.misses[solved.kept]), axis=0)
    return whole, [
        f'{len(part)} images of {dataset.name} joined by {len(used)} closures, '
        f'{int(np.sum(used.second < n))} of them with the map, which miss {missed[0]:.2f} m '
        f'along, {missed[1]:.2f} m across and {np.degrees(missed[2]):.1f} degrees (medians)'
    ]


def _joined(dataset: Dataset, trajectories: Trajectories, found: Related) -> Indices:
    """Images (m,) of the map and of the segments of the run that are joined to it."""
    home = found.group[int(np.argmax(trajectories.fixed))]
    joined = found.group[trajectories.segment] == home
    if not joined[~trajectories.known].any():
        has_poses = any(frame.reference is not None for frame in dataset)
        by_poses = ', or add the run by its known poses: --poses known' if has_poses else ''
        raise MapError(
            f'{dataset.name} shows no place of the map for certain: nothing is added; take a map '
            'with more images of its runs (--max-images), or drive where the map has been, in the '
            f'same direction, for 20 m{by_poses}'
        )
    if not joined.all():
        dataset.skipped['not joined to the map'] = int(np.sum(~joined))
    return np.flatnonzero(joined)


def _appended(
    kernel_map: KernelMap,
    own: KernelMap,
    odometry: FloatArray,
    covariances: FloatArray,
    record: MappingRecord | None,
) -> KernelMap:
    """Put a run, with odometry (m, 3) and covariances (m, 3, 3), behind the map's images."""
    whole = kernel_map.appended(own)
    before = kernel_map.mapping
    if before is None and record is not None:
        nothing = np.zeros((len(kernel_map), 3, 3))
        before = MappingRecord(kernel_map.poses, nothing, np.zeros((0, PARAMETERS)), aligned=True)
    if before is not None:
        before = before.extended(odometry, covariances)
    if before is not None and record is not None:
        # runs of known poses and added images came without parameters
        lacking = max(len(kernel_map.run_names) - len(before.parameters), 0)
        padded = np.concatenate([before.parameters, np.zeros((lacking, PARAMETERS))])
        before = replace(before, parameters=padded).joined(record)
    return replace(whole, statistics=None, mapping=before)
