"""Work in this process and in several: the same results, one thread each, failures in words."""

from contextlib import contextmanager, suppress
from multiprocessing import parent_process
import os
import signal
import subprocess
import sys
import time

import cv2
from hypothesis import given
from hypothesis import strategies as st
from kbr_localization.errors import VisionError, WorkersError
from kbr_localization.threads import VARIABLES
from kbr_localization.workers import (
    batches,
    gathered,
    one_thread,
    open_workers,
    shrinking_batches,
)
import pytest


def work_here(task):
    if task == 'refuse':
        raise VisionError('refused')
    if task == 'die' and parent_process() is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
    return task * 2, os.getpid(), cv2.getNumThreads()


@pytest.mark.parametrize('jobs', [1, 2])
def test_every_task_is_done_once_on_one_thread(jobs):
    with open_workers(jobs, modules=['kbr_localization.vision']) as workers:
        found = dict(workers.run(work_here, list(range(20))))
    assert {number: result[0] for number, result in found.items()} == {
        number: 2 * number for number in range(20)
    }
    assert {result[2] for result in found.values()} == {1}
    processes = {result[1] for result in found.values()}
    assert os.getpid() in processes
    assert len(processes) == jobs


@pytest.mark.parametrize('jobs', [1, 2])
def test_the_package_s_own_errors_come_back(jobs):
    with open_workers(jobs) as workers, pytest.raises(VisionError, match='refused'):
        list(workers.run(work_here, [1, 'refuse', 2]))


def test_a_killed_process_is_an_error_that_says_what_to_do():
    with open_workers(2) as workers, pytest.raises(WorkersError, match='fewer jobs'):
        list(workers.run(work_here, ['die'] * 4))
    with open_workers(2) as workers:
        assert len(list(workers.run(work_here, [1, 2, 3]))) == 3


def test_threads_are_given_back():
    before = cv2.getNumThreads()
    with one_thread():
        assert cv2.getNumThreads() == 1
    assert cv2.getNumThreads() == before


@pytest.mark.parametrize('room', ['cli', 'ros'])
@pytest.mark.parametrize(('given', 'expected'), [({}, 1), ({'OMP_NUM_THREADS': '2'}, 2)])
def test_programs_use_one_thread_unless_told_otherwise(room, given, expected):
    code = f"""
import kbr_localization.{room}, numpy, threadpoolctl
print(max(pool['num_threads'] for pool in threadpoolctl.threadpool_info()))
"""
    environment = {k: v for k, v in os.environ.items() if k not in VARIABLES} | given
    done = subprocess.run(
        [sys.executable, '-c', code], env=environment, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == min(expected, os.cpu_count() or 1)


class Backwards:
    """Finishes the last task first."""

    jobs = 1

    def run(self, work, tasks):
        """Yield the number of a task and what it gave."""
        for number in reversed(range(len(tasks))):
            yield number, work(tasks[number])


def test_lists_are_gathered_in_the_order_of_their_tasks():
    done = []
    found = gathered(Backwards(), range, [2, 0, 3], done.append)
    assert found == [0, 1, 0, 1, 2]
    assert done == [3, 3, 5]


def test_batches_keep_the_order():
    assert [list(part) for part in batches(range(5), 2)] == [[0, 1], [2, 3], [4]]


@given(st.integers(0, 3000), st.integers(1, 80), st.integers(1, 9))
def test_batches_shrink_and_keep_the_order(count, largest, jobs):
    parts = shrinking_batches(range(count), largest, jobs)
    assert [item for part in parts for item in part] == list(range(count))
    sizes = [len(part) for part in parts]
    assert max(sizes, default=0) <= largest
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.skipif(not hasattr(os, 'sched_getaffinity'), reason='there are no affinities')
def test_there_are_as_many_processes_as_this_one_may_use_cores(monkeypatch):
    monkeypatch.delenv('LOKY_MAX_CPU_COUNT', raising=False)
    monkeypatch.setattr(os, 'cpu_count', lambda: 64)
    monkeypatch.setattr(os, 'sched_getaffinity', lambda _: {3, 5})
    with open_workers(None) as workers:
        assert workers.jobs == 2
        assert len(list(workers.run(work_here, [1, 2, 3]))) == 3
    monkeypatch.setenv('LOKY_MAX_CPU_COUNT', '1')
    with open_workers(None) as workers:
        assert workers.jobs == 1


def test_processes_by_the_hundred_are_refused_before_any_is_started(monkeypatch):
    monkeypatch.setattr(os, 'cpu_count', lambda: 6)
    monkeypatch.setattr('kbr_localization.workers.Processes', pytest.fail)
    says = '100 processes on 6 cores: expected at most 12'
    with pytest.raises(WorkersError, match=says), open_workers(100):
        pass


def test_processes_that_nobody_needs_are_no_error():
    with open_workers(2, modules=['kbr_localization.vision']):
        pass
    with pytest.raises(ValueError), open_workers(2, modules=['kbr_localization.vision']):
        raise ValueError('before the work')


def test_nothing_of_large_tasks_is_left_behind():
    """Arrays of more than a megabyte are shared as files, which must go."""
    code = (
        'import functools, operator\n'
        'import numpy as np\n'
        'from kbr_localization.workers import open_workers\n'
        'work = functools.partial(operator.getitem, np.arange(500_000.0))\n'
        'with open_workers(2) as workers:\n'
        '    print(sum(value for _, value in workers.run(work, list(range(40)))))\n'
    )
    command = [sys.executable, '-c', code]
    run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert (run.stdout, run.stderr) == ('780.0\n', '')


INTERRUPTED = """
import signal, sys, time
from kbr_localization.cli.failures import run_command
from kbr_localization.cli.interrupts import interrupts_after_imports
from kbr_localization.workers import open_workers

def command(arguments, **options):
    with open_workers(3, modules=['kbr_localization.vision']) as workers:
        print('started', flush=True)
        for _ in workers.run(time.sleep, [0.2] * 7 + [100.0] * 50):
            print('working', flush=True)

signal.signal(signal.SIGINT, signal.default_int_handler)
with interrupts_after_imports(as_program=True):
    sys.exit(run_command(command, []))
"""
"""Work of which most takes longer than anybody waits who has ended it."""


STARTING = """
import os, signal, sys
from kbr_localization import workers
from kbr_localization.cli.failures import run_command

def command(arguments, **options):
    make = workers._needed('joblib.executor').get_memmapping_executor

    def make_and_interrupt(*arguments, **options):
        pool = make(*arguments, **options)
        pool.submit(abs, -1).result()
        os.kill(os.getpid(), signal.SIGINT)
        print('goes on', flush=True)
        return pool

    workers._needed('joblib.executor').get_memmapping_executor = make_and_interrupt
    with workers.open_workers(2):
        print('swallowed', flush=True)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(run_command(command, []))
"""


def test_an_interrupt_while_processes_are_started_is_heeded_then():
    """Processes that were started on the way must not have taken away what keeps it."""
    command = [sys.executable, '-c', STARTING]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout, run.stderr) == (130, 'goes on\n', 'kbr: interrupted\n')


@contextmanager
def at_work(moment, program=INTERRUPTED):
    """Give a program at a moment, in a session of its own."""
    command = [sys.executable, '-c', program]
    pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE}
    with subprocess.Popen(command, **pipes, start_new_session=True) as run:
        try:
            while run.stdout.readline() != moment:
                assert run.poll() is None
            time.sleep(0.3)
            yield run
        finally:
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)


def assert_nobody_is_left(group, seconds):
    end = time.monotonic() + seconds
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < end:
            os.killpg(group, 0)
            time.sleep(0.05)


ENDS = {
    'Ctrl-C': (os.killpg, signal.SIGINT, b'kbr: interrupted\n'),
    'kill': (os.kill, signal.SIGTERM, b'kbr: ended by SIGTERM\n'),
    'the terminal closed': (
        os.killpg,
        signal.SIGHUP,
        b'kbr: ended by SIGHUP, as its terminal is gone\n',
    ),
}
"""Who is sent which signal, and what is said."""


@pytest.mark.parametrize('moment', [b'started\n', b'working\n'])
@pytest.mark.parametrize('how', ENDS)
def test_on_a_signal_all_processes_end_at_once_without_a_traceback(how, moment):
    """Ctrl-C goes to all processes of a terminal, `kill` to one."""
    send, number, says = ENDS[how]
    with at_work(moment) as run:
        send(run.pid, number)
        _, errors = run.communicate(timeout=60)
        assert (run.returncode, errors) == (128 + number, says)
        assert_nobody_is_left(run.pid, 20)


HELD_BY_THE_FEEDER = """
import threading, time
from joblib.executor import MemmappingExecutor
from joblib.externals.loky.backend import get_context, queues, resource_tracker

feed, terminate = queues.Queue._feed, MemmappingExecutor.terminate
send = resource_tracker._resource_tracker._send
terminated, sending = threading.Event(), threading.Event()

def feed_and_hold(*arguments):
    held = get_context('loky').Lock()
    feed(*arguments)
    terminated.wait(10)

def send_late(*arguments):
    if terminated.is_set() and threading.current_thread().name == 'QueueFeederThread':
        sending.set()
        time.sleep(0.1)
    send(*arguments)

def terminate_and_go_on(*arguments, **options):
    terminate(*arguments, **options)
    terminated.set()
    assert sending.wait(10)

queues.Queue._feed = feed_and_hold
resource_tracker._resource_tracker._send = send_late
MemmappingExecutor.terminate = terminate_and_go_on
"""
"""
The pool's own thread is the last to hold a semaphore, and late to say that it is gone.

Its queue's semaphores are at times held longer by another thread, so it has one of its own.
"""


@pytest.mark.parametrize('interrupted', [True, False])
def test_the_process_does_not_end_before_semaphores_are_given_back(interrupted):
    program = HELD_BY_THE_FEEDER + INTERRUPTED
    if not interrupted:
        program = program.replace(' + [100.0] * 50', '')
    with at_work(b'working\n', program) as run:
        if interrupted:
            os.killpg(run.pid, signal.SIGINT)
        _, errors = run.communicate(timeout=60)
        expected = (130, b'kbr: interrupted\n') if interrupted else (0, b'')
        assert (run.returncode, errors) == expected


def test_pools_that_follow_each_other_at_once_leave_each_other_alone():
    """One ends in the background while the next one begins; an exception there fails a test."""
    for _ in range(6):
        with open_workers(2) as workers:
            assert len(list(workers.run(work_here, [1, 2, 3]))) == 3


def test_a_second_signal_does_not_disturb_the_end():
    with at_work(b'working\n') as run:
        for _ in range(20):
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGINT)
            time.sleep(0.02)
        _, errors = run.communicate(timeout=60)
        assert (run.returncode, errors) == (130, b'kbr: interrupted\n')
        assert_nobody_is_left(run.pid, 20)


@pytest.mark.parametrize('moment', [b'started\n', b'working\n'])
def test_nobody_outlives_a_process_that_is_killed(moment):
    """As when memory has run out."""
    with at_work(moment) as run:
        os.kill(run.pid, signal.SIGKILL)
        run.communicate(timeout=60)
        assert_nobody_is_left(run.pid, 20)
