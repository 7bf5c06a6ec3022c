"""
What unknown errors of the odometry cost: `python -m benchmarks.rigs`.

Every building is rendered once. Then rigs are drawn for its map and, others, for its test run:
offsets up to 0.3 m, scales within 3%, drift up to 0.03 rad/m, slip. The filter drives each test
run twice from a global start, by the same images and the same noise of the odometry: *learnt*
starts from what the map knows of its own rig, *perfect* has odometry without systematic errors and
is told so. Errors are means over the frames after which both are localized; the ratio in the first
30 m of these stands apart. With `--same` the rigs of map and test are one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks import results, workload
from benchmarks.place_recognition import answers
from kbr_localization import se2
from kbr_localization.datasets.odometry_noise import (
    OdometryNoise,
    random_origin,
    reported_steps,
    STEP_NS,
)
from kbr_localization.evaluation import reference_trajectory, run_errors
from kbr_localization.evaluation.described import DescribedRun, on_described_run
from kbr_localization.evaluation.metrics import localized_from, RunErrors
from kbr_localization.evaluation.protocol import random_map, Task
from kbr_localization.localization.calibration_fit import Track
from kbr_localization.localization.kbr.leave_out import with_statistics
from kbr_localization.localization.localizer import LOST_M, sigma_region
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.localization.motion import measure_odometry
from kbr_localization.localization.pipeline import localize
from kbr_localization.se2 import FloatArray, StampArray
from kbr_localization.simulation import random_robot, SyntheticRun
from kbr_localization.workers import open_workers
import numpy as np

WAYS = {'learnt': 'learnt', 'perfect': 'off'}
"""Of driving, and the filter's `odometry_calibration` then."""
FIRST_M = 30.0
_RIM = sigma_region(2.0, 2)


@dataclass(frozen=True)
class Tour:
    """True poses (m, 3) of a drive, `STEP_NS` apart, and those at the times of its images."""

    poses: FloatArray
    start_ns: int
    stamps_ns: StampArray
    references: FloatArray

    @staticmethod
    def of(run: SyntheticRun) -> Tour:
        """Take what wheels could report on from a run."""
        frames = [run[index] for index in range(len(run))]
        return Tour(
            run.drive.poses,
            int(run.odometry.stamps_ns[0]),
            np.array([frame.stamp_ns for frame in frames]),
            np.array([frame.reference for frame in frames]),
        )

    def reported(self, noise: OdometryNoise, seed: Sequence[int]) -> FloatArray:
        """Odometry (n, 3) at the images of wheels with such errors; the seed has all draws."""
        rng = np.random.default_rng(seed)
        steps = se2.between(self.poses[:-1], self.poses[1:])
        told = reported_steps(steps, STEP_NS, noise, rng)
        stamps_ns = self.start_ns + STEP_NS * np.arange(len(self.poses), dtype=np.int64)
        return se2.interpolate(stamps_ns, se2.chain(random_origin(rng), told), self.stamps_ns)


@dataclass(frozen=True)
class Place:
    """A rendered building: its map and the tours of it, the described test run and its drive."""

    kernel_map: KernelMap
    by_day: tuple[Tour, ...]
    test: DescribedRun
    night: Tour


@dataclass(frozen=True)
class Driven:
    """
    Mean errors in metres of one way of driving: of all frames, of the first; 2-sigma share.

    `said`, `wrong`: of the right frames, called localized, and of these after 5 m, not right.
    """

    error: float
    first: float
    covered: float
    said: float
    wrong: float


def rendered(building: int) -> Place:
    """Render a building, describe its images once."""
    training, test, _ = workload.rendered('office', building)
    kernel_map, (run,) = workload.described(training, test, 0)
    *by_day, night = (Tour.of(one) for one in (*training, *test) if isinstance(one, SyntheticRun))
    # that of a described run can be sent to another process
    light = replace(on_described_run(kernel_map, run), thumbnails=())
    return Place(light, tuple(by_day), run, night)


@dataclass(frozen=True)
class Pair:
    """The wheels of the robot that mapped and of that which drives; the seed of their noise."""

    mapping: OdometryNoise
    test: OdometryNoise
    seed: tuple[int, ...]

    @staticmethod
    def drawn(building: int, number: int, same: bool = False) -> Pair:
        """Draw them at random, one of both with `same`."""
        mapping = random_robot([building, number, 0]).odometry
        test = mapping if same else random_robot([building, number, 1]).odometry
        return Pair(mapping, test, (building, number))

    def without_errors(self) -> Pair:
        """Keep the noise and the slip alone."""
        return replace(self, mapping=_faultless(self.mapping), test=_faultless(self.test))


def _faultless(noise: OdometryNoise) -> OdometryNoise:
    usual = OdometryNoise(yaw_bias=0.0)
    return replace(usual, slip_rate=noise.slip_rate, slip_size=noise.slip_size)


def on_wheels(
    kernel_map: KernelMap, tracks: Sequence[Track], run: DescribedRun, told: FloatArray, how: str
) -> tuple[KernelMap, DescribedRun]:
    """
    Let a map have been recorded, and a run driven, by wheels that reported so.

    `tracks`: of the map's runs. `told`: (n, 3) at the frames of the run. `how`: the filter's
    `odometry_calibration`.
    """
    calibration, noise = measure_odometry(tracks)
    config = replace(kernel_map.filter_config, odometry_calibration=how)
    frames = [replace(frame, odometry=pose) for frame, pose in zip(run.frames, told, strict=True)]
    return replace(
        kernel_map, calibration=calibration, motion_noise=noise, filter_config=config
    ), replace(run, frames=tuple(frames))


def driven(place: Place, size: int, pair: Pair, trial: int) -> dict[str, Driven] | None:
    """Errors by way of driving, None where one of them did not localize."""
    # what the map says of itself is of its images, not of the wheels
    small = with_statistics(random_map(place.kernel_map, Task('kbr', size, trial), 0))
    drives = {}
    for way, how in WAYS.items():
        wheels = pair.without_errors() if how == 'off' else pair
        tracks = [
            (tour.reported(wheels.mapping, [*pair.seed, number]), tour.references)
            for number, tour in enumerate(place.by_day)
        ]
        told = place.night.reported(wheels.test, [*pair.seed, len(tracks)])
        drives[way] = on_wheels(small, tracks, place.test, told, how)
    return compared(drives, trial)


def compared(
    drives: Mapping[str, tuple[KernelMap, DescribedRun]], seed: int
) -> dict[str, Driven] | None:
    """Localize runs by way of driving; errors once all are localized, None where one is never."""
    found, scores = {}, {}
    for way, (kernel_map, run) in drives.items():
        trajectory = localize(kernel_map, run, seed=seed)
        found[way] = run_errors(reference_trajectory(run), trajectory)
        scores[way] = answers(run, trajectory, LOST_M)
    starts = [localized_from(errors) for errors in found.values()]
    if any(start is None for start in starts):
        return None
    start = max(start for start in starts if start is not None)
    return {way: _of_frames(errors, start, scores[way]) for way, errors in found.items()}


def _of_frames(errors: RunErrors, start: int, scores: Mapping[str, float]) -> Driven:
    position, surprise = errors.position_m[start:], errors.position_surprise[start:]
    way = errors.travel_m[start:] - errors.travel_m[start]
    known = surprise[np.isfinite(surprise)]
    return Driven(
        error=float(position.mean()),
        first=float(position[way < FIRST_M].mean()),
        covered=float(np.mean(known < _RIM)),
        said=scores['said'],
        wrong=scores['wrong'],
    )


def of_building(work: tuple[int, argparse.Namespace]) -> list[tuple[int, dict[str, Driven]]]:
    """Sizes of the map and errors by way of driving, for all rigs of a building."""
    building, options = work
    place = rendered(building)
    found = []
    for size in options.sizes:
        for number in range(options.rigs):
            one = driven(place, size, Pair.drawn(building, number, options.same), number)
            if one is not None:
                found.append((size, one))
    return found


def rows_of(
    building: int, sizes: Sequence[int], found: Sequence[tuple[int, dict[str, Driven]]]
) -> Iterator[list[Any]]:
    """One row for each size: errors, their ratios to those of perfect odometry, coverage."""
    for size in sizes:
        here = [one for of_size, one in found if of_size == size]
        if not here:
            continue
        means = {way: _mean([one[way] for one in here]) for way in WAYS}
        perfect = means['perfect']
        yield [
            building,
            size,
            len(here),
            *(means[way][0] for way in WAYS),
            means['learnt'][0] / perfect[0],
            means['learnt'][1] / perfect[1],
            means['learnt'][2],
            perfect[2],
        ]


def _mean(ways: Sequence[Driven]) -> FloatArray:
    return np.asarray(np.mean([[one.error, one.first, one.covered] for one in ways], axis=0))


COLUMNS = ['building', 'images', 'rigs', *(f'{way} m' for way in WAYS)]
COLUMNS += ['learnt / perfect', 'first 30 m', '2 sigma learnt', '2 sigma perfect']


TITLE = """### Unknown errors of the odometry against none

Means over pairs of rigs drawn at random, one for the map and one for the test run at night, from a
global start; metres. *First 30 m*: the ratio there; *2 sigma*: fraction of the truths inside."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all buildings and print the table, into the page too when a section is named."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    add = parser.add_argument
    add('--first', type=int, default=501, help='seed of the first building')
    add('--buildings', type=int, default=4)
    add('--step', type=int, default=2, help='between the seeds; even ones are for choosing')
    add('--rigs', type=int, default=4, help='pairs of rigs, each on a random map of its own')
    add('--sizes', type=int, nargs='+', default=[100, 400], help='images of the maps')
    add('--same', action='store_true', help='test with the rig of the map')
    add('--section', help='name of the section of benchmarks/README.md to replace')
    options = parser.parse_args(arguments)
    last = options.first + options.step * options.buildings
    buildings = range(options.first, last, options.step)
    rows: list[list[Any]] = []
    with open_workers(None) as workers:
        for index, found in workers.run(of_building, [(b, options) for b in buildings]):
            rows += rows_of(buildings[index], options.sizes, found)
    text = f'{TITLE}\n\n{results.table(COLUMNS, sorted(rows))}'
    results.publish(text, options.section)


if __name__ == '__main__':
    main()
