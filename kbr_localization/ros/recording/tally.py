"""What became of the images and poses of a recording, and whether any image is recorded."""

from __future__ import annotations

from collections import Counter
import math

from kbr_localization.ros.common.node_logger import listed

STALL_SECONDS = 5.0
"""While images come in and none is recorded, or near the last one, after which that is told."""


class Tally:
    """
    Counts by reason, and the time since an image was recorded. Times are monotonic seconds.

    `waiting`: images that a queue drops, which are counted there. `images`: others that were
    dropped. `poses`: pose messages that were not used.
    """

    def __init__(self, waiting: Counter[str]) -> None:
        self._waiting = waiting
        self.images = Counter[str]()
        self.poses = Counter[str]()
        self._came = self._placed = -math.inf
        self._lost_before = Counter[str]()

    @property
    def dropped(self) -> Counter[str]:
        """Images that were not recorded."""
        return self._waiting + self.images

    @property
    def _lost(self) -> Counter[str]:
        return self.dropped + Counter({f'poses {why}': n for why, n in self.poses.items()})

    def came(self, now: float) -> None:
        """Note that an image has come."""
        if now - self._came > STALL_SECONDS:
            self.placed(now)
        self._came = now

    def placed(self, now: float) -> None:
        """Note that an image was recorded, or is not wanted so near to the last one."""
        self._placed, self._lost_before = now, self._lost

    def stall(self, now: float) -> str:
        """Say why none of the images that come in has been recorded for long, or nothing."""
        comes = now - self._came <= STALL_SECONDS
        if not comes or now - self._placed <= STALL_SECONDS:
            return ''
        lost = self._lost - self._lost_before
        why = listed(lost) if lost else 'they wait for odometry or pose'
        return f'images come in, but none could be recorded for {now - self._placed:.0f} s: {why}'
