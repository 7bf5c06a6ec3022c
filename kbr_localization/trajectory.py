"""A localizer's answers over a run."""

from __future__ import annotations

from dataclasses import dataclass, field

from kbr_localization.se2 import FloatArray, StampArray
import numpy as np


@dataclass(frozen=True)
class Trajectory:
    """
    Stamped poses with what the localizer said about them.

    `stamps_ns`: (n,) increasing. `poses`: (n, 3) in the map frame. `covariances`: (n, 3, 3) or
    None. `confidences`: (n,) or None. `statuses`: n words or empty. `updated`: (n,) bool or None.
    `seconds`: (n,) time spent on each frame or None. `skipped`: frames left out, by reason.
    `last_error`: what was wrong with the last image that could not be used.
    """

    stamps_ns: StampArray
    poses: FloatArray
    covariances: FloatArray | None = None
    confidences: FloatArray | None = None
    statuses: tuple[str, ...] = ()
    updated: np.ndarray | None = None
    seconds: FloatArray | None = None
    skipped: dict[str, int] = field(default_factory=dict)
    last_error: str = ''

    def __len__(self) -> int:
        """Count the poses."""
        return int(self.stamps_ns.size)
