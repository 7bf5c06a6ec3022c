"""
Find the chains of closures that are consistent with each other.

Two closures i-j and k-l make a cycle: from i to j, along the odometry from j to l, to k, and back
along the odometry to i. The motions along a cycle have to cancel within the uncertainty of
odometry and closures (pairwise consistency maximization, Mangelson, Dominic, Eustice and
Vasudevan, ICRA 2018), which includes the systematic errors of the odometry. The effect of drift on
long trajectories is not linear: try drifts on a grid and take the largest consistent set.
"""

from __future__ import annotations

from dataclasses import dataclass

from kbr_localization import se2
from kbr_localization.localization.calibration import SIZE
from kbr_localization.localization.mapping.loop_closure import Closures, MIN_LOOP, REACH
from kbr_localization.localization.mapping.odometry_model import (
    corrected_poses,
    DRIFT,
    PathNoise,
    Prior,
    SCALE,
)
from kbr_localization.localization.mapping.trajectories import Indices, Trajectories
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray
from scipy import special

DEVIATION = np.array([0.25, 0.25, 0.12])
"""Prior standard deviations of a closure along, across and in heading, in metres and radians."""
CORRELATED = float(REACH)
"""Number of neighbouring closures of a chain that count as one: they share most images."""
GATE = float(special.chdtri(3, 0.001))
"""Largest squared Mahalanobis distance of a consistent cycle, or of a closure that fits."""
_DRIFT_STEP = 0.004  # radians per metre between the drifts of the grid, which has ten each way
_STEP = 1e-4  # of the parameters, for numeric derivatives


def accept_closures(
    trajectories: Trajectories, closures: Closures, prior: Prior
) -> tuple[NDArray[np.bool_], FloatArray, Indices]:
    """
    Accept the closures that are certain not to be look-alikes.

    Consistent closures between two groups of segments join the groups if their total score is four
    times that of the strongest inconsistent chain. The same rule accepts closures within a group.
    Return a mask of the accepted closures (m,), parameters (7,) by their cycles, and the group of
    each segment (p,).
    """
    chains, parameters = np.zeros(0, dtype=np.intp), prior.mean
    if len(closures):
        chains, parameters = consistent_chains(trajectories, closures, prior)
    name, at = np.unique(closures.chain, return_index=True)
    score = np.bincount(closures.chain, closures.score)[name]
    consistent = np.isin(name, chains)
    # at least the score of about ten consecutive images
    needed = max(4.0 * float(score[~consistent].max(initial=0.0)), 40.0)
    ends = trajectories.segment[np.stack([closures.first[at], closures.second[at]], axis=1)]
    group = np.arange(len(trajectories.run_of_segment))
    group[trajectories.fixed] = int(np.argmax(trajectories.fixed))
    while True:
        sides = np.sort(group[ends], axis=1)
        between = consistent & (sides[:, 0] != sides[:, 1])
        pairs, which = np.unique(sides[between], axis=0, return_inverse=True)
        weight = np.bincount(which.ravel(), score[between])
        if weight.max(initial=0.0) < needed:
            break
        kept, joined = pairs[np.argmax(weight)]
        group[group == joined] = kept
    within = consistent & (sides[:, 0] == sides[:, 1])
    total = np.bincount(sides[within, 0], score[within], minlength=len(group))
    accepted = name[within][total[sides[within, 0]] >= needed]
    return np.isin(closures.chain, accepted), parameters, group


def consistent_chains(
    trajectories: Trajectories, closures: Closures, prior: Prior
) -> tuple[Indices, FloatArray]:
    """Return the strongest consistent chains and the odometry parameters (7,) that they imply."""
    strengths = np.bincount(closures.chain, closures.score).astype(np.float64)
    names = np.sort(_strongest(trajectories, closures, strengths, 600))
    few = np.flatnonzero(np.isin(names, _strongest(trajectories, closures, strengths, 200)))
    means, strengths = _chain_means(trajectories, closures, names), strengths[names]
    usual = prior.deviations[DRIFT]
    spread = np.append(prior.deviations[:-1], min(_DRIFT_STEP, usual))
    best, most = prior.mean, -np.inf
    for drift in _DRIFT_STEP * np.arange(-10, 11):
        if abs(drift) <= 3.0 * usual:
            assumed = Prior(prior.noise, np.append(prior.mean[:-1], drift), spread)
            cycles = _Cycles(means.select(few), trajectories, assumed)
            chosen = cycles.largest_set(strengths[few])
            found = cycles.parameters(chosen, prior)
            weight = strengths[few][chosen].sum() - 0.5 * (found[DRIFT] / usual) ** 2
            if weight > most:
                best, most = found, weight
    # deviations of parameters that were estimated from cycles
    refined = np.minimum([0.08, 0.05, 0.01, 0.02, 0.01, 0.005, 0.0015], prior.deviations)
    for _ in range(2):
        cycles = _Cycles(means, trajectories, Prior(prior.noise, best, refined))
        chosen = cycles.largest_set(strengths)
        best = cycles.parameters(chosen, prior)
    return names[chosen], best


def _strongest(
    trajectories: Trajectories, closures: Closures, strengths: FloatArray, count: int
) -> Indices:
    """
    Choose `count` chains: half are the strongest, half alternate in travel between their images.

    Runs along one way have many strong chains, which do not determine the drift.
    """
    order = np.argsort(-strengths, kind='stable')
    first, rest = np.split(order, [min(count // 2, len(order))])
    metres = np.abs(trajectories.travel[closures.first] - trajectories.travel[closures.second])
    apart = np.bincount(closures.chain, metres) / np.bincount(closures.chain)
    kind = (apart[rest] / MIN_LOOP).astype(np.intp)
    turn = np.array([np.sum(kind[:number] == each) for number, each in enumerate(kind)])
    return np.concatenate([first, rest[np.argsort(turn, kind='stable')]])[:count].astype(np.intp)


@dataclass(frozen=True)
class _ChainMeans:
    """One closure per chain (c,), at its middle; its `covariance` is in the frame of `first`."""

    first: Indices
    second: Indices
    relative: FloatArray
    covariance: FloatArray

    def select(self, which: Indices) -> _ChainMeans:
        return _ChainMeans(*(column[which] for column in vars(self).values()))


def _chain_means(trajectories: Trajectories, closures: Closures, names: Indices) -> _ChainMeans:
    """Average the closures of each chain, carried to its middle by the odometry."""
    chains = closures.select(np.isin(closures.chain, names))
    chains = chains.select(np.argsort(chains.chain, kind='stable'))
    _, start, which, count = np.unique(
        chains.chain, return_index=True, return_inverse=True, return_counts=True
    )
    middle, poses = start + count // 2, trajectories.odometry
    first, second = chains.first[middle], chains.second[middle]
    theirs = se2.between(poses[second[which]], poses[chains.second])
    ours = se2.between(poses[chains.first], poses[first[which]])
    relative = chains.relative[middle]
    carried = se2.compose(se2.compose(theirs, chains.relative), ours)
    away = se2.difference(carried, relative[which])
    relative += np.add.reduceat(away, start) / count[:, np.newaxis]
    covariance = (CORRELATED / count)[:, np.newaxis, np.newaxis] * np.diag(DEVIATION**2)
    return _ChainMeans(first, second, relative, covariance)


class _Cycles:
    """The cycles of all pairs (c * c) of closures, with assumed parameters of the odometry."""

    def __init__(self, means: _ChainMeans, trajectories: Trajectories, assumed: Prior) -> None:
        self.assumed, self.count = assumed, len(means.first)
        self._body, self._poses = trajectories.body, corrected_poses(trajectories, assumed.mean)
        steps = _STEP * np.eye(SIZE)
        self._varied = [corrected_poses(trajectories, assumed.mean + step) for step in steps]
        self._noise = PathNoise(trajectories, self._poses, assumed.noise)
        k, i = (index.ravel() for index in np.meshgrid(*[np.arange(self.count)] * 2))
        cycle = self._evaluate(means.select(i), means.select(k))
        self.errors, self.covariances, self.effects, self.is_cycle, fits = cycle
        # a single closure makes a cycle with the odometry between its own images
        nowhere = np.zeros((self.count, 3)), np.zeros((self.count, 3, 3))
        self.possible = self._evaluate(means, _ChainMeans(means.first, means.first, *nowhere))[-1]
        pairs = fits.reshape(self.count, self.count)
        self.consistent = pairs & pairs.T & self.possible & self.possible[:, np.newaxis]

    def _evaluate(
        self, ours: _ChainMeans, theirs: _ChainMeans
    ) -> tuple[FloatArray, FloatArray, FloatArray, NDArray[np.bool_], NDArray[np.bool_]]:
        """
        Evaluate the cycles of pairs (m,) of closures.

        Return their errors (m, 3) in the frame of the last image, covariances (m, 3, 3) and
        derivatives by the parameters (m, 3, 7); masks of the pairs that make a cycle (m,), and of
        those that are consistent or make none (m,).
        """

        def error(poses: FloatArray) -> FloatArray:
            back = se2.between(poses[theirs.second], poses[ours.second])
            onward = se2.between(poses[ours.first], poses[theirs.first])
            whole = se2.compose(se2.compose(back, ours.relative), onward)
            return se2.between(theirs.relative, whole)

        errors = error(self._poses)
        effects = np.stack([error(poses) for poses in self._varied], axis=-1) - errors[..., None]
        effects[:, 2] = se2.wrap_angle(effects[:, 2])
        effects /= _STEP
        carry = se2.adjoint(se2.between(self._poses[theirs.first], self._poses[ours.first]))
        covariances = carry @ ours.covariance @ np.swapaxes(carry, 1, 2) + theirs.covariance
        covariances += self._noise.between(ours.first, theirs.first)
        covariances += self._noise.between(ours.second, theirs.second)
        scaled = effects * self.assumed.deviations
        total = covariances + scaled @ np.swapaxes(scaled, 1, 2)
        squared = np.sum(errors * np.linalg.solve(total, errors[..., None])[..., 0], axis=1)
        is_cycle = self._body[ours.first] == self._body[theirs.first]
        is_cycle &= self._body[ours.second] == self._body[theirs.second]
        return errors, covariances, effects, is_cycle, ~is_cycle | (squared < GATE)

    def largest_set(self, strengths: FloatArray) -> Indices:
        """Find a set of consistent closures with a large total of `strengths` (c,), greedily."""
        strengths = np.where(self.possible, strengths, 0.0)
        best, most = np.zeros(0, dtype=np.intp), 0.0
        support = self.consistent @ strengths * (strengths > 0)
        for seed in np.argsort(-support, kind='stable')[:30]:
            members, left = [int(seed)], self.consistent[seed] & (strengths > 0)
            left[seed] = False
            while left.any():
                gain = np.where(left, self.consistent[:, left] @ strengths[left], -1.0)
                chosen = int(np.argmax(gain))
                members.append(chosen)
                left &= self.consistent[chosen]
                left[chosen] = False
            weight = float(strengths[members].sum())
            if weight > most:
                best, most = np.sort(np.array(members)), weight
        return best

    def parameters(self, chosen: Indices, prior: Prior) -> FloatArray:
        """Fit the odometry errors (7,) to the cycles of chosen closures, with a Cauchy loss."""
        inside = np.isin(np.arange(self.count), chosen)
        use = self.is_cycle & (np.outer(inside, inside) & ~np.eye(self.count, dtype=bool)).ravel()
        if not use.any():
            return self.assumed.mean
        root = np.linalg.inv(np.linalg.cholesky(self.covariances[use]))
        error = np.einsum('mij,mj->mi', root, self.errors[use])
        effect, change = root @ self.effects[use], np.zeros(SIZE)
        known = np.diag(1.0 / prior.deviations**2)
        for _ in range(5):
            squared = np.sum((error + effect @ change) ** 2, axis=1)
            weighted = effect / ((1.0 + squared / GATE) * len(chosen))[:, np.newaxis, np.newaxis]
            normal = np.einsum('mki,mkj->ij', weighted, effect) + known
            right = np.einsum('mki,mk->i', weighted, error)
            right += known @ (self.assumed.mean - prior.mean)
            change = -np.linalg.solve(normal, right)
        result = self.assumed.mean + change
        result[SCALE] = 0.0
        return np.asarray(result)
