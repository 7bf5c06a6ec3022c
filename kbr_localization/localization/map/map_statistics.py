"""What a map says of itself when parts of it are left out."""

from __future__ import annotations

from dataclasses import dataclass

MEMORIES = (10.0, 20.0, 40.0)
"""Covered images over which the mean log evidence is taken: the longer, the surer and later."""

MARGIN = 1.3
"""Of the limits: another building resembles a map more than its halves resemble each other."""


@dataclass(frozen=True)
class MapStatistics:
    """
    Learnt when a map is built, by `kbr.leave_out.measure`.

    The lead of an image is the kernel value k_Y of its best match less that of the best match at
    another place. `lead_here`, `lead_elsewhere`: its mean where the map shows the place, and where
    the neighbourhood is left out. `evidence_limit_10`, `_20`, `_40`: what the mean log evidence
    over so many images (`MEMORIES`) stays below in drives whose own places are left out of the
    map (see `hypotheses.Confirmation`): a robot that is not where it is believed to be
    has no more. `typical_evidence`: the median of the first; over a long way a robot that is on
    the map has more (`map_fit.MapFit`). The defaults are those of an office that nothing is known
    of.
    """

    lead_here: float = 0.03
    lead_elsewhere: float = 0.008
    evidence_limit_10: float = 0.5
    evidence_limit_20: float = 0.5
    evidence_limit_40: float = 0.5
    typical_evidence: float = 0.0

    @property
    def evidence_limits(self) -> tuple[float, float, float]:
        """Return the limits in the order of `MEMORIES`."""
        return self.evidence_limit_10, self.evidence_limit_20, self.evidence_limit_40
