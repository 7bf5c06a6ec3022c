"""
How the arrays of a map lie in its file.

Small ones are compressed, with a checksum in every chunk. Those of `MAPPED_BYTES` and more lie in
one plain piece, which is mapped into memory when the map is read: a page of it is read when it is
needed first, and the system may drop it again. Checksums of their blocks lie beside them, in a
group of their own, and are compared when a block is used first (see `verified`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import mmap
from pathlib import Path
from typing import Any, overload

import h5py
from kbr_localization.errors import MapError
from kbr_localization.localization.map.verified import (
    BlockChecksums,
    checksums_of,
    VerifiedArray,
    WatchedFile,
)
import numpy as np

MAPPED_BYTES = 1 << 25
CHECKSUMS = 'checksums'
"""Group with the checksums of the array of every path that has some."""
_BLOCK = 4096  # thumbnails that are joined at a time


def write_array(group: h5py.Group, name: str, values: Any) -> None:
    """Write an array in the form that its size asks for."""
    array = np.asarray(values)
    if array.nbytes >= MAPPED_BYTES:
        dataset = group.create_dataset(name, data=array)
        _write_checksums(dataset, checksums_of(array))
        return
    compression = 'gzip' if array.dtype.kind == 'u' and array.ndim == 2 else None
    options = {'compression': compression, 'compression_opts': 1 if compression else None}
    group.create_dataset(name, data=array, chunks=True, fletcher32=True, **options)


def _write_checksums(dataset: h5py.Dataset, sums: np.ndarray) -> None:
    path = f'{CHECKSUMS}{dataset.name}'
    dataset.file.create_dataset(path, data=sums, chunks=True, fletcher32=True)


def read_array(dataset: h5py.Dataset, finite: bool = False) -> Any:
    """
    Read an array, or map it where it is large and lies in one piece; then it is read-only.

    What is mapped is a `VerifiedArray`, which is used like any other. `finite`: it is an error
    when numbers are not finite; what is not mapped is left for the caller to check. Raises
    MapError for an array that ends beyond the file or cannot be read.
    """
    if not isinstance(dataset, h5py.Dataset):
        raise MapError(f'{dataset.name[1:]} is a group: expected an array')
    if not is_mapped(dataset):
        return _read_all(dataset)
    start, path = dataset.id.get_offset(), Path(dataset.file.filename)
    with path.open('rb') as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if start + dataset.nbytes > len(mapped):
            raise MapError(f'{dataset.name} ends beyond the end of the file')
        watched = WatchedFile(file, start + dataset.nbytes)
    flat = np.frombuffer(mapped, dataset.dtype, count=dataset.size, offset=start)
    name, checksums = f'{dataset.name[1:]} of {path}', _read_checksums(dataset)
    return VerifiedArray(flat.reshape(dataset.shape), checksums, name, finite, watched)


def _read_all(dataset: h5py.Dataset) -> np.ndarray:
    try:
        array = np.asarray(dataset[...])
    except OSError as error:
        raise MapError(f'{dataset.name[1:]} is not what was written: {error}') from error
    sums = _read_checksums(dataset)
    if sums is not None and not np.array_equal(sums, checksums_of(array)):
        raise MapError(f'{dataset.name[1:]} is not what was written')
    return array


def is_mapped(dataset: h5py.Dataset) -> bool:
    """Whether an array is so large that it is read where it lies."""
    in_one_piece = dataset.chunks is None and dataset.id.get_offset() is not None
    return in_one_piece and dataset.nbytes >= MAPPED_BYTES and dataset.dtype.kind in 'iuf'


def _read_checksums(dataset: h5py.Dataset) -> Any:
    """Return the checksums (blocks,) of an array, None in a map made before there were any."""
    path = f'{CHECKSUMS}{dataset.name}'
    return np.asarray(dataset.file[path][...]) if path in dataset.file else None


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
    data, end = group.create_dataset('jpeg', shape=(total,), dtype=np.uint8), 0
    sums = BlockChecksums()
    for first in range(0, len(thumbnails), _BLOCK):
        last = min(first + _BLOCK, len(thumbnails))
        joined = b''.join(thumbnails[index] for index in range(first, last))
        start, end = end, end + len(joined)
        data[start:end] = np.frombuffer(joined, dtype=np.uint8)
        sums.add(joined)
    _write_checksums(data, sums.array())


def read_thumbnails(file: h5py.File, count: int) -> Sequence[bytes]:
    """Read the thumbnails of `count` images, or none; raises MapError when they are others."""
    if 'thumbnails' not in file:
        return ()
    data = read_array(file['thumbnails/jpeg'])
    sizes = np.asarray(read_array(file['thumbnails/sizes']))
    if data.dtype != np.uint8 or data.ndim != 1 or sizes.dtype.kind not in 'iu':
        raise MapError(
            f'thumbnails are {data.dtype} with sizes that are {sizes.dtype}: expected uint8 and '
            'integers'
        )
    outside = np.any(sizes < 0) or np.any(sizes > len(data))
    if sizes.shape != (count,) or outside or sizes.sum() != len(data):
        raise MapError(f'thumbnails are not those of {count} images')
    thumbnails = Thumbnails(data, sizes.astype(np.int64))
    return thumbnails if data.nbytes >= MAPPED_BYTES else tuple(thumbnails)


class Thumbnails(Sequence[bytes]):
    """JPEG files that lie one after the other in `data` (bytes,), with `sizes` (n,)."""

    def __init__(self, data: Any, sizes: np.ndarray) -> None:
        self._data = data
        self._ends = np.cumsum(sizes)
        self._sizes = sizes

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
        start = end - int(self._sizes[index])
        return self._data[start:end].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the files."""
        return (self[index] for index in range(len(self)))
