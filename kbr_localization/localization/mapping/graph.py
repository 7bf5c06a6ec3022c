"""
The pose graph: poses of nodes and the errors of each run's odometry, by robust least squares.

Unknown are the poses x_a of the nodes, the parameters p_r of each run's odometry (see
`odometry_model`) and those that the runs have in common, p. Between neighbouring nodes of a
segment the motion is u + S p_r with covariance Q, a closure says z with covariance C. With
e = z^-1 (x_i^-1 x_j) for each of these,

    sum of e^T Q^-1 e  +  sum of w e^T C^-1 e  +  sum of |p_r - p|^2 / run^2  +  prior of p

is minimised by Gauss and Newton with sparse factors; poses of fixed segments are known. Some
closures are wrong: the weights w of chains are those of Geman and McClure's loss, and chains that
do not fit are let go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kbr_localization import se2
from kbr_localization.errors import MapError
from kbr_localization.localization.calibration import Calibration
from kbr_localization.localization.mapping.consistency import CORRELATED, DEVIATION, GATE
from kbr_localization.localization.mapping.loop_closure import Closures, REACH
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
    graph = PoseGraph(trajectories, nodes, closures, prior)
    x = graph.unknowns(first_guess(trajectories, closures, parameters)[nodes], parameters)
    x = graph.solve(x, np.ones(len(closures)))
    for _ in range(2):
        # let go of chains that do not fit
        for _ in range(6):
            x = graph.solve(x, graph.chain_weights(x), rounds=3)
        x = graph.solve(x, graph.fitting(x))
        kept = graph.fitting(x)
        graph.learn(x, kept)
    for _ in range(4):
        x = graph.solve(x, kept * graph.trust(x))
    return graph.solved(x, kept)


class PoseGraph:
    """
    The relations of nodes (a,), images of trajectories, by odometry and closures (m,).

    Unknowns x: poses (a, 3), parameters (runs, 6), and what the runs have in common (6,).
    """

    def __init__(
        self, trajectories: Trajectories, nodes: Indices, closures: Closures, prior: Prior
    ) -> None:
        self.trajectories, self.nodes, self.closures = trajectories, nodes, closures
        self.prior = prior
        known = trajectories.known[nodes]
        self.fixed = np.flatnonzero(known)
        before = np.flatnonzero((np.diff(trajectories.segment[nodes]) == 0) & ~known[:-1])
        legs = [_leg(trajectories, nodes[a], nodes[a + 1], prior.noise) for a in before]
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

    def unknowns(self, poses: FloatArray, parameters: FloatArray) -> FloatArray:
        """Return x of poses (a, 3) and the same parameters (6,) of all runs."""
        runs = int(self.trajectories.run_of_segment.max()) + 1
        return np.concatenate([poses.ravel(), np.tile(parameters, runs + 1)])

    def _parts(self, x: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        split = 3 * len(self.nodes)
        parameters = x[split:].reshape(-1, PARAMETERS)
        return x[:split].reshape(-1, 3), parameters[:-1], parameters[-1]

    def _misses(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Errors (s + m, 3) of the steps of the odometry and of the closures; what they expect."""
        poses, parameters, _ = self._parts(x)
        expected = self.relative + np.einsum('mij,mj->mi', self.effects, parameters[self.run])
        return se2.between(expected, se2.between(poses[self.start], poses[self.end])), expected

    def misses(self, x: FloatArray) -> FloatArray:
        """Errors (m, 3) of the closures."""
        return self._misses(x)[0][self.steps :]  # noqa: E203

    def solve(self, x: FloatArray, weights: np.ndarray, rounds: int = 30) -> FloatArray:
        """Minimise by Gauss and Newton, with weights (m,) of the closures; raises MapError."""
        self._refuse_unrelated(weights > 1e-6)
        for _ in range(rounds):
            factor, gradient = self._factor(x, weights)
            change = factor.solve(-gradient)
            x = x + change
            headings = slice(2, 3 * len(self.nodes), 3)
            x[headings] = se2.wrap_angle(x[headings])
            if np.abs(change).max() < 1e-4:
                break
        return x

    def _refuse_unrelated(self, used: NDArray[np.bool_]) -> None:
        every = np.concatenate([np.ones(self.steps, dtype=bool), used])
        n, fixed = len(self.nodes), self.fixed  # the fixed nodes hang together
        start = np.concatenate([self.start[every], fixed[:-1]])
        end = np.concatenate([self.end[every], fixed[1:]])
        related = sparse.coo_matrix((np.ones(len(start)), (start, end)), shape=(n, n))
        if csgraph.connected_components(related, directed=False)[0] > 1:
            raise MapError(
                'the poses of the images cannot be solved for: parts of the runs are related to '
                'nothing; build a map of each run, or drive where both have been, in the same '
                'direction, for 20 m'
            )

    def _factor(self, x: FloatArray, weights: np.ndarray) -> tuple[Any, FloatArray]:
        """Return the factor of the normal equations, and the gradient."""
        error, jacobian = self._system(x, weights)
        factor = splu(
            (jacobian.T @ jacobian).tocsc(), 'MMD_AT_PLUS_A', diag_pivot_thresh=0.0,
            options={'SymmetricMode': True},
        )  # fmt: skip
        return factor, jacobian.T @ error

    def _system(self, x: FloatArray, weights: np.ndarray) -> tuple[FloatArray, sparse.csr_matrix]:
        """Return the residuals, of variance one, and their Jacobian."""
        poses, parameters, common = self._parts(x)
        n, runs, m = len(poses), len(parameters), len(self.start)
        precision = (weights / self.alike)[:, np.newaxis] / self._deviations() ** 2
        root = np.concatenate(
            [
                np.swapaxes(np.linalg.cholesky(self.information / self.noise_factor), 1, 2),
                np.sqrt(precision)[:, :, np.newaxis] * np.eye(3),
            ]
        )
        misses, expected = self._misses(x)
        by_start, by_end = _derivatives(poses[self.start], poses[self.end], expected[:, 2])
        by_run = -se2.rotation(-expected[:, 2]) @ self.effects

        def blocks(values: FloatArray, columns: Indices, width: int) -> sparse.bsr_matrix:
            """Put a block (3, d) into each three rows."""
            return sparse.bsr_matrix((root @ values, columns, np.arange(m + 1)), (3 * m, width))

        of_poses = blocks(by_start, self.start, 3 * n) + blocks(by_end, self.end, 3 * n)
        of_runs = blocks(by_run, self.run, PARAMETERS * (runs + 1))
        relations = sparse.hstack([of_poses, of_runs])
        unit = sparse.identity(len(x), format='csr')
        if len(self.fixed):
            fixed, given = self.fixed, self.trajectories.odometry[self.nodes[self.fixed]]
        else:
            fixed, given = np.zeros(1, dtype=np.intp), poses[:1]  # the first node stays
        moved = poses[fixed] - given
        moved[:, 2] = se2.wrap_angle(moved[:, 2])
        at_fixed = (3 * fixed[:, np.newaxis] + np.arange(3)).ravel()
        own = 3 * n + np.arange(PARAMETERS * runs)
        last = 3 * n + PARAMETERS * runs + np.arange(PARAMETERS)
        deviations, mean = self.prior.deviations.copy(), self.prior.mean.copy()
        if len(self.fixed) < 2:
            # without metres from elsewhere the scale would be chosen for small misses: it stays 0
            deviations[SCALE], mean[SCALE] = 1e-6, 0.0
        apart = sparse.diags(np.tile(1.0 / RUN, runs)) @ (unit[own] - unit[np.tile(last, runs)])
        error = [np.einsum('mij,mj->mi', root, misses), moved / 1e-3, (parameters - common) / RUN]
        residuals = [part.ravel() for part in (*error, (common - mean) / deviations)]
        jacobian = [
            relations,
            unit[at_fixed] / 1e-3,
            apart,
            sparse.diags(1 / deviations) @ unit[last],
        ]
        return np.concatenate(residuals), sparse.vstack(jacobian, format='csr')

    def _deviations(self) -> FloatArray:
        """Return standard deviations (m, 3) of the closures."""
        return np.asarray(self.deviation[self.closures.seen.astype(np.intp)])

    def _squared(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Squared distance of each closure (m,), and the mean of those of its chain."""
        squared = np.sum((self.misses(x) / DEVIATION) ** 2, axis=1)
        names, chain = np.unique(self.closures.chain, return_inverse=True)
        mean = np.bincount(chain, squared, len(names)) / np.bincount(chain, minlength=len(names))
        return squared, mean[chain]

    def chain_weights(self, x: FloatArray) -> FloatArray:
        """Weights (m,) of the closures by what their chains miss."""
        return np.asarray((GATE / (self._squared(x)[1] + GATE)) ** 2)

    def fitting(self, x: FloatArray) -> NDArray[np.bool_]:
        """Which closures (m,) fit, of chains that fit on average."""
        squared, of_chains = self._squared(x)
        return np.asarray((of_chains < GATE) & (squared < GATE))

    def trust(self, x: FloatArray) -> FloatArray:
        """Weights (m,) of the closures by what they miss: points that tell one may be wrong."""
        missed = np.sum((self.misses(x) / self._deviations()) ** 2, axis=1)
        return np.where(self.closures.seen, (GATE / (missed + GATE)) ** 2, 1.0)

    def learn(self, x: FloatArray, kept: NDArray[np.bool_]) -> None:
        """Take the deviations of odometry and closures from what they miss."""
        of_steps, of_closures = np.split(self._misses(x)[0], [self.steps])
        for seen in (0, 1):
            own = of_closures[kept & (self.closures.seen == seen)]
            if len(own) > 3 * REACH:
                spread = 1.4826 * np.median(np.abs(own), axis=0)
                # matched points tell the offset aside and the turn better than whole images
                smallest = [0.05, 0.025, 0.008] if seen else [0.05, 0.05, 0.02]
                self.deviation[seen] = np.clip(spread, smallest, DEVIATION)
        squared = np.einsum('mi,mij,mj->m', of_steps, self.information, of_steps)
        if len(squared) > 3 * REACH and kept.any():
            # the median of chi-squared of three is 2.37
            self.noise_factor = float(np.clip(np.median(squared) / 2.37, 0.2, 5.0))

    def solved(self, x: FloatArray, kept: NDArray[np.bool_]) -> Solved:
        """Carry a solution over to all images, and compute the covariances."""
        factor, _ = self._factor(x, kept * self.trust(x))
        poses, parameters, common = self._parts(x)
        free = np.flatnonzero(~self.trajectories.known[self.nodes])
        # between these nodes covariances are interpolated
        sample = free[np.unique(np.linspace(0, len(free) - 1, 250).astype(np.intp))]
        columns = (3 * sample[:, np.newaxis] + np.arange(3)).ravel()
        columns = np.append(columns, len(x) - PARAMETERS + np.arange(PARAMETERS))
        unit = np.zeros((len(x), len(columns)))
        unit[columns, np.arange(len(columns))] = 1.0
        joint = np.asarray(factor.solve(unit)[columns])
        of_common = joint[-PARAMETERS:, -PARAMETERS:] + np.diag(RUN**2)
        joint = joint[:-PARAMETERS, :-PARAMETERS] + self._unobservable(poses[sample])
        growth = np.sqrt(np.maximum(np.diag(joint)[-3:], 0.0))
        if not len(self.fixed):
            joint = _about_alignment(joint, poses[sample])
        k = np.arange(len(sample))
        blocks = joint.reshape(len(k), 3, len(k), 3)[k, :, k].reshape(len(k), 9)
        at, nodes = np.arange(len(self.trajectories)), self.nodes[sample]
        rows = np.stack([np.interp(at, nodes, column) for column in blocks.T], axis=1)
        return Solved(
            self._poses_of_images(poses),
            rows.reshape(-1, 3, 3),
            parameters,
            common,
            of_common,
            self.closures,
            kept,
            self.misses(x),
            growth,
        )

    def _unobservable(self, poses: FloatArray) -> FloatArray:
        """
        Covariance (3 k, 3 k) by what closures tell nothing about, or too little to rely on.

        That is the scale of all metres, unless poses are known, and the offset of the odometry's
        point: places that are shown again are seen from the same side.
        """
        ahead = np.stack([np.cos(poses[:, 2]), np.sin(poses[:, 2]), 0.0 * poses[:, 2]], axis=1)
        left = ahead[:, [1, 0, 2]] * [-1.0, 1.0, 0.0]
        changes = [self.prior.deviations[0] * ahead, self.prior.deviations[1] * left]
        if len(self.fixed) < 2:
            changes.append(ROBOT[SCALE] * (poses - poses[0]) * np.array([1.0, 1.0, 0.0]))
        return np.asarray(sum(np.outer(change, change) for change in changes))

    def _poses_of_images(self, poses: FloatArray) -> FloatArray:
        """Poses (n, 3) of all images: the odometry between nodes, what it misses spread evenly."""
        trajectories, nodes = self.trajectories, self.nodes
        segment, odometry, travel = (
            trajectories.segment,
            trajectories.odometry,
            trajectories.travel,
        )
        at = np.arange(len(trajectories))
        before = np.maximum(np.searchsorted(nodes, at, side='right') - 1, 0)
        after = np.minimum(before + 1, len(nodes) - 1)
        after = np.where(segment[nodes[after]] == segment, after, before)
        before = np.where(segment[nodes[before]] == segment, before, after)
        first, last = nodes[before], nodes[after]
        found = se2.compose(poses[before], se2.between(odometry[first], odometry))
        ends = se2.compose(poses[before], se2.between(odometry[first], odometry[last]))
        missed = poses[after] - ends
        missed[:, 2] = se2.wrap_angle(missed[:, 2])
        gap = np.maximum(travel[last] - travel[first], 1e-9)
        found += np.clip((travel - travel[first]) / gap, 0.0, 1.0)[:, np.newaxis] * missed
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


def _about_alignment(joint: FloatArray, poses: FloatArray) -> FloatArray:
    """
    Covariance (3 k, 3 k) of poses once the best rigid motion of all of them is taken out.

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
    if np.linalg.cond(normal) > 1e12:
        return joint
    project = np.eye(3 * k) - tangent @ np.linalg.solve(normal, positions.T)
    return np.asarray(project @ joint @ project.T)


def first_guess(
    trajectories: Trajectories, closures: Closures, parameters: FloatArray
) -> FloatArray:
    """Poses (n, 3) by the odometry without its errors, segments joined by the best closures."""
    poses, segment = tracks(trajectories, parameters), trajectories.segment
    placed = trajectories.fixed.copy()
    if not placed.any():
        placed[np.argmax(np.bincount(segment))] = True
    score = np.bincount(closures.chain, closures.score)
    best = np.argsort(-score[closures.chain], kind='stable')
    while True:
        one, other = segment[closures.first[best]], segment[closures.second[best]]
        ready = best[placed[one] != placed[other]]
        if not len(ready):
            return poses
        a, b = closures.first[ready[0]], closures.second[ready[0]]
        relative = closures.relative[ready[0]]
        if placed[segment[a]]:
            a, b, relative = b, a, se2.inverse(relative)
        origin = se2.compose(se2.compose(poses[b], relative), se2.inverse(poses[a]))
        span = trajectories.span(int(segment[a]))
        poses[span] = se2.compose(origin, poses[span])
        placed[segment[a]] = True
