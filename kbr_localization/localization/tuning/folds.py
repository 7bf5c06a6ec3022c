"""
Cross-validation over whole runs: a map of the other runs, localization of the one left out.

The images enter through their kernel alone, and the kernel does not depend on what is tuned: the
Gram matrix of all images is computed once, and a descriptor is from then on its row number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
import hashlib
import logging
from typing import Any

from kbr_localization import se2
from kbr_localization.datasets import Dataset
from kbr_localization.errors import LocalizationError
from kbr_localization.localization.filter.wrong_places import with_statistics
from kbr_localization.localization.map.describing import GramDescriber, SentDescriber
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.map.prune import cover
from kbr_localization.localization.motion import measure_odometry
from kbr_localization.progress import Progress, silent
from kbr_localization.se2 import FloatArray
from kbr_localization.vision import Describer
from kbr_localization.workers import Workers
import numpy as np
from scipy.spatial import cKDTree

MAX_FRAMES = 4000
"""Frames of all runs that take part; longer runs are thinned evenly."""
MAX_FOLD_IMAGES = 500
"""Images of the maps in cross-validation: more would cost time and change little."""
MAX_FOLDS = 6
NEAR_M, NEAR_RAD = 2.0, 1.0
"""A frame counts when a training pose is this near: elsewhere nobody could know the answer."""
_MIN_FRAMES = 20
_ENOUGH_COVERED = 0.5  # of the frames: runs through the same places have nearly all
_ROWS = 32

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Frames:
    """Frames of a run: `rows` (m,) of the Gram matrix, `stamps_ns`, `odometry`, `poses`."""

    rows: np.ndarray
    stamps_ns: se2.StampArray
    odometry: FloatArray
    poses: FloatArray

    def __len__(self) -> int:
        """Count the frames."""
        return len(self.rows)

    def part(self, selection: Any) -> Frames:
        """Return some of the frames."""
        arrays = (self.rows, self.stamps_ns, self.odometry, self.poses)
        return Frames(*(array[selection] for array in arrays))


@dataclass(frozen=True)
class Fold:
    """A run left out, `covered` (m,) where the training runs went, and maps of the others."""

    run: Frames
    covered: np.ndarray
    maps: tuple[KernelMap, ...]


def make_folds(
    kernel_map: KernelMap,
    datasets: Sequence[Dataset],
    sizes: Sequence[int | None] = (None,),
    seed: int = 0,
    progress: Progress | None = None,
    random_maps: bool = False,
    workers: Workers | None = None,
) -> list[Fold]:
    """
    Leave each run out once; a single run is split into two halves of time.

    `kernel_map` holds all images of the datasets. A fold has a map for each of `sizes`, its images
    chosen to cover the training runs, or at random. Raises LocalizationError when too little of
    the left-out runs lies where the others went.
    """
    _tell_capped(sizes)
    runs = _left_out_in_turn(_frames(kernel_map, datasets))
    rows = np.concatenate([run.rows for run in runs])
    indexed = _indexed(kernel_map, rows, progress or silent, workers or Workers())
    rng = np.random.default_rng([seed, 0])
    left_out = np.sort(rng.permutation(len(runs))[:MAX_FOLDS])
    choose = _at_random if random_maps else cover
    folds = [_fold(indexed, runs, int(index), sizes, choose, rng) for index in left_out]
    useful = [fold for fold in folds if int(fold.covered.sum()) >= _MIN_FRAMES]
    if not useful:
        most = max(int(fold.covered.sum()) for fold in folds)
        raise LocalizationError(
            f'cannot tune: at most {most} frames of a run lie where the other runs (or the '
            f'other half of a single run) went, expected {_MIN_FRAMES}: give runs through '
            'the same places'
        )
    _tell_uncovered(useful)
    return useful


def fingerprint(folds: Sequence[Fold]) -> str:
    """Hash of everything that the folds hold."""
    describer = folds[0].maps[0].describer
    assert isinstance(describer, GramDescriber)
    sums = hashlib.sha256(describer.gram.tobytes())
    for fold in folds:
        run = fold.run
        arrays = [run.rows, run.stamps_ns, run.odometry, run.poses, fold.covered]
        for part in fold.maps:
            noise = part.motion_noise
            arrays += [part.descriptors, part.poses, part.controls, part.next_poses]
            arrays += [noise.per_metre, noise.per_radian, noise.step]
            arrays += [part.calibration.values, part.calibration.covariance]
        for array in arrays:
            sums.update(np.ascontiguousarray(array).tobytes())
    return sums.hexdigest()


def _frames(kernel_map: KernelMap, datasets: Sequence[Dataset]) -> list[Frames]:
    """Frames of each run that are in the map, thinned, with their odometry."""
    stride = -(-len(kernel_map) // MAX_FRAMES)
    runs = []
    for index, dataset in enumerate(datasets):
        rows = np.flatnonzero(kernel_map.run_index == index)[::stride]
        at = {frame.stamp_ns: frame.odometry for frame in dataset}
        stamps = kernel_map.stamps_ns[rows]
        odometry = np.array([at[int(stamp)] for stamp in stamps]).reshape(-1, 3)
        runs.append(Frames(rows, stamps, odometry, kernel_map.poses[rows]))
    return [run for run in runs if len(run)]


def _tell_capped(sizes: Sequence[int | None]) -> None:
    capped = [str(size) for size in sizes if size is not None and size > MAX_FOLD_IMAGES]
    if capped:
        logger.warning(
            'parameters for maps of %s images are tuned on maps of %d, the most that are tried',
            ', '.join(capped),
            MAX_FOLD_IMAGES,
        )


def _tell_uncovered(folds: Sequence[Fold]) -> None:
    share = float(np.mean(np.concatenate([fold.covered for fold in folds])))
    if share < _ENOUGH_COVERED:
        logger.warning(
            'only %.0f%% of the frames lie where the other runs (or the other half of a single '
            'run) went the same way, and tuning goes by these: a second run through the same '
            'places tells more',
            100.0 * share,
        )


def _left_out_in_turn(runs: list[Frames]) -> list[Frames]:
    """Return the runs, or the halves of a single one; refuses those too short to tell anything."""
    if len(runs) == 1:
        half = len(runs[0]) // 2
        runs = [runs[0].part(slice(half)), runs[0].part(slice(half, None))]
    most = max(map(len, runs))
    if most < _MIN_FRAMES:
        raise LocalizationError(
            f'cannot tune: the longest run (or half of a single run) has {most} usable frames, '
            f'expected {_MIN_FRAMES}: give longer runs'
        )
    return runs


def _indexed(
    kernel_map: KernelMap, rows: np.ndarray, progress: Progress, workers: Workers
) -> KernelMap:
    """Map whose descriptors are row numbers of the Gram matrix of `rows`, others are unknown."""
    gram = _gram(kernel_map.describer, kernel_map.descriptors[rows], progress, workers)
    numbers = np.full((len(kernel_map), 1), -1, dtype=np.int64)
    numbers[rows, 0] = np.arange(len(rows))
    describer = GramDescriber(gram)
    return replace(kernel_map, descriptors=numbers, describer=describer, thumbnails=())


def _gram(
    describer: Describer, descriptors: np.ndarray, progress: Progress, workers: Workers
) -> np.ndarray:
    n = len(descriptors)
    gram = np.empty((n, n), dtype=np.float32)
    starts = range(0, n, _ROWS)
    work = partial(_gram_rows, SentDescriber(describer), descriptors)
    for done, (number, rows) in enumerate(workers.run(work, starts), start=1):
        start = starts[number]
        block = slice(start, start + len(rows))
        gram[block, start:] = rows
        gram[start:, block] = rows.T
        progress('comparing images', min(done * _ROWS, n), n)
    return gram


def _gram_rows(sent: SentDescriber, descriptors: np.ndarray, start: int) -> np.ndarray:
    """Kernel values of a block of images and all after them."""
    stop = start + _ROWS
    rows = sent.describer.cross_gram(descriptors[start:stop], descriptors[start:])
    return rows.astype(np.float32)


def _fold(
    indexed: KernelMap,
    runs: Sequence[Frames],
    left_out: int,
    sizes: Sequence[int | None],
    choose: Callable[[FloatArray, int, np.random.Generator], np.ndarray],
    rng: np.random.Generator,
) -> Fold:
    run, others = runs[left_out], [r for index, r in enumerate(runs) if index != left_out]
    training = indexed.subset(np.concatenate([other.rows for other in others]))
    calibration, noise = measure_odometry([(other.odometry, other.poses) for other in others])
    training = replace(training, motion_noise=noise, calibration=calibration)
    maps = []
    for size in sizes:
        count = min(size or MAX_FOLD_IMAGES, MAX_FOLD_IMAGES)
        maps.append(with_statistics(training.subset(choose(training.poses, count, rng))))
    numbered = replace(run, rows=indexed.descriptors[run.rows, 0])
    return Fold(numbered, _near(run.poses, training.poses), tuple(maps))


def _at_random(poses: FloatArray, count: int, rng: np.random.Generator) -> np.ndarray:
    return np.sort(rng.permutation(len(poses))[:count])


def _near(poses: FloatArray, known: FloatArray) -> np.ndarray:
    """Which poses (m, 3) have a known pose (n, 3) within reach and looking the same way."""
    groups = cKDTree(known[:, :2]).query_ball_point(poses[:, :2], NEAR_M)
    near = np.zeros(len(poses), dtype=bool)
    for index, group in enumerate(groups):
        turns = se2.wrap_angle(known[group, 2] - poses[index, 2])
        near[index] = bool(np.any(np.abs(turns) <= NEAR_RAD))
    return near
