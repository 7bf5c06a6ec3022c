"""
Independent work in this process, on several of this machine, or on a Dask cluster.

Wherever it is done, linear algebra and OpenCV use one thread: the cores are busy with other tasks,
and a result must not depend on how many there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
import concurrent.futures
import concurrent.futures.process
from contextlib import contextmanager, suppress
import functools
import importlib
import multiprocessing
import os
import signal
import threading
from typing import Any, Protocol

from kbr_localization.child_processes import end_with_parent, uninterrupted_children
from kbr_localization.errors import WorkersError
from kbr_localization.threads import VARIABLES as THREAD_VARIABLES

Work = Callable[[Any], Any]
_SHARES, _SMALLEST = 8, 4  # of what is left for each worker, and items: see shrinking_batches
_FEW, _PER_CORE = 8, 2  # processes that anybody may have, and more than which gain nothing
_PATIENCE = 5.0  # seconds for a pool to notice that its processes are gone
_FEEDER_PATIENCE = 2.0  # seconds; where nobody reads any more, it may be stuck at a full pipe
_KEPT_MEMORY = {'MALLOC_MMAP_THRESHOLD_': '33554432', 'MALLOC_TRIM_THRESHOLD_': '134217728'}
"""Bytes that glibc keeps for the next image, not asking the system anew for every large array."""


class Workers(Protocol):
    """Something that does tasks; `jobs` is how many cores of this machine it may use."""

    jobs: int

    def run(self, work: Work, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield the number of a task and `work(task)`, in the order in which they finish."""
        ...


def gathered(
    workers: Workers, work: Work, tasks: Sequence[Any], report: Callable[[int], None]
) -> list[Any]:
    """
    Do tasks that each give a list; return all lists as one, in the order of the tasks.

    `report` is called with the number of items that are done.
    """
    found: list[Any] = [[] for _ in tasks]
    done = 0
    for number, items in workers.run(work, tasks):
        found[number] = items
        done += len(items)
        report(done)
    return [item for part in found for item in part]


class ThisProcess:
    """Does one task after the other, here."""

    jobs = 1

    def run(self, work: Work, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield the number of a task and `work(task)`."""
        with one_thread():
            for number, task in enumerate(tasks):
                yield number, work(task)


class Processes:
    """Does tasks in this process and `jobs - 1` others of this machine, through joblib."""

    def __init__(self, jobs: int, modules: Sequence[str] = ()) -> None:
        """Let the others start and import modules while this one does something else."""
        self.jobs = jobs
        make = _needed('joblib.executor').get_memmapping_executor
        self._others = set(multiprocessing.active_children())
        self._other_feeders = _feeders()
        with uninterrupted_children():
            self._pool = make(
                jobs - 1,
                initializer=end_with_parent,
                initargs=(os.getpid(),),
                env=dict.fromkeys(THREAD_VARIABLES, '1') | _KEPT_MEMORY,
            )
            for _ in range(jobs - 1):
                self._pool.submit(_import, tuple(modules))

    def run(self, work: Work, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield the number of a task and `work(task)`, in the order in which they finish."""
        try:
            with one_thread():
                yield from self._share(work, deque(enumerate(tasks)))
        except concurrent.futures.process.BrokenProcessPool as error:
            raise WorkersError(
                f'one of {self.jobs} processes was killed, mostly because the memory did not '
                'suffice: start again with fewer jobs'
            ) from error

    def _share(self, work: Work, waiting: deque[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        """Give the others more tasks than they do, so that none waits while one is done here."""
        away: set[Any] = set()
        while waiting or away:
            while waiting and len(away) < 2 * self.jobs:
                away.add(self._pool.submit(_numbered, work, *waiting.popleft()))
            done, away = concurrent.futures.wait(
                away, 0 if waiting else None, concurrent.futures.FIRST_COMPLETED
            )
            yield from (future.result() for future in done)
            if waiting:
                number, task = waiting.popleft()
                yield number, work(task)

    def close(self, finished: bool) -> None:
        """
        Let the other processes end and their shared files go, while this one goes on.

        Unless all is `finished` they are killed: nobody waits for what they still do.
        """
        feeders = _feeders() - self._other_feeders  # before a later pool has some
        if finished:
            threading.Thread(target=self._terminate, args=(feeders,)).start()
            return
        ours = set(multiprocessing.active_children()) - self._others
        for pid in [child.pid for child in ours if child.pid]:
            with suppress(ProcessLookupError):  # those of loky have no kill()
                os.kill(pid, signal.SIGKILL)
        # a pool that is told to end before it has noticed has a traceback to print
        with suppress(concurrent.futures.process.BrokenProcessPool):
            concurrent.futures.wait([self._pool.submit(_same, None)], _PATIENCE)
        self._terminate(feeders, kill_workers=True)

    def _terminate(self, feeders: set[threading.Thread], kill_workers: bool = False) -> None:
        """
        End the pool and the thread that feeds it, which the pool itself does not wait for.

        That thread is the last to hold semaphores. Where this process ends while it gives them
        back, loky complains that they are lost.
        """
        self._pool.terminate(kill_workers=kill_workers)
        for feeder in feeders:
            if feeder.is_alive():
                feeder.join(_FEEDER_PATIENCE)


class Cluster:
    """
    Does tasks on the workers of a Dask scheduler.

    They need this package in the same version and see the runs under the same paths. A task whose
    worker died is done by another one; without workers it waits for some.
    """

    jobs = 1

    def __init__(self, address: str) -> None:
        distributed = _needed('distributed')
        try:
            self._client = distributed.Client(address, timeout='10s', set_as_default=False)
        except (OSError, ValueError) as error:
            raise WorkersError(
                f'no Dask scheduler answers at {address}: expected one like tcp://host:8786, '
                'started by `dask scheduler`'
            ) from error
        self._distributed = distributed

    def run(self, work: Work, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield the number of a task and `work(task)`, in the order in which they finish."""
        # a task of its own: sent to each worker once, and made again when a worker took it along
        shared = self._client.submit(_same, work, pure=False)
        futures = [
            self._client.submit(_numbered, shared, *pair, pure=False) for pair in enumerate(tasks)
        ]
        try:
            for future in self._distributed.as_completed(futures, loop=self._client.loop):
                yield future.result()
                future.release()
        except self._distributed.KilledWorker as error:
            raise WorkersError(
                f'workers of the Dask cluster died repeatedly at one task ({error}): give them '
                'more memory, or look into their logs'
            ) from error
        finally:
            self._client.cancel(futures)

    def close(self, finished: bool) -> None:
        """Leave the cluster; what it has not done was cancelled where it was asked for."""
        self._client.close()


@contextmanager
def open_workers(
    jobs: int | None = 1, scheduler: str | None = None, modules: Sequence[str] = ()
) -> Iterator[Workers]:
    """
    Give the workers that a user asked for.

    `jobs`: processes; None stands for one per core that this process may use, or one where joblib
    is missing. `scheduler`: address of a Dask cluster to be used instead. `modules`: what
    processes import ahead. Raises WorkersError when something is not installed or nobody answers.
    """
    count = _default_jobs() if jobs is None else jobs
    if scheduler is None and count == 1:
        yield ThisProcess()
        return
    several = Cluster(scheduler) if scheduler else Processes(_affordable(count), modules)
    finished = False
    try:
        yield several
        finished = True
    finally:
        several.close(finished)


def batches(items: Any, size: int) -> list[Any]:
    """Cut a sequence or an array into parts of `size`, the last one may be shorter."""
    return [items[slice(start, start + size)] for start in range(0, len(items), size)]


def shrinking_batches(items: Any, largest: int, jobs: int) -> list[Any]:
    """
    Cut a sequence into parts that become small towards its end.

    Large ones are quickly handed over, small ones let `jobs` workers end at the same time.
    """
    parts, start = [], 0
    while start < len(items):
        size = min(max((len(items) - start) // (_SHARES * jobs), _SMALLEST), largest)
        parts.append(items[slice(start, start + size)])
        start += size
    return parts


@contextmanager
def one_thread() -> Iterator[None]:
    """Let linear algebra and OpenCV use one thread."""
    try:
        limits = importlib.import_module('threadpoolctl').threadpool_limits(1)
    except ImportError:
        limits = None  # an optional dependency: there is only one process then
    cv2 = importlib.import_module('cv2')
    before = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(before)
        if limits is not None:
            limits.restore_original_limits()


def _numbered(work: Work, number: int, task: Any) -> tuple[int, Any]:
    _stay_on_one_thread()
    return number, work(task)


@functools.cache
def _stay_on_one_thread() -> None:
    """Limit the threads of a worker's process once and for all."""
    for variable in THREAD_VARIABLES:
        os.environ[variable] = '1'
    importlib.import_module('cv2').setNumThreads(1)
    try:
        importlib.import_module('threadpoolctl').threadpool_limits(1)
    except ImportError:
        return


def _feeders() -> set[threading.Thread]:
    """Return the threads of queues between processes, which have no other mark than this name."""
    return {thread for thread in threading.enumerate() if thread.name == 'QueueFeederThread'}


def _same(value: Any) -> Any:
    return value


def _import(modules: Sequence[str]) -> None:
    for module in modules:
        importlib.import_module(module)


def _affordable(jobs: int) -> int:
    """Refuse processes by the hundred, as of a slip of the finger: each has its own memory."""
    cores = os.cpu_count() or 1
    most = max(_FEW, _PER_CORE * cores)
    if jobs > most:
        raise WorkersError(f'{jobs} processes on {cores} cores: expected at most {most}')
    return jobs


def _default_jobs() -> int:
    """Count the cores that this process may use: those of its container, by its affinity."""
    try:
        return int(importlib.import_module('joblib').cpu_count())
    except ImportError:
        return 1


def _needed(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition('.')[0]
        raise WorkersError(
            f'parallel work needs {package} ({error}): pip install {package}'
        ) from error
