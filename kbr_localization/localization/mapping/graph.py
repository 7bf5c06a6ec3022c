"""
The pose graph: poses of nodes and the errors of each run's odometry, by robust least squares.

Unknown are the poses x_a of the nodes, the parameters p_r of each run's odometry (see
`odometry_model`) and those that the runs have in common, p. Between neighbouring nodes of a
segment the motion is u + S p_r with covariance Q, a closure says z with covariance C. With
e = z^-1 (x_i^-1 x_j) for each of these,

    sum of e^T Q^-1 e  +  sum of e^T C^-1 e  +  sum_r |p_r - p|^2 / run^2  +  prior of p

is minimised by Gauss and Newton; poses of fixed segments are known.

Some closures are wrong. Of the strongest chains those that do not fit are let go by graduated
non-convexity (Yang, Antonante, Tzoumas and Carlone, RA-L 2020, with the loss of Geman and
McClure). The other chains are admitted where the solution is certain enough to judge them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kbr_localization import se2
from kbr_localization.errors import MapError
from kbr_localization.localization.calibration import Calibration
from kbr_localization.localization.mapping.consistency import (
    CORRELATED,
    DEVIATION,
    GATE,
    REFINED,
)
from kbr_localization.localization.mapping.loop_closure import (
    Closures,
    MIN_LOOP,
    REACH,
    travel_apart,
)
from kbr_localization.localization.mapping.odometry_model import (
    IN_CALIBRATION,
    jacobians,
    PARAMETERS,
    Prior,
    ROBOT,
    RUN,
    SCALE,
    tracks,
)
from kbr_localization.localization.mapping.trajectories import Indices, Trajectories
from kbr_localization.localization.motion import MotionNoise
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph
from scipy.sparse.linalg import splu

UNRELATED = (
    'the poses of the images cannot be solved for: parts of the runs are related to nothing; '
    'build a map of each run, or drive where both have been, in the same direction, for 20 m'
)
_SMALLEST = np.array([[0.05, 0.05, 0.02], [0.05, 0.025, 0.008]])
"""Smallest deviations of closures that are learnt: without and with matched points."""
_SAMPLED = 250  # nodes whose covariance is computed; those between are interpolated


@dataclass(frozen=True)
class Solved:
    """
    Poses (n, 3) of all images and their covariances (n, 3, 3) about the best rigid alignment.

    `parameters`: (runs, 6) of the odometry; `common`: (6,) of another run, `of_common`:
    their covariance (6, 6), in the metres of these runs. `kept`: (m,) which closures hold;
    `misses`: (m, 3) along, across and in heading. `growth`: standard deviations (3,) of the last
    image against the first, without alignment.
    """

    poses: FloatArray
    covariances: FloatArray
    parameters: FloatArray
    common: FloatArray
    of_common: FloatArray
    closures: Closures
    kept: NDArray[np.bool_]
    misses: FloatArray
    growth: FloatArray

    def calibration(self) -> Calibration:
        """Return the odometry's errors as the map keeps them; nothing tells those sideways."""
        found = Calibration.unknown()
        found.values[IN_CALIBRATION] = self.common
        found.covariance[np.ix_(IN_CALIBRATION, IN_CALIBRATION)] = self.of_common
        return found


def settle(
    trajectories: Trajectories,
    nodes: Indices,
    closures: Closures,
    parameters: FloatArray,
    prior: Prior,
) -> Solved:
    """
    Solve for the poses of trajectories whose segments are all joined by closures.

    `nodes`: (a,) images whose poses are unknowns. `parameters`: (6,) of the odometry, from the
    rings of closures; `prior`: what is known without. Raises MapError for nodes that nothing
    relates to the others.
    """
    names = np.unique(closures.chain, return_inverse=True)[1]
    graph = PoseGraph(trajectories, nodes, replace(closures, chain=names), prior.noise)
    runs = int(trajectories.run_of_segment.max()) + 1
    guess = first_guess(trajectories, closures, parameters)[nodes]
    x = np.concatenate([guess.ravel(), np.tile(parameters, runs + 1)])
    kept = np.zeros(len(closures), dtype=bool)
    if len(closures):
        # closures along the same ways tell nothing of the drift, and would bend it to their
        # misses: until wrong ones are out it is as the rings have it
        rings = Prior(prior.noise, parameters, REFINED)
        for _ in range(2):
            x, kept = graph.solve_robustly(x, rings)
            graph.learn(x, kept)
    for _ in range(4):
        x = graph.solve(x, prior, kept * graph.trust(x))
    return graph.solved(x, prior, kept)


class PoseGraph:
    """The relations of nodes (a,), images of trajectories, by odometry and closures (m,)."""

    def __init__(
        self, trajectories: Trajectories, nodes: Indices, closures: Closures, noise: MotionNoise
    ) -> None:
        self.trajectories, self.nodes, self.closures = trajectories, nodes, closures
        known = trajectories.known[nodes]
        self.fixed = np.flatnonzero(known)
        before = np.flatnonzero((np.diff(trajectories.segment[nodes]) == 0) & ~known[:-1])
        legs = [_leg(trajectories, nodes[a], nodes[a + 1], noise) for a in before]
        relative, effects, covariance = (
            np.array([leg[part] for leg in legs]).reshape(-1, *shape)
            for part, shape in enumerate([(3,), (3, PARAMETERS), (3, 3)])
        )
        self.steps = len(legs)
        start = trajectories.node_of(nodes, closures.second)
        end = trajectories.node_of(nodes, closures.first)
        # images between nodes follow the odometry
        poses = trajectories.odometry
        to_second = se2.between(poses[nodes[start]], poses[closures.second])
        from_first = se2.between(poses[closures.first], poses[nodes[end]])
        measured = se2.compose(se2.compose(to_second, closures.relative), from_first)
        self.start = np.concatenate([before, start])
        self.end = np.concatenate([before + 1, end])
        self.relative = np.concatenate([relative, measured])
        self.run = trajectories.run[nodes[self.start]]
        self.effects = np.concatenate([effects, np.zeros((len(closures), 3, PARAMETERS))])
        self.information = np.linalg.inv(covariance)
        # closures share their images: of many runs along one way, all pairs say no more than a few
        count = np.bincount(np.concatenate([start, end]), minlength=len(nodes))
        self.alike = CORRELATED * np.maximum(0.25 * (count[start] + count[end]), 1.0)
        self.deviation, self.noise_factor = np.tile(DEVIATION, (2, 1)), 1.0

    def misses(self, x: FloatArray) -> FloatArray:
        """Errors (s + m, 3) of the steps of the odometry and of the closures."""
        poses, parameters, _ = self._parts(x)
        moved = se2.between(poses[self.start], poses[self.end])
        return se2.between(self._expected(parameters), moved)

    def _expected(self, parameters: FloatArray) -> FloatArray:
        change = np.einsum('mij,mj->mi', self.effects, parameters[self.run])
        return np.asarray(self.relative + change)

    def _parts(self, x: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Poses (a, 3), parameters (runs, 6), and what the runs have in common (6,)."""
        split = 3 * len(self.nodes)
        parameters = x[split:].reshape(-1, PARAMETERS)
        return x[:split].reshape(-1, 3), parameters[:-1], parameters[-1]

    def solve(
        self, x: FloatArray, prior: Prior, weights: np.ndarray, rounds: int = 30
    ) -> FloatArray:
        """Minimise by Gauss and Newton, with weights (m,) of the closures; raises MapError."""
        self._refuse_unrelated(weights > 1e-6)
        for _ in range(rounds):
            factor, gradient = self._factor(x, prior, weights)
            change = factor.solve(-gradient)
            x = x + change
            headings = slice(2, 3 * len(self.nodes), 3)
            x[headings] = se2.wrap_angle(x[headings])
            if np.abs(change).max() < 1e-4:
                break
        return x

    def solve_robustly(self, x: FloatArray, prior: Prior) -> tuple[FloatArray, NDArray[np.bool_]]:
        """Solve without the closures that do not fit; also return which (m,) do."""
        leading = self._leading()
        x = self._graduate(self.solve(x, prior, leading), prior, leading)
        kept = self._fitting(x) & leading
        for _ in range(12):
            x = self.solve(x, prior, kept)
            kept = kept & self._fitting(x)
            admitted = self._admitted(x, prior, kept)
            if not admitted.any():
                break
            kept = kept | admitted
        x = self.solve(x, prior, kept)
        return x, kept & self._fitting(x)

    def _leading(self) -> NDArray[np.bool_]:
        """Which closures (m,) are of the strongest chains, or join segments."""
        chain, segment = self.closures.chain, self.trajectories.segment
        score = np.bincount(chain, self.closures.score)
        order = np.argsort(-score, kind='stable')
        leads = np.zeros(len(score), dtype=bool)
        # loops as well as runs side by side, which are stronger and say less
        side_by_side = travel_apart(self.trajectories, self.closures) < MIN_LOOP
        for kind in (side_by_side, ~side_by_side):
            own = order[kind[order]]
            total = np.cumsum(score[own])
            leads[own[: int(np.searchsorted(total, 0.7 * total[-1:].sum())) + 1]] = True
        joined = np.arange(len(self.trajectories.fixed))
        at = np.unique(chain, return_index=True)[1]
        ends = segment[self.closures.first[at]], segment[self.closures.second[at]]
        for name in order:
            one, other = joined[ends[0][name]], joined[ends[1][name]]
            if one != other:
                joined[joined == one] = other
                leads[name] = True
        return np.asarray(leads[chain])

    def _graduate(self, x: FloatArray, prior: Prior, members: NDArray[np.bool_]) -> FloatArray:
        """Let go of chains that do not fit, by a loss that becomes sharper from round to round."""
        sharp = max(float((self._of_chains(x) * members).max(initial=0.0)) / GATE, 1.0)
        while True:
            weights = members * (sharp * GATE / (self._of_chains(x) + sharp * GATE)) ** 2
            x = self.solve(x, prior, weights, rounds=3)
            if sharp <= 1.0:
                return x
            sharp = max(0.5 * sharp, 1.0)

    def _admitted(self, x: FloatArray, prior: Prior, kept: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """
        Which further closures (m,) fit, of those about whose places most is known.

        A chain where the solution may be metres off would fit by chance: it has to wait until
        its neighbours have made the solution certain there.
        """
        chain = self.closures.chain
        score = np.bincount(chain, self.closures.score)
        waiting = np.flatnonzero(np.bincount(chain, kept) == 0)
        waiting = waiting[np.argsort(-score[waiting], kind='stable')[:250]]
        if not waiting.size:
            return np.zeros(len(chain), dtype=bool)
        members = [np.flatnonzero(chain == name) for name in waiting]
        middle = self.steps + np.array([each[len(each) // 2] for each in members])
        law = self.covariances(x, prior, kept, self.start[middle], self.end[middle])
        missed = self.misses(x)[self.steps :]  # noqa: E203
        medians = np.array([np.median(missed[each], axis=0) for each in members])
        total = np.linalg.inv(law + np.diag(DEVIATION**2))
        fits = np.einsum('mi,mij,mj->m', medians, total, medians) < GATE
        room = np.sqrt(np.maximum(law[:, 0, 0] + law[:, 1, 1], 0.0))
        certain = max(0.3, 1.3 * float(room[fits].min(initial=np.inf)))
        return np.isin(chain, waiting[fits & (room <= certain)])

    def covariances(
        self, x: FloatArray, prior: Prior, weights: np.ndarray, start: Indices, end: Indices
    ) -> FloatArray:
        """Covariances (k, 3, 3) of the relative poses of pairs of nodes (k,)."""
        factor, _ = self._factor(x, prior, weights)
        poses, k = self._parts(x)[0], len(start)
        turn = poses[end, 2] - poses[start, 2]
        slope = np.concatenate(_derivatives(poses[start], poses[end], turn), axis=2)
        columns = 3 * np.stack([start, end], axis=1)[:, :, np.newaxis] + np.arange(3)
        columns, pair = columns.reshape(k, 6), np.arange(k)[:, np.newaxis]
        right = np.zeros((len(x), k, 3))
        np.add.at(right, (columns, pair), np.swapaxes(slope, 1, 2))
        solved = factor.solve(right.reshape(len(x), -1)).reshape(right.shape)
        return np.asarray(slope @ solved[columns, pair])

    def _factor(self, x: FloatArray, prior: Prior, weights: np.ndarray) -> tuple[Any, FloatArray]:
        """Return the factor of the normal equations, and the gradient."""
        error, jacobian = self._system(x, prior, weights)
        symmetric = {'SymmetricMode': True}
        factor = splu(
            (jacobian.T @ jacobian).tocsc(), 'MMD_AT_PLUS_A', diag_pivot_thresh=0.0,
            options=symmetric,
        )  # fmt: skip
        return factor, jacobian.T @ error

    def trust(self, x: FloatArray) -> FloatArray:
        """Weights (m,) of the closures by what they miss: points that tell one may be wrong."""
        seen = self.closures.seen
        missed = self.misses(x)[self.steps :] / self.deviation[seen.astype(int)]  # noqa: E203
        weights = (GATE / (np.sum(missed**2, axis=1) + GATE)) ** 2
        return np.where(seen, weights, 1.0)

    def _squared(self, x: FloatArray) -> FloatArray:
        misses = self.misses(x)[self.steps :]  # noqa: E203
        return np.asarray(np.sum((misses / DEVIATION) ** 2, axis=1))

    def _of_chains(self, x: FloatArray) -> FloatArray:
        """Mean squared distance of the chain of each closure (m,)."""
        chain = self.closures.chain
        mean = np.bincount(chain, self._squared(x)) / np.maximum(np.bincount(chain), 1)
        return np.asarray(mean[chain])

    def _refuse_unrelated(self, kept: NDArray[np.bool_]) -> None:
        used = np.concatenate([np.ones(self.steps, dtype=bool), kept])
        n, fixed = len(self.nodes), self.fixed if len(self.fixed) else np.zeros(1, dtype=np.intp)
        ends = (
            np.append(self.start[used], fixed),
            np.append(self.end[used], np.full(len(fixed), n)),
        )
        related = sparse.coo_matrix((np.ones(len(ends[0])), ends), shape=(n + 1, n + 1))
        if csgraph.connected_components(related, directed=False)[0] > 1:
            raise MapError(UNRELATED)

    def _system(
        self, x: FloatArray, prior: Prior, weights: np.ndarray
    ) -> tuple[FloatArray, sparse.csr_matrix]:
        """Return the residuals, of variance one, and their Jacobian."""
        poses, parameters, common = self._parts(x)
        n, runs = len(poses), len(parameters)
        seen = self.closures.seen.astype(np.intp)
        precision = (weights / self.alike)[:, np.newaxis] / self.deviation[seen] ** 2
        root = np.concatenate(
            [
                np.swapaxes(np.linalg.cholesky(self.information / self.noise_factor), 1, 2),
                np.sqrt(precision)[:, :, np.newaxis] * np.eye(3),
            ]
        )
        error = np.einsum('mij,mj->mi', root, self.misses(x))
        expected = self._expected(parameters)
        by_start, by_end = _derivatives(poses[self.start], poses[self.end], expected[:, 2])
        by_run = -se2.rotation(-expected[:, 2]) @ self.effects
        rows = 3 * np.arange(len(error))
        blocks = [
            (rows, 3 * self.start, root @ by_start),
            (rows, 3 * self.end, root @ by_end),
            (rows, 3 * n + PARAMETERS * self.run, root @ by_run),
        ]
        errors = [error.ravel()]

        def add(missed: FloatArray, deviations: FloatArray, *columns: tuple[Indices, int]) -> None:
            """Add residuals (k, d) / deviations (d,) that depend on d unknowns each, by a sign."""
            first, (count, size) = sum(map(len, errors)), missed.shape
            errors.append((missed / deviations).ravel())
            blocks.extend(
                (
                    first + size * np.arange(count),
                    column,
                    np.broadcast_to(np.diag(sign / deviations), (count, size, size)),
                )
                for column, sign in columns
            )

        fixed, given = self.fixed, self.trajectories.odometry[self.nodes[self.fixed]]
        if not len(fixed):
            fixed, given = np.zeros(1, dtype=np.intp), poses[:1]  # the first node stays
        missed = poses[fixed] - given
        missed[:, 2] = se2.wrap_angle(missed[:, 2])
        add(missed, np.full(3, 1e-3), (3 * fixed, 1))
        last = 3 * n + PARAMETERS * runs
        own = 3 * n + PARAMETERS * np.arange(runs)
        add(parameters - common, RUN, (own, 1), (np.full(runs, last), -1))
        deviations, mean = prior.deviations.copy(), prior.mean.copy()
        if len(self.fixed) < 2:
            # without metres from elsewhere the scale would be chosen for small misses: it stays 0
            deviations[SCALE], mean[SCALE] = 1e-6, 0.0
        add((common - mean)[np.newaxis], deviations, (np.array([last]), 1))
        return np.concatenate(errors), _sparse(blocks, len(x))

    def _fitting(self, x: FloatArray) -> NDArray[np.bool_]:
        """Which closures (m,) fit, of chains that fit on average."""
        return (self._of_chains(x) < GATE) & (self._squared(x) < GATE)

    def learn(self, x: FloatArray, kept: NDArray[np.bool_]) -> None:
        """Take the deviations of odometry and closures from what they miss."""
        missed = self.misses(x)
        of_steps, of_closures = np.split(missed, [self.steps])
        for seen in (0, 1):
            own = of_closures[kept & (self.closures.seen == seen)]
            if len(own) > 3 * REACH:
                spread = 1.4826 * np.median(np.abs(own), axis=0)
                self.deviation[seen] = np.clip(spread, _SMALLEST[seen], DEVIATION)
        squared = np.einsum('mi,mij,mj->m', of_steps, self.information, of_steps)
        if len(squared) > 3 * REACH and kept.any():
            # the median of chi-squared of three is 2.37
            self.noise_factor = float(np.clip(np.median(squared) / 2.37, 0.2, 5.0))

    def solved(self, x: FloatArray, prior: Prior, kept: NDArray[np.bool_]) -> Solved:
        """Carry a solution over to all images, and compute the covariances."""
        factor, _ = self._factor(x, prior, kept * self.trust(x))
        poses, parameters, common = self._parts(x)
        free = np.flatnonzero(~self.trajectories.known[self.nodes])
        sample = free[np.unique(np.linspace(0, len(free) - 1, _SAMPLED).astype(np.intp))]
        columns = (3 * sample[:, np.newaxis] + np.arange(3)).ravel()
        columns = np.append(columns, len(x) - PARAMETERS + np.arange(PARAMETERS))
        unit = np.zeros((len(x), len(columns)))
        unit[columns, np.arange(len(columns))] = 1.0
        joint = np.asarray(factor.solve(unit)[columns])
        of_common = joint[-PARAMETERS:, -PARAMETERS:] + np.diag(RUN**2)
        joint = joint[:-PARAMETERS, :-PARAMETERS] + self._unobservable(poses[sample], prior)
        if len(self.fixed):
            k = np.arange(len(sample))
            blocks = joint.reshape(len(k), 3, len(k), 3)[k, :, k]
        else:
            blocks = _about_alignment(joint, poses[sample])
        at, nodes = np.arange(len(self.trajectories)), self.nodes[sample]
        rows = [np.interp(at, nodes, column) for column in blocks.reshape(len(nodes), 9).T]
        return Solved(
            self._poses_of_images(poses),
            np.stack(rows, axis=1).reshape(-1, 3, 3),
            parameters,
            common,
            of_common,
            self.closures,
            kept,
            self.misses(x)[self.steps :],  # noqa: E203
            np.sqrt(np.maximum(np.diag(joint)[-3:], 0.0)),
        )

    def _unobservable(self, poses: FloatArray, prior: Prior) -> FloatArray:
        """
        Covariance (3 k, 3 k) by what closures tell nothing about, or too little to rely on.

        That is the scale of all metres, unless poses are known, and the offset of the odometry's
        point: places that are shown again are seen from the same side.
        """
        changes = []
        if len(self.fixed) < 2:
            changes.append(ROBOT[SCALE] * (poses - poses[0]) * np.array([1.0, 1.0, 0.0]))
        for axis, offset in enumerate(prior.deviations[:2]):
            heading = poses[:, 2] + 0.5 * np.pi * axis
            changes.append(
                offset * np.stack([np.cos(heading), np.sin(heading), 0.0 * heading], axis=1)
            )
        return np.asarray(sum(np.outer(change, change) for change in changes))

    def _poses_of_images(self, poses: FloatArray) -> FloatArray:
        """Poses (n, 3) of all images: the odometry between nodes, what it misses spread evenly."""
        trajectories, nodes = self.trajectories, self.nodes
        segment, odometry = trajectories.segment, trajectories.odometry
        at = np.arange(len(trajectories))
        before = np.maximum(np.searchsorted(nodes, at, side='right') - 1, 0)
        after = np.minimum(before + 1, len(nodes) - 1)
        after = np.where(segment[nodes[after]] == segment, after, before)
        before = np.where(segment[nodes[before]] == segment, before, after)
        start = odometry[nodes[before]]
        found = se2.compose(poses[before], se2.between(start, odometry))
        ends = se2.compose(poses[before], se2.between(start, odometry[nodes[after]]))
        missed = poses[after] - ends
        missed[:, 2] = se2.wrap_angle(missed[:, 2])
        travel = trajectories.travel
        gap = np.maximum(travel[nodes[after]] - travel[nodes[before]], 1e-9)
        share = np.clip((travel - travel[nodes[before]]) / gap, 0.0, 1.0)
        found = found + share[:, np.newaxis] * missed
        found[:, 2] = se2.wrap_angle(found[:, 2])
        return found


def _leg(
    trajectories: Trajectories, first: int, last: int, noise: MotionNoise
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Motion (3,), its change (3, 6) by the parameters and its covariance over some images."""
    path = trajectories.odometry[first : last + 1]  # noqa: E203
    steps = se2.between(path[:-1], path[1:])
    carry = se2.adjoint(se2.inverse(se2.between(path[1:], path[-1])))
    effects = np.einsum('mij,mjl,mlk->ik', carry, se2.rotation(-steps[:, 2]), jacobians(steps))
    # a standing robot has some variance, too
    covariance = np.einsum('mij,mj,mkj->ik', carry, noise.variances(steps) + 1e-6, carry)
    # effects of a change of the last frame, seen from the first one
    whole = se2.rotation(path[-1, 2] - path[0, 2])
    return se2.between(path[0], path[-1]), whole @ effects, covariance


def _derivatives(
    start: FloatArray, end: FloatArray, turn: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Differentiate errors (m, 3, 3) by the poses of start and end; `turn` (m,) is expected."""
    heading = start[:, 2] + turn
    by_end = se2.rotation(-heading)
    by_start = -by_end
    dx, dy = (end - start)[:, :2].T
    cosine, sine = np.cos(heading), np.sin(heading)
    by_start[:, 0, 2] = -sine * dx + cosine * dy
    by_start[:, 1, 2] = -cosine * dx - sine * dy
    return by_start, by_end


def _sparse(blocks: list[tuple[Indices, Indices, FloatArray]], columns: int) -> sparse.csr_matrix:
    """Put blocks (k, d, w) at rows (k,) and columns (k,) together."""
    rows, places, values = [], [], []
    for row, column, block in blocks:
        _, d, w = block.shape
        rows.append(np.broadcast_to(row[:, None, None] + np.arange(d)[:, None], block.shape))
        places.append(np.broadcast_to(column[:, None, None] + np.arange(w), block.shape))
        values.append(block)
    flat = [np.concatenate([part.ravel() for part in parts]) for parts in (values, rows, places)]
    return sparse.csr_matrix((flat[0], (flat[1], flat[2])), shape=(flat[1].max() + 1, columns))


def _about_alignment(joint: FloatArray, poses: FloatArray) -> FloatArray:
    """
    Covariances (k, 3, 3) of poses once the best rigid motion of all of them is taken out.

    With T (3 k, 3) the poses' change by a motion of the whole, T (T^T T)^-1 T^T is what an
    alignment of the positions takes away.
    """
    k = len(poses)
    away = poses[:, :2] - poses[:, :2].mean(axis=0)
    motion = np.tile(np.eye(3), (k, 1, 1))
    motion[:, 0, 2], motion[:, 1, 2] = -away[:, 1], away[:, 0]
    tangent = motion.reshape(3 * k, 3)
    positions = tangent.copy()
    positions[2::3] = 0.0
    normal = positions.T @ positions
    if np.linalg.cond(normal) < 1e12:
        project = np.eye(3 * k) - tangent @ np.linalg.solve(normal, positions.T)
        joint = project @ joint @ project.T
    return np.asarray(joint.reshape(k, 3, k, 3)[np.arange(k), :, np.arange(k)])


def first_guess(
    trajectories: Trajectories, closures: Closures, parameters: FloatArray
) -> FloatArray:
    """Poses (n, 3) by the odometry without its errors, segments joined by the best closures."""
    poses = tracks(trajectories, parameters)
    segment = trajectories.segment
    sizes = np.bincount(segment, minlength=len(trajectories.fixed))
    placed = {int(number): np.zeros(3) for number in np.flatnonzero(trajectories.fixed)}
    placed = placed or {int(np.argmax(sizes)): np.zeros(3)}
    score = np.bincount(closures.chain, closures.score)
    waiting = np.argsort(-score[closures.chain], kind='stable').tolist()
    while True:
        ends = [(segment[closures.first[n]], segment[closures.second[n]]) for n in waiting]
        ready = [
            n for n, (a, b) in zip(waiting, ends, strict=True) if (a in placed) != (b in placed)
        ]
        if not ready:
            break
        a, b = closures.first[ready[0]], closures.second[ready[0]]
        relative = closures.relative[ready[0]]
        if segment[b] not in placed:
            a, b, relative = b, a, se2.inverse(relative)
        there = se2.compose(se2.compose(placed[segment[b]], poses[b]), relative)
        placed[segment[a]] = se2.compose(there, se2.inverse(poses[a]))
    for number, origin in placed.items():
        span = trajectories.span(number)
        poses[span] = se2.compose(origin, poses[span])
    return poses
