"""
Places of the acceptance set: their maps and runs, described once and kept in a folder.

Describing the images takes half an hour, driving on them seconds. A place is a folder with a map
file and a file of arrays for each run; nothing in it depends on the code of a filter.
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
DRAWN = tuple(seed for seed in OFFICES if seed // 2 % 2)
"""Buildings whose test robot is drawn at random: two of every four."""
GARDENS_POINT = (
    ('day_left', 'day_right'), ('day_right', 'night_right'), ('day_left', 'night_right'),
)  # fmt: skip
RIGHT_FRAMES = 3.5
"""Photographs from the truth within which an answer is right."""
PAIRS = {
    f'{mapped}-{test}, {spacing:g} m': (mapped, test, spacing)
    for spacing in (1.0, 0.3)
    for mapped, test in GARDENS_POINT
}
STRANGERS = {
    'gardens_day': ('gardens_point/day_left', 1.0),
    'gardens_night': ('gardens_point/night_right', 0.3),
    'kitchen': ('seven_scenes_kitchen/map', None),
}
"""Photographs that are driven on the maps of the corridors."""
BLACK = 'black.npy'
Made = tuple[Sequence[Dataset], Mapping[str, Dataset]]
"""Runs of a map, and those on it by name."""
Source = Callable[[], Made]


@dataclass(frozen=True)
class Taken:
    """A run as arrays: stamps (n,) ns, odometry and true poses (n, 3), descriptors (n, d)."""

    stamps_ns: StampArray
    odometry: FloatArray
    reference: FloatArray
    descriptors: np.ndarray

    def __len__(self) -> int:
        """Count the frames."""
        return len(self.stamps_ns)

    def dataset(self, name: str) -> Dataset:
        """Return it as a run whose images are their own descriptors."""
        # jumps of the odometry are left out, as where a data set is read
        track, _ = without_jumps(OdometryTrack(self.stamps_ns, self.odometry))
        stamps = np.clip(self.stamps_ns, track.stamps_ns[0], track.stamps_ns[-1])
        odometry = [track.at(int(stamp)) for stamp in stamps]
        frames = tuple(
            Frame(int(stamp), functools.partial(np.asarray, seen), told, true, f'{name} {index}')
            for index, (stamp, told, true, seen) in enumerate(
                zip(self.stamps_ns, odometry, self.reference, self.descriptors, strict=True)
            )
        )
        return Dataset(name, track, {}, frames)

    def save(self, path: Path) -> None:
        """Write the arrays, whole or not at all."""
        part = path.with_suffix('.part.npz')
        np.savez(part, **vars(self))
        part.replace(path)

    @staticmethod
    def load(path: Path) -> Taken:
        """Read what `save` wrote."""
        with np.load(path) as arrays:
            return Taken(**arrays)

    @staticmethod
    def of(run: DescribedRun) -> Taken:
        """Take the frames of a run that have a true pose."""
        known = [index for index, frame in enumerate(run) if frame.reference is not None]
        frames = [run[index] for index in known]
        return Taken(
            np.array([frame.stamp_ns for frame in frames], dtype=np.int64),
            np.array([frame.odometry for frame in frames]),
            np.array([frame.reference for frame in frames]),
            run.descriptors[known],
        )


@dataclass(frozen=True)
class Place:
    """A folder of the cache."""

    folder: Path

    @functools.cached_property
    def kernel_map(self) -> KernelMap:
        """Return the map of all images, for runs of `Taken.dataset`."""
        return replace(KernelMap.load(self.folder / 'map.h5'), statistics=None)

    @functools.cached_property
    def black(self) -> np.ndarray:
        """Descriptor (d,) of a black image."""
        return np.asarray(np.load(self.folder / BLACK))

    def run(self, name: str) -> Taken:
        """Return a run."""
        return Taken.load(self.folder / f'{name}.npz')

    def keep(self, source: Source) -> None:
        """Build the map and describe the runs that are not there yet."""
        if (self.folder / 'done').exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        training, runs = source()
        path = self.folder / 'map.h5'
        if not path.exists():
            made = replace(build_map(training, seed=0), thumbnails=(), statistics=None)
            black = made.describer.describe(np.zeros(made.image_shape, np.uint8))
            np.save(self.folder / BLACK, black)
            made.save(path)
        for name, run in runs.items():
            self.keep_run(name, run)
        (self.folder / 'done').touch()

    def keep_run(self, name: str, run: Dataset) -> None:
        """Describe a run unless it is there; photographs of strangers are fitted to the map's."""
        path = self.folder / f'{name}.npz'
        if not path.exists():
            known = KernelMap.load(self.folder / 'map.h5')
            fitted = Fitted(run, known.image_shape) if name in STRANGERS else run
            Taken.of(describe_run(known.describer, fitted)).save(path)
            print(f'{self.folder.name}: {name}', file=sys.stderr, flush=True)


class Fitted(Dataset):
    """A run whose images are cut and scaled to a shape (height, width)."""

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


class Loaded(Dataset):
    """A run whose images are rendered once, for several describers."""

    def __init__(self, run: Dataset) -> None:
        self.name, self.skipped, self.odometry = run.name, run.skipped, run.odometry
        self._frames = [replace(frame, image=frame.load_image()) for frame in run]

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, index: int) -> Frame:
        return self._frames[index]


def sources(data: Path, mrclam: Path | None, corridor: str | None) -> dict[str, Source]:
    """Say what the places are made of; `mrclam`, `corridor`: of real odometry, if given."""

    def run(path: str, spacing: float | None = None) -> Dataset:
        return open_dataset(data / path, spacing=spacing)

    def corridors() -> Made:
        runs = {'day': run('cold_like/seq1_cloudy3'), 'night': run('cold_like/seq1_night1')}
        strangers = {name: run(*stranger) for name, stranger in STRANGERS.items()}
        return [run(f'cold_like/seq1_cloudy{number}') for number in (1, 2)], runs | strangers

    def pair(folder: str, mapped: str, test: str, spacing: float | None = None) -> Made:
        return [run(f'{folder}/{mapped}', spacing)], {'test': run(f'{folder}/{test}', spacing)}

    made: dict[str, Source] = {'corridors': corridors}
    made['rover'] = functools.partial(pair, 'rover', 'map', 'test')
    for name, walk in PAIRS.items():
        made[name] = functools.partial(pair, 'gardens_point', *walk)
    for way in (('map', 'test'), ('test', 'map')):
        made[f'kitchen {way[0]}'] = functools.partial(pair, 'seven_scenes_kitchen', *way)
    for seed in OFFICES:
        made[f'office {seed}'] = functools.partial(_office, seed)
    if mrclam:
        made['mrclam'] = functools.partial(acceptance_real.hall, mrclam)
    if corridor:
        made['tuc'] = functools.partial(acceptance_real.corridor, corridor)
    return made


def _office(seed: int) -> Made:
    return rendered(seed)[0], {}


def keep_night(cache: Path, seed: int) -> None:
    """Describe the night of a building with its own describer and those of three others."""
    places = [Place(cache / f'office {other}') for other in (seed, *others(seed))]
    name = f'night {seed}'
    lacking = [place for place in places if not (place.folder / f'{name}.npz').exists()]
    if lacking:
        robot = random_robot(seed) if seed in DRAWN else None
        night = Loaded(rendered(seed, robot)[1])
        for place in lacking:
            place.keep_run(name, night)


def others(seed: int) -> tuple[int, ...]:
    """Seeds of the buildings on whose maps the night of one is driven."""
    first = OFFICES[0] + (seed - OFFICES[0]) // 4 * 4
    return tuple(other for other in range(first, first + 4) if other != seed)


def rendered(
    seed: int, test_robot: Robot | None = None, map_robot: Robot | None = None
) -> tuple[list[Dataset], Dataset]:
    """Render an office building: the runs of the map by day, and a night of 200 s."""
    building = SyntheticBuilding(BuildingConfig(seed=seed))
    *by_day, night = with_robots(DEMO_RUNS, test_robot, map_robot)
    training: list[Dataset] = [SyntheticRun(building, run) for run in by_day]
    return training, SyntheticRun(building, replace(night, seconds=200.0))


def describe_all(
    cache: Path, data: Path, jobs: int, mrclam: Path | None, corridor: str | None
) -> None:
    """Describe what the cache lacks."""
    made = sources(data, mrclam, corridor)
    parallel = Parallel(n_jobs=jobs)
    parallel(delayed(_alone)(Place(cache / name).keep, source) for name, source in made.items())
    parallel(delayed(_alone)(keep_night, cache, seed) for seed in OFFICES)


def _alone(function: Callable[..., None], *arguments: Any) -> None:
    threadpool_limits(1, 'blas')
    function(*arguments)
