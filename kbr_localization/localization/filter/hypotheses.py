"""
Hypotheses of where the robot is, each with a few points and log odds against a wrong place.

The first hypothesis is the belief. The others compete with it: *elsewhere*, a place where an image
could have been taken, and *gross*, the belief with a gross odometry error. All are predicted,
weighed and resampled in the same way, each within itself (cluster-based Monte Carlo localization:
Milstein, Sanchez and Williamson, 2002). With each image the log odds of a hypothesis grow by

    (1 - exp(-min(d, h / 2) / h)) (log Lambda - log(1 - c + c exp(k))).

The first factor is the weight of an image taken d metres after the last one, h being the bandwidth
of positions. The last term says that a wrong place of coverage c explains an image exp(k) times as
well as an unmapped place. k, and the limit that the log odds of wrong places reach by chance, are
measured on the map (`wrong_places`). Robots drive where the map was driven: the prior of a place
is its mean coverage, at least `OFF_MAP`.
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

FEW_POINTS = 30
"""Points of a hypothesis other than the belief."""
MAX_PER_KIND = 10
"""Hypotheses that are kept of each kind: elsewhere, and gross."""
NEW_LOG_ODDS = float(np.log(0.003))
"""Log odds of a place for which only one image speaks; those of no place fall below."""
OFF_MAP = 0.01
"""Prior density of a place that the map does not cover, relative to one that it covers."""
INFORMATIVE_MEMORY, LIKELIHOOD_MEMORY = 40.0, 16.0
"""Images over which `informative` is averaged; total weight of those in `log_likelihood`."""


class Points:
    """
    Weighted poses.

    `poses` (m, 3) with `weights` (m,) of sum one; `odometry` (m, 7): systematic errors of the
    odometry at each point, in the order of `calibration.NAMES`. Replace the arrays, never change
    them in place: several objects share them.
    """

    def __init__(
        self, poses: FloatArray, weights: FloatArray, odometry: FloatArray | None = None
    ) -> None:
        self.poses, self.weights = poses, weights
        self.odometry = np.zeros((len(weights), SIZE)) if odometry is None else odometry

    def __len__(self) -> int:
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
        return Points(poses, np.full(size, 1.0 / size))

    def select(self, index: NDArray[np.intp] | slice) -> Points:
        return Points(self.poses[index], self.weights[index], self.odometry[index])

    def resampled(self, size: int, rng: np.random.Generator) -> Points:
        """Return equally weighted points, by systematic resampling."""
        chosen = systematic_resampling(self.weights, np.array([len(self)]), np.array([size]), rng)
        return Points(self.poses[chosen], np.full(size, 1.0 / size), self.odometry[chosen])

    def effective_size(self) -> float:
        """Return 1 / sum w^2."""
        return float(1.0 / np.sum(self.weights**2))

    def move(self, increments: FloatArray) -> None:
        """Move the points by increments (m, 3) or (3,) in their own frames."""
        self.poses = se2.compose(self.poses, increments)

    def moments(self, members: NDArray[np.bool_]) -> tuple[FloatArray, FloatArray, float]:
        """Return mean (3,), covariance (3, 3), mass of `members` (m,); of all points if none."""
        weights = self.weights * members
        mass = float(weights.sum())
        weights = weights / mass if mass > 0.0 else self.weights
        mean = se2.from_plane_and_circle(weights @ se2.to_plane_and_circle(self.poses))
        deviations = se2.difference(self.poses, mean)
        return mean, np.asarray((weights[:, np.newaxis] * deviations).T @ deviations), mass

    def mode(self, widths: FloatArray) -> FloatArray:
        """
        Return the pose (3,) where the kernel mean of a Gaussian kernel is largest.

        `widths` (4,): of the kernel in x, y, cos, sin. Start the fixed-point iteration of [MbKSR]
        eq. 33 in the four heaviest cells of a grid and take the highest of the modes found.
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


def systematic_resampling(
    weights: FloatArray, sizes: NDArray[np.intp], draws: NDArray[np.intp], rng: np.random.Generator
) -> NDArray[np.intp]:
    """
    Draw increasing indices (sum of `draws`,) by systematic resampling within each set of points.

    `sizes` (s,): numbers of points of consecutive sets; `weights` (m,), of sum one in each set;
    `draws` (s,): how many points to draw from each.
    """
    number = np.repeat(np.arange(len(draws)), draws)
    position = np.arange(len(number)) - (np.cumsum(draws) - draws)[number]
    ticks = number + (rng.random(len(draws))[number] + position) / draws[number]
    ends = np.cumsum(sizes)[number]
    chosen = np.searchsorted(np.cumsum(weights), ticks)
    return np.asarray(np.clip(chosen, ends - sizes[number], ends - 1))


@dataclass(eq=False)
class Hypotheses:
    """
    Hypotheses of where the robot is; the first is the belief.

    `points` (m,): of all hypotheses, one after the other, with weights of sum one in each; `sizes`
    (s,): numbers of points of each. `log_odds` (s,): against a wrong place. `ages` (s,): in
    images. `gross` (s,): whether it began with a gross odometry error. `likelihood`, `coverage`
    (s,): Lambda and c of the last image; `mean_coverage` (s,): over about a bandwidth.
    """

    points: Points
    sizes: NDArray[np.intp]
    log_odds: FloatArray
    ages: NDArray[np.int64]
    gross: NDArray[np.bool_]
    likelihood: FloatArray
    coverage: FloatArray
    mean_coverage: FloatArray

    @staticmethod
    def single(points: Points, log_odds: float = 0.0, gross: bool = False) -> Hypotheses:
        """Return one new hypothesis."""
        one, size, age = np.ones(1), np.array([len(points)]), np.zeros(1, dtype=np.int64)
        return Hypotheses(points, size, log_odds * one, age, np.full(1, gross), one, one, one)

    @property
    def belief(self) -> Points:
        """Points of the first hypothesis."""
        return self.points.select(slice(self.sizes[0]))

    def sums(self, values: FloatArray) -> FloatArray:
        """Sum values (..., m) of the points over each hypothesis: (..., s)."""
        starts = np.cumsum(self.sizes) - self.sizes
        return np.asarray(np.add.reduceat(values, starts, axis=-1))

    def posterior(self) -> FloatArray:
        """Return the log odds (s,) including the prior of the place."""
        return np.asarray(self.log_odds + np.log(OFF_MAP + (1.0 - OFF_MAP) * self.mean_coverage))

    def select(self, index: NDArray[np.intp]) -> Hypotheses:
        """Return the hypotheses of `index` (k,), in that order."""
        points, *arrays = vars(self).values()
        ends = np.cumsum(self.sizes)
        chosen = np.concatenate([np.arange(ends[i] - self.sizes[i], ends[i]) for i in index])
        return Hypotheses(points.select(chosen), *[array[index] for array in arrays])

    def joined(self, other: Hypotheses) -> Hypotheses:
        """Return these hypotheses, then the other ones."""
        (points, more), *arrays = zip(vars(self).values(), vars(other).values(), strict=True)
        both = zip(vars(points).values(), vars(more).values(), strict=True)
        return Hypotheses(Points(*map(np.concatenate, both)), *map(np.concatenate, arrays))

    def weigh(
        self, model: ImageModel, seen: Similarity, noise: FloatArray, i: float, outlier_rate: float
    ) -> None:
        """
        Weigh the points by an image, in expectation over `noise` (3, 3); keep Lambda and c.

        With r and c at the points, and r_k and c_k their means in a hypothesis, multiply each
        weight by i (r + o) r_k / (r_k + o) + 1 - i c_k. The mean of this factor is Lambda of the
        hypothesis. The floor o is `outlier_rate` times the largest r of any point: an image that
        resembles another place says little about where at this place the robot is.
        """
        weights, log_odds = self.points.weights, self.log_odds
        odds = np.exp(log_odds - np.logaddexp.reduce(log_odds))
        prior = weights * np.repeat(odds, self.sizes)
        # the points of a global start are not at one place
        close = int(self.sizes[0]) if self.ages[0] else 0
        r, c = model.evaluate(self.points.poses, prior, close, seen, noise)
        floor = outlier_rate * float(r.max())
        mean, coverage = self.sums(weights * np.stack([r, c]))
        self.coverage = np.minimum(coverage, 1.0)
        uninformative = 1.0 - i * self.coverage
        self.likelihood = i * mean + uninformative
        scale = i * mean / np.maximum(mean + floor, 1e-300)
        factors = (r + floor) * np.repeat(scale, self.sizes)
        weights = weights * (factors + np.repeat(uninformative, self.sizes))
        self.points.weights = weights / np.repeat(self.sums(weights), self.sizes)

    def update_log_odds(self, weight: float, reference: float, max_log_odds: float) -> None:
        """
        Update the log odds by an image that counts with `weight` in [0, 1]; k = `reference`.

        All log odds fall together where one would exceed `max_log_odds`. A gross hypothesis is at
        the place of the belief and shares its coverage. An image is no evidence for the place that
        was drawn from it.
        """
        coverage = np.where(self.gross, self.coverage[0], self.coverage)
        counts = (self.ages > 0) | self.gross
        counts[0] = True
        gained = self.log_odds + weight * counts * evidence(self.likelihood, coverage, reference)
        # a place that falls below the log odds of a new one would be drawn again
        least = np.where(self.gross, -np.inf, NEW_LOG_ODDS)
        self.log_odds = np.maximum(gained - max(float(gained.max()) - max_log_odds, 0.0), least)
        share = np.where(self.ages > 0, weight, 1.0)
        self.mean_coverage = self.mean_coverage + share * (self.coverage - self.mean_coverage)
        self.ages = self.ages + 1

    def choose(self, near: NDArray[np.bool_]) -> tuple[Hypotheses, bool]:
        """
        Return the likeliest hypothesis, then others to keep, and whether the belief changed.

        The belief changes if a gross hypothesis is likelier, or if all hypotheses of other places
        together are: the best of these then gets the odds of all. `near` (m,): points at the place
        of the belief; drop hypotheses of that place that are not gross.
        """
        kept = self.gross | (self.sums(self.points.weights * near) <= 0.5)
        kept[0] = True
        posterior = np.where(kept, self.posterior(), -np.inf)
        elsewhere = np.flatnonzero(kept & ~self.gross)[1:]
        together = float(np.logaddexp.reduce(posterior[elsewhere], initial=-np.inf))
        if together > posterior[0]:
            best = elsewhere[np.argmax(posterior[elsewhere])]
            self.log_odds[best] += together - posterior[best]
            posterior[best] = together
        likeliest = int(np.argmax(posterior))
        self.gross[likeliest] = False
        order = np.arange(len(kept))
        order[likeliest], order[0] = 0, likeliest
        order = order[kept[order]]
        chosen, others = [order[:1]], order[1:]
        # keep half of each kind for their age, half for their odds
        for kind in (others[~self.gross[others]], others[self.gross[others]]):
            by_age = kind[np.argsort(self.ages[kind], kind='stable')]
            youngest, older = np.split(by_age, [MAX_PER_KIND // 2])
            likely = older[np.argsort(-self.log_odds[older], kind='stable')]
            chosen += [youngest, likely[: MAX_PER_KIND - MAX_PER_KIND // 2]]
        return self.select(np.concatenate(chosen)), likeliest > 0

    def resampled(self, size: int, rng: np.random.Generator) -> Hypotheses:
        """
        Return the belief with `size` points and every other hypothesis with `FEW_POINTS`.

        Resample only those of another size, or whose effective size is less than half of it.
        """
        sizes, weights = np.full(len(self.sizes), FEW_POINTS), self.points.weights
        sizes[0] = size
        drawn = (1.0 / self.sums(weights**2) < 0.5 * sizes) | (self.sizes != sizes)
        # resampling by equal weights takes each point once
        equal = np.repeat(1.0 / self.sizes, self.sizes)
        weights = np.where(np.repeat(drawn, self.sizes), weights, equal)
        points = self.points.select(systematic_resampling(weights, self.sizes, sizes, rng))
        equal = np.repeat(1.0 / sizes, sizes)
        points.weights = np.where(np.repeat(drawn, sizes), equal, points.weights)
        return replace(self, points=points, sizes=sizes)


class RecentImages:
    """
    What recent images say about the belief.

    `informative`: probability i that an image shows where on the map it was taken, the mean of the
    posterior probabilities that the images showed the place of the belief. `log_likelihood`: mean
    log Lambda; `enough`: whether it is of enough images to recognise a wrong map.
    """

    def __init__(self) -> None:
        self.informative, self.log_likelihood, self.enough = 0.8, 0.0, False
        # sums of values, and of their weights
        self._showed = 0.5 * INFORMATIVE_MEMORY * np.array([0.8, 1.0])
        self._logs = np.zeros(2)

    def learn(self, likelihood: float, coverage: float, weight: float) -> None:
        """Learn from Lambda and c of the belief, for an image that counts with `weight`."""
        showed = 1.0 - (1.0 - self.informative * coverage) / likelihood
        # off the map an image counts only if it showed the place
        counted = np.array([showed, coverage + (1.0 - coverage) * showed])
        forgotten = 1.0 / INFORMATIVE_MEMORY
        self._showed = (1.0 - forgotten) * self._showed + counted
        mean = self._showed[0] / self._showed[1]
        self.informative = float(np.clip(mean, forgotten, 1.0 - forgotten))
        weight = weight * coverage
        counted = weight * np.array([np.log(likelihood), 1.0])
        self._logs = (1.0 - 1.0 / LIKELIHOOD_MEMORY) ** weight * self._logs + counted
        self.log_likelihood = float(self._logs[0] / max(self._logs[1], 1e-300))
        self.enough = bool(self._logs[1] >= 0.5 * LIKELIHOOD_MEMORY)


def evidence(likelihood: FloatArray, coverage: FloatArray, reference: float) -> FloatArray:
    """Return the log likelihood ratio (nats) of a place to a wrong one, Lambda and c given."""
    return np.asarray(np.log(likelihood / (1.0 + coverage * np.expm1(reference))))


def sample_from_image(
    model: ImageModel, seen: Similarity, size: int, rng: np.random.Generator, few: bool = False
) -> Points:
    """
    Draw points where an image could have been taken, weighted as a sample of the uniform law.

    Importance sampling: draw a map pose from an equal mixture of the uniform law on places and the
    conditional mean of the pose given the image, then a point from a Gaussian as wide as k_X. Of
    the candidates of an index use all but the least likely, with `few` the best four.
    """
    candidates = seen.candidates
    likely = model.image_kernel(seen.values_at(candidates), seen.best)
    if len(candidates) < seen.size:
        least = np.sort(likely)[-4:][0] if few else 1e-3
        candidates, likely = candidates[likely >= least], likely[likely >= least]
    uniform = model.uniform_on_places(candidates)
    proposal = 0.5 * uniform + 0.5 * likely / likely.sum()
    chosen = rng.choice(len(candidates), size=size, p=proposal)
    poses = model.poses[candidates[chosen]]
    poses = poses + rng.standard_normal((size, 3)) * model.kernel.widths[[0, 1, 3]]
    weights = uniform[chosen] / proposal[chosen]
    return Points(poses, weights / weights.sum())


def sample_about(
    pose: FloatArray, covariance: FloatArray, config: KbrConfig, rng: np.random.Generator
) -> Points:
    """
    Draw points about a given pose (3,) with covariance (3, 3).

    A user may click beside the place: half of the points spread farther, with the mass that is
    left beyond `localized_mass`.
    """
    points, far = Points.gaussian(pose, covariance, config.points, rng), config.points // 2
    radius, share = config.localized_radius, min(1.0 - config.localized_mass, 0.5)
    points.poses[:far] += rng.standard_normal((far, 3)) * [2.0 * radius, 2.0 * radius, 0.5]
    points.weights[:far] = share / far
    points.weights[far:] = (1.0 - share) / (config.points - far)
    return points
