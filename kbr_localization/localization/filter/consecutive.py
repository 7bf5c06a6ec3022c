"""
Test of the odometry by the similarity k~ of consecutive images.

The farther apart two images of a drive were taken, the less similar they are (`map.decay`). The
odometry, if right, gives their distance. If it is wrong, the robot stood (k~ uniform from top to
1) or moved by any distance (k~ uniform from 0 to top). A few pairs are outliers: people, glare. A
Bayes filter of two states, right and wrong, is updated by the log likelihood ratio of each image
and an earlier one: the last or, while the odometry stands still, the first of that time.
"""

import functools

from kbr_localization import se2
from kbr_localization.localization.map.decay import SimilarityDecay
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.se2 import FloatArray
import numpy as np
from scipy.special import ndtr

OUTLIERS = 0.05
"""Fraction of the pairs that have any similarity."""
STANDING = 0.1
"""Motion, in decay lengths and angles, up to which the robot may stand."""
BEGINS, ENDS = 0.02, 0.1
"""Rates, per second, at which the odometry becomes wrong, and right again."""
RUN_SD, RUN_PAIRS = 0.3, 50.0
"""Standard deviation of log top, length and angle between runs; pairs remembered in a run."""


class ConsecutiveImages:
    """
    The last images and their odometry poses; `probability` that the odometry is wrong now.

    An image that is less like the map than the map's own images are (a white wall) is not used.
    `repeated`: whether the last image equals an earlier one bit for bit although the robot has
    moved: the camera is frozen. `decay`: the similarity decay of this run, learnt from pairs that
    agree with the odometry; None before.
    """

    def __init__(self, kernel_map: KernelMap) -> None:
        self._map = kernel_map
        self.reset()

    def reset(self) -> None:
        self._poses, self._means = np.zeros((0, 3)), np.zeros(0)
        self._images = np.asarray(self._map.descriptors[:0])
        self.probability, self.repeated = 0.0, False
        self.decay: SimilarityDecay | None = None
        self._decay_covariance = RUN_SD**2 * np.eye(3)

    @property
    def odometry_wrong(self) -> bool:
        return self.probability > 0.5

    @functools.cached_property
    def _map_decay(self) -> SimilarityDecay | None:
        return self._map.decay or SimilarityDecay.of_map(self._map)

    @functools.cached_property
    def _least(self) -> float:
        """Lowest mean kernel value of an image to use: the 0.5% quantile of the map's images."""
        return float(np.quantile(self._map.centring.means, 0.005))

    def update(self, image: np.ndarray, pose: FloatArray, seconds: float) -> None:
        """Add an image (d,) at an odometry pose (3,), taken `seconds` after the last one."""
        centring, decay = self._map.centring, self.decay or self._map_decay
        mean = float(centring.reference_values(image).mean())
        d, a = se2.magnitude(se2.between(self._poses, pose))
        moved = np.maximum(d, a) > 0.01
        self.repeated = bool((self._images[moved] == image).all(axis=1).any())
        if len(d) and decay is not None:
            u = d / decay.length + a / decay.angle
            standing = np.flatnonzero(u <= STANDING)
            n = int(standing[0]) if standing.size else -1
            means = np.array([mean, self._means[n]])
            usable = bool(means.min() >= self._least)
            ratio = inlier = 0.0
            if usable:
                value = centring.compare_pair(np.stack([image, self._images[n]]), means)
                ratio, inlier = compare_with_odometry(decay, value, d[n], a[n])
            begins, ends = -np.expm1(-seconds * np.array([BEGINS, ENDS]))
            prior = self.probability * (1.0 - ends) + (1.0 - self.probability) * begins
            prior = min(max(prior, 1e-6), 1.0 - 1e-6)
            odds = np.clip(np.log(prior / (1.0 - prior)) + ratio, -12.0, 6.0)
            self.probability = float(1.0 / (1.0 + np.exp(-odds)))
            if usable and u[n] > STANDING:
                self.learn(value, d[n], a[n], inlier * (1.0 - self.probability))
        self._poses = np.concatenate([self._poses, pose[np.newaxis]])[-8:]
        self._images = np.concatenate([self._images, image[np.newaxis]])[-8:]
        self._means = np.append(self._means, mean)[-8:]

    def learn(self, value: float, d: float, a: float, right: float) -> None:
        """
        Learn from k~ of two images, d metres and a radians apart with probability `right`.

        Light and speed of a drive differ from those of the map. An extended Kalman filter of log
        top, log length and log angle starts from the map's decay and forgets old pairs. The spread
        follows the errors and is at least the map's.
        """
        map_decay = self._map_decay
        assert map_decay is not None
        decay = self.decay or map_decay
        rate, (expected, sd) = right / RUN_PAIRS, moments(decay, d, a)
        error = value - expected
        slope = expected * np.array([1.0, d / decay.length, a / decay.angle])
        prior = (1.0 - rate) * self._decay_covariance + rate * RUN_SD**2 * np.eye(3)
        gain = right * prior @ slope / (right * slope @ prior @ slope + sd**2)
        self._decay_covariance = prior - np.outer(gain, slope @ prior)
        top, length, angle = np.exp(np.clip(error * gain, -RUN_SD, RUN_SD))
        variance = decay.spread**2 * (1.0 + rate * ((error / sd) ** 2 - 1.0))
        top, length, angle = decay.top * top, decay.length * length, decay.angle * angle
        spread = max(float(np.sqrt(variance)), map_decay.spread)
        self.decay = SimilarityDecay(top, length, angle, spread)


def moments(decay: SimilarityDecay, d: float, a: float) -> tuple[float, float]:
    """Return mean and standard deviation of k~; a turn brings unknown things into view."""
    expected = decay.top * np.exp(-d / decay.length - a / decay.angle)
    return float(expected), decay.spread * float(np.hypot(1.0, 4.0 * a))


def compare_with_odometry(
    decay: SimilarityDecay, value: float, d: float, a: float
) -> tuple[float, float]:
    """
    Compare k~ of two images with the motion that the odometry reports: d metres, a radians.

    Return the log likelihood ratio of a wrong odometry to a right one, and the probability that
    the pair is no outlier if the odometry is right.
    """
    u, sd, top = d / decay.length + a / decay.angle, decay.spread, decay.top
    # uniform, with Gaussian noise: stopped, moved by any distance, people in front of the robot
    low = np.array([top - sd, 0.0, 0.4 * top])
    high = np.array([max(1.0, top + sd), top, top])
    densities = (ndtr((value - low) / sd) - ndtr((value - high) / sd)) / (high - low)
    stopped, moved, hidden = densities
    expected, wide = moments(decay, d, a)
    moving = np.exp(-0.5 * ((value - expected) / wide) ** 2) / (wide * np.sqrt(2.0 * np.pi))
    stands = np.exp(-((u / STANDING) ** 2))
    right = stands * (0.9 * stopped + 0.1 * hidden) + (1.0 - stands) * moving
    wrong, outlier = 0.5 * (stopped + moved), OUTLIERS / 1.5  # k~ is from -0.5 to 1
    right, wrong = (1.0 - OUTLIERS) * right, (1.0 - OUTLIERS) * wrong
    ratio = float(np.log((wrong + outlier) / (right + outlier)))
    return ratio, float(right / (right + outlier))
