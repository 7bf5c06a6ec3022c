"""Processes that start others, for tests of what becomes of these."""

from contextlib import contextmanager, suppress
import os
import signal
import subprocess
import threading
import time

import pytest


@contextmanager
def leader(command, **options):
    """Run a command that leads a group of processes; what is left of the group is killed."""
    with subprocess.Popen(command, start_new_session=True, **options) as run:
        try:
            yield run
        finally:
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)


def assert_nobody_is_left(run, end):
    """Wait for the end of a `leader`, and of its group until that time of the steady clock."""
    run.wait()
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < end:
            os.killpg(run.pid, 0)
            time.sleep(0.1)


def end_with_parent(parent, how=signal.SIGKILL):
    """End this process by a signal when its parent is gone, and kill it 30 s later."""

    def watch():
        while os.getppid() == parent:
            time.sleep(1.0)
        os.kill(os.getpid(), how)
        time.sleep(30.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
