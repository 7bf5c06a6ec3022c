"""A file for HDF5 whose write errors are raised when it is closed, not while HDF5 writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import io
from pathlib import Path
from typing import Any

import h5py


class DeferredErrorFile(io.FileIO):
    """
    A file that never fails to be written: `error` is what went wrong first, or None.

    HDF5 keeps a file open that it cannot write, tries again when the process ends, and crashes
    it. After an error it may go on here, into nothing, and close the file. The
    exception of an interrupt would have the same effect: write outside of the main thread.
    """

    error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write all of the bytes; returns their number."""
        left = memoryview(data).cast('B')
        count = len(left)
        try:
            # one call writes 2 GiB at most
            while left and self.error is None:
                left = left[slice(super().write(left), None)]
        except OSError as error:
            self.error = error
        return count

    def truncate(self, size: int | None = None) -> int:
        """Set the size in bytes; returns it."""
        try:
            if self.error is None:
                return super().truncate(size)
        except OSError as error:
            self.error = error
        return size or 0


@contextmanager
def new_hdf5(path: Path) -> Iterator[h5py.File]:
    """Give an empty HDF5 file to write; raises OSError, at the end, when that failed."""
    with DeferredErrorFile(path, 'w+') as raw:
        try:
            # from 1.10 on HDF5 has checksums of its own structures: without them a single wrong
            # byte can keep it reading for ever
            with h5py.File(raw, 'w', libver=('v110', 'v110')) as file:
                yield file
        finally:
            if raw.error is not None:
                raise raw.error
