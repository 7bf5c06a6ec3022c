"""
Arrays that lie in a file and are compared with their checksums when they are needed first.

A large array of a map is mapped into memory, and reading all of it to find a wrong bit would take
longer than a robot may wait. So it has a checksum for every block of `BLOCK_BYTES`, and a block is
verified when one of its rows is used for the first time.
"""

from __future__ import annotations

from collections.abc import Iterator
import operator
import os
import time
from typing import Any, BinaryIO
import weakref
import zlib

from kbr_localization.errors import MapError
import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

BLOCK_BYTES = 1 << 16
_TICK_NS = 100_000_000
_LOOKED_AT = 8  # blocks of an array that are verified at once: half of a file may be zeros


class BlockChecksums:
    """CRC-32 of the blocks of bytes that come piece by piece."""

    def __init__(self) -> None:
        self._sums: list[int] = []
        self._filled = BLOCK_BYTES  # of the last block

    def add(self, data: Any) -> None:
        """Take in the next bytes: anything with a contiguous buffer."""
        left = memoryview(data).cast('B')
        while left:
            if self._filled == BLOCK_BYTES:
                self._sums.append(0)
                self._filled = 0
            taken = min(BLOCK_BYTES - self._filled, len(left))
            self._sums[-1] = zlib.crc32(left[:taken], self._sums[-1])
            self._filled += taken
            left = left[taken:]

    def array(self) -> NDArray[np.uint32]:
        """Return the checksums (blocks,) of what has come."""
        return np.array(self._sums, dtype=np.uint32)


def checksums_of(array: Any) -> NDArray[np.uint32]:
    """Checksums (blocks,) of the bytes of an array."""
    sums = BlockChecksums()
    sums.add(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return sums.array()


class WatchedFile:
    """
    An open file of which the first `size` bytes are mapped into memory, and others may write.

    A process that touches a page beyond the end of a file that somebody has cut off is ended.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._handle, self._size = os.dup(file.fileno()), size
        weakref.finalize(self, os.close, self._handle)
        self._written = os.fstat(self._handle).st_mtime_ns

    def has_changed(self, name: str) -> bool:
        """
        Tell whether it may have been written to since last asked.

        Raises MapError when it is shorter.
        """
        found = os.fstat(self._handle)
        if found.st_size < self._size:
            raise MapError(
                f'{name} was cut off to {found.st_size} bytes while it is in use: copy a map '
                'beside the old one and rename it, then load it again'
            )
        before, self._written = self._written, found.st_mtime_ns
        # times of files go by ticks, in which there may be a look and another write
        return before != self._written or abs(time.time_ns() - self._written) < _TICK_NS


class VerifiedArray(NDArrayOperatorsMixin):
    """
    A read-only array (n, ...) whose blocks are verified when they are used first.

    `array[rows]` verifies these rows, everything else that can be done with an array verifies all
    of it; both raise MapError where bytes are not those of `checksums` (blocks,), which are None
    in maps made before there were any, and, with `finite`, where numbers are not finite. `name`:
    what an error calls the array. `file`: that it is mapped from; when somebody writes into it
    everything is verified anew.
    """

    def __init__(
        self,
        array: np.ndarray,
        checksums: NDArray[np.uint32] | None,
        name: str,
        finite: bool = False,
        file: WatchedFile | None = None,
    ) -> None:
        self._array, self._checksums, self._name = array, checksums, name
        self._file = file
        self._finite = finite and array.dtype.kind == 'f'
        self._bytes = array.reshape(-1).view(np.uint8)
        count = -(-self._bytes.size // BLOCK_BYTES)
        if checksums is not None and checksums.shape != (count,):
            raise MapError(f'{name} has {checksums.shape} checksums: expected {count}')
        self._verified = np.zeros(count, dtype=bool)
        self.verify(np.linspace(0, count - 1, _LOOKED_AT).astype(np.intp))

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return self._array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the numbers."""
        return self._array.dtype

    @property
    def ndim(self) -> int:
        """Count the axes."""
        return self._array.ndim

    @property
    def size(self) -> int:
        """Count the numbers."""
        return self._array.size

    @property
    def nbytes(self) -> int:
        """Count the bytes."""
        return self._array.nbytes

    @property
    def has_checksums(self) -> bool:
        """Whether the file has checksums of it."""
        return self._checksums is not None

    def __len__(self) -> int:
        """Count the rows."""
        return len(self._array)

    def __getitem__(self, key: Any) -> Any:
        """Return rows as NumPy does, verified."""
        self.verify(self._blocks_of(key[0] if isinstance(key, tuple) and key else key))
        return self._array[key]

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the rows."""
        return (self[row] for row in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return all of it, verified."""
        self.verify(np.arange(len(self._verified)))
        if copy or (dtype is not None and dtype != self._array.dtype):
            return np.array(self._array, dtype=dtype)
        return self._array

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Calculate with all of it, verified."""
        plain = [np.asarray(i) if isinstance(i, VerifiedArray) else i for i in inputs]
        return getattr(ufunc, method)(*plain, **options)

    def __getattr__(self, name: str) -> Any:
        """Whatever else an array has: of all of it, verified."""
        if name.startswith('_'):
            raise AttributeError(name)
        return getattr(np.asarray(self), name)

    def __reduce__(self) -> Any:
        """Go to other processes as a plain array."""
        return np.array, (np.asarray(self),)

    def verify(self, blocks: NDArray[np.intp]) -> None:
        """Verify those of the blocks, numbers (b,), that have not been yet; raises MapError."""
        if self._file is not None and self._file.has_changed(self._name):
            self._verified[:] = False
        new = blocks[~self._verified[blocks]]
        for block in np.unique(new).tolist() if new.size else ():
            start = block * BLOCK_BYTES
            end = start + BLOCK_BYTES
            data = self._bytes[start:end]
            if self._checksums is not None and zlib.crc32(data.data) != self._checksums[block]:
                raise MapError(
                    f'{self._name} is damaged at bytes {start} to {start + data.size}: copy or '
                    'build the map again'
                )
            if self._finite and not np.isfinite(data.view(self.dtype)).all():
                raise MapError(f'{self._name} has values that are not finite: build the map again')
            self._verified[block] = True

    def _blocks_of(self, key: Any) -> NDArray[np.intp]:
        """Blocks that rows lie in, some of them repeatedly."""
        width = self._array.nbytes // max(len(self._array), 1)
        if isinstance(key, slice):
            chosen = range(*key.indices(len(self)))
            if not chosen:
                return np.empty(0, dtype=np.intp)
            low, high = sorted((chosen[0], chosen[-1]))
            return np.arange(low * width // BLOCK_BYTES, _block_of_end((high + 1) * width))
        rows = _row_numbers(key, len(self))
        if rows is None:
            return np.arange(len(self._verified))
        first, last = rows * width // BLOCK_BYTES, _block_of_end((rows + 1) * width) - 1
        spans = np.arange(int((last - first).max(initial=0)) + 1)
        found = np.minimum(first[:, np.newaxis] + spans, last[:, np.newaxis])
        return np.asarray(found.ravel(), dtype=np.intp)


def _block_of_end(end: Any) -> Any:
    return -(-end // BLOCK_BYTES)


def _row_numbers(key: Any, count: int) -> NDArray[np.int64] | None:
    """Rows of an index from 0 on; None for an index of another kind, or beyond the array."""
    try:
        rows = np.array([operator.index(key)])
    except TypeError:
        rows = np.asarray(key)
    if rows.dtype == bool and rows.shape == (count,):
        return np.flatnonzero(rows).astype(np.int64)
    if rows.dtype.kind not in 'iu' or np.any(rows >= count) or np.any(rows < -count):
        return None
    return rows.ravel().astype(np.int64) % max(count, 1)
