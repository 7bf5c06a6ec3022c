"""Ctrl-C and other requests to end leave `kbr` in one line, also while modules are imported."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
import math
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

INTERRUPTED = 128 + signal.SIGINT
"""Exit code of a command that was interrupted."""

_REASONS = {
    signal.SIGINT: 'interrupted',
    signal.SIGTERM: 'ended by SIGTERM',
    signal.SIGHUP: 'ended by SIGHUP, as its terminal is gone',
}
_IMPORT_SYSTEM = '<frozen importlib'
_RETRY_SECONDS = 0.05
_PATIENCE = 5.0
"""Seconds to clear away what was begun, in which further signals do nothing."""


@contextmanager
def interrupts_after_imports(as_program: bool) -> Iterator[None]:
    """
    Let signals raise KeyboardInterrupt, but not within an import: then when that is over.

    There an exception would be swallowed by modules that catch what the import of another one
    raises, and by compiled ones. A signal that is ignored, or handled by somebody else, stays so.
    `as_program`: the process ends afterwards, and signals do not disturb it at that.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = _signals.listen()
    try:
        yield
    except SystemExit:
        if not _signals.waiting:
            raise
    finally:
        _signals.leave()
        if as_program:
            # by then nothing is left that could hang, and Python gives its handlers up
            atexit.register(_set, dict.fromkeys(usual, signal.SIG_IGN))
        else:
            _set(usual)
    if _signals.waiting:
        raise KeyboardInterrupt


def ended() -> tuple[str, int]:
    """Say which signal has ended the command, and the exit code for it."""
    return _REASONS[_signals.number], 128 + _signals.number


class _Signals:
    """
    The first one raises, at the latest at the end of all imports; others wait for what it began.

    `number`: the one that came first. `waiting`: whether it came within an import.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.number, self.waiting = signal.SIGINT, False
        self._leaving, self._since = False, -math.inf
        self._retry: threading.Timer | None = None
        self._usual_hook: Callable[[Any], object] = sys.unraisablehook

    def listen(self) -> dict[signal.Signals, Any]:
        """Take the signals that nobody has taken yet; return who had them."""
        self._begin()
        self._usual_hook, sys.unraisablehook = sys.unraisablehook, self._take_unraisable
        untouched = (signal.default_int_handler, signal.SIG_DFL)
        free = [number for number in _REASONS if signal.getsignal(number) in untouched]
        return {number: signal.signal(number, self._take) for number in free}

    def leave(self) -> None:
        """Take it that the command is over."""
        self._leaving, self._since = True, time.monotonic()
        sys.unraisablehook = self._usual_hook
        if self._retry is not None:
            self._retry.cancel()

    def _take(self, number: int, frame: FrameType | None) -> None:
        if time.monotonic() < self._since + _PATIENCE:
            return
        if self._leaving:
            os._exit(128 + number)
        self.number, self.waiting = signal.Signals(number), _is_importing(frame)
        if not self.waiting:
            self._since = time.monotonic()
            raise KeyboardInterrupt
        self._send_again()

    def _take_unraisable(self, unraisable: Any) -> None:
        """Raise again what came within a destructor and went nowhere."""
        if unraisable.exc_type is not KeyboardInterrupt:
            self._usual_hook(unraisable)
            return
        self._since = -math.inf
        self._send_again()

    def _send_again(self) -> None:
        # to the main thread, where a mask keeps it while processes are started
        sent = threading.main_thread().ident, self.number
        self._retry = threading.Timer(_RETRY_SECONDS, signal.pthread_kill, sent)
        self._retry.daemon = True
        self._retry.start()


_signals = _Signals()


def _set(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORT_SYSTEM):
            return True
        frame = frame.f_back
    return False
