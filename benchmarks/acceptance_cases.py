"""The drives of the acceptance set: which map, which run, and what happens on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
import itertools

from benchmarks.acceptance_places import DRAWN, OFFICES, others, PAIRS, Place, RIGHT_FRAMES, Taken
from kbr_localization import se2
from kbr_localization.evaluation.comparison import random_map, Task
from kbr_localization.localization.map.decay import with_sensible_config
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

BEFORE_M, AFTER_M, CARRIED_M = 15.0, 15.0, 6.0
LASTS_S, STANDS_S = 15.0, 2.0
TURNED = 0.8
"""rad, that the odometry's heading jumps."""
OWN, FOREIGN, KIDNAPPED, WRONG, HALF = 'own', 'foreign', 'kidnapped', 'wrong', 'half'
"""Kinds of drives; they differ in what is counted."""


@dataclass(frozen=True)
class MapOf:
    """
    A map: `size` images of a place, drawn by `trial`, all of them if None.

    `part`: of four halves of these, to each side of the middle of both axes.
    """

    place: str
    size: int | None = None
    trial: int = 0
    part: int | None = None

    def of(self, place: Place) -> KernelMap:
        """Choose the images."""
        found = place.kernel_map
        if self.size is not None:
            found = random_map(found, Task('kbr', self.size, self.trial), 0)
        if self.part is not None:
            centred = found.poses[:, :2] - found.poses[:, :2].mean(axis=0)
            along, across = (centred @ np.linalg.svd(centred, full_matrices=False)[2].T).T
            # of a straight way the inner and the outer half in place of its sides
            wide = across if np.ptp(across) > 1.0 else np.abs(along)
            position = (along, wide)[self.part // 2]
            ahead = position > np.median(position)
            found = found.subset(np.flatnonzero(ahead == (self.part % 2 == 0)))
        return with_sensible_config(found)


@dataclass(frozen=True)
class Case:
    """
    A drive: `run` of the map's place with an `event`, scored with the others of its `group`.

    `half`: 'choose' or 'report'. `right_m`: metres within which an answer is right. `begins`: part
    of the run that is left out before.
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
        """Take the run, and let the event happen to it at a moment that follows from a seed."""
        taken = place.run(self.run)
        if self.begins:
            taken = spliced(taken, np.arange(round(self.begins * len(taken)), len(taken)))
        rng = np.random.default_rng([seed, 7])
        drive = EVENTS[self.event](taken, rng) if self.event else Drive(taken)
        if self.event == 'black camera':
            seen = drive.run.descriptors.copy()
            seen[drive.since :] = place.black  # noqa: E203
            drive = replace(drive, run=replace(drive.run, descriptors=seen))
        if self.event == 'wrong pose':
            away = np.hypot(*(kernel_map.poses[:, :2] - taken.reference[0, :2]).T)
            return replace(drive, start=kernel_map.poses[rng.choice(np.flatnonzero(away > 5.0))])
        if self.kind == HALF:
            away, _ = cKDTree(kernel_map.poses[:, :2]).query(taken.reference[:, :2])
            return replace(drive, mapped=away <= 0.5 * self.right_m)
        return drive


@dataclass(frozen=True)
class Drive:
    """
    A run as it is driven.

    `since`: frame of the event. `start`: 'global', 'reference' or a pose (3,) that is given, and
    wrong. `mapped`: which frames (n,) count where the map is half of the place, None for all.
    """

    run: Taken
    since: int | None = None
    start: str | FloatArray = 'global'
    mapped: NDArray[np.bool_] | None = None

    @property
    def way(self) -> FloatArray:
        """Metres (n,) driven, by the truth or by the odometry, whichever says more."""
        steps = [
            np.hypot(*np.diff(poses[:, :2], axis=0).T)
            for poses in (self.run.reference, self.run.odometry)
        ]
        if isinstance(self.start, str) and self.start == 'reference' and self.since:
            steps[0][self.since - 1] = steps[1][self.since - 1] = 0.0
        return np.concatenate([[0.0], np.cumsum(np.maximum(*steps))])


Told = tuple[slice, FloatArray | float]


def spliced(
    run: Taken, frames: NDArray[np.int64], told: Told | None = None, carried: bool = False
) -> Taken:
    """
    Put frames of a run one after the other.

    The odometry's steps are those between frames that follow each other, and none between others,
    but for those that are `told` otherwise. So are the times, those between others being the usual
    one, or as recorded if `carried`.
    """
    gaps, follow = np.diff(run.stamps_ns), np.diff(frames) == 1
    times = np.where(follow, gaps[np.minimum(frames[:-1], len(gaps) - 1)], np.median(gaps))
    if carried:
        times = np.maximum(times, np.diff(run.stamps_ns[frames]))
    steps = np.where(follow[:, np.newaxis], steps_of(run, frames), 0.0)
    if told is not None:
        steps[told[0]] = told[1]
    stamps = run.stamps_ns[frames[0]] + np.concatenate([[0], np.cumsum(times)]).astype(np.int64)
    odometry = se2.chain(run.odometry[frames[0]], steps)
    return Taken(stamps, odometry, run.reference[frames], run.descriptors[frames])


def steps_of(run: Taken, frames: NDArray[np.int64]) -> FloatArray:
    """Motions (k - 1, 3) between frames (k,) by the odometry."""
    return np.asarray(se2.between(run.odometry[frames[:-1]], run.odometry[frames[1:]]))


def middle(run: Taken, rng: np.random.Generator, seconds: float = 0.0) -> tuple[int, int]:
    """Frame at .4 to .5 of the way, and how many frames some seconds are."""
    way = se2.travelled(run.reference)
    since = int(np.searchsorted(way, rng.uniform(0.4, 0.5) * way[-1]))
    return since, round(seconds * 1e9 / float(np.median(np.diff(run.stamps_ns))))


def kidnapped(run: Taken, rng: np.random.Generator, noticed: bool) -> Drive:
    """Cut a run to a stretch and another one, over 3 m from its end; `noticed`: by a jump."""
    way = se2.travelled(run.reference)

    def stretch(metres: float) -> NDArray[np.int64]:
        first = int(rng.integers(np.searchsorted(way, way[-1] - metres)))
        return np.arange(first, np.searchsorted(way, way[first] + metres))

    before, after = stretch(BEFORE_M), stretch(AFTER_M)
    while np.hypot(*(run.reference[before[-1]] - run.reference[after[0]])[:2]) < 3.0:
        after = stretch(AFTER_M)
    jump = rng.normal(0.0, [2.0, 2.0, 1.5]) * noticed
    told = slice(len(before) - 1, len(before)), jump
    return Drive(spliced(run, np.concatenate([before, after]), told), len(before), 'reference')


def scaled(run: Taken, factors: tuple[float, float, float]) -> Drive:
    """Multiply the steps of the odometry for the whole drive."""
    frames = np.arange(len(run))
    return Drive(spliced(run, frames, (slice(None), np.array(factors) * steps_of(run, frames))), 0)


def frozen(run: Taken, rng: np.random.Generator, seconds: float) -> Drive:
    """Let the odometry stand still from the middle on."""
    since, count = middle(run, rng, seconds)
    return Drive(spliced(run, np.arange(len(run)), (slice(since, since + count), 0.0)), since)


def spinning(run: Taken, rng: np.random.Generator) -> Drive:
    """Let the robot stand for a while, its odometry going on, and then drive on."""
    since, count = middle(run, rng, LASTS_S)
    count = min(count, len(run) - since - 1)
    stood = np.full(count, since)
    frames = np.concatenate([np.arange(since), stood, np.arange(since, len(run))])
    told = slice(since, since + count), steps_of(run, np.arange(since, since + count + 1))
    return Drive(spliced(run, frames, told), since)


def turned(run: Taken, rng: np.random.Generator) -> Drive:
    """Let the odometry's heading jump, its positions going on as before."""
    since, odometry = middle(run, rng)[0], run.odometry.copy()
    odometry[since:, 2] = se2.wrap_angle(odometry[since:, 2] + TURNED)
    return Drive(replace(run, odometry=odometry), since)


def carried(run: Taken, rng: np.random.Generator) -> Drive:
    """Let the robot stand, be carried some metres along its way without images, and stand."""
    since, count = middle(run, rng, STANDS_S)
    way = se2.travelled(run.reference)
    there = min(int(np.searchsorted(way, way[since] + CARRIED_M)), len(run) - 2)
    stood = [np.full(count, since), np.full(count, there)]
    frames = np.concatenate([np.arange(since), *stood, np.arange(there, len(run))])
    told = slice(since + count - 1, since + count), 0.0
    return Drive(spliced(run, frames, told, carried=True), since + count)


def camera_stopped(run: Taken, rng: np.random.Generator) -> Drive:
    """Repeat the image of the middle from there on."""
    since = middle(run, rng)[0]
    seen = run.descriptors[np.minimum(np.arange(len(run)), since)]
    return Drive(replace(run, descriptors=seen), since)


EVENTS: dict[str, Callable[[Taken, np.random.Generator], Drive]] = {
    'silent': lambda run, rng: kidnapped(run, rng, False),
    'noticed': lambda run, rng: kidnapped(run, rng, True),
    'mirrored': lambda run, _: scaled(run, (1.0, -1.0, -1.0)),
    'x 0.6': lambda run, _: scaled(run, (0.6, 0.6, 1.0)),
    'x 1.5': lambda run, _: scaled(run, (1.5, 1.5, 1.0)),
    'frozen': lambda run, rng: frozen(run, rng, 1e6),
    'frozen 15 s': lambda run, rng: frozen(run, rng, LASTS_S),
    'spinning': spinning,
    'heading jump': turned,
    'carried': carried,
    'wrong pose': lambda run, _: Drive(run, 0),
    'frozen camera': camera_stopped,
    'black camera': lambda run, rng: Drive(run, middle(run, rng)[0]),
}
DAYS = ('day', 'night')
ODOMETRY = ('mirrored', 'x 0.6', 'x 1.5', 'frozen', 'frozen 15 s', 'spinning', 'heading jump')
FAULTS = ('carried', 'wrong pose', 'frozen camera', 'black camera')


def cases() -> Iterator[Case]:
    """List all drives; the halves have other random maps, pairs, directions and buildings."""
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
    group = 'buildings, robots drawn' if seed in DRAWN else 'buildings'
    for size in (100, 400):
        yield Case(group, half, MapOf(f'office {seed}', size), f'night {seed}')
    for number, other in enumerate(others(seed)):
        on = MapOf(f'office {other}', (100, 400)[(seed // 2 + number) % 2])
        yield Case('foreign: buildings', half, on, f'night {seed}', FOREIGN)


def _eventful() -> Iterator[Case]:
    """Places where something happens on the way."""
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
