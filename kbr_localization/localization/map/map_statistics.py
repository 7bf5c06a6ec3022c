"""What a map says of itself when parts of it are left out."""

from __future__ import annotations

from dataclasses import dataclass

MEMORY = 16.0
"""Images that are remembered, each by how much it says that is new of a place that is covered."""

SAFETY_FACTOR = 1.5
"""
Of the limit: another building resembles a map more than its halves resemble each other.

Of 1.25, 1.5, 1.75, 2 and 3, tried on photographs and rendered drives: the larger, the more
seldom is another building's map believed and the later is a right place called localized.
With more, photographs by night are called localized in less than 80% of the right frames.
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
    `typical_log_likelihood`: the mean log likelihood of these images; over a long way a robot that
    is on the map has more (`map_fit.MapFit`). The defaults are those of an office that nothing is
    known of.
    """

    margin_here: float = 0.1
    margin_elsewhere: float = 0.03
    evidence_limit: float = 2.0
    typical_log_likelihood: float = 0.3
