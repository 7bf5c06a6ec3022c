"""
Strata: places where the robot may be, each a few points with log odds against a wrong place.

One stratum is believed. Others are born where an image could be, or leave the belief with a
grossly wrong odometry (*led*). All are predicted, weighed and resampled in the same way, each
within itself (cluster-based Monte Carlo localization: Milstein, Sanchez and Williamson, 2002). The
log odds of a stratum grow with each image by

    (1 - exp(-min(d, h / 2) / h)) (log Lambda - log(1 - c + c exp(k))),

d metres after the last one: the part of the image that is new for a kernel of bandwidth h. A wrong
place explains an image by exp(k) as far as the map knows it; k, and the limit that the log odds of
wrong places reach by chance, are learnt from the map (`wrong_places`). Robots drive where the map
was driven: the prior of a place is its mean coverage, at least `OFF_MAP`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kbr_localization.localization.calibration import SIZE
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.filter.image_model import ImageModel
from kbr_localization.localization.filter.points import Points
from kbr_localization.localization.filter.pose_kernel import WIDTH
from kbr_localization.localization.map.similarity import Similarity
from kbr_localization.se2 import FloatArray, wrap_angle
import numpy as np
from numpy.typing import NDArray

SMALL = 30
"""Points of a stratum that is not believed."""
ELSEWHERE, LED = 10, 6  # numbers of strata
BORN = float(np.log(0.003))
"""Log odds of a place for which only its first image speaks."""
OFF_MAP = 0.01
"""Prior density of a place that the map does not know, relative to one that it knows."""
CANDIDATES = 4
"""Images of a large map that a stratum is born about."""
LIGHT = 40.0  # images, after which the light may have changed
INFORMATIVE = 0.8  # i before any image, worth half as many images


@dataclass(eq=False)
class Strata:
    """
    Sets of points (s, m), and the nats by which images speak for each rather than a wrong place.

    `log_odds` (s,); `ages` (s,) in images; `led` (s,): whether born with a wrong odometry.
    `likelihood`, `coverage` (s,): Lambda and c of the last image; `known` (s,): mean c over about
    a bandwidth of way.
    """

    points: Points
    log_odds: FloatArray
    ages: NDArray[np.int64]
    led: NDArray[np.bool_]
    likelihood: FloatArray
    coverage: FloatArray
    known: FloatArray

    @staticmethod
    def born(points: Points, log_odds: float, led: bool = False) -> Strata:
        """Make one stratum of points (m,)."""
        one = np.ones(1)
        sets = points.select(np.newaxis)
        return Strata(sets, log_odds * one, np.zeros(1, int), np.full(1, led), one, one, one)

    @staticmethod
    def none() -> Strata:
        """Make no strata."""
        points = Points(np.zeros((0, SMALL, 3)), np.zeros((0, SMALL)), np.zeros((0, SMALL, SIZE)))
        no = np.zeros(0)
        return Strata(points, no, no.astype(int), no.astype(bool), no, no, no)

    @property
    def posterior(self) -> FloatArray:
        """Return the log odds (s,) with the prior of the place."""
        return np.asarray(self.log_odds + np.log(OFF_MAP + (1.0 - OFF_MAP) * self.known))

    def __len__(self) -> int:
        """Count the strata."""
        return len(self.log_odds)

    def select(self, index: NDArray[Any]) -> Strata:
        """Select strata by indices or a mask."""
        points, *arrays = vars(self).values()
        return Strata(points.select(index), *(array[index] for array in arrays))

    def joined(self, other: Strata) -> Strata:
        """Append other strata of as many points."""
        points, more = vars(self.points).values(), vars(other.points).values()
        _, *arrays = zip(vars(self).values(), vars(other).values(), strict=True)
        return Strata(
            Points(*(np.concatenate(pair) for pair in zip(points, more, strict=True))),
            *(np.concatenate(pair) for pair in arrays),
        )

    def age(self, new: float) -> None:
        """Note the coverage of an image of which so much is new."""
        share = np.where(self.ages > 0, new, 1.0)
        self.known = self.known + share * (self.coverage - self.known)
        self.ages = self.ages + 1

    def gather(self, rival: float) -> None:
        """Let the best stratum have the odds of all, where they together exceed a rival's."""
        apart = np.flatnonzero(~self.led)
        if not apart.size:
            return
        best = apart[np.argmax(self.posterior[apart])]
        together = float(np.logaddexp.reduce(self.posterior[apart]))
        if together > rival:  # several may be at one place
            self.log_odds[best] += together - self.posterior[best]

    def best(self) -> NDArray[np.intp]:
        """Return indices to keep: half of each kind for their age, half for their odds."""
        chosen = []
        for members, number in (
            (np.flatnonzero(~self.led), ELSEWHERE),
            (np.flatnonzero(self.led), LED),
        ):
            by_age = members[np.argsort(self.ages[members], kind='stable')]
            older = by_age[number // 2 :]  # noqa: E203
            likely = older[np.argsort(-self.log_odds[older], kind='stable')]
            chosen += [by_age[: number // 2], likely[: number - number // 2]]
        return np.concatenate(chosen)


class Informative:
    """
    The probability i that an image says where on the map it was taken, learnt on the way.

    From the posterior probability of each image that it showed the belief's place.
    """

    def __init__(self) -> None:
        self._sums = 0.5 * LIGHT * np.array([INFORMATIVE, 1.0])  # of these and of their weights

    @property
    def probability(self) -> float:
        """Return i."""
        return float(np.clip(self._sums[0] / self._sums[1], 1.0 / LIGHT, 1.0 - 1.0 / LIGHT))

    def learn(self, likelihood: float, coverage: float) -> None:
        """Take in Lambda and c of the belief; off the map an image counts only if it showed it."""
        showed = 1.0 - (1.0 - self.probability * coverage) / likelihood
        counted = np.array([showed, coverage + (1.0 - coverage) * showed])
        self._sums = (1.0 - 1.0 / LIGHT) * self._sums + counted


def log_sum(*blocks: Strata, posterior: bool = False) -> float:
    """Return the log of the sum of the odds of strata."""
    odds = [b.posterior if posterior else b.log_odds for b in blocks]
    return float(np.logaddexp.reduce(np.concatenate(odds)))


def weigh(
    blocks: Sequence[Strata],
    model: ImageModel,
    seen: Similarity,
    noise: FloatArray,
    informative: float,
    outlier_rate: float,
) -> None:
    """
    Weigh the points of strata by an image, in expectation over `noise` (3, 3); keep Lambda and c.

    With r and c at the points, means r_k and c_k of a stratum and i = `informative`, a weight is
    multiplied by i (r + o) r_k / (r_k + o) + 1 - i c_k, whose mean is Lambda of the stratum. The
    floor o is `outlier_rate` of the largest r at any point: an image that resembles another place
    says little about where at this place the robot is.
    """
    total = log_sum(*blocks)
    priors = [np.exp(b.log_odds - total) for b in blocks]
    found = model.evaluate([b.points for b in blocks], priors, seen, noise)
    floor = outlier_rate * max(float(r.max(initial=0.0)) for r, _ in found)
    for b, (r, c) in zip(blocks, found, strict=True):
        mean = (b.points.weights * r).sum(axis=1)
        b.coverage = np.minimum((b.points.weights * c).sum(axis=1), 1.0)
        nothing = 1.0 - informative * b.coverage
        b.likelihood = informative * mean + nothing
        place = (r + floor) * (mean / np.maximum(mean + floor, 1e-300))[:, np.newaxis]
        b.points = b.points.reweighted(informative * place + nothing[:, np.newaxis])


def evidence(likelihood: FloatArray, coverage: FloatArray, reference: float) -> FloatArray:
    """Return the nats of an entirely new image for a place rather than a wrong one."""
    return np.asarray(np.log(likelihood / (1.0 + coverage * np.expm1(reference))))


def sample_from_image(
    model: ImageModel,
    seen: Similarity,
    size: int,
    rng: np.random.Generator,
    few: bool = False,
) -> Points:
    """
    Draw points about the poses of candidates, weighted as a sample of the uniform law on these.

    Importance sampling: draw a map pose from an equal mixture of the uniform law and the
    conditional mean of the pose given the image, then a point from a Gaussian as wide as k_X. With
    `few`, use only the likeliest of the candidates that an index proposes.
    """
    candidates = seen.candidates
    likely = model.image_kernel(seen.at(candidates), seen.best)
    if few and len(candidates) < seen.size:
        best = np.sort(np.argsort(-likely, kind='stable')[:CANDIDATES])
        candidates, likely = candidates[best], likely[best]
    n = len(candidates)
    proposal = 0.5 / n + 0.5 * likely / likely.sum()
    chosen = rng.choice(n, size=size, p=proposal)
    h, a = model.config.position_bandwidth, model.config.heading_bandwidth
    poses = model.poses[candidates[chosen]]
    poses = poses + rng.standard_normal((size, 3)) * WIDTH * np.array([h, h, a])
    poses[:, 2] = wrap_angle(poses[:, 2])
    weights = 1.0 / (n * proposal[chosen])
    return Points(poses, weights / weights.sum())


def sample_about(
    pose: FloatArray, covariance: FloatArray, config: KbrConfig, rng: np.random.Generator
) -> Points:
    """
    Draw points about a given pose (3,) with covariance (3, 3).

    A user may click beside the place: half of the points lie farther about, with the mass that a
    sure pose leaves.
    """
    size = config.points
    wider = np.array([2.0, 2.0, 0.5]) * [config.localized_radius, config.localized_radius, 1.0]
    near = Points.gaussian(pose, covariance, size - size // 2, rng)
    far = Points.gaussian(pose, covariance + np.diag(wider**2), size // 2, rng)
    return near.mixed(far, min(1.0 - config.localized_mass, 0.5))
