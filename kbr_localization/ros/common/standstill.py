"""How long the odometry has stood still, and whether its velocity or known poses say otherwise."""

from __future__ import annotations

import math

from kbr_localization import se2

SECOND = 1_000_000_000
STILL = 0.01
"""Metres and radians within which the odometry stands still."""
SLOWEST = 0.05
"""Metres and radians per second of a robot that moves: noise and drift of a gyroscope are less."""
LONGEST_STEP = 1.0
"""Seconds for which a velocity counts at most, where messages are lost."""
STEP, STEPS, DISTANCE = 0.1, 5, 1.0
"""Metres of a step of known poses, how many, and metres in all: a jump or a jitter is no way."""
EVIDENT_SECONDS = 5.0
"""Of motion that the pose of the odometry does not show: no start takes so long."""


class Standstill:
    """
    Follows the odometry.

    `seconds`: for how long its pose has stood still, by the stamps; `since_ns`: the stamp since
    then. `driven`: seconds of these in which its velocity was that of a robot that moves; `speed`
    and `turn_rate`: the last such velocity, in m/s and rad/s.
    """

    def __init__(self) -> None:
        self.since_ns = self._last_ns = 0
        self._at: se2.FloatArray | None = None
        self.seconds = self.driven = 0.0
        self.speed = self.turn_rate = 0.0

    def look(
        self, stamp_ns: int, odometry: se2.FloatArray, speed: float = 0.0, turn_rate: float = 0.0
    ) -> None:
        """Take in a pose (3,) and the velocity that came with it, in m/s and rad/s."""
        if self._at is None or stamp_ns < self.since_ns or not _is_still(self._at, odometry):
            self.since_ns, self._at, self.driven = stamp_ns, odometry, 0.0
        elif max(speed, abs(turn_rate)) >= SLOWEST:
            step = (stamp_ns - self._last_ns) / SECOND
            self.driven += min(max(step, 0.0), LONGEST_STEP)
            self.speed, self.turn_rate = speed, turn_rate
        self._last_ns = stamp_ns
        self.seconds = (stamp_ns - self.since_ns) / SECOND

    @property
    def only_the_velocity_moves(self) -> bool:
        """Whether the velocity says for long that the robot moves."""
        return self.driven >= EVIDENT_SECONDS


class KnownMotion:
    """
    Follows poses that are known while the odometry stands still.

    `metres`: how far they have gone from where they were, 0 where they may only have jumped.
    """

    def __init__(self) -> None:
        self._since_ns: int | None = None
        self._farthest, self._steps = 0.0, 0

    def look(self, pose: se2.FloatArray, since_ns: int) -> None:
        """Take in a pose (3,); `since_ns`: since when the odometry has stood still."""
        if since_ns != self._since_ns:
            self._since_ns, self._start, self._last = since_ns, pose, pose
            self._farthest, self._steps = 0.0, 0
        elif math.dist(self._last[:2], pose[:2]) >= STEP:
            self._last, self._steps = pose, self._steps + 1
            self._farthest = max(self._farthest, math.dist(self._start[:2], pose[:2]))

    @property
    def metres(self) -> float:
        """Return the way, if it is one."""
        return self._farthest if self._steps >= STEPS and self._farthest >= DISTANCE else 0.0


def _is_still(start: se2.FloatArray, end: se2.FloatArray) -> bool:
    step = se2.between(start, end)
    return math.hypot(step[0], step[1]) <= STILL and abs(float(step[2])) <= STILL
