"""
The installed programs: they start what they are named after, or say what is missing for it.

Importing a node takes a second, in which Ctrl-C would print a traceback: until the node has
handlers of its own, a signal just ends the program.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from types import FrameType

from kbr_localization.extras import describe_missing, REMEDIES

BAD_INPUT = 2


def localization_node() -> int:
    """Run the node that localizes and maps."""
    return _start('localization_node', 'kbr_localization.ros.node.node')


def player_node() -> int:
    """Run the node that plays a run."""
    return _start('player_node', 'kbr_localization.ros.playback.player')


def recorder_node() -> int:
    """Run the node that records a run."""
    return _start('recorder_node', 'kbr_localization.ros.recording.recorder')


def _start(program: str, module: str) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    try:
        main = importlib.import_module(module).main
    except ModuleNotFoundError as error:
        if error.name not in REMEDIES:
            raise
        print(f'{program}: {describe_missing(error.name, "this program")}', file=sys.stderr)
        return BAD_INPUT
    return int(main() or 0)


def _leave(number: int, frame: FrameType | None) -> None:
    # an exception in the midst of an import would be printed, or swallowed
    os._exit(0)
