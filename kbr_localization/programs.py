"""Console scripts of the nodes; each starts its node, or says which module is missing."""

from __future__ import annotations

import importlib
import signal
import sys

from kbr_localization.resources import describe_missing, REMEDIES


def localization_node() -> int:
    """Run the node that localizes and maps."""
    return _start('localization_node', 'kbr_localization.ros.node')


def player_node() -> int:
    """Run the node that plays a run."""
    return _start('player_node', 'kbr_localization.ros.player')


def recorder_node() -> int:
    """Run the node that records a run."""
    return _start('recorder_node', 'kbr_localization.ros.recorder')


def _start(program: str, module: str) -> int:
    # without this, Ctrl-C during the imports prints a traceback; rclpy installs its own handler
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        main = importlib.import_module(module).main
    except ModuleNotFoundError as error:
        if error.name not in REMEDIES:
            raise
        print(f'{program}: {describe_missing(error.name, "this program")}', file=sys.stderr)
        return 2
    return int(main() or 0)
