"""
Which chains of closures can be true together.

Two closures i-j and k-l make a ring: from i to j, along the odometry from j to l, to k, and back
along the odometry to i. It has to close within what odometry and closures leave open (pairwise
consistency maximization, Mangelson, Dominic, Eustice and Vasudevan, ICRA 2018). The systematic
errors of the odometry count with their own uncertainty; the drift, which turns long ways by more
than any linear law knows, is sought on a grid: that under which the largest consistent set of
chains holds is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

from kbr_localization import se2
from kbr_localization.localization.mapping.closures import Closures, OWN_WAY, ways_apart
from kbr_localization.localization.mapping.merging import merged_chains, MergedChains
from kbr_localization.localization.mapping.trajectories import Indices, Trajectories
from kbr_localization.localization.mapping.wheels import (
    Belief,
    PARAMETERS,
    Prior,
    SCALE,
    tracks,
    Wander,
)
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray
from scipy import special

GATE = float(special.chdtri(3, 0.001))
"""Squared Mahalanobis distance that a ring may have."""
DRIFTS = np.arange(-10, 11) * 0.004
"""Radians per metre that are tried."""
_LARGEST = 600  # chains that are weighed against each other, the strongest
_LARGEST_ON_GRID = 200  # the same for every drift that is tried
_SEEDS = 30  # chains that a consistent set is grown from
_TRIED = 3.0  # standard deviations of the drift
_STEP = 1e-4  # of a parameter, for differences
_REFINED = 2  # times that the set is sought again, with the parameters that it tells
REFINED = np.array([0.08, 0.05, 0.01, 0.02, 0.005, 0.0015])
"""Standard deviations of the parameters that an agreement has."""
_ROBUST_ROUNDS = 5


@dataclass(frozen=True)
class Agreement:
    """
    A set of chains that can be true together.

    `chains`: their numbers. `weight`: sum of their scores. `parameters`: (6,) of the odometry, as
    the rings have them. `rival`: weight of the heaviest set of the other chains: look-alikes.
    """

    chains: Indices
    weight: float
    parameters: FloatArray
    rival: float = 0.0


def agree(trajectories: Trajectories, closures: Closures, prior: Prior) -> Agreement:
    """Find the odometry's errors and the chains that hold together best."""
    strengths = np.bincount(closures.chain, weights=closures.score).astype(np.float64)
    apart = ways_apart(trajectories, closures)
    names = np.sort(_strongest(strengths, apart, _LARGEST))
    middles = merged_chains(trajectories, closures, names)
    known = prior.belief
    spread, usual = known.deviations.copy(), known.deviations[-1]
    spread[-1] = min(DRIFTS[1] - DRIFTS[0], usual)
    refined = np.minimum(REFINED, known.deviations)
    drifts = DRIFTS[np.abs(DRIFTS) <= _TRIED * usual]
    few = _strongest(strengths[names], apart[names], _LARGEST_ON_GRID)
    some, weights = middles.some(few), strengths[names][few]
    found = [
        _agreed(trajectories, some, weights, prior, Belief(_drifting(known.mean, drift), spread))
        for drift in drifts
    ]
    best = max(found, key=lambda each: each[1] - 0.5 * (each[2][-1] / usual) ** 2)
    for _ in range(_REFINED):
        best = _agreed(trajectories, middles, strengths[names], prior, Belief(best[2], refined))
    others = np.setdiff1d(np.arange(len(names)), best[0])
    rival = 0.0
    if others.size:
        belief = Belief(best[2], refined)
        rings = _Rings(middles.some(others), trajectories, prior, belief)
        consistent, alone = rings.consistent()
        left = np.where(alone, strengths[names][others], 0.0)
        rival = float(left[_largest_set(consistent, left)].sum())
    return Agreement(names[best[0]], best[1], best[2], rival)


def _strongest(strengths: FloatArray, apart: FloatArray, count: int) -> Indices:
    """
    Choose so many chains: half of them the strongest, half by turns of how far they are apart.

    Runs along one way have many strong chains between them, which tell nothing of the drift.
    """
    order = np.argsort(-strengths, kind='stable')
    first, rest = np.split(order, [min(count // 2, len(order))])
    kind = (apart[rest] / OWN_WAY).astype(np.intp)
    turn = np.empty(len(rest), dtype=np.intp)
    for members in (np.flatnonzero(kind == each) for each in np.unique(kind)):
        turn[members] = np.arange(len(members))
    return np.concatenate([first, rest[np.argsort(turn, kind='stable')]])[:count]


def _drifting(parameters: FloatArray, drift: float) -> FloatArray:
    result = parameters.copy()
    result[-1] = drift
    return result


def _agreed(
    trajectories: Trajectories,
    middles: MergedChains,
    strengths: FloatArray,
    prior: Prior,
    belief: Belief,
) -> tuple[Indices, float, FloatArray]:
    """Chains that hold together under a belief, their weight, and the parameters they tell."""
    rings = _Rings(middles, trajectories, prior, belief)
    consistent, alone = rings.consistent()
    chosen = _largest_set(consistent, np.where(alone, strengths, 0.0))
    return chosen, float(strengths[chosen].sum()), rings.parameters(chosen, prior.belief)


class _Rings:
    """All pairs (c * c) of closures as rings, and each of them with the way between its images."""

    def __init__(
        self, middles: MergedChains, trajectories: Trajectories, prior: Prior, belief: Belief
    ) -> None:
        c = self.count = len(middles.first)
        k, i = (index.ravel() for index in np.meshgrid(np.arange(c), np.arange(c)))
        self.first, self.second = middles.first[i], middles.second[i]
        self.other_first, self.other_second = middles.first[k], middles.second[k]
        self.relative, self.other = middles.relative[i], middles.relative[k]
        self._spread, self._other_spread = middles.covariance[i], middles.covariance[k]
        piece = trajectories.body
        self.closed = (piece[self.first] == piece[self.other_first]) & (
            piece[self.second] == piece[self.other_second]
        )
        self.middles, self.belief, self._pieces = middles, belief, piece
        self.poses = tracks(trajectories, belief.mean)
        units = np.eye(PARAMETERS)
        self.moved = [tracks(trajectories, belief.mean + _STEP * unit) for unit in units]
        self._wander = Wander.of(trajectories, self.poses, prior.noise)

    def consistent(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which pairs (c, c) may be true together, and which closures (c,) at all."""
        errors, total, effects = self._law()
        distance = _mahalanobis(errors, total, effects, self.belief.deviations)
        pairs = np.where(self.closed, distance < GATE, True).reshape(self.count, self.count)
        alone = self._alone() < GATE
        pairs = pairs & pairs.T
        np.fill_diagonal(pairs, True)
        return pairs & alone & alone[:, np.newaxis], alone

    def parameters(self, chosen: Indices, known: Belief) -> FloatArray:
        """
        Parameters (6,) that close the rings of some closures best, by robust least squares.

        `known`: what is known of them without closures.

        Each of n closures is in about n rings, which count as one measurement together.
        """
        errors, total, effects = self._law()
        inside = np.zeros((self.count, self.count), dtype=bool)
        inside[np.ix_(chosen, chosen)] = True
        np.fill_diagonal(inside, False)
        use = inside.ravel() & self.closed
        if not use.any():
            return self.belief.mean
        information = np.linalg.inv(total[use]) / max(len(chosen), 1)
        error, effect = errors[use], effects[use]
        prior, change = np.diag(1.0 / known.deviations**2), np.zeros(PARAMETERS)
        before = self.belief.mean - known.mean
        for _ in range(_ROBUST_ROUNDS):
            left = error + effect @ change
            squared = np.einsum('mi,mij,mj->m', left, information, left) * len(chosen)
            weighted = information / (1.0 + squared / GATE)[:, np.newaxis, np.newaxis]
            projected = np.einsum('mki,mkj->mij', effect, weighted)
            normal = np.einsum('mij,mjk->ik', projected, effect) + prior
            right = np.einsum('mij,mj->i', projected, error) + prior @ before
            change = -np.linalg.solve(normal, right)
        result = self.belief.mean + change
        result[SCALE] = 0.0
        return np.asarray(result)

    def _law(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Errors (m, 3) of the rings, covariances (m, 3, 3) and derivatives (m, 3, 6)."""
        errors, poses = self._error(self.poses), self.poses
        near, turn = self._wander.between(self.first, self.other_first, self.other_first)
        far, other_turn = self._wander.between(self.second, self.other_second, self.other_second)
        onward = se2.between(poses[self.first], poses[self.other_first])
        carry = se2.adjoint(se2.inverse(onward))
        total = np.einsum('mij,mjk,mlk->mil', carry, self._spread, carry)
        total += self._other_spread
        total[:, 0, 0] += near + far
        total[:, 1, 1] += near + far
        total[:, 2, 2] += turn + other_turn
        return errors, total, _effects(errors, [self._error(each) for each in self.moved])

    def _error(self, poses: FloatArray) -> FloatArray:
        """Tell what (m, 3) each ring misses, in the frame of its last image."""
        back = se2.between(poses[self.other_second], poses[self.second])
        onward = se2.between(poses[self.first], poses[self.other_first])
        around = se2.compose(se2.compose(back, self.relative), onward)
        return se2.between(self.other, around)

    def _alone(self) -> FloatArray:
        """Squared distance (c,) of closures within a piece from the odometry, else 0."""
        first, second = self.middles.first, self.middles.second

        def error(poses: FloatArray) -> FloatArray:
            return se2.between(self.middles.relative, se2.between(poses[second], poses[first]))

        place, turn = self._wander.between(second, first, first)
        total = self.middles.covariance.copy()
        total[:, 0, 0] += place
        total[:, 1, 1] += place
        total[:, 2, 2] += turn
        missed = error(self.poses)
        effects = _effects(missed, [error(each) for each in self.moved])
        distance = _mahalanobis(missed, total, effects, self.belief.deviations)
        return np.where(self._pieces[first] == self._pieces[second], distance, 0.0)


def _effects(error: FloatArray, moved: list[FloatArray]) -> FloatArray:
    """Differentiate: (m, 3, 6) of errors (m, 3) by the parameters, as differences."""
    change = np.stack(moved, axis=-1) - error[:, :, np.newaxis]
    change[:, 2] = se2.wrap_angle(change[:, 2])
    return change / _STEP


def _mahalanobis(
    error: FloatArray, total: FloatArray, effects: FloatArray, deviations: FloatArray
) -> FloatArray:
    """Squared distance (m,) of errors (m, 3), with parameters of some deviations (6,)."""
    scaled = effects * deviations
    total = total + np.einsum('mik,mjk->mij', scaled, scaled)
    solved = np.linalg.solve(total, error[:, :, np.newaxis])[:, :, 0]
    return np.asarray(np.sum(error * solved, axis=1))


def _largest_set(consistent: NDArray[np.bool_], strengths: FloatArray) -> Indices:
    """Find a set of pairwise consistent members of large total strength, greedily."""
    best, most = np.zeros(0, dtype=np.intp), 0.0
    support = consistent @ strengths * (strengths > 0)
    for seed in np.argsort(-support, kind='stable')[:_SEEDS]:
        if strengths[seed] <= 0.0:
            continue
        members, left = [int(seed)], consistent[seed] & (strengths > 0)
        left[seed] = False
        while left.any():
            gain = np.where(left, consistent[:, left] @ strengths[left], -1.0)
            chosen = int(np.argmax(gain))
            members.append(chosen)
            left &= consistent[chosen]
            left[chosen] = False
        weight = float(strengths[members].sum())
        if weight > most:
            best, most = np.sort(np.array(members)), weight
    return best
