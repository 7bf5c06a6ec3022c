"""How every executable of the package starts and ends."""

from __future__ import annotations

from collections.abc import Callable
import sys

from kbr_localization.errors import KbrError
import rclpy
from rclpy.executors import ExternalShutdownException


def run_node(body: Callable[[], None], args: list[str] | None = None) -> int:
    """
    Run a node's body between init and shutdown; return the process's exit code.

    0: done, or stopped by SIGINT or SIGTERM. 2: bad input, told in one line on stderr.
    """
    try:
        rclpy.init(args=args)
        body()
    except (KeyboardInterrupt, ExternalShutdownException):
        return 0
    except KbrError as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    finally:
        rclpy.try_shutdown()
    return 0
