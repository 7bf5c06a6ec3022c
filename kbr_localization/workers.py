"""Independent tasks, one thread each: in this process, in several, or on a Dask cluster."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
import importlib
import importlib.util
from multiprocessing import resource_tracker
import os
import signal
import threading
import time
from typing import Any
import warnings

from kbr_localization.errors import WorkersError
from kbr_localization.progress import report, report_to

Work = Callable[[Any], Any]
_workers: ContextVar[tuple[int, Any]] = ContextVar('workers', default=(1, None))
"""Number of processes, and the client of a Dask cluster or None."""
THREAD_VARIABLES = ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS')


def prefer_one_thread() -> None:
    """Set linear algebra to one thread if the environment does not; call before NumPy loads."""
    if not any(variable in os.environ for variable in THREAD_VARIABLES):
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, '1'))


def run_tasks(work: Work, tasks: Sequence[Any]) -> Iterator[Any]:
    """Yield `work(task)` of each task in order; raises WorkersError and the errors of `work`."""
    jobs, client = _workers.get()
    if client:
        yield from _on_cluster(client, work, tasks)
    elif jobs == 1:
        yield from map(partial(_run_task, work), tasks)
    else:
        yield from _in_processes(jobs, work, tasks)


def _in_processes(jobs: int, work: Work, tasks: Sequence[Any]) -> Iterator[Any]:
    joblib = importlib.import_module('joblib')
    # joblib warns of cancelled tasks at Ctrl-C
    warnings.filterwarnings('ignore', r'\d+ tasks ', UserWarning)
    backend = {'inner_max_num_threads': 1, 'initargs': (os.getpid(),)}
    with joblib.parallel_config('loky', initializer=_exit_with_parent, **backend):
        parallel = joblib.Parallel(jobs, return_as='generator', batch_size=1)
    # only this process handles Ctrl-C: new processes inherit the blocked signal. Their resource
    # tracker would unblock it when it starts, so start it first
    resource_tracker.ensure_running()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        results = parallel(joblib.delayed(_run_task)(work, task) for task in tasks)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    try:
        yield from results
    except BrokenProcessPool as error:
        raise WorkersError(
            f'one of {jobs} processes was killed, probably because memory ran out: '
            'start again with fewer jobs'
        ) from error


def _on_cluster(client: Any, work: Work, tasks: Sequence[Any]) -> Iterator[Any]:
    """Run tasks on a cluster; unlike the Dask backend of joblib, raise if workers keep dying."""
    shared = client.submit(lambda same: same, work, pure=False)  # sent to each worker once
    futures = [client.submit(_run_task, shared, task, pure=False) for task in tasks]
    try:
        for future in futures:
            yield future.result()
            future.release()
    except importlib.import_module('distributed').KilledWorker as error:
        raise WorkersError(
            f'workers of the Dask cluster died repeatedly at one task ({error}): give them '
            'more memory, or see their logs'
        ) from error
    finally:
        client.cancel(futures)


@contextmanager
def open_workers(jobs: int | None = 1, scheduler: str | None = None) -> Iterator[None]:
    """
    Run the tasks of the block in `jobs` processes (None: one per usable core) or on a cluster.

    Workers of a Dask cluster need the same version of this package and the runs under the same
    paths. Raises WorkersError when no `scheduler` answers.
    """
    client: Any = nullcontext()
    if scheduler is not None:
        jobs, distributed = 1, importlib.import_module('distributed')
        try:
            client = distributed.Client(scheduler, timeout='10s', set_as_default=False)
        except (OSError, ValueError) as error:
            raise WorkersError(
                f'no Dask scheduler answers at {scheduler}: expected one like tcp://host:8786, '
                'started by `dask scheduler`'
            ) from error
    elif jobs is None and importlib.util.find_spec('joblib'):
        jobs = importlib.import_module('joblib').cpu_count()
    with client as entered:
        token = _workers.set((jobs or 1, entered))
        try:
            yield
        finally:
            _workers.reset(token)


def run_batches(what: str, work: Work, items: Any, largest: int) -> list[Any]:
    """
    Run `work` on batches of items and return its lists joined; report progress as `what`.

    Batches have at most `largest` items, and fewer to make all workers end at about the same time.
    """
    size = min(max(len(items) // (8 * _workers.get()[0]), 4), largest)
    found: list[Any] = []
    for part in run_tasks(work, batches(items, size)):
        found += part
        report(what, len(found), len(items))
    return found


def blocks(count: int, size: int) -> list[slice]:
    """Cut the indices below `count` into slices of `size`; the last one may be shorter."""
    return [slice(start, start + size) for start in range(0, count, size)]


def batches(items: Any, size: int) -> list[Any]:
    return [items[block] for block in blocks(len(items), size)]


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit linear algebra and OpenCV to one thread."""
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


def _run_task(work: Work, task: Any) -> Any:
    with one_thread(), report_to(None):
        return work(task)


def _exit_with_parent(parent: int) -> None:
    """End this process when its parent ends, even if that was killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
