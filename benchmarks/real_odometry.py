"""
The odometry of real robots: `python -m benchmarks.real_odometry MRCLAM_Dataset6 MRCLAM_Dataset7`.

The folders are sessions of the UTIAS Multi-Robot Cooperative Localization and Mapping dataset
(Leung, Halpern, Barfoot and Liu, IJRR 2011): for each robot, an iRobot Create, the velocities that
were commanded, some 70 a second, and its poses by motion capture. It has no images, so a room is
rendered about the true paths and seen from them once a second. All robots of the first session
make the map, those of the second drive on it from a global start. Each does so twice by the same
images: with its odometry, and with one of the true motion and the usual noise that is told to have
no systematic errors. Errors are means over the frames after which both are localized.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
import sys
from typing import Any

from benchmarks import results, workload
from benchmarks.rigs import compared, Driven, on_wheels, Tour
from kbr_localization import se2
from kbr_localization.datasets.frame import OdometryTrack
from kbr_localization.datasets.odometry_noise import OdometryNoise, STEP_NS
from kbr_localization.evaluation.described import DescribedRun, on_described_run
from kbr_localization.evaluation.protocol import random_map, Task
from kbr_localization.localization.kbr.leave_out import with_statistics
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.se2 import FloatArray
from kbr_localization.simulation import (
    BuildingConfig,
    CELL,
    Drive,
    FloorPlan,
    PlanBuilder,
    RunConfig,
    SyntheticBuilding,
    SyntheticRun,
)
from kbr_localization.workers import open_workers
import numpy as np

_MARGIN = 1.2  # m of room beyond the paths
_EDGE_S = 0.5  # left out at both ends, where only one of the two was recorded
_FAULTLESS = OdometryNoise(yaw_bias=0.0)
WAYS = ('real', 'perfect')


@dataclass(frozen=True)
class Recorded:
    """A robot of a session: true poses (m, 3) and those of its odometry, `STEP_NS` apart."""

    name: str
    truth: FloatArray
    odometry: FloatArray

    @staticmethod
    def read(folder: Path, robot: str) -> Recorded:
        """Read the files of a robot, as `Robot1`."""
        truth = _increasing(np.loadtxt(folder / f'{robot}_Groundtruth.dat'))
        told = _increasing(np.loadtxt(folder / f'{robot}_Odometry.dat'))
        start = max(truth[0, 0], told[0, 0]) + _EDGE_S
        end = min(truth[-1, 0], told[-1, 0]) - _EDGE_S
        steps_ns = np.arange(0, round((end - start) * 1e9), STEP_NS)
        # a velocity holds until the next one; within 0.01 s an arc is its chord
        turns, metres = np.diff(told[:, 0]) * told[:-1, [2, 1]].T
        sides = (metres * np.cos(0.5 * turns), metres * np.sin(0.5 * turns), turns)
        poses = se2.chain(np.zeros(3), np.stack(sides, axis=1))
        return Recorded(
            f'{folder.name} {robot}',
            se2.interpolate(nanoseconds(truth, start), truth[:, 1:], steps_ns),
            se2.interpolate(nanoseconds(told, start), poses, steps_ns),
        )

    def run(
        self, building: SyntheticBuilding, origin: FloatArray, seed: int, light: str = 'cloudy'
    ) -> SyntheticRun:
        """Drive through a building, in which the truth's origin is at a point (2,)."""
        poses = self.truth + np.array([*origin, 0.0])
        config = RunConfig(self.name, people=0, frame_rate=1.0, seed=seed, light=light)
        run = SyntheticRun(building, config, Drive(poses))
        stamps_ns = run.odometry.stamps_ns[: len(self.odometry)]
        run.odometry = OdometryTrack(stamps_ns, self.odometry)
        return run


def _increasing(lines: FloatArray) -> FloatArray:
    return np.asarray(lines[np.concatenate([[True], np.diff(lines[:, 0]) > 0.0])])


def nanoseconds(lines: FloatArray, start: float = 0.0) -> se2.StampArray:
    """Return the stamps (n,) of lines (n, k) that begin with seconds, from `start` seconds on."""
    return np.rint((lines[:, 0] - start) * 1e9).astype(np.int64)


def session(folder: Path) -> list[Recorded]:
    """Read all robots of a session."""
    names = sorted(path.name.split('_')[0] for path in folder.glob('Robot*_Groundtruth.dat'))
    if not names:
        raise SystemExit(f'real_odometry: no Robot1_Groundtruth.dat in {folder}: give a session')
    return [Recorded.read(folder, name) for name in names]


def room_about(robots: Sequence[Recorded]) -> tuple[FloorPlan, FloatArray]:
    """Plan a room about all paths, and say where in it the origin of their poses lies (2,)."""
    places = np.concatenate([robot.truth[:, :2] for robot in robots])
    low = places.min(axis=0) - _MARGIN
    width, height = np.ceil(places.max(axis=0) + _MARGIN - low).tolist()
    plan = PlanBuilder(width, height)
    plan.room(0, 0, width, height, 'hall')
    plan.edge(plan.node(_MARGIN, _MARGIN), plan.node(width - _MARGIN, height - _MARGIN))
    return plan.build(), CELL - low


@dataclass(frozen=True)
class Job:
    """
    A robot that drives on a random map of a size.

    `kernel_map`: with all images, for its `run`. `mapping`, `driving`: what faultless wheels would
    have reported on.
    """

    robot: int
    size: int
    trial: int
    kernel_map: KernelMap
    run: DescribedRun
    mapping: tuple[Tour, ...]
    driving: Tour


def driven(job: Job) -> dict[str, Driven] | None:
    """Errors by way of driving, None where one of them did not localize."""
    small = with_statistics(random_map(job.kernel_map, Task('kbr', job.size, job.trial), 0))
    tracks = [
        (tour.reported(_FAULTLESS, [job.trial, number]), tour.references)
        for number, tour in enumerate(job.mapping)
    ]
    told = job.driving.reported(_FAULTLESS, [job.trial, job.robot, len(tracks)])
    perfect = on_wheels(small, tracks, job.run, told, 'off')
    return compared({'real': (small, job.run), 'perfect': perfect}, job.trial)


def jobs_of(options: argparse.Namespace) -> list[Job]:
    """Render both sessions, describe their images once, and list what is to be driven."""
    robots, others = session(options.mapping), session(options.test)
    plan, origin = room_about([*robots, *others])
    config = BuildingConfig(kind='hall', seed=options.room, furniture=0.3)
    building = SyntheticBuilding(config, plan)
    training = [robot.run(building, origin, number) for number, robot in enumerate(robots)]
    test = [robot.run(building, origin, number) for number, robot in enumerate(others, 100)]
    kernel_map, runs = workload.described(training, test, 0)
    maps = [replace(on_described_run(kernel_map, run), thumbnails=()) for run in runs]
    mapping, driving = tuple(Tour.of(run) for run in training), [Tour.of(run) for run in test]
    return [
        Job(number, size, trial, maps[number], run, mapping, driving[number])
        for size in options.sizes
        for trial in range(options.trials)
        for number, run in enumerate(runs)
    ]


def rows_of(found: Sequence[tuple[Job, dict[str, Driven] | None]]) -> list[list[Any]]:
    """One row for each size: errors, their ratio, coverage."""
    rows: list[list[Any]] = []
    for size in sorted({job.size for job, _ in found}):
        here = [one for job, one in found if job.size == size and one is not None]
        drives = sum(job.size == size for job, _ in found)
        if here:
            means = [[(one[way].error, one[way].covered) for way in WAYS] for one in here]
            (real, covered), (perfect, by_perfect) = np.mean(means, axis=0).tolist()
            least = min(one['real'].covered for one in here)
            errors = [real, perfect, real / perfect]
            told = [(one['real'].said, one['real'].wrong) for one in here]
            said, wrong = np.nanmean(told, axis=0).tolist()
            inside = [covered, least, by_perfect]
            rows.append([size, drives, drives - len(here), *errors, *inside, said, wrong])
    return rows


COLUMNS = ['images', 'drives', 'not localized', 'real m', 'perfect m', 'real / perfect']
COLUMNS += ['2 sigma real', 'least of a drive', '2 sigma perfect', 'said', 'wrong']
TITLE = """### The odometry of real robots

Means over the robots of a session of MRCLAM on random maps of the images of another session, from
a global start in a rendered room; metres. *2 sigma*: fraction of the truths inside; *said*: of the
right frames, called localized; *wrong*: of those called localized after 5 m, over a metre off."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all robots and print the table, into the page too when a section is named."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    add = parser.add_argument
    add('mapping', type=Path, help='folder of the session whose robots make the map')
    add('test', type=Path, help='folder of the session whose robots drive')
    add('--sizes', type=int, nargs='+', default=[100, 200, 400, 800], help='images of the maps')
    add('--trials', type=int, default=2, help='random maps of each size for every robot')
    add('--room', type=int, default=1, help='seed of the room')
    add('--section', help='name of the section of benchmarks/README.md to replace')
    options = parser.parse_args(arguments)
    jobs = jobs_of(options)
    found: list[tuple[Job, dict[str, Driven] | None]] = []
    with open_workers(None) as workers:
        for index, one in workers.run(driven, jobs):
            print(f'{len(found) + 1} of {len(jobs)}', file=sys.stderr, flush=True)
            found.append((jobs[index], one))
    results.publish(f'{TITLE}\n\n{results.table(COLUMNS, rows_of(found))}', options.section)


if __name__ == '__main__':
    main()
