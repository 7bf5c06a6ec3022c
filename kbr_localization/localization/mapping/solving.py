"""
Poses of all images from odometry and closures, and how certain they are.

How much closures count is taken from what they miss.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kbr_localization import se2
from kbr_localization.localization.calibration import Calibration
from kbr_localization.localization.mapping.closures import Closures
from kbr_localization.localization.mapping.consistency import REFINED
from kbr_localization.localization.mapping.graph import Solution
from kbr_localization.localization.mapping.marginals import covariances, poses_of_images
from kbr_localization.localization.mapping.problem import Problem
from kbr_localization.localization.mapping.trajectories import Indices, Trajectories
from kbr_localization.localization.mapping.wheels import AMONG_ALL, Belief, Prior, tracks
from kbr_localization.se2 import FloatArray
import numpy as np

_LEARNT_ROUNDS = 2
_TRUST_ROUNDS = 3


@dataclass(frozen=True)
class Solved:
    """
    Poses (n, 3) of all images and their covariances (n, 3, 3) about the best rigid alignment.

    `parameters`: (runs, 6) of the odometry; `common`: (6,) those of another run and their
    covariance (6, 6), in the metres of these runs. `closures`: all of the agreement; `kept`: (m,)
    which of them hold. `misses`: (m, 3) along, across and in heading. `deviation`: (2, 3) learnt
    of these, of closures that are not seen and of those that are. `growth`: deviations (3,) of
    the last image against the first, without alignment.
    """

    poses: FloatArray
    covariances: FloatArray
    parameters: FloatArray
    common: FloatArray
    of_common: FloatArray
    closures: Closures
    kept: np.ndarray
    misses: FloatArray
    deviation: FloatArray
    growth: FloatArray

    def calibration(self) -> Calibration:
        """Return the odometry's errors as the map has to know them; nothing tells those aside."""
        found = Calibration.unknown()
        found.values[AMONG_ALL] = self.common
        found.covariance[np.ix_(AMONG_ALL, AMONG_ALL)] = self.of_common
        return found


def first_guess(
    trajectories: Trajectories, closures: Closures, parameters: FloatArray
) -> tuple[FloatArray, np.ndarray]:
    """
    Poses (n, 3) by the odometry without its errors, pieces joined by their strongest chains.

    Also returns which images (n,) are joined to the first and largest of the pieces.
    """
    poses = tracks(trajectories, parameters)
    pieces = len(trajectories.run_of_piece)
    score = np.bincount(closures.chain, closures.score)
    order = np.argsort(-score[closures.chain], kind='stable')
    sizes = np.bincount(trajectories.piece, minlength=pieces)
    best: np.ndarray = np.zeros(pieces, dtype=bool)
    result = poses.copy()
    known = {int(piece): np.zeros(3) for piece in np.flatnonzero(trajectories.fixed)}
    for root in np.argsort(-sizes, kind='stable'):
        if best[root]:
            continue
        placed = dict(known) or {int(root): np.zeros(3)}
        _join(trajectories, closures, order, poses, placed)
        joined = np.zeros(pieces, dtype=bool)
        joined[list(placed)] = True
        if sizes[joined].sum() > sizes[best].sum():
            best = joined
            for piece, origin in placed.items():
                members = trajectories.members(piece)
                result[members] = se2.compose(origin, poses[members])
    return result, best[trajectories.piece]


def _join(
    trajectories: Trajectories,
    closures: Closures,
    order: Indices,
    poses: FloatArray,
    placed: dict[int, FloatArray],
) -> None:
    """Place pieces beside those that are placed, the strongest chain first."""
    grown = True
    while grown:
        grown = False
        for number in order:
            a, b = closures.first[number], closures.second[number]
            ours, theirs = int(trajectories.piece[a]), int(trajectories.piece[b])
            if (ours in placed) == (theirs in placed):
                continue
            if theirs in placed:
                there = se2.compose(placed[theirs], poses[b])
                place = se2.compose(there, closures.relative[number])
                placed[ours] = se2.compose(place, se2.inverse(poses[a]))
            else:
                here = se2.compose(placed[ours], poses[a])
                place = se2.compose(here, se2.inverse(closures.relative[number]))
                placed[theirs] = se2.compose(place, se2.inverse(poses[b]))
            grown = True
            break


def settle(
    trajectories: Trajectories,
    anchors: Indices,
    closures: Closures,
    parameters: FloatArray,
    prior: Prior,
) -> Solved:
    """
    Solve for the poses of trajectories whose pieces are all joined by closures.

    `parameters`: (6,) a first guess of the odometry's errors; `prior`: what is known of these.
    """
    _, names = np.unique(closures.chain, return_inverse=True)
    closures = replace(closures, chain=names)
    guess, _ = first_guess(trajectories, closures, parameters)
    of_runs = np.tile(parameters, (int(trajectories.run_of_piece.max()) + 1, 1))
    # closures along the same ways tell nothing of the drift, and would bend it to their misses
    # before those that do tell are looked at: until then it is as the rings have it
    problem = Problem(trajectories, anchors, closures, prior.noise, Belief(parameters, REFINED))
    nodes, kept = guess[anchors], np.zeros(len(closures), dtype=bool)
    if len(closures):
        for _ in range(_LEARNT_ROUNDS):
            solution, kept = problem.robust(nodes, of_runs)
            problem.learn(solution, kept)
            nodes, of_runs = solution.poses, solution.parameters
    problem.belief = prior.belief
    solution = problem.solve(nodes, of_runs, kept * problem.trust(nodes))
    for _ in range(_TRUST_ROUNDS):
        trust = problem.trust(solution.poses)
        solution = problem.solve(solution.poses, solution.parameters, kept * trust)
    return _solved(problem, solution, kept)


def _solved(problem: Problem, solution: Solution, kept: np.ndarray) -> Solved:
    found, growth = covariances(problem, solution)
    return Solved(
        poses_of_images(problem.trajectories, problem.anchors, solution),
        found,
        solution.parameters,
        solution.common,
        solution.of_common(),
        problem.closures,
        kept,
        problem.misses(solution.poses),
        problem.deviation,
        growth,
    )
