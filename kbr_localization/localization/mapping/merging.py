"""Chains of closures, each taken as one: all of its images say more than any of them."""

from __future__ import annotations

from dataclasses import dataclass

from kbr_localization import se2
from kbr_localization.localization.mapping.closures import Closures
from kbr_localization.localization.mapping.sequences import REACH
from kbr_localization.localization.mapping.trajectories import Indices, Trajectories
from kbr_localization.se2 import FloatArray
import numpy as np

DEVIATION = np.array([0.25, 0.25, 0.12])
"""Standard deviations of a closure along, across and in heading, before any is learnt."""
CORRELATED = float(REACH)
"""Closures of a chain whose sequences share most of their images, and which err alike."""
_ROUNDS = 3


@dataclass(frozen=True)
class MergedChains:
    """
    Chains taken as one closure each, at their middle.

    `first`, `second`: (c,) images. `relative`: (c, 3). `covariance`: (c, 3, 3), in the frame of
    the first image.
    """

    first: Indices
    second: Indices
    relative: FloatArray
    covariance: FloatArray

    def some(self, which: Indices) -> MergedChains:
        """Return those of indices (k,)."""
        return MergedChains(
            self.first[which], self.second[which], self.relative[which], self.covariance[which]
        )


def merged_chains(trajectories: Trajectories, closures: Closures, names: Indices) -> MergedChains:
    """Fit one closure to each of the chains named (c,), by the odometry along both its ways."""
    found = [_merged(trajectories, closures.some(closures.chain == name)) for name in names]
    first, second, relative, covariance = zip(*found, strict=True)
    return MergedChains(
        np.array(first), np.array(second), np.array(relative), np.array(covariance)
    )


def _merged(
    trajectories: Trajectories, chain: Closures
) -> tuple[int, int, FloatArray, FloatArray]:
    """
    Middle images of a chain, their relative pose and its covariance.

    Each closure, carried to the middle along both ways, says where the one is in the frame of the
    other; its heading says little, all positions together say more.
    """
    middle = len(chain) // 2
    first, second = int(chain.first[middle]), int(chain.second[middle])
    poses = trajectories.odometry
    ours = se2.between(poses[first], poses[chain.first])
    theirs = se2.between(poses[second], poses[chain.second])
    places = se2.compose(theirs, chain.relative)  # of our images, in the frame of `second`
    relative = chain.relative[middle]
    information = np.diag(1.0 / DEVIATION**2) / CORRELATED
    for _ in range(_ROUNDS):
        expected = se2.compose(relative, ours)
        error = places - expected
        error[:, 2] = se2.wrap_angle(error[:, 2])
        slope = np.zeros((len(chain), 3, 3))
        slope[:, 0, 0] = slope[:, 1, 1] = slope[:, 2, 2] = 1.0
        slope[:, 0, 2] = -(expected - relative)[:, 1]
        slope[:, 1, 2] = (expected - relative)[:, 0]
        normal = np.einsum('mji,jk,mkl->il', slope, information, slope)
        relative = relative + np.linalg.solve(
            normal, np.einsum('mji,jk,mk->i', slope, information, error)
        )
    turn = se2.rotation(-relative[2])
    # a single closure with all its images shared is the least that is known
    return first, second, relative, turn @ np.linalg.inv(normal) @ turn.T
