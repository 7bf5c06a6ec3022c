"""How processes that help this one begin without its signals, and end with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
import os
import runpy
import signal
import sys
import threading
import time

_WATCH_SECONDS, _END_SECONDS = 1.0, 30.0


@contextmanager
def uninterrupted_children() -> Iterator[None]:
    """
    Let processes that are started inside not see Ctrl-C, which reaches all of a terminal's.

    Nor that the terminal is gone. This one ends them, and they have no tracebacks to print. That a
    signal is ignored is inherited, and holds before the first line of Python. Here a mask keeps it
    until they have started.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _ignored(signal.SIGHUP):
        # what watches over shared memory takes the mask of SIGINT away when it is started
        resource_tracker.ensure_running()
        with _ignored(signal.SIGINT), _held(signal.SIGTERM):
            yield


@contextmanager
def _ignored(number: signal.Signals) -> Iterator[None]:
    """Have the processes started inside ignore a signal, which waits here."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, signal.SIG_DFL if before is None else before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def _held(number: signal.Signals) -> Iterator[None]:
    """Hold back a signal without letting the processes started inside inherit that."""
    came = []
    before = signal.getsignal(number)
    if before in (signal.SIG_IGN, None):
        yield
        return
    signal.signal(number, lambda *_: came.append(number))
    try:
        yield
    finally:
        signal.signal(number, before)
    if came:
        signal.raise_signal(number)


def command(module: str, *arguments: str) -> list[str]:
    """Command of a process that runs a module as a program and ends with this process."""
    return [sys.executable, '-m', __name__, str(os.getpid()), module, *arguments]


def end_with_parent(parent: int, how: signal.Signals = signal.SIGKILL) -> None:
    """
    Let this process not outlive the one that it works for, however that one ends.

    `how`: the signal that this one gets then; it is killed when it does not end by that.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
        os.kill(os.getpid(), how)
        time.sleep(_END_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _main(parent: str, module: str, *arguments: str) -> None:
    end_with_parent(int(parent), signal.SIGINT)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name='__main__', alter_sys=True)


if __name__ == '__main__':
    _main(*sys.argv[1:])
