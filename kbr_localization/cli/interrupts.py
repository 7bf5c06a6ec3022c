"""Ctrl-C at any time ends `kbr` in one line, also while modules are imported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import signal
import threading
from types import FrameType

INTERRUPTED = 130
"""Exit code of a command that was interrupted."""

_IMPORT_SYSTEM = '<frozen importlib'
_RETRY_SECONDS = 0.05


@contextmanager
def interrupts_after_imports() -> Iterator[None]:
    """
    Let Ctrl-C raise KeyboardInterrupt, but not within an import: then when that is over.

    There an exception would be swallowed by modules that catch what the import of another one
    raises, and by compiled ones. Where SIGINT is ignored it stays so.
    """
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not usual or threading.current_thread() is not threading.main_thread():
        yield
        return
    later = _Later()
    signal.signal(signal.SIGINT, later.interrupt)
    try:
        yield
    except SystemExit:
        if not later.waiting:
            raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if later.waiting:
        raise KeyboardInterrupt


class _Later:
    """Interrupts that come within an import wait for its end, at the latest for that of all."""

    def __init__(self) -> None:
        self.waiting = False

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        self.waiting = _is_importing(frame)
        if not self.waiting:
            raise KeyboardInterrupt
        # to this thread, where a mask keeps it while processes are started
        sent = threading.get_ident(), signal.SIGINT
        again = threading.Timer(_RETRY_SECONDS, signal.pthread_kill, sent)
        again.daemon = True
        again.start()


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORT_SYSTEM):
            return True
        frame = frame.f_back
    return False
