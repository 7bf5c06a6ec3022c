"""What a map says of itself when parts of it are left out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MapStatistics:
    """
    Learnt when a map is built, by `kbr.leave_out.measure`.

    The margin of an image is the kernel value of its best match, centred (`centring`), less that
    of the best match at another place. `margin_here`, `margin_elsewhere`: its mean where the map
    shows the place, and where the neighbourhood is left out. `evidence_limit`: the most
    evidence of images (`confirmation.Evidence`) at a wrong place in drives whose own places are
    left out of the map. `reference_log_likelihood`: the mean log likelihood of the images at the
    likeliest places of these, which weigh four images together.
    `typical_log_likelihood`: that of the images at all of them; over a long way a robot that is on
    the map has more (`map_fit.MapFit`). The defaults are about the medians of maps of 100 images
    of rendered offices.
    """

    margin_here: float = 0.1
    margin_elsewhere: float = 0.03
    evidence_limit: float = 0.8
    typical_log_likelihood: float = 0.6
    reference_log_likelihood: float = 1.5
