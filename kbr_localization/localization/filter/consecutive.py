"""
Is the odometry right? One likelihood of consecutive images answers.

Two images of one drive are the less similar the farther apart they were taken (`map.decay`), which
the odometry tells. Alternatives are a robot that did not move (k~ uniform from top to 1) and one
that moved anyhow (k~ uniform from 0 to top); a few pairs are anything: people, glare. A Bayes
filter of two states, right and wrong, takes in the log likelihood ratio of each image and an
earlier one: the last one, and while the odometry stands the oldest one since it does, from which a
robot that is carried moves away.
"""

import functools

from kbr_localization import se2
from kbr_localization.localization.map.decay import SimilarityDecay
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
RUN_SD, RUN_PAIRS = 0.3, 50.0
"""Standard deviation of log top, log length and log angle of a run; pairs that it remembers."""


class ConsecutiveImages:
    """
    The last images and where the odometry has them; `probability` that it is wrong now.

    An image that is less like the map than the map's own images are (a white wall) tells nothing.
    `odometry_wrong`: whether it more likely is wrong. `repeated`: whether the last image equals an
    earlier one bit for bit although the robot has moved: the camera is stuck. `law`: that of the
    images of this run, learnt from those that agree with the odometry; None if none is learnt.
    """

    def __init__(self, kernel_map: KernelMap) -> None:
        self._map = kernel_map
        self.forget()

    def forget(self) -> None:
        """Begin a drive."""
        self._poses, self._means = np.zeros((0, 3)), np.zeros(0)
        self._images = np.asarray(self._map.descriptors[:0])
        self.probability, self.repeated, self.odometry_wrong = 0.0, False, False
        self.law: SimilarityDecay | None = None
        self._law_covariance = RUN_SD**2 * np.eye(3)

    @functools.cached_property
    def _law_of_map(self) -> SimilarityDecay | None:
        return self._map.decay or SimilarityDecay.of_map(self._map)

    @functools.cached_property
    def _least(self) -> float:
        """Return the least mean kernel value of the map's images, but a few."""
        return float(np.quantile(self._map.centring.means, 0.005))

    def update(self, image: np.ndarray, pose: FloatArray, seconds: float) -> None:
        """Take in a descriptor (d,) from an odometry pose (3,), seconds after the last one."""
        centring, law = self._map.centring, self.law or self._law_of_map
        mean = float(centring.reference_values(image).mean())
        d, a = se2.magnitude(se2.between(self._poses, pose))
        moved = np.maximum(d, a) > 0.01
        self.repeated = bool((self._images[moved] == image).all(axis=1).any())
        if len(d) and law is not None:
            u = d / law.length + a / law.angle
            standing = np.flatnonzero(u <= STANDING)
            n = int(standing[0]) if standing.size else -1
            means = np.array([mean, self._means[n]])
            plain = bool(means.min() >= self._least)
            ratio = inlier = 0.0
            if plain:
                value = centring.compare_pair(np.stack([image, self._images[n]]), means)
                ratio, inlier = compare_with_odometry(law, value, d[n], a[n])
            begins, ends = -np.expm1(-seconds * np.array([BEGINS, ENDS]))
            prior = self.probability * (1.0 - ends) + (1.0 - self.probability) * begins
            prior = min(max(prior, 1e-6), 1.0 - 1e-6)
            odds = np.clip(np.log(prior / (1.0 - prior)) + ratio, -12.0, 6.0)
            self.probability = float(1.0 / (1.0 + np.exp(-odds)))
            self.odometry_wrong = self.probability > 0.5
            if plain and u[n] > STANDING:
                self.learn(value, d[n], a[n], inlier * (1.0 - self.probability))
        self._poses = np.concatenate([self._poses, pose[np.newaxis]])[-8:]
        self._images = np.concatenate([self._images, image[np.newaxis]])[-8:]
        self._means = np.append(self._means, mean)[-8:]

    def learn(self, value: float, d: float, a: float, right: float) -> None:
        """
        Learn from k~ of two images, d metres and a radians apart with probability `right`.

        Light and speed of a drive are not those of the map. An extended Kalman filter of log top,
        log length and log angle starts from the map's law and forgets old pairs. The spread
        follows the errors and is at least the map's.
        """
        of_map = self._law_of_map
        assert of_map is not None
        law = self.law or of_map
        rate, (expected, sd) = right / RUN_PAIRS, moments(law, d, a)
        error = value - expected
        slope = expected * np.array([1.0, d / law.length, a / law.angle])
        prior = (1.0 - rate) * self._law_covariance + rate * RUN_SD**2 * np.eye(3)
        gain = right * prior @ slope / (right * slope @ prior @ slope + sd**2)
        self._law_covariance = prior - np.outer(gain, slope @ prior)
        top, length, angle = np.exp(np.clip(error * gain, -RUN_SD, RUN_SD))
        variance = law.spread**2 * (1.0 + rate * ((error / sd) ** 2 - 1.0))
        spread = max(float(np.sqrt(variance)), of_map.spread)
        self.law = SimilarityDecay(law.top * top, law.length * length, law.angle * angle, spread)


def moments(law: SimilarityDecay, d: float, a: float) -> tuple[float, float]:
    """Return mean and standard deviation of k~; what a turn brings into view is anything."""
    expected = law.top * np.exp(-d / law.length - a / law.angle)
    return float(expected), law.spread * float(np.hypot(1.0, 4.0 * a))


def compare_with_odometry(
    law: SimilarityDecay, value: float, d: float, a: float
) -> tuple[float, float]:
    """
    Compare the similarity k~ of two images with their motion by the odometry: d metres, a radians.

    Return the log likelihood ratio of a wrong odometry to a right one, and the probability that
    the pair is no outlier if the odometry is right.
    """
    u, sd, top = d / law.length + a / law.angle, law.spread, law.top
    # uniform, with Gaussian noise: stopped, moved anyhow, people before a standing robot
    low = np.array([top - sd, 0.0, 0.4 * top])
    high = np.array([max(1.0, top + sd), top, top])
    densities = (ndtr((value - low) / sd) - ndtr((value - high) / sd)) / (high - low)
    stopped, anyhow, hidden = densities
    expected, wide = moments(law, d, a)
    moving = np.exp(-0.5 * ((value - expected) / wide) ** 2) / (wide * np.sqrt(2.0 * np.pi))
    stands = np.exp(-((u / STANDING) ** 2))
    right = stands * (0.9 * stopped + 0.1 * hidden) + (1.0 - stands) * moving
    wrong, outlier = 0.5 * (stopped + anyhow), OUTLIERS / 1.5  # k~ is from -0.5 to 1
    right, wrong = (1.0 - OUTLIERS) * right, (1.0 - OUTLIERS) * wrong
    ratio = float(np.log((wrong + outlier) / (right + outlier)))
    return ratio, float(right / (right + outlier))
