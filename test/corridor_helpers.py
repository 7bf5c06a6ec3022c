"""A map of one straight corridor of twenty metres, and what its images are like."""

from kbr_localization.localization.config import KbrConfig
from kbr_localization.localization.kbr.belief import Belief
from kbr_localization.localization.map.map_statistics import MapStatistics
from kbr_localization.localization.map.similarity import FullSimilarity
from map_helpers import map_along, straight
import numpy as np

STATISTICS = MapStatistics(
    margin_here=0.05,
    margin_elsewhere=0.006,
    evidence_limit=3.0,
    typical_log_likelihood=0.1,
    reference_log_likelihood=0.3,
)
MAP = map_along(np.array([straight(0.4 * i) for i in range(50)]))
CONFIG = KbrConfig(image_bandwidth=0.12)


def seen_at(*metres):
    """Return the kernel values of an image at metres of the corridor; of several, as like all."""
    distance = np.abs(np.subtract.outer(MAP.poses[:, 0], metres)).min(axis=1)
    return FullSimilarity(0.55 + 0.15 * np.exp(-distance / 0.5))


def belief_at(metres, size=500):
    """Draw points about a place of the corridor; the same ones whenever they are asked for."""
    rng = np.random.default_rng(1)
    return Belief.gaussian(straight(metres), np.diag([0.02, 0.02, 0.002]), size, rng)
