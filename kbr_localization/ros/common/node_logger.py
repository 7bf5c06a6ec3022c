"""Log lines that say things once in a while, not thirty times a second."""

from __future__ import annotations

from collections.abc import Mapping
import re
import threading
import time
from typing import Any

QUIET_SECONDS = 5.0
LONGEST = 4000
"""Characters of a text: a message from a stranger may hold a name of millions."""
MOST_ONCE = 200
"""Texts that are told once, in all: a sender with a new name in every message makes as many."""
NUMBER = re.compile(r'(?<![A-Za-z_\d])[-+.\d]+(?:[ex][-+.\d]+)*')
"""Also 1e-05 and 640x480, but none that a name ends with: cam0 and cam1 are two cameras."""


class NodeLogger:
    """
    Write to a ROS logger, each kind of message at most once in `quiet` seconds.

    Messages that differ only in their numbers are of one kind.
    """

    def __init__(self, logger: Any, quiet: float = QUIET_SECONDS) -> None:
        self._logger, self._quiet = logger, quiet
        self._told: dict[str, float] = {}
        self._once: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, level: str, text: str, quiet: float | None = None) -> None:
        """Log a text at 'info', 'warning' or 'error'."""
        text = _cut(text)
        kind, now = NUMBER.sub('#', text), time.monotonic()
        with self._lock:
            wait = self._quiet if quiet is None else quiet
            if now - self._told.get(kind, -1e9) < wait:
                return
            if len(self._told) > 200:
                self._told.clear()
            self._told[kind] = now
        # rclpy keeps the severity of a call site, so every level needs its own
        if level == 'info':
            self._logger.info(text)
        elif level == 'warning':
            self._logger.warning(text)
        else:
            self._logger.error(text)

    def once(self, level: str, text: str) -> None:
        """Log a text the first time only, and none beyond the first `MOST_ONCE`."""
        text = _cut(text)
        if text not in self._once and len(self._once) < MOST_ONCE:
            self._once.add(text)
            self(level, text, 0.0)


def _cut(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    end = f'… ({len(text)} characters)'
    return text[: LONGEST - len(end)] + end


def listed(counts: Mapping[str, int]) -> str:
    """Say counts by reason, as in `3 too old, 1 broken image`; `none` without any."""
    return ', '.join(f'{count} {reason}' for reason, count in counts.items()) or 'none'
