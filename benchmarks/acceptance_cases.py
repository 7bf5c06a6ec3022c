"""The drives of the acceptance set: map, run, and the event during the drive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
import itertools

from benchmarks.acceptance_places import (
    OFFICES,
    other_offices,
    PAIRS,
    Place,
    RANDOM_ROBOTS,
    RIGHT_FRAMES,
    RunArrays,
)
from kbr_localization import se2
from kbr_localization.evaluation.comparison import random_map, Task
from kbr_localization.localization.map.decay import with_sensible_config
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

BEFORE_M, AFTER_M, CARRIED_M = 15.0, 15.0, 6.0
FAULT_S, STANDSTILL_S = 15.0, 2.0
HEADING_JUMP = 0.8
"""Jump of the heading of the odometry, rad."""
OWN, FOREIGN, KIDNAPPED, WRONG, HALF = 'own', 'foreign', 'kidnapped', 'wrong', 'half'
"""Kinds of drives, which are scored differently."""


@dataclass(frozen=True)
class MapOf:
    """
    A map: `size` random images of a place with the seed `trial`, or all of them.

    `part`: 0 to 3, one of the halves on either side of the median of both axes.
    """

    place: str
    size: int | None = None
    trial: int = 0
    part: int | None = None

    def of(self, place: Place) -> KernelMap:
        found = place.kernel_map
        if self.size is not None:
            found = random_map(found, Task('kbr', self.size, self.trial), 0)
        if self.part is not None:
            centred = found.poses[:, :2] - found.poses[:, :2].mean(axis=0)
            along, across = (centred @ np.linalg.svd(centred, full_matrices=False)[2].T).T
            # split a straight path into the inner and the outer half instead of its sides
            second = across if np.ptp(across) > 1.0 else np.abs(along)
            position = (along, second)[self.part // 2]
            above = position > np.median(position)
            found = found.subset(np.flatnonzero(above == (self.part % 2 == 0)))
        return with_sensible_config(found)


@dataclass(frozen=True)
class Case:
    """
    A drive: `run` of the place of the map with an `event`, scored together with its `group`.

    `half`: 'choose' or 'report'. `right_m`: largest error of a correct estimate, metres. `begins`:
    fraction of the run that is skipped at the beginning.
    """

    group: str
    half: str
    map: MapOf  # noqa: A003
    run: str
    kind: str = OWN
    event: str = ''
    right_m: float = 1.0
    begins: float = 0.0

    def drive(self, place: Place, kernel_map: KernelMap, seed: int) -> Drive:
        """Return the run with its event, at a time that depends on the seed."""
        run = place.run(self.run)
        if self.begins:
            run = splice(run, np.arange(round(self.begins * len(run)), len(run)))
        rng = np.random.default_rng([seed, 7])
        drive = EVENTS[self.event](run, rng) if self.event else Drive(run)
        if self.event == 'black camera':
            descriptors = drive.run.descriptors.copy()
            descriptors[drive.since :] = place.black  # noqa: E203
            drive = replace(drive, run=replace(drive.run, descriptors=descriptors))
        if self.event == 'wrong pose':
            distance = np.hypot(*(kernel_map.poses[:, :2] - run.reference[0, :2]).T)
            wrong = rng.choice(np.flatnonzero(distance > 5.0))
            return replace(drive, start=kernel_map.poses[wrong])
        if self.kind == HALF:
            distance, _ = cKDTree(kernel_map.poses[:, :2]).query(run.reference[:, :2])
            return replace(drive, mapped=distance <= 0.5 * self.right_m)
        return drive


@dataclass(frozen=True)
class Drive:
    """
    A run with its event applied.

    `since`: frame of the event. `start`: 'global', 'reference', or a wrong pose (3,) that the
    localizer is given. `mapped`: frames (n,) at mapped places, which are scored, None for all.
    """

    run: RunArrays
    since: int | None = None
    start: str | FloatArray = 'global'
    mapped: NDArray[np.bool_] | None = None

    @property
    def travel(self) -> FloatArray:
        """Distance travelled (n,) in metres: of each step the larger of truth and odometry."""
        steps = [
            np.hypot(*np.diff(poses[:, :2], axis=0).T)
            for poses in (self.run.reference, self.run.odometry)
        ]
        if isinstance(self.start, str) and self.start == 'reference' and self.since:
            steps[0][self.since - 1] = steps[1][self.since - 1] = 0.0
        return np.concatenate([[0.0], np.cumsum(np.maximum(*steps))])


Override = tuple[slice, FloatArray | float]
"""Which steps of the odometry to replace, and their new values."""


def splice(
    run: RunArrays,
    frames: NDArray[np.int64],
    override: Override | None = None,
    keep_times: bool = False,
) -> RunArrays:
    """
    Join frames of a run in a new order.

    The odometry moves between consecutive frames only, apart from the steps of `override`. The
    time between other frames is the median, or with `keep_times` at least the recorded time.
    """
    gaps, consecutive = np.diff(run.stamps_ns), np.diff(frames) == 1
    times = np.where(consecutive, gaps[np.minimum(frames[:-1], len(gaps) - 1)], np.median(gaps))
    if keep_times:
        times = np.maximum(times, np.diff(run.stamps_ns[frames]))
    steps = np.where(consecutive[:, np.newaxis], steps_of(run, frames), 0.0)
    if override is not None:
        steps[override[0]] = override[1]
    stamps = run.stamps_ns[frames[0]] + np.concatenate([[0], np.cumsum(times)]).astype(np.int64)
    odometry = se2.chain(run.odometry[frames[0]], steps)
    return RunArrays(stamps, odometry, run.reference[frames], run.descriptors[frames])


def steps_of(run: RunArrays, frames: NDArray[np.int64]) -> FloatArray:
    """Return the steps (k - 1, 3) of the odometry between frames (k,)."""
    return np.asarray(se2.between(run.odometry[frames[:-1]], run.odometry[frames[1:]]))


def middle(run: RunArrays, rng: np.random.Generator, seconds: float = 0.0) -> tuple[int, int]:
    """Return a random frame at 0.4 to 0.5 of the path, and the number of frames per `seconds`."""
    travel = se2.travelled(run.reference)
    since = int(np.searchsorted(travel, rng.uniform(0.4, 0.5) * travel[-1]))
    return since, round(seconds * 1e9 / float(np.median(np.diff(run.stamps_ns))))


def kidnap(run: RunArrays, rng: np.random.Generator, noticed: bool) -> Drive:
    """Join two stretches more than 3 m apart; `noticed`: with a jump of the odometry."""
    travel = se2.travelled(run.reference)

    def stretch(metres: float) -> NDArray[np.int64]:
        first = int(rng.integers(np.searchsorted(travel, travel[-1] - metres)))
        return np.arange(first, np.searchsorted(travel, travel[first] + metres))

    before, after = stretch(BEFORE_M), stretch(AFTER_M)
    while np.hypot(*(run.reference[before[-1]] - run.reference[after[0]])[:2]) < 3.0:
        after = stretch(AFTER_M)
    jump = rng.normal(0.0, [2.0, 2.0, 1.5]) * noticed
    override = slice(len(before) - 1, len(before)), jump
    return Drive(splice(run, np.concatenate([before, after]), override), len(before), 'reference')


def scale_odometry(run: RunArrays, factors: tuple[float, float, float]) -> Drive:
    """Multiply the steps of the odometry during the whole drive."""
    frames = np.arange(len(run))
    return Drive(splice(run, frames, (slice(None), np.array(factors) * steps_of(run, frames))), 0)


def freeze_odometry(run: RunArrays, rng: np.random.Generator, seconds: float) -> Drive:
    """Stop the odometry for some seconds, from the middle of the drive."""
    since, count = middle(run, rng, seconds)
    return Drive(splice(run, np.arange(len(run)), (slice(since, since + count), 0.0)), since)


def spin_wheels(run: RunArrays, rng: np.random.Generator) -> Drive:
    """Stop the robot for a while; the odometry continues, then the robot does."""
    since, count = middle(run, rng, FAULT_S)
    count = min(count, len(run) - since - 1)
    stopped = np.full(count, since)
    frames = np.concatenate([np.arange(since), stopped, np.arange(since, len(run))])
    override = slice(since, since + count), steps_of(run, np.arange(since, since + count + 1))
    return Drive(splice(run, frames, override), since)


def jump_heading(run: RunArrays, rng: np.random.Generator) -> Drive:
    """Let the heading of the odometry jump, without a change of its positions."""
    since, odometry = middle(run, rng)[0], run.odometry.copy()
    odometry[since:, 2] = se2.wrap_angle(odometry[since:, 2] + HEADING_JUMP)
    return Drive(replace(run, odometry=odometry), since)


def carry(run: RunArrays, rng: np.random.Generator) -> Drive:
    """Stop the robot, carry it some metres along its path without images, stop it again."""
    since, count = middle(run, rng, STANDSTILL_S)
    travel = se2.travelled(run.reference)
    there = min(int(np.searchsorted(travel, travel[since] + CARRIED_M)), len(run) - 2)
    stopped = [np.full(count, since), np.full(count, there)]
    frames = np.concatenate([np.arange(since), *stopped, np.arange(there, len(run))])
    override = slice(since + count - 1, since + count), 0.0
    return Drive(splice(run, frames, override, keep_times=True), since + count)


def freeze_camera(run: RunArrays, rng: np.random.Generator) -> Drive:
    """Repeat the image in the middle of the drive until the end."""
    since = middle(run, rng)[0]
    descriptors = run.descriptors[np.minimum(np.arange(len(run)), since)]
    return Drive(replace(run, descriptors=descriptors), since)


EVENTS: dict[str, Callable[[RunArrays, np.random.Generator], Drive]] = {
    'silent': lambda run, rng: kidnap(run, rng, False),
    'noticed': lambda run, rng: kidnap(run, rng, True),
    'mirrored': lambda run, _: scale_odometry(run, (1.0, -1.0, -1.0)),
    'x 0.6': lambda run, _: scale_odometry(run, (0.6, 0.6, 1.0)),
    'x 1.5': lambda run, _: scale_odometry(run, (1.5, 1.5, 1.0)),
    'frozen': lambda run, rng: freeze_odometry(run, rng, 1e6),
    'frozen 15 s': lambda run, rng: freeze_odometry(run, rng, FAULT_S),
    'spinning': spin_wheels,
    'heading jump': jump_heading,
    'carried': carry,
    'wrong pose': lambda run, _: Drive(run, 0),
    'frozen camera': freeze_camera,
    'black camera': lambda run, rng: Drive(run, middle(run, rng)[0]),
}
DAYS = ('day', 'night')
ODOMETRY = ('mirrored', 'x 0.6', 'x 1.5', 'frozen', 'frozen 15 s', 'spinning', 'heading jump')
FAULTS = ('carried', 'wrong pose', 'frozen camera', 'black camera')


def cases() -> Iterator[Case]:
    """Yield all drives; the halves differ in random maps, pairs, directions and buildings."""
    yield from _corridors_and_photographs()
    for begins, trial, size in itertools.product((0.0, 0.4), (0, 1), (600, 2000)):
        on = MapOf('rover', size, trial)
        yield Case('rover', _half_of(trial), on, 'test', right_m=2.0, begins=begins)
    for seed in OFFICES:
        yield from _office(seed)
    for name, number in (('gardens_day', 0), ('gardens_night', 1), ('kitchen', 1)):
        for size in (100, 400):
            half = _half_of(number + (size == 400))
            on = MapOf('corridors', size)
            yield Case('foreign: photographs', half, on, name, FOREIGN)
    yield from _eventful()
    for place in ('mrclam', 'tuc'):
        yield from _real(place)


def _half_of(number: int) -> str:
    return 'report' if number % 2 else 'choose'


def _corridors_and_photographs() -> Iterator[Case]:
    for run in DAYS:
        for size in (100, 400):
            for trial in (0, 1):
                on = MapOf('corridors', size, trial)
                yield Case(f'corridors, {run}', _half_of(trial), on, run)
    for number, (name, (_, _, spacing)) in enumerate(PAIRS.items()):
        group, right_m = f'Gardens Point, {spacing:g} m', RIGHT_FRAMES * spacing
        yield Case(group, _half_of(number), MapOf(name), 'test', right_m=right_m)
    for number, mapped in enumerate(('map', 'test')):
        on = MapOf(f'kitchen {mapped}')
        yield Case('kitchen', _half_of(number), on, 'test', right_m=RIGHT_FRAMES / 3.0)


def _office(seed: int) -> Iterator[Case]:
    half = _half_of(seed)
    group = 'buildings, robots drawn' if seed in RANDOM_ROBOTS else 'buildings'
    for size in (100, 400):
        yield Case(group, half, MapOf(f'office {seed}', size), f'night {seed}')
    for number, other in enumerate(other_offices(seed)):
        on = MapOf(f'office {other}', (100, 400)[(seed // 2 + number) % 2])
        yield Case('foreign: buildings', half, on, f'night {seed}', FOREIGN)


def _eventful() -> Iterator[Case]:
    """Yield the drives with events and those on half of a map."""
    far = {name: RIGHT_FRAMES * walk[2] for name, walk in PAIRS.items() if walk[2] < 1.0}
    at = [('corridors', 'corridors', run, 1.0, number) for number, run in enumerate(DAYS)]
    at += [('photographs', n, 'test', far[n], number) for number, n in enumerate((*far,)[::2])]
    at += [('buildings', f'office {seed}', f'night {seed}', 1.0, seed) for seed in OFFICES[:4]]
    for kind, place, run, right_m, number in at:
        half, on = _half_of(number), MapOf(place, 100, number if kind == 'corridors' else 0)
        for size, event in itertools.product((60, 100), ('silent', 'noticed')):
            small = replace(on, size=size)
            yield Case(f'kidnapped, {event}', half, small, run, KIDNAPPED, event, right_m)
        for part in range(4):
            some = replace(on, part=part)
            yield Case(f'half mapped: {kind}', half, some, run, HALF, right_m=right_m)
        for event in (*ODOMETRY, *FAULTS):
            group = f'odometry {event}' if event in ODOMETRY else event
            yield Case(group, half, on, run, WRONG, event, right_m)


def _real(place: str) -> Iterator[Case]:
    names = [f'robot {number}' for number in range(1, 6)] if place == 'mrclam' else ['night']
    title = {'mrclam': 'odometry of MRCLAM', 'tuc': 'odometry in a corridor'}[place]
    for number, name in enumerate(names):
        for size in (100, 400):
            half = _half_of(number + (size == 400))
            yield Case(title, half, MapOf(place, size), name)
