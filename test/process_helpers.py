"""Processes that start others, and disks that are full."""

from contextlib import contextmanager, suppress
import os
import resource
import signal
import subprocess
import sys
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


@contextmanager
def full_disk(largest=8000):
    """Let no file of this process have more bytes; that is refused, and no signal."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # half a file of bytecode would break the next process
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        sys.dont_write_bytecode = writes
