"""How every executable of the package starts, runs its callbacks and ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
import gc
import re
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

from kbr_localization.errors import KbrError, RosError
from kbr_localization.ros.common.diagnostics import Latencies
import rclpy
from rclpy.executors import Executor, SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What tells a node to end: Ctrl-C, whoever manages it, and a terminal that is closed."""
WAKE_SECONDS = 0.2
"""How long a spinning node may take to notice that it shall stop."""


class _StopHandler:
    """Takes the signals: sets an event, and raises where nobody looks at it for long."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop, self.raises = stop, False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._stop.set()
        if self.raises:
            raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[None]:
    """Let a signal raise KeyboardInterrupt at once, in what takes long before a node spins."""
    handlers = {signal.getsignal(number) for number in SIGNALS}
    ours = [handler for handler in handlers if isinstance(handler, _StopHandler)]
    for handler in ours:
        handler.raises = True
    try:
        yield
    finally:
        for handler in ours:
            handler.raises = False


@contextmanager
def ros_context(args: Sequence[str] | None = None) -> Iterator[threading.Event]:
    """
    Initialize rclpy and give an event that the signals set, but for a SIGHUP that is ignored.

    rclpy's own handlers would take the context away at once; like this a node can say goodbye,
    and a second signal does not disturb it. Raises RosError for ROS arguments that are not right.
    """
    _initialize(args)
    stop = threading.Event()
    previous, handler = {}, _StopHandler(stop)
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            # whoever starts a node with `nohup` wants it to go on
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                previous[number] = signal.signal(number, handler)
    try:
        yield stop
    finally:
        for number, usual in previous.items():
            signal.signal(number, usual)
        rclpy.try_shutdown()


def _initialize(args: Sequence[str] | None) -> None:
    try:
        rclpy.init(
            args=None if args is None else list(args),
            signal_handler_options=SignalHandlerOptions.NO,
        )
    except UnicodeError as error:
        raise RosError(f'the ROS arguments are not right: expected UTF-8, got {error}') from error
    # what rcl raises has no public name; its message ends with places in rcl's source
    except RuntimeError as error:
        text = re.sub(r',? at /\S+:\d+', '', str(error)).replace('\n', ' ')
        raise RosError(f'the ROS arguments are not right: {text}') from error


def spin(executor: Executor, stop: threading.Event) -> None:
    """Serve callbacks until told to stop."""
    while not stop.is_set():
        executor.spin_once(timeout_sec=WAKE_SECONDS)


def run_node(body: Callable[[threading.Event], None], args: list[str] | None = None) -> int:
    """
    Run a node's body, which ends when its event is set; return the process's exit code.

    0: done, or stopped by a signal. 2: bad input, told in one line on stderr.
    """
    # what was imported stays: to look through it for garbage would take 30 ms time and again
    gc.freeze()
    try:
        with ros_context(args) as stop:
            body(stop)
    except KbrError as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    return 0


class TimedExecutor(SingleThreadedExecutor):
    """`durations`: how long the last callbacks kept the executor, in seconds."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.durations = Latencies(1000)

    def wait_for_ready_callbacks(self, *args: Any, **options: Any) -> Any:
        """Wait for the next callback, which will be timed."""
        handler, entity, node = super().wait_for_ready_callbacks(*args, **options)
        return _Timed(handler, self.durations.add), entity, node


class _Timed:
    """A callback that tells how long it took, otherwise as it was."""

    def __init__(self, handler: Any, took: Callable[[float], None]) -> None:
        self._handler, self._took = handler, took

    def __call__(self) -> None:
        started = time.perf_counter()
        try:
            self._handler()
        finally:
            self._took(time.perf_counter() - started)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handler, name)
