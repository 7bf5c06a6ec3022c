"""
The graph with closures of which some may be wrong.

Of the strongest chains of closures those that do not fit are let go by graduated non-convexity
(Yang, Antonante, Tzoumas and Carlone, RA-L 2020, with the loss of Geman and McClure): at first all
count, in the end those that agree with the others. The other chains join where the solution has
become sure enough to tell whether they fit.
"""

from __future__ import annotations

from kbr_localization import se2
from kbr_localization.localization.mapping.closures import Closures, OWN_WAY, ways_apart
from kbr_localization.localization.mapping.consistency import GATE
from kbr_localization.localization.mapping.graph import (
    Edges,
    Known,
    odometry_edges,
    Solution,
    solve,
)
from kbr_localization.localization.mapping.merging import CORRELATED, DEVIATION
from kbr_localization.localization.mapping.sequences import REACH
from kbr_localization.localization.mapping.trajectories import Indices, Trajectories
from kbr_localization.localization.mapping.wheels import Belief
from kbr_localization.localization.motion import MotionNoise
from kbr_localization.se2 import FloatArray
import numpy as np

_AS_KNOWN = 1e-3  # metres and radians by which poses that are fixed may move
_GRADUATION = 2.0  # by which the loss becomes sharper from round to round
_QUICK_ROUNDS = 3  # of least squares, while the loss still changes
_SURE = 0.3  # metres: where the solution is as sure, a chain that fits is right
_LEADING = 0.7  # share of the score that the strongest chains have together
_ADMITTED_OF = 250  # waiting chains, the strongest, that are looked at in a round
_ADMISSIONS = 12  # rounds in which further chains join
_SMALLEST = np.array([[0.05, 0.05, 0.02], [0.05, 0.025, 0.008]])
"""Deviations of closures, learnt ones: of those that are not seen, and of those that are."""
_NOISE_BOUNDS = (0.2, 5.0)  # factor on the variances of the odometry, learnt from what it misses


class Problem:
    """
    The graph of some trajectories and the closures that were agreed upon; nodes are the anchors.

    `belief`: of the odometry's errors, by which closures are judged.
    """

    def __init__(
        self,
        trajectories: Trajectories,
        anchors: Indices,
        closures: Closures,
        noise: MotionNoise,
        belief: Belief,
    ) -> None:
        self.trajectories, self.anchors, self.closures = trajectories, anchors, closures
        self.belief = belief
        fixed = trajectories.fixed[trajectories.piece[anchors]]
        self.odometry = odometry_edges(
            trajectories, anchors[~fixed], noise, np.flatnonzero(~fixed)
        )
        self.deviation, self.noise_factor = np.tile(DEVIATION, (2, 1)), 1.0
        unseen = np.zeros(len(closures), dtype=bool)
        self.seen = (unseen if closures.seen is None else closures.seen).astype(np.intp)
        poses = trajectories.odometry[anchors[fixed]]
        self.known = Known(np.flatnonzero(fixed), poses, np.full(poses.shape, _AS_KNOWN))
        self._relate()

    def _relate(self) -> None:
        """Express closures as relations of nodes: images between anchors follow the odometry."""
        trajectories, closures = self.trajectories, self.closures
        self.start = trajectories.node_of(self.anchors, closures.second)
        self.end = trajectories.node_of(self.anchors, closures.first)
        before, after = (
            se2.between(trajectories.odometry[a], trajectories.odometry[b])
            for a, b in (
                (self.anchors[self.start], closures.second),
                (closures.first, self.anchors[self.end]),
            )
        )
        self.relative = se2.compose(se2.compose(before, closures.relative), after)
        # closures share their images: of many runs along one way, all pairs say no more than a few
        ends = np.concatenate([self.start, self.end])
        count = np.bincount(ends, minlength=len(self.anchors))
        shared = 0.25 * (count[self.start] + count[self.end])
        self.alike = CORRELATED * np.maximum(shared, 1.0)

    def solve(
        self, guess: FloatArray, parameters: FloatArray, weights: FloatArray, rounds: int = 30
    ) -> Solution:
        """Solve with weights (m,) of the closures, from poses (n, 3) of the nodes."""
        used = weights > 1e-6
        precision = (weights / self.alike)[:, np.newaxis] / self.deviation[self.seen] ** 2
        places = Edges(
            self.start[used],
            self.end[used],
            self.relative[used],
            precision[used, :, np.newaxis] * np.eye(3),
        )
        ways = Edges(
            self.odometry.start,
            self.odometry.end,
            self.odometry.relative,
            self.odometry.information / self.noise_factor,
            self.odometry.effects,
            self.odometry.run,
        )
        return solve(guess, parameters, (ways, places), self.known, rounds, self.belief)

    def misses(self, poses: FloatArray) -> FloatArray:
        """Tell what (m, 3) closures miss at poses of the nodes."""
        return se2.between(self.relative, se2.between(poses[self.start], poses[self.end]))

    def robust(self, guess: FloatArray, parameters: FloatArray) -> tuple[Solution, np.ndarray]:
        """
        Solve, letting go of what does not fit; also return which closures (m,) hold.

        The strongest chains, which are hardly ever wrong, go first; others have to fit them.
        """
        leading = self._leading().astype(np.float64)
        solution = self.solve(guess, parameters, leading)
        solution = self._graduated(solution, leading)
        kept = self._fitting(solution.poses) & (leading > 0.0)
        for _ in range(_ADMISSIONS):
            solution = self.solve(solution.poses, solution.parameters, kept.astype(np.float64))
            kept = kept & self._fitting(solution.poses)
            admitted = self._admitted(solution, kept)
            if not admitted.any():
                break
            kept = kept | admitted
        solution = self.solve(solution.poses, solution.parameters, kept.astype(np.float64))
        kept = kept & self._fitting(solution.poses)
        return solution, kept

    def _admitted(self, solution: Solution, kept: np.ndarray) -> np.ndarray:
        """
        Which further closures (m,) fit a solution, of those about whose places most is known.

        A chain where the solution may be metres off would fit by chance: it has to wait until
        its neighbours have made the solution sure there.
        """
        chain = self.closures.chain
        count, score = np.bincount(chain), np.bincount(chain, self.closures.score)
        waiting = np.flatnonzero((count > 0) & (np.bincount(chain, kept) == 0.0))
        waiting = waiting[np.argsort(-score[waiting], kind='stable')[:_ADMITTED_OF]]
        if not waiting.size:
            return np.zeros(len(chain), dtype=bool)
        fits, room = self._fit(solution, waiting)
        if not fits.any():
            return np.zeros(len(chain), dtype=bool)
        surest = max(_SURE, 1.3 * float(room[fits].min()))
        return np.isin(chain, waiting[fits & (room <= surest)])

    def _fit(self, solution: Solution, chains: Indices) -> tuple[np.ndarray, FloatArray]:
        """Tell which chains (k,) fit, and the deviations (k,) of their places in metres."""
        members = [np.flatnonzero(self.closures.chain == name) for name in chains]
        middle = np.array([each[len(each) // 2] for each in members])
        start, end = self.start[middle], self.end[middle]
        law = solution.relations(start, end)
        missed = self.misses(solution.poses)
        medians = np.array([np.median(missed[each], axis=0) for each in members])
        total = law + np.diag(DEVIATION**2)
        squared = np.einsum('mi,mij,mj->m', medians, np.linalg.inv(total), medians)
        return squared < GATE, np.sqrt(np.maximum(law[:, 0, 0] + law[:, 1, 1], 0.0))

    def _graduated(self, solution: Solution, members: FloatArray) -> Solution:
        """Sharpen the loss of closures (m,), which count as much as `members` says."""
        largest = float(np.max(self._of_chains(solution.poses) * members, initial=0.0))
        sharp = max(largest / GATE, 1.0)
        while True:
            squared = self._of_chains(solution.poses)
            weights = members * (sharp * GATE / (squared + sharp * GATE)) ** 2
            solution = self.solve(solution.poses, solution.parameters, weights, _QUICK_ROUNDS)
            if sharp <= 1.0:
                return solution
            sharp = max(sharp / _GRADUATION, 1.0)

    def _leading(self) -> np.ndarray:
        """Which closures (m,) are of the strongest chains, and of those that join pieces."""
        closures, trajectories = self.closures, self.trajectories
        score = np.bincount(closures.chain, closures.score)
        order = np.argsort(-score, kind='stable')
        leads = np.zeros(len(score), dtype=bool)
        # loops as well as runs side by side, which are stronger and say less
        side_by_side = ways_apart(trajectories, closures) < OWN_WAY
        for kind in (side_by_side, ~side_by_side):
            own = order[kind[order]]
            sums = np.cumsum(score[own])
            leads[own[: int(np.searchsorted(sums, _LEADING * sums[-1:].sum())) + 1]] = True
        joined = np.arange(len(trajectories.run_of_piece))
        first, ends = np.unique(closures.chain, return_index=True)
        for name in order:
            at = ends[np.searchsorted(first, name)]
            one, other = (
                joined[trajectories.piece[i[at]]] for i in (closures.first, closures.second)
            )
            if one != other:
                joined[joined == one] = other
                leads[name] = True
        return leads[closures.chain]

    def _of_chains(self, poses: FloatArray) -> FloatArray:
        """Mean squared distance of the chain of each closure (m,)."""
        chain = self.closures.chain
        size = np.maximum(np.bincount(chain), 1)
        return np.asarray((np.bincount(chain, self._distances(poses)) / size)[chain])

    def learn(self, solution: Solution, kept: np.ndarray) -> None:
        """Take the deviations of odometry and closures, of `kept` (m,), from what they miss."""
        for seen in range(2):
            own = kept & (self.seen == seen)
            if own.sum() > 3 * REACH:
                missed = self.misses(solution.poses)[own]
                spread = 1.4826 * np.median(np.abs(missed), axis=0)
                self.deviation[seen] = np.clip(spread, _SMALLEST[seen], DEVIATION)
        errors = self.odometry.errors(solution.poses, solution.parameters)
        squared = np.einsum('mi,mij,mj->m', errors, self.odometry.information, errors)
        if len(squared) > 3 * REACH and kept.any():
            self.noise_factor = float(np.clip(np.median(squared) / 2.37, *_NOISE_BOUNDS))

    def trust(self, poses: FloatArray) -> FloatArray:
        """How much closures (m,) count by what they miss: those that are seen may be outliers."""
        missed = self.misses(poses) / self.deviation[self.seen]
        squared = np.sum(missed**2, axis=1)
        return np.where(self.seen == 1, (GATE / (squared + GATE)) ** 2, 1.0)

    def _distances(self, poses: FloatArray) -> FloatArray:
        # by what is allowed of any closure: those that agree best would let the others go
        missed = self.misses(poses) / DEVIATION
        return np.asarray(np.sum(missed**2, axis=1))

    def _fitting(self, poses: FloatArray) -> np.ndarray:
        """Which closures (m,) fit, of chains that fit as a whole."""
        return (self._of_chains(poses) < GATE) & (self._distances(poses) < GATE)
