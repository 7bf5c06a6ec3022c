"""From the nodes of a graph to all images: their poses and how certain these are."""

from __future__ import annotations

from kbr_localization import se2
from kbr_localization.localization.mapping.graph import Solution
from kbr_localization.localization.mapping.problem import Problem
from kbr_localization.localization.mapping.trajectories import Indices, Trajectories
from kbr_localization.localization.mapping.wheels import ROBOT, SCALE
from kbr_localization.se2 import FloatArray
import numpy as np

_SAMPLED = 250  # nodes whose covariance is computed; those between are interpolated


def covariances(problem: Problem, solution: Solution) -> tuple[FloatArray, FloatArray]:
    """
    Covariances (n, 3, 3) of all images about the best rigid alignment of the whole.

    Where some are fixed, of the others against these. Also deviations (3,) of the last node
    against the first.
    """
    trajectories, anchors = problem.trajectories, problem.anchors
    free = np.flatnonzero(~trajectories.fixed[trajectories.piece[anchors]])
    sampled = free[np.unique(np.linspace(0, len(free) - 1, _SAMPLED).astype(np.intp))]
    joint = solution.covariances(sampled)
    joint = joint + _of_constants(problem, solution.poses[sampled])
    if len(problem.known.nodes):
        k = np.arange(len(sampled))
        aligned = joint.reshape(len(k), 3, len(k), 3)[k, :, k]
    else:
        aligned = _about_alignment(joint, solution.poses[sampled])
    growth = np.sqrt(np.maximum(np.diag(joint[-3:, -3:]), 0.0))
    return _interpolated(problem.trajectories, anchors[sampled], aligned), growth


def _of_constants(problem: Problem, poses: FloatArray) -> FloatArray:
    """
    Covariance (3 k, 3 k) by what closures tell nothing about, or too little to rely on.

    That is the scale of all metres, unless poses are known, and the offset of the odometry's
    point: places that are shown again are seen from the same side.
    """
    total = np.zeros((3 * len(poses), 3 * len(poses)))
    changes = []
    if len(problem.known.nodes) < 2:
        changes.append(ROBOT[SCALE] * (poses - poses[0]) * np.array([1.0, 1.0, 0.0]))
    for axis, offset in enumerate(problem.belief.deviations[:2]):
        way = poses[:, 2] + 0.5 * np.pi * axis
        changes.append(offset * np.stack([np.cos(way), np.sin(way), 0.0 * way], axis=1))
    for change in changes:
        total += np.outer(change, change)
    return total


def poses_of_images(
    trajectories: Trajectories, anchors: Indices, solution: Solution
) -> FloatArray:
    """Poses (n, 3) of all images: the odometry between nodes, what it misses spread evenly."""
    key = trajectories.way + 2.0 * (trajectories.way.max() + 1.0) * trajectories.piece
    known = key[anchors]
    before = np.clip(np.searchsorted(known, key, side='right') - 1, 0, len(known) - 1)
    after = np.minimum(before + 1, len(known) - 1)
    after = np.where(trajectories.piece[anchors[after]] == trajectories.piece, after, before)
    result = se2.compose(
        solution.poses[before],
        se2.between(trajectories.odometry[anchors[before]], trajectories.odometry),
    )
    ends = se2.compose(
        solution.poses[before],
        se2.between(trajectories.odometry[anchors[before]], trajectories.odometry[anchors[after]]),
    )
    missed = solution.poses[after] - ends
    missed[:, 2] = se2.wrap_angle(missed[:, 2])
    span = known[after] - known[before]
    share = np.where(span > 0.0, (key - known[before]) / np.maximum(span, 1e-9), 0.0)
    result = result + np.clip(share, 0.0, 1.0)[:, np.newaxis] * missed
    result[:, 2] = se2.wrap_angle(result[:, 2])
    return np.asarray(result)


def _about_alignment(joint: FloatArray, poses: FloatArray) -> FloatArray:
    """
    Covariances (k, 3, 3) of poses once the best rigid motion of all of them is taken out.

    With T (3 k, 3) the poses' change by a motion of the whole, T (T^T T)^-1 T^T is what an
    alignment of the positions takes away.
    """
    k = len(poses)
    centre = poses[:, :2].mean(axis=0)
    motion = np.zeros((k, 3, 3))
    motion[:, 0, 0] = motion[:, 1, 1] = motion[:, 2, 2] = 1.0
    motion[:, 0, 2] = -(poses[:, 1] - centre[1])
    motion[:, 1, 2] = poses[:, 0] - centre[0]
    tangent = motion.reshape(3 * k, 3)
    positions = tangent.copy()
    positions[2::3] = 0.0
    normal = positions.T @ positions
    if np.linalg.cond(normal) > 1e12:
        blocks = joint.reshape(k, 3, k, 3)
        return np.asarray(blocks[np.arange(k), :, np.arange(k)])
    project = np.eye(3 * k) - tangent @ np.linalg.solve(normal, positions.T)
    left = (project @ joint @ project.T).reshape(k, 3, k, 3)
    return np.asarray(left[np.arange(k), :, np.arange(k)])


def _interpolated(
    trajectories: Trajectories, nodes: Indices, covariances: FloatArray
) -> FloatArray:
    """Covariances (n, 3, 3) of all images from those of some along the way."""
    at = np.arange(len(trajectories), dtype=np.float64)
    flat = covariances.reshape(len(nodes), 9)
    columns = [np.interp(at, nodes, flat[:, column]) for column in range(9)]
    return np.stack(columns, axis=1).reshape(-1, 3, 3)
