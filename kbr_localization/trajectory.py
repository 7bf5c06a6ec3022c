"""Stamped poses that a localizer estimated over a run, and stamps read from text."""

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
    Stamped poses of a run with their covariances and statuses.

    `stamps_ns`: (n,) increasing. `poses`: (n, 3) in the map frame. The other fields are empty
    where unknown. `covariances`: (n, 3, 3). `confidences`: (n,). `statuses`: n words, `reasons`:
    the numbers behind each, by name. `updated`: (n,) bool. `seconds`: (n,) processor time of each
    frame. `skipped`: counts of frames left out, by reason. `last_error`: message of the last
    image that could not be used.
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
    """Parse seconds as nanoseconds, without floats; raises ValueError."""
    try:
        seconds = Decimal(text)
    except InvalidOperation as error:
        raise ValueError(f'expected a time in seconds, got {text[:40]!r}') from error
    # compare before int(), which would not end for a huge exponent
    if not (seconds.is_finite() and 0 <= seconds < LATEST_S):
        raise ValueError(f'expected a time in [0, {LATEST_S}) s, got {text[:40]!r}')
    return int(seconds.scaleb(9).to_integral_value())
