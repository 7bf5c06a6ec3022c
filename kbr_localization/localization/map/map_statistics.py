"""What a map says about wrong places, where parts of it are left out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MapStatistics:
    """
    Learnt when a map is built (`filter.wrong_places`), in nats.

    `evidence_limit`: the highest log odds of a wrong place in drives of halves of the map.
    `typical_log_likelihood`: mean log likelihood of images at wrong places.
    `reference_log_likelihood`: k, with which images of the likeliest are no evidence. The defaults
    are about the medians of maps of 100 images of rendered offices.
    """

    evidence_limit: float = 0.8
    typical_log_likelihood: float = 0.9
    reference_log_likelihood: float = 3.0
