"""An executor that knows how long callbacks take, for a node that promises not to block."""

from __future__ import annotations

from collections.abc import Callable
import time
from typing import Any

from kbr_localization.ros.common.diagnostics import Latencies
from rclpy.executors import SingleThreadedExecutor


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
