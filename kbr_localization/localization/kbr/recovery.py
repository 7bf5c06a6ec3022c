"""
Where else the robot could be: points for a global start and for recovery from kidnapping.

Both are drawn by the conditional mean of the pose given the image. Recovery keeps a second
population beside the belief, the hypothesis that the robot was carried elsewhere, and compares
how well the two predict the images.
"""

from __future__ import annotations

from kbr_localization import se2
from kbr_localization.localization.config import FilterConfig
from kbr_localization.localization.kbr.belief import Belief
from kbr_localization.localization.kbr.observation import ObservationModel
from kbr_localization.localization.map.similarity import Similarity
import numpy as np

_SPREAD = 0.6  # of a new point about its map pose, in bandwidths
_SOUGHT = 4  # images of a large map that recovery looks at, at each update
_DENSITY_POWER = 12  # on the rate: the images that a gap lasts
_UNPROVEN_RATE = 1e-2  # for a belief that has explained nothing yet, on a map of nothing but gaps
_SETTLED_RATE = 1e-8  # for one that has, on a map with gaps
_TRUSTED_AFTER = 10  # such images, for one that it cannot explain in a gap
_SETTLED_AFTER = 30  # such images, for the prior rate of a map with gaps
_PROOF = 18  # such images for every unit of density below that of a map with few gaps
_FEW_GAPS = 0.85
_COVERED = 128  # points of a belief that show how much of it lies in a gap
_GAP_MEMORY = 0.9  # how the belief in a gap fades with every image that is not explained

EXPLAINED = 0.25
"""Of an image, relative to the best place on the map: a belief explains it."""


def draw_from_image(
    observation: ObservationModel,
    similarity: Similarity,
    size: int,
    rng: np.random.Generator,
    most: int | None = None,
) -> Belief:
    """
    Points about candidates' poses, weighted as a sample of the uniform law on these.

    Half of them are drawn from the conditional mean of the pose given the image, which is where
    they are needed; importance weights make up for that. On a large map the best `most`
    candidates are drawn from.
    """
    candidates = observation.plausible(similarity, most)
    n = len(candidates)
    likely = observation.sharpened(similarity.at(candidates), similarity.best)
    proposal = 0.5 / n + 0.5 * likely / likely.sum()
    chosen = rng.choice(n, size=size, p=proposal)
    h, a = observation.config.position_bandwidth, observation.config.heading_bandwidth
    spread = _SPREAD * np.array([h, h, a])
    points = observation.poses[candidates[chosen]] + rng.standard_normal((size, 3)) * spread
    points[:, 2] = se2.wrap_angle(points[:, 2])
    weights = 1.0 / (n * proposal[chosen])
    return Belief(points, weights / weights.sum())


class Recovery:
    """
    The population that looks for the robot elsewhere.

    `belief`: its points, or None. `mass`: the posterior probability of having been carried.
    `explained`: images that the filter's belief has explained.

    In a gap of the map the best match is somewhere else, image after image, just as after a
    kidnapping. So the prior rate of kidnappings falls with the density of the map, and further as
    the belief explains images: one that has not may have been wrong from the start. And it is
    credited with images that it cannot explain because it is where the map knows nothing.

    A belief that began with nothing is not proven before it has explained images, more on a map
    with more gaps: there the right place may be one that the map does not show, and of ten beliefs
    that all lie at one place, but have explained fewer, five were wrong.
    """

    def __init__(
        self, observation: ObservationModel, config: FilterConfig, rng: np.random.Generator
    ) -> None:
        self.observation, self.config, self.rng = observation, config, rng
        self.forget()

    @property
    def is_on(self) -> bool:
        """Whether the configuration wants it."""
        return self.config.recovery_points > 0 and self.config.recovery_rate > 0.0

    @property
    def rate(self) -> float:
        """Prior weight of being elsewhere, per update, on this map with this belief."""
        settled = min(1.0, self.explained / _SETTLED_AFTER)
        most, density = self.config.recovery_rate, self.observation.density
        unproven = _UNPROVEN_RATE * (1.0 - density) ** 2
        lowest = unproven ** (1.0 - settled) * _SETTLED_RATE**settled
        return float(max(most * density**_DENSITY_POWER, min(most, lowest)))

    @property
    def proven(self) -> bool:
        """Whether the filter's belief has explained as many images as this map asks for."""
        return self.explained >= _PROOF * (_FEW_GAPS - self.observation.density)

    def forget(self) -> None:
        """Start with no hypothesis, about a belief that has explained nothing."""
        self.drop()
        self.explained, self._unexplained = 0, 0

    def drop(self) -> None:
        """Start with no hypothesis."""
        self.belief: Belief | None = None
        self.mass = 0.0

    def trust_belief(self) -> None:
        """Take the belief for one that has explained images, as a pose that somebody gave."""
        self.explained = _SETTLED_AFTER

    def witness(self, explained: float) -> None:
        """Take note of how well the belief explains an image: see `ObservationModel.explained`."""
        if explained > EXPLAINED:
            self.explained, self._unexplained = self.explained + 1, 0
        else:
            self._unexplained += 1

    def weigh(
        self,
        similarity: Similarity,
        rival: Belief,
        explained: float,
        in_gap: float,
        outlier_rate: float,
    ) -> Belief | None:
        """
        Take in an image of which the filter's belief, the rival, has `explained` so much.

        `in_gap`: share of the rival that lies where the map knows nothing, which excuses it.
        Returns the points that take over, once they explain the images better than the belief by
        more than the prior odds of having been carried, else None.
        """
        size = self.config.recovery_points
        evidence = explained + self.observation.anywhere(similarity, outlier_rate)
        evidence += self._credit(in_gap)
        born = draw_from_image(self.observation, similarity, size, self.rng, _SOUGHT)
        # wherever it is, the robot is the same
        born.drift = self.rng.choice(rival.drift, size, p=rival.weights)
        # the rate is that of the whole map: places that the image does not point at drop out
        share = len(self.observation.plausible(similarity, _SOUGHT)) / similarity.size
        points = self._joined(born, share * self.rate)
        factors = self.observation.factors(points.points, similarity, outlier_rate)
        odds = self.mass * points.reweigh(factors)
        self.mass = odds / (odds + (1.0 - self.mass) * evidence)
        self.belief = points.resampled(size, self.rng)
        return self.belief if self.mass > 0.5 else None

    def in_gap(self, belief: Belief) -> float:
        """Share of a belief that lies where the map knows nothing."""
        # few points of equal weight tell as much, where all of them take as long as the update
        ticks = (np.arange(_COVERED) + 0.5) / _COVERED
        chosen = np.searchsorted(np.cumsum(belief.weights), ticks)
        points = belief.points[np.minimum(chosen, len(belief.points) - 1)]
        return float(np.mean(1.0 - self.observation.coverage(points)))

    def _credit(self, in_gap: float) -> float:
        """
        Evidence that a belief loses to a gap of the map, as far as it has earned trust.

        None on a map too large to be solved as a whole: what lies between its images is guessed
        too roughly there, and the robot that was carried away is noticed later for it.
        """
        if self._unexplained == 0 or not self.observation.is_whole:
            return 0.0
        trust = min(1.0, self.explained / _TRUSTED_AFTER) * _GAP_MEMORY**self._unexplained
        return (1.0 - self.observation.density) * trust * in_gap

    def _joined(self, born: Belief, rate: float) -> Belief:
        if self.belief is None:
            self.mass = rate
            return born
        fresh = (1.0 - self.mass) * rate
        total = self.mass + fresh
        weights = [self.belief.weights * self.mass, born.weights * fresh]
        points = np.concatenate([self.belief.points, born.points])
        drift = np.concatenate([self.belief.drift, born.drift])
        self.mass = total
        return Belief(points, np.concatenate(weights) / total, drift)
