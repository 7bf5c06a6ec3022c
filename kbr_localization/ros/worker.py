"""The one thread that does the work, so that callbacks never wait."""

from __future__ import annotations

from collections.abc import Callable
import threading
import traceback

from kbr_localization.ros.session import Answer, Session

WAIT_SECONDS = 0.2


class Worker:
    """Call `session.work` and hand on its answers until stopped; nothing ends it but `stop`."""

    def __init__(
        self,
        session: Session,
        publish: Callable[[Answer], None],
        tell: Callable[[str, str], None],
    ) -> None:
        self._session, self._publish, self._tell = session, publish, tell
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
                answer = self._session.work(WAIT_SECONDS)
                if answer is not None and not self._stop.is_set():
                    self._publish(answer)
            # a robot must not lose its localization to a bug: tell, start anew, go on
            except Exception:
                self._tell('error', f'internal error, starting anew:\n{traceback.format_exc()}')
                self._session.recover_from_error()
                self._stop.wait(WAIT_SECONDS)
