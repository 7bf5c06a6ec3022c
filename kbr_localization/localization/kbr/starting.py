"""Points for a start without a pose, and for the hypothesis of being elsewhere."""

from __future__ import annotations

from kbr_localization import se2
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.kbr.belief import Belief
from kbr_localization.localization.kbr.estimate import about_mode
from kbr_localization.localization.kbr.likelihood import Indices, Likelihood
from kbr_localization.localization.map.similarity import Similarity
from kbr_localization.se2 import FloatArray
import numpy as np

_MISSED = 0.1  # fraction of the mass of a given pose that allows for a click beside it
_MISSED_BY = np.array([2.0, 2.0, 0.5])  # m, m, rad: deviation of such a click, beside the stated
_SPREAD = 0.6  # of a new point about its map pose, in bandwidths
_AGAIN = 0.2  # of the points of a start before every update, in bandwidths
_CALMING = 0.85  # of it, from update to update, once the belief lies about one place


class Regularisation:
    """
    Spreads the points of a start anew, until the belief lies about one place and then less.

    Few of them fall on any one place, and all that descend from these are where they happened to
    be (the regularised particle filter of Musso, Oudjane and Le Gland, 2001).
    """

    def __init__(self, config: KbrConfig) -> None:
        self._config, self._strength = config, 0.0

    def begin(self) -> None:
        """Spread the points from now on: they were drawn from an image, or from a claim."""
        self._strength = 1.0

    def stop(self) -> None:
        """Spread them no more: the belief goes on from one that was confirmed."""
        self._strength = 0.0

    def apply(self, belief: Belief, rng: np.random.Generator) -> None:
        """Spread the points of a belief before an update."""
        if self._strength == 0.0:
            return
        h, a = self._config.position_bandwidth, self._config.heading_bandwidth
        belief.disperse((self._strength * _AGAIN * np.array([h, h, a])) ** 2, rng)
        if about_mode(belief, self._config)[1] >= self._config.localized_mass:
            self._strength *= _CALMING


def drawn_about(
    pose: FloatArray, covariance: FloatArray, size: int, rng: np.random.Generator
) -> Belief:
    """
    Points about a pose (3,) that somebody gave, with that covariance (3, 3).

    Who clicks on a map may click beside the place, however sure: a part of the mass lies farther
    about, on half of the points, so that the first images can find a robot that is 2 m away.
    """
    near = Belief.gaussian(pose, covariance, size - size // 2, rng)
    farther = covariance + np.diag(_MISSED_BY**2)
    far = Belief.gaussian(pose, farther, size // 2, rng)
    weights = np.concatenate([near.weights * (1.0 - _MISSED), far.weights * _MISSED])
    return Belief(np.concatenate([near.points, far.points]), weights)


def drawn_from_image(
    likelihood: Likelihood,
    similarity: Similarity,
    size: int,
    rng: np.random.Generator,
    most: int | None = None,
) -> Belief:
    """
    Points about candidates' poses, weighted as a sample of the uniform law on these.

    Half of them are drawn from the conditional mean of the pose given the image, which is where
    they are needed; importance weights make up for that. Where an index proposes the
    candidates, the best `most` of them are drawn from.
    """
    candidates, likely = _plausible(likelihood, similarity, most)
    n = len(candidates)
    proposal = 0.5 / n + 0.5 * likely / likely.sum()
    chosen = rng.choice(n, size=size, p=proposal)
    h, a = likelihood.config.position_bandwidth, likelihood.config.heading_bandwidth
    spread = _SPREAD * np.array([h, h, a])
    points = likelihood.poses[candidates[chosen]] + rng.standard_normal((size, 3)) * spread
    points[:, 2] = se2.wrap_angle(points[:, 2])
    weights = 1.0 / (n * proposal[chosen])
    return Belief(points, weights / weights.sum())


def _plausible(
    likelihood: Likelihood, similarity: Similarity, most: int | None
) -> tuple[Indices, FloatArray]:
    """Images that the robot may see, and k_Y relative to the best: all, or the best `most`."""
    candidates = similarity.candidates
    likely = likelihood.image_kernel(similarity.at(candidates), similarity.best)
    if len(candidates) == similarity.size or most is None:
        return candidates, likely
    best = np.sort(np.argsort(-likely, kind='stable')[:most])
    return candidates[best], likely[best]
