"""
From runs without known poses to a map, `kbr map build --poses odometry`, and more runs for a map.

Another drive joins a finished map, whose poses stay (`extend`): its images are solved for together
with the map's, as segments whose poses are known.
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
from kbr_localization.localization.mapping.align import (
    move_map,
    parameters_for_point,
    point_in_camera,
    to_base,
)
from kbr_localization.localization.mapping.consistency import accept_closures
from kbr_localization.localization.mapping.loop_closure import (
    Closures,
    find_closures,
    measure_closures,
)
from kbr_localization.localization.mapping.odometry_model import (
    correct_headings,
    CorrectedOdometry,
    DRIFT,
    track_points,
)
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
    Build a map of runs by their odometry and the places that their images show again.

    The map frame is the frame of the first image. Reference poses of the runs are ignored. `base`:
    poses of the point that the odometry follows, else of the camera. See `build_map` for the other
    arguments. Also returns what to say, a line each. Raises MapError for runs that share no place,
    and for a run that stays in one place.
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
    Replace the odometry poses (n, 3) of a map of runs by poses that fit its images.

    `base`: see `map_from_odometry`.
    """
    joined = _join(described, datasets)
    solved = joined.solved
    part, segment = described.subset(joined.images), joined.segment
    own = [(part.poses[segment == n], solved.poses[segment == n]) for n in np.unique(segment)]
    # the poses were made from the odometry itself: its noise is not smaller than is usual
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
        whole = to_base(whole)
        whole = move_map(whole, se2.inverse(whole.poses[0]), aligned=False)
    notes = [*joined.notes, *joined.corrected.summary(base), *_summary(joined)]
    return with_sensible_config(whole, filter_values), notes


@dataclass(frozen=True)
class _Joined:
    """Images and segments (m,) of the runs that closures join, solved for behind a map, if any."""

    images: Indices
    segment: Indices
    corrected: CorrectedOdometry
    solved: Solved
    record: MappingRecord
    notes: list[str]


def _join(own: KernelMap, datasets: Sequence[Dataset], other: KernelMap | None = None) -> _Joined:
    """
    Join runs, described in `own` (n,) with odometry for poses, by places shown again.

    `other`: a map whose poses are known, of the same describer, which they are to join. Raises
    MapError when a run shows no place of the rest.
    """
    run = own.run_index.astype(np.intp)
    found_cuts = carried_images(own.describer, own.descriptors, own.poses, run)
    for number in np.unique(run):
        members, track = np.flatnonzero(run == number), datasets[number].odometry
        found_cuts += odometry_breaks(track, own.stamps_ns[members], int(members[0]))
    cuts = dict(found_cuts)
    segment, run_of_segment = segment_numbers(run, sorted(cuts))
    images, followed = track_points(datasets, own)
    corrected = correct_headings(own.poses, run, followed)
    unknown = np.zeros(len(run_of_segment), dtype=bool)
    trajectories = Trajectories(corrected.odometry, segment, run_of_segment, unknown)
    descriptors = own.descriptors
    if other is not None:
        poses = se2.compose(other.poses, se2.inverse(point_in_camera(other)))  # of the camera
        trajectories = append_to_map(other, poses, trajectories)
        descriptors = np.concatenate([other.descriptors, descriptors])
        # points that the map's small pictures and the run's images show
        images = [*(partial(decode_image, t, 'a picture') for t in other.thumbnails), *images]
    view = corrected.view if len(images) == len(trajectories) else None
    closures = find_closures(own.describer, descriptors, trajectories)
    believed, parameters, group = accept_closures(trajectories, closures, corrected.prior)
    if view is not None:
        held, known = closures.select(believed), corrected.prior.mean
        measured = measure_closures(trajectories, held, known, images, view)
        closures.relative[believed], closures.matched[believed] = measured
    home = group[trajectories.segment]
    home = home == (home[0] if other is not None else np.argmax(np.bincount(home)))
    seconds = np.asarray(own.stamps_ns - own.stamps_ns[np.searchsorted(run, run)]) * 1e-9
    notes = [
        f'{own.run_names[run[image]]} is cut at {seconds[image]:.1f} s, {cuts[image]}'
        for image in sorted(cuts)
    ]
    kept = home[-len(own) :]  # noqa: E203
    notes += _left_out(own, segment, kept, seconds, other)
    members = np.flatnonzero(home)
    solved, record = _solve(trajectories, closures, believed, parameters, members, corrected)
    return _Joined(np.flatnonzero(kept), segment[kept], corrected, solved, record, notes)


def _left_out(
    own: KernelMap,
    segment: Indices,
    kept: np.ndarray,
    seconds: FloatArray,
    other: KernelMap | None,
) -> list[str]:
    """Say which segments of runs are left out; raises MapError when it is all of a run."""
    names, run = own.run_names, own.run_index
    lost = [names[number] for number in np.setdiff1d(run, run[kept])]
    if lost:
        rest = [names[number] for number in np.unique(run[kept])] if other is None else ['the map']
        raise MapError(
            f'{", ".join(lost)} and {", ".join(rest)} share no place that their images show for '
            'certain: nothing is made of them together; drive where both have been, in the same '
            'direction, for 20 m; a map should have many images (--max-images), and a run with '
            'known poses is added by --poses known'
        )
    notes = []
    for number in np.unique(segment[~kept]):
        images = np.flatnonzero(segment == number)
        notes.append(
            f'{names[run[images[0]]]}: {len(images)} images from {seconds[images[0]]:.1f} s on '
            'are left out: no place of the rest is shown again'
        )
    return notes


def _solve(
    trajectories: Trajectories,
    closures: Closures,
    believed: np.ndarray,
    parameters: FloatArray,
    members: Indices,
    corrected: CorrectedOdometry,
) -> tuple[Solved, MappingRecord]:
    """Solve for images (m,) of joined segments; errors of the odometry are those of the wheels."""
    place = np.full(len(trajectories), -1)
    place[members] = np.arange(len(members))
    ends = place[np.stack([closures.first, closures.second], axis=1)]
    inside = np.all(ends >= 0, axis=1)
    first, second = ends[inside].T
    proposed = replace(closures.select(inside), first=first, second=second)
    believed, part = believed[inside], trajectories.subset(members)
    solved = solve_pose_graph(part, proposed.select(believed), parameters, corrected.prior)
    solved.parameters[:, DRIFT] += corrected.drift
    solved.calibration.values[DRIFT] += corrected.drift
    kept = np.zeros(len(proposed), dtype=np.uint8)
    kept[believed] = solved.kept
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
    """Say how many closures hold and what they miss, and how far the map can be relied on."""
    solved, record = joined.solved, joined.record
    proposed = len(np.unique(record.chain))
    growth = float(np.hypot(*solved.growth[:2]))
    uncertain = f'uncertain by {growth:.1f} m and {np.degrees(solved.growth[2]):.0f} degrees'
    if not solved.kept.any():
        return [
            f'warning: no place is shown again ({proposed} sequences of images look alike, none '
            'more than others do): the poses are those of the odometry, the last one '
            f'{uncertain} against the first; drive every way twice in the same direction'
        ]
    sequences = len(np.unique(record.chain[record.kept == 1]))
    return [
        f'{int(solved.kept.sum())} closures in {sequences} sequences, which miss '
        f'{_median_errors(record)}; '
        f'{proposed - sequences} sequences that contradict them are left out',
        f'the last image is {uncertain} against the first; '
        'the scale of all metres is that of the odometry',
    ]


def _median_errors(record: MappingRecord) -> str:
    along, across, turn = np.median(np.abs(record.misses[record.kept == 1]), axis=0)
    return (
        f'{along:.2f} m along, {across:.2f} m across and {np.degrees(turn):.1f} degrees (medians)'
    )


def extend(
    kernel_map: KernelMap,
    dataset: Dataset,
    known: bool = False,
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
    n = len(kernel_map)
    own = describe_runs([dataset], describer=kernel_map.describer, known=known)
    if known:
        exact = np.zeros((len(own), 3, 3))
        note = f'{len(own)} images of {dataset.name} at their known poses'
        return _appended(kernel_map, own, own.poses, exact, None), [note]
    joined = _join(own, [dataset], kernel_map)
    point, solved = point_in_camera(kernel_map), joined.solved
    poses = se2.compose(solved.poses[n:], point)
    covariances = solved.covariances[n:] + kernel_map.uncertainty_at(poses)
    parameters = parameters_for_point(solved.parameters[-1:], point)
    record = replace(joined.record, parameters=parameters)
    part = own.subset(joined.images)
    added = replace(part, poses=poses, **transitions(part.poses, poses, joined.segment))
    with_map = int(np.sum((record.kept == 1) & (record.closures[:, 1] < n)))
    return _appended(kernel_map, added, part.poses, covariances, record), [
        *joined.notes,
        f'{len(part)} images of {dataset.name} joined by {int(record.kept.sum())} closures, '
        f'{with_map} of them with the map, which miss {_median_errors(record)}',
    ]


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
        exact = np.zeros((len(kernel_map), 3, 3))
        before = MappingRecord(kernel_map.poses, exact, np.zeros((0, SIZE)), aligned=True)
    if before is not None:
        # runs of known poses and added images came without parameters
        lacking = max(len(kernel_map.run_names) - len(before.parameters), 0) if record else 0
        padded = np.pad(before.parameters, ((0, lacking), (0, 0)))
        before = replace(before, parameters=padded).extended(odometry, covariances, record)
    return replace(whole, statistics=None, mapping=before)
