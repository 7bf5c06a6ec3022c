"""Ways through a building, a robot that follows them, and what its wheels report."""

from __future__ import annotations

from dataclasses import dataclass
import math

from kbr_localization import se2
from kbr_localization.datasets.frame import OdometryTrack
from kbr_localization.datasets.odometry_noise import (
    OdometryNoise,
    random_origin,
    reported_steps,
)
from kbr_localization.se2 import FloatArray
from kbr_localization.simulation.floor_plan import FloorPlan
import numpy as np
from numpy.typing import NDArray

RATE = 20  # poses per second of a drive, as COLD's odometry has
STEP_NS = 10**9 // RATE
REST = 10  # poses at rest before and after a drive
FINE = 0.02  # metres between the points of a path that is followed
LOOK_AHEAD = 0.6  # metres between the robot and the point that it steers to


@dataclass(frozen=True)
class Drive:
    """True poses (m, 3) at 20 Hz from time 0 on."""

    poses: FloatArray

    @property
    def stamps_ns(self) -> se2.StampArray:
        """Return the times (m,) in nanoseconds since the start of the drive."""
        return np.arange(len(self.poses), dtype=np.int64) * STEP_NS

    @property
    def length(self) -> float:
        """Metres driven."""
        return float(np.hypot(*np.diff(self.poses[:, :2], axis=0).T).sum())

    def at(self, stamps_ns: se2.StampArray) -> FloatArray:
        """Poses (q, 3) at times within the drive."""
        return se2.interpolate(self.stamps_ns, self.poses, stamps_ns)


def random_walk(plan: FloorPlan, length: float, rng: np.random.Generator) -> list[int]:
    """Nodes of a way of at least `length` metres that turns back in dead ends only."""
    neighbours = _neighbours(plan)
    nodes = [int(rng.integers(len(plan.nodes)))]
    covered = 0.0
    while covered < length:
        onward = [node for node in neighbours[nodes[-1]] if node not in nodes[-2:-1]]
        nodes.append(int(rng.choice(onward or neighbours[nodes[-1]])))
        covered += float(np.hypot(*(plan.nodes[nodes[-1]] - plan.nodes[nodes[-2]])))
    return nodes


def tour(plan: FloorPlan, rng: np.random.Generator) -> list[int]:
    """
    Nodes of a closed way that takes every edge once in each direction.

    Such a way exists in any connected plan (every node has as many ways in as out); it is found
    by Hierholzer's algorithm.
    """
    untaken = {node: rng.permutation(ways).tolist() for node, ways in _neighbours(plan).items()}
    trail, way = [int(rng.integers(len(plan.nodes)))], []
    while trail:
        onward = untaken[trail[-1]]
        if not onward:
            way.append(trail.pop())
            continue
        ahead = [node for node in onward if node not in trail[-2:-1]]
        chosen = (ahead or onward)[0]
        onward.remove(chosen)
        trail.append(chosen)
    return way[::-1]


def follow(
    plan: FloorPlan, nodes: list[int], speed: float, wander: float, rng: np.random.Generator
) -> Drive:
    """
    Drive along nodes at up to `speed` m/s, off the line by about `wander` metres.

    The robot steers to a point ahead of it (pure pursuit), slows down in turns and turns on the
    spot where it has to; accelerations are limited.
    """
    path = _fine_path(plan, nodes, wander, rng)
    last, first = len(path) - 1, path[min(len(path) - 1, round(LOOK_AHEAD / FINE))] - path[0]
    x, y, heading = float(path[0, 0]), float(path[0, 1]), math.atan2(first[1], first[0])
    poses, target, speed_now, turn_now = [(x, y, heading)] * REST, 0, 0.0, 0.0
    while target < last or speed_now > 0.05:
        while target < last and math.hypot(path[target, 0] - x, path[target, 1] - y) < LOOK_AHEAD:
            target += 1
        ahead, aside = float(path[target, 0]) - x, float(path[target, 1]) - y
        distance = math.hypot(ahead, aside)
        error = math.remainder(math.atan2(aside, ahead) - heading, 2 * math.pi)
        wanted = speed * max(0.0, 1.0 - abs(error) / 0.9)
        if target == last:
            wanted = min(wanted, distance) if distance > 0.1 else 0.0
        turn = max(-1.0, min(1.0, 2.0 * error)) if distance > 0.1 else 0.0
        speed_now = _limited(speed_now, wanted, 0.8 / RATE)
        turn_now = _limited(turn_now, turn, 4.0 / RATE)
        # along an arc, by its chord
        step, middle = speed_now / RATE, heading + turn_now / RATE / 2
        x, y = x + step * math.cos(middle), y + step * math.sin(middle)
        heading += turn_now / RATE
        poses.append((x, y, heading))
    poses.extend([poses[-1]] * REST)
    result = np.array(poses)
    result[:, 2] = se2.wrap_angle(result[:, 2])
    return Drive(result)


def measure(drive: Drive, noise: OdometryNoise, rng: np.random.Generator) -> OdometryTrack:
    """
    Odometry of a drive from a random origin, with the errors of the wheels.

    Its poses are of the wheels' point, which may be offset from the point of the true poses.
    """
    steps = se2.between(drive.poses[:-1], drive.poses[1:])
    reported = reported_steps(steps, STEP_NS, noise, rng)
    return OdometryTrack(drive.stamps_ns, se2.chain(random_origin(rng), reported))


def turn_rates(drive: Drive) -> FloatArray:
    """Turn rates (m,) in rad/s, the central difference over two steps."""
    turns = se2.wrap_angle(np.diff(drive.poses[:, 2]))
    padded = np.concatenate([[0.0], turns, [0.0]])
    return np.asarray((padded[:-1] + padded[1:]) * (RATE / 2))


def path_of(
    plan: FloorPlan, nodes: list[int], offset: float
) -> tuple[FloatArray, NDArray[np.float64]]:
    """Corners (k, 2) of a way that keeps `offset` metres to the right, and metres to each."""
    corners = plan.nodes[nodes]
    steps = np.diff(corners, axis=0)
    lengths = np.hypot(*steps.T)
    right = np.stack([steps[:, 1], -steps[:, 0]], axis=1) / lengths[:, np.newaxis]
    begin, end = corners[:-1] + offset * right, corners[1:] + offset * right
    points = np.stack([begin, end], axis=1).reshape(-1, 2)
    metres = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(points, axis=0).T))])
    return points, metres


def _neighbours(plan: FloorPlan) -> dict[int, list[int]]:
    neighbours: dict[int, list[int]] = {node: [] for node in range(len(plan.nodes))}
    for a, b in plan.edges.tolist():
        neighbours[a].append(b)
        neighbours[b].append(a)
    return neighbours


def _fine_path(
    plan: FloorPlan, nodes: list[int], wander: float, rng: np.random.Generator
) -> FloatArray:
    corners, metres = path_of(plan, nodes, 0.0)
    at = np.arange(0.0, metres[-1] + FINE, FINE)
    path = np.stack([np.interp(at, metres, corners[:, axis]) for axis in (0, 1)], axis=1)
    knots = rng.normal(0, wander, (2, int(metres[-1] / 3.0) + 2))
    shift = [np.interp(at / 3.0, np.arange(line.size), line) for line in knots]
    shifted: FloatArray = path + np.clip(np.stack(shift, axis=1), -2 * wander, 2 * wander)
    return shifted


def _limited(value: float, wanted: float, step: float) -> float:
    return max(value - step, min(value + step, wanted))
