"""What a map says of itself when parts of it are left out."""

from __future__ import annotations

from dataclasses import dataclass

MEMORIES = (10.0, 20.0, 40.0)
"""Covered images over which the mean log likelihood is taken: the longer, the surer and later."""

SAFETY_FACTOR = 1.25
"""Of the limits: another building resembles a map more than its halves resemble each other."""


@dataclass(frozen=True)
class MapStatistics:
    """
    Learnt when a map is built, by `kbr.leave_out.measure`.

    The margin of an image is the kernel value of its best match, centred (`centring`), less that
    of the best match at another place. `margin_here`, `margin_elsewhere`: its mean where the map
    shows the place, and where the neighbourhood is left out. `log_likelihood_limit_10`, `_20`,
    `_40`: what the mean log likelihood over so many images (`MEMORIES`) stays below in drives
    whose own places are left out of the map (see `confirmation.Confirmation`): a robot that is not
    where it is believed to be has no more. `typical_log_likelihood`: the median of the first; over
    a long way a robot that is on the map has more (`map_fit.MapFit`). The defaults are those of an
    office that nothing is known of.
    """

    margin_here: float = 0.1
    margin_elsewhere: float = 0.03
    log_likelihood_limit_10: float = 0.5
    log_likelihood_limit_20: float = 0.5
    log_likelihood_limit_40: float = 0.5
    typical_log_likelihood: float = 0.0

    @property
    def log_likelihood_limits(self) -> tuple[float, float, float]:
        """Return the limits in the order of `MEMORIES`."""
        return (
            self.log_likelihood_limit_10,
            self.log_likelihood_limit_20,
            self.log_likelihood_limit_40,
        )
