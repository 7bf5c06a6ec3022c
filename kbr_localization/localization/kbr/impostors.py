"""
How likely the images of a run are where they were not taken: what a place has to exceed.

To a map of another building, or in a light that it does not know, all images of a run may look
like the same few places: these explain every image, and a belief there is not borne out by that.
In speaker verification the score of a claim is put relative to those of impostors for the same
reason (Z-normalisation: Auckenthaler, Carey and Lloyd-Thomas, 2000). The impostors of a place
are the last images of the run itself that were taken elsewhere, which odometry tells over so
short a way: farther off than two places are apart, or facing another way (`other_places`). An
image speaks for the place of a belief by as much as it is likelier there than they are,

    log E - max(log of the mean E of the impostors at the same place, 0),

where E = i r + 1 - i c (`hypotheses`) has the i and c of the image. Impostors that come later
count as well: the robot drives on, and what it sees then still looks like the place before. With
the mean of log E in place of the log of the mean, maps of other buildings are believed three
times as often, and right places called localized in 1% more of the frames of photographs.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
import itertools
import math

from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.kbr.confirmation import REMEMBERED
from kbr_localization.localization.kbr.informative import other_places
from kbr_localization.localization.kbr.likelihood import Match
from kbr_localization.localization.kbr.seen_image import SeenImage
from kbr_localization.se2 import compose, FloatArray
import numpy as np


@dataclass(eq=False)
class Sighting:
    """
    An image at the place of a belief, and how likely impostors are there.

    `pose`: (3,) of the odometry. `informative`: the probability i of the image.
    """

    pose: FloatArray
    image: SeenImage
    match: Match
    informative: float
    _sum: float = 0.0
    _count: int = 0

    @property
    def excess(self) -> float:
        """Log of the mean E of the impostors, at least 0; 0 before there are any."""
        return max(math.log(self._sum / self._count), 0.0) if self._count else 0.0

    def compare(self, *ratios: float) -> None:
        """Take in how likely images that were taken elsewhere are here (`Place.ratios_of`)."""
        i, coverage = self.informative, self.match.coverage
        for ratio in ratios:
            self._sum += i * ratio + 1.0 - i * coverage
        self._count += len(ratios)


class Impostors:
    """The last images of a run, each of them an impostor to the places of others."""

    def __init__(self, config: KbrConfig) -> None:
        self._config = config
        self.forget()

    def forget(self) -> None:
        """Let no image have been seen."""
        self._pose = np.zeros(3)
        self._sightings: deque[Sighting] = deque(maxlen=REMEMBERED)

    def predict(self, increment: FloatArray) -> None:
        """Follow the odometry by an increment (3,)."""
        self._pose = compose(self._pose, increment)

    def see(self, image: SeenImage, match: Match, informative: float) -> Sighting:
        """Compare an image at the place of a belief, and its place, with the last ones."""
        sighting = Sighting(self._pose, image, match, informative)
        if self._sightings:
            poses = np.array([before.pose for before in self._sightings])
            elsewhere = other_places(poses, self._pose, self._config)
            others = list(itertools.compress(self._sightings, elsewhere))
            if others:
                _compare(sighting, others)
        self._sightings.append(sighting)
        return sighting


def _compare(sighting: Sighting, others: list[Sighting]) -> None:
    """Let a sighting and others elsewhere be impostors to each other."""
    here = sighting.match.place.ratios_of([other.image for other in others])
    there = sighting.image.ratios_at([other.match.place for other in others])
    sighting.compare(*here.tolist())
    for other, ratio in zip(others, there.tolist(), strict=True):
        other.compare(ratio)
