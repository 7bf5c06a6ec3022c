"""
Strata: places where the robot may be, each a few points with log odds against a wrong place.

The first stratum is believed. Others are born where an image could be, or leave the belief with a
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

from dataclasses import dataclass, replace

from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.filter.image_model import ImageModel
from kbr_localization.localization.filter.points import Points, ranges, systematic
from kbr_localization.localization.map.similarity import Similarity
from kbr_localization.se2 import FloatArray, wrap_angle
import numpy as np
from numpy.typing import NDArray

SMALL = 30
"""Points of a stratum that is not believed."""
KEPT = 10
"""Strata that are kept of each kind: elsewhere, and led."""
BORN = float(np.log(0.003))
"""Log odds of a place for which only its first image speaks."""
OFF_MAP = 0.01
"""Prior density of a place that the map does not know, relative to one that it knows."""
LIGHT, MEMORY = 40.0, 16.0
"""Images after which the light may have changed; entirely new images of `log_likelihood`."""


@dataclass(eq=False)
class Strata:
    """
    Sets of points that follow each other, with log odds against a wrong place (s,).

    `points` (m,), `sizes` (s,) how many belong to each, with weights that add up to one in each.
    `ages` (s,) in images; `led` (s,): whether born with a wrong odometry. `likelihood`, `coverage`
    (s,): Lambda and c of the last image; `known` (s,): mean c over about a bandwidth.
    """

    points: Points
    sizes: NDArray[np.intp]
    log_odds: FloatArray
    ages: NDArray[np.int64]
    led: NDArray[np.bool_]
    likelihood: FloatArray
    coverage: FloatArray
    known: FloatArray

    @staticmethod
    def born(points: Points, log_odds: float, led: bool = False) -> Strata:
        """Make one stratum."""
        one = np.ones(1)
        size, age = np.array([len(points)]), np.zeros(1, dtype=np.int64)
        return Strata(points, size, log_odds * one, age, np.full(1, led), one, one, one)

    def __len__(self) -> int:
        """Count the strata."""
        return len(self.log_odds)

    @property
    def here(self) -> Points:
        """Return the points of the first stratum."""
        return self.points.select(slice(self.sizes[0]))

    @property
    def starts(self) -> NDArray[np.intp]:
        """Return the number (s,) of the first point of each stratum."""
        return np.asarray(np.cumsum(self.sizes) - self.sizes)

    def sums(self, values: FloatArray) -> FloatArray:
        """Add values (m,) of the points up in each stratum: (s,)."""
        return np.asarray(np.add.reduceat(values, self.starts))

    def posterior(self) -> FloatArray:
        """Return the log odds (s,) with the prior of the place."""
        return np.asarray(self.log_odds + np.log(OFF_MAP + (1.0 - OFF_MAP) * self.known))

    def select(self, index: NDArray[np.intp]) -> Strata:
        """Select strata (k,), in that order."""
        points, *arrays = vars(self).values()
        chosen = points.select(ranges(self.starts[index], self.sizes[index]))
        return Strata(chosen, *[array[index] for array in arrays])

    def joined(self, other: Strata) -> Strata:
        """Append other strata."""
        (points, more), *arrays = zip(vars(self).values(), vars(other).values(), strict=True)
        both = zip(vars(points).values(), vars(more).values(), strict=True)
        return Strata(Points(*map(np.concatenate, both)), *map(np.concatenate, arrays))

    def weigh(
        self, model: ImageModel, seen: Similarity, noise: FloatArray, i: float, outlier_rate: float
    ) -> None:
        """
        Weigh the points by an image, in expectation over `noise` (3, 3); keep Lambda and c.

        With r and c at the points and their means r_k and c_k in a stratum, a weight is multiplied
        by i (r + o) r_k / (r_k + o) + 1 - i c_k, whose mean is Lambda of the stratum. The floor o
        is `outlier_rate` of the largest r at any point: an image that resembles another place says
        little about where at this place the robot is.
        """
        weights, log_odds = self.points.weights, self.log_odds
        odds = np.exp(log_odds - np.logaddexp.reduce(log_odds))
        prior = weights * np.repeat(odds, self.sizes)
        # the points of a global start lie anywhere
        crowd = int(self.sizes[0]) if self.ages[0] else 0
        r, c = model.evaluate(self.points.poses, prior, crowd, seen, noise)
        floor, mean = outlier_rate * float(r.max()), self.sums(weights * r)
        self.coverage = np.minimum(self.sums(weights * c), 1.0)
        nothing = 1.0 - i * self.coverage
        self.likelihood = i * mean + nothing
        scale = i * mean / np.maximum(mean + floor, 1e-300)
        factors = (r + floor) * np.repeat(scale, self.sizes) + np.repeat(nothing, self.sizes)
        weights = weights * factors
        self.points.weights = weights / np.repeat(self.sums(weights), self.sizes)

    def judge(self, new: float, reference: float, most: float) -> None:
        """
        Change the log odds by an image of which so much is new; k = `reference`.

        No log odds grow beyond `most`. A led stratum is at the believed place but for its odometry
        and counts as much as that is known. An image does not count for the stratum that was born
        from it.
        """
        covered = np.where(self.led, self.coverage[0], self.coverage)
        counts = (self.ages > 0) | self.led
        counts[0] = True
        gained = self.log_odds + new * counts * evidence(self.likelihood, covered, reference)
        # where a stratum is unlikely elsewhere, another one would be born
        least = np.where(self.led, -np.inf, BORN)
        self.log_odds = np.maximum(gained - max(float(gained.max()) - most, 0.0), least)
        share = np.where(self.ages > 0, new, 1.0)
        self.known = self.known + share * (self.coverage - self.known)
        self.ages = self.ages + 1

    def choose(self, near: NDArray[np.bool_]) -> tuple[Strata, bool]:
        """
        Put the likeliest stratum first, drop unlikely ones; tell whether the belief changed.

        The belief is left where all strata of other places together are likelier: the best of
        these then has the odds of all. `near`: (m,) points at the place that is believed; strata
        of these are dropped.
        """
        keep = self.led | (self.sums(self.points.weights * near) <= 0.5)
        keep[0] = True
        strata = self.select(np.flatnonzero(keep))
        posterior = strata.posterior()
        apart = np.flatnonzero(~strata.led)[1:]
        together = float(np.logaddexp.reduce(posterior[apart], initial=-np.inf))
        if together > posterior[0]:
            best = apart[np.argmax(posterior[apart])]
            strata.log_odds[best] += together - posterior[best]
            posterior[best] = together
        likeliest = int(np.argmax(posterior))
        order = np.arange(len(strata))
        if likeliest:
            order[0], order[likeliest] = likeliest, 0
            strata = strata.select(order)
            strata.led[0] = False
        return strata.select(strata._best()), likeliest > 0

    def resampled(self, size: int, rng: np.random.Generator) -> Strata:
        """Resample strata of another size than `size` and `SMALL`, or with few heavy points."""
        sizes = np.full(len(self), SMALL)
        sizes[0] = size
        few = (1.0 / self.sums(self.points.weights**2) < 0.5 * sizes) | (self.sizes != sizes)
        drawn = np.repeat(few, sizes)
        chosen = systematic(self.points.weights, self.sizes, sizes, rng)
        same = np.minimum(ranges(self.starts, sizes), len(self.points) - 1)
        points = self.points.select(np.where(drawn, chosen, same))
        points.weights = np.where(drawn, 1.0 / np.repeat(sizes, sizes), points.weights)
        return replace(self, points=points, sizes=sizes)

    def _best(self) -> NDArray[np.intp]:
        """Return indices to keep: half of each kind for their age, half for their odds."""
        chosen = [np.zeros(1, dtype=np.intp)]
        led = self.led[1:]
        for members in (np.flatnonzero(~led), np.flatnonzero(led)):
            by_age = 1 + members[np.argsort(self.ages[1:][members], kind='stable')]
            youngest, older = np.split(by_age, [KEPT // 2])
            likely = older[np.argsort(-self.log_odds[older], kind='stable')]
            chosen += [youngest, likely[: KEPT - KEPT // 2]]
        return np.concatenate(chosen)


class RecentImages:
    """
    What recent images say of the belief.

    `informative`: probability i that an image says where on the map it was taken, the mean of the
    posterior probabilities that the images showed the belief's place. `log_likelihood`: mean log
    Lambda; `many`: whether it is of enough images to tell a wrong map.
    """

    def __init__(self) -> None:
        self.informative, self.log_likelihood, self.many = 0.8, 0.0, False
        # sums of values, and of their weights
        self._showed, self._said = 0.5 * LIGHT * np.array([0.8, 1.0]), np.zeros(2)

    def learn(self, likelihood: float, coverage: float, new: float) -> None:
        """Take in Lambda and c of the belief, for an image of which so much is new."""
        showed = 1.0 - (1.0 - self.informative * coverage) / likelihood
        # off the map an image counts only if it showed the place
        counted = np.array([showed, coverage + (1.0 - coverage) * showed])
        self._showed = (1.0 - 1.0 / LIGHT) * self._showed + counted
        mean = self._showed[0] / self._showed[1]
        self.informative = float(np.clip(mean, 1.0 / LIGHT, 1.0 - 1.0 / LIGHT))
        weight = new * coverage
        said = weight * np.array([np.log(likelihood), 1.0])
        self._said = (1.0 - 1.0 / MEMORY) ** weight * self._said + said
        self.log_likelihood = float(self._said[0] / max(self._said[1], 1e-300))
        self.many = bool(self._said[1] >= 0.5 * MEMORY)


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
    conditional mean of the pose given the image, then a point from a Gaussian as wide as k_X. Of
    an index's candidates use all but the least likely, with `few` the best four.
    """
    candidates = seen.candidates
    likely = model.image_kernel(seen.at(candidates), seen.best)
    if len(candidates) < seen.size:
        least = np.sort(likely)[-4:][0] if few else 1e-3
        candidates, likely = candidates[likely >= least], likely[likely >= least]
    places = model.places(candidates)
    proposal = 0.5 * places + 0.5 * likely / likely.sum()
    chosen = rng.choice(len(candidates), size=size, p=proposal)
    poses = model.poses[candidates[chosen]]
    poses = poses + rng.standard_normal((size, 3)) * model.kernel.widths[[0, 1, 3]]
    poses[:, 2] = wrap_angle(poses[:, 2])
    weights = places[chosen] / proposal[chosen]
    return Points(poses, weights / weights.sum())


def sample_about(
    pose: FloatArray, covariance: FloatArray, config: KbrConfig, rng: np.random.Generator
) -> Points:
    """
    Draw points about a given pose (3,) with covariance (3, 3).

    A user may click beside the place: half of the points lie farther about, with the mass that a
    sure pose leaves.
    """
    points, far = Points.gaussian(pose, covariance, config.points, rng), config.points // 2
    radius, share = config.localized_radius, min(1.0 - config.localized_mass, 0.5)
    points.poses[:far] += rng.standard_normal((far, 3)) * [2.0 * radius, 2.0 * radius, 0.5]
    points.poses[:, 2] = wrap_angle(points.poses[:, 2])
    points.weights[:far] = share / far
    points.weights[far:] = (1.0 - share) / (config.points - far)
    return points
