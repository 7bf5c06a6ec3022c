"""
Independent tasks in this process, in several of this machine, or on a Dask cluster (joblib).

Everywhere linear algebra and OpenCV use one thread: the cores are busy with other tasks, and a
result must not depend on how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext
import functools
import importlib
from multiprocessing import resource_tracker
import os
import signal
import threading
import time
from typing import Any
import warnings

from kbr_localization.errors import WorkersError

Work = Callable[[Any], Any]
THREAD_VARIABLES = ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS')


def prefer_one_thread() -> None:
    """
    Let linear algebra use one thread in this process, unless the environment says otherwise.

    The matrices of a frame are too small to gain from several. Call it before NumPy is imported.
    """
    if not any(variable in os.environ for variable in THREAD_VARIABLES):
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, '1'))


class Workers:
    """Does tasks in `jobs` processes of this machine, with one job in this process."""

    def __init__(self, jobs: int = 1) -> None:
        self.jobs = jobs

    def run(self, work: Work, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield the number of a task and `work(task)`; raises WorkersError, and what work does."""
        if self.jobs == 1:
            with one_thread():
                for number, task in enumerate(tasks):
                    yield number, work(task)
            return
        joblib = _import('joblib')
        with joblib.parallel_config(backend='loky'):
            parallel = joblib.Parallel(self.jobs, return_as='generator', batch_size=1)
        warnings.filterwarnings('ignore', r'\d+ tasks ', UserWarning)  # at Ctrl-C
        calls = (joblib.delayed(_work_in_worker)(work, task, os.getpid()) for task in tasks)
        try:
            # Ctrl-C reaches this process alone, which ends the others
            with _sigint_blocked():
                results = parallel(calls)
            yield from enumerate(results)
        except BrokenProcessPool as error:
            raise WorkersError(
                f'one of {self.jobs} processes was killed, probably because memory ran out: '
                'start again with fewer jobs'
            ) from error


class Cluster(Workers):
    """
    Does tasks on the workers of a Dask scheduler.

    They need this package in the same version and must see the runs under the same paths.
    """

    def __init__(self, address: str) -> None:
        super().__init__()
        self._distributed = _import('distributed')
        try:
            self._client = self._distributed.Client(address, timeout='10s', set_as_default=False)
        except (OSError, ValueError) as error:
            raise WorkersError(
                f'no Dask scheduler answers at {address}: expected one like tcp://host:8786, '
                'started by `dask scheduler`'
            ) from error

    def run(self, work: Work, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield the number of a task and `work(task)`; a task whose worker died is done again."""
        shared = self._client.submit(_same, work, pure=False)  # sent to each worker once
        futures = [self._client.submit(_work_in_worker, shared, t, 0, pure=False) for t in tasks]
        try:
            for number, future in enumerate(futures):
                yield number, future.result()
                future.release()
        except self._distributed.KilledWorker as error:
            raise WorkersError(
                f'workers of the Dask cluster died repeatedly at one task ({error}): give them '
                'more memory, or see their logs'
            ) from error
        finally:
            self._client.cancel(futures)

    def close(self) -> None:
        """Leave the cluster."""
        self._client.close()


@contextmanager
def open_workers(jobs: int | None = 1, scheduler: str | None = None) -> Iterator[Workers]:
    """
    Give workers: `jobs` processes (None: one per usable core), or a Dask cluster by its address.

    Raises WorkersError where a package is missing or no scheduler answers.
    """
    if scheduler is None:
        yield Workers(_default_jobs() if jobs is None else jobs)
        return
    cluster = Cluster(scheduler)
    try:
        yield cluster
    finally:
        cluster.close()


def gathered(
    workers: Workers, work: Work, tasks: Sequence[Any], report: Callable[[int], None]
) -> list[Any]:
    """
    Do tasks that each give a list; return all lists as one, in the order of the tasks.

    `report` is called with the number of items that are done.
    """
    found: list[Any] = []
    for _, items in workers.run(work, tasks):
        found += items
        report(len(found))
    return found


def batches(items: Any, size: int) -> list[Any]:
    """Cut a sequence or an array into parts of `size`; the last one may be shorter."""
    return [items[slice(start, start + size)] for start in range(0, len(items), size)]


def shrinking_batches(items: Any, largest: int, jobs: int) -> list[Any]:
    """Cut a sequence into parts that shrink, so that `jobs` workers end at the same time."""
    parts, start = [], 0
    while start < len(items):
        size = min(max((len(items) - start) // (8 * jobs), 4), largest)
        parts.append(items[slice(start, start + size)])
        start += size
    return parts


@contextmanager
def one_thread() -> Iterator[None]:
    """Let linear algebra and OpenCV use one thread."""
    cv2 = importlib.import_module('cv2')
    before = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        with _one_thread_of_linear_algebra():
            yield
    finally:
        cv2.setNumThreads(before)


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Start threads and processes inside that never get SIGINT; here it waits for the end."""
    resource_tracker.ensure_running()  # its start would unblock SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _same(value: Any) -> Any:
    return value


def _work_in_worker(work: Work, task: Any, parent: int) -> Any:
    _prepare_worker(parent)
    return work(task)


@functools.cache
def _prepare_worker(parent: int) -> None:
    """Use one thread; end with the parent process, if there is one, however that ends."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    if parent:
        threading.Thread(target=watch, daemon=True).start()
    importlib.import_module('cv2').setNumThreads(1)
    _one_thread_of_linear_algebra()


def _one_thread_of_linear_algebra() -> AbstractContextManager[Any]:
    try:
        limits: AbstractContextManager[Any] = _import('threadpoolctl').threadpool_limits(1)
    except WorkersError:  # an optional package
        return nullcontext()
    return limits


def _default_jobs() -> int:
    try:
        return int(_import('joblib').cpu_count())
    except WorkersError:
        return 1


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise WorkersError(f'parallel work needs {name}: pip install {name}') from error
