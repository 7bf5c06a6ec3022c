"""
Drives of real robots, recorded with true poses but without images, in rendered rooms.

MRCLAM, sessions 6 and 7 (Leung, Halpern, Barfoot and Liu, IJRR 2011): five iRobot Creates in a
hall, about 70 commanded velocities per second, poses by motion capture. The corridor of the TUC
SLAM dataset (Neubert, Schubert and Protzel, RA-L 2019): 170 m back and forth, ten velocities per
second. A hall or corridor is rendered around the true paths, at one image per second.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from kbr_localization import se2
from kbr_localization.datasets.frame import OdometryTrack
from kbr_localization.se2 import FloatArray
from kbr_localization.simulation.floor_plan import CELL, draw_plan, FloorPlan
from kbr_localization.simulation.run import (
    BuildingConfig,
    RunConfig,
    SyntheticBuilding,
    SyntheticRun,
)
import numpy as np
from scipy.spatial import cKDTree

STEP_NS = 50_000_000
"""Time between the poses of a rendered drive."""
MARGIN_M, EDGE_S = 1.2, 0.5
HALF_WIDTH_M, WALL_M, JOIN_M = 1.1, 2.0, 0.5
"""Corridor: free space on either side of the path, wall around it, distance of joined places."""
MAPPED_S = 1100.0
"""Mapped part of the corridor drive: the first half is rendered cloudy, the second sunny."""
MapAndTests = tuple[list[SyntheticRun], dict[str, SyntheticRun]]
"""Runs to build the map from, and test runs by name."""


@dataclass(frozen=True)
class Recorded:
    """A drive: true poses (m, 3) and odometry poses (m, 3), `STEP_NS` apart."""

    truth: FloatArray
    odometry: FloatArray

    def run(
        self, building: SyntheticBuilding, origin: FloatArray, seed: int, light: str = 'cloudy'
    ) -> SyntheticRun:
        """Render the drive in a building; `origin` (2,): the origin of the true poses in it."""
        poses = self.truth + np.array([*origin, 0.0])
        config = RunConfig(f'drive {seed}', people=0, frame_rate=1.0, seed=seed, light=light)
        run = SyntheticRun(building, config, poses)
        stamps_ns = run.odometry.stamps_ns[: len(self.odometry)]
        run.odometry = OdometryTrack(stamps_ns, self.odometry)
        return run


def hall(folder: Path) -> MapAndTests:
    """Render a hall around both sessions, the first for the map and the second for the tests."""
    mapping, testing = (
        [_robot(folder / f'MRCLAM_Dataset{number}', f'Robot{robot}') for robot in range(1, 6)]
        for number in (6, 7)
    )
    places = np.concatenate([robot.truth[:, :2] for robot in (*mapping, *testing)])
    low = places.min(axis=0) - MARGIN_M
    width, height = np.ceil(places.max(axis=0) + MARGIN_M - low).tolist()
    corners = ((MARGIN_M, MARGIN_M), (width - MARGIN_M, height - MARGIN_M))
    plan = draw_plan(width, height, [(0, 0, width, height, 'hall', 3.0)], [corners])
    config = BuildingConfig(seed=1, furniture=0.3)
    building, origin = SyntheticBuilding(config, plan), CELL - low
    training = [robot.run(building, origin, number) for number, robot in enumerate(mapping)]
    tests = [robot.run(building, origin, number) for number, robot in enumerate(testing, 100)]
    return training, {f'robot {number}': run for number, run in enumerate(tests, 1)}


def _robot(folder: Path, name: str) -> Recorded:
    truth, speeds = (
        lines[np.concatenate([[True], np.diff(lines[:, 0]) > 0.0])]
        for lines in (np.loadtxt(folder / f'{name}_{w}.dat') for w in ('Groundtruth', 'Odometry'))
    )
    start = max(truth[0, 0], speeds[0, 0]) + EDGE_S
    end = min(truth[-1, 0], speeds[-1, 0]) - EDGE_S
    # a velocity holds until the next one, for 0.01 s, in which an arc is nearly its chord
    turns, metres = np.diff(speeds[:, 0]) * speeds[:-1, [2, 1]].T
    steps = (metres * np.cos(0.5 * turns), metres * np.sin(0.5 * turns), turns)
    poses = se2.chain(np.zeros(3), np.stack(steps, axis=1))
    return _resample(truth, np.column_stack([speeds[:, 0], poses]), start, end)


def _resample(truth: FloatArray, odometry: FloatArray, start: float, end: float) -> Recorded:
    """Interpolate both tracks (n, 4), seconds and poses, at the same times."""
    times = np.arange(0, round((end - start) * 1e9), STEP_NS)
    tracks = (
        se2.interpolate(np.rint((track[:, 0] - start) * 1e9).astype(np.int64), track[:, 1:], times)
        for track in (truth, odometry)
    )
    return Recorded(*tracks)


def corridor(name: str) -> MapAndTests:
    """Render the corridor; `name`: path of the files without _GT.txt and _Input.txt."""
    headings, places = (
        _columns(f'{name}_GT.txt', 'angle', 2),
        _columns(f'{name}_GT.txt', 'point2', 3),
    )
    truth = np.column_stack([places, headings[:, 1]])
    speeds = _columns(f'{name}_Input.txt', 'odom2', 4)
    steps = speeds[:-1, 1:] * np.diff(speeds[:, 0])[:, np.newaxis]
    odometry = np.column_stack([speeds[:, 0], se2.chain(np.zeros(3), steps)])
    ends = (0.0, 0.5 * MAPPED_S, MAPPED_S, min(truth[-1, 0], odometry[-1, 0]))
    parts = [_resample(truth, odometry, ends[number], ends[number + 1]) for number in range(3)]
    plan, origin = _plan_corridor(np.concatenate([part.truth[:, :2] for part in parts]))
    building = SyntheticBuilding(BuildingConfig(seed=1), plan)
    lights = ('cloudy', 'sunny', 'night')
    runs = [
        part.run(building, origin, number, light)
        for number, (part, light) in enumerate(zip(parts, lights, strict=True))
    ]
    return runs[:2], {'night': runs[2]}


def _columns(path: str, kind: str, count: int) -> FloatArray:
    lines = [line.split() for line in Path(path).read_text(encoding='utf-8').splitlines()]
    cells = slice(1, 1 + count)
    return np.array([[float(c) for c in line[cells]] for line in lines if line[:1] == [kind]])


def _plan_corridor(places: FloatArray) -> tuple[FloorPlan, FloatArray]:
    """Return the plan of a corridor around places (n, 2), and the origin (2,) of these in it."""
    low = places.min(axis=0) - WALL_M
    width, height = np.ceil(places.max(axis=0) + WALL_M - low).tolist()
    x, y = np.meshgrid(np.arange(0.0, width, CELL), np.arange(0.0, height, CELL))
    cells = np.column_stack([x.ravel(), y.ravel()])
    distance, _ = cKDTree(places - low).query(cells + 0.5 * CELL)
    blocks = [(left, lower, CELL, CELL) for left, lower in cells[distance > HALF_WIDTH_M].tolist()]
    further = np.hypot(*(places - places[0]).T) > JOIN_M
    start, end = (places[[0, int(np.argmax(further))]] - low).tolist()
    rooms, ways = [(0, 0, width, height, 'corridor', 3.0)], [((*start,), (*end,))]
    built = draw_plan(width, height, rooms, ways, blocks=blocks)
    return replace(built, lamps=built.lamps[built.is_free(built.lamps)]), CELL - low
