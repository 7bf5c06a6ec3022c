"""
How large compressed data become, from the heads of their blocks, before they are unpacked.

A few bytes of Zstandard may stand for 128 KiB, so two megabytes of it are as many gigabytes as a
disk has. What a frame declares to hold need not be true; the number of its blocks is. The formats:
RFC 8878 (Zstandard) and the LZ4 frame format.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
import io
from typing import BinaryIO

_ZSTD, _LZ4, _SKIPPABLE = 0xFD2FB528, 0x184D2204, 0x184D2A50
_ZSTD_BLOCK = 1 << 17
_RAW, _REPEATED, _COMPRESSED = 0, 1, 2
_ID_BYTES, _SIZE_BYTES = (0, 1, 2, 4), (0, 2, 4, 8)
_LZ4_STORED = 1 << 31


def unpacked_bound(stream: BinaryIO, size: int, most: int) -> int:
    """
    Bytes that the next `size` bytes become at most; no further than above `most` is counted.

    Where they are no data of Zstandard or LZ4, or are cut off, it is what they become before that.
    """
    total, end = 0, stream.tell() + size
    with suppress(EOFError):
        for block in _blocks(stream, end):
            total += block
            if total > most:
                break
    return total


def _blocks(stream: BinaryIO, end: int) -> Iterator[int]:
    """Largest sizes of the blocks of all frames before a place in the stream."""
    while stream.tell() < end:
        magic = _number(stream, 4)
        if magic & ~0xF == _SKIPPABLE:
            stream.seek(_number(stream, 4), io.SEEK_CUR)
        elif magic in (_ZSTD, _LZ4):
            yield from _zstd_blocks(stream) if magic == _ZSTD else _lz4_blocks(stream)
        else:
            return


def _zstd_blocks(stream: BinaryIO) -> Iterator[int]:
    """Largest sizes of the blocks of a frame, of which the magic number has been read."""
    described = _number(stream, 1)
    single, checksum = described >> 5 & 1, described >> 2 & 1
    declared = _SIZE_BYTES[described >> 6] or single
    stream.seek(1 - single + _ID_BYTES[described & 3] + declared, io.SEEK_CUR)
    last = 0
    while not last:
        head = _number(stream, 3)
        last, kind, size = head & 1, head >> 1 & 3, head >> 3
        if kind not in (_RAW, _REPEATED, _COMPRESSED):
            raise EOFError
        yield _ZSTD_BLOCK if kind == _COMPRESSED else size
        stream.seek(1 if kind == _REPEATED else size, io.SEEK_CUR)
    stream.seek(4 * checksum, io.SEEK_CUR)


def _lz4_blocks(stream: BinaryIO) -> Iterator[int]:
    """Largest sizes of the blocks of a frame, of which the magic number has been read."""
    flags, described = _number(stream, 1), _number(stream, 1)
    largest = 1 << (8 + 2 * (described >> 4 & 7))
    stream.seek(8 * (flags >> 3 & 1) + 4 * (flags & 1) + 1, io.SEEK_CUR)
    while head := _number(stream, 4):
        size = head & ~_LZ4_STORED
        yield size if head & _LZ4_STORED else largest
        stream.seek(size + 4 * (flags >> 4 & 1), io.SEEK_CUR)
    stream.seek(4 * (flags >> 2 & 1), io.SEEK_CUR)


def _number(stream: BinaryIO, size: int) -> int:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return int.from_bytes(data, 'little')
