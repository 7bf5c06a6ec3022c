"""
The pose graph: poses of images and the errors of each run's odometry, by robust least squares.

The unknowns are the poses x_i of the images, the parameters p_r of each run's odometry (see
`odometry_model`) and p of the robot. The motion between neighbouring images of a segment is
measured as z = u + J p_r with covariance Q, a closure measures z with covariance C. With
e = z^-1 (x_i^-1 x_j) for each of these,

    sum of e^T Q^-1 e  +  sum of w e^T C^-1 e  +  sum of |p_r - p|^2 / run^2  +  prior of p

is minimised by Gauss-Newton steps with sparse factors; poses of fixed segments are known. Some
closures are wrong: the chains have the weights w of the Geman-McClure loss, and chains that do not
fit are dropped.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kbr_localization import se2
from kbr_localization.errors import MapError
from kbr_localization.localization.calibration import Calibration, SIZE
from kbr_localization.localization.mapping.consistency import CORRELATED, DEVIATION, GATE
from kbr_localization.localization.mapping.loop_closure import Closures, REACH
from kbr_localization.localization.mapping.odometry_model import (
    corrected_poses,
    jacobians,
    Prior,
    ROBOT_SD,
    RUN_SD,
    SCALE,
)
from kbr_localization.localization.mapping.trajectories import Indices, Trajectories
from kbr_localization.se2 import FloatArray
from kbr_localization.vision.preparation import select_evenly
import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph
from scipy.sparse.linalg import splu, SuperLU


@dataclass(frozen=True)
class Solved:
    """
    Poses (n, 3) of all images and their covariances (n, 3, 3) after the best rigid alignment.

    `parameters`: (runs, 7) of the odometry; `calibration`: expected parameters of another run, in
    the metres of these runs. `kept`: mask (m,) of the closures that fit. `end_deviations`:
    standard deviations (3,) of the last image relative to the first, without alignment.
    """

    poses: FloatArray
    covariances: FloatArray
    parameters: FloatArray
    calibration: Calibration
    kept: NDArray[np.bool_]
    end_deviations: FloatArray


def solve_pose_graph(
    trajectories: Trajectories, closures: Closures, parameters: FloatArray, prior: Prior
) -> Solved:
    """Solve for the poses of joined segments; `parameters` (7,) is the initial guess of p."""
    graph = PoseGraph(trajectories, closures, prior)
    runs = int(trajectories.run_of_segment.max()) + 1
    poses = initial_poses(trajectories, closures, parameters)
    x = np.concatenate([poses.ravel(), np.tile(parameters, runs + 1)])
    x = graph.solve(x, np.ones(len(closures)))
    # drop chains that do not fit
    for _ in range(8):
        weights = (GATE / (graph.squared_errors(x)[1] + GATE)) ** 2
        x = graph.solve(x, weights, rounds=3)
    x = graph.solve(x, graph.inliers(x))
    kept = graph.inliers(x)
    for _ in range(5):
        graph.estimate_deviations(x, kept)
        x = graph.solve(x, kept * graph.robust_weights(x))
    return graph.solution(x, kept)


class PoseGraph:
    """Residuals of steps and closures; x: poses (n, 3), parameters p_r (runs, 7) and p (7,)."""

    def __init__(self, trajectories: Trajectories, closures: Closures, prior: Prior) -> None:
        self.trajectories, self.closures, self.prior = trajectories, closures, prior
        self.fixed, odometry = np.flatnonzero(trajectories.fixed_images), trajectories.odometry
        joined = np.diff(trajectories.segment) == 0
        before = np.flatnonzero(joined & ~trajectories.fixed_images[:-1])
        steps = se2.between(odometry[before], odometry[before + 1])
        self.steps = len(before)
        self.start = np.concatenate([before, closures.second])
        self.end = np.concatenate([before + 1, closures.first])
        self.relative = np.concatenate([steps, closures.relative])
        self.effects = np.concatenate([jacobians(steps), np.zeros((len(closures), 3, SIZE))])
        # a fifth of the usual noise is not systematic; 1e-6 is for a standing robot
        self.variances = 0.2 * (prior.noise.variances(steps) + 1e-6)
        # closures share images: all pairs of many runs on one way inform no more than a few
        ends = np.stack([closures.first, closures.second])
        count = np.bincount(ends.ravel(), minlength=len(trajectories))
        self.correlation = CORRELATED * np.maximum(0.25 * count[ends].sum(axis=0), 1.0)
        # deviations of closures by whole images, and of closures by matched points
        self.deviation, self.matched = np.tile(DEVIATION, (2, 1)), closures.matched.astype(np.intp)
        # find the elimination order once, as that takes longer than factoring: images in an order
        # with little fill-in, then the shared parameters
        n, runs = len(trajectories), int(trajectories.run_of_segment.max()) + 1
        links = sparse.coo_matrix((np.ones(len(self.start)), (self.start, self.end)), (n, n))
        links = links + links.T + (2 * len(self.start) + 1) * sparse.eye(n)
        images = np.argsort(_factored(links, 'MMD_AT_PLUS_A').perm_c)
        shared = np.arange(3 * n, 3 * n + SIZE * (runs + 1))
        self.order = np.append((3 * images[:, np.newaxis] + np.arange(3)).ravel(), shared)

    def _parts(self, x: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        poses, parameters = np.split(x, [3 * len(self.trajectories)])
        of_runs = parameters.reshape(-1, SIZE)
        return poses.reshape(-1, 3), of_runs[:-1], of_runs[-1]

    def _all_errors(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return errors (s + m, 3) of odometry steps and closures, and the motions they expect."""
        poses, parameters, _ = self._parts(x)
        of_runs = parameters[self.trajectories.run[self.start]]
        expected = self.relative + np.einsum('mij,mj->mi', self.effects, of_runs)
        return se2.between(expected, se2.between(poses[self.start], poses[self.end])), expected

    def errors(self, x: FloatArray) -> FloatArray:
        return self._all_errors(x)[0][self.steps :]  # noqa: E203

    def solve(self, x: FloatArray, weights: np.ndarray, rounds: int = 30) -> FloatArray:
        """
        Minimise by Gauss-Newton steps, with weights (m,) of the closures.

        Raises MapError if the graph is not connected.
        """
        self._check_connected(weights > 1e-6)
        for _ in range(rounds):
            solve, gradient = self._normal(x, weights)
            change = -solve(gradient)
            x = x + change
            headings = slice(2, 3 * len(self.trajectories), 3)
            x[headings] = se2.wrap_angle(x[headings])
            if np.abs(change).max() < 1e-4:
                break
        return x

    def _check_connected(self, used: NDArray[np.bool_]) -> None:
        every = np.concatenate([np.ones(self.steps, dtype=bool), used])
        n, fixed = len(self.trajectories), self.fixed  # connect all fixed images
        start = np.concatenate([self.start[every], fixed[:-1]])
        end = np.concatenate([self.end[every], fixed[1:]])
        related = sparse.coo_matrix((np.ones(len(start)), (start, end)), shape=(n, n))
        if csgraph.connected_components(related, directed=False)[0] > 1:
            raise MapError(
                'the poses of the images cannot be solved for: parts of the runs are related to '
                'nothing; build a map of each run, or drive where both have been, in the same '
                'direction, for 20 m'
            )

    def _normal(
        self, x: FloatArray, weights: np.ndarray
    ) -> tuple[Callable[[FloatArray], FloatArray], FloatArray]:
        """Return a solver of the normal equations, and the gradient."""
        error, jacobian = self._system(x, weights)
        ordered = jacobian[:, self.order]
        factor, place = _factored(ordered.T @ ordered, 'NATURAL'), np.argsort(self.order)
        return lambda right: factor.solve(right[self.order])[place], jacobian.T @ error

    def _system(self, x: FloatArray, weights: np.ndarray) -> tuple[FloatArray, sparse.csr_matrix]:
        """Return the residuals, scaled to variance one, and their Jacobian."""
        poses, parameters, common = self._parts(x)
        n, runs = len(poses), len(parameters)
        errors, expected = self._all_errors(x)
        trust = np.sqrt(weights / self.correlation)[:, np.newaxis] / self.deviation[self.matched]
        precise = np.concatenate([self.variances**-0.5, trust])
        turned = precise[..., np.newaxis] * se2.rotation(-poses[self.start, 2] - expected[:, 2])
        lever = (poses[self.start] - poses[self.end]) * np.array([1.0, 1.0, 0.0])
        by_run = -precise[..., np.newaxis] * (se2.rotation(-expected[:, 2]) @ self.effects)
        fixed, given = self.fixed, self.trajectories.odometry[self.fixed]
        if not len(fixed):
            fixed, given = np.zeros(1, dtype=np.intp), poses[:1]  # fix the first image
        away = se2.difference(poses[fixed], given)
        deviations, mean = self.prior.deviations.copy(), self.prior.mean.copy()
        if len(self.fixed) < 2:
            # fix the scale at 0: without known poses it would only shrink the errors
            deviations[SCALE], mean[SCALE] = 1e-6, 0.0
        first, of_run = 3 * n, self.trajectories.run[self.start]
        usual = np.diag(1.0 / RUN_SD)
        # residuals (k, d), and derivatives (k, d, u) by the u unknowns from columns (k,) on
        table: list[tuple[FloatArray, list[tuple[FloatArray, Indices]]]] = [
            (
                precise * errors,
                [
                    (-turned @ se2.adjoint(lever), 3 * self.start),
                    (turned, 3 * self.end),
                    (by_run, first + SIZE * of_run),
                ],
            ),
            (away / 1e-3, [(np.eye(3) / 1e-3, 3 * fixed)]),
            (
                (parameters - common) / RUN_SD,
                [
                    (usual, first + SIZE * np.arange(runs)),
                    (-usual, np.full(runs, first + SIZE * runs)),
                ],
            ),
            (
                (common - mean)[np.newaxis] / deviations,
                [(np.diag(1.0 / deviations), np.array([first + SIZE * runs]))],
            ),
        ]
        entries, row = [], 0
        for residuals, blocks in table:
            rows = row + np.arange(residuals.size).reshape(*residuals.shape, 1)
            row += residuals.size
            for values, column in blocks:
                columns = column[:, np.newaxis, np.newaxis] + np.arange(values.shape[-1])
                entries.append([a.ravel() for a in np.broadcast_arrays(values, rows, columns)])
        data, at_rows, at_columns = (np.concatenate(part) for part in zip(*entries, strict=True))
        jacobian = sparse.csr_matrix((data, (at_rows, at_columns)), shape=(row, len(x)))
        return np.concatenate([residuals.ravel() for residuals, _ in table]), jacobian

    def squared_errors(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return squared errors (m,) of closures, in deviations, and their means over chains."""
        squared = np.sum((self.errors(x) / DEVIATION) ** 2, axis=1)
        names, chain = np.unique(self.closures.chain, return_inverse=True)
        mean = np.bincount(chain, squared, len(names)) / np.bincount(chain, minlength=len(names))
        return squared, mean[chain]

    def inliers(self, x: FloatArray) -> NDArray[np.bool_]:
        """Return a mask (m,) of the closures that fit, in chains that fit on average."""
        squared, of_chains = self.squared_errors(x)
        return np.asarray((of_chains < GATE) & (squared < GATE))

    def robust_weights(self, x: FloatArray) -> FloatArray:
        """Return weights (m,) of the closures, below 1 for outliers by matched points."""
        missed = np.sum((self.errors(x) / self.deviation[self.matched]) ** 2, axis=1)
        return np.where(self.closures.matched, (GATE / (missed + GATE)) ** 2, 1.0)

    def estimate_deviations(self, x: FloatArray, kept: NDArray[np.bool_]) -> None:
        """Estimate the deviations of the closures from their errors; `kept`: mask (m,)."""
        errors = self.errors(x)
        for matched in (0, 1):
            own = errors[kept & (self.closures.matched == matched)]
            if len(own) > 3 * REACH:
                spread = 1.4826 * np.median(np.abs(own), axis=0)
                # matched points measure the lateral offset and the turn better than whole images
                smallest = [0.05, 0.025, 0.008] if matched else [0.05, 0.05, 0.02]
                self.deviation[matched] = np.clip(spread, smallest, DEVIATION)

    def solution(self, x: FloatArray, kept: NDArray[np.bool_]) -> Solved:
        solve, _ = self._normal(x, kept * self.robust_weights(x))
        poses, parameters, common = self._parts(x)
        free = np.flatnonzero(~self.trajectories.fixed_images)
        # compute covariances at these images and interpolate between them
        sample = select_evenly(free, 250)
        columns = (3 * sample[:, np.newaxis] + np.arange(3)).ravel()
        columns = np.append(columns, len(x) - SIZE + np.arange(SIZE))
        unit = np.zeros((len(x), len(columns)))
        unit[columns, np.arange(len(columns))] = 1.0
        joint = np.asarray(solve(unit)[columns])
        of_common = joint[-SIZE:, -SIZE:] + np.diag(RUN_SD**2)
        joint = joint[:-SIZE, :-SIZE] + self._unobservable(poses[sample])
        end_deviations = np.sqrt(np.maximum(np.diag(joint)[-3:], 0.0))
        if not len(self.fixed):
            joint = _after_alignment(joint, poses[sample])
        k, at = np.arange(len(sample)), np.arange(len(poses))
        blocks = joint.reshape(len(k), 3, len(k), 3)[k, :, k].reshape(len(k), 9)
        rows = np.stack([np.interp(at, sample, column) for column in blocks.T], axis=1)
        return Solved(
            poses,
            rows.reshape(-1, 3, 3),
            parameters,
            Calibration(common, of_common),
            kept,
            end_deviations,
        )

    def _unobservable(self, poses: FloatArray) -> FloatArray:
        """
        Return the covariance (3 k, 3 k) due to what closures do not determine reliably.

        That is the scale, unless poses are known, and the offset of the odometry's point, because
        closures are between images that look in the same direction.
        """
        ahead = np.stack([np.cos(poses[:, 2]), np.sin(poses[:, 2]), 0.0 * poses[:, 2]], axis=1)
        left = ahead[:, [1, 0, 2]] * [-1.0, 1.0, 0.0]
        changes = [self.prior.deviations[0] * ahead, self.prior.deviations[1] * left]
        if len(self.fixed) < 2:
            changes.append(ROBOT_SD[SCALE] * (poses - poses[0]) * np.array([1.0, 1.0, 0.0]))
        return np.asarray(sum(np.outer(change, change) for change in changes))


def _factored(matrix: sparse.spmatrix, ordering: str) -> SuperLU:
    options = {'SymmetricMode': True}
    return splu(matrix.tocsc(), ordering, diag_pivot_thresh=0.0, options=options)


def _after_alignment(joint: FloatArray, poses: FloatArray) -> FloatArray:
    """
    Return the covariance (3 k, 3 k) of poses after the best rigid alignment of their positions.

    With T (3 k, 3) the change of the poses by a rigid motion, the projection T (T^T T)^-1 T^T is
    what the alignment removes.
    """
    away = poses - poses.mean(axis=0)
    away[:, 2] = 0.0
    tangent = se2.adjoint(-away).reshape(-1, 3)
    positions = tangent.copy()
    positions[2::3] = 0.0
    normal = positions.T @ positions
    if np.linalg.cond(normal) > 1e12:
        return joint
    project = np.eye(len(tangent)) - tangent @ np.linalg.solve(normal, positions.T)
    return np.asarray(project @ joint @ project.T)


def initial_poses(
    trajectories: Trajectories, closures: Closures, parameters: FloatArray
) -> FloatArray:
    """Return poses (n, 3) by the corrected odometry, segments joined by the best closures."""
    poses, segment = corrected_poses(trajectories, parameters), trajectories.segment
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
