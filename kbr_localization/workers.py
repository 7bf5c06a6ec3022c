"""
Independent tasks in this process, in several of this machine, or on a Dask cluster (joblib).

Everywhere linear algebra and OpenCV use one thread: the cores are busy with other tasks, and a
result must not depend on how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
import importlib
import importlib.util
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
    """Does tasks in `jobs` processes of this machine (one: in this process), or on a cluster."""

    def __init__(self, jobs: int = 1, client: Any = None) -> None:
        self.jobs, self._client = jobs, client

    def run(self, work: Work, tasks: Sequence[Any]) -> Iterator[Any]:
        """
        Yield `work(task)` of each task, in their order; raises WorkersError, and what work does.

        On a cluster a task whose worker died is done again.
        """
        if self._client:
            yield from self._on_cluster(work, tasks)
        elif self.jobs == 1:
            with one_thread():
                yield from map(work, tasks)
        else:
            yield from self._in_processes(work, tasks)

    def _in_processes(self, work: Work, tasks: Sequence[Any]) -> Iterator[Any]:
        joblib = _import('joblib')
        warnings.filterwarnings('ignore', r'\d+ tasks ', UserWarning)  # at Ctrl-C
        backend = {'inner_max_num_threads': 1, 'initargs': (os.getpid(),)}
        with joblib.parallel_config('loky', initializer=_prepare_worker, **backend):
            parallel = joblib.Parallel(self.jobs, return_as='generator', batch_size=1)
        try:
            yield from parallel(joblib.delayed(work)(task) for task in tasks)
        except BrokenProcessPool as error:
            raise WorkersError(
                f'one of {self.jobs} processes was killed, probably because memory ran out: '
                'start again with fewer jobs'
            ) from error

    def _on_cluster(self, work: Work, tasks: Sequence[Any]) -> Iterator[Any]:
        client = self._client
        shared = client.submit(_same, work, pure=False)  # sent to each worker once
        futures = [client.submit(_on_one_thread, shared, task, pure=False) for task in tasks]
        try:
            for future in futures:
                yield future.result()
                future.release()
        except _import('distributed').KilledWorker as error:
            raise WorkersError(
                f'workers of the Dask cluster died repeatedly at one task ({error}): give them '
                'more memory, or see their logs'
            ) from error
        finally:
            client.cancel(futures)


@contextmanager
def open_workers(jobs: int | None = 1, scheduler: str | None = None) -> Iterator[Workers]:
    """
    Give workers: `jobs` processes (None: one per usable core), or a Dask cluster by its address.

    Workers of a cluster need this package in the same version and must see the runs under the
    same paths. Raises WorkersError where a package is missing or no scheduler answers.
    """
    if scheduler is None:
        cores = _import('joblib').cpu_count() if importlib.util.find_spec('joblib') else 1
        yield Workers(cores if jobs is None else jobs)
        return
    distributed = _import('distributed')
    try:
        client = distributed.Client(scheduler, timeout='10s', set_as_default=False)
    except (OSError, ValueError) as error:
        raise WorkersError(
            f'no Dask scheduler answers at {scheduler}: expected one like tcp://host:8786, '
            'started by `dask scheduler`'
        ) from error
    with client:
        yield Workers(client=client)


def gathered(
    workers: Workers, work: Work, tasks: Sequence[Any], report: Callable[[int], None]
) -> list[Any]:
    """
    Do tasks that each give a list; return all lists as one, in the order of the tasks.

    `report` is called with the number of items that are done.
    """
    found: list[Any] = []
    for items in workers.run(work, tasks):
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
    cv2, limits = importlib.import_module('cv2'), nullcontext()
    if importlib.util.find_spec('threadpoolctl'):  # an optional package
        limits = importlib.import_module('threadpoolctl').threadpool_limits(1)
    before = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        with limits:
            yield
    finally:
        cv2.setNumThreads(before)


def _same(value: Any) -> Any:
    return value


def _on_one_thread(work: Work, task: Any) -> Any:
    with one_thread():
        return work(task)


def _prepare_worker(parent: int) -> None:
    """Use one thread; end with the parent process, however that ends, and not by Ctrl-C."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=watch, daemon=True).start()
    importlib.import_module('cv2').setNumThreads(1)


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise WorkersError(f'parallel work needs {name}: pip install {name}') from error
