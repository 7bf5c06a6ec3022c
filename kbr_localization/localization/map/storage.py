"""
How the arrays of a map lie in its file.

Small ones are compressed, with a checksum in every chunk. Those of `MAPPED_BYTES` and more lie in
one plain piece, which is mapped into memory when the map is read: a page of it is read when it is
needed first, and the system may drop it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import mmap
from pathlib import Path
from typing import Any, overload

import h5py
from kbr_localization.errors import MapError
import numpy as np

MAPPED_BYTES = 1 << 25
_BLOCK = 4096  # thumbnails that are joined at a time


def write_array(group: h5py.Group, name: str, array: np.ndarray) -> None:
    """Write an array in the form that its size asks for."""
    if array.nbytes >= MAPPED_BYTES:
        group.create_dataset(name, data=array)
        return
    compression = 'gzip' if array.dtype.kind == 'u' and array.ndim == 2 else None
    options = {'compression': compression, 'compression_opts': 1 if compression else None}
    group.create_dataset(name, data=array, chunks=True, fletcher32=True, **options)


def read_array(dataset: h5py.Dataset) -> np.ndarray:
    """Read an array, or map it where it is large and lies in one piece; then it is read-only."""
    start = dataset.id.get_offset() if dataset.chunks is None else None
    if start is None or dataset.nbytes < MAPPED_BYTES or dataset.dtype.kind not in 'iuf':
        return np.asarray(dataset[...])
    path = Path(dataset.file.filename)
    if start + dataset.nbytes > path.stat().st_size:
        raise MapError(f'{dataset.name} ends beyond the end of the file')
    with path.open('rb') as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    flat = np.frombuffer(mapped, dataset.dtype, count=dataset.size, offset=start)
    return flat.reshape(dataset.shape)


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
    for first in range(0, len(thumbnails), _BLOCK):
        last = min(first + _BLOCK, len(thumbnails))
        joined = b''.join(thumbnails[index] for index in range(first, last))
        start, end = end, end + len(joined)
        data[start:end] = np.frombuffer(joined, dtype=np.uint8)


def read_thumbnails(file: h5py.File, count: int) -> Sequence[bytes]:
    """Read the thumbnails of `count` images, or none; raises MapError when they are others."""
    if 'thumbnails' not in file:
        return ()
    data = read_array(file['thumbnails/jpeg'])
    sizes = file['thumbnails/sizes'][...]
    if sizes.shape != (count,) or np.any(sizes < 0) or sizes.sum() != len(data):
        raise MapError(f'thumbnails are not those of {count} images')
    thumbnails = Thumbnails(data, sizes)
    return thumbnails if data.nbytes >= MAPPED_BYTES else tuple(thumbnails)


class Thumbnails(Sequence[bytes]):
    """JPEG files that lie one after the other in `data` (bytes,), with `sizes` (n,)."""

    def __init__(self, data: np.ndarray, sizes: np.ndarray) -> None:
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
