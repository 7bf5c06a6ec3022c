"""
Where else the robot could be: points for a global start and for recovery from kidnapping.

Both are drawn by the conditional mean of the pose given the image. Recovery keeps a second
population beside the belief, the hypothesis that the robot was carried elsewhere, and compares
how well the two predict the images.
"""

from __future__ import annotations

from kbr_localization import se2
from kbr_localization.localization.belief import Belief
from kbr_localization.localization.config import FilterConfig
from kbr_localization.localization.observation import ObservationModel
from kbr_localization.localization.similarity import Similarity
from kbr_localization.se2 import FloatArray
import numpy as np

_SPREAD = 0.6  # of a new point about its map pose, in bandwidths
_SOUGHT = 4  # images of a large map that recovery looks at, at each update
_COVERAGE_SAMPLES = 300
_SPARSENESS_POWER = 24
_LOWEST_RATE = 1e-6


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


def false_alarm_rate(observation: ObservationModel, rate: float) -> float:
    """
    Lower the prior rate of having been carried elsewhere where the map has gaps.

    In a gap of the map the best match is somewhere else, image after image, just as after a
    kidnapping. How dense the map is tells the kernel k_X of its poses with their nearest others,
    on average 1 without gaps; its power stands for the images that a gap lasts.
    """
    poses = observation.poses
    step = max(1, len(poses) // _COVERAGE_SAMPLES)
    values = [_nearest_kernel_value(observation, pose) for pose in poses[::step]]
    return max(rate * float(np.mean(values)) ** _SPARSENESS_POWER, min(rate, _LOWEST_RATE))


class Recovery:
    """
    The population that looks for the robot elsewhere.

    `points`: None or a belief. `mass`: the posterior probability of having been carried.
    """

    def __init__(
        self, observation: ObservationModel, config: FilterConfig, rng: np.random.Generator
    ) -> None:
        self.observation, self.config, self.rng = observation, config, rng
        self.rate = false_alarm_rate(observation, config.recovery_rate)
        self.belief: Belief | None = None
        self.mass = 0.0

    @property
    def is_on(self) -> bool:
        """Whether the configuration wants it."""
        return self.config.recovery_points > 0 and self.config.recovery_rate > 0.0

    def forget(self) -> None:
        """Start with no hypothesis."""
        self.belief, self.mass = None, 0.0

    def weigh(self, similarity: Similarity, evidence: float) -> Belief | None:
        """
        Take in an image that the filter's belief explains with `evidence`.

        Returns the points that take over, once they explain the images better than the belief by
        more than the prior odds of having been carried, else None.
        """
        size = self.config.recovery_points
        born = draw_from_image(self.observation, similarity, size, self.rng, _SOUGHT)
        # the rate is that of the whole map: places that the image does not point at drop out
        share = len(self.observation.plausible(similarity, _SOUGHT)) / similarity.size
        points = self._joined(born, share * self.rate)
        factors = self.observation.factors(points.points, similarity, self.config.outlier_rate)
        odds = self.mass * points.reweigh(factors)
        self.mass = odds / (odds + (1.0 - min(self.mass, 0.5)) * evidence)
        self.belief = points.resampled(size, self.rng)
        return self.belief if self.mass > 0.5 else None

    def _joined(self, born: Belief, rate: float) -> Belief:
        if self.belief is None:
            self.mass = rate
            return born
        total = self.mass + rate
        weights = [self.belief.weights * self.mass, born.weights * rate]
        points = np.concatenate([self.belief.points, born.points])
        self.mass = total
        return Belief(points, np.concatenate(weights) / total)


def _nearest_kernel_value(observation: ObservationModel, pose: FloatArray) -> float:
    """Kernel k_X of a map pose (3,) and the nearest other one, 0 without any in reach."""
    near = observation.poses[observation.in_reach(pose[np.newaxis])]
    values = np.sort(observation.kernel.cross_gram(pose[np.newaxis], near)[0])
    return float(values[-2]) if len(values) > 1 else 0.0
