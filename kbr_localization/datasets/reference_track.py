"""Reference poses between which nothing is guessed."""

from __future__ import annotations

from dataclasses import dataclass

from kbr_localization.datasets.frame import OdometryTrack
from kbr_localization.se2 import FloatArray
import numpy as np

LONGEST_GAP_NS = 10**9
FARTHEST_GAP_M = 0.3
"""Between reference poses further apart than both of these, nothing is interpolated."""


@dataclass(frozen=True)
class ReferenceTrack:
    """Stamped true poses of a run."""

    track: OdometryTrack

    def at(self, stamp_ns: int) -> FloatArray | None:
        """Pose (3,) at a stamp, None outside of the track and in its gaps."""
        stamps, poses = self.track.stamps_ns, self.track.poses
        if not stamps[0] <= stamp_ns <= stamps[-1]:
            return None
        after = int(np.searchsorted(stamps, stamp_ns))
        if stamps[after] != stamp_ns:
            gap_ns = stamps[after] - stamps[after - 1]
            gap_m = np.hypot(*(poses[after] - poses[after - 1])[:2])
            if gap_ns > LONGEST_GAP_NS and gap_m > FARTHEST_GAP_M:
                return None
        return self.track.at(stamp_ns)
