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

from kbr_localization import se2
from kbr_localization.localization.calibration import SIZE
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.filter.image_model import cells, ImageModel
from kbr_localization.localization.map.similarity import Similarity
from kbr_localization.se2 import FloatArray
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

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
class Points:
    """
    `poses` (m, 3) with `weights` (m,) that add up to one.

    `odometry`: (m, 7) errors of the odometry by point (`calibration.NAMES`).
    Replace the arrays, never change them in place: points share them.
    """

    poses: FloatArray
    weights: FloatArray
    odometry: FloatArray

    @staticmethod
    def of(poses: FloatArray, weights: FloatArray) -> Points:
        """Return points without errors of the odometry."""
        return Points(poses, weights, np.zeros((len(weights), SIZE)))

    def __len__(self) -> int:
        """Count the points."""
        return len(self.weights)

    @staticmethod
    def gaussian(
        pose: FloatArray, covariance: FloatArray, size: int, rng: np.random.Generator
    ) -> Points:
        """Draw equally weighted points about a pose (3,) with covariance (3, 3)."""
        values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
        deviations = np.sqrt(np.maximum(values, 0.0))
        poses = pose + rng.standard_normal((size, 3)) * deviations @ vectors.T
        poses[:, 2] = se2.wrap_angle(poses[:, 2])
        return Points.of(poses, np.full(size, 1.0 / size))

    def select(self, index: NDArray[np.intp]) -> Points:
        """Select points."""
        return Points(self.poses[index], self.weights[index], self.odometry[index])

    def resampled(self, size: int, rng: np.random.Generator) -> Points:
        """Draw equally weighted points of the same law, by systematic resampling."""
        chosen = systematic(self.weights, np.array([len(self.weights)]), np.array([size]), rng)
        return Points(self.poses[chosen], np.full(size, 1.0 / size), self.odometry[chosen])

    def effective_size(self) -> float:
        """Return 1 / sum w^2."""
        return float(1.0 / np.sum(self.weights**2))

    def move(self, increments: FloatArray) -> None:
        """Move the points by increments (m, 3) or (3,) in their own frames."""
        self.poses = se2.compose(self.poses, increments)

    def moments(self, members: NDArray[np.bool_]) -> tuple[FloatArray, FloatArray, float]:
        """Return mean (3,), covariance (3, 3) and mass of members (m,): of all if that is 0."""
        weights = self.weights * members
        mass = float(weights.sum())
        weights = weights / mass if mass > 0.0 else self.weights
        mean = se2.from_plane_and_circle(weights @ se2.to_plane_and_circle(self.poses))
        deviations = se2.difference(self.poses, mean)
        return mean, np.asarray((weights[:, np.newaxis] * deviations).T @ deviations), mass

    def mode(self, widths: FloatArray) -> FloatArray:
        """
        Find the pose (3,) where the kernel mean of a Gaussian kernel is largest.

        `widths`: (4,) of the kernel in x, y, cos, sin. Runs the fixed-point iteration of [MbKSR]
        eq. 33 from the heaviest cells of a grid and takes the highest end.
        """
        points = se2.to_plane_and_circle(self.poses) / widths
        numbers = cells(np.floor(0.5 * points))
        _, first, cell = np.unique(numbers, return_index=True, return_inverse=True)
        heaviest = np.argsort(-np.bincount(cell, weights=self.weights))[:4]
        means = points[first[heaviest]]
        for _ in range(15):
            kernel = np.exp(-0.5 * cdist(means, points, 'sqeuclidean')) * self.weights
            height = kernel.sum(axis=1)
            moved = kernel @ points / np.maximum(height, 1e-300)[:, np.newaxis]
            step = float(np.abs(moved - means).max())
            means = moved
            if step < 0.01:
                break
        return se2.from_plane_and_circle(means[int(np.argmax(height))] * widths)


def systematic(
    weights: FloatArray, sets: NDArray[np.intp], sizes: NDArray[np.intp], rng: np.random.Generator
) -> NDArray[np.intp]:
    """
    Draw indices by systematic resampling of sets of points that follow each other.

    `weights`: (m,) that add up to one in each of `sets` (s,), their numbers of points; `sizes`:
    (s,) how many are drawn of each. The drawn indices (sum of `sizes`,) increase.
    """
    number = np.repeat(np.arange(len(sizes)), sizes)
    position = np.arange(len(number)) - (np.cumsum(sizes) - sizes)[number]
    ticks = number + (rng.random(len(sizes))[number] + position) / sizes[number]
    ends = np.cumsum(sets)[number]
    chosen = np.searchsorted(np.cumsum(weights), ticks)
    return np.asarray(np.clip(chosen, ends - sets[number], ends - 1))


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
        size, age = np.array([len(points.weights)]), np.zeros(1, dtype=np.int64)
        return Strata(points, size, log_odds * one, age, np.full(1, led), one, one, one)

    @property
    def here(self) -> Points:
        """Return the points of the first stratum."""
        size, points = self.sizes[0], self.points
        return Points(points.poses[:size], points.weights[:size], points.odometry[:size])

    def sums(self, values: FloatArray) -> FloatArray:
        """Add values (..., m) of the points up in each stratum: (..., s)."""
        starts = np.cumsum(self.sizes) - self.sizes
        return np.asarray(np.add.reduceat(values, starts, axis=-1))

    def posterior(self) -> FloatArray:
        """Return the log odds (s,) with the prior of the place."""
        return np.asarray(self.log_odds + np.log(OFF_MAP + (1.0 - OFF_MAP) * self.known))

    def select(self, index: NDArray[np.intp]) -> Strata:
        """Select strata (k,), in that order."""
        points, *arrays = vars(self).values()
        ends = np.cumsum(self.sizes)
        chosen = np.concatenate([np.arange(ends[i] - self.sizes[i], ends[i]) for i in index])
        return Strata(points.select(chosen), *[array[index] for array in arrays])

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
        floor = outlier_rate * float(r.max())
        mean, coverage = self.sums(weights * np.stack([r, c]))
        self.coverage = np.minimum(coverage, 1.0)
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
        kept = self.led | (self.sums(self.points.weights * near) <= 0.5)
        kept[0] = True
        posterior = np.where(kept, self.posterior(), -np.inf)
        apart = np.flatnonzero(kept & ~self.led)[1:]
        together = float(np.logaddexp.reduce(posterior[apart], initial=-np.inf))
        if together > posterior[0]:
            best = apart[np.argmax(posterior[apart])]
            self.log_odds[best] += together - posterior[best]
            posterior[best] = together
        likeliest = int(np.argmax(posterior))
        self.led[likeliest] = False
        order = np.arange(len(kept))
        order[likeliest], order[0] = 0, likeliest
        order = order[kept[order]]
        chosen, others = [order[:1]], order[1:]
        # of each kind keep half for their age, half for their odds
        for kind in (others[~self.led[others]], others[self.led[others]]):
            by_age = kind[np.argsort(self.ages[kind], kind='stable')]
            youngest, older = np.split(by_age, [KEPT // 2])
            likely = older[np.argsort(-self.log_odds[older], kind='stable')]
            chosen += [youngest, likely[: KEPT - KEPT // 2]]
        return self.select(np.concatenate(chosen)), likeliest > 0

    def resampled(self, size: int, rng: np.random.Generator) -> Strata:
        """Resample strata of another size than `size` and `SMALL`, or with few heavy points."""
        sizes, weights = np.full(len(self.sizes), SMALL), self.points.weights
        sizes[0] = size
        few = (1.0 / self.sums(weights**2) < 0.5 * sizes) | (self.sizes != sizes)
        # of equal weights as many as there are is each point once
        law = np.where(
            np.repeat(few, self.sizes), weights, np.repeat(1.0 / self.sizes, self.sizes)
        )
        points = self.points.select(systematic(law, self.sizes, sizes, rng))
        drawn = np.repeat(few, sizes)
        points.weights = np.where(drawn, np.repeat(1.0 / sizes, sizes), points.weights)
        return replace(self, points=points, sizes=sizes)


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
    model: ImageModel, seen: Similarity, size: int, rng: np.random.Generator, few: bool = False
) -> Points:
    """
    Draw points about the poses of candidates, weighted as a sample of the uniform law on these.

    Importance sampling: draw a map pose from an equal mixture of the uniform law and the
    conditional mean of the pose given the image, then a point from a Gaussian as wide as k_X. Of
    an index's candidates use all but the least likely, with `few` the best four.
    """
    candidates = seen.candidates
    likely = model.image_kernel(seen.values_at(candidates), seen.best)
    if len(candidates) < seen.size:
        least = np.sort(likely)[-4:][0] if few else 1e-3
        candidates, likely = candidates[likely >= least], likely[likely >= least]
    places = model.places(candidates)
    proposal = 0.5 * places + 0.5 * likely / likely.sum()
    chosen = rng.choice(len(candidates), size=size, p=proposal)
    poses = model.poses[candidates[chosen]]
    poses = poses + rng.standard_normal((size, 3)) * model.kernel.widths[[0, 1, 3]]
    weights = places[chosen] / proposal[chosen]
    return Points.of(poses, weights / weights.sum())


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
    points.weights[:far] = share / far
    points.weights[far:] = (1.0 - share) / (config.points - far)
    return points
