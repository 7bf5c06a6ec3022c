"""
Is the odometry right? One likelihood of consecutive images answers.

Two images of one drive are the less similar the farther apart they were taken (`map.decay`), which
the odometry tells. Alternatives are a robot that did not move (k~ uniform from top to 1) and one
that moved anyhow (k~ uniform from 0 to top); a few pairs are anything: people, glare. A Bayes
filter of two states, right and wrong, takes in the log likelihood ratio of each image and an
earlier one: the last one, and while the odometry stands the oldest one since it does, from which a
robot that is carried moves away.
"""

from collections import deque
import functools

from kbr_localization import se2
from kbr_localization.localization.map.decay import DecayOfRun, SimilarityDecay
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.se2 import FloatArray
import numpy as np
from scipy.special import ndtr

OUTLIERS = 0.05
"""Part of the pairs that have any similarity."""
STANDING = 0.1
"""u up to which the robot may stand."""
BEGINS, ENDS = 0.02, 0.1
"""Rates, per second, at which the odometry goes wrong, and right again."""


class ConsecutiveImages:
    """
    The last images and where the odometry has them; `probability` that it is wrong now.

    An image that differs from the mean of the map more than the map's images do (a white wall)
    tells nothing. The law of this run's images is learnt from those that agree with the odometry.
    `repeated`: whether the last image equals an earlier one bit for bit although the robot has
    moved: the camera is stuck.
    """

    def __init__(self, kernel_map: KernelMap) -> None:
        self._map = kernel_map
        self.forget()

    def forget(self) -> None:
        """Begin a drive."""
        self._last: deque[tuple[FloatArray, np.ndarray, float]] = deque(maxlen=8)
        self.probability, self.repeated = 0.0, False
        self._of_run: DecayOfRun | None = None

    @functools.cached_property
    def law(self) -> SimilarityDecay | None:
        """Return the map's law, fitted when it is first needed where the map has none."""
        return self._map.decay or SimilarityDecay.of_map(self._map)

    @functools.cached_property
    def _largest(self) -> float:
        """Return the largest |k(., a) - m|^2 of the map's images, but a few."""
        centring = self._map.centring
        return float(np.quantile(centring.squared_length(centring.means), 0.995))

    def update(self, image: np.ndarray, pose: FloatArray, seconds: float) -> None:
        """Take in a descriptor (d,) from an odometry pose (3,), seconds after the last one."""
        centring = self._map.centring
        mean = float(centring.with_references(image).mean())
        poses = np.array([one for one, *_ in self._last]).reshape(-1, 3)
        d, a = se2.magnitude(se2.between(poses, pose))
        moved = np.maximum(d, a) > 0.01
        others = [other for (_, other, _), far in zip(self._last, moved, strict=True) if far]
        self.repeated = any(np.array_equal(image, other) for other in others)
        if self._of_run is None and self.law is not None:
            self._of_run = DecayOfRun(self.law)
        if self._last and self._of_run is not None:
            law = self._of_run.law
            u = law.distance(d, a)
            standing = np.flatnonzero(u <= STANDING)
            n = int(standing[0]) if standing.size else -1
            _, other, its_mean = self._last[n]
            means = np.array([mean, its_mean])
            plain = bool(centring.squared_length(means).max() <= self._largest)
            ratio = inlier = 0.0
            if plain:
                value = centring.between(np.stack([image, other]), means)
                ratio, inlier = compare_with_odometry(law, value, d[n], a[n])
            begins, ends = -np.expm1(-seconds * np.array([BEGINS, ENDS]))
            prior = self.probability * (1.0 - ends) + (1.0 - self.probability) * begins
            prior = min(max(prior, 1e-6), 1.0 - 1e-6)
            odds = np.clip(np.log(prior / (1.0 - prior)) + ratio, -12.0, 6.0)
            self.probability = float(1.0 / (1.0 + np.exp(-odds)))
            if plain and u[n] > STANDING:
                self._of_run.learn(value, d[n], a[n], inlier * (1.0 - self.probability))
        self._last.append((pose, np.array(image), mean))


def compare_with_odometry(
    law: SimilarityDecay, value: float, d: float, a: float
) -> tuple[float, float]:
    """
    Compare the similarity k~ of two images with their motion by the odometry: d metres, a radians.

    Return the log likelihood ratio of a wrong odometry to a right one, and the probability that
    the pair is no outlier if the odometry is right.
    """
    u, sd, top = float(law.distance(d, a)), law.spread, law.top
    # uniform, with Gaussian noise: stopped, moved anyhow, people before a standing robot
    low = np.array([top - sd, 0.0, 0.4 * top])
    high = np.array([max(1.0, top + sd), top, top])
    densities = (ndtr((value - low) / sd) - ndtr((value - high) / sd)) / (high - low)
    stopped, anyhow, hidden = densities
    expected, wide = law.moments(d, a)
    moving = np.exp(-0.5 * ((value - expected) / wide) ** 2) / (wide * np.sqrt(2.0 * np.pi))
    stands = np.exp(-((u / STANDING) ** 2))
    right = stands * (0.9 * stopped + 0.1 * hidden) + (1.0 - stands) * moving
    wrong, outlier = 0.5 * (stopped + anyhow), OUTLIERS / 1.5  # k~ is from -0.5 to 1
    right, wrong = (1.0 - OUTLIERS) * right, (1.0 - OUTLIERS) * wrong
    ratio = float(np.log((wrong + outlier) / (right + outlier)))
    return ratio, float(right / (right + outlier))
