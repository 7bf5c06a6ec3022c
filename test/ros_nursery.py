"""
A process that has imported most of what nodes need, and becomes one as often as a test starts one.

Imports are nine tenths of what it takes to start a node. A process that is forked has them; it
runs the node's module from its first line on, and ends as any other. What is of ROS it imports
itself: rclpy starts threads, which a fork would lose.
"""

import atexit
import functools
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time

from process_helpers import end_with_parent

MODULES = ('kbr_localization.datasets', 'kbr_localization.localization.methods.registry')
"""What nodes need beside ROS, with all that these import."""
_LOOK_SECONDS = 0.01


class Nursery:
    """The process at the other end, which is asked for one thing after the other."""

    def __init__(self, environment):
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env=os.environ | {'PYTHONUNBUFFERED': '1', 'OPENBLAS_NUM_THREADS': '1'} | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def ask(self, **request):
        """Send a request and return the answer."""
        self._process.stdin.write(json.dumps(request).encode() + b'\n')
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, program, environment, log):
        """Start a program, a module and its arguments, whose output goes to a file."""
        log.touch()
        request = {'program': program, 'environment': environment, 'log': str(log)}
        return Child(self, self.ask(**request))

    def close(self):
        """Let it end."""
        with self._process as process:
            process.stdin.close()


@functools.cache
def nursery(*environment):
    """Return the nursery of an environment, pairs beside the usual; the first call makes it."""
    made = Nursery(dict(environment))
    atexit.register(made.close)
    return made


class Child:
    """A process of the nursery, as subprocess.Popen has them."""

    def __init__(self, parent, pid):
        self._parent, self.pid, self.returncode = parent, pid, None

    def poll(self):
        """Return the exit code, None as long as it runs."""
        if self.returncode is None:
            self.returncode = self._parent.ask(ended=self.pid)
        return self.returncode

    def wait(self, timeout):
        """Return the exit code; raises TimeoutExpired."""
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(f'process {self.pid}', timeout)
            time.sleep(_LOOK_SECONDS)
        return self.returncode

    def send_signal(self, number):
        """Send a signal to it unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        """End it at once."""
        self.send_signal(signal.SIGKILL)


def _main():
    # Ctrl-C is for the tests, and for the nodes
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in MODULES:
        importlib.import_module(module)
    assert 'rclpy' not in sys.modules
    with open(0, 'rb', buffering=0, closefd=False) as requests:
        for line in requests:
            request = json.loads(line)
            if 'ended' in request:
                pid, status = os.waitpid(request['ended'], os.WNOHANG)
                answer = os.waitstatus_to_exitcode(status) if pid else None
            else:
                answer = os.fork()
            if answer == 0 and 'program' in request:
                break
            print(json.dumps(answer), flush=True)
        else:
            return
    _become(**request)


def _become(program, environment, log):
    """Be a program that was just started; the nursery's end is that of the test."""
    nothing, out = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND)
    for file, number in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(file, number)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    end_with_parent(os.getppid(), signal.SIGINT)
    # as Python decodes arguments in this environment
    module, *_ = sys.argv = [os.fsdecode(part.encode()) for part in program]
    runpy.run_module(module, run_name='__main__', alter_sys=True)


if __name__ == '__main__':
    _main()
