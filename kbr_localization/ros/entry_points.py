"""
The executables of the package.

Importing a node takes a second, in which Ctrl-C would print a traceback: until the node has
handlers of its own, a signal just ends the program.
"""

from __future__ import annotations

import importlib
import os
import signal
from types import FrameType


def localization_node() -> int:
    """Run the localization node."""
    return _run('node')


def player_node() -> int:
    """Run the player."""
    return _run('player')


def recorder_node() -> int:
    """Run the recorder."""
    return _run('recorder')


def _run(module: str) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    return int(importlib.import_module(f'kbr_localization.ros.{module}').main())


def _leave(number: int, frame: FrameType | None) -> None:
    # an exception in the midst of an import would be printed, or swallowed
    os._exit(0)
