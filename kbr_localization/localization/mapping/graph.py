"""
The pose graph: poses of anchors and the errors of each run's odometry, by least squares.

Unknown are the poses x_a of the anchors and, for each run r, the parameters p_r of its odometry
(see `wheels`). Between neighbouring anchors of a piece the motion is u + S p_r with noise Q, a
closure says z with covariance C; for each of these, with e = z^-1 (x_i^-1 x_j),

    sum of e^T W e  +  sum_r |p_r - p|^2 / run^2  +  |p|^2 / robot^2  +  known poses

is made least, p being what the runs have in common, by Gauss and Newton (see `bordered`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kbr_localization import se2
from kbr_localization.errors import MapError
from kbr_localization.localization.mapping.bordered import (
    Bordered,
    NormalEquations,
    UNRELATED,
)
from kbr_localization.localization.mapping.trajectories import Indices, Trajectories
from kbr_localization.localization.mapping.wheels import (
    Belief,
    jacobians,
    PARAMETERS,
    RUN,
    SCALE,
)
from kbr_localization.localization.motion import MotionNoise
from kbr_localization.se2 import FloatArray
import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

_ROUNDS = 30
_SETTLED = 1e-4  # metres and radians of the last round
_FLOOR = np.full(3, 1e-6)  # variances of a step, so that a standing robot has some


@dataclass(frozen=True)
class Edges:
    """
    Relations of pairs of nodes.

    `start`, `end`: (m,) nodes. `relative`: (m, 3) pose of the end in the frame of the start.
    `information`: (m, 3, 3). `effects`: (m, 3, 6) of the parameters on the relation, of `run`
    (m,), or None.
    """

    start: Indices
    end: Indices
    relative: FloatArray
    information: FloatArray
    effects: FloatArray | None = None
    run: Indices | None = None

    def errors(self, poses: FloatArray, parameters: FloatArray) -> FloatArray:
        """Tell what (m, 3) relations miss at poses (n, 3), in the frame of where they lead."""
        return se2.between(
            self.expected(parameters), se2.between(poses[self.start], poses[self.end])
        )

    def expected(self, parameters: FloatArray) -> FloatArray:
        """Relations (m, 3) under parameters (runs, 6)."""
        if self.effects is None or self.run is None:
            return self.relative
        change = np.einsum('mij,mj->mi', self.effects, parameters[self.run])
        return np.asarray(self.relative + change)


@dataclass(frozen=True)
class Known:
    """Nodes (k,) whose poses (k, 3) are known with deviations (k, 3)."""

    nodes: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    poses: FloatArray = field(default_factory=lambda: np.zeros((0, 3)))
    deviations: FloatArray = field(default_factory=lambda: np.zeros((0, 3)))


@dataclass(frozen=True)
class Solution:
    """
    Poses (n, 3) of the nodes, parameters (runs, 6), and what is needed for their covariances.

    `common`: (6,) parameters that the runs have in common. `factor`: of the normal equations,
    whose first unknowns are those of the nodes.
    """

    poses: FloatArray
    parameters: FloatArray
    common: FloatArray
    factor: Bordered

    def relations(self, start: Indices, end: Indices) -> FloatArray:
        """Covariances (m, 3, 3) of what relations between nodes (m,) and (m,) miss."""
        slope = np.concatenate(_by_ends(self.poses[start], self.poses[end], self.poses[end, 2]), 2)
        columns = 3 * np.stack([start, end], axis=1)[:, :, np.newaxis] + np.arange(3)
        return self.factor.covariances(columns.reshape(-1, 6), slope)

    def of_common(self) -> FloatArray:
        """Covariance (6, 6) of the parameters of another run of that robot."""
        last = self.factor.of_border()[-PARAMETERS:, -PARAMETERS:]
        return np.asarray(last + np.diag(RUN**2))

    def covariances(self, nodes: Indices) -> FloatArray:
        """Joint covariance (3 k, 3 k) of some nodes, with the gauge that the solution has."""
        rows = (3 * nodes[:, np.newaxis] + np.arange(3)).ravel()
        unit = np.zeros((3 * len(self.poses), len(rows)))
        unit[rows, np.arange(len(rows))] = 1.0
        return np.asarray(self.factor.solve(unit)[rows])


def odometry_edges(
    trajectories: Trajectories, anchors: Indices, noise: MotionNoise, nodes: Indices
) -> Edges:
    """Relate anchors (a,), which are certain nodes (a,), that follow each other on a piece."""
    start = np.flatnonzero(np.diff(trajectories.piece[anchors]) == 0)
    found = [_leg(trajectories, int(anchors[a]), int(anchors[a + 1]), noise) for a in start]
    relative = np.array([leg[0] for leg in found]).reshape(-1, 3)
    effects = np.array([leg[1] for leg in found]).reshape(-1, 3, PARAMETERS)
    covariance = np.array([leg[2] for leg in found]).reshape(-1, 3, 3)
    run = trajectories.run[anchors[start]]
    information = np.linalg.inv(covariance)
    return Edges(nodes[start], nodes[start + 1], relative, information, effects, run)


def _leg(
    trajectories: Trajectories, first: int, last: int, noise: MotionNoise
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Motion (3,), its change (3, 6) by the parameters and its covariance over some images."""
    path = trajectories.odometry[slice(first, last + 1)]
    steps = se2.between(path[:-1], path[1:])
    onward = se2.between(path[1:], path[-1])  # from the end of each step
    carry = se2.adjoint(se2.inverse(onward))
    effects = np.einsum('mij,mjl,mlk->ik', carry, se2.rotation(-steps[:, 2]), jacobians(steps))
    spread = noise.variances(steps) + _FLOOR
    covariance = np.einsum('mij,mj,mkj->ik', carry, spread, carry)
    # what a change of the last frame does to the motion, seen from the first one
    turn = path[-1, 2] - path[0, 2]
    whole = se2.rotation(turn)
    return se2.between(path[0], path[-1]), whole @ effects, covariance


def solve(
    poses: FloatArray,
    parameters: FloatArray,
    edges: Sequence[Edges],
    known: Known | None = None,
    rounds: int = _ROUNDS,
    belief: Belief | None = None,
) -> Solution:
    """
    Find the poses (n, 3) and parameters (runs, 6) from a first guess, in up to so many rounds.

    `belief`: what is known of the parameters that the runs have in common, else that of any robot.

    Without known poses the first node stays where it is. Raises MapError for nodes that nothing
    relates to it, or to any known pose.
    """
    poses, parameters = poses.copy(), parameters.copy()
    common = parameters.mean(axis=0)
    given = known if known is not None and len(known.nodes) else _first_stays(poses)
    _refuse_unrelated(len(poses), edges, given)
    prior = belief or Belief.unknown()
    for _ in range(rounds):
        system = _normal_equations(poses, parameters, common, edges, given, prior)
        factor = system.factor()
        change = factor.step(system.right)
        poses = poses + change[: 3 * len(poses)].reshape(-1, 3)
        poses[:, 2] = se2.wrap_angle(poses[:, 2])
        first = 3 * len(poses)
        rest = change[first:].reshape(-1, PARAMETERS)
        parameters, common = parameters + rest[:-1], common + rest[-1]
        if np.abs(change).max() < _SETTLED:
            break
    return Solution(poses, parameters, common, factor)


def _refuse_unrelated(nodes: int, edges: Sequence[Edges], known: Known) -> None:
    """Raise MapError where no way leads to a known pose: rounding hides that in a factor."""
    ground = np.full(len(known.nodes), nodes)
    start = np.concatenate([known.nodes, *(group.start for group in edges)])
    end = np.concatenate([ground, *(group.end for group in edges)])
    related = sparse.coo_matrix((np.ones(len(start)), (start, end)), shape=(nodes + 1, nodes + 1))
    if csgraph.connected_components(related, directed=False)[0] > 1:
        raise MapError(UNRELATED)


def _first_stays(poses: FloatArray) -> Known:
    return Known(np.zeros(1, dtype=np.intp), poses[:1], np.full((1, 3), 1e-4))


def _normal_equations(
    poses: FloatArray,
    parameters: FloatArray,
    common: FloatArray,
    edges: Sequence[Edges],
    known: Known,
    belief: Belief,
) -> NormalEquations:
    """J^T W J and -J^T W e of all unknowns: nodes, the runs' parameters, what these share."""
    n, runs = len(poses), len(parameters)
    size = 3 * n + PARAMETERS * (runs + 1)
    system = NormalEquations(size, 3 * n)
    for group in edges:
        error = group.errors(poses, parameters)
        at_start, at_end = _derivatives(group, poses, parameters)
        blocks = [(3 * group.start, at_start), (3 * group.end, at_end)]
        if group.effects is not None and group.run is not None:
            turned = se2.rotation(-group.expected(parameters)[:, 2])
            columns = 3 * n + PARAMETERS * group.run
            blocks.append((columns, -np.einsum('mij,mjk->mik', turned, group.effects)))
        system.add(error, group.information, blocks)
    offset = poses[known.nodes] - known.poses
    offset[:, 2] = se2.wrap_angle(offset[:, 2])
    eye = np.broadcast_to(np.eye(3), (len(offset), 3, 3))
    system.add(offset, eye / known.deviations[:, np.newaxis] ** 2, [(3 * known.nodes, eye)])
    same = np.broadcast_to(np.eye(PARAMETERS), (runs, PARAMETERS, PARAMETERS))
    first, last = 3 * n + PARAMETERS * np.arange(runs), np.full(runs, size - PARAMETERS)
    system.add(parameters - common, same / RUN**2, [(first, same), (last, -same)])
    robot, missed = belief.deviations.copy(), common - belief.mean
    if len(known.nodes) < 2:
        # without metres from elsewhere the scale would be chosen for small misses: it stays
        robot[SCALE], missed[SCALE] = 1e-6, common[SCALE]
    system.add(missed[np.newaxis], same[:1] / robot**2, [(last[:1], same[:1])])
    return system


def _derivatives(
    group: Edges, poses: FloatArray, parameters: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Differentiate: (m, 3, 3) of the errors by the poses of the starts and of the ends."""
    start, end = poses[group.start], poses[group.end]
    return _by_ends(start, end, start[:, 2] + group.expected(parameters)[:, 2])


def _by_ends(
    start: FloatArray, end: FloatArray, heading: FloatArray
) -> tuple[FloatArray, FloatArray]:
    at_end = se2.rotation(-heading)
    at_start = -at_end
    dx, dy = (end - start)[:, :2].T
    cosine, sine = np.cos(heading), np.sin(heading)
    at_start[:, 0, 2] = -sine * dx + cosine * dy
    at_start[:, 1, 2] = -cosine * dx - sine * dy
    return at_start, at_end
