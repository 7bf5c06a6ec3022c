"""Another drive joins a map whose poses stay: `kbr map extend`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from kbr_localization import se2
from kbr_localization.datasets import Dataset
from kbr_localization.datasets.images import decode_image
from kbr_localization.datasets.selection import outside_fixes
from kbr_localization.errors import MapError
from kbr_localization.localization.map.build import refusal
from kbr_localization.localization.map.describing import describe_images
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.mapping.base_frame import camera_poses, point_of
from kbr_localization.localization.mapping.drive import appended, closures_of, Drive
from kbr_localization.localization.mapping.headings import (
    correct_headings,
    CorrectedOdometry,
    follow_images,
)
from kbr_localization.localization.mapping.looking import look, Pictures
from kbr_localization.localization.mapping.pieces import odometry_leaps
from kbr_localization.localization.mapping.relating import relate, Related
from kbr_localization.localization.mapping.solving import settle, Solved
from kbr_localization.localization.mapping.trajectories import Indices, Trajectories
from kbr_localization.progress import Progress, silent
from kbr_localization.se2 import FloatArray
from kbr_localization.vision.loading import LoadableImage
from kbr_localization.vision.turning import Points
from kbr_localization.workers import Workers
import numpy as np

_GAP_M = 3.0
"""Metres between two images of a map that follow each other, beyond which they do not."""
_THIN = 2.0
"""Times as far apart as those of a run that images of a map are too few to tell where it is."""


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
    report = progress or silent
    drive = _described(kernel_map, dataset, known, report, workers or Workers())
    if known:
        poses = np.array([frame.reference for frame in drive.frames])
        nothing = np.zeros((len(poses), 3, 3))
        return appended(kernel_map, dataset.name, drive, poses, nothing, None), [
            f'{len(poses)} images of {dataset.name} at their known poses'
        ]
    corrected = _corrected(kernel_map, drive, report, workers or Workers())
    trajectories = _trails(kernel_map, dataset, drive, corrected.odometry)
    both = np.concatenate([kernel_map.descriptors[:], drive.descriptors])
    found = relate(kernel_map.describer, both, trajectories, report, corrected.prior)
    has_poses = any(frame.reference is not None for frame in drive.frames)
    members = _related(dataset, trajectories, found, has_poses)
    found = _looked(
        kernel_map, drive, trajectories, found, corrected, report, workers or Workers()
    )
    solved = _solve(trajectories, found, corrected)
    n = len(kernel_map)
    kept = members - n
    ends = np.flatnonzero(np.diff(trajectories.piece[members]))
    drive = Drive([drive.frames[i] for i in kept], [drive.images[i] for i in kept], ends)
    poses = se2.compose(solved.poses[members], point_of(kernel_map))
    covariances = solved.covariances[members] + kernel_map.uncertainty_at(poses)
    record = closures_of(solved, members, point_of(kernel_map), n)
    notes = _notes(dataset, solved, len(kept), n)
    return appended(kernel_map, dataset.name, drive, poses, covariances, record), notes


def _described(
    kernel_map: KernelMap, dataset: Dataset, known: bool, progress: Progress, workers: Workers
) -> Drive:
    frames = [frame for frame in dataset if frame.reference is not None or not known]
    if known and len(frames) < len(dataset):
        dataset.skipped['no reference pose'] = len(dataset) - len(frames)
    images = [frame.image for frame in frames]
    report = partial(progress, 'describing images')
    found = describe_images(kernel_map.describer, images, workers, report, thumbnails=True)
    reasons = [refusal(kernel_map.describer, image) for image in found]
    kept = [number for number, reason in enumerate(reasons) if not reason]
    for reason in filter(None, reasons):
        dataset.skipped[reason] = dataset.skipped.get(reason, 0) + 1
    if not kept:
        pairs = zip(found, reasons, strict=True)
        errors = [str(image.error or reason) for image, reason in pairs]
        why = errors[-1] if errors else 'it has none with a pose'
        outside = outside_fixes(dataset) if known and not frames else ''
        raise MapError(outside or f'no image of {dataset.name} can be used: {why}')
    return Drive([frames[i] for i in kept], [found[i] for i in kept])


def map_pieces(kernel_map: KernelMap) -> tuple[Indices, Indices]:
    """Pieces (n,) of the images of a map: ways that were driven; and the run of each piece."""
    apart = np.hypot(*np.diff(kernel_map.poses[:, :2], axis=0).T)
    breaks = (np.diff(kernel_map.run_index) != 0) | (apart > _GAP_M)
    breaks |= np.diff(kernel_map.stamps_ns) < 0
    piece = np.concatenate([[0], np.cumsum(breaks)]).astype(np.intp)
    first = np.searchsorted(piece, np.arange(piece[-1] + 1))
    return piece, kernel_map.run_index[first].astype(np.intp)


def _corrected(
    kernel_map: KernelMap, drive: Drive, progress: Progress, workers: Workers
) -> CorrectedOdometry:
    """Correct the odometry of the run by its camera, if it has one."""
    points = None
    if not kernel_map.cameras:
        report = partial(progress, 'following points')
        images = [frame.image for frame in drive.frames]
        points = Points.of(follow_images(images, report, workers))
    return correct_headings(drive.odometry, np.zeros(len(drive.frames), dtype=np.intp), points)


def _trails(
    kernel_map: KernelMap, dataset: Dataset, drive: Drive, own_odometry: FloatArray
) -> Trajectories:
    """Ways of the map's images, whose poses stay, and that of the new run behind them."""
    piece, run_of_piece = map_pieces(kernel_map)
    stamps = np.array([frame.stamp_ns for frame in drive.frames], dtype=np.int64)
    begins = np.zeros(len(stamps), dtype=np.intp)
    begins[[cut.image for cut in odometry_leaps(dataset.odometry, stamps, 0)]] = 1
    own = np.cumsum(begins) + piece[-1] + 1
    run = len(kernel_map.run_names)
    runs = np.concatenate([run_of_piece, np.full(own[-1] - piece[-1], run)])
    fixed = np.arange(len(runs)) <= piece[-1]
    odometry = np.concatenate([camera_poses(kernel_map), own_odometry])
    return Trajectories.of(odometry, np.concatenate([piece, own]), runs, fixed)


def _related(
    dataset: Dataset, trajectories: Trajectories, found: Related, has_poses: bool
) -> Indices:
    """Images of the run whose pieces are joined to the map."""
    home = found.group[int(np.argmax(trajectories.fixed))]
    joined = (found.group[trajectories.piece] == home) & ~trajectories.fixed[trajectories.piece]
    if not joined.any():
        by_poses = ', or add the run by its known poses: --poses known' if has_poses else ''
        raise MapError(
            f'{dataset.name} shows no place of the map for certain: nothing is added; '
            f'{_thin(trajectories)}drive where the map has been, in the same direction, for 20 m'
            f'{by_poses}'
        )
    missing = int(np.sum(~trajectories.fixed[trajectories.piece])) - int(joined.sum())
    if missing:
        dataset.skipped['not joined to the map'] = missing
    return np.flatnonzero(joined)


def _thin(trajectories: Trajectories) -> str:
    """Say that a map has few images for sequences of a run to be found in, if it has."""
    steps, same = np.diff(trajectories.way), np.diff(trajectories.piece) == 0
    of_map = trajectories.fixed[trajectories.piece[1:]]
    own, its = (steps[same & (steps > 1e-3) & which] for which in (~of_map, of_map))
    if not (own.size and its.size) or np.median(its) < _THIN * np.median(own):
        return ''
    return (
        f'the map has an image every {np.median(its):.2f} m only, the run every '
        f'{np.median(own):.2f} m: take a map with more of its images (--max-images), or '
    )


def _looked(
    kernel_map: KernelMap,
    drive: Drive,
    trajectories: Trajectories,
    found: Related,
    corrected: CorrectedOdometry,
    progress: Progress,
    workers: Workers,
) -> Related:
    """Put closures right by points of the run's images and of the map's small pictures."""
    if corrected.view is None or not len(kernel_map.thumbnails):
        return found
    images: list[LoadableImage] = [
        partial(decode_image, data, 'a picture of the map') for data in kernel_map.thumbnails
    ]
    images += [frame.image for frame in drive.frames]
    pictures = Pictures(images, corrected.view, workers)
    parameters = corrected.prior.belief.mean
    return replace(
        found, believed=look(trajectories, found.believed, parameters, pictures, progress)
    )


def _solve(trajectories: Trajectories, found: Related, corrected: CorrectedOdometry) -> Solved:
    """Solve for the new images; of the map those that closures lead to are nodes."""
    group = found.group[trajectories.piece]
    home = found.group[int(np.argmax(trajectories.fixed))]
    anchors = found.anchors[group[found.anchors] == home]
    closures = found.believed.some(group[found.believed.first] == home)
    reached = closures.second[trajectories.fixed[trajectories.piece[closures.second]]]
    nodes = np.union1d(anchors, reached)
    parameters = found.agreement.parameters
    solved = settle(trajectories, nodes, closures, parameters, corrected.prior)
    of_wheels = solved.parameters.copy()
    of_wheels[-1, -1] += corrected.drift[0]
    return replace(solved, parameters=of_wheels)


def _notes(dataset: Dataset, solved: Solved, images: int, own: int) -> list[str]:
    kept = solved.closures.some(solved.kept)
    to_map = int(np.sum(kept.second < own))
    missed = np.median(np.abs(solved.misses[solved.kept]), axis=0)
    return [
        f'{images} images of {dataset.name} joined by {len(kept)} closures, {to_map} of them with '
        f'the map, which miss {missed[0]:.2f} m along, {missed[1]:.2f} m across and '
        f'{np.degrees(missed[2]):.1f} degrees (medians)'
    ]
