"""Stamped poses that a localizer estimated over a run, and how stamps are read from text."""

from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation

from kbr_localization.se2 import FloatArray, StampArray
import numpy as np
from numpy.typing import NDArray

LATEST_S = 2**33
"""Upper bound of a stamp in seconds (the year 2242), so that nanoseconds fit 64 bits."""


@dataclass(frozen=True)
class Trajectory:
    """
    Stamped poses with what the localizer said about them.

    `stamps_ns`: (n,) increasing. `poses`: (n, 3) in the map frame. Each of the following is empty
    where it is unknown. `covariances`: (n, 3, 3). `confidences`: (n,). `statuses`: n words,
    `reasons`: the numbers behind each, by name. `updated`: (n,) bool. `seconds`: (n,) processor
    time of each frame. `skipped`: frames left out, by reason. `last_error`: what was wrong with
    the last image that could not be used.
    """

    stamps_ns: StampArray
    poses: FloatArray
    covariances: FloatArray = field(default_factory=lambda: np.zeros((0, 3, 3)))
    confidences: FloatArray = field(default_factory=lambda: np.zeros(0))
    statuses: tuple[str, ...] = ()
    reasons: tuple[dict[str, float], ...] = ()
    updated: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))
    seconds: FloatArray = field(default_factory=lambda: np.zeros(0))
    skipped: dict[str, int] = field(default_factory=dict)
    last_error: str = ''

    def __len__(self) -> int:
        return int(self.stamps_ns.size)


def parse_seconds(text: str) -> int:
    """Nanoseconds of a text of seconds without rounding; raises ValueError for what is none."""
    try:
        seconds = Decimal(text)
    except InvalidOperation as error:
        raise ValueError(f'expected a time in seconds, got {text[:40]!r}') from error
    # compare first: int() of a huge exponent would never end
    if not (seconds.is_finite() and 0 <= seconds < LATEST_S):
        raise ValueError(f'expected a time in [0, {LATEST_S}) s, got {text[:40]!r}')
    return int(seconds.scaleb(9).to_integral_value())
