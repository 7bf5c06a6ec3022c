"""The one thread that does the work, so that callbacks never wait."""

from __future__ import annotations

from collections.abc import Callable
import threading
import traceback
from typing import Generic, Protocol, TypeVar

from kbr_localization.errors import KbrError

WAIT_SECONDS = 0.2
Result_co = TypeVar('Result_co', covariant=True)


def _leave(result: object) -> None:
    """Do nothing about a result."""


class Work(Protocol[Result_co]):
    """What a worker does again and again."""

    def work(self, timeout: float) -> Result_co | None:
        """Do the next thing, waiting for it at most `timeout` seconds."""
        ...

    def recover_from_error(self) -> None:
        """Bring everything into a good state after an unexpected error."""
        ...


class Worker(Generic[Result_co]):
    """
    Call `session.work` and hand on its results until stopped; nothing ends it but `stop`.

    `publish` takes a result, `withdraw` one that is there when the worker has been stopped.
    """

    def __init__(
        self,
        session: Work[Result_co],
        publish: Callable[[Result_co], None],
        log: Callable[[str, str], None],
        withdraw: Callable[[Result_co], None] = _leave,
    ) -> None:
        self._session, self._publish, self._log = session, publish, log
        self._withdraw = withdraw
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name='localization', daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Let the thread finish what it is doing and end."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                result = self._session.work(WAIT_SECONDS)
                if result is not None:
                    take = self._withdraw if self._stop.is_set() else self._publish
                    take(result)
            except KbrError as error:
                self._log('error', str(error))
                self._stop.wait(WAIT_SECONDS)
            # a robot must not lose its localization to a bug: log it, start anew, go on
            except Exception:
                self._log('error', f'internal error, starting anew:\n{traceback.format_exc()}')
                self._session.recover_from_error()
                self._stop.wait(WAIT_SECONDS)
