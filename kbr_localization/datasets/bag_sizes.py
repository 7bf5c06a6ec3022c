"""
Whether there is room for what a compressed bag becomes, asked before it is unpacked.

A file that is compressed as a whole is unpacked into the folder for temporary files. Chunks of
mcap files and messages are unpacked in memory, of which those of one moment may take half.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
import io
import os
from pathlib import Path, PurePath
import shutil
import struct
import tempfile
from typing import Any, BinaryIO

from kbr_localization.datasets.unpacked_size import unpacked_bound
from kbr_localization.errors import DatasetError
from kbr_localization.files import read_text
import yaml

METADATA, _INFORMATION = 'metadata.yaml', 'rosbag2_bagfile_information'
_LARGEST_METADATA = 1 << 22
_MCAP, _MCAP_START = '.mcap', 8
_CHUNK, _CHUNK_INDEX = 0x06, 0x08
_RECORD, _LENGTH, _SIZE = struct.Struct('<BQ'), struct.Struct('<I'), struct.Struct('<Q')
_CHUNK_HEAD, _INDEX_HEAD = struct.calcsize('<QQQI'), struct.Struct('<QQQQ')
_FILE_END = struct.Struct('<BQQQI8s')
_CUT_OFF = (struct.error, OSError, ValueError, OverflowError)

"""What a file that ends too early raises here; its reader says so."""

_Moment = tuple[int, int, int]
"""First and last time of a chunk, and bytes that it becomes at most."""


def check_files(path: Path) -> None:
    """
    Raise DatasetError for a bag, or one file of it, that there is no room for unpacked.

    What is wrong with it otherwise is a ValueError here, or told by its reader.
    """
    mode, files = compression(path) if path.is_dir() else ('', [path])
    if mode == 'file':
        return _check_disk(path, files)
    for file in files:
        if file.suffix == _MCAP and file.is_file():
            _check_chunks(file)
    return None


def compression(folder: Path) -> tuple[str, list[Path]]:
    """Tell how a bag is compressed: '', 'file' or 'message'; and its files. Raises ValueError."""
    try:
        text = read_text(folder / METADATA, most=_LARGEST_METADATA)
        described = _described(yaml.safe_load(text))
        names = described['relative_file_paths']
        mode = str(described.get('compression_mode') or '').lower()
        return mode, [folder / PurePath(name).name for name in names]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError) as error:
        reason = ' '.join(str(error).split())[:200]
        raise ValueError(f'{METADATA}: {reason}') from error


def _described(metadata: Any) -> Any:
    if not isinstance(metadata, dict) or _INFORMATION not in metadata:
        raise ValueError('is empty or no metadata of a bag')
    return metadata[_INFORMATION]


def check_message(data: bytes, path: Path) -> None:
    """Raise DatasetError for a compressed message of a bag that there is no memory for."""
    most = _memory()
    if unpacked_bound(io.BytesIO(data), len(data), most) > most:
        raise _too_large(path, most)


def _check_disk(path: Path, files: list[Path]) -> None:
    folder, total = tempfile.gettempdir(), 0
    free = shutil.disk_usage(folder).free
    for file in filter(Path.is_file, files):
        with file.open('rb') as stream:
            total += unpacked_bound(stream, file.stat().st_size, free)
    if total > free:
        raise DatasetError(
            f'bag {path}: unpacked it may take more than the {free / 1e9:.1f} GB that {folder} '
            'has left: make room, or set TMPDIR to another folder'
        )


def _check_chunks(file: Path) -> None:
    most = _memory()
    with file.open('rb') as stream:
        largest = max(_scanned(stream, most), default=0)
        together = _most_at_once(list(_indexed(stream, most)))
    if max(largest, together) > most:
        raise _too_large(file, most)


def _scanned(stream: BinaryIO, most: int) -> Iterator[int]:
    """Bytes that each chunk becomes at most, in the order of the file."""
    for kind in _records(stream, _MCAP_START):
        if kind == _CHUNK:
            with suppress(*_CUT_OFF):  # others may be whole
                stream.seek(_CHUNK_HEAD, io.SEEK_CUR)
                name = stream.read(_number(stream, _LENGTH))
                yield _bound(stream, name, _number(stream, _SIZE), most)


def _indexed(stream: BinaryIO, most: int) -> Iterator[_Moment]:
    """Bytes that the chunks of the index become at most, wherever it says they are."""
    stream.seek(max(stream.seek(0, io.SEEK_END) - _FILE_END.size, 0))
    with suppress(*_CUT_OFF):
        _, _, at, *_ = _read(stream, _FILE_END)
        for kind in _records(stream, at) if at else ():
            if kind == _CHUNK_INDEX:
                yield _indexed_chunk(stream, most)


def _records(stream: BinaryIO, at: int) -> Iterator[int]:
    """Kinds of the records from a place on, at the content of each, as far as there are any."""
    with suppress(*_CUT_OFF):
        while True:
            stream.seek(at)
            kind, length = _read(stream, _RECORD)
            yield kind
            at += _RECORD.size + length


def _indexed_chunk(stream: BinaryIO, most: int) -> _Moment:
    start, end, chunk, _ = _read(stream, _INDEX_HEAD)
    stream.seek(_number(stream, _LENGTH), io.SEEK_CUR)  # where the messages of each topic are
    stream.seek(_SIZE.size, io.SEEK_CUR)
    name = stream.read(_number(stream, _LENGTH))
    size = _number(stream, _SIZE)
    stream.seek(chunk + _RECORD.size + _CHUNK_HEAD + _LENGTH.size + len(name) + _SIZE.size)
    return start, end, _bound(stream, name, size, most)


def _bound(stream: BinaryIO, name: bytes, size: int, most: int) -> int:
    return unpacked_bound(stream, size, most) if name else size


def _most_at_once(chunks: list[_Moment]) -> int:
    """Bytes of the chunks whose times overlap, which are held until the last of each is read."""
    changes = [(start, 1, size) for start, _, size in chunks]
    changes += [(end, 2, -size) for _, end, size in chunks]
    held = largest = 0
    for *_, change in sorted(changes):
        held += change
        largest = max(largest, held)
    return largest


def _memory() -> int:
    """Bytes that what is unpacked at one moment may take."""
    return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') // 2


def _read(stream: BinaryIO, layout: struct.Struct) -> tuple[Any, ...]:
    return layout.unpack(stream.read(layout.size))


def _number(stream: BinaryIO, layout: struct.Struct) -> int:
    return int(_read(stream, layout)[0])


def _too_large(path: Path, most: int) -> DatasetError:
    return DatasetError(
        f'bag {path}: what is compressed in it may take more than {most / 1e9:.1f} GB, half of '
        'the memory, when it is unpacked: read it on a larger computer, or convert it there'
    )
