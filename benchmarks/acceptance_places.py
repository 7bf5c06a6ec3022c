"""
Places of the acceptance set: their maps and runs, described once and kept in a folder.

Describing the images takes half an hour, driving on them seconds. A place is a folder with a map
file and a file of arrays for each run; nothing in it depends on the code of a filter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
import functools
from pathlib import Path
import sys
from typing import Any

from benchmarks.acceptance_real import corridor as tuc
from benchmarks.acceptance_real import hall, Rendered
import cv2
from joblib import delayed, Parallel
from kbr_localization.datasets import Dataset, Frame, OdometryTrack, open_dataset
from kbr_localization.evaluation.described import describe_run, DescribedRun, LookupDescriber
from kbr_localization.localization.map.build import build_map
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.se2 import FloatArray, StampArray
from kbr_localization.simulation import (
    BuildingConfig,
    DEMO_RUNS,
    random_robot,
    Robot,
    SyntheticBuilding,
    SyntheticRun,
    with_robots,
)
from kbr_localization.vision import Describer
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

    def dataset(self, name: str) -> DescribedRun:
        """Return it as a run whose images are their own descriptors."""
        frames = tuple(
            Frame(int(stamp), functools.partial(np.asarray, seen), told, true, f'{name} {index}')
            for index, (stamp, told, true, seen) in enumerate(
                zip(self.stamps_ns, self.odometry, self.reference, self.descriptors, strict=True)
            )
        )
        track = OdometryTrack(self.stamps_ns, self.odometry)
        return DescribedRun(name, track, {}, frames, self.descriptors[:0], 0.0)

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


class GivenDescriptors(LookupDescriber):
    """A map's describer for images that are descriptors already."""

    def __init__(self, describer: Describer, descriptors: np.ndarray | None = None) -> None:
        super().__init__(describer, np.zeros(0) if descriptors is None else descriptors)

    def describe(self, image: np.ndarray) -> np.ndarray:
        """Return the descriptor (d,) that was given."""
        return image


@dataclass(frozen=True)
class Place:
    """A folder of the cache."""

    folder: Path

    @functools.cached_property
    def kernel_map(self) -> KernelMap:
        """Return the map of all images, for runs of `Taken.dataset`."""
        found = KernelMap.load(self.folder / 'map.h5')
        return replace(found, describer=GivenDescriptors(found.describer), statistics=None)

    @functools.cached_property
    def black(self) -> np.ndarray:
        """Descriptor (d,) of a black image."""
        return np.asarray(np.load(self.folder / BLACK))

    def run(self, name: str) -> Taken:
        """Return a run."""
        return Taken.load(self.folder / f'{name}.npz')

    def keep_map(self, training: Sequence[Dataset]) -> KernelMap:
        """Build the map unless it is there."""
        path = self.folder / 'map.h5'
        if path.exists():
            return KernelMap.load(path)
        self.folder.mkdir(parents=True, exist_ok=True)
        made = replace(build_map(training, seed=0), thumbnails=(), statistics=None)
        np.save(self.folder / BLACK, made.describer.describe(np.zeros(made.image_shape, np.uint8)))
        made.save(path)
        print(f'{self.folder.name}: a map of {len(made)} images', file=sys.stderr, flush=True)
        return made

    def lacks(self, name: str) -> bool:
        """Whether a run must be described."""
        return not (self.folder / f'{name}.npz').exists()

    def keep(self, name: str, run: Dataset) -> None:
        """Describe a run unless it is there."""
        if self.lacks(name):
            describer = KernelMap.load(self.folder / 'map.h5').describer
            Taken.of(describe_run(describer, run)).save(self.folder / f'{name}.npz')
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


def keep_corridors(cache: Path, data: Path) -> None:
    """Describe the corridors, and photographs with the corridors' describer."""
    place, runs = Place(cache / 'corridors'), data / 'cold_like'
    training = [open_dataset(runs / f'seq1_cloudy{number}') for number in (1, 2)]
    shape = place.keep_map(training).image_shape
    place.keep('day', open_dataset(runs / 'seq1_cloudy3'))
    place.keep('night', open_dataset(runs / 'seq1_night1'))
    for name, (path, spacing) in STRANGERS.items():
        place.keep(name, Fitted(open_dataset(data / path, spacing=spacing), shape))


def keep_photographs(cache: Path, data: Path, name: str) -> None:
    """Describe a pair of traverses."""
    mapped, test, spacing = PAIRS[name]
    place, folder = Place(cache / name), data / 'gardens_point'
    place.keep_map([open_dataset(folder / mapped, spacing=spacing)])
    place.keep('test', open_dataset(folder / test, spacing=spacing))


def keep_kitchen(cache: Path, data: Path, mapped: str, test: str) -> None:
    """Describe the kitchen one way round."""
    place, folder = Place(cache / f'kitchen {mapped}'), data / 'seven_scenes_kitchen'
    place.keep_map([open_dataset(folder / mapped)])
    place.keep('test', open_dataset(folder / test))


def keep_rover(cache: Path, data: Path) -> None:
    """Describe the rover's drives; the one that is mapped also as one to be driven."""
    place = Place(cache / 'rover')
    place.keep_map([open_dataset(data / 'rover/map')])
    for name in ('test', 'map'):
        place.keep(name, open_dataset(data / 'rover' / name))


def keep_office(cache: Path, seed: int) -> None:
    """Map a rendered building."""
    Place(cache / f'office {seed}').keep_map(rendered(seed)[0])


def keep_night(cache: Path, seed: int) -> None:
    """Describe the night of a building with its own describer and those of three others."""
    places = [Place(cache / f'office {other}') for other in (seed, *others(seed))]
    lacking = [place for place in places if place.lacks(f'night {seed}')]
    if lacking:
        robot = random_robot(seed) if seed in DRAWN else None
        night = Loaded(rendered(seed, robot)[1])
        for place in lacking:
            place.keep(f'night {seed}', night)


def others(seed: int) -> tuple[int, ...]:
    """Seeds of the buildings on whose maps the night of one is driven."""
    first = OFFICES[0] + (seed - OFFICES[0]) // 4 * 4
    return tuple(other for other in range(first, first + 4) if other != seed)


def keep_real(place: Place, render: Callable[[Any], Rendered], name: Any) -> None:
    """Describe drives with the odometry of real robots, in what is rendered about them."""
    if not (place.folder / 'done').exists():
        training, test = render(name)
        place.keep_map(training)
        for run_name, run in test.items():
            place.keep(run_name, run)
        (place.folder / 'done').touch()


def rendered(
    seed: int, test_robot: Robot | None = None, map_robot: Robot | None = None
) -> tuple[list[Dataset], Dataset]:
    """Render an office building: the runs of the map by day, and a night of 200 s."""
    building = SyntheticBuilding(BuildingConfig(kind='office', seed=seed))
    *by_day, night = with_robots(DEMO_RUNS, test_robot, map_robot)
    training: list[Dataset] = [SyntheticRun(building, run) for run in by_day]
    return training, SyntheticRun(building, replace(night, seconds=200.0))


def describe_all(
    cache: Path, data: Path, jobs: int, mrclam: Path | None, corridor: str | None
) -> None:
    """Describe what the cache lacks; `mrclam`, `corridor`: of the real odometry, if given."""
    first = [delayed(_quietly)(keep_corridors, cache, data)]
    first += [delayed(_quietly)(keep_photographs, cache, data, name) for name in PAIRS]
    for way in (('map', 'test'), ('test', 'map')):
        first.append(delayed(_quietly)(keep_kitchen, cache, data, *way))
    first += [delayed(_quietly)(keep_office, cache, seed) for seed in OFFICES]
    first.append(delayed(_quietly)(keep_rover, cache, data))
    if mrclam:
        first.append(delayed(_quietly)(keep_real, Place(cache / 'mrclam'), hall, mrclam))
    if corridor:
        first.append(delayed(_quietly)(keep_real, Place(cache / 'tuc'), tuc, corridor))
    then = [delayed(_quietly)(keep_night, cache, seed) for seed in OFFICES]
    for calls in (first, then):
        Parallel(n_jobs=jobs)(calls)


def _quietly(function, *arguments) -> None:
    threadpool_limits(1, 'blas')
    function(*arguments)
