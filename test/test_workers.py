"""Work in this process and in several: the same results, one thread each, failures in words."""

from contextlib import suppress
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
from kbr_localization.workers import (
    gathered,
    one_thread,
    open_workers,
    shrinking_batches,
    THREAD_VARIABLES,
)
from process_helpers import assert_nobody_is_left
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
    with open_workers(jobs) as workers:
        found = dict(workers.run(work_here, list(range(20))))
    assert {n: result[0] for n, result in found.items()} == {n: 2 * n for n in range(20)}
    assert {result[2] for result in found.values()} == {1}
    assert ({result[1] for result in found.values()} == {os.getpid()}) == (jobs == 1)


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


@pytest.mark.parametrize(('given', 'expected'), [({}, 1), ({'OMP_NUM_THREADS': '2'}, 2)])
def test_programs_use_one_thread_unless_told_otherwise(given, expected):
    code = """
import kbr_localization.cli, numpy, threadpoolctl
print(max(pool['num_threads'] for pool in threadpoolctl.threadpool_info()))
"""
    environment = {k: v for k, v in os.environ.items() if k not in THREAD_VARIABLES} | given
    done = subprocess.run(
        [sys.executable, '-c', code], env=environment, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == min(expected, os.cpu_count() or 1)


@pytest.mark.parametrize('jobs', [1, 2])
def test_lists_are_gathered_in_the_order_of_their_tasks(jobs):
    done = []
    with open_workers(jobs) as workers:
        assert gathered(workers, range, [2, 0, 3], done.append) == [0, 1, 0, 1, 2]
    assert done == [2, 2, 5]


@given(st.integers(0, 3000), st.integers(1, 80), st.integers(1, 9))
def test_batches_shrink_and_keep_the_order(count, largest, jobs):
    parts = shrinking_batches(range(count), largest, jobs)
    assert [item for part in parts for item in part] == list(range(count))
    sizes = [len(part) for part in parts]
    assert max(sizes, default=0) <= largest
    assert sizes == sorted(sizes, reverse=True)


WORK = """
import signal, sys, time
import kbr_localization.cli as cli
import kbr_localization.cli.app as app
from kbr_localization.workers import open_workers

def run(arguments, **options):
    with open_workers(2) as workers:
        for _ in workers.run(time.sleep, [0.1] * 4 + [100.0] * 50):
            print('working', flush=True)

app.run = run
cli.main([])
"""
"""Work of which most takes longer than anybody waits who has ended it."""


@pytest.mark.parametrize(
    ('send', 'number', 'code', 'says'),
    [
        (os.killpg, signal.SIGINT, 130, 'kbr: interrupted\n'),
        (os.kill, signal.SIGTERM, 143, ''),
        (os.killpg, signal.SIGHUP, 129, None),
        (os.kill, signal.SIGKILL, -9, None),
    ],
)
def test_no_process_outlives_the_command(send, number, code, says):
    """Ctrl-C and a closed terminal reach all processes of a terminal, `kill` reaches one."""
    pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE, 'text': True}
    command = [sys.executable, '-c', WORK]
    with subprocess.Popen(command, start_new_session=True, **pipes) as run:
        try:
            assert run.stdout.readline() == 'working\n'
            send(run.pid, number)
            run.wait(60)
            assert_nobody_is_left(run, time.monotonic() + 20)
            assert run.returncode == code
            assert says is None or run.stderr.read() == says
        finally:
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
