"""
Places of the acceptance set: maps and runs, whose images are described once and cached.

Describing the images takes half an hour, a drive takes seconds. A place is a folder with a map
file and a file of arrays for each run; nothing in it depends on the filter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
import functools
from pathlib import Path
import sys
from typing import Any

from benchmarks import acceptance_real
import cv2
from joblib import delayed, Parallel
from kbr_localization.datasets import Dataset, Frame, OdometryTrack, open_dataset
from kbr_localization.datasets.tracks import without_jumps
from kbr_localization.evaluation.comparison import describe_run, DescribedRun
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.se2 import FloatArray, StampArray
from kbr_localization.simulation.robot import random_robot, Robot
from kbr_localization.simulation.run import (
    BuildingConfig,
    DEMO_RUNS,
    SyntheticBuilding,
    SyntheticRun,
    with_robots,
)
import numpy as np
from threadpoolctl import threadpool_limits

OFFICES = tuple(range(301, 313))
RANDOM_ROBOTS = tuple(seed for seed in OFFICES if seed // 2 % 2)
"""Buildings with a random test robot: two of every four."""
GARDENS_POINT = (
    ('day_left', 'day_right'), ('day_right', 'night_right'), ('day_left', 'night_right'),
)  # fmt: skip
RIGHT_FRAMES = 3.5
"""Distance from the true place, in photographs, within which an estimate is correct."""
PAIRS = {
    f'{mapped}-{test}, {spacing:g} m': (mapped, test, spacing)
    for spacing in (1.0, 0.3)
    for mapped, test in GARDENS_POINT
}
FOREIGN_RUNS = {
    'gardens_day': ('gardens_point/day_left', 1.0),
    'gardens_night': ('gardens_point/night_right', 0.3),
    'kitchen': ('seven_scenes_kitchen/map', None),
}
"""Runs of photographs that are localized on the map of the corridors, with their spacing."""
BLACK = 'black.npy'
MapAndTests = tuple[Sequence[Dataset], Mapping[str, Dataset]]
"""Runs to build the map from, and test runs by name."""
Source = Callable[[], MapAndTests]


@dataclass(frozen=True)
class RunArrays:
    """A run as arrays: stamps (n,) ns, odometry and true poses (n, 3), descriptors (n, d)."""

    stamps_ns: StampArray
    odometry: FloatArray
    reference: FloatArray
    descriptors: np.ndarray

    def __len__(self) -> int:
        return len(self.stamps_ns)

    def dataset(self, name: str) -> Dataset:
        """Return a run whose images are replaced by their descriptors."""
        # remove jumps of the odometry, as when a data set is read
        track, _ = without_jumps(OdometryTrack(self.stamps_ns, self.odometry))
        stamps = np.clip(self.stamps_ns, track.stamps_ns[0], track.stamps_ns[-1])
        odometry = [track.at(int(stamp)) for stamp in stamps]
        frames = tuple(
            Frame(int(stamp), functools.partial(np.asarray, image), pose, true, f'{name} {index}')
            for index, (stamp, pose, true, image) in enumerate(
                zip(self.stamps_ns, odometry, self.reference, self.descriptors, strict=True)
            )
        )
        return Dataset(name, track, {}, frames)

    def save(self, path: Path) -> None:
        """Write the arrays atomically."""
        part = path.with_suffix('.part.npz')
        np.savez(part, **vars(self))
        part.replace(path)

    @staticmethod
    def load(path: Path) -> RunArrays:
        with np.load(path) as arrays:
            return RunArrays(**arrays)

    @staticmethod
    def of(run: DescribedRun) -> RunArrays:
        """Return the frames of a run that have a true pose."""
        known = [index for index, frame in enumerate(run) if frame.reference is not None]
        frames = [run[index] for index in known]
        return RunArrays(
            np.array([frame.stamp_ns for frame in frames], dtype=np.int64),
            np.array([frame.odometry for frame in frames]),
            np.array([frame.reference for frame in frames]),
            run.descriptors[known],
        )


@dataclass(frozen=True)
class Place:
    """Folder of the cache with the map and the runs of a place."""

    folder: Path

    @functools.cached_property
    def kernel_map(self) -> KernelMap:
        return replace(KernelMap.load(self.folder / 'map.h5'), statistics=None)

    @functools.cached_property
    def black(self) -> np.ndarray:
        """Descriptor (d,) of a black image."""
        return np.asarray(np.load(self.folder / BLACK))

    def run(self, name: str) -> RunArrays:
        return RunArrays.load(self.folder / f'{name}.npz')

    def cache(self, source: Source) -> None:
        """Build the map and describe the runs that are not cached yet."""
        if (self.folder / 'done').exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        training, runs = source()
        path = self.folder / 'map.h5'
        if not path.exists():
            built = replace(build_map(training, seed=0), thumbnails=(), statistics=None)
            black = built.describer.describe(np.zeros(built.image_shape, np.uint8))
            np.save(self.folder / BLACK, black)
            built.save(path)
        for name, run in runs.items():
            self.cache_run(name, run)
        (self.folder / 'done').touch()

    def cache_run(self, name: str, run: Dataset) -> None:
        """Describe a run unless it is cached; resize foreign images to the size of map images."""
        path = self.folder / f'{name}.npz'
        if not path.exists():
            kernel_map = KernelMap.load(self.folder / 'map.h5')
            resized = ResizedRun(run, kernel_map.image_shape) if name in FOREIGN_RUNS else run
            RunArrays.of(describe_run(kernel_map.describer, resized)).save(path)
            print(f'{self.folder.name}: {name}', file=sys.stderr, flush=True)


class ResizedRun(Dataset):
    """Run whose images are cropped and scaled to a shape (height, width)."""

    def __init__(self, run: Dataset, shape: Sequence[int]) -> None:
        self._run, self._shape = run, shape
        self.name, self.skipped, self.odometry = run.name, run.skipped, run.odometry

    def __len__(self) -> int:
        return len(self._run)

    def __getitem__(self, index: int) -> Frame:
        frame = self._run[index]
        return replace(frame, image=functools.partial(self._image, frame))

    def _image(self, frame: Frame) -> np.ndarray:
        image, (height, width) = np.asarray(frame.load_image()), self._shape
        rows, columns = image.shape[:2]
        size = min(columns, rows * width // height), min(rows, columns * height // width)
        middle = (0.5 * (columns - 1), 0.5 * (rows - 1))
        cut = cv2.getRectSubPix(image, size, middle)
        return cv2.resize(cut, (width, height), interpolation=cv2.INTER_AREA)


class LoadedRun(Dataset):
    """Run whose images are loaded once, for several describers."""

    def __init__(self, run: Dataset) -> None:
        self.name, self.skipped, self.odometry = run.name, run.skipped, run.odometry
        self._frames = [replace(frame, image=frame.load_image()) for frame in run]

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, index: int) -> Frame:
        return self._frames[index]


def sources(data: Path, mrclam: Path | None, corridor: str | None) -> dict[str, Source]:
    """Return the sources of the places by name; `mrclam`, `corridor`: data of real odometry."""

    def run(path: str, spacing: float | None = None) -> Dataset:
        return open_dataset(data / path, spacing=spacing)

    def corridors() -> MapAndTests:
        runs = {'day': run('cold_like/seq1_cloudy3'), 'night': run('cold_like/seq1_night1')}
        foreign = {name: run(*stranger) for name, stranger in FOREIGN_RUNS.items()}
        return [run(f'cold_like/seq1_cloudy{number}') for number in (1, 2)], runs | foreign

    def pair(folder: str, mapped: str, test: str, spacing: float | None = None) -> MapAndTests:
        return [run(f'{folder}/{mapped}', spacing)], {'test': run(f'{folder}/{test}', spacing)}

    found: dict[str, Source] = {'corridors': corridors}
    found['rover'] = functools.partial(pair, 'rover', 'map', 'test')
    for name, walk in PAIRS.items():
        found[name] = functools.partial(pair, 'gardens_point', *walk)
    for direction in (('map', 'test'), ('test', 'map')):
        name = f'kitchen {direction[0]}'
        found[name] = functools.partial(pair, 'seven_scenes_kitchen', *direction)
    for seed in OFFICES:
        found[f'office {seed}'] = functools.partial(_office, seed)
    if mrclam:
        found['mrclam'] = functools.partial(acceptance_real.hall, mrclam)
    if corridor:
        found['tuc'] = functools.partial(acceptance_real.corridor, corridor)
    return found


def _office(seed: int) -> MapAndTests:
    return render_office(seed)[0], {}


def cache_night(cache: Path, seed: int) -> None:
    """Describe the night run of a building by the describers of this and three others."""
    places = [Place(cache / f'office {other}') for other in (seed, *other_offices(seed))]
    name = f'night {seed}'
    missing = [place for place in places if not (place.folder / f'{name}.npz').exists()]
    if missing:
        robot = random_robot(seed) if seed in RANDOM_ROBOTS else None
        night = LoadedRun(render_office(seed, robot)[1])
        for place in missing:
            place.cache_run(name, night)


def other_offices(seed: int) -> tuple[int, ...]:
    """Return the seeds of the buildings on whose maps the night run of this one is localized."""
    first = OFFICES[0] + (seed - OFFICES[0]) // 4 * 4
    return tuple(other for other in range(first, first + 4) if other != seed)


def render_office(
    seed: int, test_robot: Robot | None = None, map_robot: Robot | None = None
) -> tuple[list[Dataset], Dataset]:
    """Render an office building: map runs by day, and a night run of 200 s."""
    building = SyntheticBuilding(BuildingConfig(seed=seed))
    *by_day, night = with_robots(DEMO_RUNS, test_robot, map_robot)
    training: list[Dataset] = [SyntheticRun(building, run) for run in by_day]
    return training, SyntheticRun(building, replace(night, seconds=200.0))


def describe_all(
    cache: Path, data: Path, jobs: int, mrclam: Path | None, corridor: str | None
) -> None:
    """Describe all images that are not cached."""
    places = sources(data, mrclam, corridor)
    parallel = Parallel(n_jobs=jobs)
    parallel(
        delayed(_one_thread)(Place(cache / name).cache, source) for name, source in places.items()
    )
    parallel(delayed(_one_thread)(cache_night, cache, seed) for seed in OFFICES)


def _one_thread(function: Callable[..., None], *arguments: Any) -> None:
    threadpool_limits(1, 'blas')
    function(*arguments)
