"""Start, spin, log and end the nodes and other programs that use rclpy."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
import gc
import re
import signal
import sys
import threading
import time
from typing import Any

from kbr_localization.errors import KbrError, RosError
from kbr_localization.progress import printable
from kbr_localization.ros.buffers import WAKE_SECONDS
import numpy as np
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

NUMBER = re.compile(r'(?<![A-Za-z_\d])[-+.\d]+(?:[ex][-+.\d]+)*')
"""Matches 1e-05 and 640x480 too, but not the end of a name: cam0 and cam1 differ."""
SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


@contextmanager
def ros_context(args: list[str] | None = None, domain: int | None = None) -> Iterator[None]:
    """Initialize rclpy, without its signal handlers; raises RosError for wrong ROS arguments."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        rclpy.init(args=args, domain_id=domain, signal_handler_options=SignalHandlerOptions.NO)
    except (UnicodeError, RuntimeError) as error:
        text = re.sub(r',? at /\S+:\d+', '', str(error)).replace('\n', ' ')
        raise RosError(f'wrong ROS arguments: {text}') from error
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        rclpy.try_shutdown()


@dataclass
class Stop:
    """Whether to stop. A threading.Event has a lock, on which a second signal would hang."""

    is_set: bool = False


def stop_at_signals() -> Stop:
    """Return a `Stop` that `SIGNALS` set from now on."""
    stop = Stop()

    def handle(*_: Any) -> None:
        stop.is_set = True

    _at_signals(handle)
    return stop


def _at_signals(handle: Callable[..., None]) -> None:
    """Handle `SIGNALS`, but not SIGHUP under `nohup`."""
    for number in SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handle)


def program(body: Callable[[], None]) -> Callable[[], int]:
    """Turn the body of a node into a program that prints a KbrError in a line and returns 2."""

    @wraps(body)
    def run() -> int:
        # a garbage collection that includes all imported objects would take 30 ms
        gc.freeze()
        # until the body calls `stop_at_signals` there is no state to save: end at once
        _at_signals(signal.default_int_handler)
        try:
            with ros_context():
                body()
        except KeyboardInterrupt:
            return 0
        except KbrError as error:
            print(f'error: {error}', file=sys.stderr)
            return 2
        return 0

    return run


def spin(node: Node) -> None:
    """Run the callbacks of a node until one of `SIGNALS` comes."""
    stop, executor = stop_at_signals(), SingleThreadedExecutor()
    executor.add_node(node)
    try:
        while not stop.is_set:
            executor.spin_once(timeout_sec=WAKE_SECONDS)
    finally:
        executor.shutdown()


class NodeLogger:
    """Log a message at once, and those that differ only in numbers after 5, 10, 20 s and so on."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger
        self._logged: dict[str, tuple[float, float, float]] = {}
        self._lock = threading.Lock()

    def __call__(self, level: str, text: str, quiet: float | None = None) -> None:
        """Log at level 'info', 'warning' or 'error'; `quiet`: fixed interval in seconds."""
        text = printable(text[:4000])
        kind, now, first = NUMBER.sub('#', text), time.monotonic(), 5.0 if quiet is None else quiet
        with self._lock:
            logged, wait, came = self._logged.get(kind, (-np.inf, first, -np.inf))
            wait = first if now - came > 2.0 * first else wait
            if len(self._logged) > 200:
                self._logged.clear()
            is_due = now - logged >= wait
            longer = min(2.0 * wait, 300.0) if quiet is None else quiet
            self._logged[kind] = (now, longer, now) if is_due else (logged, wait, now)
        if not is_due:
            return
        # rclpy allows one severity for each line of code
        if level == 'info':
            self._logger.info(text)
        elif level == 'warning':
            self._logger.warning(text)
        else:
            self._logger.error(text)


def format_counts(counts: Mapping[str, int]) -> str:
    """Return counts by reason as `3 too old, 1 broken image`, or `none`."""
    return ', '.join(f'{count} {reason}' for reason, count in counts.items()) or 'none'
