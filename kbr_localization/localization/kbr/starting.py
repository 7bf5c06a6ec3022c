"""Points for a start without a pose, and for the hypothesis of being elsewhere."""

from __future__ import annotations

from kbr_localization import se2
from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.kbr.belief import Belief, OTHER_WAY
from kbr_localization.localization.kbr.informative import apart
from kbr_localization.localization.kbr.likelihood import Likelihood
from kbr_localization.localization.kbr.pose_search import Indices
from kbr_localization.localization.kbr.state_kernel import GAUSSIAN_WIDTH
from kbr_localization.localization.map.similarity import Similarity
from kbr_localization.se2 import FloatArray
import numpy as np

_AGAIN = 0.14
"""
Bandwidths of k_X by which the points of a start are spread before every update.

Of 0.1, 0.14 and 0.2, tried on photographs by night and on a corridor of which one half is mapped
(0.14 and 0.2 on rendered drives and other buildings, too): the less, the sooner is a right place
called localized, and the sooner another place than the map shows.
"""


class Regularisation:
    """
    Spreads the points of a start anew, until images have confirmed the belief.

    Few of them fall on any one place, and all that descend from these are where they happened to
    be (the regularised particle filter of Musso, Oudjane and Le Gland, 2001). They are spread by
    as much at every image: if it grew less, points at a wrong place would explain the images
    better and better, beyond what the drives told by which the map learnt its limit.
    """

    def __init__(self, config: KbrConfig) -> None:
        self._config, self._spreads = config, False

    def begin(self) -> None:
        """Spread the points from now on: they were drawn from an image, or from a claim."""
        self._spreads = True

    def apply(self, belief: Belief, confirmed: bool, rng: np.random.Generator) -> FloatArray:
        """Spread the points of a belief before an update; return the variances (3,) of it."""
        self._spreads &= not confirmed
        if not self._spreads:
            return np.zeros(3)
        h, a = self._config.position_bandwidth, self._config.heading_bandwidth
        variances = (_AGAIN * np.array([h, h, a])) ** 2
        belief.disperse(variances, rng)
        return np.asarray(variances)


def drawn_about(
    pose: FloatArray, covariance: FloatArray, config: KbrConfig, rng: np.random.Generator
) -> Belief:
    """
    Points about a pose (3,) that somebody gave, with that covariance (3, 3).

    Who clicks on a map may click beside the place, however sure: half of the points lie farther
    about, so that the first images can find a robot at the next place that does not overlap
    (`apart`), facing half another way. They have the mass that even a sure pose leaves.
    """
    size = config.points
    near = Belief.gaussian(pose, covariance, size - size // 2, rng)
    beside = np.array([apart(config), apart(config), 0.5 * OTHER_WAY])
    far = Belief.gaussian(pose, covariance + np.diag(beside**2), size // 2, rng)
    missed = min(1.0 - config.localized_mass, 0.5)
    return near.joined(far, missed)


def drawn_from_image(
    likelihood: Likelihood,
    similarity: Similarity,
    size: int,
    rng: np.random.Generator,
    most: int | None = None,
) -> Belief:
    """
    Points about candidates' poses, weighted as a sample of the uniform law on these.

    Importance sampling: a map pose is drawn from an equal mixture of the uniform law and the
    conditional mean of the pose given the image, then a point from a Gaussian about it as wide as
    k_X; the weights correct to the uniform law. Where an index proposes the candidates, only the
    `most` likeliest are used.
    """
    candidates, likely = _plausible(likelihood, similarity, most)
    n = len(candidates)
    proposal = 0.5 / n + 0.5 * likely / likely.sum()
    chosen = rng.choice(n, size=size, p=proposal)
    h, a = likelihood.config.position_bandwidth, likelihood.config.heading_bandwidth
    spread = GAUSSIAN_WIDTH * np.array([h, h, a])
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
