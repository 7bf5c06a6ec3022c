"""
Arrays in a map file: HDF5 with a checksum for every byte, large arrays mapped into memory.

Small arrays are compressed, with a checksum (fletcher32) in every chunk. Arrays of `MAPPED_BYTES`
and more are contiguous and mapped into memory when the map is loaded, so that a page is read when
it is first used. The CRC-32 of their blocks are in the group `checksums`, at the same path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
import io
from pathlib import Path
from typing import Any, overload
import zlib

import h5py
from h5py import h5d, h5z
from kbr_localization.errors import MapError
import numpy as np
from numpy.typing import NDArray

MAPPED_BYTES = 1 << 25
CHECKSUMS = 'checksums'
_BLOCK = 1 << 16  # bytes that share a checksum
_DEEPEST = 16  # nested groups
_MOST_EXPANDED = 100  # bytes of a compressed array for each byte of the file
_FILTERS = {h5z.FILTER_DEFLATE, h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32}


class _DeferredErrorFile(io.FileIO):
    """
    A file whose first write error is kept in `error`, not raised; later writes do nothing.

    HDF5 keeps a file open that it cannot write, tries again when the process ends, and crashes.
    """

    error: OSError | None = None

    def write(self, data: Any) -> int:
        left = memoryview(data).cast('B')
        count = len(left)
        try:
            while left and self.error is None:  # one call writes 2 GiB at most
                left = left[slice(super().write(left), None)]
        except OSError as error:
            self.error = error
        return count

    def truncate(self, size: int | None = None) -> int:
        try:
            if self.error is None:
                return super().truncate(size)
        except OSError as error:
            self.error = error
        return size or 0


@contextmanager
def new_hdf5(path: Path) -> Iterator[h5py.File]:
    """Give an empty HDF5 file to write; raises OSError at the end when writing failed."""
    with _DeferredErrorFile(path, 'w+') as raw:
        try:
            # HDF5 has checksums of its structures from 1.10 on: without them a single wrong
            # byte can make it read forever
            with h5py.File(raw, 'w', libver=('v110', 'v110')) as file:
                yield file
        finally:
            if raw.error is not None:
                raise raw.error


def check_plain(group: h5py.Group, file_size: int, depth: int = 0) -> None:
    """
    Raise MapError for links, storage in other files, and arrays that the file cannot hold.

    Nothing but the structure of the file is read.
    """
    if depth > _DEEPEST:
        raise MapError(f'its groups are nested more than {_DEEPEST} deep')
    for name in group:
        path = f'{group.name}/{name}'.lstrip('/')
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise MapError(f'{path} is a link to another place: a map holds all it has')
        item = group[name]
        if isinstance(item, h5py.Group):
            check_plain(item, file_size, depth + 1)
        else:
            _check_dataset(path, item, file_size)


def _check_dataset(path: str, dataset: h5py.Dataset, file_size: int) -> None:
    plan = dataset.id.get_create_plist()
    # check this first: to ask a virtual array for its shape opens its sources
    if plan.get_external_count() > 0 or plan.get_layout() == h5d.VIRTUAL:
        raise MapError(f'{path} takes its numbers from another file: a map holds all it has')
    filters = {plan.get_filter(index)[0] for index in range(plan.get_nfilters())}
    if not filters <= _FILTERS or dataset.dtype.kind not in 'iufSb':
        raise MapError(f'{path} is {dataset.dtype} with filters {filters}: no map has such arrays')
    chunk = np.prod(dataset.chunks or 0, dtype=np.float64)
    declared = max(np.prod(dataset.shape or 0, dtype=np.float64), chunk) * dataset.dtype.itemsize
    ratio = _MOST_EXPANDED if h5z.FILTER_DEFLATE in filters else 1
    # a file has room for one chunk that is not full
    if declared > ratio * file_size + MAPPED_BYTES:
        raise MapError(f'{path} declares {declared:.0f} bytes, the file has {file_size}')


def write_array(group: h5py.Group, name: str, values: Any) -> None:
    """Write an array in chunks with checksums, or contiguous if it is large."""
    array = np.asarray(values)
    if array.nbytes >= MAPPED_BYTES:
        dataset = group.create_dataset(name, data=array)
        _write_checksums(dataset, checksums_of(array))
        return
    counts = array.dtype.kind == 'u' and array.ndim == 2
    options = {'compression': 'gzip', 'compression_opts': 1} if counts else {}
    group.create_dataset(name, data=array, chunks=True, fletcher32=True, **options)


def _write_checksums(dataset: h5py.Dataset, sums: NDArray[np.uint32]) -> None:
    dataset.file.create_dataset(CHECKSUMS + dataset.name, data=sums, chunks=True, fletcher32=True)


def checksums_of(array: Any) -> NDArray[np.uint32]:
    """CRC-32 (blocks,) of the blocks of an array, or of a one-dimensional dataset of bytes."""
    if isinstance(array, np.ndarray):
        array = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    starts = range(0, len(array), _BLOCK)
    blocks = (array[s : s + _BLOCK] for s in starts)  # noqa: E203
    return np.array([zlib.crc32(block) for block in blocks], dtype=np.uint32)


def read_array(dataset: Any) -> np.ndarray:
    """Read an array, or map it read-only if it is large and contiguous."""
    if not isinstance(dataset, h5py.Dataset):
        raise MapError(f'{dataset.name[1:]} is a group: expected an array')
    if not is_mapped(dataset):
        try:
            return np.asarray(dataset[...])
        except OSError as error:
            raise MapError(f'{dataset.name[1:]} is not what was written: {error}') from error
    offset = dataset.id.get_offset()
    return np.asarray(
        np.memmap(dataset.file.filename, dataset.dtype, 'r', offset, shape=dataset.shape)
    )


def is_mapped(dataset: h5py.Dataset) -> bool:
    """Whether `read_array` maps a dataset."""
    contiguous = dataset.chunks is None and dataset.id.get_offset() is not None
    return contiguous and dataset.nbytes >= MAPPED_BYTES and dataset.dtype.kind in 'iuf'


def stored_checksums(dataset: h5py.Dataset) -> NDArray[np.uint32] | None:
    """Return the checksums (blocks,) that the file has of a dataset, None if it has none."""
    path = CHECKSUMS + dataset.name
    return read_array(dataset.file[path]) if path in dataset.file else None


def write_thumbnails(file: h5py.File, thumbnails: Sequence[bytes]) -> None:
    """Write JPEG files one after the other, and their sizes; nothing for none."""
    if not thumbnails:
        return
    sizes = np.array([len(item) for item in thumbnails], dtype=np.int64)
    group = file.create_group('thumbnails')
    write_array(group, 'sizes', sizes)
    total = int(sizes.sum())
    if total < MAPPED_BYTES:
        write_array(group, 'jpeg', np.frombuffer(b''.join(thumbnails), dtype=np.uint8))
        return
    # the pictures of a million images do not fit into memory
    data, end = group.create_dataset('jpeg', shape=(total,), dtype=np.uint8), 0
    for first in range(0, len(thumbnails), 4096):
        joined = b''.join(thumbnails[first : first + 4096])  # noqa: E203
        start, end = end, end + len(joined)
        data[start:end] = np.frombuffer(joined, dtype=np.uint8)
    _write_checksums(data, checksums_of(data))


class Thumbnails(Sequence[bytes]):
    """JPEG files that lie one after the other in `data` (bytes,), with `sizes` (n,)."""

    def __init__(self, data: np.ndarray, sizes: np.ndarray) -> None:
        self._data, self._sizes = data, sizes
        self._ends = np.cumsum(sizes)

    def __len__(self) -> int:
        """Count the files."""
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[bytes, ...]: ...

    def __getitem__(self, index: Any) -> Any:
        """Return the bytes of one file, or of several."""
        if isinstance(index, slice):
            return tuple(self[position] for position in range(*index.indices(len(self))))
        end = int(self._ends[index])
        return self._data[end - int(self._sizes[index]) : end].tobytes()  # noqa: E203
