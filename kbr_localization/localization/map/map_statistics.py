"""What a map says of itself when parts of it are left out."""

from __future__ import annotations

from dataclasses import dataclass

MEMORY = 16.0
"""
Images of which the mean log likelihood is remembered.

Each counts by how much it says that is new of a place that is covered.
"""

SAFETY_FACTOR = 2.0
"""
Of the limit: another building resembles a map more than its halves resemble each other.

Of 1.5, 2, 2.5 and 3, tried on photographs and rendered drives: the larger, the more seldom is
another building's map believed and the later is a right place called localized. With 3,
photographs by night are called localized in less than 80% of the right frames.
"""


@dataclass(frozen=True)
class MapStatistics:
    """
    Learnt when a map is built, by `kbr.leave_out.measure`.

    The margin of an image is the kernel value of its best match, centred (`centring`), less that
    of the best match at another place. `margin_here`, `margin_elsewhere`: its mean where the map
    shows the place, and where the neighbourhood is left out. `evidence_limit`: what the
    evidence of images (`confirmation.Evidence`) stays below in drives whose own places are left
    out of the map: a robot that is not where it is believed to be has no more.
    `reference_log_likelihood`: the mean log likelihood of the images at the likeliest place of
    these. `typical_log_likelihood`: that of the images at all of them; over a long way a robot
    that is on the map has more (`map_fit.MapFit`). The defaults are about the medians of maps of
    100 images of rendered offices.
    """

    margin_here: float = 0.1
    margin_elsewhere: float = 0.03
    evidence_limit: float = 1.6
    typical_log_likelihood: float = 0.4
    reference_log_likelihood: float = 1.2
