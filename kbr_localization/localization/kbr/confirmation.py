"""Whether the images speak for the place of a belief."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from kbr_localization.localization.map.map_statistics import MapStatistics
import numpy as np

MEMORY = 16.0
"""
Time constant, in images, of the exponential forgetting in the mean log likelihood.

An image counts by its weight (`Hypotheses.weight`).
"""
REMEMBERED = int(4 * MEMORY)
"""
Images whose evidence may still change, as impostors come.

Of 2, 4 and 8 times `MEMORY`, tried on photographs and corridors and on corridors that were driven
on maps of photographs (on recorded likelihoods): the same to .2% of the frames.
"""
SAFETY_FACTOR = 2.0
"""
Of the limit of the evidence: how much against its places a belief has to make up for, at most.

Another building resembles a map more than its halves resemble each other. Of 0, 1, 1.5, 2, 3 and
4, tried on photographs, rendered drives and 24 drives through buildings that the map does not
show (all on recorded likelihoods, 1.5 and 2 by running the filter): the larger, the more seldom
is another building believed (on maps of 100 images in .6% of the frames with 1.5, .2% with 2), and
the later is a right place called localized (in .5 to 1% less of the frames with each one more,
most in photographs by night).
"""
UNCONFIRMED = 0.003
"""
Probability, at every image, that a place is wrong for which there is no evidence yet.

Who clicks into the wrong room, or turns the arrow of RViz's *2D Pose Estimate* round, claims a
place that the map may not even show, and a start by one image may have no point at the right one.
Of 0, 0.003 and 0.01, tried for such claims on photographs and rendered drives with the arrow right
and turned round, 0.003 finds most of the latter without leaving any of the former.
"""
_LEAST_DOUBT = 1e-6
"""
Probability of being elsewhere that comes with an image however much speaks for the place.

Evidence stops as far beyond its limit as the odds of this are. Of 9e-6, 3e-6 and 1e-6, tried on
photographs by night and on robots that are carried (with a doubt that fell beyond the limit
alone): with the least, a right place is called localized for longest where images say little for
a while, and a robot that was carried away is missed hardly later (right within 5 m: 88, 86, 85%).
"""


class RecentMean:
    """
    Mean of the images remembered, (1 - 1 / `MEMORY`)^w of them at every image of weight w.

    `weight`: their sum of w.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Let no image have been seen."""
        self.weight = self._sum = 0.0

    def see(self, value: float, weight: float) -> None:
        """Take in the value of an image."""
        keep = (1.0 - 1.0 / MEMORY) ** weight
        self._sum = keep * self._sum + weight * value
        self.weight = keep * self.weight + weight

    @property
    def mean(self) -> float:
        """Return the mean; 0 before the first image."""
        return self._sum / self.weight if self.weight > 0.0 else 0.0


class Evidence(RecentMean):
    """
    How much more likely images are than at a wrong place, as a cumulative sum (Page, 1954).

    With the likelihood E of an image and its weight w, which is how far the map covers the belief
    times what is new in the image (`Hypotheses.weight`), the sum T becomes T + w (log E - k), at
    least `least`. The reference k is the mean of log E at the likeliest wrong places
    (`MapStatistics.reference_log_likelihood`), so that T falls at all of them as the way goes on.

    `total`: T in nats. `mean`: that of log E. `reference`, `least`: k and the least T in nats.
    """

    def __init__(self, reference: float, least: float = 0.0) -> None:
        self.reference, self.least = reference, least
        super().__init__()

    def forget(self) -> None:
        """Let no image have been seen."""
        super().forget()
        self.total = 0.0

    def see(self, log_likelihood: float, weight: float) -> None:
        """Take in an image."""
        super().see(log_likelihood, weight)
        self.total = self._after(self.total, log_likelihood, weight)

    def _after(self, total: float, log_likelihood: float, weight: float) -> float:
        """Return what a sum T becomes by an image."""
        return max(total + weight * (log_likelihood - self.reference), self.least)


class Compared(Protocol):
    """An image that is compared with impostors (`impostors.Sighting`)."""

    @property
    def excess(self) -> float:
        """Nats of log E that impostors have, too, as far as is known by now."""
        ...


class Confirmation(Evidence):
    """
    Whether the images speak for the belief's place more than they do for a wrong one.

    A belief that follows images of what the map does not show finds look-alike places and has
    likelihoods above one for them; how much evidence they make at most, the map tells by leaving
    out the places of a drive of its own: `limit`, in nats (`MapStatistics.evidence_limit`).

    A drive starts with none, as one whose first place is mostly right. Where images have spoken
    against the places that were believed in, the map may not show the robot's at all: evidence
    below zero is kept, from place to place, and the images have to make up for it (a cumulative
    sum with a head start: Lucas and Crosier, 1982).

    What the images that a robot takes elsewhere have at the same place, too, is no evidence for it
    (`impostors`). As they come later the sum is taken anew, over the last `REMEMBERED` images.
    """

    def __init__(self, statistics: MapStatistics) -> None:
        self.limit = statistics.evidence_limit
        self._most = self.limit + float(np.log(UNCONFIRMED / _LEAST_DOUBT))
        super().__init__(statistics.reference_log_likelihood, -SAFETY_FACTOR * self.limit)

    @property
    def total(self) -> float:
        """Return T in nats."""
        return self._total

    @total.setter
    def total(self, value: float) -> None:
        """Let T be that, whatever impostors will say of the images so far."""
        self._total = self._before = value
        self._images: deque[tuple[float, float, Compared | None]] = deque()

    def see(self, log_likelihood: float, weight: float, compared: Compared | None = None) -> None:
        """
        Take in an image; `compared`: what impostors have of its likelihood counts for nothing.

        The sum stops, so that a robot that is carried away loses its confirmation as soon however
        long it was at its place.
        """
        RecentMean.see(self, log_likelihood, weight)
        self._images.append((log_likelihood, weight, compared))
        if len(self._images) > REMEMBERED:
            self._before = self._after_compared(self._before, *self._images.popleft())
        self._total = self._before
        for image in self._images:
            self._total = self._after_compared(self._total, *image)

    def _after(self, total: float, log_likelihood: float, weight: float) -> float:
        return min(super()._after(total, log_likelihood, weight), self._most)

    def _after_compared(
        self, total: float, log_likelihood: float, weight: float, compared: Compared | None
    ) -> float:
        excess = compared.excess if compared is not None else 0.0
        return self._after(total, log_likelihood - excess, weight)

    def begin_elsewhere(self) -> None:
        """Go on with what was found elsewhere: nothing speaks for it, and the same against it."""
        against = min(self.total, 0.0)
        self.forget()
        self.total = against

    def go_on(self) -> None:
        """Go on from a belief that was confirmed."""
        self.total = self._most

    @property
    def doubt(self) -> float:
        """
        Return the probability of being elsewhere that comes with an image.

        Evidence is a logarithm of odds: with T nats for a place those of being elsewhere are
        exp(-T) times those where nothing speaks for or against it. So a place that the map does
        not bear out is left sooner; of one that it does, `_LEAST_DOUBT` stays.
        """
        odds = UNCONFIRMED / (1.0 - UNCONFIRMED) * float(np.exp(-self.total))
        return max(odds / (1.0 + odds), _LEAST_DOUBT)

    @property
    def confirmed(self) -> bool:
        """Whether the belief may be called localized."""
        return self.total > self.limit
