"""Work in this process, in several, on a Dask cluster: the same results, failures in words."""

from multiprocessing import parent_process
import os
import signal
import subprocess
import sys
import time

from command import assert_one_line, done, invoke, KBR
import cv2
from helpers import write_tiny_cold_run
from kbr_localization.errors import VisionError, WorkersError
from kbr_localization.localization.map.kernel_map import KernelMap
from kbr_localization.progress import report, report_to
from kbr_localization.workers import open_workers, run_batches, run_tasks, THREAD_VARIABLES
from map_helpers import assert_equal_maps
from process_helpers import assert_nobody_is_left, leader
import pytest


def work_here(task):
    if task == 'refuse':
        raise VisionError('refused')
    if task == 'die' and parent_process() is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
    report('a task itself', 1, 1)
    return task * 2, os.getpid(), cv2.getNumThreads()


@pytest.mark.parametrize('jobs', [1, 2])
def test_every_task_is_done_once_on_one_thread(jobs):
    before, counted = cv2.getNumThreads(), []
    with open_workers(jobs), report_to(lambda *progress: counted.append(progress)):
        found = list(run_tasks(work_here, list(range(20))))
        assert run_batches('counting', list, range(5), 2) == [0, 1, 2, 3, 4]
        with pytest.raises(VisionError, match='refused'):
            list(run_tasks(work_here, [1, 'refuse', 2]))
    numbers, processes, threads = zip(*found, strict=True)
    assert numbers == tuple(range(0, 40, 2)) and set(threads) == {1}
    assert (set(processes) == {os.getpid()}) == (jobs == 1)
    assert counted == [('counting', done, 5) for done in (2, 4, 5)]
    assert cv2.getNumThreads() == before


def test_a_killed_process_is_an_error_that_says_what_to_do():
    with open_workers(2), pytest.raises(WorkersError, match='fewer jobs'):
        list(run_tasks(work_here, ['die'] * 4))
    with open_workers(2):
        assert len(list(run_tasks(work_here, [1, 2, 3]))) == 3


@pytest.mark.parametrize(('given', 'expected'), [({}, 1), ({'OMP_NUM_THREADS': '2'}, 2)])
def test_programs_use_one_thread_unless_told_otherwise(given, expected):
    code = """
import kbr_localization.cli, numpy, threadpoolctl
print(max(pool['num_threads'] for pool in threadpoolctl.threadpool_info()))
"""
    environment = {k: v for k, v in os.environ.items() if k not in THREAD_VARIABLES} | given
    told = subprocess.run(
        [sys.executable, '-c', code], env=environment, capture_output=True, text=True, check=True
    )
    assert int(told.stdout) == min(expected, os.cpu_count() or 1)


WORK = """
import signal, sys, time
import kbr_localization.cli as cli
import kbr_localization.cli.app as app
from kbr_localization.workers import open_workers, run_tasks

def run(arguments, **options):
    with open_workers(2):
        for _ in run_tasks(time.sleep, [0.1] * 4 + [100.0] * 50):
            print('working', flush=True)

app.app = run
cli.main()
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
    with leader([sys.executable, '-c', WORK], **pipes) as run:
        assert run.stdout.readline() == 'working\n'
        send(run.pid, number)
        run.wait(60)
        assert_nobody_is_left(run, time.monotonic() + 20)
        assert run.returncode == code
        assert says is None or run.stderr.read() == says


@pytest.fixture
def cluster():
    """Give a scheduler on loopback with two processes as workers."""
    distributed = pytest.importorskip('distributed')
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, host='127.0.0.1', dashboard_address=None
    ) as cluster:
        yield cluster


@pytest.mark.slow
def test_a_dask_worker_killed_in_the_middle_changes_nothing(cluster, tmp_path):
    run = write_tiny_cold_run(tmp_path / 'run', frames=60)
    # a describer that leaves time to kill a worker in the middle
    settings = ('vision.descriptor=daisy', 'vision.words=50', 'vision.scale_up=false')
    slow = [word for setting in settings for word in ('--set', setting)]
    command = [*KBR, 'map', 'build', run, '--out', tmp_path / 'dask.h5', *slow]
    with (tmp_path / 'build.log').open('w') as log:
        build = subprocess.Popen([*command, '--scheduler', cluster.scheduler_address], stderr=log)
    progress, end = (tmp_path / 'build.log').read_text, time.monotonic() + 180.0
    while 'learning the vocabulary: 1 of 1' not in progress() and time.monotonic() < end:
        time.sleep(0.02)
    os.kill(cluster.workers[0].pid, signal.SIGKILL)
    assert 'describing images: 60 of' not in progress(), 'killed too late'
    assert build.wait(timeout=360) == 0, progress()
    assert 'describing images: 60 of 60' in progress()
    done('map', 'build', run, '--out', tmp_path / 'here.h5', *slow, '--jobs', 1)
    assert_equal_maps(*(KernelMap.load(tmp_path / name) for name in ('here.h5', 'dask.h5')))


def test_a_scheduler_that_does_not_answer_is_named(tmp_path):
    pytest.importorskip('distributed')
    run, address = write_tiny_cold_run(tmp_path / 'run', frames=3), 'tcp://127.0.0.1:9'
    words = ('map', 'build', run, '--out', tmp_path / 'map.h5', '--scheduler', address)
    assert_one_line(invoke(*words), address, 'dask scheduler')
