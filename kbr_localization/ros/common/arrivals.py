"""When the messages of a topic arrive, against their stamps: do two topics go by one clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from kbr_localization.se2 import FloatArray
import numpy as np

RECENT_SECONDS = 10.0
"""For so long messages are looked back at: three of a camera that sends every three seconds."""
MOST_RECENT = 5000
"""Of a topic that sends faster than 500 Hz less time is looked back at."""
FEWEST, SHORTEST = 3, 3.0
"""Messages and seconds of them that tell of a clock: longer than a start or a network stutters."""


@dataclass(frozen=True)
class Lead:
    """
    By how many seconds the stamps of one topic lead those of another as both arrive.

    `median`: of the stamps. `least`: the one nearest to zero, zero where they have both signs; in
    seconds of the node's time where a replay or a simulation runs faster than that, as delays on
    the way are.
    """

    median: float = 0.0
    least: float = 0.0


class Arrivals:
    """Arrivals, in monotonic seconds, and stamps of the last messages of a topic."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, float]] = deque(maxlen=MOST_RECENT)

    def add(self, stamp_ns: int, now: float) -> None:
        """Note a message."""
        self._recent.append((now, 1e-9 * stamp_ns))
        while now - self._recent[0][0] > RECENT_SECONDS:
            self._recent.popleft()

    def since(self, start: float) -> tuple[FloatArray, FloatArray]:
        """Arrivals (n,) from a time on, and the stamps (n,) in seconds that came then."""
        recent = np.array([pair for pair in self._recent if pair[0] >= start]).reshape(-1, 2)
        return recent[:, 0], recent[:, 1]


def lead(topic: Arrivals, other: Arrivals, now: float) -> Lead:
    """
    Compare the stamps of a topic with those that another one had when the messages arrived.

    The other's are interpolated between its arrivals, so neither its rate nor a bag's matters.
    Delays that vary and bursts move single messages, a clock that is off moves all of them: so the
    one that is moved least tells what the clocks are apart at least.
    """
    arrivals, stamps = topic.since(now - RECENT_SECONDS)
    others, other_stamps = other.since(now - RECENT_SECONDS)
    if len(others) < FEWEST:
        return Lead()
    between = (arrivals >= others[0]) & (arrivals <= others[-1])
    arrivals, stamps = arrivals[between], stamps[between]
    if len(arrivals) < FEWEST or arrivals[-1] - arrivals[0] < SHORTEST:
        return Lead()
    leads = stamps - np.interp(arrivals, others, other_stamps)
    least = max(leads.min(), 0.0) + min(leads.max(), 0.0)
    pace = (other_stamps[-1] - other_stamps[0]) / (others[-1] - others[0])
    return Lead(float(np.median(leads)), float(least / max(pace, 1.0)))
