"""A map built on a Dask cluster, one of whose workers is killed, is the map built here."""

import subprocess
import sys
import time

from command import assert_one_line, invoke, KBR
from helpers import write_tiny_cold_run
from kbr_localization.localization.map.kernel_map import KernelMap
from map_helpers import assert_equal_maps
import pytest

pytest.importorskip('distributed')

FRAMES = 300
_SLOW_VISION = ('vision.descriptor=daisy', 'vision.words=50', 'vision.scale_up=false')
SLOW = [word for setting in _SLOW_VISION for word in ('--set', setting)]
"""A describer that leaves time to kill a worker in the middle."""
SECONDS = 180.0


def dask(folder, name, *arguments):
    """Start a scheduler or a worker; its log goes to a file of the folder."""
    number = len(list(folder.glob(f'{name}*.log')))
    command = (sys.executable, '-m', f'distributed.cli.dask_{name}', *map(str, arguments))
    with (folder / f'{name}{number}.log').open('w') as log:
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)


def wait_for(condition, what):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, f'no {what} within {SECONDS} s'
        time.sleep(0.02)


@pytest.fixture
def cluster(tmp_path):
    """Give the address of a scheduler on loopback and its two workers' processes."""
    folder = tmp_path / 'dask'
    folder.mkdir()
    file = folder / 'scheduler.json'
    options = ('--host', '127.0.0.1', '--port', 0, '--no-dashboard', '--scheduler-file', file)
    processes = [dask(folder, 'scheduler', *options)]
    try:
        wait_for(file.exists, 'scheduler')
        for _ in range(2):
            options = ('--scheduler-file', file, '--nthreads', 1, '--no-nanny', '--no-dashboard')
            processes.append(dask(folder, 'worker', *options))
        yield folder, processes[1:]
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()


def address_of(folder):
    import json

    return json.loads((folder / 'scheduler.json').read_text())['address']


@pytest.mark.slow
def test_a_worker_killed_in_the_middle_changes_nothing(cluster, tmp_path):
    folder, workers = cluster
    write_tiny_cold_run(tmp_path / 'run', frames=FRAMES)
    wait_for(lambda: (folder / 'worker1.log').read_text().count('Registered to') == 1, 'worker')
    command = [*KBR, 'map', 'build', tmp_path / 'run', '--out', tmp_path / 'dask.h5', *SLOW]
    command += ['--scheduler', address_of(folder)]
    with (tmp_path / 'build.log').open('w') as log:
        build = subprocess.Popen(command, stderr=log)
    progress = (tmp_path / 'build.log').read_text
    wait_for(lambda: 'learning the vocabulary: 1 of 1' in progress(), 'vocabulary')
    workers[0].kill()
    assert f'describing images: {FRAMES} of' not in progress(), 'killed too late'
    assert build.wait(timeout=2 * SECONDS) == 0, progress()
    assert f'describing images: {FRAMES} of {FRAMES}' in progress()
    options = (*SLOW, '--jobs', 1)
    result = invoke('map', 'build', tmp_path / 'run', '--out', tmp_path / 'here.h5', *options)
    assert result.returncode == 0, result.stderr
    maps = (KernelMap.load(tmp_path / name) for name in ('here.h5', 'dask.h5'))
    assert_equal_maps(*maps)


def test_a_scheduler_that_does_not_answer_is_named(tmp_path):
    write_tiny_cold_run(tmp_path / 'run', frames=3)
    address = 'tcp://127.0.0.1:9'
    arguments = (tmp_path / 'run', '--out', tmp_path / 'map.h5', '--scheduler', address)
    assert_one_line(invoke('map', 'build', *arguments), address, 'dask scheduler')
