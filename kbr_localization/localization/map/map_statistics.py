"""What a map says of itself when parts of it are left out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MapStatistics:
    """
    Learnt when a map is built, by `kbr.leave_out.measure`.

    The lead of an image is the kernel value k_Y of its best match less that of the best match at
    another place. `lead_here`, `lead_elsewhere`: its mean where the map shows the place, and where
    the neighbourhood is left out. `largest_evidence`: the largest mean log evidence that a drive
    gives whose own places are left out of the map (see `hypotheses.Confirmation`): a robot that is
    not where it is believed to be has no more. `typical_evidence`: the median of the same; over a
    long way a robot that is on the map has more (`map_fit.MapFit`). The defaults are those of an
    office that nothing is known of.
    """

    lead_here: float = 0.03
    lead_elsewhere: float = 0.008
    largest_evidence: float = 0.5
    typical_evidence: float = 0.0
