"""The file that a map grows into: one process at a time adds to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
import threading

from kbr_localization.errors import MapError
from kbr_localization.files import LockBeside
from kbr_localization.localization.map.kernel_map import KernelMap

_State = tuple[int, int, int] | None


class GrownFile:
    """
    The file of a map with the images that were added to it.

    Make it before the file is read: what others have written since then is not overwritten.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: LockBeside | None = None
        self._seen = _state(path)
        self._busy = threading.Lock()

    def claim(self) -> None:
        """
        Keep other processes from adding to it until `release`, or until this one ends.

        Where the folder cannot be written nothing is claimed; `write` says so. Does not wait for
        a write. Raises MapError when another process has claimed it, or has changed it since it
        was read.
        """
        # while it is written it is claimed
        if self._busy.acquire(blocking=False):
            try:
                self._claim()
            finally:
                self._busy.release()

    def _claim(self) -> None:
        if self._lock is None:
            self._lock = self._locked()
        found = _state(self.path)
        # a file that was deleted has nothing to lose
        if found is not None and found != self._seen:
            self.release()
            raise MapError(
                f'{self.path} was changed by another process since it was read, and is not '
                'overwritten: load the map again'
            )

    def _locked(self) -> LockBeside | None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return LockBeside(self.path)
        except BlockingIOError as error:
            raise MapError(
                f'{self.path} is being added to by {error.strerror}: end that one first, or give '
                'each a folder of its own (grow_into)'
            ) from error
        except OSError:
            return None

    def write(self, kernel_map: KernelMap) -> None:
        """Write the map; raises MapError as `claim`, and when the file cannot be written."""
        with self._busy:
            self._claim()
            kernel_map.save(self.path)
            self._seen = _state(self.path)

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Have it claimed while the block runs; raises MapError."""
        self.claim()
        try:
            yield
        finally:
            self.release()

    def take_over(self, other: GrownFile) -> None:
        """Take the claim of another one of the same file."""
        self._lock, other._lock = other._lock, None

    def release(self) -> None:
        """Let other processes add to it."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _state(path: Path) -> _State:
    """Tell one content of a file from another; None: there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
