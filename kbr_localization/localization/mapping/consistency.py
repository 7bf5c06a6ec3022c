"""
Which chains of closures can be true together.

Two closures i-j and k-l make a ring: from i to j, along the odometry from j to l, to k, and back
along the odometry to i. It has to close within the uncertainty of odometry and closures (pairwise
consistency maximization, Mangelson, Dominic, Eustice and Vasudevan, ICRA 2018). The systematic
errors of the odometry count with their own uncertainty; the drift, which turns long trajectories
by more than a linear law knows, is searched on a grid for the largest consistent set of chains.
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
"""Standard deviations of a closure along, across and in heading, before any is learnt."""
CORRELATED = float(REACH)
"""Closures of a chain whose sequences share most of their images, and which err alike."""
GATE = float(special.chdtri(3, 0.001))
"""Squared Mahalanobis distance that a ring may have."""
_DRIFT_STEP = 0.004  # radians per metre between drifts that are tried, up to ten times as much
_STEP = 1e-4  # of the parameters, for derivatives


def accept_closures(
    trajectories: Trajectories, closures: Closures, prior: Prior
) -> tuple[NDArray[np.bool_], FloatArray, Indices]:
    """
    Choose the closures that are more than look-alikes, by what is known of the odometry.

    Closures between two groups of segments join them when together they have four times the
    score of the strongest chain that contradicts what was agreed upon. Within a group they are
    believed by the same rule. Returns which closures (m,) hold, parameters (7,) by their rings,
    and joined groups of segments (p,).
    """
    agreed_chains, parameters = np.zeros(0, dtype=np.intp), prior.mean
    if len(closures):
        agreed_chains, parameters = consistent_chains(trajectories, closures, prior)
    name, at = np.unique(closures.chain, return_index=True)
    score = np.bincount(closures.chain, closures.score)[name]
    agreed = np.isin(name, agreed_chains)
    # at least that of about ten images in a row
    needed = max(4.0 * float(score[~agreed].max(initial=0.0)), 40.0)
    ends = trajectories.segment[np.stack([closures.first[at], closures.second[at]], axis=1)]
    group = np.arange(len(trajectories.run_of_segment))
    group[trajectories.fixed] = int(np.argmax(trajectories.fixed))
    while True:
        sides = np.sort(group[ends], axis=1)
        between = agreed & (sides[:, 0] != sides[:, 1])
        pairs, which = np.unique(sides[between], axis=0, return_inverse=True)
        weight = np.bincount(which.ravel(), score[between])
        if weight.max(initial=0.0) < needed:
            break
        kept, joined = pairs[np.argmax(weight)]
        group[group == joined] = kept
    within = agreed & (sides[:, 0] == sides[:, 1])
    total = np.bincount(sides[within, 0], score[within], minlength=len(group))
    believed = name[within][total[sides[within, 0]] >= needed]
    return np.isin(closures.chain, believed), parameters, group


def consistent_chains(
    trajectories: Trajectories, closures: Closures, prior: Prior
) -> tuple[Indices, FloatArray]:
    """Find the chains that hold together best, and the odometry's parameters (7,) they tell."""
    strengths = np.bincount(closures.chain, closures.score).astype(np.float64)
    names = np.sort(_strongest(trajectories, closures, strengths, 600))
    few = np.flatnonzero(np.isin(names, _strongest(trajectories, closures, strengths, 200)))
    middles, strengths = _middles(trajectories, closures, names), strengths[names]
    usual = prior.deviations[DRIFT]
    spread = np.append(prior.deviations[:-1], min(_DRIFT_STEP, usual))
    best, most = prior.mean, -np.inf
    for drift in _DRIFT_STEP * np.arange(-10, 11):
        if abs(drift) <= 3.0 * usual:
            assumed = Prior(prior.noise, np.append(prior.mean[:-1], drift), spread)
            rings = _Rings(middles.select(few), trajectories, assumed)
            chosen = rings.largest_set(strengths[few])
            found = rings.parameters(chosen, prior)
            weight = strengths[few][chosen].sum() - 0.5 * (found[DRIFT] / usual) ** 2
            if weight > most:
                best, most = found, weight
    # deviations that the rings tell
    refined = np.minimum([0.08, 0.05, 0.01, 0.02, 0.01, 0.005, 0.0015], prior.deviations)
    for _ in range(2):
        rings = _Rings(middles, trajectories, Prior(prior.noise, best, refined))
        chosen = rings.largest_set(strengths)
        best = rings.parameters(chosen, prior)
    return names[chosen], best


def _strongest(
    trajectories: Trajectories, closures: Closures, strengths: FloatArray, count: int
) -> Indices:
    """
    Choose `count` chains: half are the strongest, half in turn by how far they are apart.

    Runs along one way have many strong chains, which tell nothing of the drift.
    """
    order = np.argsort(-strengths, kind='stable')
    first, rest = np.split(order, [min(count // 2, len(order))])
    metres = np.abs(trajectories.travel[closures.first] - trajectories.travel[closures.second])
    apart = np.bincount(closures.chain, metres) / np.bincount(closures.chain)
    kind = (apart[rest] / MIN_LOOP).astype(np.intp)
    turn = np.array([np.sum(kind[:number] == each) for number, each in enumerate(kind)])
    return np.concatenate([first, rest[np.argsort(turn, kind='stable')]])[:count].astype(np.intp)


@dataclass(frozen=True)
class _Middles:
    """Chains (c,) as one closure each, at their middle; `covariance` in the frame of `first`."""

    first: Indices
    second: Indices
    relative: FloatArray
    covariance: FloatArray

    def select(self, which: Indices) -> _Middles:
        return _Middles(*(column[which] for column in vars(self).values()))


def _middles(trajectories: Trajectories, closures: Closures, names: Indices) -> _Middles:
    """Take the mean of each chain, its closures being carried to its middle by the odometry."""
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
    return _Middles(first, second, relative, covariance)


class _Rings:
    """All pairs (c * c) of closures as rings, under assumed parameters of the odometry."""

    def __init__(self, middles: _Middles, trajectories: Trajectories, assumed: Prior) -> None:
        self.assumed, self.count = assumed, len(middles.first)
        self._body, self._at = trajectories.body, corrected_poses(trajectories, assumed.mean)
        steps = _STEP * np.eye(SIZE)
        self._moved = [corrected_poses(trajectories, assumed.mean + step) for step in steps]
        self._wander = PathNoise(trajectories, self._at, assumed.noise)
        k, i = (index.ravel() for index in np.meshgrid(*[np.arange(self.count)] * 2))
        ring = self._close(middles.select(i), middles.select(k))
        self.errors, self.covariances, self.effects, self.closed, fits = ring
        # alone a closure makes a ring with the odometry between its own images
        nowhere = np.zeros((self.count, 3)), np.zeros((self.count, 3, 3))
        self.possible = self._close(middles, _Middles(middles.first, middles.first, *nowhere))[-1]
        pairs = fits.reshape(self.count, self.count)
        self.consistent = pairs & pairs.T & self.possible & self.possible[:, np.newaxis]

    def _close(
        self, ours: _Middles, theirs: _Middles
    ) -> tuple[FloatArray, FloatArray, FloatArray, NDArray[np.bool_], NDArray[np.bool_]]:
        """
        Close rings of pairs (m,) of closures.

        Their errors (m, 3) in the frame of the last image, covariances (m, 3, 3), derivatives
        (m, 3, 7) by the parameters; whether there is a ring (m,), and whether it may be closed.
        """

        def error(at: FloatArray) -> FloatArray:
            back = se2.between(at[theirs.second], at[ours.second])
            onward = se2.between(at[ours.first], at[theirs.first])
            whole = se2.compose(se2.compose(back, ours.relative), onward)
            return se2.between(theirs.relative, whole)

        errors = error(self._at)
        effects = np.stack([error(moved) for moved in self._moved], axis=-1) - errors[..., None]
        effects[:, 2] = se2.wrap_angle(effects[:, 2])
        effects /= _STEP
        carry = se2.adjoint(se2.between(self._at[theirs.first], self._at[ours.first]))
        covariances = carry @ ours.covariance @ np.swapaxes(carry, 1, 2) + theirs.covariance
        covariances += self._wander.between(ours.first, theirs.first)
        covariances += self._wander.between(ours.second, theirs.second)
        scaled = effects * self.assumed.deviations
        total = covariances + scaled @ np.swapaxes(scaled, 1, 2)
        squared = np.sum(errors * np.linalg.solve(total, errors[..., None])[..., 0], axis=1)
        closed = self._body[ours.first] == self._body[theirs.first]
        closed &= self._body[ours.second] == self._body[theirs.second]
        return errors, covariances, effects, closed, ~closed | (squared < GATE)

    def largest_set(self, strengths: FloatArray) -> Indices:
        """Find closures that may be true together, of large total strength (c,), greedily."""
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
        """Parameters (7,) that close the rings of some closures best, by Cauchy's law."""
        inside = np.isin(np.arange(self.count), chosen)
        use = self.closed & (np.outer(inside, inside) & ~np.eye(self.count, dtype=bool)).ravel()
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
