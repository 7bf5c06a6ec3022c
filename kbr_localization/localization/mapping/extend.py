"""Another drive joins a map whose poses stay: `kbr map extend`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from kbr_localization import se2
from kbr_localization.datasets import Dataset, Frame
from kbr_localization.datasets.images import decode_image
from kbr_localization.errors import MapError
from kbr_localization.localization.map.build import candidates_of, describe_candidates
from kbr_localization.localization.map.describing import DescribedImage
from kbr_localization.localization.map.kernel_map import KernelMap, MappingRecord
from kbr_localization.localization.mapping.align import camera_poses, parameters_about, point_of
from kbr_localization.localization.mapping.build import find_closures, solve_group, WithoutPoses
from kbr_localization.localization.mapping.consistency import Related
from kbr_localization.localization.mapping.graph import Solved
from kbr_localization.localization.mapping.headings import correct_headings, follow_images
from kbr_localization.localization.mapping.odometry_model import PARAMETERS
from kbr_localization.localization.mapping.relative_pose import Pictures
from kbr_localization.localization.mapping.segments import map_segments, odometry_leaps
from kbr_localization.localization.mapping.trajectories import Indices, Trajectories
from kbr_localization.progress import Progress, silent
from kbr_localization.se2 import FloatArray
from kbr_localization.vision.preparation import LoadableImage
from kbr_localization.vision.turning import Points, View
from kbr_localization.workers import Workers
import numpy as np


@dataclass(frozen=True)
class _Drive:
    """Frames (m,) of a run that can be used, described; `segment`: (m,) of their odometry."""

    name: str
    frames: list[Frame]
    images: list[DescribedImage]
    segment: Indices

    @property
    def descriptors(self) -> np.ndarray:
        return np.array([image.descriptor for image in self.images])

    @property
    def odometry(self) -> FloatArray:
        return np.array([frame.odometry for frame in self.frames])

    def select(self, which: Indices) -> _Drive:
        frames, images = ([part[i] for i in which] for part in (self.frames, self.images))
        return _Drive(self.name, frames, images, self.segment[which])


def extend(
    kernel_map: KernelMap,
    dataset: Dataset,
    known: bool = False,
    progress: Progress | None = None,
    workers: Workers | None = None,
) -> tuple[KernelMap, list[str]]:
    """
    Add the images of another run to a map, whose own poses stay to the last bit.

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
    report, workers = progress or silent, workers or Workers()
    drive = _described(kernel_map, dataset, known, report, workers)
    if known:
        poses = np.array([frame.reference for frame in drive.frames])
        nothing = np.zeros((len(poses), 3, 3))
        return _appended(kernel_map, drive, poses, nothing, None), [
            f'{len(poses)} images of {dataset.name} at their known poses'
        ]
    points = None
    if not kernel_map.cameras:
        following, images = partial(report, 'following points'), [f.image for f in drive.frames]
        points = Points.of(follow_images(images, following, workers))
    corrected = correct_headings(drive.odometry, np.zeros(len(drive.frames), np.intp), points)
    trajectories = _trajectories(kernel_map, drive, corrected.odometry)
    pictures = _pictures(kernel_map, drive, corrected.view, workers)
    found = find_closures(
        kernel_map.describer,
        np.concatenate([kernel_map.descriptors, drive.descriptors]),
        trajectories,
        corrected,
        pictures,
        report,
    )
    members = _joined(dataset, trajectories, found)
    solved, record = solve_group(trajectories, found, members, corrected)
    n, point = len(kernel_map), point_of(kernel_map)
    poses = se2.compose(solved.poses[n:], point)
    covariances = solved.covariances[n:] + kernel_map.uncertainty_at(poses)
    record = replace(record, parameters=parameters_about(solved.parameters[-1:], point))
    drive = drive.select(members[n:] - n)
    whole = _appended(kernel_map, drive, poses, covariances, record)
    return whole, [_note(drive, solved, n)]


def _described(
    kernel_map: KernelMap, dataset: Dataset, known: bool, progress: Progress, workers: Workers
) -> _Drive:
    run = dataset if known else WithoutPoses(dataset)
    kept, images = describe_candidates(
        candidates_of([run]), kernel_map.describer, [run], progress, workers
    )
    frames = [candidate.frame for candidate in kept]
    stamps = np.array([frame.stamp_ns for frame in frames], dtype=np.int64)
    begins = np.zeros(len(kept), dtype=np.intp)
    if not known:
        begins[[cut.image for cut in odometry_leaps(dataset.odometry, stamps, 0)]] = 1
    segment = np.cumsum(begins)
    return _Drive(dataset.name, frames, images, segment)


def _trajectories(kernel_map: KernelMap, drive: _Drive, own_odometry: FloatArray) -> Trajectories:
    """Trajectories of the map's images, whose poses stay, and of the new run behind them."""
    segment, run_of_segment = map_segments(kernel_map)
    own = drive.segment + len(run_of_segment)
    runs = np.full(drive.segment[-1] + 1, len(kernel_map.run_names))
    runs = np.concatenate([run_of_segment, runs])
    odometry = np.concatenate([camera_poses(kernel_map), own_odometry])
    fixed = np.arange(len(runs)) < len(run_of_segment)
    return Trajectories(odometry, np.concatenate([segment, own]), runs, fixed)


def _pictures(
    kernel_map: KernelMap, drive: _Drive, view: View | None, workers: Workers
) -> Pictures | None:
    """Return the map's small pictures and the run's images, for points that both show."""
    if view is None or not len(kernel_map.thumbnails):
        return None
    images: list[LoadableImage] = [
        partial(decode_image, data, 'a picture of the map') for data in kernel_map.thumbnails
    ]
    return Pictures(images + [frame.image for frame in drive.frames], view, workers)


def _joined(dataset: Dataset, trajectories: Trajectories, found: Related) -> Indices:
    """Images (m,) of the map and of the segments of the run that are joined to it."""
    home = found.group[int(np.argmax(trajectories.fixed))]
    joined = found.group[trajectories.segment] == home
    if not joined[~trajectories.known].any():
        has_poses = any(frame.reference is not None for frame in dataset)
        by_poses = ', or add the run by its known poses: --poses known' if has_poses else ''
        raise MapError(
            f'{dataset.name} shows no place of the map for certain: nothing is added; '
            f'{_sparse_map(trajectories)}drive where the map has been, in the same direction, for '
            f'20 m{by_poses}'
        )
    if not joined.all():
        dataset.skipped['not joined to the map'] = int(np.sum(~joined))
    return np.flatnonzero(joined)


def _sparse_map(trajectories: Trajectories) -> str:
    """Warn of a map with too few images to find sequences of a run in."""
    steps, same = np.diff(trajectories.travel), np.diff(trajectories.segment) == 0
    of_map = trajectories.known[1:]
    own, its = (steps[same & (steps > 1e-3) & which] for which in (~of_map, of_map))
    if not (own.size and its.size) or np.median(its) < 2.0 * np.median(own):
        return ''
    return (
        f'the map has an image every {np.median(its):.2f} m only, the run every '
        f'{np.median(own):.2f} m: take a map with more of its images (--max-images), or '
    )


def _note(drive: _Drive, solved: Solved, own: int) -> str:
    kept = solved.closures.select(solved.kept)
    missed = np.median(np.abs(solved.misses[solved.kept]), axis=0)
    return (
        f'{len(drive.frames)} images of {drive.name} joined by {len(kept)} closures, '
        f'{int(np.sum(kept.second < own))} of them with the map, which miss {missed[0]:.2f} m '
        f'along, {missed[1]:.2f} m across and {np.degrees(missed[2]):.1f} degrees (medians)'
    )


def _appended(
    kernel_map: KernelMap,
    drive: _Drive,
    poses: FloatArray,
    covariances: FloatArray,
    record: MappingRecord | None,
) -> KernelMap:
    """Put the images of a run, at poses (m, 3) with covariances (m, 3, 3), behind the map's."""
    controls = np.full((len(poses), 3), np.nan)
    following = controls.copy()
    steps = np.flatnonzero(np.diff(drive.segment) == 0)  # across a break there is none
    controls[steps] = se2.between(drive.odometry[steps], drive.odometry[steps + 1])
    following[steps] = poses[steps + 1]
    whole = kernel_map.appended(
        drive.name,
        [frame.stamp_ns for frame in drive.frames],
        poses,
        drive.descriptors,
        [image.thumbnail for image in drive.images],
        controls,
        following,
    )
    mapping = _record(kernel_map, drive.odometry, covariances, record)
    return replace(whole, statistics=None, mapping=mapping)


def _record(
    kernel_map: KernelMap,
    odometry: FloatArray,
    covariances: FloatArray,
    added: MappingRecord | None,
) -> MappingRecord | None:
    before, runs = kernel_map.mapping, len(kernel_map.run_names)
    if before is None and added is None:
        return None
    if before is None:
        nothing = np.zeros((len(kernel_map), 3, 3))
        before = MappingRecord(kernel_map.poses, nothing, np.zeros((0, PARAMETERS)), aligned=True)
    whole = before.extended(odometry, covariances)
    if added is None:
        return whole
    # runs of known poses and added images came without parameters
    lacking = np.zeros((max(runs - len(whole.parameters), 0), PARAMETERS))
    whole = replace(whole, parameters=np.concatenate([whole.parameters, lacking]))
    return whole.joined(added)
