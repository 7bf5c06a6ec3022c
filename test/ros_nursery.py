"""
Nodes as processes that start as often as a test likes: forked from one that has the imports.

Imports are nine tenths of what it takes to start a node. What is of ROS a node imports itself:
rclpy starts threads, which a fork would lose.
"""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import time

FORKS = multiprocessing.get_context('forkserver')
FORKS.set_forkserver_preload(
    ['kbr_localization.datasets', 'kbr_localization.localization.methods.registry']
)
PATH = [*sys.path]
"""Without what tests add later, as messages that need more than a path."""


class Child:
    """A program, a module and its arguments, whose output goes to a file; as subprocess.Popen."""

    def __init__(self, program, environment, log):
        arguments = (program, environment, str(log), PATH)
        self._process = FORKS.Process(target=_become, args=arguments, daemon=True)
        self._process.start()

    def poll(self):
        return self._process.exitcode

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(f'process {self._process.pid}', timeout)
        return self.poll()

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self._process.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def _become(program, environment, log, path):
    out = os.open(log, os.O_WRONLY | os.O_APPEND)
    for number in (1, 2):
        os.dup2(out, number)
    sys.path[:] = path
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    module, *_ = sys.argv = program
    runpy.run_module(module, run_name='__main__', alter_sys=True)


def _end_with_parent(parent):
    """Interrupt this process when its parent is gone, and end it 30 s later."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(30.0)
    os._exit(1)
