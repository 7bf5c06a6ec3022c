"""
Build maps from runs without known poses (`kbr map build --poses odometry`), and extend maps.

Another run joins a finished map, whose poses do not change (`extend`): the pose graph has the
map's images as segments with known poses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kbr_localization import se2
from kbr_localization.datasets import Dataset
from kbr_localization.datasets.images import decode_image
from kbr_localization.errors import MapError
from kbr_localization.localization.calibration import MotionNoise, SIZE
from kbr_localization.localization.map.build import describe_runs, transitions
from kbr_localization.localization.map.decay import with_sensible_config
from kbr_localization.localization.map.kernel_map import KernelMap, MappingRecord
from kbr_localization.localization.map.prune import cover
from kbr_localization.localization.mapping import align, loop_closure, odometry_model
from kbr_localization.localization.mapping.consistency import accept_closures
from kbr_localization.localization.mapping.pose_graph import solve_pose_graph, Solved
from kbr_localization.localization.mapping.trajectories import (
    append_to_map,
    carried_images,
    Indices,
    odometry_breaks,
    segment_numbers,
    Trajectories,
)
from kbr_localization.localization.motion import measure_odometry
from kbr_localization.se2 import FloatArray
from kbr_localization.vision import VisionConfig
import numpy as np


def map_from_odometry(
    datasets: Sequence[Dataset],
    vision: VisionConfig | None = None,
    filter_values: Mapping[str, Any] | None = None,
    max_images: int | None = None,
    seed: int = 0,
    base: bool = False,
) -> tuple[KernelMap, list[str]]:
    """
    Build a map of runs from their odometry and from loop closures of their images.

    The map frame is the frame of the first image. Reference poses of the runs are ignored. `base`:
    the poses are those of the point whose motion the odometry reports, else of the camera. See
    `build_map` for the other arguments. Also return lines of a report. Raises MapError for runs
    that share no place, and for a run that stays in one place.
    """
    for dataset in datasets:
        if not len(dataset):
            raise MapError(f'{dataset.name} has no images: expected some with odometry')
        metres = float(se2.travelled(dataset.odometry.poses).max(initial=0.0))
        if metres < 3.0:
            raise MapError(
                f'{dataset.name} stays in one place: its odometry has travelled {metres:.2f} m, '
                'expected at least 3 m; drive where the robot is to localize'
            )
    described = describe_runs(datasets, vision, None, seed, known=False)
    kernel_map, notes = map_described(described, datasets, filter_values, base)
    if max_images is not None and max_images < len(kernel_map):
        kept = cover(kernel_map.poses, max_images, np.random.default_rng(seed))
        kernel_map = kernel_map.subset(kept)
    return kernel_map, notes


def map_described(
    described: KernelMap,
    datasets: Sequence[Dataset],
    filter_values: Mapping[str, Any] | None = None,
    base: bool = False,
) -> tuple[KernelMap, list[str]]:
    """
    Replace the odometry poses (n, 3) of a map by poses that fit its loop closures.

    `base`: see `map_from_odometry`, which has the same result.
    """
    joined = _join(described, datasets)
    solved = joined.solved
    part, segment = described.subset(joined.images), joined.segment
    own = [(part.poses[segment == n], solved.poses[segment == n]) for n in np.unique(segment)]
    # poses made from the odometry underestimate its noise: use at least the usual one
    (_, noise), usual = measure_odometry(own), MotionNoise.default()
    whole = replace(
        part,
        poses=solved.poses,
        **transitions(part.poses, solved.poses, segment),
        motion_noise=replace(
            noise,
            per_metre=np.maximum(noise.per_metre, usual.per_metre),
            per_radian=np.maximum(noise.per_radian, usual.per_radian),
            step=np.maximum(noise.step, usual.step),
        ),
        calibration=solved.calibration,
        mapping=replace(joined.record, odometry=part.poses),
    )
    if base:
        whole = align.to_base(whole)
        whole = align.move_map(whole, se2.inverse(whole.poses[0]), aligned=False)
    notes = [*joined.notes, *joined.corrected.summary(base), *_summary(joined)]
    return with_sensible_config(whole, filter_values), notes


@dataclass(frozen=True)
class _Joined:
    """
    Images and segments (m,) of the runs that closures join, and their solution.

    If they join a map, `solved` begins with the map's images.
    """

    images: Indices
    segment: Indices
    corrected: odometry_model.CorrectedOdometry
    solved: Solved
    record: MappingRecord
    notes: list[str]


def _join(own: KernelMap, datasets: Sequence[Dataset], other: KernelMap | None = None) -> _Joined:
    """
    Join runs by loop closures; `own` is their map (n,) with odometry poses.

    `other`: a map with the same describer and known poses that they shall join. Raises MapError if
    a run shares no place with the others.
    """
    run = own.run_index.astype(np.intp)
    breaks = carried_images(own.describer, own.descriptors, own.poses, run)
    for number in np.unique(run):
        members, track = np.flatnonzero(run == number), datasets[number].odometry
        breaks += odometry_breaks(track, own.stamps_ns[members], int(members[0]))
    cuts = dict(breaks)
    segment, run_of_segment = segment_numbers(run, sorted(cuts))
    images, followed = odometry_model.track_points(datasets, own)
    corrected = odometry_model.correct_headings(own.poses, run, followed)
    unknown = np.zeros(len(run_of_segment), dtype=bool)
    trajectories = Trajectories(corrected.odometry, segment, run_of_segment, unknown)
    descriptors = own.descriptors
    if other is not None:
        camera_poses = se2.compose(other.poses, se2.inverse(align.point_in_camera(other)))
        trajectories = append_to_map(other, camera_poses, trajectories)
        descriptors = np.concatenate([other.descriptors, descriptors])
        # match points of the map's thumbnails with those of the run's images
        images = [*(partial(decode_image, t, 'a picture') for t in other.thumbnails), *images]
    view = corrected.view if len(images) == len(trajectories) else None
    closures = loop_closure.find_closures(own.describer, descriptors, trajectories)
    accepted, parameters, group = accept_closures(trajectories, closures, corrected.prior)
    if view is not None:
        mean, certain = corrected.prior.mean, closures.select(accepted)
        measured = loop_closure.measure_closures(trajectories, certain, mean, images, view)
        closures.relative[accepted], closures.matched[accepted] = measured
    group = group[trajectories.segment]
    main = group[0] if other is not None else np.argmax(np.bincount(group))
    joined = group == main
    seconds = np.asarray(own.stamps_ns - own.stamps_ns[np.searchsorted(run, run)]) * 1e-9
    notes = [
        f'{own.run_names[run[image]]} is cut at {seconds[image]:.1f} s, {cuts[image]}'
        for image in sorted(cuts)
    ]
    kept = joined[-len(own) :]  # noqa: E203
    notes += _left_out(own, segment, kept, seconds, other)
    members = np.flatnonzero(joined)
    solved, record = _solve(trajectories, closures, accepted, parameters, members, corrected)
    return _Joined(np.flatnonzero(kept), segment[kept], corrected, solved, record, notes)


def _left_out(
    own: KernelMap,
    segment: Indices,
    kept: np.ndarray,
    seconds: FloatArray,
    other: KernelMap | None,
) -> list[str]:
    """Report the segments that are not kept (n,); raises MapError if it is a whole run."""
    names, run = own.run_names, own.run_index
    lost = [names[number] for number in np.setdiff1d(run, run[kept])]
    if lost:
        rest = [names[number] for number in np.unique(run[kept])] if other is None else ['the map']
        raise MapError(
            f'{", ".join(lost)} and {", ".join(rest)} share no place that their images show for '
            'certain, so they cannot be joined: drive where both have been, in the same '
            'direction, for 20 m; a map should have many images (--max-images), and a run with '
            'known poses is added by --poses known'
        )
    dropped = [np.flatnonzero(segment == number) for number in np.unique(segment[~kept])]
    return [
        f'{names[run[images[0]]]}: {len(images)} images from {seconds[images[0]]:.1f} s on '
        'are left out: they share no place with the rest'
        for images in dropped
    ]


def _solve(
    trajectories: Trajectories,
    closures: loop_closure.Closures,
    accepted: np.ndarray,
    parameters: FloatArray,
    members: Indices,
    corrected: odometry_model.CorrectedOdometry,
) -> tuple[Solved, MappingRecord]:
    """
    Solve for the images `members` (m,) of joined segments.

    The drift that the camera removed is added to the errors of the odometry again.
    """
    place = np.full(len(trajectories), -1)
    place[members] = np.arange(len(members))
    ends = place[np.stack([closures.first, closures.second], axis=1)]
    inside = np.all(ends >= 0, axis=1)
    first, second = ends[inside].T
    proposed = replace(closures.select(inside), first=first, second=second)
    accepted, part = accepted[inside], trajectories.subset(members)
    solved = solve_pose_graph(part, proposed.select(accepted), parameters, corrected.prior)
    solved.parameters[:, odometry_model.DRIFT] += corrected.drift
    solved.calibration.values[odometry_model.DRIFT] += corrected.drift
    kept = np.zeros(len(proposed), dtype=np.uint8)
    kept[accepted] = solved.kept
    moved = se2.between(solved.poses[second], solved.poses[first])
    return solved, MappingRecord(
        part.odometry,
        solved.covariances,
        solved.parameters,
        ends[inside],
        proposed.chain,
        proposed.relative,
        se2.between(proposed.relative, moved),
        proposed.score,
        kept,
        aligned=False,
    )


def _summary(joined: _Joined) -> list[str]:
    """Report the number of closures, their errors, and the uncertainty of the map."""
    solved, record = joined.solved, joined.record
    proposed = len(np.unique(record.chain))
    metres, degrees = np.hypot(*solved.end_deviations[:2]), np.degrees(solved.end_deviations[2])
    uncertain = f'uncertain by {metres:.1f} m and {degrees:.0f} degrees'
    if not solved.kept.any():
        return [
            f'warning: no loop closure is certain ({proposed} sequences of images look alike): '
            f'the poses are those of the odometry, the last one {uncertain} relative to the '
            'first; drive every way twice in the same direction'
        ]
    sequences = len(np.unique(record.chain[record.kept == 1]))
    return [
        f'{int(solved.kept.sum())} closures in {sequences} sequences, with errors of '
        f'{_median_errors(record)}; '
        f'{proposed - sequences} sequences that contradict them are left out',
        f'the last image is {uncertain} relative to the first; the scale is that of the odometry',
    ]


def _median_errors(record: MappingRecord) -> str:
    along, across, turn = np.median(np.abs(record.misses[record.kept == 1]), axis=0)
    return (
        f'{along:.2f} m along, {across:.2f} m across and {np.degrees(turn):.1f} degrees (medians)'
    )


def extend(
    kernel_map: KernelMap, dataset: Dataset, known: bool = False
) -> tuple[KernelMap, list[str]]:
    """
    Add the images of another run to a map, whose own poses do not change: `kbr map extend`.

    `known`: use the reference poses of the run, which are in the map's frame. Otherwise the run is
    joined by its odometry and loop closures. Also return lines of a report. Raises MapError for a
    run whose images show no place of the map.
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
    n = len(kernel_map)
    own = describe_runs([dataset], describer=kernel_map.describer, known=known)
    if known:
        exact = np.zeros((len(own), 3, 3))
        note = f'{len(own)} images of {dataset.name} at their known poses'
        return _appended(kernel_map, own, own.poses, exact, None), [note]
    joined = _join(own, [dataset], kernel_map)
    point, solved = align.point_in_camera(kernel_map), joined.solved
    poses = se2.compose(solved.poses[n:], point)
    covariances = solved.covariances[n:] + kernel_map.uncertainty_at(poses)
    parameters = align.parameters_for_point(solved.parameters[-1:], point)
    record = replace(joined.record, parameters=parameters)
    part = own.subset(joined.images)
    added = replace(part, poses=poses, **transitions(part.poses, poses, joined.segment))
    with_map = int(np.sum((record.kept == 1) & (record.closures[:, 1] < n)))
    return _appended(kernel_map, added, part.poses, covariances, record), [
        *joined.notes,
        f'{len(part)} images of {dataset.name} joined by {int(record.kept.sum())} closures, '
        f'{with_map} of them with the map, with errors of {_median_errors(record)}',
    ]


def _appended(
    kernel_map: KernelMap,
    own: KernelMap,
    odometry: FloatArray,
    covariances: FloatArray,
    record: MappingRecord | None,
) -> KernelMap:
    """Append a run, with odometry (m, 3) and covariances (m, 3, 3), to the map."""
    whole = kernel_map.appended(own)
    before = kernel_map.mapping
    if before is None and record is not None:
        exact = np.zeros((len(kernel_map), 3, 3))
        before = MappingRecord(kernel_map.poses, exact, np.zeros((0, SIZE)), aligned=True)
    if before is not None:
        # pad runs with known poses and added images, which have no parameters
        lacking = max(len(kernel_map.run_names) - len(before.parameters), 0) if record else 0
        padded = np.pad(before.parameters, ((0, lacking), (0, 0)))
        before = replace(before, parameters=padded).extended(odometry, covariances, record)
    return replace(whole, statistics=None, mapping=before)
